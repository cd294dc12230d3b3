/* SPDX-License-Identifier: Apache-2.0
 *
 * What decides the way and the blocks of an operation on GPUs: the profile, what was measured, the parameters, and
 * which of them comes first.
 */
#include "base/test.h"
#include "gpu/cuda/cuda.h"

#include <stdio.h>

#define MULTIPROCESSORS 132

static kolo_cuda_state_t state; /* of it, what choosing needs */

static void make(const kolo_exec_tuned_t *tuned, uint32_t nranks)
{
    kolo_cuda_limits(tuned, nranks, &state.limits);
    kolo_cuda_layout(nranks, kolo_cuda_resident(tuned->profile, MULTIPROCESSORS, 1), false, &state.limits,
                     &state.layout);
}

static kolo_cuda_args_t args; /* of the last choice */

static kolo_cuda_family_t choose(kolo_coll_t coll, uint64_t bytes, uint32_t *blocks)
{
    kolo_cuda_family_t family;
    kolo_cuda_grid_t grid;
    kolo_exec_call_t call = {.kind = KOLO_EXEC_COLL, .coll = coll, .count = bytes, .elem = 1};
    assert_int_equal(kolo_reducer_init(&call.reducer, KOLO_UINT8, KOLO_SUM, state.layout.nranks), KOLO_OK);
    assert_int_equal(kolo_cuda_choose(&state, &call, &args, &family, &grid), KOLO_OK);
    *blocks = grid.blocks;
    /* Whole warps, and one thread for each 8 bytes of a short operation, as far as a block has them. */
    assert_int_equal(grid.threads % 32, 0);
    assert_in_range(grid.threads, KOLO_MIN(KOLO_DIV_UP(args.bytes, 8), KOLO_CUDA_THREADS), KOLO_CUDA_THREADS);
    if (family != KOLO_CUDA_LL || grid.blocks > 1) assert_int_equal(grid.threads, KOLO_CUDA_THREADS);
    return family;
}

/* The most blocks of any collective at any length. */
static uint32_t most_blocks(int profile, uint32_t nranks)
{
    uint32_t most = 0, blocks;
    make(&(kolo_exec_tuned_t){.profile = profile}, nranks);
    for (int coll = 0; coll < KOLO_COLL_P2P; coll++) {
        for (uint64_t bytes = 1; bytes <= UINT64_C(1) << 33; bytes *= 2) {
            choose((kolo_coll_t)coll, bytes, &blocks);
            assert_in_range(blocks, 1, KOLO_CUDA_GRID);
            if (blocks > most) most = blocks;
        }
    }
    return most;
}

static void test_compute_leaves_multiprocessors(void **s)
{
    (void)s;
    for (uint32_t n = 2; n <= 8; n *= 2) {
        assert_in_range(most_blocks(KOLO_GPU_COMPUTE, n), 16, MULTIPROCESSORS / 4);
        assert_true(most_blocks(KOLO_GPU_LATENCY, n) >= MULTIPROCESSORS);
    }
}

/* An operation too long for lines leaves half of the multiprocessors, and ways change where they do of latency; but
 * an all_reduce that nothing hides is that of latency, tiles and all. */
static void test_balanced_leaves_half_of_long_operations(void **s)
{
    (void)s;
    for (uint32_t n = 2; n <= 8; n *= 2) {
        for (int c = 0; c < KOLO_COLL_P2P; c++) {
            for (uint64_t bytes = UINT64_C(1) << 12; bytes <= UINT64_C(1) << 33; bytes *= 2) {
                uint32_t blocks, of_latency;
                make(&(kolo_exec_tuned_t){.profile = KOLO_GPU_LATENCY}, n);
                kolo_cuda_family_t family = choose((kolo_coll_t)c, bytes, &of_latency);
                bool piped = args.piped;
                uint32_t tile = args.tile_bytes;
                make(&(kolo_exec_tuned_t){.profile = KOLO_GPU_BALANCED}, n);
                assert_int_equal(choose((kolo_coll_t)c, bytes, &blocks), family);
                bool bare = c == KOLO_COLL_ALL_REDUCE && bytes >= 256 << 20;
                if (bare) assert_int_equal(args.piped, piped);
                if (bare) assert_in_range(args.tile_bytes, tile / 10 * 9, tile / 9 * 10);
                if (!bare && (family == KOLO_CUDA_TWO_STEP || family == KOLO_CUDA_STAGED))
                    assert_in_range(blocks, 1, MULTIPROCESSORS / 2);
                else
                    assert_int_equal(blocks, of_latency);
            }
        }
    }
}

