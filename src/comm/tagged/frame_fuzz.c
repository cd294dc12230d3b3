/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of messages out of arbitrary bytes: what is accepted has lengths within bounds, and encodes to the same
 * bytes again.
 */
#include "comm/tagged/frame.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static void require(bool fact)
{
    if (!fact) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_tagged_frame_t f;
    uint8_t again[KOLO_TAGGED_FRAME_BYTES];
    for (; size >= sizeof again; data += sizeof again, size -= sizeof again)
        for (int back = 0; back < 2; back++) {
            if (kolo_tagged_decode(data, back, &f) != NULL) continue;
            require(f.bytes <= KOLO_TAGGED_PIECE_MAX && (f.kind >= KOLO_TAGGED_TAKEN) == (back == 1));
            kolo_tagged_encode(&f, again);
            require(memcmp(again, data, sizeof again) == 0);
        }
    return 0;
}
