/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank waits for what it has queued on its GPU; that is complete, with its results, when the abort of another
 * rank comes, and only then the wait looks again. What was complete counts as complete, and
 * what was not does not. And a rank calls while the
 * communicator fails: it hears why. Two ranks as threads, on the fake driver; fail points stand between two looks,
 * and between a call's turn and its look.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "comm/comm.h"
#include "gpu/kit.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define COUNT   1000
#define WAIT_MS 60000
#define NAPS    200

enum { BEFORE, COMPLETE, ABORTED };
enum { WAITS, LEAVES, WAITS_ALONE, CALLS, GROUPS, IS_LATE }; /* what rank 0 does */
static kit_rank_t ranks[2];
static kolo_unique_id_t id;
static _Atomic int step;
static int what;

static void await(int wanted)
{
    uint64_t end = kolo_deadline_ms(WAIT_MS);
    while (atomic_load(&step) < wanted && kolo_now_ns() < end) kit_nap();
    if (atomic_load(&step) < wanted) KIT_FAIL("step %d did not come", wanted);
}

/* In rank 0's call, which has its turn: its executor ends meanwhile. */
static void in_turn(void)
{
    const kolo_body_t *body = ranks[0].comm->body;
    atomic_store(&step, COMPLETE);
    while (body->gpu.exec->check(atomic_load(&body->gpu.state), NULL, 0) == KOLO_OK) kit_nap();
}

/* In rank 0's wait, once it has seen that its operation is under way. */
static void between(const char *name, kolo_fault_t fault)
{
    (void)fault;
    bool turn = (what == CALLS || what == GROUPS) && !strcmp(name, "comm.device.turn");
    bool fails = what == IS_LATE && !strcmp(name, "comm.device.host_fails");
    for (int i = 0; fails && i < NAPS; i++) kit_nap(); /* time for more calls */
    if (atomic_load(&step) != BEFORE) return;
    if (turn) in_turn();
    if (turn || what >= CALLS || strcmp(name, "comm.device.not_done") != 0) return;
    if (what == WAITS_ALONE) {
        atomic_store(&step, COMPLETE);
        return;
    }
    kolo_comm_t comm = ranks[0].comm;
    kit_let_go(&ranks[0]);
    while (kit_query(&ranks[0], ranks[0].streams[0]) == KOLO_IN_PROGRESS) kit_nap();
    atomic_store(&step, COMPLETE);
    await(ABORTED);
    while (!atomic_load(&comm->body->gpu.cancelled)) kit_nap();
}

static kolo_status_t call(kit_rank_t *r)
{
    return kolo_all_reduce(r->buffer, r->buffer + COUNT * sizeof(int32_t), COUNT, KOLO_INT32, KOLO_SUM, r->comm,
                           r->streams[0]);
}

static kolo_status_t call_in_group(kit_rank_t *r)
{
    KIT_OK(kolo_group_start());
    KIT_OK(call(r));
    return kolo_group_end();
}

static bool sum(kit_rank_t *r)
{
    return KIT_OK(call(r));
}

static void first_rank(kit_rank_t *r)
{
    int32_t *back = (int32_t *)(void *)r->back;
    if (!kit_hold(r, r->streams[0]) || !sum(r)) return;
    KIT_OK(what == LEAVES ? kolo_comm_leave(r->comm) : kolo_comm_synchronize(r->comm));
    if (atomic_load(&step) != ABORTED) KIT_FAIL("it waited for nothing");
    if (!kit_download(r, 0, 2 * COUNT * sizeof(int32_t), r->streams[0]) || !kit_sync(r, r->streams[0])) return;
    for (int i = 0; i < COUNT; i++)
        if (back[COUNT + i] != 3) {
            KIT_FAIL("element %d is %d", i, back[COUNT + i]);
            return;
        }
}

/* Waits for what the other takes no part in, and which its abort ends. */
static void wait_alone(kit_rank_t *r)
{
    if (!KIT_OK(kolo_all_gather(r->buffer, r->buffer + COUNT * sizeof(int32_t), COUNT, KOLO_INT32, r->comm,
                                r->streams[0])))
        return;
    kolo_status_t status = kolo_comm_synchronize(r->comm);
    if (status != KOLO_ERR_REMOTE || !strstr(kolo_get_last_error(NULL), "rank 1"))
        KIT_FAIL("it gave %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
    atomic_store(&step, ABORTED);
}

/* Calls until it is told why it cannot: by the other's abort, or since the second call runs out of time. */
static void call_until_it_fails(kit_rank_t *r)
{
    kolo_status_t status, wanted = what == IS_LATE ? KOLO_ERR_TIMEOUT : KOLO_ERR_REMOTE;
    uint64_t end = kolo_deadline_ms(WAIT_MS);
    kolo_status_t (*next)(kit_rank_t *) = what == GROUPS ? call_in_group : call;
    if (what == IS_LATE && (!sum(r) || !kit_sync(r, r->streams[0]))) return; /* the first has a limit of its own */
    while ((status = next(r)) == KOLO_OK && kolo_now_ns() < end) kit_nap();
    if (status != wanted || !strstr(kolo_get_last_error(NULL), "rank 1"))
        KIT_FAIL("it gave %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
    atomic_store(&step, ABORTED);
}

static void second_rank(kit_rank_t *r)
{
    if ((what < WAITS_ALONE || what == IS_LATE) && (!sum(r) || !kit_sync(r, r->streams[0]))) return;
    await(what == IS_LATE ? ABORTED : COMPLETE);
    KIT_OK(kolo_comm_abort(r->comm));
    if (what < WAITS_ALONE) atomic_store(&step, ABORTED);
}

static void *run(void *arg)
{
    kit_rank_t *r = arg;
    int32_t *image;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = r->rank;
    if (what == IS_LATE) config.op_timeout_ms = 100;
    if (!kit_rank_open(r, r->rank, 1 << 20)) return NULL;
    kolo_comm_t comm;
    if (!KIT_OK(kolo_comm_init_rank(&comm, 2, id, r->rank, &config))) return NULL;
    image = (int32_t *)(void *)r->image;
    for (int i = 0; i < COUNT; i++) image[i] = r->rank + 1;
    r->comm = comm;
    if (!kit_upload(r, 0, COUNT * sizeof(int32_t), r->streams[0]) || !kit_sync(r, r->streams[0])) return NULL;
    if (r->rank == 1)
        second_rank(r);
    else if (what == WAITS_ALONE)
        wait_alone(r);
    else if (what < CALLS)
        first_rank(r);
    else
        call_until_it_fails(r);
    if (r->rank == 0) KIT_OK(what == LEAVES ? kolo_comm_destroy(comm) : kolo_comm_abort(comm));
    kit_rank_close(r);
    return NULL;
}

static void both(int does)
{
    pthread_t threads[2];
    what = does;
    atomic_store(&step, BEFORE);
    KIT_OK(kolo_get_unique_id(&id));
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (kit_rank_t){.rank = i, .nranks = 2};
        pthread_create(&threads[i], NULL, run, &ranks[i]);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    int devices = 0;
    (void)argv;
    if (!kit_open(false, &devices) || devices < 2) return 77;
    if (kolo_get_unique_id(&id) != KOLO_OK) return 1; /* reads the parameters */
    kolo_fail_point_hook = between;
    KIT_OK(kolo_fail_points_arm("comm.device.not_done:1000000:delay:0"));
    for (int i = WAITS; i <= (argc > 1 ? IS_LATE : WAITS_ALONE); i++) both(i);
    printf("%d failures\n", kit_failures);
    return kit_failures > 0;
}
