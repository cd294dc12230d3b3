/* SPDX-License-Identifier: Apache-2.0
 *
 * See reduce.h.
 */
#include "reduce.h"

#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>

void reduce_begin(reduce_t *r, kolo_tensor_engine_t engine)
{
    *r = (reduce_t){.engine = engine, .status = KOLO_OK};
}

static void note(reduce_t *r, kolo_status_t status, const char *text)
{
    if (status == KOLO_OK || r->status != KOLO_OK) return;
    r->status = status;
    snprintf(r->error, sizeof r->error, "%s", text);
}

void reduce_submit(reduce_t *r, const char *name, void *data, size_t count, kolo_type_t type, double scale)
{
    const int64_t shape[] = {(int64_t)count};
    kolo_tensor_t tensor = {name, type, 1, shape, data, data};
    kolo_tensor_memory_t memory = {gpu_number(), NULL, NULL};
    kolo_submission_t how = {.memory = &memory};
    if (r->count == REDUCE_MOST) abort(); /* the list of tensors is fixed: see worker.c */
    if (r->status != KOLO_OK) return;
    r->data[r->count] = data;
    r->bytes[r->count] = count * kolo_type_size(type);
    if (memory.device >= 0) {
        tensor.input = tensor.output = gpu_take(r->count, data, r->bytes[r->count], &memory.ready);
        if (!tensor.output) {
            note(r, KOLO_ERR_SYSTEM, gpu_error());
            return;
        }
    }
    kolo_status_t status =
        kolo_engine_all_reduce(r->engine, &tensor, KOLO_SUM, 1.0, scale, &how, &r->handle[r->count]);
    if (status == KOLO_OK)
        r->count++;
    else
        note(r, status, kolo_get_last_error(NULL));
}

kolo_status_t reduce_wait(reduce_t *r)
{
    for (int i = 0; i < r->count; i++) {
        kolo_completion_t done = {.text = ""};
        kolo_status_t status = kolo_engine_wait(r->engine, r->handle[i], 0, &done);
        note(r, status, done.text);
        if (status == KOLO_OK && gpu_number() >= 0 && !gpu_give(i, r->data[i], r->bytes[i]))
            note(r, KOLO_ERR_SYSTEM, gpu_error());
    }
    r->count = 0;
    return r->status;
}
