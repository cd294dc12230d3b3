/* SPDX-License-Identifier: Apache-2.0
 *
 * The coordinator's table without ranks: when tensors and groups are ready, in which order, what joins change, and
 * the sentences of its checks.
 */
#include "base/test.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_tensor_request_t request(const char *name)
{
    kolo_tensor_request_t q = {.type = KOLO_FLOAT32, .prescale = 1, .postscale = 1, .ndims = 1, .shape = {8}};
    kolo_name_init(&q.name, name, (uint32_t)strlen(name));
    return q;
}

static void send(kolo_controller_t *c, int rank, const kolo_tensor_request_t *q)
{
    assert_int_equal(kolo_controller_request(c, rank, q), KOLO_OK);
}

static void send_name(kolo_controller_t *c, int rank, const char *name)
{
    kolo_tensor_request_t q = request(name);
    send(c, rank, &q);
}

static void send_join(kolo_controller_t *c, int rank)
{
    kolo_tensor_request_t q = request(KOLO_JOIN_NAME);
    q.work = KOLO_WORK_JOIN;
    send(c, rank, &q);
}

/* The names that are answered, in order, and the list is empty again. */
static void expect_out(kolo_controller_t *c, const char *names)
{
    char got[200] = "";
    assert_int_equal(kolo_controller_finish(c), KOLO_OK);
    for (const kolo_response_t *r = c->out.first; r; r = r->next) {
        const char *name = r->request.name.text[0] == '\1' ? r->request.name.text + 1 : r->request.name.text;
        size_t n = strlen(got);
        snprintf(got + n, sizeof got - n, "%s%s%s", n ? " " : "", name, r->status == KOLO_OK ? "" : "!");
    }
    assert_string_equal(got, names);
    kolo_responses_free(&c->out);
}

static void an_answer_that_does_not_fit_is_not_done(void **state)
{
    int64_t rows[] = {4, 8};
    kolo_tensor_request_t mine = request("a");
    kolo_response_t told = {.request = mine};
    (void)state;
    assert_true(kolo_response_fits(&told, &mine, 1));
    told.request.device = true;
    assert_true(kolo_response_fits(&told, &mine, 1));
    told.request.shape[0] = 9;
    assert_false(kolo_response_fits(&told, &mine, 1));
    told.status = KOLO_ERR_MISMATCH; /* no data are moved */
    assert_true(kolo_response_fits(&told, &mine, 1));
    told.request.work = KOLO_WORK_BROADCAST;
    assert_true(kolo_response_fits(&told, &mine, 1));
    told.request.work = KOLO_WORK_ADD_SET;
    assert_false(kolo_response_fits(&told, &mine, 1));
    told = (kolo_response_t){.request = mine};
    told.request.work = KOLO_WORK_BROADCAST;
    assert_false(kolo_response_fits(&told, &mine, 1));
    mine.work = KOLO_WORK_ALL_GATHER;
    told = (kolo_response_t){.request = mine, .rows = rows};
    told.request.shape[0] = 4; /* the other's */
    assert_true(kolo_response_fits(&told, &mine, 1));
    rows[1] = 7;
    assert_false(kolo_response_fits(&told, &mine, 1));
    told.rows = NULL;
    assert_false(kolo_response_fits(&told, &mine, 1));
    mine.work = told.request.work = KOLO_WORK_BROADCAST;
    told.request.shape[0] = 8;
    told.request.root = 1;
    assert_false(kolo_response_fits(&told, &mine, 1));
}

static void ready_when_all_have_sent(void **state)
{
    kolo_controller_t c;
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 3), KOLO_OK);
    send_name(&c, 0, "a");
    send_name(&c, 0, "b");
    send_name(&c, 1, "b");
    expect_out(&c, "");
    send_name(&c, 2, "b");
    send_name(&c, 2, "a");
    expect_out(&c, "b");
    send_name(&c, 1, "a");
    expect_out(&c, "a");
    send_name(&c, 1, "c");
    kolo_tensor_request_t again = request("c");
    assert_int_equal(kolo_controller_request(&c, 1, &again), KOLO_ERR_PROTOCOL);
    kolo_controller_fini(&c);
}

static void groups_are_ready_as_a_whole(void **state)
{
    kolo_controller_t c;
    kolo_tensor_request_t a = request("a"), b = request("b"), odd = request("a");
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 2), KOLO_OK);
    a.group = b.group = 42;
    a.group_size = b.group_size = 2;
    send(&c, 0, &a);
    send(&c, 0, &b);
    send(&c, 1, &b);
    expect_out(&c, "");
    send(&c, 1, &a);
    expect_out(&c, "b a");
    send(&c, 0, &a); /* rank 1 knows nothing of a group */
    send(&c, 0, &b);
    send(&c, 1, &odd);
    expect_out(&c, "a!");
    odd = request("b");
    send(&c, 1, &odd);
    expect_out(&c, "b!");
    assert_int_equal(c.groups.count, 0);
    kolo_controller_fini(&c);
}

