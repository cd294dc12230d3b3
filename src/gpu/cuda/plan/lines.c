/* SPDX-License-Identifier: Apache-2.0
 *
 * May a plan's pieces go by lines? A line that has come says that its own bytes have come, not that what its sender
 * did before can be seen. So no lane may read what another lane of its rank has written: between slots and events
 * there are fences, between lines there are none. (A lane that writes where another has read is harmless: what it
 * writes has come of what was read.)
 */
#include "gpu/cuda/plan/plan.h"

#include <stdlib.h>

typedef struct {
    uint16_t *writer[2]; /* of each chunk of DST and SCRATCH: its lane plus one; 0: none */
    uint16_t lane;
    bool reads; /* this pass asks; the first one notes who writes */
    bool shared;
} look_t;

static void look_at(look_t *l, const kolo_segment_t *s, uint32_t i, uint32_t j, bool writes)
{
    if (writes == l->reads || (s->buf != KOLO_BUF_DST && s->buf != KOLO_BUF_SCRATCH)) return;
    for (uint32_t k = 0; k < s->n; k++) {
        uint16_t *writer = &l->writer[s->buf == KOLO_BUF_SCRATCH][kolo_segment_chunk(s, i, j, k)];
        l->shared = l->shared || (*writer && *writer != l->lane + 1);
        if (writes) *writer = (uint16_t)(l->lane + 1);
    }
}

/* Looks at every turn of every loop. */
static void look_through(look_t *l, const kolo_plan_t *p)
{
    uint32_t pc = p->lanes[l->lane].first, end = pc + p->lanes[l->lane].count, depth = 0;
    uint32_t loop_pc[2] = {0, 0}, turn[2] = {0, 0};
    for (; pc < end; pc++) {
        const kolo_insn_t *in = &p->insns[pc];
        if (in->op == KOLO_OP_LOOP) {
            loop_pc[depth] = pc;
            turn[depth++] = 0;
        } else if (in->op == KOLO_OP_END) {
            if (++turn[depth - 1] < p->insns[loop_pc[depth - 1]].count)
                pc = loop_pc[depth - 1];
            else
                depth--;
        } else {
            uint32_t i = depth ? turn[depth - 1] : 0, j = depth == 2 ? turn[0] : 0;
            look_at(l, &in->src, i, j, false);
            if (in->op == KOLO_OP_REDUCE) look_at(l, &in->dst, i, j, false);
            look_at(l, &in->dst, i, j, true);
        }
    }
}

kolo_status_t kolo_cuda_plan_takes_lines(const kolo_plan_t *p, bool *takes)
{
    look_t l = {0};
    size_t chunks = (size_t)p->nparts * p->nsubs;
    uint16_t *writers = calloc(chunks + p->nscratch + 1, sizeof *writers);
    if (!writers) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory to look at a plan");
    l.writer[0] = writers;
    l.writer[1] = writers + chunks;
    for (int pass = 0; pass < 2; pass++)
        for (l.reads = pass == 1, l.lane = 0; l.lane < p->nlanes; l.lane++) look_through(&l, p);
    free(writers);
    *takes = !l.shared;
    return KOLO_OK;
}
