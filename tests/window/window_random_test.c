/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on windows, against a scalar reference: in each round every rank draws the same list of puts (who
 * to whom, where, how much, which value) and signals, issues its own, in whatever form, waits for what it is to
 * get, and compares its windows byte by byte with what the list says. TEST_SEED repeats a run.
 */
#include "kit/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS  40
#define WINDOWS 3
#define PUTS    24 /* of a round, of all ranks together */
#define BYTES   300000u

typedef struct { /* one put of the list */
    int from, to, window, signal;
    size_t offset, bytes;
    uint8_t value;
} put_t;

typedef struct {
    uint64_t seed;
    int rounds;
} program_t;

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Places of different puts of a round do not overlap: they have no order. */
static void draw_round(uint64_t *seed, int n, put_t *list)
{
    size_t slot = BYTES / PUTS;
    for (size_t i = 0; i < PUTS; i++) {
        put_t *p = &list[i];
        uint64_t size = draw(seed) % 4;
        p->from = (int)(draw(seed) % (uint64_t)n);
        p->to = (int)(draw(seed) % (uint64_t)n);
        p->window = (int)(draw(seed) % WINDOWS);
        p->signal = (int)(draw(seed) % (KOLO_SIGNALS + 4)); /* KOLO_SIGNALS and up: a put without a signal */
        p->bytes = size == 0 ? 0 : size == 1 ? draw(seed) % 64 : draw(seed) % (slot - 64);
        p->offset = i * slot + draw(seed) % 64;
        p->value = (uint8_t)draw(seed);
    }
}

TEST_PLAIN static uint8_t value_at(const put_t *p, size_t i)
{
    return (uint8_t)(p->value + i * 3);
}

/* What each rank signals at the end of its list, so that all it has put is there. */
#define LAST 0

static void issue(rank_t *r, const put_t *p, kolo_window_t window, uint8_t *src, kolo_stream_t stream)
{
    for (size_t i = 0; i < p->bytes; i++) src[i] = value_at(p, i);
    if (p->signal < KOLO_SIGNALS)
        EXPECT_OK(kolo_put_signal(src, p->bytes, KOLO_UINT8, p->to, window, p->offset, p->signal, r->comm, stream));
    else
        EXPECT_OK(kolo_put(src, p->bytes, KOLO_UINT8, p->to, window, p->offset, r->comm, stream));
}

TEST_PLAIN static void expect_round(const put_t *list, int rank, uint8_t *model[WINDOWS], uint32_t *counts)
{
    for (size_t i = 0; i < PUTS; i++) {
        const put_t *p = &list[i];
        if (p->to != rank) continue;
        for (size_t k = 0; k < p->bytes; k++) model[p->window][p->offset + k] = value_at(p, k);
        if (p->signal < KOLO_SIGNALS) counts[p->from * KOLO_SIGNALS + p->signal]++;
    }
}

typedef struct {
    kolo_window_t window[WINDOWS];
    uint8_t *base[WINDOWS], *model[WINDOWS], *src;
    uint32_t *counts;
    kolo_signal_wait_t *waits;
    kolo_stream_t stream;
} mine_t;

static int fill_waits(mine_t *m, int n)
{
    int nwaits = 0;
    for (int p = 0; p < n; p++) {
        m->counts[p * KOLO_SIGNALS + LAST]++;
        for (int s = 0; s < KOLO_SIGNALS; s++) {
            uint32_t *count = &m->counts[p * KOLO_SIGNALS + s];
            if (*count) m->waits[nwaits++] = (kolo_signal_wait_t){p, s, *count};
            *count = 0;
        }
    }
    return nwaits;
}

/* How: one by one, in a group, on a stream, in a group on a stream; each rank as it likes. */
static void run_round(rank_t *r, mine_t *m, const put_t *list, unsigned how)
{
    kolo_stream_t stream = how & 1 ? m->stream : NULL;
    uint8_t *src = m->src;
    expect_round(list, r->rank, m->model, m->counts);
    int nwaits = fill_waits(m, r->nranks);
    if (how & 2) EXPECT_OK(kolo_group_start());
    if ((how & 6) == 6) EXPECT_OK(kolo_wait_signal(m->waits, nwaits, r->comm, stream));
    for (size_t i = 0; i < PUTS; i++) {
        if (list[i].from != r->rank) continue;
        issue(r, &list[i], m->window[list[i].window], src, stream);
        src += list[i].bytes; /* those that are queued keep theirs */
    }
    for (int p = 0; p < r->nranks; p++) EXPECT_OK(kolo_signal(p, LAST, r->comm, stream));
    if ((how & 6) != 6) EXPECT_OK(kolo_wait_signal(m->waits, nwaits, r->comm, stream));
    if (how & 2) EXPECT_OK(kolo_group_end());
    if (stream) EXPECT_OK(kolo_stream_synchronize(stream));
    for (int w = 0; w < WINDOWS; w++)
        if (!EXPECT(memcmp(m->base[w], m->model[w], BYTES) == 0)) return;
}

static void run_program(rank_t *r)
{
    const program_t *program = r->arg;
    uint64_t seed = program->seed, own = program->seed + (uint64_t)r->rank * 7919 + 1;
    mine_t m = {.src = malloc(BYTES * 2),
                .counts = calloc((size_t)r->nranks * KOLO_SIGNALS, sizeof *m.counts),
                .waits = calloc((size_t)r->nranks * KOLO_SIGNALS, sizeof *m.waits)};
    uint8_t *users = calloc(1, BYTES);
    put_t list[PUTS];
    EXPECT_OK(kolo_stream_create(&m.stream));
    for (int w = 0; w < WINDOWS; w++) {
        m.model[w] = calloc(1, BYTES);
        /* the first is the caller's; another one is that on some ranks only */
        bool kolo = w == 1 || (w == 2 && r->rank % 2);
        void *base;
        uint8_t *buf = kolo ? NULL : w == 0 ? users : calloc(1, BYTES);
        EXPECT_OK(kolo_window_register(r->comm, buf, BYTES, &m.window[w]));
        EXPECT_OK(kolo_window_memory(r->comm, m.window[w], &base, NULL));
        m.base[w] = base;
    }
    for (int round = 0; round < program->rounds; round++) {
        draw_round(&seed, r->nranks, list);
        run_round(r, &m, list, (unsigned)draw(&own) % 8);
        EXPECT_OK(kolo_barrier(r->comm, NULL)); /* the next round's puts come after all have looked */
    }
    for (int w = 0; w < WINDOWS; w++) {
        EXPECT_OK(kolo_window_deregister(r->comm, m.window[w]));
        free(m.model[w]);
        if (w == 2 && r->rank % 2 == 0) free(m.base[w]);
    }
    EXPECT_OK(kolo_stream_destroy(m.stream));
    free(users);
    free(m.src);
    free(m.counts);
    free(m.waits);
}

static void random_programs_do_what_their_list_says(void **state)
{
    const char *given = getenv("TEST_SEED");
    program_t program = {given ? strtoull(given, NULL, 0) : ((uint64_t)getpid() << 20 ^ now_ms()) | 1,
                         kolo_test_steps(ROUNDS)};
    (void)state;
    for (int n = 1; n <= 5; n++) {
        print_message("seed %llu, %d ranks\n", (unsigned long long)program.seed, n);
        assert_int_equal(run_ranks(n, run_program, &program), 0);
        program.seed += 2;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_do_what_their_list_says)};
    limit_s(110);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
