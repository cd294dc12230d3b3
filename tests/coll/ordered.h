/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums in the order of ranks (config.order = KOLO_ORDER_RANKS), on CPUs and GPUs alike: random reductions of a part
 * of one vector, and the bits that a loop over ranks gives for them.
 */
#ifndef KOLO_TESTS_COLL_ORDERED_H
#define KOLO_TESTS_COLL_ORDERED_H

#include <kolo/kolo.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORDERED_MOST  70000 /* elements of the vector, of at most */
#define ORDERED_BYTES 8     /* bytes each */

typedef struct {
    int type, what, root;
    kolo_op_t op;
    size_t begin, count, cut; /* a run of the vector, in one call or in two */
    bool in_place;
} ordered_case_t;
enum { ORDERED_ALL_REDUCE, ORDERED_REDUCE, ORDERED_REDUCE_SCATTER };

uint64_t ordered_draw(uint64_t *seed);
ordered_case_t ordered_make(uint64_t *seed, int nranks);
/* What a rank has of it, into a vector. */
void ordered_fill(const ordered_case_t *c, int rank, void *src);
kolo_status_t ordered_call(const ordered_case_t *c, int nranks, char *src, char *dst, kolo_comm_t comm,
                           void *stream);
/* Has it the bits of the definition? If not, it says where. */
bool ordered_check(const ordered_case_t *c, int rank, int nranks, const char *src, const char *dst);

#endif
