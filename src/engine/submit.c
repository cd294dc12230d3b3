/* SPDX-License-Identifier: Apache-2.0
 *
 * The public submissions: each checks what this rank alone can see, makes entries and hands them to the queue.
 */
#include "comm/comm.h"
#include "comm/params.h"
#include "engine/batch/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ---- */

static kolo_status_t check_name(const char *name, const char *what, uint32_t *length)
{
    if (!name || !*name) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the tensor has no name", what);
    size_t n = strnlen(name, KOLO_TENSOR_NAME_MAX + 1);
    if (n > KOLO_TENSOR_NAME_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the name %.40s... is longer than %d bytes", what, name,
                         KOLO_TENSOR_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the name has a control character at byte %zu", what,
                             i);
    *length = (uint32_t)n;
    return KOLO_OK;
}

static kolo_status_t check_shape(const kolo_tensor_t *t, int min_dims, const char *what, int64_t *count)
{
    char shape[300];
    if (t->ndims < 0 || t->ndims > KOLO_TENSOR_DIMS_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s has %d dimensions, at most %d are possible",
                         what, t->name, t->ndims, KOLO_TENSOR_DIMS_MAX);
    if (t->ndims < min_dims)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s is a scalar, and has no first dimension", what,
                         t->name);
    if (t->ndims > 0 && !t->shape)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: the shape is NULL", what, t->name);
    *count = kolo_shape_elements(t->shape, t->ndims, 0, kolo_type_size(t->type));
    if (*count >= 0) return KOLO_OK;
    kolo_shape_print(t->shape, t->ndims, shape, sizeof shape);
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: shape %s has a negative dimension or is too large",
                     what, t->name, shape);
}

static kolo_status_t check_tensor(const kolo_tensor_t *t, int min_dims, const char *what, uint32_t *length,
                                  int64_t *count)
{
    if (!t) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the tensor is NULL", what);
    KOLO_TRY(check_name(t->name, what, length));
    if (kolo_type_size(t->type) == 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: unknown type %d", what, t->name, (int)t->type);
    return check_shape(t, min_dims, what, count);
}

static kolo_status_t check_buffers(const kolo_tensor_t *t, const kolo_submission_t *how, bool reads, bool writes,
                                   int64_t count, const char *what)
{
    if (reads && !t->input && count > 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: the input is NULL", what, t->name);
    if (writes && !t->output && !(how && how->allocate) && count > 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: tensor %s has no output: set it, or kolo_submission_t.allocate, which makes one",
                         what, t->name);
    return KOLO_OK;
}

static kolo_status_t check_reduction(const kolo_tensor_t *t, kolo_work_t work, kolo_op_t op, double prescale,
                                     double postscale, const char *what)
{
    bool adasum = op == KOLO_ADASUM && work == KOLO_WORK_ALL_REDUCE;
    if (((int)op < 0 || op >= KOLO_OP_BUILTIN_COUNT) && !adasum)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: operator %d (%s) is not possible here", what,
                         t->name, (int)op, kolo_tensor_request_op_name(op));
    if (adasum && !kolo_adasum_takes(t->type))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: tensor %s: adasum is for float16, bfloat16, float32 and float64, not %s", what,
                         t->name, kolo_tensor_request_type_name(t->type));
    if (!adasum && !kolo_op_takes(op, t->type))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: operator %s is not for %s", what, t->name,
                         kolo_tensor_request_op_name(op), kolo_tensor_request_type_name(t->type));
    if (t->type == KOLO_BOOL && (prescale != 1.0 || postscale != 1.0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: a bool cannot be scaled (by %g and %g)", what,
                         t->name, prescale, postscale);
    if (!isfinite(prescale) || !isfinite(postscale))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: scales %g and %g must be finite", what, t->name,
                         prescale, postscale);
    return KOLO_OK;
}

/* ---- entries ---- */

/* What is asked for, of one tensor or of each of a group. */
typedef struct {
    kolo_work_t work;
    kolo_op_t op;
    double prescale, postscale;
    int root;
    const kolo_submission_t *how;
    const char *what; /* the function's name, for sentences */
} ask_t;

static kolo_status_t make_entry(const kolo_tensor_t *t, uint32_t length, const ask_t *ask, const int64_t *splits,
                                int nsplits, kolo_entry_t **entry)
{
    KOLO_TRY(kolo_entry_new(t->name, length, splits, nsplits, entry));
    kolo_tensor_request_t *q = &(*entry)->request;
    q->work = ask->work;
    q->type = t->type;
    q->ndims = t->ndims;
    if (t->ndims > 0) memcpy(q->shape, t->shape, (size_t)t->ndims * sizeof *t->shape);
    (*entry)->input = t->input;
    (*entry)->output = t->output;
    if (ask->how) (*entry)->how = *ask->how;
    return KOLO_OK;
}

