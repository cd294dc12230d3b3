/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoders and decoders of frame.h. A decoder accepts exactly what an encoder can have written.
 */
#include "oob/frame.h"

#include "base/bytes.h"

#define HEAD_MAGIC 0x316d6b6bu /* "kkm1" */

void kolo_head_encode(const kolo_head_t *head, uint8_t bytes[KOLO_HEAD_BYTES])
{
    kolo_put32(bytes, HEAD_MAGIC);
    kolo_put32(bytes + 4, (uint32_t)head->kind);
    kolo_put32(bytes + 8, head->bytes);
    kolo_put32(bytes + 12, 0);
    kolo_put64(bytes + 16, head->tag);
}

const char *kolo_head_decode(const uint8_t *bytes, size_t length, kolo_head_t *head)
{
    if (length != KOLO_HEAD_BYTES) return "a message head of the wrong length";
    if (kolo_get32(bytes) != HEAD_MAGIC || kolo_get32(bytes + 12) != 0) return "bytes that are no message head";
    uint32_t kind = kolo_get32(bytes + 4), size = kolo_get32(bytes + 8);
    if (kind < KOLO_FRAME_MESSAGE || kind > KOLO_FRAME_WORDS) return "a message of an unknown kind";
    uint32_t limit = kind == KOLO_FRAME_GATHER ? KOLO_GATHER_FRAME_MAX
                     : kind == KOLO_FRAME_FAREWELL || kind == KOLO_FRAME_BEAT || kind == KOLO_FRAME_SURVEY ||
                             kind == KOLO_FRAME_NUDGE
                         ? 0
                     : kind == KOLO_FRAME_WORDS ? KOLO_WORDS_FRAME_MAX
                                                : KOLO_OOB_MESSAGE_MAX;
    if (size > limit) return "an oversized message";
    if (kind == KOLO_FRAME_BOARD && size != KOLO_BOARD_FRAME_BYTES) return "a board of the wrong length";
    if (kind == KOLO_FRAME_PAIR && size != KOLO_PAIR_FRAME_BYTES) return "counts of messages of the wrong length";
    if (kind == KOLO_FRAME_NEWS && size != KOLO_NEWS_FRAME_BYTES) return "news of the wrong length";
    if (kind == KOLO_FRAME_FINDINGS && size != KOLO_FINDINGS_FRAME_BYTES) return "findings of the wrong length";
    *head = (kolo_head_t){.kind = (kolo_frame_kind_t)kind, .bytes = size, .tag = kolo_get64(bytes + 16)};
    return NULL;
}

void kolo_board_encode(const kolo_board_frame_t *board, uint8_t bytes[KOLO_BOARD_FRAME_BYTES])
{
    kolo_put64(bytes, board->word);
    kolo_put64(bytes + 8, board->number);
    kolo_put32(bytes + 16, (uint32_t)board->rank);
    kolo_put32(bytes + 20, board->flags);
}

const char *kolo_board_decode(const uint8_t *bytes, size_t length, int nranks, kolo_board_frame_t *board)
{
    if (length != KOLO_BOARD_FRAME_BYTES) return "a board of the wrong length";
    uint32_t rank = kolo_get32(bytes + 16), flags = kolo_get32(bytes + 20);
    if (rank >= (uint32_t)nranks) return "a board with a rank out of range";
    if (flags > KOLO_BOARD_GAVE_UP && flags != KOLO_BOARD_STUCK &&
        flags != (KOLO_BOARD_STUCK | KOLO_BOARD_GAVE_UP) && flags != (KOLO_BOARD_STUCK | KOLO_BOARD_STUCK_SEND))
        return "a board with unknown flags";
    *board = (kolo_board_frame_t){kolo_get64(bytes), kolo_get64(bytes + 8), (int)rank, flags};
    return NULL;
}

void kolo_pair_encode(const kolo_pair_frame_t *pair, uint8_t bytes[KOLO_PAIR_FRAME_BYTES])
{
    for (int i = 0; i < 2; i++) {
        kolo_put64(bytes + 8 * i, pair->words[i]);
        for (int k = 0; k < 2; k++) kolo_put64(bytes + 16 + 16 * i + 8 * k, pair->begun[i][k]);
    }
}

const char *kolo_pair_decode(const uint8_t *bytes, size_t length, kolo_pair_frame_t *pair)
{
    if (length != KOLO_PAIR_FRAME_BYTES) return "counts of messages of the wrong length";
    for (int i = 0; i < 2; i++) {
        pair->words[i] = kolo_get64(bytes + 8 * i);
        for (int k = 0; k < 2; k++) pair->begun[i][k] = kolo_get64(bytes + 16 + 16 * i + 8 * k);
    }
    return NULL;
}

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
