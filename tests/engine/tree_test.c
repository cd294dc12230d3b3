/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree of requests in its parts: sets of ranks, who is where, what its messages take and refuse; and that rank
 * 0's work in a job of thousands of ranks depends on its fan-in and on what is said, not on how many say it.
 */
#include "base/test.h"
#include "engine/kit/simulated.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_tensor_request_t request(const char *name)
{
    kolo_tensor_request_t q = {.type = KOLO_FLOAT32, .prescale = 1, .postscale = 1, .ndims = 2, .shape = {8, 2}};
    kolo_name_init(&q.name, name, (uint32_t)strlen(name));
    return q;
}

/* ---- sets of ranks ---- */

static void ranks_in_any_order_make_runs(void **state)
{
    enum { N = 200 };
    int order[N];
    uint64_t s = 5;
    (void)state;
    for (int round = 0; round < 50; round++) {
        bool in[N + 1] = {false};
        kolo_ranks_t ranks = {NULL, 0, 0, 0};
        for (int i = 0; i < N; i++) {
            s = s * 6364136223846793005ull + 1442695040888963407ull;
            int k = (int)((s >> 33) % (uint64_t)(i + 1));
            order[i] = order[k];
            order[k] = i;
        }
        for (int i = 0; i < N; i++) {
            int r = order[i], next = 0;
            assert_true(kolo_ranks_next(&ranks, r) != r);
            assert_int_equal(kolo_ranks_add(&ranks, (kolo_ranks_run_t){r, r + 1, r < N / 2}), KOLO_OK);
            in[r] = true;
            assert_int_equal(ranks.total, i + 1);
            while (next < N && !in[next]) next++;
            assert_int_equal(kolo_ranks_next(&ranks, 0), next);
            for (next = r + 1; next < N && !in[next];) next++;
            assert_int_equal(kolo_ranks_next(&ranks, r + 1), next < N ? next : INT_MAX);
        }
        assert_int_equal(ranks.count, 2); /* two numbers of rows */
        kolo_ranks_fini(&ranks);
    }
}

/* ---- who is where ---- */

static void check_tree(int nranks, int fan_in)
{
    for (int r = 0; r < nranks; r++) {
        kolo_tree_place_t place = kolo_tree_find(nranks, fan_in, r);
        int end = r + 1;
        assert_int_equal(place.first, r);
        assert_true(place.nchildren <= fan_in);
        assert_int_equal(place.parent < 0, r == 0);
        for (int i = 0; i < place.nchildren; i++) {
            kolo_tree_place_t child = kolo_tree_child(&place, fan_in, i);
            kolo_tree_place_t found = kolo_tree_find(nranks, fan_in, child.first);
            assert_int_equal(child.first, end);
            assert_true(child.end > child.first);
            assert_int_equal(child.parent, r);
            assert_memory_equal(&child, &found, sizeof child);
            end = child.end;
        }
        assert_int_equal(place.end, end);
    }
}

static void every_rank_has_its_place(void **state)
{
    (void)state;
    for (int n = 1; n < 60; n++)
        for (int fan_in = 2; fan_in < 9; fan_in++) check_tree(n, fan_in);
    check_tree(1000, 16);
    check_tree(1000, KOLO_TREE_FAN_IN_MAX);
    int depth = 0;
    for (int r = 9999; r > 0; r = kolo_tree_find(10000, 16, r).parent) depth++;
    assert_true(depth <= 4);
}

/* ---- messages ---- */

#define NRANKS 100
static const kolo_tree_place_t place = {10, 30, 3, 5};

typedef struct {
    int count, runs, total;
    kolo_tensor_request_t last;
    kolo_ranks_run_t seen[40];
} seen_t;

static kolo_status_t see(void *arg, const kolo_tensor_request_t *q, const kolo_ranks_t *ranks)
{
    seen_t *s = arg;
    s->count++;
    s->runs = ranks->count;
    s->total = ranks->total;
    s->last = *q;
    assert_in_range(ranks->count, 1, 40);
    memcpy(s->seen, ranks->runs, (size_t)ranks->count * sizeof s->seen[0]);
    return KOLO_OK;
}

