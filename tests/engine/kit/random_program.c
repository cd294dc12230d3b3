/* SPDX-License-Identifier: Apache-2.0
 *
 * See random_program.h.
 */
#include "engine/kit/random_program.h"

#include <stdio.h>
#include <string.h>

uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int below(uint64_t *state, int n)
{
    return (int)(next_random(state) % (uint64_t)n);
}

int value(int item, int rank, int k)
{
    return (item * 7 + rank * 3 + k) % 5 - 1;
}

bool submits(const program_t *p, int i, int rank)
{
    int last = p->items[i].group < 0 ? i : p->items[i].group + GROUP - 1;
    return last < p->part[rank];
}

static int contributors(const program_t *p, int i)
{
    int n = 0;
    for (int r = 0; r < p->size; r++) n += submits(p, i, r);
    return n;
}

/* ---- programs ---- */

static void make_rows(uint64_t *s, const program_t *p, item_t *t)
{
    int common = below(s, ROWS_MAX);
    for (int r = 0; r < p->size; r++) t->rows[r] = t->kind == GATHER ? below(s, ROWS_MAX) : common;
    for (int r = 0; r < p->size && t->kind == EXCHANGE; r++) {
        t->rows[r] = 0;
        for (int d = 0; d < p->size; d++) {
            t->splits[r][d] = t->rows[r] < ROWS_MAX ? below(s, ROWS_MAX - t->rows[r] + 1) / 2 : 0;
            t->rows[r] += t->splits[r][d];
        }
    }
}

static void make_item(uint64_t *s, program_t *p, int i, int epoch)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_MIN, KOLO_MAX, KOLO_PROD};
    item_t *t = &p->items[i];
    *t = (item_t){
        .kind = (kind_t)below(s, i > 0 ? BARRIER : KINDS), .cols = 1 + below(s, COLS_MAX), .group = -1, .odd = -1};
    if (p->joins && t->kind != BARRIER) t->kind = REDUCE; /* nothing else is possible */
    /* names come back with other shapes or kinds now and then: cached agreements become invalid */
    snprintf(t->name, sizeof t->name, "t%d.%d", i, epoch % 3 == 2 ? below(s, 2) : 0);
    t->type = below(s, 2) ? KOLO_INT32 : KOLO_FLOAT32;
    t->op = ops[below(s, 4)];
    t->root = below(s, p->size);
    t->pre = below(s, 4) ? 1.0 : 2.0;
    t->post = below(s, 4) ? 1.0 : 3.0;
    make_rows(s, p, t);
    if (p->size > 1 && t->kind != BARRIER && below(s, 12) == 0) t->odd = below(s, p->size);
}

/* A group is of one operation, root and operator; shapes and types are each tensor's own. */
static void make_group(uint64_t *s, program_t *p, int first)
{
    const item_t *like = &p->items[first];
    kind_t kind = p->joins ? REDUCE : (kind_t)below(s, BARRIER);
    for (int k = first; k < first + GROUP; k++) {
        item_t *t = &p->items[k];
        t->kind = kind;
        t->odd = -1;
        t->group = first;
        t->root = like->root;
        t->op = like->op;
        t->pre = like->pre;
        t->post = like->post;
        make_rows(s, p, t);
    }
}

void make_program(uint64_t *s, program_t *p, int size, int epoch)
{
    p->size = size;
    p->nitems = 1 + below(s, TENSORS_MAX);
    p->joins = below(s, 4) == 0;
    for (int r = 0; r < size; r++) p->part[r] = p->joins ? below(s, p->nitems + 1) : p->nitems;
    for (int i = 0; i < p->nitems; i++) make_item(s, p, i, epoch);
    for (int i = 0; i + GROUP < p->nitems; i += GROUP + 1)
        if (below(s, 3) == 0) make_group(s, p, i);
    for (int i = 0; i < p->nitems; i++) { /* who is alone is not at odds with anybody */
        item_t *t = &p->items[i];
        if (t->odd >= 0 && (!submits(p, i, t->odd) || contributors(p, i) < 2)) t->odd = -1;
    }
}

/* ---- the reference ---- */

static double reduced(const program_t *p, int i, int k)
{
    const item_t *t = &p->items[i];
    double acc = 0;
    bool any = false;
    for (int r = 0; r < p->size; r++) {
        double v = value(i, r, k) * t->pre;
        if (!submits(p, i, r)) continue;
        acc = !any                 ? v
              : t->op == KOLO_SUM  ? acc + v
              : t->op == KOLO_PROD ? acc * v
              : t->op == KOLO_MIN  ? (v < acc ? v : acc)
                                   : (v > acc ? v : acc);
        any = true;
    }
    return acc * t->post;
}

int reference(const program_t *p, int i, int rank, double *out)
{
    const item_t *t = &p->items[i];
    int n = 0, first = 0, rows = t->rows[0], mine = rows / p->size + (rank < rows % p->size);
    switch (t->kind) {
    case REDUCE:
        for (int k = 0; k < rows * t->cols; k++) out[n++] = reduced(p, i, k);
        break;
    case SCATTER:
        for (int r = 0; r < rank; r++) first += rows / p->size + (r < rows % p->size);
        for (int k = first * t->cols; k < (first + mine) * t->cols; k++) out[n++] = reduced(p, i, k);
        break;
    case BROADCAST:
        for (int k = 0; k < rows * t->cols; k++) out[n++] = value(i, t->root, k);
        break;
    case GATHER:
        for (int r = 0; r < p->size; r++)
            for (int k = 0; k < t->rows[r] * t->cols; k++) out[n++] = value(i, r, k);
        break;
    case EXCHANGE:
        for (int r = 0; r < p->size; r++) {
            int from = 0;
            for (int d = 0; d < rank; d++) from += t->splits[r][d];
            for (int k = from * t->cols; k < (from + t->splits[r][rank]) * t->cols; k++) out[n++] = value(i, r, k);
        }
        break;
    default:
        break;
    }
    return n;
}