static kolo_status_t reduction_entry(const kolo_tensor_t *t, const ask_t *ask, kolo_entry_t **entry)
{
    uint32_t length = 0;
    int64_t count = 0;
    KOLO_TRY(check_tensor(t, ask->work == KOLO_WORK_REDUCE_SCATTER, ask->what, &length, &count));
    KOLO_TRY(check_reduction(t, ask->work, ask->op, ask->prescale, ask->postscale, ask->what));
    KOLO_TRY(check_buffers(t, ask->how, true, true, count, ask->what));
    KOLO_TRY(make_entry(t, length, ask, NULL, 0, entry));
    (*entry)->request.op = ask->op;
    (*entry)->request.prescale = ask->prescale;
    (*entry)->request.postscale = ask->postscale;
    return KOLO_OK;
}

static kolo_status_t broadcast_entry(const kolo_set_t *set, const kolo_tensor_t *t, const ask_t *ask,
                                     kolo_entry_t **entry)
{
    uint32_t length = 0;
    int64_t count = 0;
    KOLO_TRY(check_tensor(t, 0, ask->what, &length, &count));
    if (ask->root < 0 || ask->root >= set->size)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: root %d is no rank of 0..%d", ask->what,
                         t->name, ask->root, set->size - 1);
    KOLO_TRY(check_buffers(t, ask->how, ask->root == set->rank, true, count, ask->what));
    KOLO_TRY(make_entry(t, length, ask, NULL, 0, entry));
    (*entry)->request.root = ask->root;
    return KOLO_OK;
}

static kolo_status_t check_splits(const kolo_set_t *s, const kolo_tensor_t *t, const int64_t *splits,
                                  const char *what)
{
    int64_t rows = t->shape[0], sum = 0;
    if (!splits && rows % s->size == 0) return KOLO_OK;
    if (!splits)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: tensor %s: %lld rows cannot be divided evenly by %d ranks; give splits", what,
                         t->name, (long long)rows, s->size);
    for (int r = 0; r < s->size; r++) {
        if (splits[r] < 0 || splits[r] > rows - sum)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "%s: tensor %s: split %d of %lld rows is negative or makes more than the %lld rows",
                             what, t->name, r, (long long)splits[r], (long long)rows);
        sum += splits[r];
    }
    if (sum == rows) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: the splits make %lld of %lld rows", what, t->name,
                     (long long)sum, (long long)rows);
}

/* Makes an entry of all_gather, or of all_to_all, which has splits. */
static kolo_status_t rows_entry(const kolo_set_t *set, const kolo_tensor_t *t, const ask_t *ask,
                                const int64_t *splits, kolo_entry_t **entry)
{
    uint32_t length = 0;
    int64_t count = 0;
    KOLO_TRY(check_tensor(t, 1, ask->what, &length, &count));
    if (ask->work == KOLO_WORK_ALL_TO_ALL) KOLO_TRY(check_splits(set, t, splits, ask->what));
    KOLO_TRY(check_buffers(t, ask->how, true, false, count, ask->what));
    KOLO_TRY(check_buffers(t, ask->how, false, true, 1, ask->what)); /* others may bring rows */
    return make_entry(t, length, ask, splits, set->size, entry);
}

static kolo_status_t place(const kolo_set_t *set, const kolo_submission_t *how, const char *what,
                           kolo_entry_t *entry)
{
    kolo_status_t status = kolo_engine_devices_place(set->engine, how ? how->memory : NULL, entry, what);
    if (status != KOLO_OK) kolo_entry_free(entry);
    return status;
}

static kolo_status_t entry_of(const kolo_set_t *set, const kolo_tensor_t *t, const ask_t *ask,
                              const int64_t *splits, kolo_entry_t **entry)
{
    switch (ask->work) {
    case KOLO_WORK_ALL_REDUCE:
    case KOLO_WORK_REDUCE_SCATTER:
        KOLO_TRY(reduction_entry(t, ask, entry));
        break;
    case KOLO_WORK_BROADCAST:
        KOLO_TRY(broadcast_entry(set, t, ask, entry));
        break;
    default:
        KOLO_TRY(rows_entry(set, t, ask, splits, entry));
        break;
    }
    KOLO_TRY(place(set, ask->how, ask->what, *entry));
    if (kolo_comm_options.check == KOLO_CHECK_DEEP) kolo_entry_examine(*entry, set->rank);
    return KOLO_OK;
}

/* ---- what all functions come to ---- */

