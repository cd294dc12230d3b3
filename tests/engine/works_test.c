/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation once, on several numbers of ranks: what it gives, and what callbacks and handles tell.
 */
#include "engine/kit/engines.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- operations ---- */

static void reduce_all_ops(erank_t *r)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_AVG, KOLO_MIN, KOLO_MAX, KOLO_PROD};
    float n = (float)r->size, product = 1;
    for (int i = 1; i <= r->size; i++) product *= (float)i;
    const float want[] = {n * (n + 1) / 2, (n + 1) / 2, 1, n, product};
    for (int round = 0; round < 3; round++) { /* not cached, then cached */
        for (size_t i = 0; i < 5; i++) {
            char name[32];
            float data[7];
            snprintf(name, sizeof name, "op.%zu", i);
            for (int k = 0; k < 7; k++) data[k] = (float)(r->rank + 1);
            EXPECT_OK(reduce_now(r, name, data, 7, ops[i]));
            for (int k = 0; k < 7; k++) EXPECT(data[k] == want[i]);
        }
    }
}

/* Bits and truth values, several of them in one operation. */
static void reduce_bits(erank_t *r)
{
    enum { OPS = 6 };
    static const kolo_op_t ops[OPS] = {KOLO_BAND, KOLO_BOR, KOLO_BXOR, KOLO_LAND, KOLO_LOR, KOLO_LXOR};
    uint16_t words[OPS][2], all = 0xffff, any = 0, odd = 0;
    bool last = false;
    int64_t two = 2, handles[OPS + 1];
    uint8_t truths[2] = {(uint8_t)(r->rank + 1), 0};
    for (int i = 0; i < r->size; i++) {
        uint16_t v = (uint16_t)(0xf0f0u >> i);
        all &= v, any |= v, odd ^= v;
        last = !last;
    }
    for (int i = 0; i < OPS; i++) {
        char name[16];
        snprintf(name, sizeof name, "bits.%d", i);
        words[i][0] = (uint16_t)(0xf0f0u >> r->rank);
        words[i][1] = 0;
        kolo_tensor_t t = {name, KOLO_UINT16, 1, &two, words[i], words[i]};
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, ops[i], 1, 1, NULL, &handles[i]));
    }
    kolo_tensor_t t = {"truths", KOLO_BOOL, 1, &two, truths, truths};
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_MIN, 1, 1, NULL, &handles[OPS]));
    for (int i = 0; i <= OPS; i++) EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
    const uint16_t want[OPS] = {all, any, odd, 1, 1, last};
    for (int i = 0; i < OPS; i++) EXPECT(words[i][0] == want[i] && words[i][1] == 0);
    EXPECT(truths[0] == 1 && truths[1] == 0);
}

static void all_reduce_gives_each_operator(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) assert_int_equal(run_engines(n, NULL, reduce_bits, NULL), 0);
    for (int n = 1; n <= 5; n++) assert_int_equal(run_engines(n, NULL, reduce_all_ops, NULL), 0);
}

/* All but one have said what they have and sleep; the last one wakes them all, in jobs of more than eight by a
 * tree. */
static void wake_in_turn(erank_t *r)
{
    for (int i = 0; i < r->size; i++) {
        char name[32];
        float x = 1;
        int64_t one = 1, handle;
        snprintf(name, sizeof name, "turn.%d", i % 3);
        kolo_tensor_t t = float_tensor(name, &x, &one);
        if (r->rank != i) EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
        meet();
        if (r->rank == i) {
            nap_ms(30);
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
        }
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        EXPECT(x == (float)r->size);
        meet();
    }
}

static void any_rank_wakes_all(void **state)
{
    (void)state;
    assert_int_equal(run_engines(4, NULL, wake_in_turn, NULL), 0);
    assert_int_equal(run_engines(11, NULL, wake_in_turn, NULL), 0);
}