/* Operations of four communicators find room at once: two blocks on each multiprocessor. */
static void test_four_quarters_find_room(void **s)
{
    (void)s;
    for (uint32_t n = 2; n <= 32; n *= 2) {
        assert_true(4 * most_blocks(KOLO_GPU_QUARTER, n) <= 2 * MULTIPROCESSORS);
        assert_true(4 * 2 * (n - 1) * state.layout.message_blocks <= 2 * MULTIPROCESSORS); /* to and from each */
    }
    assert_true(2 * most_blocks(KOLO_GPU_LATENCY, 2) > 2 * MULTIPROCESSORS);
    assert_int_equal(kolo_cuda_resident(KOLO_GPU_QUARTER, 4, 4), KOLO_CUDA_TWO_STEP_ROLES);
}

static void test_measured_before_built_in(void **s)
{
    (void)s;
    uint32_t blocks;
    const kolo_exec_tuned_t tuned = {.ll_all_reduce = 1000, .ll128_all_reduce = 5000, .ll128_others = 9000};
    make(&(kolo_exec_tuned_t){0}, 2);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 2000, &blocks), KOLO_CUDA_LL);
    make(&tuned, 2);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 1000, &blocks), KOLO_CUDA_LL);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 1001, &blocks), KOLO_CUDA_LL128);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 5001, &blocks), KOLO_CUDA_TWO_STEP);
    assert_int_equal(choose(KOLO_COLL_ALL_GATHER, 5001, &blocks), KOLO_CUDA_LL); /* not measured: as built in */
    assert_int_equal(choose(KOLO_COLL_ALL_GATHER, 1 << 20, &blocks), KOLO_CUDA_STAGED);
}

static void test_more_gpus_have_limits_of_their_own(void **s)
{
    (void)s;
    uint32_t blocks;
    make(&(kolo_exec_tuned_t){0}, 2);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 1 << 20, &blocks), KOLO_CUDA_LL128);
    assert_int_equal(args.part_bytes, 0);
    make(&(kolo_exec_tuned_t){0}, 4);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 1 << 20, &blocks), KOLO_CUDA_LL128);
    assert_int_equal(args.part_bytes, ((1 << 20) / 120 + 4) / 4 * 120); /* two steps */
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 64 << 20, &blocks), KOLO_CUDA_TWO_STEP);
    assert_true(args.piped);
    assert_int_equal(choose(KOLO_COLL_BROADCAST, 64 << 20, &blocks), KOLO_CUDA_TWO_STEP);
    assert_false(args.piped);
    make(&(kolo_exec_tuned_t){.ll128_two = 1000, .pipe = 1 << 30}, 4);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 1 << 20, &blocks), KOLO_CUDA_TWO_STEP);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 64 << 20, &blocks), KOLO_CUDA_TWO_STEP);
    assert_false(args.piped);
}

static bool chained(kolo_coll_t coll, kolo_type_t type, uint64_t bytes)
{
    const kolo_cuda_layout_t *l = &state.layout;
    kolo_cuda_family_t family;
    kolo_cuda_grid_t grid;
    size_t elem = kolo_type_size(type);
    kolo_exec_call_t call = {.kind = KOLO_EXEC_COLL, .coll = coll, .count = bytes / elem, .elem = elem};
    assert_int_equal(kolo_reducer_init(&call.reducer, type, KOLO_SUM, l->nranks), KOLO_OK);
    assert_int_equal(kolo_cuda_choose(&state, &call, &args, &family, &grid), KOLO_OK);
    if (family != KOLO_CUDA_CHAIN) return false;
    assert_int_equal(args.hop_bytes % 128, 0);
    assert_in_range(args.hop_bytes, 1024, 65536);
    assert_int_equal(grid.blocks % KOLO_CUDA_TWO_STEP_ROLES, 0);
    assert_true((uint64_t)grid.blocks * KOLO_CUDA_CHAIN_DEPTH * args.hop_bytes <= /* the stages of two phases */
                2ull * l->nranks * l->stage_blocks * KOLO_CUDA_DEPTH * l->tile_bytes);
    return true;
}

