/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the decoders of the head of a message. What is accepted must come out of the encoder as it went in.
 */
#include "oob/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static void head(const uint8_t *data, size_t size)
{
    kolo_head_t h;
    uint8_t again[KOLO_HEAD_BYTES];
    if (kolo_oob_head_decode(data, size, &h) != NULL) return;
    require(h.bytes <= KOLO_GATHER_FRAME_MAX);
    kolo_oob_head_encode(&h, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    head(data, size);
    return 0;
}