static void scale_both(erank_t *r)
{
    float in[5], out[5];
    int32_t whole[3], sum[3];
    int64_t count = 5, three = 3, handles[2];
    for (int k = 0; k < 5; k++) in[k] = (float)(r->rank + k);
    for (int k = 0; k < 3; k++) whole[k] = 10 * (r->rank + 1) + k;
    kolo_tensor_t t = {"scaled", KOLO_FLOAT32, 1, &count, in, out};
    kolo_tensor_t i = {"scaled.int", KOLO_INT32, 1, &three, whole, sum};
    for (int round = 0; round < 2; round++) {
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 0.5, 4.0, NULL, &handles[0]));
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &i, KOLO_SUM, 0.1, 1.0, NULL, &handles[1]));
        for (int h = 0; h < 2; h++) EXPECT_OK(kolo_engine_wait(r->engine, handles[h], WAIT_MS, NULL));
        int ranks = r->size * (r->size - 1) / 2; /* the sum of their numbers */
        for (int k = 0; k < 5; k++) EXPECT(out[k] == 2.0f * (float)(ranks + k * r->size));
        for (int k = 0; k < 5; k++) EXPECT(in[k] == (float)(r->rank + k)); /* the input stays */
        for (int k = 0; k < 3; k++) EXPECT(sum[k] == r->size * (r->size + 1) / 2);
    }
}

static void scales_come_before_and_after(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) assert_int_equal(run_engines(n, NULL, scale_both, NULL), 0);
}

static void *allocate_output(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)arg, (void)ndims, (void)shape;
    return malloc(bytes + 1);
}

static void gather_rows(erank_t *r)
{
    kolo_submission_t how = {.allocate = allocate_output};
    for (int round = 0; round < 4; round++) { /* rank i brings i rows; in the last round one more */
        int64_t shape[2] = {r->rank + (round == 3), 3}, handle, total = 0;
        int32_t in[64];
        for (int64_t k = 0; k < shape[0] * 3; k++) in[k] = 100 * r->rank + (int)k;
        kolo_tensor_t t = {"rows", KOLO_INT32, 2, shape, in, NULL};
        kolo_completion_t c;
        EXPECT_OK(kolo_engine_all_gather(r->engine, &t, &how, &handle));
        if (!EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c))) return;
        const int32_t *out = c.output;
        EXPECT(c.parts == r->size && c.ndims == 2 && c.shape[1] == 3);
        for (int i = 0; i < r->size; i++) {
            int64_t rows = i + (round == 3);
            EXPECT(c.part_rows[i] == rows);
            for (int64_t k = 0; k < rows * 3; k++) EXPECT(out[total * 3 + k] == 100 * i + (int)k);
            total += rows;
        }
        EXPECT(c.shape[0] == total);
        free(c.output);
    }
}

static void all_gather_takes_differing_rows(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) assert_int_equal(run_engines(n, NULL, gather_rows, NULL), 0);
}

static void broadcast_from_each(erank_t *r)
{
    for (int round = 0; round < 2; round++) {
        for (int root = 0; root < r->size; root++) {
            char name[32];
            double in = 3.5 + root, out = 0;
            int64_t handle;
            snprintf(name, sizeof name, "from.%d", root);
            kolo_tensor_t t = {name, KOLO_FLOAT64, 0, NULL, r->rank == root ? &in : NULL, &out};
            EXPECT_OK(kolo_engine_broadcast(r->engine, &t, root, NULL, &handle));
            EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
            EXPECT(out == 3.5 + root);
        }
    }
}

static void broadcast_reaches_all(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) assert_int_equal(run_engines(n, NULL, broadcast_from_each, NULL), 0);
}

