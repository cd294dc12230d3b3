/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators that are made, split, shrunk, grown, ended, aborted, and ranks that are killed.
 */
#include "kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void a_handle_answers_who_it_is(me_t *me)
{
    int n = -1, rank = -1, device = -1;
    OK(ncclCommCount(me->comm, &n));
    OK(ncclCommUserRank(me->comm, &rank));
    OK(ncclCommCuDevice(me->comm, &device));
    EQ(n, me->n);
    EQ(rank, me->rank);
    EQ(device, on_gpu() ? device_of(me->rank) : 0);
}

static void split_by_color_and_key(me_t *me)
{
    ncclComm_t half = NULL, none = (ncclComm_t)(void *)me, turned = NULL;
    int rank = -1;
    OK(ncclCommSplit(me->comm, me->rank % 2, me->rank, &half, NULL));
    works(me, half, (me->n + 1 - me->rank % 2) / 2);
    OK(ncclCommSplit(me->comm, me->rank ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
    FACT((none == NULL) == (me->rank == 0));
    OK(ncclGroupStart());
    OK(ncclCommSplit(me->comm, 0, -me->rank, &turned, NULL));
    FACT(turned == NULL); /* until it is made */
    OK(ncclGroupEnd());
    OK(ncclCommUserRank(turned, &rank));
    EQ(rank, me->n - 1 - me->rank);
    works(me, me->comm, me->n); /* the parent stays as it was */
    OK(ncclCommDestroy(turned));
    if (none) OK(ncclCommDestroy(none));
    OK(ncclCommDestroy(half));
    IS(ncclInvalidArgument, ncclCommSplit(me->comm, -7, 0, &half, NULL));
}

static void shrink_leaves_out_who_is_listed(me_t *me)
{
    ncclComm_t less = NULL;
    int last = me->n - 1, self = me->rank, n = 0;
    if (me->rank != last) {
        OK(ncclCommShrink(me->comm, &last, 1, &less, NULL, NCCL_SHRINK_DEFAULT));
        OK(ncclCommCount(less, &n));
        EQ(n, me->n - 1);
        works(me, less, me->n - 1);
        OK(ncclCommDestroy(less));
    }
    IS(ncclInvalidArgument, ncclCommShrink(me->comm, &self, 1, &less, NULL, NCCL_SHRINK_DEFAULT));
    IS(ncclInvalidArgument, ncclCommShrink(me->comm, NULL, 0, &less, NULL, NCCL_SHRINK_DEFAULT));
    works(me, me->comm, me->n);
}

static void shrink_in_abort_mode_ends_what_waits(me_t *me)
{
    ncclComm_t less = NULL;
    ncclResult_t now = ncclInternalError;
    int last = me->n - 1;
    float *a = floats(me, 10, 1);
    if (me->rank == last) {
        meet(me);
        OK(ncclCommAbort(me->comm));
        me->comm = NULL;
        return;
    }
    /* the last rank never comes; on the CPU a call would wait here, so only GPUs have one under way */
    if (on_gpu()) OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    OK(ncclCommShrink(me->comm, &last, 1, &less, NULL, NCCL_SHRINK_ABORT));
    works(me, less, me->n - 1);
    OK(ncclCommGetAsyncError(me->comm, &now));
    IS(ncclSuccess, now); /* that its operations ended was asked for */
    OK(ncclCommDestroy(less));
    meet(me);
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

static void communicators_are_destroyed_in_another_order_on_each_rank(me_t *me)
{
    ncclComm_t two[2];
    OK(ncclCommSplit(me->comm, 0, me->rank, &two[0], NULL));
    OK(ncclCommSplit(me->comm, 0, me->rank, &two[1], NULL));
    works(me, two[0], me->n);
    works(me, two[1], me->n);
    for (int i = 0; i < 2; i++) {
        ncclComm_t c = two[(i + me->rank) % 2];
        OK(ncclCommFinalize(c));
        IS(ncclInvalidArgument, ncclCommFinalize(c));
        OK(ncclCommDestroy(c));
    }
}

/* Rank 0 is through with its broadcast, and destroys the communicator, before the others have begun; they go on. */
static void a_late_rank_gets_what_one_that_destroyed_has_sent(me_t *me)
{
    if (on_gpu()) return; /* there the root's kernel waits for the others */
    for (int finalizes = 0; finalizes < 2; finalizes++) {
        ncclComm_t child;
        float *a = floats(me, 10, me->rank == 0 ? 7 : -1);
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        works(me, child, me->n);
        meet(me);
        if (me->rank != 0) meet(me); /* only when rank 0 has destroyed it */
        OK(ncclBroadcast(a, a, 10, ncclFloat32, 0, child, me->stream));
        if (me->rank == 0 && finalizes) OK(ncclCommFinalize(child));
        if (me->rank == 0) OK(ncclCommDestroy(child));
        if (me->rank == 0) meet(me);
        sync_stream(me);
        EQ(at(me, a, 9), 7);
        if (me->rank == me->n - 1 && me->n > 2) OK(ncclSend(a, 10, ncclFloat32, 1, child, me->stream));
        if (me->rank == 1 && me->n > 2) OK(ncclRecv(a, 10, ncclFloat32, me->n - 1, child, me->stream));
        sync_stream(me);
        if (me->rank != 0) OK(ncclCommDestroy(child));
    }
}

/* The one that destroyed it is not lost: who needs it afterwards has called something that it has not. */
static void a_call_that_one_who_destroyed_has_not_made_says_so(me_t *me)
{
    ncclComm_t child;
    float *a = floats(me, 10, 1);
    if (on_gpu()) return; /* kernels that count themselves compare nothing */
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    works(me, child, me->n);
    meet(me);
    if (me->rank == 0) OK(ncclCommDestroy(child));
    meet(me);
    if (me->rank != 0) {
        IS(ncclInvalidUsage, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream));
        FACT(strstr(ncclGetLastError(NULL), "rank 0") != NULL);
    }
    meet(me);
    if (me->rank != 0) IS(ncclInvalidUsage, ncclCommDestroy(child));
}

static void what_has_ended_is_told_from_what_lives(me_t *me)
{
    ncclComm_t child;
    ncclResult_t now = ncclInternalError;
    float *a = floats(me, 10, 1);
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    meet(me);
    OK(ncclCommDestroy(child));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream));
    FACT(strstr(ncclGetLastError(NULL), "was destroyed before") != NULL);
    IS(ncclInvalidArgument, ncclCommDestroy(child));
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    meet(me);
    OK(ncclCommAbort(child));
    IS(ncclInvalidArgument, ncclCommAbort(child));
    OK(ncclCommGetAsyncError(child, &now)); /* an abort that is over is no error */
    IS(ncclSuccess, now);
    OK(ncclCommDestroy(NULL));
    OK(ncclCommAbort(NULL));
}

