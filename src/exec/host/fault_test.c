/* SPDX-License-Identifier: Apache-2.0
 *
 * What the executor says and does when ranks disagree, die, stop or are late; point-to-point tasks; payloads that a
 * wire puts in place.
 */
#include "base/test.h"
#include "exec/host/fixture.h"
#include "plan/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    fixture_t f;
    fixture_call_t calls[2];
    bool flat;
    uint32_t piece_bytes;
    bool silent; /* rank 1 does nothing */
    int seconds;
    kolo_status_t status[2];
    char text[2][1200];
} two_t;

/* Rank 0 and rank 1 send their SRC to each other. */
static kolo_plan_t *exchange(uint32_t rank, kolo_coll_t coll)
{
    kolo_emit_env_t env = {.nranks = 2, .rank = rank, .nnodes = 1};
    kolo_plan_t *plan;
    kolo_builder_t *b = kolo_builder_open(coll, KOLO_ALGO_DIRECT, &env);
    kolo_builder_grid(b, 1, 1, 1, 1);
    kolo_builder_queue(b, 1, 2);
    kolo_builder_lane(b);
    kolo_builder_send(b, kolo_builder_tx(b, !rank, 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    kolo_builder_lane(b);
    kolo_builder_recv(b, kolo_builder_rx(b, !rank, 0), kolo_seg(KOLO_BUF_DST, 0, 1));
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_OK);
    return plan;
}

static void run_one(void *arg, uint32_t rank)
{
    two_t *w = arg;
    fixture_task_t t;
    if (rank == 1 && w->silent) return;
    const fixture_call_t *call = &w->calls[rank];
    if (w->flat)
        w->status[rank] = fixture_bind_flat(&w->f, &t, rank, KOLO_ALGO_ONE_STEP, call);
    else
        w->status[rank] = fixture_bind_plan(&w->f, &t, exchange(rank, call->coll), call, w->piece_bytes);
    if (w->status[rank] == KOLO_OK) w->status[rank] = fixture_run(&w->f, &t, w->seconds);
    snprintf(w->text[rank], sizeof(w->text[rank]), "%s", kolo_error_text());
    fixture_release(&t);
}

static two_t *open_two(kolo_coll_t a, kolo_coll_t b, uint64_t count_a, uint64_t count_b, bool flat)
{
    two_t *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    fixture_init(&w->f, 2, 2, 1024, 5, false);
    w->flat = flat;
    w->piece_bytes = 1024;
    w->seconds = 5;
    for (int r = 0; r < 2; r++) {
        uint64_t count = r ? count_b : count_a;
        w->calls[r] = (fixture_call_t){.coll = r ? b : a, .count = count, .type = KOLO_FLOAT32, .operation = 7};
        w->calls[r].src = calloc(count * 2 + 1, 8);
        w->calls[r].dst = calloc(count * 2 + 1, 8);
        assert_true(w->calls[r].src && w->calls[r].dst);
    }
    return w;
}

static void close_two(two_t *w)
{
    for (int r = 0; r < 2; r++) {
        free((void *)(uintptr_t)w->calls[r].src);
        free(w->calls[r].dst);
    }
    fixture_fini(&w->f);
    free(w);
}

static void expect_text(const char *text, const char *word)
{
    if (!strstr(text, word)) fail_msg("\"%s\" does not say \"%s\"", text, word);
}

/* At least one rank sees it; who does says both operations and both ranks. */
static void expect_mismatch(two_t *w, const char *first, const char *second)
{
    bool seen = false;
    for (int r = 0; r < 2; r++) {
        if (w->status[r] != KOLO_ERR_MISMATCH) continue;
        seen = true;
        expect_text(w->text[r], "rank 0");
        expect_text(w->text[r], "rank 1");
        expect_text(w->text[r], first);
        expect_text(w->text[r], second);
    }
    assert_true(seen);
}

static void different_counts_are_told_in_words(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++) {
        two_t *w = open_two(KOLO_COLL_ALL_REDUCE, KOLO_COLL_ALL_REDUCE, 100, 77, flat);
        w->seconds = 1;
        fixture_ranks(2, run_one, w);
        expect_mismatch(w, "all_reduce 100 float32 sum", "all_reduce 77 float32 sum");
        close_two(w);
    }
}

static void different_collectives_are_told_in_words(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++) {
        two_t *w = open_two(KOLO_COLL_ALL_GATHER, KOLO_COLL_ALL_REDUCE, 64, 64, flat);
        w->seconds = 1;
        fixture_ranks(2, run_one, w);
        expect_mismatch(w, "all_gather 64", "all_reduce 64");
        close_two(w);
    }
}

/* Rank 0 waits for a part on a line that rank 1's message does not have. */
static void a_shorter_message_of_another_operation_is_noticed(void **state)
{
    (void)state;
    two_t *w = open_two(KOLO_COLL_BARRIER, KOLO_COLL_ALL_TO_ALL, 0, 200, true);
    fixture_ranks(2, run_one, w);
    assert_int_equal(w->status[1], KOLO_ERR_MISMATCH);
    expect_mismatch(w, "barrier", "all_to_all 200");
    close_two(w);
}

