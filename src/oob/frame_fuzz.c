/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the decoders of frames and addresses. What is accepted must come out of the encoder as it went in.
 */
#include "oob/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static void checkin(const uint8_t *data, size_t size)
{
    kolo_checkin_t c;
    uint8_t again[KOLO_CHECKIN_BYTES];
    if (kolo_checkin_decode(data, size, &c) != NULL) return;
    require(c.rank >= 0 && c.rank < c.nranks && c.nranks <= KOLO_NRANKS_MAX && c.nids <= c.nranks);
    kolo_checkin_encode(&c, again);
    require(memcmp(data, again, sizeof(again)) == 0);
    int first, count;
    kolo_root_share(c.nranks, c.nids, c.id_index, &first, &count);
    require(first >= 0 && count >= 1 && first + count <= c.nranks);
    require(kolo_root_of_rank(c.nranks, c.nids, first) == c.id_index);
    require(kolo_root_of_rank(c.nranks, c.nids, first + count - 1) == c.id_index);
}

static void reply(const uint8_t *data, size_t size)
{
    kolo_reply_t r;
    if (kolo_reply_decode(data, size, &r) != NULL) return;
    require(memchr(r.text, '\0', sizeof(r.text)) != NULL);
    for (const char *c = r.text; *c != '\0'; c++) require((unsigned char)*c >= 32 && *c != 127);
    require(r.status != KOLO_OK || kolo_address_check(&r.next) == NULL);
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

static void address(const uint8_t *data, size_t size)
{
    kolo_address_t a, again;
    struct sockaddr_storage sa;
    char text[KOLO_ADDRESS_TEXT_BYTES];
    if (size < sizeof(a)) return;
    memcpy(&a, data, sizeof(a));
    if (kolo_address_check(&a) != NULL) return;
    kolo_address_to_sockaddr(&a, &sa);
    kolo_address_from_sockaddr(&again, (const struct sockaddr *)&sa);
    require(memcmp(a.bytes + 2, again.bytes + 2, 22) == 0);
    require(strlen(kolo_address_print(&a, text)) < sizeof(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    checkin(data, size);
    reply(data, size);
    head(data, size);
    boards(data, size);
    news(data, size);
    findings(data, size);
    address(data, size);
    return 0;
}