static void add(kolo_merge_t *m, const kolo_tensor_request_t *q, int first, int end)
{
    kolo_ranks_run_t run = {first, end, kolo_tensor_request_rows(q)};
    kolo_ranks_t ranks = {&run, 1, 1, end - first};
    assert_int_equal(kolo_merge_add(m, q, &ranks), KOLO_OK);
}

static void encode(kolo_merge_t *m, const kolo_tree_place_t *from, kolo_bytes_t *bytes)
{
    assert_int_equal(kolo_merge_encode(m, from, bytes), KOLO_OK);
    kolo_merge_fini(m);
}

static void what_all_mean_is_one_record(void **state)
{
    kolo_merge_t m = {NULL, NULL, 0, NULL, 0};
    kolo_bytes_t bytes = {NULL, 0, 0}, one = {NULL, 0, 0};
    kolo_tensor_request_t q = request("layer"), odd = request("layer");
    const kolo_tensor_request_t *alone = &q;
    seen_t seen = {0};
    (void)state;
    for (int r = 10; r < 30; r++) add(&m, &q, r, r + 1);
    encode(&m, &place, &bytes);
    assert_int_equal(kolo_requests_encode(&alone, 1, &one), KOLO_OK);
    assert_true(bytes.length <= one.length + 4);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &place, NRANKS, see, &seen), KOLO_OK);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.seen[0].first, 10);
    assert_int_equal(seen.seen[0].end, 30);
    assert_true(kolo_tensor_request_equal(&seen.last, &q));
    odd.type = KOLO_INT32; /* one of them means it otherwise */
    for (int r = 10; r < 30; r++) add(&m, r == 17 ? &odd : &q, r, r + 1);
    encode(&m, &place, &bytes);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &place, NRANKS, see, &seen), KOLO_OK);
    assert_int_equal(seen.count, 3);
    assert_int_equal(seen.runs, 2);
    assert_int_equal(seen.total, 19);
    assert_int_equal(seen.seen[1].first, 18);
    free(bytes.bytes);
    free(one.bytes);
}

static void rows_of_each_rank_come_along(void **state)
{
    kolo_merge_t m = {NULL, NULL, 0, NULL, 0};
    kolo_bytes_t bytes = {NULL, 0, 0};
    kolo_tensor_request_t q = request("gathered");
    seen_t seen = {0};
    (void)state;
    q.work = KOLO_WORK_ALL_GATHER;
    for (int r = 10; r < 30; r++) {
        q.shape[0] = r < 20 ? 7 : r * r;
        if (r != 15) add(&m, &q, r, r + 1);
    }
    encode(&m, &place, &bytes);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &place, NRANKS, see, &seen), KOLO_OK);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.runs, 12);
    assert_int_equal(seen.last.shape[0], 7);
    assert_int_equal(seen.seen[1].first, 16);
    assert_int_equal(seen.seen[1].rows, 7);
    for (int r = 20; r < 30; r++) assert_int_equal(seen.seen[r - 18].rows, r * r);
    free(bytes.bytes);
}

static void refuse(const kolo_tensor_request_t *q, int first, int end, const kolo_tree_place_t *sender,
                   const char *why)
{
    kolo_merge_t m = {NULL, NULL, 0, NULL, 0};
    kolo_bytes_t bytes = {NULL, 0, 0};
    seen_t seen = {0};
    add(&m, q, first, end);
    encode(&m, sender, &bytes);
    assert_int_equal(kolo_requests_decode(bytes.bytes, bytes.length, &place, NRANKS, see, &seen),
                     KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), why));
    assert_int_equal(seen.count, 0);
    free(bytes.bytes);
}

/* What a rank announces is not what others make room for. */
static void a_list_is_bounded_however_many_ranks_it_speaks_for(void **state)
{
    static const kolo_tree_place_t two = {10, 12, 3, 1}, many = {0, 100000, -1, 16};
    const uint8_t byte = 0;
    seen_t seen = {0};
    (void)state;
    assert_int_equal(kolo_shared_bytes_max(&two), 2 * (uint64_t)KOLO_ENGINE_MESSAGE_MAX);
    assert_int_equal(kolo_shared_bytes_max(&many), KOLO_SHARED_BYTES_MAX);
    assert_int_equal(kolo_requests_decode(&byte, KOLO_SHARED_BYTES_MAX + 1, &many, 100000, see, &seen),
                     KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "too long"));
}

