/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the slow path: lists of requests and of responses as protobuf, with a version. What comes from
 * another rank is bounded before it is parsed (length), while it is parsed (memory) and after (every field), so
 * that a broken peer costs an error and not this process.
 */
#include "engine/controller/message.h"

#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_message_room(kolo_bytes_t *bytes, size_t room)
{
    if (room <= bytes->room) return KOLO_OK;
    room = KOLO_MAX(room, KOLO_MAX(bytes->room * 2, (size_t)4096));
    uint8_t *p = realloc(bytes->bytes, room);
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a message of %zu bytes", room);
    bytes->bytes = p;
    bytes->room = room;
    return KOLO_OK;
}

#ifdef KOLO_HAVE_PROTOBUF

#define VERSION  KOLO_MESSAGE_VERSION
#define TEXT_MAX (KOLO_ERROR_TEXT_BYTES - 1)

/* ---- a bounded allocator ---- */

static void *arena_alloc(void *arg, size_t bytes)
{
    kolo_arena_t *a = arg;
    size_t need = (bytes + 15) & ~(size_t)15;
    if (bytes > a->room || need > a->room - a->used) return NULL;
    void *p = a->block + a->used;
    a->used += need;
    return p;
}

static void arena_free(void *arg, void *p)
{
    (void)arg;
    (void)p;
}

kolo_status_t kolo_arena_init(kolo_arena_t *a, size_t length)
{
    *a = (kolo_arena_t){.allocator = {arena_alloc, arena_free, a},
                        .room = length * KOLO_ARENA_FACTOR + KOLO_ARENA_EXTRA};
    a->block = malloc(a->room);
    if (!a->block) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory to read %zu bytes", length);
    return KOLO_OK;
}

void kolo_arena_fini(kolo_arena_t *a)
{
    free(a->block);
    a->block = NULL;
}

kolo_status_t kolo_message_wrong(const char *what)
{
    return kolo_fail(KOLO_ERR_PROTOCOL, "engine: a message of another rank is malformed: %s", what);
}

/* ---- requests ---- */

void kolo_message_put(const kolo_tensor_request_t *request, KoloWire__Request *out)
{
    kolo_wire__request__init(out);
    out->name.data = (uint8_t *)(uintptr_t)request->name.text;
    out->name.len = request->name.length;
    out->work = (uint32_t)request->work;
    out->type = (uint32_t)request->type;
    out->op = (uint32_t)request->op;
    out->root = (uint32_t)request->root;
    out->prescale = request->prescale;
    out->postscale = request->postscale;
    out->shape = (int64_t *)(uintptr_t)request->shape;
    out->n_shape = (size_t)request->ndims;
    out->group = request->group;
    out->group_size = request->group_size;
    out->waited_ms = request->waited_ms;
    out->device = request->device;
    out->refuses = (uint32_t)request->refusal.what;
    out->refuses_why = (uint32_t)request->refusal.why;
    out->refuses_at = request->refusal.at;
}

static const char *check_name(const ProtobufCBinaryData *name, uint32_t work)
{
    static const char *const own[] = {[KOLO_WORK_JOIN] = KOLO_JOIN_NAME,
                                      [KOLO_WORK_BARRIER] = KOLO_BARRIER_NAME,
                                      [KOLO_WORK_ADD_SET] = KOLO_ADD_SET_NAME,
                                      [KOLO_WORK_REMOVE_SET] = KOLO_REMOVE_SET_NAME};
    if (name->len == 0 || name->len > KOLO_TENSOR_NAME_MAX) return "a name of that length";
    if (work >= KOLO_WORK_JOIN) {
        size_t n = strlen(own[work]);
        return name->len == n && memcmp(name->data, own[work], n) == 0
                   ? NULL
                   : "a join, a barrier or a change of sets of that name";
    }
    for (size_t i = 0; i < name->len; i++)
        if (name->data[i] < 32 || name->data[i] == 127) return "a name with control characters";
    return NULL;
}