static void one_that_does_not_block(me_t *me)
{
    ncclConfig_t config = new_config();
    ncclComm_t comm, child = NULL;
    ncclUniqueId id = shared_id(me);
    config.blocking = 0;
    ncclResult_t r = ncclCommInitRankConfig(&comm, me->n, id, me->rank, &config);
    FACT(r == ncclSuccess || r == ncclInProgress);
    IS(ncclSuccess, settled(comm));
    works(me, comm, me->n);
    r = ncclCommSplit(comm, 0, me->rank, &child, NULL);
    FACT(r == ncclInProgress ? child == NULL : r == ncclSuccess);
    IS(ncclSuccess, settled(comm));
    FACT(child != NULL); /* when the parent is no longer in progress the child is there */
    if (!child) return;
    IS(ncclSuccess, settled(child));
    works(me, child, me->n);
    r = ncclCommFinalize(child);
    FACT(r == ncclSuccess || r == ncclInProgress);
    IS(ncclSuccess, settled(child));
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(comm));
}

static void a_child_that_blocks_of_a_parent_that_does_not(me_t *me)
{
    ncclConfig_t config = new_config();
    ncclComm_t comm, child = NULL;
    ncclUniqueId id = shared_id(me);
    config.blocking = 0;
    ncclResult_t r = ncclCommInitRankConfig(&comm, me->n, id, me->rank, &config);
    FACT(r == ncclSuccess || r == ncclInProgress);
    IS(ncclSuccess, settled(comm));
    config.blocking = 1;
    r = ncclCommSplit(comm, 0, me->rank, &child, &config);
    FACT(r == ncclSuccess || r == ncclInProgress);
    IS(ncclSuccess, settled(comm));
    if (!FACT(child != NULL)) return;
    float *a = floats(me, 10, 1);
    OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream)); /* never ncclInProgress */
    EQ(at(me, a, 0), me->n);
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(comm));
}

