/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the slow path come out as they went in; damaged ones are refused with a reason, never believed.
 */
#include "base/test.h"
#include "engine/controller/tree.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 3

typedef struct {
    int count;
    kolo_tensor_request_t last;
    char name[KOLO_TENSOR_NAME_MAX + 1];
} seen_t;

static const kolo_tree_place_t alone = {.first = 2, .end = 3};

static kolo_status_t see(void *arg, const kolo_tensor_request_t *q, const kolo_ranks_t *ranks)
{
    seen_t *s = arg;
    assert_true(ranks->count == 1 && ranks->runs[0].first == 2 && ranks->runs[0].end == 3);
    s->count++;
    s->last = *q;
    memcpy(s->name, q->name.text, q->name.length + 1);
    return KOLO_OK;
}

static kolo_tensor_request_t request(const char *name)
{
    kolo_tensor_request_t q = {.work = KOLO_WORK_BROADCAST,
                               .type = KOLO_BFLOAT16,
                               .op = KOLO_AVG,
                               .root = 2,
                               .prescale = 0.1,
                               .postscale = -3e300,
                               .ndims = 3,
                               .shape = {5, 0, INT64_C(1) << 40},
                               .group = UINT64_MAX,
                               .group_size = 7};
    kolo_name_init(&q.name, name, (uint32_t)strlen(name));
    return q;
}

static void requests_come_out_as_they_went_in(void **state)
{
    kolo_bytes_t bytes = {NULL, 0, 0};
    kolo_tensor_request_t q = request("layer"), join = request(KOLO_JOIN_NAME);
    const kolo_tensor_request_t *list[] = {&join, &q};
    seen_t seen = {0};
    (void)state;
    join.work = KOLO_WORK_JOIN;
    assert_int_equal(kolo_requests_encode(list, 2, &bytes), KOLO_OK);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &alone, RANKS, see, &seen), KOLO_OK);
    assert_int_equal(seen.count, 2);
    assert_string_equal(seen.name, "layer");
    assert_true(kolo_tensor_request_equal(&seen.last, &q));
    assert_int_equal(seen.last.name.hash, q.name.hash);
    free(bytes.bytes);
}

static void responses_come_out_as_they_went_in(void **state)
{
    kolo_bytes_t bytes = {NULL, 0, 0};
    int64_t rows[RANKS] = {1, 0, 9};
    kolo_response_t good = {.request = request("rows"), .rows = rows, .last_joined = -1, .cacheable = true};
    kolo_response_t bad = {
        .request = request("x"), .status = KOLO_ERR_MISMATCH, .text = (char *)(uintptr_t) "why", .last_joined = 2};
    kolo_responses_t list, out;
    int njoined = -1;
    (void)state;
    good.request.work = KOLO_WORK_ALL_GATHER;
    kolo_responses_init(&list);
    kolo_responses_init(&out);
    kolo_responses_add(&list, &good);
    kolo_responses_add(&list, &bad);
    assert_int_equal(kolo_responses_encode(&list, RANKS, 1, &bytes), KOLO_OK);
    assert_int_equal(kolo_responses_decode(bytes.bytes, bytes.length, RANKS, &out, &njoined), KOLO_OK);
    assert_int_equal(njoined, 1);
    assert_int_equal(out.count, 2);
    assert_true(kolo_tensor_request_equal(&out.first->request, &good.request) && out.first->cacheable);
    assert_memory_equal(out.first->rows, rows, sizeof rows);
    assert_string_equal(out.first->next->text, "why");
    assert_int_equal(out.first->next->last_joined, 2);
    kolo_responses_free(&out);
    /* for another number of ranks it makes no sense */
    assert_int_equal(kolo_responses_decode(bytes.bytes, bytes.length, RANKS + 1, &out, &njoined),
                     KOLO_ERR_PROTOCOL);
    assert_int_equal(out.count, 0);
    free(bytes.bytes);
}

static void refuse(kolo_tensor_request_t q, const char *why)
{
    kolo_bytes_t bytes = {NULL, 0, 0};
    const kolo_tensor_request_t *list[] = {&q};
    seen_t seen = {0};
    assert_int_equal(kolo_requests_encode(list, 1, &bytes), KOLO_OK);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &alone, RANKS, see, &seen), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), why));
    assert_int_equal(seen.count, 0);
    free(bytes.bytes);
}

