/* SPDX-License-Identifier: Apache-2.0
 *
 * The sum of tensors over all ranks: each is handed to Kolo's engine under its name as soon as it is there, while
 * the next ones are still being computed; in the end all are awaited. The engine finds out what all ranks have
 * submitted and joins small tensors into one operation.
 */
#ifndef DIGITS_REDUCE_H
#define DIGITS_REDUCE_H

#include <kolo/engine.h>

#define REDUCE_MOST 16

typedef struct {
    kolo_tensor_engine_t engine;
    int count; /* submitted, not yet awaited */
    int64_t handle[REDUCE_MOST];
    void *data[REDUCE_MOST]; /* where what is on a GPU belongs */
    size_t bytes[REDUCE_MOST];
    kolo_status_t status; /* the first failure */
    char error[400];      /* and what there is to say of it */
} reduce_t;

void reduce_begin(reduce_t *r, kolo_tensor_engine_t engine);
/* `data` becomes the sum times `scale`, in place, and belongs to the engine until reduce_wait() returns. */
void reduce_submit(reduce_t *r, const char *name, void *data, size_t count, kolo_type_t type, double scale);
/* After a failure the contents of the tensors are undefined. */
kolo_status_t reduce_wait(reduce_t *r);

#endif