const char *kolo_message_get(const KoloWire__Request *in, int nranks, char *text, kolo_tensor_request_t *out)
{
    if (in == NULL) return "no request";
    if (in->work >= KOLO_WORK_COUNT) return "unknown work";
    const char *bad = check_name(&in->name, in->work);
    if (bad) return bad;
    if (in->type >= KOLO_TYPE_COUNT) return "an unknown type";
    bool adasum = in->op == KOLO_ADASUM && in->work == KOLO_WORK_ALL_REDUCE;
    if (in->op >= KOLO_OP_BUILTIN_COUNT && !adasum) return "an unknown operator";
    if (adasum && !kolo_adasum_takes((kolo_type_t)in->type)) return "adasum of such a type";
    if (in->root >= (uint32_t)nranks) return "a root out of range";
    if (in->n_shape > KOLO_TENSOR_DIMS_MAX) return "too many dimensions";
    if ((in->group == 0) != (in->group_size == 0)) return "a group without size";
    if (in->refuses >= KOLO_REFUSES_COUNT || in->refuses_why >= KOLO_ACCESS_COUNT ||
        (in->refuses == KOLO_REFUSES_NOTHING) != (in->refuses_why == KOLO_ACCESS_FULL))
        return "a refusal of nothing";
    bool change = in->work >= KOLO_WORK_ADD_SET; /* its shape is none */
    if (!change && kolo_shape_elements(in->shape, (int)in->n_shape, 0, kolo_type_size((kolo_type_t)in->type)) < 0)
        return "a shape out of range";
    memcpy(text, in->name.data, in->name.len);
    text[in->name.len] = '\0';
    memset(out, 0, sizeof *out);
    kolo_name_init(&out->name, text, (uint32_t)in->name.len);
    out->work = (kolo_work_t)in->work;
    out->type = (kolo_type_t)in->type;
    out->op = (kolo_op_t)in->op;
    out->root = (int)in->root;
    out->prescale = in->prescale;
    out->postscale = in->postscale;
    out->ndims = (int)in->n_shape;
    if (in->n_shape > 0) memcpy(out->shape, in->shape, in->n_shape * sizeof *in->shape);
    out->group = in->group;
    out->group_size = in->group_size;
    out->waited_ms = in->waited_ms;
    out->device = in->device;
    out->refusal = (kolo_refusal_t){(kolo_refuses_t)in->refuses, (kolo_access_t)in->refuses_why, in->refuses_at};
    if (change && !kolo_sets_request_is_good(out, nranks)) return "a change of sets";
    return NULL;
}

kolo_status_t kolo_message_pack(KoloWire__Request **table, size_t count, kolo_bytes_t *out)
{
    KoloWire__RequestList list = KOLO_WIRE__REQUEST_LIST__INIT;
    list.version = VERSION;
    list.n_requests = count;
    list.requests = table;
    KOLO_TRY(kolo_message_room(out, kolo_wire__request_list__get_packed_size(&list)));
    out->length = kolo_wire__request_list__pack(&list, out->bytes);
    return KOLO_OK;
}

kolo_status_t kolo_requests_encode(const kolo_tensor_request_t *const *requests, size_t count, kolo_bytes_t *out)
{
    KoloWire__Request *rows = malloc((count + 1) * sizeof *rows);
    KoloWire__Request **table = malloc((count + 1) * sizeof *table);
    kolo_status_t status = KOLO_OK;
    if (!rows || !table) status = kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu requests", count);
    for (size_t i = 0; i < count && status == KOLO_OK; i++) {
        kolo_message_put(requests[i], &rows[i]);
        table[i] = &rows[i];
    }
    if (status == KOLO_OK) status = kolo_message_pack(table, count, out);
    free(rows);
    free(table);
    return status;
}

/* ---- responses ---- */

static void put_response(const kolo_response_t *response, int nranks, KoloWire__Response *out,
                         KoloWire__Request *request)
{
    kolo_wire__response__init(out);
    kolo_message_put(&response->request, request);
    out->request = request;
    out->status = (uint32_t)response->status;
    if (response->text) {
        out->text.data = (uint8_t *)response->text;
        out->text.len = strnlen(response->text, TEXT_MAX);
    }
    out->rows = response->rows;
    out->n_rows = response->rows ? (size_t)nranks : 0;
    out->last_joined = response->last_joined;
    out->cacheable = response->cacheable;
    out->device = response->device;
}