static void operations_out_of_step_are_told_by_their_numbers(void **state)
{
    (void)state;
    two_t *w = open_two(KOLO_COLL_ALL_REDUCE, KOLO_COLL_ALL_REDUCE, 8, 8, false);
    w->calls[1].operation = 9;
    fixture_ranks(2, run_one, w);
    expect_mismatch(w, "operation 7", "operation 9");
    close_two(w);
}

static void a_silent_peer_is_named_when_the_deadline_passes(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++) {
        two_t *w = open_two(KOLO_COLL_ALL_REDUCE, KOLO_COLL_ALL_REDUCE, 50, 50, flat);
        w->silent = true;
        w->seconds = 1;
        fixture_ranks(2, run_one, w);
        assert_int_equal(w->status[0], KOLO_ERR_TIMEOUT);
        expect_text(w->text[0], "data from rank 1");
        expect_text(w->text[0], "all_reduce 50 float32 sum");
        expect_text(w->text[0], "operation 7");
        close_two(w);
    }
}

static void a_full_queue_is_named_when_the_deadline_passes(void **state)
{
    (void)state;
    fixture_t f;
    kolo_status_t status = KOLO_OK;
    int sent = 0;
    fixture_init(&f, 2, 2, 1024, 5, false);
    for (; sent < 10 && status == KOLO_OK; sent++) {
        fixture_task_t t = {.task = {.signature = 1, .flat = {.src = "1234", .count = 1, .nranks = 2}}};
        assert_int_equal(kolo_reducer_init(&t.reducer, KOLO_UINT32, KOLO_SUM, 1), KOLO_OK);
        t.task.reducer = &t.reducer;
        t.task.flat.ll_tx = fixture_tx(&f, 0, 1, 0, KOLO_PROTO_LL);
        assert_int_equal(kolo_flat_start_send(&t.task), KOLO_OK);
        status = fixture_run(&f, &t, 1);
    }
    assert_int_equal(status, KOLO_ERR_TIMEOUT);
    assert_int_equal(sent, 5); /* four slots */
    expect_text(kolo_error_text(), "room in the queue to rank 1");
    fixture_fini(&f);
}

static void *abort_soon(void *arg)
{
    two_t *w = arg;
    struct timespec ts = {0, 50 * 1000 * 1000};
    nanosleep(&ts, NULL);
    atomic_store(&w->f.abort, 1);
    return NULL;
}

static void an_abort_ends_the_wait(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++) {
        two_t *w = open_two(KOLO_COLL_ALL_REDUCE, KOLO_COLL_ALL_REDUCE, 50, 50, flat);
        pthread_t thread;
        w->silent = true;
        w->seconds = 60;
        assert_int_equal(pthread_create(&thread, NULL, abort_soon, w), 0);
        fixture_ranks(2, run_one, w);
        pthread_join(thread, NULL);
        assert_int_equal(w->status[0], KOLO_ERR_ABORTED);
        close_two(w);
    }
}

static void a_dead_peer_ends_the_wait_with_its_name(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++) {
        two_t *w = open_two(KOLO_COLL_ALL_REDUCE, KOLO_COLL_ALL_REDUCE, 50, 50, flat);
        w->silent = true;
        w->seconds = 60;
        atomic_store(&w->f.dead[1], true);
        fixture_ranks(2, run_one, w);
        assert_int_equal(w->status[0], KOLO_ERR_REMOTE);
        expect_text(w->text[0], "rank 1 has gone");
        expect_text(w->text[0], "all_reduce 50 float32 sum");
        close_two(w);
    }
}

/* ---- point to point ---- */

static void message(void *arg, uint32_t rank)
{
    fixture_t *f = arg;
    for (uint64_t count = 0; count < 300; count = count * 2 + 1) {
        uint32_t data[300];
        kolo_reducer_t words;
        kolo_task_t t = {.signature = kolo_signature(KOLO_COLL_P2P, KOLO_UINT32, 0, 0, count),
                         .operation = count + 1,
                         .reducer = &words};
        assert_int_equal(kolo_reducer_init(&words, KOLO_UINT32, KOLO_SUM, 1), KOLO_OK);
        t.flat.count = count;
        t.rank = rank;
        t.flat.nranks = 2;
        kolo_rx_t *rx[1];
        for (uint32_t i = 0; i < 300; i++) data[i] = rank ? 0 : i * 77;
        if (rank == 0) {
            t.flat.src = data;
            t.flat.ll_tx = fixture_tx(f, 0, 1, 0, KOLO_PROTO_LL);
            assert_int_equal(kolo_flat_start_send(&t), KOLO_OK);
        } else {
            t.flat.dst = data;
            rx[0] = fixture_rx(f, 1, 0, false, 0, KOLO_PROTO_LL);
            t.flat.ll_rx = rx;
            assert_int_equal(kolo_flat_start_recv(&t), KOLO_OK);
        }
        fixture_task_t holder = {.task = t};
        assert_int_equal(fixture_run(f, &holder, 10), KOLO_OK);
        for (uint32_t i = 0; i < 300; i++) assert_int_equal(data[i], rank == 0 || i < count ? i * 77 : 0);
    }
}