/* From neighbour to neighbour sums have an order of their own, and go as elements. */
static void test_chains_only_where_the_order_is_free_and_nothing_is_lost(void **s)
{
    static const int profiles[] = {KOLO_GPU_COMPUTE, KOLO_GPU_BALANCED, KOLO_GPU_LATENCY};
    (void)s;
    make(&(kolo_exec_tuned_t){0}, 4);
    assert_true(chained(KOLO_COLL_REDUCE, KOLO_FLOAT32, 64 << 20));
    assert_true(chained(KOLO_COLL_REDUCE, KOLO_FLOAT64, UINT64_C(8) << 30));
    assert_false(chained(KOLO_COLL_REDUCE, KOLO_FLOAT32, 63 << 20));
    assert_false(chained(KOLO_COLL_ALL_REDUCE, KOLO_FLOAT32, 512 << 20));
    assert_false(chained(KOLO_COLL_REDUCE, KOLO_BFLOAT16, 64 << 20)); /* is rounded once */
    assert_false(chained(KOLO_COLL_REDUCE, KOLO_INT8, 64 << 20));
    state.one_fold = true;
    assert_false(chained(KOLO_COLL_REDUCE, KOLO_FLOAT32, 64 << 20));
    state.one_fold = false;
    for (uint32_t n = 2; n <= 8; n++) {
        make(&(kolo_exec_tuned_t){0}, n);
        for (uint64_t bytes = UINT64_C(1) << 26; bytes <= UINT64_C(1) << 33; bytes *= 2)
            assert_int_equal(chained(KOLO_COLL_REDUCE, KOLO_INT32, bytes), n > 2 || bytes > 96 << 20);
    }
    for (size_t i = 0; i < KOLO_COUNTOF(profiles); i++) {
        make(&(kolo_exec_tuned_t){.profile = profiles[i]}, 4);
        assert_int_equal(chained(KOLO_COLL_REDUCE, KOLO_FLOAT32, 256 << 20), profiles[i] == KOLO_GPU_LATENCY);
    }
}

/* More of them where they pay, and where fewer do, with longer tiles: all stages together stay as large. */
static void test_blocks_by_length(void **s)
{
    (void)s;
    static const struct {
        kolo_coll_t coll;
        uint64_t bytes;
        uint32_t blocks; /* of a role */
    } rows[] = {{KOLO_COLL_BROADCAST, 8 << 20, 64},   {KOLO_COLL_BROADCAST, 16 << 20, 88},
                {KOLO_COLL_BROADCAST, 1 << 30, 32},   {KOLO_COLL_REDUCE, 16 << 20, 16},
                {KOLO_COLL_REDUCE, 256 << 20, 88},    {KOLO_COLL_ALL_REDUCE, 64 << 20, 64},
                {KOLO_COLL_ALL_REDUCE, 256 << 20, 44}};
    uint32_t blocks;
    make(&(kolo_exec_tuned_t){0}, 4);
    const kolo_cuda_layout_t *l = &state.layout;
    assert_int_equal(l->blocks, 2 * MULTIPROCESSORS / KOLO_CUDA_TWO_STEP_ROLES);
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++) {
        assert_int_equal(choose(rows[i].coll, rows[i].bytes, &blocks), KOLO_CUDA_TWO_STEP);
        assert_int_equal(blocks, rows[i].blocks * KOLO_CUDA_TWO_STEP_ROLES);
        assert_int_equal(args.layout.stage_blocks, rows[i].blocks);
        uint64_t room = (uint64_t)l->stage_blocks * l->tile_bytes;
        uint64_t longest = (uint64_t)args.layout.stage_blocks << 16; /* a tile has 64 KB at most */
        assert_in_range((uint64_t)args.layout.stage_blocks * args.layout.tile_bytes,
                        KOLO_MIN(room / 4 * 3, longest), room);
        assert_int_equal(args.piped, rows[i].coll != KOLO_COLL_BROADCAST && rows[i].bytes > 16 << 20);
    }
    make(&(kolo_exec_tuned_t){0}, 2);
    choose(KOLO_COLL_BROADCAST, 1 << 30, &blocks);
    assert_int_equal(blocks, 64 * KOLO_CUDA_TWO_STEP_ROLES);
}

/* Would an all_reduce of so many bytes go by stores alone, its destination so far behind its source? */
static bool gives(kolo_coll_t coll, uint64_t bytes, uint64_t distance)
{
    const kolo_exec_call_t call = {.kind = KOLO_EXEC_COLL, .coll = coll};
    uint32_t blocks;
    choose(coll, bytes, &blocks);
    args.src = UINT64_C(1) << 40;
    args.dst = args.src + distance;
    return kolo_cuda_gives(&state, &call, &args);
}

