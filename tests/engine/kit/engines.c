/* SPDX-License-Identifier: Apache-2.0
 *
 * See engines.h.
 */
#include "engine/kit/engines.h"

#include <stddef.h>

typedef struct {
    const kolo_engine_config_t *config;
    void (*fn)(erank_t *);
    void *arg;
} plan_t;

static void run_one(rank_t *r)
{
    const plan_t *plan = r->arg;
    erank_t e = {r->rank, r->nranks, r->comm, NULL, plan->arg};
    if (!EXPECT_OK(kolo_engine_init(&e.engine, r->comm, plan->config))) return;
    plan->fn(&e);
    meet();
    if (e.engine) EXPECT_OK(kolo_engine_shutdown(e.engine));
    r->comm = e.comm;
}

int run_engines(int n, const kolo_engine_config_t *config, void (*fn)(erank_t *), void *arg)
{
    plan_t plan = {config, fn, arg};
    return run_ranks(n, run_one, &plan);
}

kolo_tensor_t float_tensor(const char *name, float *data, const int64_t *count)
{
    return (kolo_tensor_t){name, KOLO_FLOAT32, 1, count, data, data};
}

kolo_status_t reduce_now(erank_t *r, const char *name, float *data, int64_t count, kolo_op_t op)
{
    int64_t handle;
    kolo_tensor_t t = float_tensor(name, data, &count);
    kolo_status_t status = kolo_engine_all_reduce(r->engine, &t, op, 1.0, 1.0, NULL, &handle);
    return status == KOLO_OK ? kolo_engine_wait(r->engine, handle, WAIT_MS, NULL) : status;
}

kolo_status_t barrier_now(erank_t *r)
{
    int64_t handle;
    kolo_status_t status = kolo_engine_barrier(r->engine, NULL, &handle);
    return status == KOLO_OK ? kolo_engine_wait(r->engine, handle, WAIT_MS, NULL) : status;
}