static void flat_messages_arrive_in_order(void **state)
{
    (void)state;
    fixture_t f;
    fixture_init(&f, 2, 2, 1024, (1ull << 32) - 3, false);
    fixture_ranks(2, message, &f);
    fixture_fini(&f);
}

/* Large enough to be posted from the user's memory; the reader announces its own before the data come. */
static void payloads_land_in_place_where_the_wire_can(void **state)
{
    (void)state;
    enum { COUNT = 60001 };
    two_t *w = open_two(KOLO_COLL_ALL_TO_ALL, KOLO_COLL_ALL_TO_ALL, COUNT, COUNT, false);
    fixture_fini(&w->f);
    fixture_init(&w->f, 2, 2, 65536, 5, true);
    w->piece_bytes = 65536;
    for (int r = 0; r < 2; r++)
        for (uint32_t i = 0; i < COUNT; i++) ((uint32_t *)(uintptr_t)w->calls[r].src)[i] = i * 31 + (uint32_t)r;
    fixture_ranks(2, run_one, w);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(w->status[r], KOLO_OK);
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(((uint32_t *)w->calls[r].dst)[i], i * 31 + (uint32_t)!r);
    }
    assert_true(fixture_placed(&w->f) > 0);
    close_two(w);
}

/* ---- single copies ---- */

/* Rank 0 shows its SRC, which rank 1 gets in one lane; in another, rank 1 sends its own. */
static kolo_plan_t *shown_and_sent(uint32_t rank)
{
    kolo_emit_env_t env = {.nranks = 2, .rank = rank, .nnodes = 1};
    kolo_plan_t *plan;
    kolo_builder_t *b = kolo_builder_open(KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_SINGLE_COPY, &env);
    kolo_builder_grid(b, 2, 1, 2, 2);
    kolo_builder_queue(b, 1, 2);
    kolo_builder_lane(b);
    kolo_insn_t *in = kolo_builder_insn(b, rank ? KOLO_OP_GET : KOLO_OP_EXPOSE);
    if (rank) {
        in->rx = kolo_builder_rx(b, 0, 0);
        in->dst = kolo_seg(KOLO_BUF_DST, 0, 1);
    } else {
        in->tx = kolo_builder_tx(b, 1, 0);
        in->src = kolo_seg(KOLO_BUF_SRC, 1, 1);
    }
    kolo_builder_lane(b);
    if (rank)
        kolo_builder_send(b, kolo_builder_tx(b, 0, 0), kolo_seg(KOLO_BUF_SRC, 0, 1));
    else
        kolo_builder_recv(b, kolo_builder_rx(b, 1, 0), kolo_seg(KOLO_BUF_DST, 1, 1));
    assert_int_equal(kolo_builder_finish(b, &plan), KOLO_OK);
    return plan;
}

static void run_shown(void *arg, uint32_t rank)
{
    two_t *w = arg;
    fixture_task_t t;
    w->status[rank] = fixture_bind_plan(&w->f, &t, shown_and_sent(rank), &w->calls[rank], w->piece_bytes);
    if (w->status[rank] == KOLO_OK) w->status[rank] = fixture_run(&w->f, &t, w->seconds);
    if (rank == 0) atomic_store(&w->f.abort, 1);
    fixture_release(&t);
}

static void a_long_copy_holds_up_neither_other_lanes_nor_an_abort(void **state)
{
    (void)state;
    two_t *w = open_two(KOLO_COLL_ALL_TO_ALL, KOLO_COLL_ALL_TO_ALL, 100, 100, false);
    atomic_store(&w->f.endless, true);
    w->seconds = 60;
    for (int i = 0; i < 100; i++) ((uint32_t *)(uintptr_t)w->calls[1].src)[i] = 77;
    fixture_ranks(2, run_shown, w);
    assert_int_equal(w->status[0], KOLO_OK);
    assert_int_equal(((uint32_t *)w->calls[0].dst)[100], 77);
    assert_int_equal(w->status[1], KOLO_ERR_ABORTED);
    close_two(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_copy_holds_up_neither_other_lanes_nor_an_abort),
        cmocka_unit_test(different_counts_are_told_in_words),
        cmocka_unit_test(different_collectives_are_told_in_words),
        cmocka_unit_test(a_shorter_message_of_another_operation_is_noticed),
        cmocka_unit_test(operations_out_of_step_are_told_by_their_numbers),
        cmocka_unit_test(a_silent_peer_is_named_when_the_deadline_passes),
        cmocka_unit_test(a_full_queue_is_named_when_the_deadline_passes),
        cmocka_unit_test(an_abort_ends_the_wait),
        cmocka_unit_test(a_dead_peer_ends_the_wait_with_its_name),
        cmocka_unit_test(flat_messages_arrive_in_order),
        cmocka_unit_test(payloads_land_in_place_where_the_wire_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