static void test_all_reduces_between_two_gpus_give_at_every_length(void **s)
{
    static const int profiles[] = {KOLO_GPU_LATENCY, KOLO_GPU_BALANCED, KOLO_GPU_QUARTER};
    (void)s;
    for (size_t i = 0; i < KOLO_COUNTOF(profiles); i++) {
        make(&(kolo_exec_tuned_t){.profile = profiles[i]}, 2);
        for (uint64_t bytes = UINT64_C(1) << 24; bytes <= UINT64_C(1) << 34; bytes *= 2) {
            assert_true(gives(KOLO_COLL_ALL_REDUCE, bytes, bytes));
            assert_false(gives(KOLO_COLL_ALL_REDUCE, bytes, 0)); /* in place */
            assert_false(gives(KOLO_COLL_ALL_REDUCE, bytes, bytes - 16));
            assert_false(gives(KOLO_COLL_REDUCE, bytes, bytes));
        }
        assert_false(gives(KOLO_COLL_ALL_REDUCE, 8 << 20, 8 << 20)); /* loads take less */
    }
}

static void test_all_reduces_give_up_to_a_length_among_more_gpus_and_never_beside_kernels(void **s)
{
    (void)s;
    for (uint32_t n = 2; n <= 8; n *= 2) {
        for (uint64_t bytes = UINT64_C(1) << 24; bytes <= UINT64_C(1) << 34; bytes *= 2) {
            make(&(kolo_exec_tuned_t){.profile = KOLO_GPU_COMPUTE}, n);
            assert_false(gives(KOLO_COLL_ALL_REDUCE, bytes, bytes));
            make(&(kolo_exec_tuned_t){.profile = KOLO_GPU_LATENCY}, n);
            assert_int_equal(gives(KOLO_COLL_ALL_REDUCE, bytes, bytes), n == 2 || bytes <= 128 << 20);
        }
    }
}

/* Each rank sends one part to one other, whatever the number of ranks. */
static void test_a_gather_goes_longer_by_lines(void **s)
{
    (void)s;
    uint32_t blocks;
    make(&(kolo_exec_tuned_t){0}, 4);
    assert_int_equal(choose(KOLO_COLL_GATHER, 2 << 20, &blocks), KOLO_CUDA_LL128);
    assert_int_equal(choose(KOLO_COLL_GATHER, 8 << 20, &blocks), KOLO_CUDA_STAGED);
    assert_int_equal(choose(KOLO_COLL_SCATTER, 2 << 20, &blocks), KOLO_CUDA_STAGED);
}

/* Up to its limit there is no length that goes neither by lines at once nor in pieces of them. */
static void test_a_gather_goes_by_lines_up_to_its_limit(void **s)
{
    (void)s;
    uint32_t blocks;
    for (uint32_t n = 3; n <= 8; n++) {
        make(&(kolo_exec_tuned_t){0}, n);
        for (uint64_t bytes = 1 << 20; bytes <= 12 << 20; bytes += 64 << 10) {
            kolo_exec_call_t call = {.kind = KOLO_EXEC_COLL, .coll = KOLO_COLL_GATHER, .count = bytes, .elem = 1};
            bool lines =
                kolo_cuda_piece(&state, &call) || choose(KOLO_COLL_GATHER, bytes, &blocks) == KOLO_CUDA_LL128;
            assert_int_equal(lines, bytes <= 10 << 20);
        }
    }
}

/* A reduce of three or four: one step by lines, two steps by lines, loads. */
static void test_a_reduce_among_few_goes_in_two_steps_by_lines(void **s)
{
    (void)s;
    uint32_t blocks;
    make(&(kolo_exec_tuned_t){0}, 4);
    assert_int_equal(choose(KOLO_COLL_REDUCE, 512 << 10, &blocks), KOLO_CUDA_LL128);
    assert_int_equal(args.part_bytes, 0);
    assert_int_equal(choose(KOLO_COLL_REDUCE, 2 << 20, &blocks), KOLO_CUDA_LL128);
    assert_in_range(args.part_bytes, (2 << 20) / 3, (2 << 20) / 3 + 120);
    assert_int_equal(choose(KOLO_COLL_REDUCE, 4 << 20, &blocks), KOLO_CUDA_TWO_STEP);
    make(&(kolo_exec_tuned_t){0}, 5);
    assert_int_equal(choose(KOLO_COLL_REDUCE, 2 << 20, &blocks), KOLO_CUDA_TWO_STEP);
}

