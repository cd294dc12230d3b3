/* SPDX-License-Identifier: Apache-2.0
 *
 * Integers of 16 bits, bool, and the bitwise and logical operators: the results of the host's definition, by each
 * length's way, also of one rank alone. See conform.h.
 */
#include "coll/values.h"
#include "conform.h"

#include <stdio.h>

#define DST ((size_t)2 << 20)

static bool one(kit_team_t *t, kolo_type_t type, kolo_op_t op, size_t count, int root)
{
    size_t bytes = count * kolo_type_size(type);
    int n = t->ranks[0].nranks;
    uint64_t seed = t->options->seed + (uint64_t)t->number;
    char name[128];
    bool good = true;
    snprintf(name, sizeof name, "%zu x %s %s%s", count, test_type_names[type], test_op_names[op],
             root < 0 ? "" : ", to a root");
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        test_fill(r->image, count, type, op, seed, r->rank, 0);
        good = kit_upload(r, 0, bytes, r->streams[0]) && good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_start()) && good;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        char *dst = r->buffer + DST;
        void *stream = r->streams[0];
        good = (root < 0 ? KIT_OK(kolo_all_reduce(r->buffer, dst, count, type, op, r->comm, stream))
                         : KIT_OK(kolo_reduce(r->buffer, dst, count, type, op, root, r->comm, stream))) &&
               good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = kit_download(r, DST, bytes, r->streams[0]) && kit_sync(r, r->streams[0]);
        if (root >= 0 && r->rank != root) continue;
        good = good && test_reduced(r->back + DST, count, type, op, seed, n, 0, name);
    }
    return kit_case_end(t, good, name);
}

bool conform_bits(kit_team_t *t)
{
    static const kolo_type_t types[] = {KOLO_INT16, KOLO_UINT16, KOLO_BOOL, KOLO_UINT8, KOLO_INT32, KOLO_INT64};
    static const size_t counts[] = {7, 5000, 200001};
    int turn = 0;
    for (int i = 0; i < 6; i++)
        for (int op = 0; op < KOLO_OP_BUILTIN_COUNT; op++)
            for (int k = 0; k < 3; k++) {
                if (!kolo_op_takes((kolo_op_t)op, types[i]) || (i > 2 && op < KOLO_BAND)) continue;
                if (t->options->quick && (op + k + i) % 3) continue;
                if (!one(t, types[i], (kolo_op_t)op, counts[k], turn++ % 3 ? -1 : turn % t->ranks[0].nranks))
                    return false;
            }
    return true;
}