/* What an elastic program does: it waits for the old communicator, then for the new one, ends the old one, and asks
 * it once more after an abort. Both modes, one rank less each time. */
/* A group has communicators that all block, or none: what counts is the communicator's own configuration. */
static void children_are_grouped_by_their_own_kind(me_t *me)
{
    ncclComm_t by_id[2],
        child[2] = {NULL, NULL}; /* of the first, which does not block, one that does; and the reverse */
    float *a = floats(me, 10, 1), *b = floats(me, 10, 1);
    for (int blocks = 0; blocks < 2; blocks++) {
        ncclConfig_t config = new_config();
        ncclUniqueId id = shared_id(me);
        config.blocking = blocks;
        ncclResult_t r = ncclCommInitRankConfig(&by_id[blocks], me->n, id, me->rank, &config);
        FACT(r == ncclSuccess || r == ncclInProgress);
        IS(ncclSuccess, settled(by_id[blocks]));
        config.blocking = !blocks;
        r = ncclCommSplit(by_id[blocks], 0, me->rank, &child[blocks], &config);
        FACT(r == ncclSuccess || r == ncclInProgress);
        IS(ncclSuccess, settled(by_id[blocks]));
    }
    for (int blocks = 0; blocks < 2; blocks++) {
        ncclComm_t with = child[!blocks];
        OK(ncclGroupStart());
        OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, by_id[blocks], me->stream));
        OK(ncclAllReduce(b, b, 10, ncclFloat32, ncclSum, with, me->stream));
        ncclResult_t r = ncclGroupEnd();
        FACT(r == ncclSuccess || (r == ncclInProgress && !blocks));
        IS(ncclSuccess, settled(by_id[blocks]));
        IS(ncclSuccess, settled(with));
        OK(ncclGroupStart());
        OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, by_id[blocks], me->stream));
        OK(ncclAllReduce(b, b, 10, ncclFloat32, ncclSum, child[blocks], me->stream));
        IS(ncclInvalidArgument, ncclGroupEnd());
    }
    sync_stream(me);
    EQ(at(me, b, 9), me->n * me->n);
    for (int i = 0; i < 2; i++) {
        OK(ncclCommDestroy(child[i]));
        OK(ncclCommDestroy(by_id[i]));
    }
}

static void shrunk_twice_without_blocking(me_t *me)
{
    ncclConfig_t config = new_config();
    ncclComm_t comm, old;
    ncclUniqueId id = shared_id(me);
    config.blocking = 0;
    ncclResult_t r = ncclCommInitRankConfig(&comm, me->n, id, me->rank, &config);
    FACT(r == ncclSuccess || r == ncclInProgress);
    IS(ncclSuccess, settled(comm));
    works(me, comm, me->n);
    for (int n = me->n; n > 1; n--) {
        int last = n - 1, flags = n % 2 ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT;
        me_t left = *me;
        old = comm;
        left.n = n;
        meet(&left); /* an abort ends what others are in */
        if (me->rank < last) {
            ncclComm_t made = (ncclComm_t)(void *)me; /* as a variable that nobody has set */
            r = ncclCommShrink(old, &last, 1, &made, &config, flags);
            FACT(r == ncclSuccess || r == ncclInProgress);
            IS(ncclSuccess, settled(old));
            IS(ncclSuccess, settled(made));
            works(me, made, n - 1);
            comm = made;
        }
        if (flags == NCCL_SHRINK_ABORT) {
            OK(ncclCommAbort(old));
            IS(ncclSuccess, settled(old));
        } else {
            OK(ncclCommDestroy(old));
        }
        if (me->rank == last) return;
    }
    OK(ncclCommDestroy(comm));
}

