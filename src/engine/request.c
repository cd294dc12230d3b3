/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests and responses: what they hold, how they are called in messages, and their memory.
 */
#include "engine/engine.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kolo_tensor_request_work_name(kolo_work_t work)
{
    static const char *const names[] = {[KOLO_WORK_ALL_REDUCE] = "all_reduce",
                                        [KOLO_WORK_ALL_GATHER] = "all_gather",
                                        [KOLO_WORK_BROADCAST] = "broadcast",
                                        [KOLO_WORK_ALL_TO_ALL] = "all_to_all",
                                        [KOLO_WORK_JOIN] = "join",
                                        [KOLO_WORK_REDUCE_SCATTER] = "reduce_scatter",
                                        [KOLO_WORK_BARRIER] = "barrier",
                                        [KOLO_WORK_ADD_SET] = "change of the process sets",
                                        [KOLO_WORK_REMOVE_SET] = "change of the process sets"};
    return (unsigned)work < KOLO_WORK_COUNT ? names[work] : "unknown work";
}

const char *kolo_tensor_request_type_name(kolo_type_t type)
{
    static const char *const names[] = {[KOLO_INT8] = "int8",
                                        [KOLO_UINT8] = "uint8",
                                        [KOLO_INT32] = "int32",
                                        [KOLO_UINT32] = "uint32",
                                        [KOLO_INT64] = "int64",
                                        [KOLO_UINT64] = "uint64",
                                        [KOLO_FLOAT16] = "float16",
                                        [KOLO_BFLOAT16] = "bfloat16",
                                        [KOLO_FLOAT32] = "float32",
                                        [KOLO_FLOAT64] = "float64",
                                        [KOLO_FLOAT8_E4M3] = "float8_e4m3",
                                        [KOLO_FLOAT8_E5M2] = "float8_e5m2",
                                        [KOLO_INT16] = "int16",
                                        [KOLO_UINT16] = "uint16",
                                        [KOLO_BOOL] = "bool"};
    return (unsigned)type < KOLO_TYPE_COUNT ? names[type] : "unknown type";
}

const char *kolo_tensor_request_op_name(kolo_op_t op)
{
    static const char *const names[] = {[KOLO_SUM] = "sum",
                                        [KOLO_PROD] = "product",
                                        [KOLO_MIN] = "min",
                                        [KOLO_MAX] = "max",
                                        [KOLO_AVG] = "average",
                                        [KOLO_BAND] = "bitwise and",
                                        [KOLO_BOR] = "bitwise or",
                                        [KOLO_BXOR] = "bitwise exclusive or",
                                        [KOLO_LAND] = "logical and",
                                        [KOLO_LOR] = "logical or",
                                        [KOLO_LXOR] = "logical exclusive or"};
    if (op == KOLO_ADASUM) return "adasum";
    return (unsigned)op < KOLO_OP_BUILTIN_COUNT ? names[op] : "unknown operator";
}

bool kolo_adasum_takes(kolo_type_t type)
{
    return type == KOLO_FLOAT16 || type == KOLO_BFLOAT16 || type == KOLO_FLOAT32 || type == KOLO_FLOAT64;
}

int64_t kolo_shape_elements(const int64_t *shape, int ndims, int from, size_t elem)
{
    int64_t n = 1, bytes;
    bool empty = false;
    for (int i = from; i < ndims; i++) {
        if (shape[i] < 0) return -1;
        if (shape[i] == 0) empty = true;
        if (shape[i] > 0 && __builtin_mul_overflow(n, shape[i], &n)) return -1;
    }
    if (__builtin_mul_overflow(n, (int64_t)elem, &bytes) || bytes > KOLO_TENSOR_BYTES_MAX) return -1;
    return empty ? 0 : n;
}

void kolo_shape_print(const int64_t *shape, int ndims, char *buf, size_t bytes)
{
    size_t n = (size_t)snprintf(buf, bytes, "[");
    for (int i = 0; i < ndims && n < bytes; i++)
        n += (size_t)snprintf(buf + n, bytes - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < bytes) snprintf(buf + n, bytes - n, "]");
}

