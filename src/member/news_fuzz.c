/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the decoders of news. What is accepted must come out of the encoder as it went in.
 */
#include "member/news_frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static void news(const uint8_t *data, size_t size)
{
    kolo_news_frame_t n;
    uint8_t again[KOLO_NEWS_FRAME_BYTES];
    if (kolo_news_decode(data, size, 5, &n) != NULL) return;
    require(n.rank >= 0 && n.rank < 5 && n.noticed_by >= 0 && n.noticed_by < 5 && n.how < KOLO_LOSS_KINDS);
    kolo_news_encode(&n, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    news(data, size);
    return 0;
}
