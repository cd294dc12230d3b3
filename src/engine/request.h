/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, requests and responses: what the ranks of a process set have to agree on, and what they have agreed.
 */
#ifndef KOLO_ENGINE_REQUEST_H
#define KOLO_ENGINE_REQUEST_H

#include "base/status.h"
#include "engine/tuner/tuner.h"
#include "mem/access.h"

#include <kolo/engine.h>
#include <stdbool.h>

/* ---- names: an intrusive hash table (names.c) ---- */

typedef struct kolo_name {
    struct kolo_name *next;
    uint64_t hash;
    uint32_t length;
    const char *text; /* ends with 0 */
} kolo_name_t;

typedef struct {
    kolo_name_t **buckets;
    size_t nbuckets, count;
} kolo_names_t;

void kolo_name_init(kolo_name_t *name, const char *text, uint32_t length);
kolo_name_t *kolo_names_find(const kolo_names_t *names, const kolo_name_t *like);
/* It must not be there yet. Fails only for memory. */
kolo_status_t kolo_names_add(kolo_names_t *names, kolo_name_t *name);
void kolo_names_remove(kolo_names_t *names, kolo_name_t *name);
void kolo_names_fini(kolo_names_t *names); /* of the names themselves it frees nothing */

/* ---- requests: what ranks have to agree on ---- */

typedef enum {
    KOLO_WORK_ALL_REDUCE,
    KOLO_WORK_ALL_GATHER,
    KOLO_WORK_BROADCAST,
    KOLO_WORK_ALL_TO_ALL,
    KOLO_WORK_REDUCE_SCATTER,
    KOLO_WORK_JOIN,
    KOLO_WORK_BARRIER,
    KOLO_WORK_ADD_SET, /* of set 0 */
    KOLO_WORK_REMOVE_SET,
    KOLO_WORK_COUNT
} kolo_work_t;
const char *kolo_work_name(kolo_work_t work);
const char *kolo_type_name(kolo_type_t type);
const char *kolo_op_name(kolo_op_t op);
bool kolo_adasum_takes(kolo_type_t type);

/* Names of these begin with a byte that no user's name may have. */
#define KOLO_BARRIER_NAME    "\1barrier"
#define KOLO_JOIN_NAME       "\1join"
#define KOLO_ADD_SET_NAME    "\1adding of a process set"
#define KOLO_REMOVE_SET_NAME "\1removal of a process set"

/* What stands where in the shape of a change of the sets (sets/set_change.c): of adding, of removing. */
enum {
    KOLO_CHANGE_COUNT,
    KOLO_CHANGE_HASH,
    KOLO_CHANGE_FIRST,
    KOLO_CHANGE_NAMED = KOLO_TENSOR_DIMS_MAX - KOLO_CHANGE_FIRST
};
enum { KOLO_CHANGE_ID, KOLO_CHANGE_OUTSTANDING };

/* With KOLO_CHECK=deep: memory of this rank that it cannot use, so that the tensor fails on all ranks. */
typedef enum { KOLO_REFUSES_NOTHING, KOLO_REFUSES_INPUT, KOLO_REFUSES_OUTPUT, KOLO_REFUSES_COUNT } kolo_refuses_t;
typedef struct {
    kolo_refuses_t what;
    kolo_access_t why;
    uint64_t at; /* the address from which on it cannot be used */
} kolo_refusal_t;

typedef struct {
    kolo_name_t name; /* its text belongs to whoever holds the request */
    kolo_work_t work;
    kolo_type_t type;
    kolo_op_t op;
    int root;
    double prescale, postscale;
    int ndims;
    int64_t shape[KOLO_TENSOR_DIMS_MAX]; /* of changes of the sets: KOLO_CHANGE_... */
    uint64_t group;                      /* hash of the names of its group, 0: none */
    uint32_t group_size;
    uint32_t waited_ms; /* for its cached agreement, before it was sent; nothing depends on it */
    bool device;        /* it lies on the GPU that its rank works on */
    kolo_refusal_t refusal;
} kolo_request_t;
/* With its name's text in `text` (length + 1 bytes). Unlike an assignment it leaves alone what threads the name
 * into a table: of a request that was submitted that belongs to the queue, and changes under its lock. */
void kolo_request_copy(kolo_request_t *copy, const kolo_request_t *request, char *text);

#define KOLO_TENSOR_BYTES_MAX  (INT64_C(1) << 47)
#define KOLO_CYCLE_TIME_MAX_US 60000000
/* Elements of a shape from dimension `from` on; -1: a negative dimension, or more bytes than can be. */
int64_t kolo_shape_elements(const int64_t *shape, int ndims, int from, size_t elem);
/* "[3, 4]" into buf. */
void kolo_shape_print(const int64_t *shape, int ndims, char *buf, size_t bytes);
/* Equal in all that a cached agreement depends on. */
bool kolo_request_equal(const kolo_request_t *a, const kolo_request_t *b);
/* Equal but for what ranks may have differently: the first dimension of what is gathered or exchanged, which
 * kolo_request_rows() tells (0 of others). The hash is over the name and all that is alike. */
bool kolo_request_alike(const kolo_request_t *a, const kolo_request_t *b);
int64_t kolo_request_rows(const kolo_request_t *request);
uint64_t kolo_request_hash(const kolo_request_t *request);
/* How a tensor is called in messages: "tensor x" or "the barrier". */
const char *kolo_request_title(const kolo_request_t *request, char *buf, size_t bytes);

/* ---- responses: what they have agreed ---- */

typedef struct kolo_response {
    struct kolo_response *next;
    kolo_status_t status; /* not KOLO_OK: the tensor fails everywhere, text says why */
    kolo_request_t request;
    char *name;    /* NULL: the request's name is somebody else's */
    int64_t *rows; /* all_gather: first dimension of every rank; else NULL */
    char *text;
    int last_joined;
    bool cacheable;
    bool device;              /* of all who have sent it: it lies on their GPUs */
    bool mine_device;         /* this rank's has said so */
    int slot;                 /* of the cache it came from, -1: new */
    struct kolo_entry *entry; /* this rank's tensor; NULL: it has joined */
} kolo_response_t;
void kolo_response_free(kolo_response_t *response); /* NULL is fine */
/* May rank `rank`, which asked for this, do what the response says? The coordinator's word is not trusted with the
 * sizes of this rank's buffers. */
bool kolo_response_fits(const kolo_response_t *response, const kolo_request_t *mine, int rank);

/* What the engine works by, and why just now (tuner.h). */
typedef struct {
    kolo_tuning_t tuning;
    kolo_tune_phase_t phase;
} kolo_tuned_t;

typedef struct {
    kolo_response_t *first, **tail;
    size_t count;
    bool tuned; /* something else is in force when they are done: */
    kolo_tuned_t tuning;
} kolo_responses_t;
void kolo_responses_init(kolo_responses_t *list);
void kolo_responses_add(kolo_responses_t *list, kolo_response_t *response); /* takes it */
void kolo_responses_free(kolo_responses_t *list);

#endif