/* Compares by bits: a factor that is no number equals itself. */
static bool same_bits(double a, double b)
{
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

static bool same_refusal(const kolo_refusal_t *a, const kolo_refusal_t *b)
{
    return a->what == b->what && a->why == b->why && a->at == b->at;
}

bool kolo_tensor_request_equal(const kolo_tensor_request_t *a, const kolo_tensor_request_t *b)
{
    return a->work == b->work && a->type == b->type && a->op == b->op && a->root == b->root &&
           same_bits(a->prescale, b->prescale) && same_bits(a->postscale, b->postscale) && a->ndims == b->ndims &&
           memcmp(a->shape, b->shape, (size_t)a->ndims * sizeof a->shape[0]) == 0 && a->group == b->group &&
           a->group_size == b->group_size && a->device == b->device && same_refusal(&a->refusal, &b->refusal);
}

/* Tells whether ranks may have other numbers of rows of it. */
static bool rows_vary(const kolo_tensor_request_t *r)
{
    return (r->work == KOLO_WORK_ALL_GATHER || r->work == KOLO_WORK_ALL_TO_ALL) && r->ndims > 0;
}

int64_t kolo_tensor_request_rows(const kolo_tensor_request_t *request)
{
    return rows_vary(request) ? request->shape[0] : 0;
}

bool kolo_tensor_request_alike(const kolo_tensor_request_t *a, const kolo_tensor_request_t *b)
{
    if (!rows_vary(a) || !rows_vary(b) || a->shape[0] == b->shape[0]) return kolo_tensor_request_equal(a, b);
    kolo_tensor_request_t like = *a;
    like.shape[0] = b->shape[0];
    return kolo_tensor_request_equal(&like, b);
}

bool kolo_response_fits(const kolo_response_t *response, const kolo_tensor_request_t *mine, int rank)
{
    const kolo_tensor_request_t *r = &response->request;
    bool moves = r->work < KOLO_WORK_JOIN && mine->work < KOLO_WORK_JOIN;
    if (response->status != KOLO_OK && moves) return true; /* that it is another work elsewhere may be why */
    if (r->work != mine->work) return false;
    if (!moves) return true;
    kolo_tensor_request_t like = *r;
    like.device = mine->device; /* ranks may differ, and then it goes through host memory */
    if (!kolo_tensor_request_alike(&like, mine)) return false;
    return !rows_vary(mine) || (response->rows && response->rows[rank] == mine->shape[0]);
}

uint64_t kolo_tensor_request_hash(const kolo_tensor_request_t *r)
{
    const uint32_t small[] = {(uint32_t)r->work, (uint32_t)r->type,  (uint32_t)r->op, (uint32_t)r->root,
                              r->group_size,     (uint32_t)r->ndims, r->device,       (uint32_t)r->refusal.what};
    size_t from = rows_vary(r) ? 1 : 0;
    uint64_t hash = kolo_hash_bytes(r->name.hash, small, sizeof small);
    hash = kolo_hash_bytes(hash, r->shape + from, ((size_t)r->ndims - from) * sizeof *r->shape);
    hash = kolo_hash_bytes(hash, &r->prescale, sizeof r->prescale);
    hash = kolo_hash_bytes(hash, &r->postscale, sizeof r->postscale);
    return kolo_hash_bytes(hash, &r->group, sizeof r->group);
}

const char *kolo_tensor_request_title(const kolo_tensor_request_t *request, char *buf, size_t bytes)
{
    if (request->name.text[0] == '\1')
        snprintf(buf, bytes, "the %s", request->name.text + 1);
    else
        snprintf(buf, bytes, "tensor %s", request->name.text);
    return buf;
}

/* ---- responses ---- */

void kolo_response_free(kolo_response_t *response)
{
    if (!response) return;
    free(response->name);
    free(response->rows);
    free(response->text);
    free(response);
}

void kolo_responses_init(kolo_responses_t *list)
{
    list->first = NULL;
    list->tail = &list->first;
    list->count = 0;
    list->tuned = false;
}

void kolo_responses_add(kolo_responses_t *list, kolo_response_t *response)
{
    response->next = NULL;
    *list->tail = response;
    list->tail = &response->next;
    list->count++;
}

void kolo_responses_free(kolo_responses_t *list)
{
    for (kolo_response_t *r = list->first, *next; r; r = next) {
        next = r->next;
        if (r->slot < 0) kolo_response_free(r);
    }
    kolo_responses_init(list);
}

void kolo_tensor_request_copy(kolo_tensor_request_t *copy, const kolo_tensor_request_t *request, char *text)
{
    const size_t behind_name = offsetof(kolo_tensor_request_t, work);
    memcpy(text, request->name.text, request->name.length + 1);
    copy->name = (kolo_name_t){NULL, request->name.hash, request->name.length, text};
    memcpy((char *)copy + behind_name, (const char *)request + behind_name, sizeof *copy - behind_name);
}