/* What is longer than the rooms for lines goes in as few pieces as fit, each of which begins as the whole does. */
static void test_pieces_fit_into_the_rooms(void **s)
{
    static const uint64_t lengths[] = {1, 4 << 20, 12 << 20, (48 << 20) - 12, 64 << 20, (64 << 20) + 4};
    (void)s;
    for (uint32_t n = 2; n <= 6; n++) {
        make(&(kolo_exec_tuned_t){0}, n);
        state.limits.ll128_two_reduce = state.limits.ll128_gather = 64 << 20;
        for (size_t i = 0; i < 2 * KOLO_COUNTOF(lengths); i++) {
            kolo_coll_t coll = i % 2 ? KOLO_COLL_REDUCE : KOLO_COLL_GATHER;
            uint64_t bytes = lengths[i / 2], room = kolo_cuda_lines_most(&state) * (i % 2 ? n - 1 : 1);
            kolo_exec_call_t call = {.kind = KOLO_EXEC_COLL, .coll = coll, .count = bytes / 4, .elem = 4};
            uint64_t each = 4 * kolo_cuda_piece(&state, &call);
            bool cut = n > 2 && (coll == KOLO_COLL_GATHER || n <= 4) && bytes > room && bytes <= 64 << 20;
            assert_int_equal(each > 0, cut);
            if (!cut) continue;
            assert_int_equal(each % 128, 0);
            assert_in_range(each, 1, room);
            assert_true(KOLO_DIV_UP(bytes, each) <= KOLO_DIV_UP(bytes, room - 256) + 1);
        }
    }
}

static void test_measured_is_of_the_latency_profile(void **s)
{
    (void)s;
    kolo_cuda_limits_t alone, with;
    kolo_cuda_limits(&(kolo_exec_tuned_t){.profile = KOLO_GPU_COMPUTE}, 2, &alone);
    kolo_cuda_limits(&(kolo_exec_tuned_t){.profile = KOLO_GPU_COMPUTE, .ll128_others = 9000, .give = 7}, 2, &with);
    assert_int_equal(alone.ll128_others, with.ll128_others);
    assert_int_equal(alone.give, with.give);
}

static void test_parameters_come_first(void **s)
{
    (void)s;
    uint32_t blocks;
    kolo_cuda_options_t before = kolo_cuda_options;
    kolo_cuda_options.ll_bytes = 50;
    kolo_cuda_options.ll128_bytes = 60;
    kolo_cuda_options.blocks = 3;
    kolo_cuda_options.give_bytes = 70;
    kolo_cuda_options.message_lines_bytes = 80;
    make(&(kolo_exec_tuned_t){.ll_all_reduce = 1000, .ll128_all_reduce = 2000, .give = 9, .message_lines = 9}, 2);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 51, &blocks), KOLO_CUDA_LL128);
    assert_int_equal(choose(KOLO_COLL_ALL_REDUCE, 1 << 30, &blocks), KOLO_CUDA_TWO_STEP);
    assert_int_equal(blocks, 3 * KOLO_CUDA_TWO_STEP_ROLES);
    assert_int_equal(state.limits.give, 70);
    assert_int_equal(state.layout.message_lines_most, 80);
    kolo_cuda_options = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compute_leaves_multiprocessors),
        cmocka_unit_test(test_balanced_leaves_half_of_long_operations),
        cmocka_unit_test(test_four_quarters_find_room),
        cmocka_unit_test(test_measured_before_built_in),
        cmocka_unit_test(test_more_gpus_have_limits_of_their_own),
        cmocka_unit_test(test_chains_only_where_the_order_is_free_and_nothing_is_lost),
        cmocka_unit_test(test_blocks_by_length),
        cmocka_unit_test(test_all_reduces_between_two_gpus_give_at_every_length),
        cmocka_unit_test(test_all_reduces_give_up_to_a_length_among_more_gpus_and_never_beside_kernels),
        cmocka_unit_test(test_a_gather_goes_longer_by_lines),
        cmocka_unit_test(test_a_gather_goes_by_lines_up_to_its_limit),
        cmocka_unit_test(test_a_reduce_among_few_goes_in_two_steps_by_lines),
        cmocka_unit_test(test_pieces_fit_into_the_rooms),
        cmocka_unit_test(test_measured_is_of_the_latency_profile),
        cmocka_unit_test(test_parameters_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
