/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of what travels between the ends of a one-sided connection: what is taken is what would be sent.
 */
#include "base/bytes.h"
#include "remote/onesided/internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void card(const uint8_t *data, size_t size)
{
    kolo_onesided_card_t c;
    uint8_t again[KOLO_ONESIDED_CARD_BYTES];
    if (kolo_onesided_card_decode(data, size, &c) != NULL) return;
    kolo_onesided_card_encode(&c, again);
    if (memcmp(again, data, size) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[KOLO_ONESIDED_CARD_BYTES], again[KOLO_ONESIDED_FRAME_BYTES];
    kolo_onesided_frame_t frame;
    card(data, size);
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, data, KOLO_MIN(size, sizeof bytes));
    kolo_put64(bytes + 248, kolo_hash_bytes(KOLO_HASH_INIT, bytes, 248)); /* or nothing behind it is reached */
    card(bytes, sizeof bytes);
    if (kolo_onesided_frame_decode(data, size, &frame) != NULL) return 0;
    kolo_onesided_frame_encode(&frame, again);
    if (memcmp(again, data, size) != 0) abort();
    return 0;
}
