/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer target: kolo_plan_check() on plans of any bytes. What it accepts is listed and walked, which must stay
 * within the arrays.
 */
#include "plan/plan.h"
#include "prove/walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

/* Fills memory from the input, zeros beyond its end. */
static void take(input_t *in, void *to, size_t bytes)
{
    size_t n = bytes < in->left ? bytes : in->left;
    memset(to, 0, bytes);
    memcpy(to, in->at, n);
    in->at += n;
    in->left -= n;
}

/* Half of the time small numbers, so that more than the first test is reached. */
static uint32_t number(input_t *in, uint32_t small)
{
    uint8_t b[5];
    take(in, b, sizeof(b));
    uint32_t v;
    memcpy(&v, b + 1, sizeof(v));
    return b[0] & 1 ? v : b[1] % small;
}

static void read_plan(input_t *in, kolo_plan_t *p)
{
    p->coll = (kolo_coll_t)number(in, KOLO_COLL_COUNT);
    p->algo = (kolo_algo_t)number(in, KOLO_ALGO_COUNT);
    p->nranks = number(in, 8);
    p->rank = number(in, 8);
    p->root = number(in, 8);
    p->nparts = number(in, 8);
    p->nsubs = number(in, 4);
    p->src_parts = number(in, 8);
    p->dst_parts = number(in, 8);
    p->nscratch = number(in, 8);
    p->slices = number(in, 5);
    p->depth = number(in, 8);
    p->nevents = number(in, 4);
    p->ninsns = number(in, 16) % 64;
    p->nconns = number(in, 8) % 64;
    p->nlanes = number(in, 4) % 64;
    p->nlist = number(in, 8) % 64;
    p->insns = calloc(p->ninsns + 1, sizeof(*p->insns));
    p->conns = calloc(p->nconns + 1, sizeof(*p->conns));
    p->lanes = calloc(p->nlanes + 1, sizeof(*p->lanes));
    p->list = calloc(p->nlist + 1, sizeof(*p->list));
    if (!p->insns || !p->conns || !p->lanes || !p->list) abort();
    for (uint32_t i = 0; i < p->nlanes; i++)
        p->lanes[i] = (kolo_plan_lane_t){.first = number(in, 16), .count = number(in, 8)};
    for (uint32_t i = 0; i < p->nconns; i++)
        p->conns[i] = (kolo_plan_conn_t){.dir = (uint8_t)number(in, 2),
                                         .node = number(in, 2) & 1,
                                         .lane = (uint16_t)number(in, 3),
                                         .peer = (int32_t)number(in, 8)};
    for (uint32_t i = 0; i < p->nlist; i++) p->list[i] = (uint16_t)number(in, 8);
    if (p->ninsns) take(in, p->insns, p->ninsns * sizeof(*p->insns));
}

/* Walks at most some thousand steps of every lane; every index must be inside. */
static void walk(const kolo_plan_t *p)
{
    for (uint32_t l = 0; l < p->nlanes; l++) {
        kolo_cursor_t at;
        kolo_cursor_start(&at);
        int steps = 2000;
        for (const kolo_insn_t *in; steps-- && (in = kolo_cursor_at(&at, p, l)); kolo_cursor_next(&at)) {
            if (!kolo_insn_has_chunks(in)) continue;
            uint32_t i = kolo_cursor_i(&at), j = kolo_cursor_j(&at);
            const kolo_segment_t *s = kolo_insn_payload(in);
            uint32_t chunks = p->nparts * p->nsubs;
            if (s->buf == KOLO_BUF_SRC) chunks = p->src_parts * p->nsubs;
            if (s->buf == KOLO_BUF_DST) chunks = p->dst_parts * p->nsubs;
            if (s->buf == KOLO_BUF_SCRATCH) chunks = p->nscratch;
            if (s->n == 0) abort();
            if (s->buf != KOLO_BUF_NONE && kolo_segment_chunk(s, i, j, s->n - 1) >= chunks) abort();
            if (in->tx != KOLO_NO_CONN && (uint32_t)(in->tx + in->tx_stride * (int)i) >= p->nconns) abort();
            if (in->rx != KOLO_NO_CONN && (uint32_t)(in->rx + in->rx_stride * (int)i) >= p->nconns) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    input_t in = {data, size};
    kolo_plan_t plan = {0};
    read_plan(&in, &plan);
    if (kolo_plan_check(&plan) == KOLO_OK) {
        walk(&plan);
        if (nowhere) kolo_plan_print(&plan, nowhere);
        (void)kolo_plan_equal_only(&plan);
    }
    free(plan.insns);
    free(plan.conns);
    free(plan.lanes);
    free(plan.list);
    return 0;
}
