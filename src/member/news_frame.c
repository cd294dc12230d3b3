/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoder and decoder of news_frame.h. The decoder accepts exactly what the encoder can have written.
 */
#include "member/news_frame.h"

#include "base/bytes.h"

void kolo_news_encode(const kolo_news_frame_t *news, uint8_t bytes[KOLO_NEWS_FRAME_BYTES])
{
    kolo_put32(bytes, (uint32_t)news->kind);
    kolo_put32(bytes + 4, (uint32_t)news->rank);
    kolo_put32(bytes + 8, (uint32_t)news->how);
    kolo_put32(bytes + 12, (uint32_t)news->noticed_by);
}

const char *kolo_news_decode(const uint8_t *bytes, size_t length, int nranks, kolo_news_frame_t *news)
{
    if (length != KOLO_NEWS_FRAME_BYTES) return "news of the wrong length";
    uint32_t kind = kolo_get32(bytes), rank = kolo_get32(bytes + 4), how = kolo_get32(bytes + 8);
    uint32_t by = kolo_get32(bytes + 12);
    if (kind > KOLO_NEWS_PARTITION) return "news of an unknown kind";
    if (rank >= (uint32_t)nranks || by >= (uint32_t)nranks) return "news of a rank out of range";
    if (how >= KOLO_LOSS_KINDS) return "news of an unknown loss";
    *news = (kolo_news_frame_t){(kolo_news_kind_t)kind, (int)rank, (kolo_loss_how_t)how, (int)by};
    return NULL;
}