static kolo_status_t push(kolo_set_t *s, kolo_entry_t *const *entries, int count, int64_t *handles,
                          const char *what)
{
    int held = 0; /* entries are others' from the push on */
    for (int i = 0; i < count; i++) held += entries[i]->ready != NULL;
    kolo_status_t status = kolo_tensors_push(&s->lane, entries, count, handles);
    if (status != KOLO_OK) return kolo_fail_prefix(status, "%s: ", what);
    if (held > 0) kolo_finisher_wake(s->engine);
    if (held < count || count > 1) kolo_engine_kick(s->engine);
    return KOLO_OK;
}

static kolo_status_t submit(kolo_tensor_engine_t e, const kolo_tensor_t *tensor, const ask_t *ask,
                            const int64_t *splits, int64_t *handle)
{
    kolo_set_t *set;
    kolo_entry_t *entry;
    KOLO_TRY(kolo_engine_check(e, ask->what));
    KOLO_TRY(kolo_sets_pick(e, ask->how, ask->what, &set));
    KOLO_TRY(entry_of(set, tensor, ask, splits, &entry));
    kolo_status_t status = push(set, &entry, 1, handle, ask->what);
    if (status != KOLO_OK) kolo_entry_free(entry);
    return status;
}

/* Gives a group a name, equal on all ranks that submit the same names in the same order, and hardly otherwise. */
static void name_group(kolo_entry_t *const *entries, int count)
{
    uint64_t group = KOLO_HASH_INIT;
    for (int i = 0; i < count; i++)
        group = kolo_hash_bytes(group, entries[i]->request.name.text, entries[i]->request.name.length + 1);
    if (group == 0) group = 1;
    for (int i = 0; i < count; i++) {
        entries[i]->request.group = group;
        entries[i]->request.group_size = (uint32_t)count;
        entries[i]->index = i;
    }
}

/* Submits all or none. splits: one table per tensor, each may be NULL, or NULL. */
static kolo_status_t submit_group(kolo_tensor_engine_t e, const kolo_tensor_t *tensors, int count, const ask_t *ask,
                                  const int64_t *const *splits, int64_t *handles)
{
    kolo_set_t *set;
    int n = 0;
    KOLO_TRY(kolo_engine_check(e, ask->what));
    KOLO_TRY(kolo_sets_pick(e, ask->how, ask->what, &set));
    if (count < 1 || !tensors) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: there are no tensors", ask->what);
    kolo_entry_t **entries = malloc((size_t)count * sizeof(kolo_entry_t *));
    if (!entries) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory for %d tensors", ask->what, count);
    kolo_status_t status = KOLO_OK;
    for (; n < count && status == KOLO_OK; n += status == KOLO_OK)
        status = entry_of(set, &tensors[n], ask, splits ? splits[n] : NULL, &entries[n]);
    if (status == KOLO_OK) {
        name_group(entries, count);
        status = push(set, entries, count, handles, ask->what);
    }
    while (status != KOLO_OK && n > 0) kolo_entry_free(entries[--n]);
    free(entries);
    return status;
}

/* ---- the functions ---- */

static ask_t reduction(kolo_work_t work, kolo_op_t op, double prescale, double postscale,
                       const kolo_submission_t *how, const char *what)
{
    return (ask_t){.work = work, .op = op, .prescale = prescale, .postscale = postscale, .how = how, .what = what};
}

kolo_status_t kolo_engine_all_reduce(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, kolo_op_t op,
                                     double prescale, double postscale, const kolo_submission_t *how,
                                     int64_t *handle)
{
    ask_t ask = reduction(KOLO_WORK_ALL_REDUCE, op, prescale, postscale, how, "engine_all_reduce");
    return submit(engine, tensor, &ask, NULL, handle);
}

kolo_status_t kolo_engine_all_reduce_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           kolo_op_t op, double prescale, double postscale,
                                           const kolo_submission_t *how, int64_t *handles)
{
    ask_t ask = reduction(KOLO_WORK_ALL_REDUCE, op, prescale, postscale, how, "engine_all_reduce_group");
    return submit_group(engine, tensors, count, &ask, NULL, handles);
}

kolo_status_t kolo_engine_reduce_scatter(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, kolo_op_t op,
                                         double prescale, double postscale, const kolo_submission_t *how,
                                         int64_t *handle)
{
    ask_t ask = reduction(KOLO_WORK_REDUCE_SCATTER, op, prescale, postscale, how, "engine_reduce_scatter");
    return submit(engine, tensor, &ask, NULL, handle);
}

kolo_status_t kolo_engine_reduce_scatter_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                               kolo_op_t op, double prescale, double postscale,
                                               const kolo_submission_t *how, int64_t *handles)
{
    ask_t ask = reduction(KOLO_WORK_REDUCE_SCATTER, op, prescale, postscale, how, "engine_reduce_scatter_group");
    return submit_group(engine, tensors, count, &ask, NULL, handles);
}

