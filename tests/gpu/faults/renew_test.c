/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation on GPUs fails on one rank: the engine ends its communicator of GPUs and makes another, by which what
 * comes next runs. And an abort of the engine that meets this: the old one is ended once, and no rank keeps what it
 * had mapped. Started by kolorun, a process per rank, on the fake driver.
 */
#include "base/failpoint.h"
#include "gpu/engine/engine_kit.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define RENEWS "engine.native.renew"
#define COUNT  1000

kit_rank_t gpu;
kolo_engine_place_t me;
static _Atomic int passed, held; /* how often the loop came there, and when a rule had it stay */

static void note(const char *name, kolo_fault_t fault)
{
    if (strcmp(name, RENEWS) != 0) return;
    atomic_fetch_add(&passed, 1);
    if (fault == KOLO_FAULT_DELAY) atomic_store(&held, 1);
}

static bool await_held(void)
{
    static const struct timespec nap = {.tv_nsec = 1000000};
    for (int i = 0; i < WAIT_MS && !atomic_load(&held); i++) nanosleep(&nap, NULL);
    return atomic_load(&held);
}

/* The sum of what all have, on the GPUs. */
static void sum_on_gpus(kolo_tensor_engine_t e, float mine)
{
    static const int64_t shape[] = {COUNT};
    kolo_completion_t c;
    int64_t handle;
    float *image = (float *)(void *)gpu.image, *back = (float *)(void *)gpu.back;
    kolo_tensor_t t = {"sum", KOLO_FLOAT32, 1, shape, gpu.buffer, gpu.buffer + COUNT * sizeof(float)};
    for (int i = 0; i < COUNT; i++) image[i] = mine;
    CHECK(kit_upload(&gpu, 0, COUNT * sizeof(float), gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]));
    if (!KIT_OK(kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, NULL, &handle))) return;
    if (!KIT_OK(kolo_engine_wait(e, handle, WAIT_MS, &c))) return;
    if (!c.event) KIT_FAIL("it did not run on the GPUs");
    CHECK(kit_download(&gpu, 0, 2 * COUNT * sizeof(float), gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]));
    for (int i = 0; i < COUNT; i++)
        if (back[COUNT + i] != mine * (float)me.size) {
            KIT_FAIL("element %d: %g", i, (double)back[COUNT + i]);
            return;
        }
}

static void *give(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)bytes, (void)ndims, (void)shape;
    return arg;
}

/* The last rank gives memory that is none of its GPU's. */
static void fail_on_gpus(kolo_tensor_engine_t e)
{
    static float here[KIT_RANKS * 10];
    static const int64_t shape[] = {10};
    const bool mine = me.rank == me.size - 1;
    int64_t handle;
    kolo_submission_t how = {.allocate = give, .arg = mine ? (void *)here : gpu.buffer + 65536};
    kolo_tensor_t t = {"bad", KOLO_FLOAT32, 1, shape, gpu.buffer, NULL};
    if (!KIT_OK(kolo_engine_all_gather(e, &t, &how, &handle))) return;
    kolo_status_t status = kolo_engine_wait(e, handle, WAIT_MS, NULL);
    if (mine && status != KOLO_ERR_INVALID_ARGUMENT)
        KIT_FAIL("bad memory: %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
}

static kolo_tensor_engine_t start(void)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e = NULL;
    KIT_OK(kolo_engine_init(&e, NULL, &config));
    return e;
}

static void renew(void)
{
    kolo_tensor_engine_t e = start();
    KIT_OK(kolo_engine_get_place(e, &me));
    kit_me = me.rank;
    int devices = kit_devices();
    if (!kit_rank_open(&gpu, me.local_rank % devices, ROOM)) return;
    for (int round = 0; round < 3; round++) {
        sum_on_gpus(e, (float)(round + 1));
        fail_on_gpus(e);
    }
    sum_on_gpus(e, 7);
    if (atomic_load(&passed) < 3) KIT_FAIL("%d of 3 failures had another communicator made", atomic_load(&passed));
    KIT_OK(kolo_engine_shutdown(e));
    if (kit_imported() > 0) KIT_FAIL("%d pieces of others are still mapped", kit_imported());
}

/* The others have agreed to make another, too, and hear that rank 0 has gone. */
static void wait_for_the_end(kolo_tensor_engine_t e)
{
    static const int64_t shape[] = {COUNT};
    int64_t handle;
    kolo_tensor_t t = {"last", KOLO_FLOAT32, 1, shape, gpu.buffer, gpu.buffer + COUNT * sizeof(float)};
    kolo_status_t status = kolo_engine_all_reduce(e, &t, KOLO_SUM, 1, 1, NULL, &handle);
    if (status == KOLO_OK) status = kolo_engine_wait(e, handle, WAIT_MS, NULL);
    if (status != KOLO_ERR_REMOTE) KIT_FAIL("rank 0 has aborted: %s", kolo_status_string(status));
}

static void abort_meanwhile(void)
{
    kolo_tensor_engine_t e = start();
    sum_on_gpus(e, 1);
    if (me.rank == 0) KIT_OK(kolo_fail_points_arm(RENEWS ":1:delay:1000"));
    fail_on_gpus(e);
    if (me.rank > 0)
        wait_for_the_end(e);
    else if (!await_held())
        KIT_FAIL("no communicator was made anew");
    KIT_OK(kolo_engine_abort(e));
    KIT_OK(kolo_fail_points_arm(NULL));
    if (kit_imported() > 0) KIT_FAIL("after the abort %d pieces of others are still mapped", kit_imported());
    e = start(); /* and nothing of it is in the way */
    sum_on_gpus(e, 2);
    KIT_OK(kolo_engine_shutdown(e));
}

int main(void)
{
    int devices = 0;
    if (!kit_open(false, &devices) || devices < 1) return 77;
    kolo_fail_point_hook = note;
    kolo_fail_points_watch();
    renew();
    if (!kit_failures) abort_meanwhile();
    kit_rank_close(&gpu);
    if (me.rank == 0 && !kit_failures)
        printf("engine on %d ranks: its communicator of GPUs was made anew\n", me.size);
    return kit_failures ? 1 : 0;
}
