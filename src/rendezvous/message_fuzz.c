/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the messages between tasks: what is taken is exactly what would be sent.
 */
#include "rendezvous/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_message_t message;
    uint8_t copy[KOLO_MESSAGE_BYTES], again[KOLO_MESSAGE_BYTES];
    size = KOLO_MIN(size, sizeof copy);
    memcpy(copy, data, size);
    if (size >= 4) memcpy(copy, "krm1", 4); /* or nothing behind it is reached */
    if (kolo_message_decode(copy, size, &message) != NULL) return 0;
    size_t n = kolo_message_encode(&message, again);
    if (n > size || memcmp(copy, again, n) != 0) abort();
    return 0;
}