static void ranks_speak_for_those_below_them_only(void **state)
{
    static const kolo_tree_place_t wider = {10, 40, 3, 5}, later = {10, INT_MAX, 3, 5};
    kolo_tensor_request_t q = request("x");
    (void)state;
    refuse(&q, 12, 31, &wider, "does not speak for");
    refuse(&q, 30, 31, &wider, "does not speak for");
    refuse(&q, 11, INT_MAX, &later, "does not speak for");
    q.root = NRANKS;
    refuse(&q, 10, 30, &place, "root");
    q = request("a\tb");
    refuse(&q, 10, 30, &place, "control");
}

static void a_rank_that_sends_twice_is_named(void **state)
{
    kolo_controller_t c;
    kolo_merge_t m = {NULL, NULL, 0, NULL, 0};
    kolo_tensor_request_t q = request("x");
    kolo_ranks_run_t all = {0, 8, 0}, some = {5, 9, 0};
    kolo_ranks_t first = {&all, 1, 1, 8}, again = {&some, 1, 1, 4};
    (void)state;
    assert_int_equal(kolo_merge_add(&m, &q, &first), KOLO_OK);
    assert_int_equal(kolo_merge_add(&m, &q, &again), KOLO_ERR_PROTOCOL);
    assert_string_equal(kolo_error_text(), "engine: rank 5 has sent tensor x twice");
    kolo_merge_fini(&m);
    assert_int_equal(kolo_controller_init(&c, 10), KOLO_OK);
    assert_int_equal(kolo_controller_shared(&c, &q, &first), KOLO_OK);
    q.type = KOLO_INT8;
    assert_int_equal(kolo_controller_shared(&c, &q, &again), KOLO_ERR_PROTOCOL);
    assert_string_equal(kolo_error_text(), "engine: rank 5 has sent tensor x twice");
    kolo_controller_fini(&c);
}

static void a_damaged_message_is_never_half_believed(void **state)
{
    kolo_merge_t m = {NULL, NULL, 0, NULL, 0};
    kolo_bytes_t bytes = {NULL, 0, 0};
    kolo_tensor_request_t a = request("a"), b = request("b");
    uint64_t s = 99;
    (void)state;
    b.work = KOLO_WORK_ALL_TO_ALL;
    add(&m, &a, 10, 30);
    for (int r = 11; r < 29; r += 3) {
        b.shape[0] = r;
        add(&m, &b, r, r + 2);
    }
    encode(&m, &place, &bytes);
    uint8_t *copy = malloc(bytes.length);
    for (int i = 0; i < 20000; i++) {
        seen_t seen = {0};
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(copy, bytes.bytes, bytes.length);
        copy[(s >> 33) % bytes.length] ^= (uint8_t)(1 + (s >> 20) % 255);
        size_t length = i % 3 ? bytes.length : (s >> 45) % bytes.length;
        kolo_status_t status = kolo_requests_decode(copy, length, &place, NRANKS, see, &seen);
        if (status != KOLO_OK) assert_int_equal(seen.count, 0);
        assert_true(status == KOLO_OK || status == KOLO_ERR_PROTOCOL);
    }
    free(copy);
    free(bytes.bytes);
}

/* ---- what rank 0 has to do ---- */

#define MANY    3000
#define TENSORS 40

typedef struct {
    kolo_tensor_request_t usual[TENSORS], odd, *gathered;
    char names[TENSORS][16];
    const kolo_tensor_request_t **order;
    sim_list_t lists[MANY];
} step_t;