/* Rank r sends r + i rows to rank i. */
static void exchange_rows(erank_t *r)
{
    kolo_submission_t how = {.allocate = allocate_output};
    int64_t splits[8], shape[2] = {0, 2}, handle;
    int32_t in[128];
    for (int i = 0; i < r->size; i++) shape[0] += splits[i] = r->rank + i;
    for (int64_t k = 0; k < shape[0] * 2; k++) in[k] = 1000 * r->rank + (int)k;
    for (int round = 0; round < 3; round++) {
        kolo_tensor_t t = {"exchange", KOLO_INT32, 2, shape, in, NULL};
        kolo_completion_t c;
        EXPECT_OK(kolo_engine_all_to_all(r->engine, &t, splits, &how, &handle));
        if (!EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c))) return;
        const int32_t *out = c.output;
        int64_t at = 0;
        for (int i = 0; i < r->size; i++) {
            int64_t before = 0; /* rows that rank i sends to ranks below me */
            for (int k = 0; k < r->rank; k++) before += i + k;
            EXPECT(c.part_rows[i] == i + r->rank);
            for (int64_t k = 0; k < c.part_rows[i] * 2; k++)
                EXPECT(out[at * 2 + k] == 1000 * i + (int)(before * 2 + k));
            at += c.part_rows[i];
        }
        EXPECT(c.shape[0] == at);
        free(c.output);
    }
}

static void all_to_all_takes_splits(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) assert_int_equal(run_engines(n, NULL, exchange_rows, NULL), 0);
}

static void scatter_rows(erank_t *r)
{
    int64_t rows = 7, shape[2] = {rows, 2}, handle;
    float in[14], out[14];
    for (int k = 0; k < 14; k++) in[k] = (float)(k + r->rank);
    for (int round = 0; round < 3; round++) {
        kolo_tensor_t t = {"scattered", KOLO_FLOAT32, 2, shape, in, out};
        kolo_completion_t c;
        EXPECT_OK(kolo_engine_reduce_scatter(r->engine, &t, KOLO_SUM, round == 2 ? 2.0 : 1.0, 1.0, NULL, &handle));
        if (!EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c))) return;
        int64_t first = 0;
        for (int i = 0; i < r->rank; i++) first += rows / r->size + (i < rows % r->size);
        EXPECT(c.shape[0] == rows / r->size + (r->rank < rows % r->size));
        int ranks = r->size * (r->size - 1) / 2;
        for (int64_t k = 0; k < c.shape[0] * 2; k++)
            EXPECT(out[k] == (round == 2 ? 2.0f : 1.0f) * (float)((first * 2 + k) * r->size + ranks));
    }
}

static void reduce_scatter_cuts_rows(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) assert_int_equal(run_engines(n, NULL, scatter_rows, NULL), 0);
}

/* ---- callbacks, groups, handles ---- */

typedef struct {
    _Atomic int done, good;
    float want;
} tally_t;

static void count_done(void *arg, const kolo_completion_t *c)
{
    tally_t *t = arg;
    const float *out = c->output;
    if (c->status == KOLO_OK && c->ndims == 1 && out[c->shape[0] - 1] == t->want) t->good++;
    t->done++;
}

static void count_one(void *arg, const kolo_completion_t *c)
{
    tally_t *t = arg;
    if (c->status == KOLO_OK && *(const float *)c->output == t->want) t->good++;
    t->done++;
}

static void reduce_group(erank_t *r)
{
    int want = r->size * (r->size + 1) / 2;
    tally_t tally = {.want = (float)want};
    kolo_submission_t how = {.done = count_done, .arg = &tally};
    for (int round = 0; round < 3; round++) {
        kolo_tensor_t tensors[5];
        float data[5][9];
        char names[5][16];
        int64_t count = 9, handles[5];
        for (int i = 0; i < 5; i++) {
            snprintf(names[i], sizeof names[i], "g.%d", i);
            for (int k = 0; k < 9; k++) data[i][k] = (float)(r->rank + 1);
            tensors[i] = float_tensor(names[i], data[i], &count);
        }
        EXPECT_OK(kolo_engine_all_reduce_group(r->engine, tensors, 5, KOLO_SUM, 1, 1, &how, handles));
        for (int i = 0; i < 5; i++) {
            kolo_completion_t c;
            EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, &c));
            EXPECT(c.index == i);
        }
        EXPECT(tally.done == 5 * (round + 1) && tally.good == tally.done);
    }
}

