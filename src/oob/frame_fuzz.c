/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the decoders of frames between ranks. What is accepted must come out of the encoder as it went in.
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
    if (kolo_head_decode(data, size, &h) != NULL) return;
    require(h.bytes <= KOLO_GATHER_FRAME_MAX);
    kolo_head_encode(&h, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

static void boards(const uint8_t *data, size_t size)
{
    kolo_board_frame_t b;
    kolo_pair_frame_t p;
    uint8_t again[KOLO_PAIR_FRAME_BYTES];
    if (kolo_board_decode(data, size, 5, &b) == NULL) {
        require(b.rank >= 0 && b.rank < 5 && b.flags <= 12 && b.flags != 3);
        kolo_board_encode(&b, again);
        require(memcmp(data, again, KOLO_BOARD_FRAME_BYTES) == 0);
    }
    if (kolo_pair_decode(data, size, &p) == NULL) {
        kolo_pair_encode(&p, again);
        require(memcmp(data, again, sizeof(again)) == 0);
    }
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

static void findings(const uint8_t *data, size_t size)
{
    kolo_finding_t f = {.rank = 3};
    uint8_t again[KOLO_FINDINGS_FRAME_BYTES];
    if (kolo_findings_decode(data, size, &f) != NULL) return;
    require(f.rank == 3 && f.heard && f.nops <= KOLO_SURVEY_OPS && f.failed <= KOLO_ERR_REVOKED);
    for (uint32_t i = 0; i < f.nops; i++)
        require(f.ops[i].kind < KOLO_RECORD_KINDS && f.ops[i].state <= KOLO_RECORD_FAILED);
    kolo_findings_encode(&f, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    head(data, size);
    boards(data, size);
    news(data, size);
    findings(data, size);
    return 0;
}
