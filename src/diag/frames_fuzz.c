/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the decoders of boards, counts of messages, differences, leavings and findings. What is accepted must
 * come out of the encoder as it went in.
 */
#include "diag/frames.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
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

static void sums(const uint8_t *data, size_t size)
{
    kolo_sums_frame_t s;
    uint8_t again[KOLO_SUMS_FRAME_MOST];
    if (kolo_sums_decode(data, size, &s) != NULL) return;
    require(s.count >= 1 && s.count <= KOLO_SUMS_MOST && (s.step == 1 || s.step == KOLO_SUMS_STEP));
    kolo_sums_encode(&s, again);
    require(memcmp(data, again, size) == 0);
}

static void differences(const uint8_t *data, size_t size)
{
    kolo_difference_t d;
    uint8_t again[KOLO_DIFFERENCE_FRAME_BYTES];
    if (kolo_difference_decode(data, size, 5, &d) != NULL) return;
    require(d.rank >= 0 && d.rank < 5 && d.other >= 0 && d.other < 5 && d.rank != d.other);
    kolo_difference_encode(&d, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

static void leavings(const uint8_t *data, size_t size)
{
    kolo_left_frame_t l;
    uint8_t again[KOLO_LEFT_FRAME_BYTES];
    if (kolo_left_decode(data, size, 5, &l) != NULL) return;
    require(l.rank >= 0 && l.rank < 5);
    kolo_left_encode(&l, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

static void findings(const uint8_t *data, size_t size)
{
    kolo_finding_t f = {.rank = 3};
    uint8_t again[KOLO_FINDINGS_FRAME_BYTES];
    if (kolo_findings_decode(data, size, &f) != NULL) return;
    require(f.rank == 3 && f.heard && f.nops <= KOLO_SURVEY_OPS && f.failed <= KOLO_ERR_REVOKED &&
            f.callback < KOLO_CALLBACKS);
    require(strlen(f.note) < sizeof f.note);
    for (uint32_t i = 0; i < f.nops; i++)
        require(f.ops[i].kind < KOLO_RECORD_KINDS && f.ops[i].state <= KOLO_RECORD_FAILED);
    kolo_findings_encode(&f, again);
    require(memcmp(data, again, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    boards(data, size);
    sums(data, size);
    differences(data, size);
    leavings(data, size);
    findings(data, size);
    return 0;
}