static void joined_ranks_are_not_waited_for(void **state)
{
    kolo_controller_t c;
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 3), KOLO_OK);
    send_name(&c, 1, "b");
    send_name(&c, 1, "a");
    send_name(&c, 2, "b");
    send_name(&c, 2, "a");
    expect_out(&c, "");
    send_join(&c, 0);
    assert_int_equal(kolo_controller_finish(&c), KOLO_OK);
    assert_false(c.out.first->cacheable);
    expect_out(&c, "a b"); /* they become ready together: by name */
    send_name(&c, 2, "c");
    expect_out(&c, "");
    send_join(&c, 1);
    expect_out(&c, "c");
    send_join(&c, 2);
    assert_int_equal(kolo_controller_finish(&c), KOLO_OK);
    assert_int_equal(c.out.first->last_joined, 2);
    expect_out(&c, "join");
    assert_int_equal(c.njoined, 0);
    send_name(&c, 1, "a"); /* all are waited for again */
    expect_out(&c, "");
    kolo_controller_fini(&c);
}

/* ---- sentences ---- */

static void expect_text(int n, const kolo_tensor_request_t *sent, const char *text)
{
    kolo_controller_t c;
    assert_int_equal(kolo_controller_init(&c, n), KOLO_OK);
    for (int r = 0; r < n; r++) send(&c, r, &sent[r]);
    assert_int_equal(c.out.count, 1);
    assert_int_equal(c.out.first->status, KOLO_ERR_MISMATCH);
    assert_string_equal(c.out.first->text, text);
    kolo_controller_fini(&c);
}

static void sentences_name_tensor_ranks_and_values(void **state)
{
    kolo_tensor_request_t s[20];
    (void)state;
    for (int i = 0; i < 20; i++) s[i] = request("layer3.bias");
    s[2].type = KOLO_FLOAT16;
    expect_text(4, s, "tensor layer3.bias: rank 2 sent float16, the others float32");
    s[0].type = KOLO_FLOAT16;
    expect_text(4, s, "tensor layer3.bias: ranks 1, 3 sent float32, the others float16"); /* most: the lowest's */
    s[1].type = KOLO_INT32;
    expect_text(4, s, "tensor layer3.bias: rank 1 sent int32, ranks 0, 2 float16");
    for (int i = 1; i < 20; i++) s[i].type = i % 2 ? KOLO_FLOAT16 : KOLO_FLOAT32;
    s[0].type = KOLO_FLOAT32;
    expect_text(20, s, "tensor layer3.bias: ranks 1, 3, 5, 7, 9, 11 and 4 more sent float16, the others float32");
    expect_text(2, s, "tensor layer3.bias: rank 1 sent float16, rank 0 float32");
}

static void the_first_check_that_fails_speaks(void **state)
{
    kolo_tensor_request_t s[3] = {request("x"), request("x"), request("x")};
    (void)state;
    s[1].root = 2; /* does not matter to an all_reduce */
    s[1].op = KOLO_MIN;
    expect_text(3, s, "tensor x: rank 1 sent operator min, the others operator sum");
    s[1].postscale = 0.25;
    expect_text(3, s, "tensor x: rank 1 sent postscale 0.25, the others postscale 1");
    s[2].shape[0] = 9;
    expect_text(3, s, "tensor x: rank 2 sent shape [9], the others shape [8]");
    s[0].work = KOLO_WORK_ALL_GATHER;
    expect_text(3, s, "tensor x: rank 0 sent all_gather, the others all_reduce");
    s[2].type = KOLO_INT8;
    expect_text(3, s, "tensor x: rank 2 sent int8, the others float32");
}

static void rows_may_differ_where_they_are_gathered(void **state)
{
    kolo_controller_t c;
    kolo_tensor_request_t q = request("g");
    (void)state;
    assert_int_equal(kolo_controller_init(&c, 3), KOLO_OK);
    q.work = KOLO_WORK_ALL_GATHER;
    for (int r = 0; r < 3; r++) {
        q.shape[0] = r + 5;
        send(&c, r, &q);
    }
    assert_int_equal(c.out.first->status, KOLO_OK);
    for (int r = 0; r < 3; r++) assert_int_equal(c.out.first->rows[r], r + 5);
    for (int r = 0; r < 3; r++) { /* each may be, all together may not */
        kolo_tensor_request_t big = request("big");
        big.work = KOLO_WORK_ALL_GATHER;
        big.shape[0] = INT64_C(1) << 44;
        send(&c, r, &big);
    }
    assert_int_equal(c.out.first->next->status, KOLO_ERR_MISMATCH);
    assert_string_equal(c.out.first->next->text, "tensor big: the parts of all ranks together are too large");
    kolo_controller_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_that_does_not_fit_is_not_done),
        cmocka_unit_test(ready_when_all_have_sent),
        cmocka_unit_test(groups_are_ready_as_a_whole),
        cmocka_unit_test(joined_ranks_are_not_waited_for),
        cmocka_unit_test(sentences_name_tensor_ranks_and_values),
        cmocka_unit_test(the_first_check_that_fails_speaks),
        cmocka_unit_test(rows_may_differ_where_they_are_gathered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
