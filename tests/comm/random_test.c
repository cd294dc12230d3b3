/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs: all ranks draw the same sequence of calls, on a communicator and on a split of it, with and
 * without streams and groups, in place and not, small and large. Every result is looked at. TEST_SEED repeats
 * a run.
 */
#include "kit/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 250
#define BATCH 6 /* calls that may be queued at once */

typedef struct {
    uint64_t seed;
    int steps;
} program_t;

typedef struct { /* one call, with memory of its own until the batch is over */
    int what, root, rank, n;
    size_t count;
    bool in_place;
    int32_t *src, *dst, salt;
} step_t;

enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SHIFT, KINDS };

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* What rank r passes at place i. */
TEST_PLAIN static int32_t given(const step_t *s, int r, size_t i)
{
    return (int32_t)((uint32_t)(r + 1) * 7919u + (uint32_t)i * 31u + (uint32_t)s->salt) % 100003;
}

TEST_PLAIN static int32_t total(const step_t *s, size_t i)
{
    int32_t sum = 0;
    for (int r = 0; r < s->n; r++) sum += given(s, r, i);
    return sum;
}

/* Element i of the result, or what must not change there. */
TEST_PLAIN static int32_t wanted(const step_t *s, size_t i)
{
    size_t part = s->count ? i / s->count : 0, k = s->count ? i % s->count : 0;
    switch (s->what) {
    case ALL_REDUCE:
    case REDUCE:
        return total(s, i);
    case BROADCAST:
        return given(s, s->root, i);
    case ALL_GATHER:
    case GATHER:
        return given(s, (int)part, k);
    case REDUCE_SCATTER:
        return total(s, (size_t)s->rank * s->count + i);
    case ALL_TO_ALL:
        return given(s, (int)part, (size_t)s->rank * s->count + k);
    case SCATTER:
        return given(s, s->root, (size_t)s->rank * s->count + i);
    default:
        return given(s, (s->rank + s->n - 1) % s->n, i);
    }
}

static bool has_result(const step_t *s)
{
    return (s->what != REDUCE && s->what != GATHER) || s->rank == s->root;
}

static size_t src_length(const step_t *s)
{
    bool parts = s->what == REDUCE_SCATTER || s->what == ALL_TO_ALL || s->what == SCATTER;
    return s->count * (parts ? (size_t)s->n : 1);
}

static size_t dst_length(const step_t *s)
{
    bool parts = s->what == ALL_GATHER || s->what == ALL_TO_ALL || s->what == GATHER;
    return s->count * (parts ? (size_t)s->n : 1);
}

/* In place only where src and dst are one range. */
static step_t make(uint64_t *seed, int rank, int n)
{
    static const size_t lengths[] = {0, 1, 2, 7, 100, 1000, 5000, 40000, 150000};
    step_t s = {.rank = rank, .n = n};
    s.what = (int)(draw(seed) % KINDS);
    s.count = lengths[draw(seed) % (sizeof lengths / sizeof lengths[0])];
    if (s.count > 1 && draw(seed) % 2) s.count -= draw(seed) % (s.count / 2);
    s.root = (int)(draw(seed) % (uint64_t)n);
    s.in_place = draw(seed) % 2 && (s.what == ALL_REDUCE || s.what == REDUCE || s.what == BROADCAST);
    s.salt = (int32_t)(draw(seed) % 1000);
    s.src = malloc((src_length(&s) + 1) * sizeof(int32_t));
    s.dst = s.in_place ? s.src : malloc((dst_length(&s) + 1) * sizeof(int32_t));
    for (size_t i = 0; i < dst_length(&s); i++) s.dst[i] = -1;
    for (size_t i = 0; i < src_length(&s); i++) s.src[i] = given(&s, rank, i);
    return s;
}