static void grow_takes_in_a_new_rank(me_t *me)
{
    ncclComm_t less = NULL, more = NULL;
    ncclUniqueId id;
    int last = me->n - 1;
    OK(ncclCommSplit(me->comm, me->rank == last ? NCCL_SPLIT_NOCOLOR : 0, me->rank, &less, NULL));
    if (me->rank == 0) OK(ncclCommGetUniqueId(less, &id));
    /* the id goes to the new rank by the old communicator, as bytes */
    static ncclUniqueId zero;
    ncclUniqueId *sent = (ncclUniqueId *)(void *)floats(me, sizeof id / 4, 0);
    float *words = (float *)(void *)sent, value;
    for (size_t i = 0; i < sizeof id / 4; i++) {
        memcpy(&value, me->rank == 0 ? &id.internal[4 * i] : &zero.internal[4 * i], sizeof value);
        put(me, words, (int)i, value);
    }
    OK(ncclBroadcast(sent, sent, sizeof id, ncclUint8, 0, me->comm, me->stream));
    for (size_t i = 0; i < sizeof id / 4; i++) {
        value = at(me, words, (int)i);
        memcpy(&id.internal[4 * i], &value, sizeof value);
    }
    if (me->rank == last)
        OK(ncclCommGrow(NULL, me->n, &id, last, &more, NULL));
    else
        OK(ncclCommGrow(less, me->n, me->rank == 0 ? &id : NULL, -1, &more, NULL));
    if (more) {
        works(me, more, me->n);
        OK(ncclCommDestroy(more));
    }
    if (less) OK(ncclCommDestroy(less));
    IS(ncclInvalidArgument, ncclCommGrow(NULL, me->n, NULL, 0, &more, NULL));
}

/* A revoked one that blocks, or not: shrunk without the last rank in default mode, then split by all that are left.
 */
static void a_revoked_one_is_shrunk_and_split(me_t *me)
{
    int last = me->n - 1;
    for (int blocks = 0; blocks < 2; blocks++) {
        ncclComm_t comm = NULL, less = NULL, half = NULL;
        ncclConfig_t c = new_config();
        c.blocking = blocks;
        OK(ncclCommSplit(me->comm, 0, me->rank, &comm, &c));
        IS(ncclSuccess, settled(comm));
        works(me, comm, me->n);
        meet(me);
        OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
        meet(me);
        if (me->rank < last) {
            ncclResult_t r = ncclCommShrink(comm, &last, 1, &less, NULL, NCCL_SHRINK_DEFAULT);
            FACT(r == ncclSuccess || (!blocks && r == ncclInProgress));
            IS(ncclSuccess, settled(comm));
            if (FACT(less != NULL)) works(me, less, last);
            OK(ncclCommDestroy(less));
        }
        meet(me);
        OK(ncclCommSplit(comm, me->rank == last ? NCCL_SPLIT_NOCOLOR : 1, -me->rank, &half, NULL));
        FACT((half == NULL) == (me->rank == last));
        if (half) works(me, half, last);
        OK(ncclCommDestroy(half));
        meet(me);
        OK(ncclCommDestroy(comm));
    }
}

static void a_revoked_one_can_only_be_shrunk_or_ended(me_t *me)
{
    ncclComm_t child;
    ncclResult_t now = ncclInternalError;
    float *a = floats(me, 10, 1);
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    meet(me);
    IS(ncclInvalidArgument, ncclCommRevoke(child, 7));
    OK(ncclCommRevoke(child, NCCL_REVOKE_DEFAULT));
    IS(ncclInvalidArgument, ncclCommRevoke(child, NCCL_REVOKE_DEFAULT));
    OK(ncclCommGetAsyncError(child, &now));
    IS(ncclSuccess, now);
    IS(ncclInvalidUsage, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream));
    IS(ncclInvalidArgument, ncclCommFinalize(child));
    meet(me);
    OK(ncclCommDestroy(child));
}