/* One rank means tensor 3 otherwise, rank 1234 does not send tensor 5, tensor 7 has other rows on each rank. */
static void make_step(step_t *s, int nranks)
{
    uint64_t seed = 3;
    s->order = calloc((size_t)nranks * TENSORS, sizeof *s->order);
    s->gathered = calloc((size_t)nranks, sizeof *s->gathered);
    assert_true(s->order && s->gathered);
    for (int t = 0; t < TENSORS; t++) {
        snprintf(s->names[t], sizeof s->names[t], "layer%d", t);
        s->usual[t] = request(s->names[t]);
    }
    s->odd = s->usual[3];
    s->odd.type = KOLO_FLOAT16;
    s->usual[7].work = KOLO_WORK_ALL_GATHER;
    for (int r = 0; r < nranks; r++) {
        sim_list_t *list = &s->lists[r];
        *list = (sim_list_t){s->order + (size_t)r * TENSORS, 0};
        s->gathered[r] = s->usual[7];
        s->gathered[r].shape[0] = r;
        for (int t = 0; t < TENSORS; t++) {
            if (t == 5 && r == 1234) continue;
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            size_t at = (seed >> 33) % (list->count + 1);
            list->requests[list->count++] = list->requests[at];
            list->requests[at] = t == 3 && r == 77 ? &s->odd : t == 7 ? &s->gathered[r] : &s->usual[t];
        }
    }
}

static void expect_missing(kolo_controller_t *c, const char *text)
{
    char got[KOLO_ERROR_TEXT_BYTES];
    int *ranks = malloc((size_t)c->nranks * sizeof *ranks);
    assert_non_null(ranks);
    for (int r = 0; r < c->nranks; r++) ranks[r] = r;
    assert_int_equal(c->rows.count, 1);
    c->stall.next_ns = 0; /* long ago */
    for (size_t i = 0; i < c->rows.nbuckets; i++)
        if (c->rows.buckets[i]) ((kolo_row_t *)c->rows.buckets[i])->since_ns = 1;
    assert_true(kolo_stall_look(c, ranks, got, sizeof got));
    assert_memory_equal(got, text, strlen(text));
    free(ranks);
}

static void rank_0_works_for_its_children_only(void **state)
{
    static step_t s;
    kolo_controller_t flat, tree;
    kolo_bytes_t one = {NULL, 0, 0}, other = {NULL, 0, 0};
    sim_cost_t of_flat, of_tree;
    (void)state;
    make_step(&s, MANY);
    assert_int_equal(kolo_controller_init(&flat, MANY), KOLO_OK);
    assert_int_equal(kolo_controller_init(&tree, MANY), KOLO_OK);
    kolo_stall_init(&flat.stall, 0, 1000);
    kolo_stall_init(&tree.stall, 0, 1000);
    assert_int_equal(sim_flat(&flat, s.lists, &one, &of_flat), KOLO_OK);
    assert_int_equal(sim_tree(&tree, 16, s.lists, &other, &of_tree), KOLO_OK);
    assert_int_equal(one.length, other.length);
    assert_memory_equal(one.bytes, other.bytes, one.length);
    assert_non_null(
        memmem(other.bytes, other.length, "tensor layer3: rank 77 sent float16, the others float32", 55));
    expect_missing(&flat, "rank 1234 has not submitted tensor layer5, for which 2999 ranks have waited");
    expect_missing(&tree, "rank 1234 has not submitted tensor layer5, for which 2999 ranks have waited");
    assert_int_equal(of_flat.first.records, (MANY - 1) * TENSORS - 1);
    assert_true(of_tree.first.records <= 16 * TENSORS + 1);
    assert_int_equal(of_tree.first.messages, 16);
    assert_true(of_tree.busiest.messages <= 16);
    assert_true(of_tree.first.bytes * 50 < of_flat.first.bytes);
    kolo_controller_fini(&flat);
    kolo_controller_fini(&tree);
    free(one.bytes);
    free(other.bytes);
    free(s.order);
    free(s.gathered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_any_order_make_runs),
        cmocka_unit_test(every_rank_has_its_place),
        cmocka_unit_test(what_all_mean_is_one_record),
        cmocka_unit_test(rows_of_each_rank_come_along),
        cmocka_unit_test(a_list_is_bounded_however_many_ranks_it_speaks_for),
        cmocka_unit_test(ranks_speak_for_those_below_them_only),
        cmocka_unit_test(a_rank_that_sends_twice_is_named),
        cmocka_unit_test(a_damaged_message_is_never_half_believed),
        cmocka_unit_test(rank_0_works_for_its_children_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
