/* SPDX-License-Identifier: Apache-2.0
 *
 * What the hierarchical executor gives its parts when one of them fails, and that all of them hear of each stream.
 * The parts are made here, and queue nothing.
 */
#include "base/test.h"
#include "gpu/levels/levels.h"
#include "mem/cuda/cuda.h"

#define MANY 100001 /* bytes: in levels, with a rest for the whole */

/* Launches of all parts, of which one fails. */
static struct {
    int launches, fails;
    kolo_status_t status;
    void *streams[3]; /* by part, the last that it was told */
} seen;

static kolo_status_t launch(void *state, const kolo_exec_call_t *calls, size_t n)
{
    const void *told = *(void **)state;
    for (size_t i = 0; i < n; i++) assert_ptr_equal(told, calls[i].stream);
    if (++seen.launches != seen.fails) return KOLO_OK;
    return kolo_fail(seen.status, "launch %d", seen.launches);
}

static kolo_status_t follow(void *state, void *stream)
{
    *(void **)state = stream;
    return KOLO_OK;
}

static void close_part(void *state)
{
    (void)state;
}

static void adopt(void *state, kolo_mem_t *mem)
{
    (void)state;
    kolo_mem_free(mem);
}

static uint64_t enter(void *arg, uint64_t number, uint64_t word)
{
    (void)arg, (void)word;
    return number;
}

static const kolo_exec_ops_t part = {
    .name = "part", .launch = launch, .follow = follow, .close = close_part, .adopt = adopt};

/* The first of two hosts with two ranks each. */
static void *make(void)
{
    static const int first[] = {0, 2}, size[] = {2, 2};
    void *state = NULL;
    kolo_levels_env_t env = {.hosts = 2,
                             .first = first,
                             .size = size,
                             .inside = {&part, &seen.streams[0]},
                             .across = {&part, &seen.streams[1]},
                             .whole = {&part, &seen.streams[2]},
                             .enter = enter};
    if (kolo_levels_make(&env, &state) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return state;
}

static kolo_status_t call(void *state, uint64_t count, void *stream)
{
    kolo_exec_call_t c = {.coll = KOLO_COLL_ALL_REDUCE, .count = count, .elem = 1, .stream = stream};
    assert_int_equal(kolo_reducer_init(&c.reducer, KOLO_UINT8, KOLO_SUM, 4), KOLO_OK);
    seen.launches = 0;
    return kolo_exec_levels.launch(state, &c, 1);
}

static void parts_hear_of_streams(void **state)
{
    void *levels = make(), *a = &levels, *b = state;
    seen.fails = 0;
    assert_int_equal(call(levels, MANY, a), KOLO_OK);
    assert_int_equal(seen.launches, 4);
    for (int i = 0; i < 3; i++) assert_ptr_equal(seen.streams[i], a);
    assert_int_equal(call(levels, 1, b), KOLO_OK);
    assert_int_equal(seen.launches, 1);
    for (int i = 0; i < 3; i++) assert_ptr_equal(seen.streams[i], b);
    kolo_exec_levels.close(levels);
}

/* The communicator has to fail (KOLO_ERR_SYSTEM) where something was queued before. */
static void part_of_a_call_is_a_failure(void **state)
{
    void *levels = make();
    (void)state;
    seen.status = KOLO_ERR_NO_MEMORY;
    for (seen.fails = 1; seen.fails <= 4; seen.fails++) {
        kolo_status_t want = seen.fails == 1 ? KOLO_ERR_NO_MEMORY : KOLO_ERR_SYSTEM;
        assert_int_equal(call(levels, MANY, NULL), want);
        assert_int_equal(seen.launches, seen.fails);
    }
    seen.fails = 1;
    assert_int_equal(call(levels, MANY, NULL), KOLO_ERR_NO_MEMORY); /* nothing is left of the call before */
    seen.fails = 2;
    seen.status = KOLO_ERR_ABORTED;
    assert_int_equal(call(levels, MANY, NULL), KOLO_ERR_ABORTED); /* it has failed already */
    kolo_exec_levels.close(levels);
}

static int start(void **state)
{
    const kolo_param_table_t *const tables[] = {&kolo_cuda_params, kolo_exec_levels.params};
    (void)state;
    return kolo_params_load(tables, KOLO_COUNTOF(tables), NULL, NULL) != KOLO_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_hear_of_streams),
                                       cmocka_unit_test(part_of_a_call_is_a_failure)};
    return cmocka_run_group_tests(tests, start, NULL);
}
