/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the engine's test on GPUs share (engine_test.c).
 */
#ifndef KOLO_TESTS_GPU_ENGINE_KIT_H
#define KOLO_TESTS_GPU_ENGINE_KIT_H

#include "gpu/kit.h"

#include <kolo/engine.h>

#define ROOM    ((size_t)4 << 20)
#define WAIT_MS 60000
#define LARGE   300000

#define CHECK(what)                                                                                                \
    do {                                                                                                           \
        if (!(what)) KIT_FAIL("%s", #what);                                                                        \
    } while (0)

extern kit_rank_t gpu;
extern kolo_engine_place_t me;
extern kolo_tensor_engine_t engine;
extern bool native; /* what all have on GPUs is to run there */
extern size_t used; /* of the GPU's buffer */

/* A tensor of which this rank has the same bytes on the GPU and here. */
typedef struct {
    kolo_type_t type;
    int64_t shape[2], out_rows;
    size_t in_bytes, out_bytes, at; /* where its input stands in the GPU's buffer; the output stands behind */
    char *here, *result;
} twin_t;

void make_twin(twin_t *t, kolo_type_t type, int64_t rows, int64_t columns, int64_t out_rows);
void free_twin(twin_t *t);
kolo_tensor_t tensor(const twin_t *t, const char *name, bool there);
bool upload(const twin_t *t);
/* The GPU's result in `back`; is it the other's? */
bool fetch(const twin_t *t);
bool same(const twin_t *t);
/* there: it must have run on the GPUs, if anything does. */
bool wait_for(int64_t handle, bool there);
void *allocate_there(void *arg, int index, size_t bytes, int ndims, const int64_t *shape);
void reduce_many(kolo_op_t op, bool scaled);
void reduce_alone(bool in_place);
void reduce_behind_an_event(void);

/* engine_cases.c */
void blend_each(void);
void reduce_without_one(void);
void fail_some(bool all);
void write_timeline(void);
void stop_at_once(void);
void remove_behind_streams(void);

/* engine_sets.c */
void name_sets(kolo_engine_config_t *config, int nranks);
void run_sets(void);

#endif
