/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, requests and responses: what the ranks of a process set must agree on, and the result.
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
/* Adds a name that is not in the table. Fails only for lack of memory. */
kolo_status_t kolo_names_add(kolo_names_t *names, kolo_name_t *name);
void kolo_names_remove(kolo_names_t *names, kolo_name_t *name);
void kolo_names_fini(kolo_names_t *names); /* does not free the names */

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
const char *kolo_tensor_request_work_name(kolo_work_t work);
const char *kolo_tensor_request_type_name(kolo_type_t type);
const char *kolo_tensor_request_op_name(kolo_op_t op);
bool kolo_adasum_takes(kolo_type_t type);

/* Names of these begin with a byte that no user's name may have. */
#define KOLO_BARRIER_NAME    "\1barrier"
#define KOLO_JOIN_NAME       "\1join"
#define KOLO_ADD_SET_NAME    "\1adding of a process set"
#define KOLO_REMOVE_SET_NAME "\1removal of a process set"

/* The meaning of the shape's dimensions in a change of the sets (sets/set_change.c): for adding, for removing. */
enum {
    KOLO_CHANGE_COUNT,
    KOLO_CHANGE_HASH,
    KOLO_CHANGE_FIRST,
    KOLO_CHANGE_NAMED = KOLO_TENSOR_DIMS_MAX - KOLO_CHANGE_FIRST
};
enum { KOLO_CHANGE_ID, KOLO_CHANGE_OUTSTANDING };

/* With KOLO_CHECK=deep: memory that this rank cannot use, which fails the tensor on all ranks. */
typedef enum { KOLO_REFUSES_NOTHING, KOLO_REFUSES_INPUT, KOLO_REFUSES_OUTPUT, KOLO_REFUSES_COUNT } kolo_refuses_t;
typedef struct {
    kolo_refuses_t what;
    kolo_access_t why;
    uint64_t at; /* the address from which on it cannot be used */
} kolo_refusal_t;

typedef struct {
    kolo_name_t name; /* the owner of the request owns its text */
    kolo_work_t work;
    kolo_type_t type;
    kolo_op_t op;
    int root;
    double prescale, postscale;
    int ndims;
    int64_t shape[KOLO_TENSOR_DIMS_MAX]; /* of changes of the sets: KOLO_CHANGE_... */
    uint64_t group;                      /* hash of the names of its group, 0: none */
    uint32_t group_size;
    uint32_t waited_ms; /* how long it waited for its cached agreement; for messages only */
    bool device;        /* it is on its rank's GPU */
    kolo_refusal_t refusal;
} kolo_tensor_request_t;
/* Copies a request, with the name in `text` (length + 1 bytes). Does not read the name's links in a table, which
 * the queue changes under its lock; an assignment would. */
void kolo_tensor_request_copy(kolo_tensor_request_t *copy, const kolo_tensor_request_t *request, char *text);

#define KOLO_TENSOR_BYTES_MAX  (INT64_C(1) << 47)
#define KOLO_CYCLE_TIME_MAX_US 60000000
/* Elements of a shape from dimension `from` on; -1: a negative dimension, or more bytes than can be. */
int64_t kolo_shape_elements(const int64_t *shape, int ndims, int from, size_t elem);
/* Prints "[3, 4]" into buf. */
void kolo_shape_print(const int64_t *shape, int ndims, char *buf, size_t bytes);
/* Compares everything that a cached agreement depends on. */
bool kolo_tensor_request_equal(const kolo_tensor_request_t *a, const kolo_tensor_request_t *b);
/* Compares all but the first dimension of gathered or exchanged tensors, which may differ between ranks and is
 * kolo_tensor_request_rows() (0 for other operations). The hash covers the name and the rest. */
bool kolo_tensor_request_alike(const kolo_tensor_request_t *a, const kolo_tensor_request_t *b);
int64_t kolo_tensor_request_rows(const kolo_tensor_request_t *request);
uint64_t kolo_tensor_request_hash(const kolo_tensor_request_t *request);
/* Returns the name of a request in messages: "tensor x" or "the barrier". */
const char *kolo_tensor_request_title(const kolo_tensor_request_t *request, char *buf, size_t bytes);

/* ---- responses: what they have agreed ---- */

typedef struct kolo_response {
    struct kolo_response *next;
    kolo_status_t status; /* not KOLO_OK: the tensor fails everywhere, text says why */
    kolo_tensor_request_t request;
    char *name;    /* owns the request's name; NULL: it has another owner */
    int64_t *rows; /* all_gather: first dimension of every rank; else NULL */
    char *text;
    int last_joined;
    bool cacheable;
    bool device;              /* on all ranks that sent it, it is on their GPU */
    bool mine_device;         /* this rank's request said so */
    int slot;                 /* of the cache it came from, -1: new */
    struct kolo_entry *entry; /* this rank's tensor; NULL: it has joined */
} kolo_response_t;
void kolo_response_free(kolo_response_t *response); /* NULL is fine */
/* Checks the response against the request of this rank, `rank`: the sizes of its own buffers are not taken from the
 * coordinator. */
bool kolo_response_fits(const kolo_response_t *response, const kolo_tensor_request_t *mine, int rank);

/* The engine's present settings, and the tuner's phase (tuner.h). */
typedef struct {
    kolo_tuning_t tuning;
    kolo_tune_phase_t phase;
} kolo_tuned_t;

typedef struct {
    kolo_response_t *first, **tail;
    size_t count;
    bool tuned; /* new settings after these responses: */
    kolo_tuned_t tuning;
} kolo_responses_t;
void kolo_responses_init(kolo_responses_t *list);
void kolo_responses_add(kolo_responses_t *list, kolo_response_t *response); /* takes it */
void kolo_responses_free(kolo_responses_t *list);

#endif