/* One tensor of a cached group comes back with another shape: the whole group is agreed on anew. */
static void change_one_of_a_group(erank_t *r)
{
    for (int64_t round = 0; round < 6; round++) {
        float data[3][8];
        int64_t counts[3] = {4, 2 + round / 2, 3}, handles[3];
        kolo_tensor_t t[3];
        static const char *const names[3] = {"c.0", "c.1", "c.2"};
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < 8; k++) data[i][k] = (float)(i + k);
            t[i] = float_tensor(names[i], data[i], &counts[i]);
        }
        EXPECT_OK(kolo_engine_all_reduce_group(r->engine, t, 3, KOLO_SUM, 1, 1, NULL, handles));
        for (int i = 0; i < 3; i++) EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
        for (int i = 0; i < 3; i++) EXPECT(data[i][counts[i] - 1] == (float)r->size * (float)(i + counts[i] - 1));
    }
}

static void groups_complete_together(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    assert_int_equal(run_engines(3, NULL, reduce_group, NULL), 0);
    assert_int_equal(run_engines(3, NULL, change_one_of_a_group, NULL), 0);
    config.cache_capacity = 3; /* a group that is never cached as a whole */
    assert_int_equal(run_engines(3, &config, reduce_group, NULL), 0);
    config.cache_capacity = 0;
    assert_int_equal(run_engines(3, &config, reduce_group, NULL), 0);
}

static void use_handles(erank_t *r)
{
    int64_t handle, late;
    int complete = 7;
    float x = 1, y = 1;
    int64_t one = 1;
    kolo_tensor_t t = float_tensor("x", &x, &one), u = float_tensor("y", &y, &one);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_poll(r->engine, 123456, &complete), "123456");
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    if (r->rank > 0) meet(); /* rank 0 submits y only after it has seen that it does not complete alone */
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &u, KOLO_SUM, 1, 1, NULL, &late));
    if (r->rank == 0) {
        EXPECT_OK(kolo_engine_poll(r->engine, late, &complete));
        EXPECT(complete == 0);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, late, 20, NULL), "tensor y");
        meet();
    }
    EXPECT_OK(kolo_engine_wait(r->engine, late, WAIT_MS, NULL));
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handle, 5, NULL), "waited for");
    EXPECT(x == (float)r->size && y == (float)r->size);
}

static void handles_poll_and_wait_once(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, use_handles, NULL), 0);
}

/* ---- pace ---- */

static void at_a_pace(erank_t *r)
{
    uint64_t begin = now_ms();
    for (int i = 0; i < 5; i++) {
        float x = 1;
        EXPECT_OK(reduce_now(r, "x", &x, 1, KOLO_SUM));
        EXPECT(x == (float)r->size);
    }
    EXPECT(now_ms() - begin >= 4 * 15);
}

static void a_cycle_time_is_kept(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    config.cycle_time_us = 15000;
    assert_int_equal(run_engines(2, &config, at_a_pace, NULL), 0);
}

/* Callbacks may submit: each completion starts the next, whatever this rank's own thread does. */
typedef struct {
    erank_t *r;
    float x;
    _Atomic int left;
} chain_t;

static void next_link(void *arg, const kolo_completion_t *c)
{
    chain_t *chain = arg;
    static const int64_t one = 1;
    const kolo_submission_t how = {.done = next_link, .arg = chain};
    const kolo_tensor_t t = float_tensor("link", &chain->x, &one);
    EXPECT(c->status == KOLO_OK);
    if (c->name) EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_engine_shutdown(chain->r->engine)); /* not from here */
    if (atomic_fetch_sub(&chain->left, 1) > 1)
        EXPECT_OK(kolo_engine_all_reduce(chain->r->engine, &t, KOLO_MAX, 1, 1, &how, NULL));
}

static void chain_of_callbacks(erank_t *r)
{
    chain_t chain = {r, (float)r->rank, 100};
    const kolo_completion_t first = {.status = KOLO_OK};
    chain.left = 101;
    next_link(&chain, &first);
    for (uint64_t end = now_ms() + WAIT_MS; atomic_load(&chain.left) > 0 && now_ms() < end;) nap_ms(1);
    EXPECT(atomic_load(&chain.left) == 0 && chain.x == (float)(r->size - 1));
    meet();
}

