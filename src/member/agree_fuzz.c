/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of an agreement out of arbitrary bytes: never read beyond the end, and what is accepted encodes to the
 * same bytes again.
 */
#include "member/agree_frame.h"

#include <stdlib.h>
#include <string.h>

static void require(bool fact)
{
    if (!fact) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int ranks[] = {1, 5, 64, 65};
    kolo_ballot_t b;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        if (kolo_ballot_decode(data, size, ranks[i], &b) != NULL) continue;
        require(kolo_ballot_bytes(&b, ranks[i]) == size);
        require(b.ballot >= 0 && b.ballot < ranks[i] && b.accepted < ranks[i] && b.about < ranks[i]);
        uint8_t *again = malloc(size);
        require(again != NULL);
        kolo_ballot_encode(&b, ranks[i], again);
        require(memcmp(again, data, size) == 0);
        free(again);
    }
    return 0;
}
