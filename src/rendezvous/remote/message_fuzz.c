/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the messages between tasks: what is taken is exactly what would be sent.
 */
#include "rendezvous/remote/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is taken is what would be sent; false: it is not taken. */
static bool is_taken(const uint8_t *bytes, size_t size)
{
    kolo_message_t message;
    kolo_tensor_key_t key;
    uint8_t again[KOLO_MESSAGE_BYTES];
    if (kolo_message_decode(bytes, size, &message, &key) != NULL) return false;
    size_t n = kolo_message_encode(&message, again);
    if (n > size || memcmp(bytes, again, n) != 0 || kolo_message_length(&message) < n) abort();
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t changes[] = {0x01, 0x80, 0xff};
    uint8_t copy[KOLO_MESSAGE_BYTES];
    size = KOLO_MIN(size, sizeof copy);
    memcpy(copy, data, size);
    if (size >= 4) memcpy(copy, "krm4", 4); /* or nothing behind it is reached */
    if (!is_taken(copy, size)) return 0;
    for (size_t i = 0; i < KOLO_MIN(size, (size_t)KOLO_MESSAGE_TEXT_BYTES); i++) /* each byte of each field */
        for (size_t c = 0; c < sizeof changes; c++) {
            copy[i] ^= changes[c];
            (void)is_taken(copy, size);
            copy[i] ^= changes[c];
        }
    return 0;
}
