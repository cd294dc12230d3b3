/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator that is to be made from one which a rank has destroyed before: that rank never comes to it, and
 * who calls is told so at once, not at the time limit of an init.
 */
#include "kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AT_ONCE_S 10 /* KOLO_INIT_TIMEOUT_MS is 120 s */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool names(int rank)
{
    char name[20];
    snprintf(name, sizeof name, "rank %d", rank);
    return strstr(ncclGetLastError(NULL), name) != NULL;
}

/* Returns a child of all ranks that `gone` destroys; before the others make their call, or while they wait in it.
 */
static ncclComm_t child_that_loses(me_t *me, int gone, bool before)
{
    ncclComm_t child = NULL;
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    works(me, child, me->n);
    meet(me);
    if (me->rank == gone) {
        if (!before) nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        OK(ncclCommDestroy(child));
        child = NULL;
    }
    if (before) meet(me);
    return child;
}

static void a_split_that_a_rank_has_left_is_refused(me_t *me)
{
    for (int i = 0; i < 4; i++) {
        int gone = i / 2 ? me->n - 1 : 0;
        ncclComm_t more = NULL, child = child_that_loses(me, gone, i % 2);
        if (child) {
            double began = now_s();
            ncclResult_t r = ncclCommSplit(child, 0, me->rank, &more, NULL);
            FACT(r != ncclSuccess && more == NULL);
            FACT(names(gone));
            FACT(now_s() - began < AT_ONCE_S);
            OK(ncclCommAbort(child));
        }
        meet(me);
    }
    works(me, me->comm, me->n);
}

/* Leaves out whoever is not there any more. */
static void a_shrink_goes_on_without_a_rank_that_has_left(me_t *me)
{
    if (me->n < 3) return;
    for (int i = 0; i < 4; i++) {
        int gone = i / 2 ? me->n - 1 : 0, excluded = 1;
        ncclComm_t less = NULL, child = child_that_loses(me, gone, i % 2);
        if (child && me->rank != excluded) {
            double began = now_s();
            OK(ncclCommShrink(child, &excluded, 1, &less, NULL, NCCL_SHRINK_DEFAULT));
            FACT(now_s() - began < AT_ONCE_S);
            if (less) works(me, less, me->n - 2);
            if (less) OK(ncclCommDestroy(less));
        }
        meet(me);
        if (child) OK(ncclCommAbort(child));
        meet(me);
    }
    works(me, me->comm, me->n);
}

static void a_grow_that_a_rank_has_left_is_refused(me_t *me)
{
    for (int i = 0; i < 4; i++) {
        int gone = i / 2 ? me->n - 1 : 0, keeper = gone ? 0 : 1;
        ncclComm_t more = NULL, child = child_that_loses(me, gone, i % 2);
        ncclUniqueId id;
        if (child) {
            double began = now_s();
            ncclResult_t r = me->rank == keeper ? ncclCommGetUniqueId(child, &id) : ncclSuccess;
            if (r == ncclSuccess) /* else the others have told it already */
                r = ncclCommGrow(child, me->n + 1, me->rank == keeper ? &id : NULL, -1, &more, NULL);
            FACT(r != ncclSuccess && more == NULL);
            FACT(names(gone));
            FACT(now_s() - began < AT_ONCE_S);
            OK(ncclCommAbort(child));
        }
        meet(me);
    }
    works(me, me->comm, me->n);
}

/* Names a rank that is only late, too: with KOLO_NCCL_WAIT_MS, which the test sets. */
static void a_rank_that_is_late_for_a_child_is_named(me_t *me)
{
    enum { SPLIT, SHRINK, GROW, KINDS };
    const int late = me->n - 1;
    if (!getenv("KOLO_NCCL_WAIT_MS") || me->n < 3) return;
    for (int kind = SPLIT; kind < KINDS; kind++) {
        ncclComm_t more = NULL, child = NULL;
        ncclUniqueId id;
        int excluded = 1;
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        works(me, child, me->n);
        meet(me);
        if (me->rank != late && !(kind == SHRINK && me->rank == excluded)) {
            ncclResult_t r;
            double began = now_s();
            if (kind == GROW && me->rank == 0) OK(ncclCommGetUniqueId(child, &id));
            if (kind == SPLIT)
                r = ncclCommSplit(child, 0, me->rank, &more, NULL);
            else if (kind == SHRINK)
                r = ncclCommShrink(child, &excluded, 1, &more, NULL, NCCL_SHRINK_DEFAULT);
            else
                r = ncclCommGrow(child, me->n + 1, me->rank == 0 ? &id : NULL, -1, &more, NULL);
            IS(ncclRemoteError, r);
            FACT(names(late));
            FACT(now_s() - began < AT_ONCE_S);
        }
        meet(me);
        OK(ncclCommAbort(child));
        meet(me);
    }
    works(me, me->comm, me->n);
}

const case_t never_cases[] = {
    {"a_split_that_a_rank_has_left_is_refused", a_split_that_a_rank_has_left_is_refused, EACH},
    {"a_shrink_goes_on_without_a_rank_that_has_left", a_shrink_goes_on_without_a_rank_that_has_left, EACH},
    {"a_grow_that_a_rank_has_left_is_refused", a_grow_that_a_rank_has_left_is_refused, EACH},
    {"a_rank_that_is_late_for_a_child_is_named", a_rank_that_is_late_for_a_child_is_named, EACH},
    {NULL, NULL, EACH},
};