static void put_tuning(const kolo_tuned_t *tuned, KoloWire__Tuning *out)
{
    out->fusion_threshold = tuned->tuning.fusion_threshold;
    out->cycle_time_us = (uint32_t)tuned->tuning.cycle_time_us;
    out->choices = tuned->tuning.choices;
    out->phase = (uint32_t)tuned->phase;
}

static kolo_status_t get_tuning(const KoloWire__Tuning *in, kolo_responses_t *list)
{
    if (in->fusion_threshold < 0 || in->fusion_threshold > KOLO_TENSOR_BYTES_MAX ||
        in->cycle_time_us > KOLO_CYCLE_TIME_MAX_US || in->choices >> KOLO_CHOICES || in->phase >= KOLO_TUNE_PHASES)
        return kolo_message_wrong("a setting out of range");
    list->tuned = true;
    list->tuning =
        (kolo_tuned_t){{in->fusion_threshold, in->cycle_time_us, in->choices}, (kolo_tune_phase_t)in->phase};
    return KOLO_OK;
}

kolo_status_t kolo_responses_encode(const kolo_responses_t *list, int nranks, int njoined, kolo_bytes_t *out)
{
    KoloWire__ResponseList message = KOLO_WIRE__RESPONSE_LIST__INIT;
    size_t n = list->count, i = 0;
    KoloWire__Request *requests = malloc((n + 1) * sizeof *requests);
    KoloWire__Response *rows = malloc((n + 1) * sizeof *rows);
    KoloWire__Response **table = malloc((n + 1) * sizeof *table);
    kolo_status_t status = KOLO_OK;
    if (!requests || !rows || !table)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu responses", n);
    for (const kolo_response_t *r = list->first; r && status == KOLO_OK; r = r->next, i++) {
        put_response(r, nranks, &rows[i], &requests[i]);
        table[i] = &rows[i];
    }
    KoloWire__Tuning tuning = KOLO_WIRE__TUNING__INIT;
    if (list->tuned) {
        put_tuning(&list->tuning, &tuning);
        message.tuning = &tuning;
    }
    message.version = VERSION;
    message.joined = (uint32_t)njoined;
    message.n_responses = n;
    message.responses = table;
    if (status == KOLO_OK) status = kolo_message_room(out, kolo_wire__response_list__get_packed_size(&message));
    if (status == KOLO_OK) out->length = kolo_wire__response_list__pack(&message, out->bytes);
    free(requests);
    free(rows);
    free(table);
    return status;
}

static const char *check_rows(const KoloWire__Response *in, int nranks, const kolo_tensor_request_t *request)
{
    bool wanted =
        in->status == KOLO_OK && (request->work == KOLO_WORK_ALL_GATHER || request->work == KOLO_WORK_ALL_TO_ALL);
    if (in->n_rows != (wanted ? (size_t)nranks : 0)) return "rows of another number of ranks";
    if (wanted && request->ndims == 0) return "rows of a scalar";
    int64_t sum = 0;
    for (size_t i = 0; i < in->n_rows; i++) {
        if (in->rows[i] < 0 || in->rows[i] > KOLO_TENSOR_BYTES_MAX - sum) return "rows out of range";
        sum += in->rows[i];
    }
    if (!wanted) return NULL;
    int64_t shape[KOLO_TENSOR_DIMS_MAX];
    memcpy(shape, request->shape, sizeof shape);
    shape[0] = sum;
    return kolo_shape_elements(shape, request->ndims, 0, kolo_type_size(request->type)) < 0 ? "rows out of range"
                                                                                            : NULL;
}

