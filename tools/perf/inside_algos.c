/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf --every-algorithm: is the tuner's choice the best one? At each point (collective, size) every algorithm
 * that can run is forced in turn, round by round, in one communicator; the tuner's choice is one of them. Each has
 * its values checked first. Figures are medians of the slowest rank's times.
 */
#include "inside_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 9, MOST_CALLS = 60 }; /* rounds of a point, calls of an algorithm in a round */
#define POINT_US     40e3             /* for one algorithm at one point */
#define HASTY_ROUNDS 3                /* with --seconds */
#define AS_GOOD      1.03

typedef struct {
    kolo_way_t way;
    char force[64];
    bool slow; /* far behind: three rounds are enough */
    int calls, count;
    double us, times[ROUNDS * MOST_CALLS];
} candidate_t;

typedef struct {
    const perf_job_t *job;
    const char *before; /* KOLO_ALGO as the user has it */
    candidate_t list[KOLO_WAYS_MAX];
    int count, chosen;
    int points, good, rounds;
    double point_us, end_us; /* end_us: of this collective; 0: there is time */
    long wrong;
    kolo_tune_table_t table; /* rank 0, with --table */
    kolo_way_t last;         /* at the length before: stays, if it is as good */
    uint64_t last_bytes;
} contest_t;

/* All that run this call when forced; the tuner's own choice is marked. */
static kolo_status_t find_candidates(contest_t *t, perf_coll_t coll, uint64_t count)
{
    kolo_tune_choice_t own, forced;
    perf_inside_force(t->job, t->before);
    KOLO_TRY(perf_inside_choose(t->job, coll, count, &own));
    t->count = 0;
    t->chosen = -1;
    kolo_way_t ways[KOLO_WAYS_MAX];
    size_t n = kolo_way_all(perf_inside_coll(coll), ways);
    for (size_t i = 0; i < n; i++) {
        candidate_t *c = &t->list[t->count];
        snprintf(c->force, sizeof c->force, "%s=%s", perf_coll_names[coll],
                 kolo_way_name(perf_inside_coll(coll), ways[i]));
        perf_inside_force(t->job, c->force);
        KOLO_TRY(perf_inside_choose(t->job, coll, count, &forced));
        if (!kolo_way_is(forced.way, ways[i])) continue;
        c->way = ways[i];
        c->slow = false;
        c->count = 0;
        if (kolo_way_is(forced.way, own.way)) t->chosen = t->count;
        t->count++;
    }
    perf_inside_force(t->job, t->before);
    return t->chosen >= 0
               ? KOLO_OK
               : kolo_fail(KOLO_ERR_INTERNAL, "%s: the tuner's choice cannot be forced", perf_coll_names[coll]);
}

/* Checks the values once and finds out how many calls there is time for. */
static kolo_status_t try_candidate(contest_t *t, candidate_t *c, perf_coll_t coll, perf_buffers_t *b)
{
    long wrong = 0;
    double times[3];
    perf_inside_force(t->job, c->force);
    if (t->job->options->check) KOLO_TRY(perf_check_call(t->job, coll, b, false, &wrong));
    if (wrong && t->job->rank == 0) fprintf(stderr, "kolo-perf: %s: %ld wrong elements\n", c->force, wrong);
    t->wrong += wrong;
    KOLO_TRY(perf_time_calls(t->job, coll, b, false, 1, 3, times));
    KOLO_TRY(perf_slowest_sorted(t->job, times, 3));
    c->us = times[1];
    int iters = t->job->options->iters;
    double calls = iters ? ceil((double)iters / ROUNDS) : t->point_us / t->rounds / (c->us + 1);
    c->calls = (int)KOLO_MIN(KOLO_MAX(calls, 1), MOST_CALLS);
    return KOLO_OK;
}

static kolo_status_t measure_point(contest_t *t, perf_coll_t coll, perf_buffers_t *b)
{
    double best = 1e300;
    for (int i = 0; i < t->count; i++) {
        KOLO_TRY(try_candidate(t, &t->list[i], coll, b));
        best = KOLO_MIN(best, t->list[i].us);
    }
    for (int i = 0; i < t->count; i++) t->list[i].slow = i != t->chosen && t->list[i].us > 3 * best;
    for (int round = 0; round < t->rounds; round++) {
        for (int k = 0; k < t->count; k++) {
            candidate_t *c = &t->list[(k + round) % t->count];
            if (c->slow && round % 3) continue;
            perf_inside_force(t->job, c->force);
            KOLO_TRY(perf_time_calls(t->job, coll, b, false, 2, c->calls, c->times + c->count));
            c->count += c->calls;
        }
    }
    for (int i = 0; i < t->count; i++) {
        candidate_t *c = &t->list[i];
        KOLO_TRY(perf_slowest_sorted(t->job, c->times, c->count));
        c->us = c->times[c->count / 2];
    }
    return KOLO_OK;
}

static void report_point(contest_t *t, perf_coll_t coll, uint64_t bytes)
{
    const candidate_t *own = &t->list[t->chosen], *best = own;
    for (int i = 0; i < t->count; i++)
        if (t->list[i].us < best->us) best = &t->list[i];
    double ratio = own->us / best->us;
    t->points++;
    t->good += ratio <= 1.1;
    if (t->job->rank) return;
    printf("  %-14s %10llu %-18s %10.2f %-18s %10.2f %6.2f%s ", perf_coll_names[coll], (unsigned long long)bytes,
           kolo_way_name(perf_inside_coll(coll), own->way), own->us,
           kolo_way_name(perf_inside_coll(coll), best->way), best->us, ratio, ratio > 1.1 ? " <" : "  ");
    for (int i = 0; i < t->count; i++)
        printf(" %s=%.2f", kolo_way_name(perf_inside_coll(coll), t->list[i].way), t->list[i].us);
    printf("\n");
    fflush(stdout);
}

