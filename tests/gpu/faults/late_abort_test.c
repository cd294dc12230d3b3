/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank waits for what it has queued on its GPU; that is complete, with its results, when the abort of another
 * rank comes, and only then the wait looks again. What was complete counts as complete. Two ranks as threads, on
 * the fake driver; a fail point stands between the two looks.
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

enum { BEFORE, COMPLETE, ABORTED };
static kit_rank_t ranks[2];
static kolo_unique_id_t id;
static _Atomic int step;
static bool leaves;

static void await(int wanted)
{
    uint64_t end = kolo_deadline_ms(WAIT_MS);
    while (atomic_load(&step) < wanted && kolo_now_ns() < end) kit_nap();
    if (atomic_load(&step) < wanted) KIT_FAIL("step %d did not come", wanted);
}

/* In rank 0's wait, once it has seen that its operation is under way. */
static void between(const char *name, kolo_fault_t fault)
{
    (void)fault;
    if (strcmp(name, "comm.device.not_done") != 0 || atomic_load(&step) != BEFORE) return;
    kolo_comm_t comm = ranks[0].comm;
    kit_let_go(&ranks[0]);
    while (kit_query(&ranks[0], ranks[0].streams[0]) == KOLO_IN_PROGRESS) kit_nap();
    atomic_store(&step, COMPLETE);
    await(ABORTED);
    while (!atomic_load(&comm->body->gpu.cancelled)) kit_nap();
}

static bool sum(kit_rank_t *r)
{
    return KIT_OK(kolo_all_reduce(r->buffer, r->buffer + COUNT * sizeof(int32_t), COUNT, KOLO_INT32, KOLO_SUM,
                                  r->comm, r->streams[0]));
}

static void first_rank(kit_rank_t *r)
{
    int32_t *back = (int32_t *)(void *)r->back;
    if (!kit_hold(r, r->streams[0]) || !sum(r)) return;
    KIT_OK(leaves ? kolo_comm_leave(r->comm) : kolo_comm_synchronize(r->comm));
    if (atomic_load(&step) != ABORTED) KIT_FAIL("it waited for nothing");
    if (!kit_download(r, 0, 2 * COUNT * sizeof(int32_t), r->streams[0]) || !kit_sync(r, r->streams[0])) return;
    for (int i = 0; i < COUNT; i++)
        if (back[COUNT + i] != 3) {
            KIT_FAIL("element %d is %d", i, back[COUNT + i]);
            return;
        }
}

static void second_rank(kit_rank_t *r)
{
    if (!sum(r) || !kit_sync(r, r->streams[0])) return;
    await(COMPLETE);
    KIT_OK(kolo_comm_abort(r->comm));
    atomic_store(&step, ABORTED);
}

static void *run(void *arg)
{
    kit_rank_t *r = arg;
    int32_t *image;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = r->rank;
    if (!kit_rank_open(r, r->rank, 1 << 20)) return NULL;
    kolo_comm_t comm;
    if (!KIT_OK(kolo_comm_init_rank(&comm, 2, id, r->rank, &config))) return NULL;
    image = (int32_t *)(void *)r->image;
    for (int i = 0; i < COUNT; i++) image[i] = r->rank + 1;
    r->comm = comm;
    if (!kit_upload(r, 0, COUNT * sizeof(int32_t), r->streams[0]) || !kit_sync(r, r->streams[0])) return NULL;
    if (r->rank == 0)
        first_rank(r);
    else
        second_rank(r);
    if (r->rank == 0) KIT_OK(leaves ? kolo_comm_destroy(comm) : kolo_comm_abort(comm));
    kit_rank_close(r);
    return NULL;
}

static void both(bool leave)
{
    pthread_t threads[2];
    leaves = leave;
    atomic_store(&step, BEFORE);
    KIT_OK(kolo_get_unique_id(&id));
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (kit_rank_t){.rank = i, .nranks = 2};
        pthread_create(&threads[i], NULL, run, &ranks[i]);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

int main(void)
{
    int devices = 0;
    if (!kit_open(false, &devices) || devices < 2) return 77;
    if (kolo_get_unique_id(&id) != KOLO_OK) return 1; /* reads the parameters */
    kolo_fail_point_hook = between;
    KIT_OK(kolo_fail_points_arm("comm.device.not_done:1000000:delay:0"));
    both(false);
    both(true);
    printf("%d failures\n", kit_failures);
    return kit_failures > 0;
}