static void nonsense_is_refused(void **state)
{
    char name[KOLO_TENSOR_NAME_MAX + 10];
    kolo_tensor_request_t q = request("x");
    (void)state;
    q.root = 3;
    refuse(q, "root");
    q = request("x");
    q.work = KOLO_WORK_COUNT;
    refuse(q, "work");
    q = request("x");
    q.type = KOLO_TYPE_COUNT;
    refuse(q, "type");
    q = request("x");
    q.op = KOLO_OP_BUILTIN_COUNT;
    refuse(q, "operator");
    q.op = KOLO_ADASUM; /* only of all_reduce */
    refuse(q, "operator");
    q.work = KOLO_WORK_ALL_REDUCE;
    q.type = KOLO_INT32;
    refuse(q, "adasum");
    q = request("x");
    q.shape[0] = -1;
    refuse(q, "shape");
    q = request("x");
    q.shape[1] = INT64_C(1) << 20;
    refuse(q, "shape");
    q = request("x");
    q.group_size = 0;
    refuse(q, "group");
    refuse(request(""), "name");
    refuse(request("a\tb"), "control");
    refuse(request(KOLO_JOIN_NAME), "control"); /* only a join may be called so */
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    refuse(request(name), "name");
}

static kolo_tensor_request_t change(kolo_work_t work, int64_t first, int64_t second, int64_t third, int ndims)
{
    kolo_tensor_request_t q = request(work == KOLO_WORK_ADD_SET ? KOLO_ADD_SET_NAME : KOLO_REMOVE_SET_NAME);
    q.work = work;
    q.ndims = ndims;
    q.shape[0] = first;
    q.shape[1] = second;
    q.shape[2] = third;
    return q;
}

static void changes_of_sets_that_make_no_sense_are_refused(void **state)
{
    kolo_bytes_t bytes = {NULL, 0, 0};
    kolo_tensor_request_t add = change(KOLO_WORK_ADD_SET, 1, INT64_MAX, 2, 3),
                          removal = change(KOLO_WORK_REMOVE_SET, 5, INT64_C(1) << 40, 0, 2);
    const kolo_tensor_request_t *list[] = {&add, &removal};
    seen_t seen = {0};
    (void)state;
    assert_int_equal(kolo_requests_encode(list, 2, &bytes), KOLO_OK);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &alone, RANKS, see, &seen), KOLO_OK);
    assert_int_equal(seen.count, 2);
    free(bytes.bytes);
    refuse(change(KOLO_WORK_ADD_SET, 1, 7, RANKS, 3), "change"); /* no such rank */
    refuse(change(KOLO_WORK_ADD_SET, 1, 7, -1, 3), "change");
    refuse(change(KOLO_WORK_ADD_SET, 2, 7, 1, 3), "change"); /* two ranks, one is named */
    refuse(change(KOLO_WORK_ADD_SET, RANKS + 1, 7, 1, 3), "change");
    refuse(change(KOLO_WORK_ADD_SET, 0, 7, 1, 2), "change");
    refuse(change(KOLO_WORK_REMOVE_SET, 0, 0, 0, 2), "change"); /* set 0 stays */
    refuse(change(KOLO_WORK_REMOVE_SET, KOLO_SETS_MAX, 0, 0, 2), "change");
    refuse(change(KOLO_WORK_REMOVE_SET, 1, -1, 0, 2), "change");
    refuse(change(KOLO_WORK_REMOVE_SET, 1, 0, 0, 0), "change");
    add.work = KOLO_WORK_BROADCAST;
    refuse(add, "control");
}

static void a_damaged_message_is_never_half_believed(void **state)
{
    kolo_bytes_t bytes = {NULL, 0, 0};
    kolo_tensor_request_t a = request("a"), b = request("b");
    const kolo_tensor_request_t *list[] = {&a, &b};
    uint64_t s = 99;
    (void)state;
    assert_int_equal(kolo_requests_encode(list, 2, &bytes), KOLO_OK);
    uint8_t *copy = malloc(bytes.length);
    for (int i = 0; i < 20000; i++) {
        seen_t seen = {0};
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(copy, bytes.bytes, bytes.length);
        copy[(s >> 33) % bytes.length] ^= (uint8_t)(1 + (s >> 20) % 255);
        size_t length = i % 3 ? bytes.length : (s >> 45) % bytes.length;
        kolo_status_t status = kolo_requests_decode(copy, length, &alone, RANKS, see, &seen);
        if (status != KOLO_OK) assert_int_equal(seen.count, 0);
        assert_true(status == KOLO_OK || status == KOLO_ERR_PROTOCOL);
    }
    free(copy);
    free(bytes.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_come_out_as_they_went_in),
        cmocka_unit_test(responses_come_out_as_they_went_in),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(changes_of_sets_that_make_no_sense_are_refused),
        cmocka_unit_test(a_damaged_message_is_never_half_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
