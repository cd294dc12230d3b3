/* SPDX-License-Identifier: Apache-2.0
 *
 * How news travels (news.c). Pure and fuzzed.
 */
#ifndef KOLO_MEMBER_NEWS_FRAME_H
#define KOLO_MEMBER_NEWS_FRAME_H

#include "member/member.h"

/* 0 kind, 4 rank, 8 how, 12 who noticed */
#define KOLO_NEWS_FRAME_BYTES 16
typedef struct {
    kolo_news_kind_t kind;
    int rank;
    kolo_loss_how_t how; /* if KOLO_NEWS_LOST */
    int noticed_by;
} kolo_news_frame_t;

void kolo_news_encode(const kolo_news_frame_t *news, uint8_t bytes[KOLO_NEWS_FRAME_BYTES]);
/* Returns NULL when fine, else what is wrong. */
const char *kolo_news_decode(const uint8_t *bytes, size_t length, int nranks, kolo_news_frame_t *news);

#endif