static void callbacks_may_submit(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, chain_of_callbacks, NULL), 0);
}

/* More new tensors at once than a message takes, and than a cache holds. */
static void submit_thousands(erank_t *r)
{
    enum { MANY = 9000 };
    static const int64_t one = 1;
    float *data = malloc(MANY * sizeof *data);
    tally_t tally = {.want = (float)r->size};
    const kolo_submission_t how = {.done = count_one, .arg = &tally};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) {
            char name[32];
            int k = r->rank % 2 ? i : MANY - 1 - i;
            snprintf(name, sizeof name, "many.%d", k);
            data[k] = 1;
            const kolo_tensor_t t = float_tensor(name, &data[k], &one);
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL));
        }
        EXPECT_OK(barrier_now(r));
        for (uint64_t end = now_ms() + WAIT_MS; tally.done < MANY * (round + 1) && now_ms() < end;) nap_ms(1);
        EXPECT(tally.done == MANY * (round + 1) && tally.good == tally.done);
    }
    meet();
    free(data);
}

static void thousands_of_tensors_at_once(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, submit_thousands, NULL), 0);
}

/* ---- life ---- */

static void many_lives(rank_t *r)
{
    for (int i = 0; i < 5; i++) {
        erank_t e = {r->rank, r->nranks, r->comm, NULL, NULL};
        if (!EXPECT_OK(kolo_engine_init(&e.engine, r->comm, NULL))) return;
        float x = 2;
        kolo_engine_place_t place;
        EXPECT_OK(reduce_now(&e, "x", &x, 1, KOLO_SUM));
        EXPECT(x == (float)(2 * r->nranks));
        EXPECT_OK(kolo_engine_get_place(e.engine, &place));
        EXPECT(place.rank == r->rank && place.size == r->nranks && place.local_rank == r->rank &&
               place.local_size == r->nranks && place.cross_rank == 0 && place.cross_size == 1 &&
               place.homogeneous == 1);
        EXPECT_OK(barrier_now(&e)); /* shutdown of one ends it for all: nothing is outstanding now */
        meet();
        EXPECT_OK(kolo_engine_shutdown(e.engine));
        EXPECT(works(r->comm)); /* the caller's communicator is free for him */
    }
}

static void engines_start_and_end_any_number_of_times(void **state)
{
    census_t before = census_take();
    (void)state;
    assert_int_equal(run_ranks(3, many_lives, NULL), 0);
    assert_true(census_no_more_than(before));
}

static void alone(void **state)
{
    kolo_tensor_engine_t e;
    float x = 3;
    (void)state;
    assert_int_equal(kolo_engine_init(&e, NULL, NULL), KOLO_OK); /* no launcher: a job of one */
    erank_t r = {0, 1, NULL, e, NULL};
    assert_int_equal(reduce_now(&r, "x", &x, 1, KOLO_AVG), KOLO_OK);
    assert_true(x == 3);
    assert_int_equal(kolo_engine_shutdown(e), KOLO_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(all_reduce_gives_each_operator),
        cmocka_unit_test(any_rank_wakes_all),
        cmocka_unit_test(scales_come_before_and_after),
        cmocka_unit_test(all_gather_takes_differing_rows),
        cmocka_unit_test(broadcast_reaches_all),
        cmocka_unit_test(all_to_all_takes_splits),
        cmocka_unit_test(reduce_scatter_cuts_rows),
        cmocka_unit_test(groups_complete_together),
        cmocka_unit_test(thousands_of_tensors_at_once),
        cmocka_unit_test(a_cycle_time_is_kept),
        cmocka_unit_test(callbacks_may_submit),
        cmocka_unit_test(handles_poll_and_wait_once),
        cmocka_unit_test(engines_start_and_end_any_number_of_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