/* A line of the table where another algorithm than before is the best. */
static kolo_status_t note_point(contest_t *t, perf_coll_t coll, uint64_t bytes)
{
    const candidate_t *best = &t->list[0], *last = NULL;
    for (int i = 0; i < t->count; i++) {
        if (t->list[i].us < best->us) best = &t->list[i];
        if (kolo_way_is(t->list[i].way, t->last)) last = &t->list[i];
    }
    if (t->job->rank || !t->job->options->table) return KOLO_OK;
    if (last && t->last_bytes != UINT64_MAX && last->us <= AS_GOOD * best->us) best = last;
    bool first = t->last_bytes == UINT64_MAX, same = !first && best == last;
    double between = first ? 0 : sqrt((double)t->last_bytes * (double)bytes);
    kolo_tune_row_t row = {perf_inside_coll(coll), (uint32_t)t->job->nranks, (uint64_t)between, best->way};
    t->last = best->way;
    t->last_bytes = bytes;
    return same ? KOLO_OK : perf_table_add_cpu(&t->table, &row);
}

/* Is the time of this collective over, by the clock of rank 0? */
static kolo_status_t is_late(const contest_t *t, bool *late)
{
    double over = t->job->rank == 0 && t->end_us > 0 && perf_now_us() > t->end_us;
    KOLO_TRY(kolo_all_reduce(&over, &over, 1, KOLO_FLOAT64, KOLO_MAX, t->job->host, NULL));
    *late = over > 0;
    return KOLO_OK;
}

static kolo_status_t run_point(contest_t *t, perf_coll_t coll, uint64_t bytes)
{
    perf_buffers_t b;
    kolo_status_t status = perf_buffers_make(t->job, coll, bytes, &b);
    if (status == KOLO_OK) status = find_candidates(t, coll, b.count);
    if (status == KOLO_OK) status = measure_point(t, coll, &b);
    if (status == KOLO_OK) report_point(t, coll, bytes);
    if (status == KOLO_OK)
        status = note_point(t, coll, b.count * (coll == PERF_BARRIER ? 0 : kolo_type_size(t->job->options->type)));
    perf_buffers_free(&b);
    return status;
}

static kolo_status_t run_coll(contest_t *t, perf_coll_t coll)
{
    const perf_options_t *o = t->job->options;
    uint64_t elem = kolo_type_size(o->type), least = KOLO_MAX(o->min_bytes, elem);
    bool late = false;
    t->last_bytes = UINT64_MAX;
    perf_table_drop_cpu(&t->table, perf_inside_coll(coll), (uint32_t)t->job->nranks);
    if (coll == PERF_BARRIER) return run_point(t, coll, 0);
    for (uint64_t bytes = least; bytes <= o->max_bytes && !late; bytes *= o->factor) {
        KOLO_TRY(run_point(t, coll, bytes));
        KOLO_TRY(is_late(t, &late));
    }
    return KOLO_OK;
}

static int wanted_colls(const perf_options_t *o)
{
    int n = 0;
    for (int c = 0; c < PERF_COUNT; c++) n += o->colls[c] && c != PERF_SENDRECV && c != PERF_PUT;
    return n;
}

static kolo_status_t run_points(contest_t *t)
{
    const perf_options_t *o = t->job->options;
    double begin = perf_now_us(), each = wanted_colls(o) ? o->seconds * 1e6 / wanted_colls(o) : 0;
    double sizes = 1 + log((double)o->max_bytes / (double)o->min_bytes) / log((double)o->factor);
    t->rounds = o->seconds ? HASTY_ROUNDS : ROUNDS;
    t->point_us = o->seconds ? KOLO_MIN(POINT_US, each / sizes / 8) : POINT_US;
    for (int c = 0, done = 0; c < PERF_COUNT; c++) {
        if (!o->colls[c] || c == PERF_SENDRECV || c == PERF_PUT)
            continue; /* they have no algorithms to choose from */
        t->end_us = o->seconds ? begin + each * ++done : 0;
        KOLO_TRY(run_coll(t, (perf_coll_t)c));
    }
    return KOLO_OK;
}

int perf_every_algorithm(const perf_job_t *job)
{
    static contest_t contest;
    contest.job = job;
    if (job->nranks < 2) {
        fprintf(stderr, "kolo-perf: --every-algorithm needs 2 ranks or more\n");
        return 2;
    }
    if (job->rank == 0 && job->options->table && perf_table_open(job->options->table, &contest.table) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: %s\n", kolo_error_text());
        return 1;
    }
    contest.before = perf_inside_force(job, NULL);
    if (job->rank == 0)
        printf("# %d ranks, %s; < marks a choice that is more than 10 %% behind\n# %-14s %10s %-18s %10s %-18s "
               "%10s %6s\n",
               job->nranks, perf_type_names[job->options->type], "collective", "bytes", "chosen", "us", "best",
               "us", "ratio");
    kolo_status_t status = run_points(&contest);
    perf_inside_force(job, contest.before);
    if (status == KOLO_OK && job->rank == 0 && job->options->table)
        status = perf_table_save(&contest.table, job->options->table);
    if (status != KOLO_OK) {
        fprintf(stderr, "kolo-perf: rank %d: %s: %s\n", job->rank, kolo_status_string(status), kolo_error_text());
        return 1;
    }
    if (job->rank == 0)
        printf("tuner within 10 %% at %d of %d points (%.1f %%)\n", contest.good, contest.points,
               contest.points ? 100.0 * contest.good / contest.points : 0.0);
    return contest.wrong ? 1 : 0;
}