static void configurations_of_all_versions(me_t *me)
{
    ncclUniqueId id;
    ncclComm_t comm = (ncclComm_t)(void *)me;
    memset(&id, 0, sizeof id);
    if (me->rank == 0) {
        ncclConfig_t c = new_config();
        c.head.magic = 1;
        IS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &c));
        FACT(strstr(ncclGetLastError(NULL), "NCCL_CONFIG_INITIALIZER") != NULL);
        FACT(comm == NULL);
        c = new_config();
        c.blocking = 2;
        IS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &c));
        c = new_config();
        c.minCTAs = 8;
        c.maxCTAs = 4;
        IS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &c));
    }
    struct { /* of a client of version 2.14: what lies behind is not the struct's */
        kolo_nccl_head_t head;
        int blocking, garbage[30];
    } old = {.head = {24, NCCL_API_MAGIC, 21400}, .blocking = 1};
    for (int i = 0; i < 30; i++) old.garbage[i] = 0x77777777;
    id = shared_id(me);
    OK(ncclCommInitRankConfig(&comm, me->n, id, me->rank, (ncclConfig_t *)(void *)&old));
    works(me, comm, me->n);
    OK(ncclCommDestroy(comm));
    struct { /* of one to come */
        ncclConfig_t known;
        int more[40];
    } later = {.known = new_config()};
    later.known.head.size = sizeof later;
    later.known.head.version = 29900;
    later.known.launchOrderImplicit = later.known.numRmaSig = later.known.rmaEagerInit = NCCL_CONFIG_UNDEF_INT;
    later.known.hostCftMode = later.known.nvlsHostMode = NCCL_CONFIG_UNDEF_INT;
    id = shared_id(me);
    OK(ncclCommInitRankConfig(&comm, me->n, id, me->rank, &later.known));
    works(me, comm, me->n);
    OK(ncclCommDestroy(comm));
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2));
    IS(ncclInvalidArgument, ncclCommInitRank(NULL, 2, id, 0));
}

static void one_thread_has_all_ranks(me_t *me)
{
    ncclComm_t comms[RANKS_MAX];
    float *a[RANKS_MAX];
    me_t each[RANKS_MAX];
    int n = on_gpu() && device_of(me->n - 1) != me->n - 1 ? 2 : me->n; /* each has a GPU of its own */
    OK(ncclCommInitAll(comms, n, NULL));
    for (int i = 0; i < n; i++) {
        each[i] = (me_t){.rank = i, .n = n, .comm = comms[i], .stream = new_stream(device_of(i))};
        a[i] = floats(&each[i], 100, (float)i);
    }
    OK(ncclGroupStart());
    for (int i = 0; i < n; i++) OK(ncclAllReduce(a[i], a[i], 100, ncclFloat32, ncclSum, comms[i], each[i].stream));
    OK(ncclGroupEnd());
    for (int i = 0; i < n; i++) EQ(at(&each[i], a[i], 99), 0.5F * (float)(n * (n - 1)));
    OK(ncclGroupStart());
    for (int i = 0; i < n; i++) OK(ncclCommFinalize(comms[i]));
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int i = 0; i < n; i++) OK(ncclCommDestroy(comms[i]));
    OK(ncclGroupEnd());
    const int twice[] = {0, 0};
    IS(ncclInvalidUsage, ncclCommInitAll(comms, 2, twice));
}

static void many_communicators_in_turn(me_t *me)
{
    for (int i = 0; i < 30; i++) {
        ncclComm_t child;
        if (!OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL))) return;
        if (i % 10 == 0) works(me, child, me->n);
        OK(ncclCommDestroy(child));
    }
}