static kolo_status_t get_response(const KoloWire__Response *in, int nranks, kolo_responses_t *list)
{
    char text[KOLO_TENSOR_NAME_MAX + 1];
    kolo_tensor_request_t request;
    if (in == NULL || in->request == NULL) return kolo_message_wrong("a response to nothing");
    const char *bad = kolo_message_get(in->request, nranks, text, &request);
    if (!bad && (in->status > KOLO_ERR_REVOKED || in->status == KOLO_IN_PROGRESS)) bad = "an unknown status";
    if (!bad && (in->text.len > TEXT_MAX || (in->status == KOLO_OK && in->text.len > 0))) bad = "a text too long";
    if (!bad && (in->last_joined < -1 || in->last_joined >= nranks)) bad = "a rank out of range";
    if (!bad) bad = check_rows(in, nranks, &request);
    if (bad) return kolo_message_wrong(bad);
    kolo_response_t *r = calloc(1, sizeof *r);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a response");
    r->slot = -1;
    r->status = (kolo_status_t)in->status;
    r->request = request;
    r->last_joined = in->last_joined;
    r->cacheable = in->cacheable;
    r->device = in->device;
    r->name = strdup(text);
    if (in->text.len > 0) r->text = strndup((const char *)in->text.data, in->text.len);
    if (in->n_rows > 0) r->rows = malloc(in->n_rows * sizeof *r->rows);
    if (!r->name || (in->text.len > 0 && !r->text) || (in->n_rows > 0 && !r->rows)) {
        kolo_response_free(r);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a response");
    }
    r->request.name.text = r->name;
    if (in->n_rows > 0) memcpy(r->rows, in->rows, in->n_rows * sizeof *r->rows);
    kolo_responses_add(list, r);
    return KOLO_OK;
}

static kolo_status_t each_response(const KoloWire__ResponseList *message, int nranks, kolo_responses_t *list,
                                   int *njoined)
{
    if (message == NULL) return kolo_message_wrong("no list of responses");
    if (message->version != VERSION) return kolo_message_wrong("responses of another version");
    if (message->joined > (uint32_t)nranks) return kolo_message_wrong("more have joined than there are");
    for (size_t i = 0; i < message->n_responses; i++) KOLO_TRY(get_response(message->responses[i], nranks, list));
    if (message->tuning) KOLO_TRY(get_tuning(message->tuning, list));
    *njoined = (int)message->joined;
    return KOLO_OK;
}

kolo_status_t kolo_responses_decode(const uint8_t *bytes, size_t length, int nranks, kolo_responses_t *list,
                                    int *njoined)
{
    kolo_arena_t arena;
    kolo_responses_t got;
    kolo_responses_init(&got);
    if (length > KOLO_ENGINE_MESSAGE_MAX) return kolo_message_wrong("it is too long");
    KOLO_TRY(kolo_arena_init(&arena, length));
    kolo_status_t status =
        each_response(kolo_wire__response_list__unpack(&arena.allocator, length, bytes), nranks, &got, njoined);
    kolo_arena_fini(&arena);
    if (status != KOLO_OK) {
        kolo_responses_free(&got);
        return status;
    }
    for (kolo_response_t *r = got.first, *next; r; r = next) {
        next = r->next;
        kolo_responses_add(list, r);
    }
    if (got.tuned) {
        list->tuned = true;
        list->tuning = got.tuning;
    }
    return KOLO_OK;
}

#else

kolo_status_t kolo_message_absent(void)
{
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "engine: this build has no protobuf-c, so an engine has one rank only; build with it");
}

kolo_status_t kolo_requests_encode(const kolo_tensor_request_t *const *requests, size_t count, kolo_bytes_t *out)
{
    (void)requests, (void)count, (void)out;
    return kolo_message_absent();
}

kolo_status_t kolo_responses_encode(const kolo_responses_t *list, int nranks, int njoined, kolo_bytes_t *out)
{
    (void)list, (void)nranks, (void)njoined, (void)out;
    return kolo_message_absent();
}

kolo_status_t kolo_responses_decode(const uint8_t *bytes, size_t length, int nranks, kolo_responses_t *list,
                                    int *njoined)
{
    (void)bytes, (void)length, (void)nranks, (void)list, (void)njoined;
    return kolo_message_absent();
}

#endif
