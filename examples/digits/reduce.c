/* SPDX-License-Identifier: Apache-2.0
 *
 * See reduce.h.
 */
#include "reduce.h"

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
    const kolo_tensor_t tensor = {name, type, 1, shape, data, data};
    if (r->count == REDUCE_MOST) abort(); /* the list of tensors is fixed: see worker.c */
    if (r->status != KOLO_OK) return;
    kolo_status_t status =
        kolo_engine_all_reduce(r->engine, &tensor, KOLO_SUM, 1.0, scale, NULL, &r->handle[r->count]);
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
    }
    r->count = 0;
    return r->status;
}