kolo_status_t kolo_engine_all_gather(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor,
                                     const kolo_submission_t *how, int64_t *handle)
{
    const ask_t ask = {.work = KOLO_WORK_ALL_GATHER, .how = how, .what = "engine_all_gather"};
    return submit(engine, tensor, &ask, NULL, handle);
}

kolo_status_t kolo_engine_all_gather_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           const kolo_submission_t *how, int64_t *handles)
{
    const ask_t ask = {.work = KOLO_WORK_ALL_GATHER, .how = how, .what = "engine_all_gather_group"};
    return submit_group(engine, tensors, count, &ask, NULL, handles);
}

kolo_status_t kolo_engine_broadcast(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, int root,
                                    const kolo_submission_t *how, int64_t *handle)
{
    const ask_t ask = {.work = KOLO_WORK_BROADCAST, .root = root, .how = how, .what = "engine_broadcast"};
    return submit(engine, tensor, &ask, NULL, handle);
}

kolo_status_t kolo_engine_broadcast_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                          int root, const kolo_submission_t *how, int64_t *handles)
{
    const ask_t ask = {.work = KOLO_WORK_BROADCAST, .root = root, .how = how, .what = "engine_broadcast_group"};
    return submit_group(engine, tensors, count, &ask, NULL, handles);
}

kolo_status_t kolo_engine_all_to_all(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor,
                                     const int64_t *splits, const kolo_submission_t *how, int64_t *handle)
{
    const ask_t ask = {.work = KOLO_WORK_ALL_TO_ALL, .how = how, .what = "engine_all_to_all"};
    return submit(engine, tensor, &ask, splits, handle);
}

kolo_status_t kolo_engine_all_to_all_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           const int64_t *const *splits, const kolo_submission_t *how,
                                           int64_t *handles)
{
    const ask_t ask = {.work = KOLO_WORK_ALL_TO_ALL, .how = how, .what = "engine_all_to_all_group"};
    return submit_group(engine, tensors, count, &ask, splits, handles);
}

static kolo_status_t submit_own(kolo_tensor_engine_t e, const char *name, kolo_work_t work,
                                const kolo_submission_t *how, int64_t *handle, const char *what)
{
    const kolo_tensor_t none = {.name = name};
    kolo_set_t *set;
    kolo_entry_t *entry;
    KOLO_TRY(kolo_engine_check(e, what));
    KOLO_TRY(kolo_sets_pick(e, how, what, &set));
    KOLO_TRY(make_entry(&none, (uint32_t)strlen(name), &(ask_t){.work = work, .how = how}, NULL, 0, &entry));
    KOLO_TRY(place(set, how, what, entry));
    kolo_status_t status = push(set, &entry, 1, handle, what);
    if (status != KOLO_OK) kolo_entry_free(entry);
    return status;
}

kolo_status_t kolo_engine_join(kolo_tensor_engine_t engine, const kolo_submission_t *how, int64_t *handle)
{
    return submit_own(engine, KOLO_JOIN_NAME, KOLO_WORK_JOIN, how, handle, "engine_join");
}

kolo_status_t kolo_engine_barrier(kolo_tensor_engine_t engine, const kolo_submission_t *how, int64_t *handle)
{
    return submit_own(engine, KOLO_BARRIER_NAME, KOLO_WORK_BARRIER, how, handle, "engine_barrier");
}

kolo_status_t kolo_engine_poll(kolo_tensor_engine_t engine, int64_t handle, int *complete)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_poll"));
    if (!complete) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_poll: the output is NULL");
    return kolo_queue_poll(&engine->queue, handle, complete);
}

/* Adds to a time-out which ranks are missing, as the set's coordinator knows it. */
static void name_missing(struct kolo_tensor_engine *e, int set)
{
    char seen[KOLO_ERROR_TEXT_BYTES], who[KOLO_ERROR_TEXT_BYTES / 2];
    const kolo_set_t *s = kolo_sets_find(e, set);
    if (!s || !s->comm || s->size == 1) return;
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    kolo_ask_around_note(s->comm, 0, who, sizeof who);
    if (!*who) snprintf(who, sizeof who, "which rank is missing is known after a second: kolo-top says it then");
    kolo_fail(KOLO_ERR_TIMEOUT, "%.900s: %s", seen, who);
}

kolo_status_t kolo_engine_wait(kolo_tensor_engine_t engine, int64_t handle, int timeout_ms,
                               kolo_completion_t *completion)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_wait"));
    if (kolo_engine_is_inside(engine))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "engine_wait: not allowed in a callback of the engine");
    kolo_status_t status = kolo_queue_wait(&engine->queue, handle, timeout_ms, completion);
    if (status != KOLO_ERR_TIMEOUT) return status;
    int set = kolo_queue_set_of(&engine->queue, handle); /* it may have been complete, and failed by a time limit */
    if (set >= 0) name_missing(engine, set);
    return status;
}