/* One rank names another count or type than the others; both calls have those words. */
static void differs(me_t *me, size_t count, ncclDataType_t type, const char *one, const char *other)
{
    ncclResult_t now = ncclSuccess;
    float *a = floats(me, 1000, 1);
    works(me, me->comm, me->n);
    ncclResult_t r = ncclAllReduce(a, a, count, type, ncclSum, me->comm, me->stream);
    if (on_gpu() && r == ncclSuccess)
        while (OK(ncclCommGetAsyncError(me->comm, &now)) && now == ncclSuccess) {
        }
    else
        now = r;
    IS(ncclInvalidUsage, now);
    FACT(strstr(ncclGetLastError(NULL), one) && strstr(ncclGetLastError(NULL), other));
    meet(me);
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

static void a_different_call_is_named(me_t *me)
{
    differs(me, me->rank == 1 ? 500 : 1000, ncclFloat32, "500", "1000");
}

static void a_type_of_the_same_length_is_another_call(me_t *me)
{
    differs(me, 1000, me->rank == 1 ? ncclInt32 : ncclFloat32, "int32", "float32");
}

/* In its own process each: one is killed, the others hear of it with its number. */
static void a_killed_rank_is_named(me_t *me)
{
    ncclResult_t now = ncclSuccess;
    char name[20];
    float *a = floats(me, 1000, 1);
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == me->n - 1) kill(getpid(), SIGKILL);
    ncclResult_t r = ncclAllReduce(a, a, 1000, ncclFloat32, ncclSum, me->comm, me->stream);
    if (on_gpu() && r == ncclSuccess)
        while (OK(ncclCommGetAsyncError(me->comm, &now)) && now == ncclSuccess) {
        }
    else
        now = r;
    IS(ncclRemoteError, now);
    snprintf(name, sizeof name, "rank %d", me->n - 1);
    FACT(strstr(ncclGetLastError(NULL), name) != NULL);
    OK(ncclCommGetAsyncError(me->comm, &now));
    IS(ncclRemoteError, now);
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

const case_t life_cases[] = {
    {"a_handle_answers_who_it_is", a_handle_answers_who_it_is, EACH},
    {"split_by_color_and_key", split_by_color_and_key, EACH},
    {"shrink_leaves_out_who_is_listed", shrink_leaves_out_who_is_listed, EACH},
    {"shrink_in_abort_mode_ends_what_waits", shrink_in_abort_mode_ends_what_waits, EACH},
    {"communicators_are_destroyed_in_another_order_on_each_rank",
     communicators_are_destroyed_in_another_order_on_each_rank, EACH},
    {"a_call_that_one_who_destroyed_has_not_made_says_so", a_call_that_one_who_destroyed_has_not_made_says_so,
     EACH},
    {"a_late_rank_gets_what_one_that_destroyed_has_sent", a_late_rank_gets_what_one_that_destroyed_has_sent, EACH},
    {"what_has_ended_is_told_from_what_lives", what_has_ended_is_told_from_what_lives, EACH},
    {"one_that_does_not_block", one_that_does_not_block, EACH},
    {"a_child_that_blocks_of_a_parent_that_does_not", a_child_that_blocks_of_a_parent_that_does_not, EACH},
    {"children_are_grouped_by_their_own_kind", children_are_grouped_by_their_own_kind, EACH},
    {"shrunk_twice_without_blocking", shrunk_twice_without_blocking, EACH},
    {"grow_takes_in_a_new_rank", grow_takes_in_a_new_rank, EACH},
    {"a_revoked_one_is_shrunk_and_split", a_revoked_one_is_shrunk_and_split, EACH},
    {"a_revoked_one_can_only_be_shrunk_or_ended", a_revoked_one_can_only_be_shrunk_or_ended, EACH},
    {"configurations_of_all_versions", configurations_of_all_versions, EACH},
    {"one_thread_has_all_ranks", one_thread_has_all_ranks, FIRST},
    {"many_communicators_in_turn", many_communicators_in_turn, EACH},
    {"a_different_call_is_named", a_different_call_is_named, EACH},
    {"a_type_of_the_same_length_is_another_call", a_type_of_the_same_length_is_another_call, EACH},
    {"a_killed_rank_is_named", a_killed_rank_is_named, PROCESSES},
    {NULL, NULL, EACH},
};