static void call(const step_t *s, kolo_comm_t comm, void *stream)
{
    const kolo_type_t t = KOLO_INT32;
    switch (s->what) {
    case ALL_REDUCE:
        EXPECT_OK(kolo_all_reduce(s->src, s->dst, s->count, t, KOLO_SUM, comm, stream));
        break;
    case REDUCE:
        EXPECT_OK(kolo_reduce(s->src, s->dst, s->count, t, KOLO_SUM, s->root, comm, stream));
        break;
    case BROADCAST:
        EXPECT_OK(kolo_broadcast(s->src, s->dst, s->count, t, s->root, comm, stream));
        break;
    case ALL_GATHER:
        EXPECT_OK(kolo_all_gather(s->src, s->dst, s->count, t, comm, stream));
        break;
    case REDUCE_SCATTER:
        EXPECT_OK(kolo_reduce_scatter(s->src, s->dst, s->count, t, KOLO_SUM, comm, stream));
        break;
    case ALL_TO_ALL:
        EXPECT_OK(kolo_all_to_all(s->src, s->dst, s->count, t, comm, stream));
        break;
    case GATHER:
        EXPECT_OK(kolo_gather(s->src, s->dst, s->count, t, s->root, comm, stream));
        break;
    case SCATTER:
        EXPECT_OK(kolo_scatter(s->src, s->dst, s->count, t, s->root, comm, stream));
        break;
    default:
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_send(s->src, s->count, t, (s->rank + 1) % s->n, comm, stream));
        EXPECT_OK(kolo_recv(s->dst, s->count, t, (s->rank + s->n - 1) % s->n, comm, stream));
        EXPECT_OK(kolo_group_end());
    }
}

static bool check(const step_t *s)
{
    for (size_t i = 0; has_result(s) && i < dst_length(s); i++)
        if (s->dst[i] != wanted(s, i)) {
            fprintf(stderr, "kind %d, rank %d of %d, root %d, count %zu, %s place: element %zu is %d, not %d\n",
                    s->what, s->rank, s->n, s->root, s->count, s->in_place ? "in" : "out of", i, s->dst[i],
                    wanted(s, i));
            return false;
        }
    return true;
}

static void run_batch(uint64_t *seed, kolo_comm_t comms[2], kolo_stream_t streams[2])
{
    step_t steps[BATCH];
    int n = 1 + (int)(draw(seed) % BATCH), place[2], size[2];
    bool grouped = draw(seed) % 3 == 0, queued = draw(seed) % 2;
    for (int c = 0; c < 2; c++) {
        EXPECT_OK(kolo_comm_user_rank(comms[c], &place[c]));
        EXPECT_OK(kolo_comm_count(comms[c], &size[c]));
    }
    if (grouped) EXPECT_OK(kolo_group_start());
    for (int i = 0; i < n; i++) {
        int c = draw(seed) % 4 == 0, s = (int)(draw(seed) % 3);
        uint64_t own = draw(seed) | 1; /* parts of the split differ in size: their draws must not */
        steps[i] = make(&own, place[c], size[c]);
        call(&steps[i], comms[c], queued && s < 2 ? streams[s] : NULL);
    }
    if (grouped) EXPECT_OK(kolo_group_end());
    for (int s = 0; s < 2; s++) EXPECT_OK(kolo_stream_synchronize(streams[s]));
    for (int i = 0; i < n; i++) {
        EXPECT(check(&steps[i]));
        if (!steps[i].in_place) free(steps[i].dst);
        free(steps[i].src);
    }
}

static void run_program(rank_t *r)
{
    const program_t *p = r->arg;
    uint64_t seed = p->seed;
    kolo_comm_t comms[2] = {r->comm, NULL};
    kolo_stream_t streams[2] = {NULL};
    int before = expect_failures();
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.split_share = (int)(seed / 3 % 2);
    if (!EXPECT_OK(kolo_comm_split(r->comm, r->rank % 2, -r->rank, &comms[1], &config))) return;
    for (int s = 0; s < 2; s++) EXPECT_OK(kolo_stream_create(&streams[s]));
    for (int i = 0; i < p->steps && expect_failures() == before; i++) run_batch(&seed, comms, streams);
    for (int s = 0; s < 2; s++) EXPECT_OK(kolo_stream_destroy(streams[s]));
    end_comm(&comms[1]);
}

static void random_programs_give_right_results(void **state)
{
    (void)state;
    const char *text = getenv("TEST_SEED");
    program_t p = {text ? strtoull(text, NULL, 0) : (now_ms() << 16 ^ (uint64_t)getpid()) | 1,
                   kolo_test_steps(STEPS)};
    for (int n = 1; n <= 5; n += 2) {
        print_message("%d ranks, TEST_SEED=%llu\n", n, (unsigned long long)p.seed);
        assert_int_equal(run_ranks(n, run_program, &p), 0);
    }
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_give_right_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
