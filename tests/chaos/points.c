/* SPDX-License-Identifier: Apache-2.0
 *
 * Every fail point with every fault. First some programs run without a fault and count how often each rank passes
 * each point; then each point meets each fault at a random passage of a random rank that passes it. Points that
 * only the way out of an error passes are reached by an error before. Each meeting draws its own numbers from the
 * seed and its place in the order, so shares (--part) need not know of each other.
 */
#include "chaos/chaos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROFILES     60
#define AFTER_ERRORS 300 /* most programs that are tried with an error or a loss in front */
#define TRIES        12

typedef struct {
    chaos_scenario_t scenario; /* its rule may hold an error that comes first */
    uint32_t hits[CHAOS_PROCS][CHAOS_POINTS];
    bool used, by_error; /* by_error: only the victim's passages count */
    bool by_loss;        /* of the early victim, whose passages do not count */
} profile_t;

typedef struct {
    profile_t profiles[PROFILES + AFTER_ERRORS];
    _Atomic bool reached[CHAOS_POINTS];
} found_t;

typedef struct {
    uint16_t point;
    uint8_t fault;
} meeting_t;

typedef struct {
    uint64_t seed;
    const char *only;
    chaos_table_t *table;
    found_t *found;         /* shared by all workers */
    chaos_shared_t *shared; /* a worker's own */
    meeting_t *meetings;    /* of one round */
    size_t nmeetings;
    uint64_t told_rounds, over;
} work_t;

static size_t npoints(void)
{
    size_t n = 0;
    while (n < CHAOS_POINTS && kolo_fail_point_at(n)) n++;
    return n;
}

static chaos_shared_t *own_share(work_t *w)
{
    if (!w->shared) w->shared = chaos_share(sizeof *w->shared);
    return w->shared;
}

static void tell(const chaos_scenario_t *s, const chaos_verdict_t *v, int point)
{
    chaos_result_t r;
    char words[512];
    bool bad = v->hang || v->wrong || v->leak || v->misnamed;
    chaos_result(&r, s, v, point);
    chaos_result_send(&r);
    if (!bad && !chaos_options.verbose) return;
    chaos_scenario_print(s, words, sizeof words);
    chaos_print_lock(true);
    fprintf(stderr, "chaos: %s, seed %llu:%s%s%s %s\n%s",
            point >= 0 ? kolo_fail_point_at((size_t)point)->name : "counting", (unsigned long long)s->seed,
            v->hang ? " HANG" : "", v->wrong ? " WRONG" : "", v->leak ? " LEAK" : "", words, v->text);
    chaos_print_lock(false);
}

/* ---- who passes what ---- */

static bool counts(const profile_t *p, int proc)
{
    return p->by_error ? proc == p->scenario.victim : proc != p->scenario.early_victim;
}

/* `p` has its scenario. */
static void keep_profile(work_t *w, profile_t *p)
{
    for (int r = 0; r < CHAOS_PROCS; r++)
        for (size_t i = 0; i < npoints(); i++) {
            p->hits[r][i] = counts(p, r) ? atomic_load(&w->shared->ranks[r].hits[i]) : 0;
            if (p->hits[r][i]) atomic_store(&w->found->reached[i], true);
        }
    p->used = true;
}

static bool has_news(const work_t *w, const profile_t *p)
{
    bool news = false;
    for (int r = 0; r < CHAOS_PROCS; r++)
        for (size_t i = 0; i < npoints(); i++)
            news |=
                counts(p, r) && atomic_load(&w->shared->ranks[r].hits[i]) && !atomic_load(&w->found->reached[i]);
    return news;
}

static void count_passages(void *arg, uint64_t i)
{
    work_t *w = arg;
    chaos_verdict_t v;
    chaos_scenario_t s;
    chaos_scenario(&s, w->seed + i, false);
    s.how = CHAOS_NO_FAULT;
    s.fault = KOLO_FAULT_NONE;
    int steps = 4 + s.nsteps / 4, before = s.nsteps;
    s.nsteps = steps;
    if (s.grow_at >= 0) s.grow_at = s.grow_at * steps / before;
    if (s.revoke_at >= 0) s.revoke_at = s.revoke_at * steps / before;
    if (s.exclude_at >= 0) s.exclude_at = s.exclude_at * steps / before;
    if (s.nranks > 5 && i % 4) s.nranks -= 3; /* mostly few ranks: there are many runs */
    s.wires = (chaos_wires_t)(i % CHAOS_WIRES);
    s.ending = s.nranks > 2 ? (chaos_ending_t)(i / CHAOS_WIRES % CHAOS_ENDINGS) : CHAOS_END_FINALIZE;
    chaos_run(&s, own_share(w), &v, true);
    tell(&s, &v, -1);
    w->found->profiles[i].scenario = s;
    keep_profile(w, &w->found->profiles[i]);
}

static bool is_wanted(const work_t *w, size_t i)
{
    return chaos_is_first(i) && chaos_can_meet(i, KOLO_FAULT_KILL) &&
           (!w->only || strstr(kolo_fail_point_at(i)->name, w->only));
}

static bool all_reached(const work_t *w)
{
    for (size_t i = 0; i < npoints(); i++)
        if (is_wanted(w, i) && !atomic_load(&w->found->reached[i])) return false;
    return true;
}

/* A random passage of a random point in a program. */
static void draw_rule(const work_t *w, uint64_t *state, bool error, chaos_scenario_t *s, int *proc, char *rule,
                      size_t bytes)
{
    const profile_t *p;
    size_t at;
    do {
        p = &w->found->profiles[chaos_below(state, PROFILES)];
        at = (size_t)chaos_below(state, (int)npoints());
        *proc = chaos_below(state, chaos_procs(&p->scenario));
    } while ((error && !kolo_fail_point_at(at)->returns) || !p->hits[*proc][at]);
    *s = p->scenario;
    snprintf(rule, bytes, "%.60s:%d:%s", kolo_fail_point_at(at)->name,
             1 + chaos_below(state, (int)p->hits[*proc][at]), error ? "error" : "kill");
}

/* An error or a loss at a random place may lead to points that nothing else passes. */
static void count_after_error(void *arg, uint64_t i)
{
    work_t *w = arg;
    profile_t *p = &w->found->profiles[PROFILES + i];
    chaos_scenario_t *s = &p->scenario;
    chaos_verdict_t v;
    uint64_t state = chaos_mix(w->seed ^ chaos_mix(i + 1));
    if (all_reached(w)) return;
    p->by_error = i % 2;
    p->by_loss = !p->by_error;
    int proc;
    if (p->by_error) {
        draw_rule(w, &state, true, s, &proc, s->rule, sizeof s->rule);
        s->victim = proc;
        s->how = CHAOS_AT_POINT;
        s->fault = KOLO_FAULT_ERROR;
    } else {
        draw_rule(w, &state, false, s, &proc, s->early_rule, sizeof s->early_rule);
        s->early_victim = proc;
        s->victim = proc ? 0 : 1;
        s->shrinks = s->unnamed = s->after_error = true;
    }
    chaos_run(s, own_share(w), &v, true);
    tell(s, &v, -1);
    if (has_news(w, p)) keep_profile(w, p);
}

/* ---- faults ---- */

/* A program and a rank of it that passes the point. */
static const profile_t *find_passage(const work_t *w, size_t point, uint64_t *state, int *rank)
{
    for (int tries = 0; tries < 100000; tries++) {
        const profile_t *p = &w->found->profiles[chaos_below(state, PROFILES + AFTER_ERRORS)];
        if (!p->used) continue;
        *rank = chaos_below(state, chaos_procs(&p->scenario));
        if (p->hits[*rank][point]) return p; /* none of those that do not count */
    }
    return NULL;
}

/* A random passage of the point, among the first ones if `early`; false: none of the programs passes it. */
static bool aim(work_t *w, size_t point, kolo_fault_t fault, uint64_t *state, bool early, chaos_scenario_t *s)
{
    char first[100] = "";
    int r = 0;
    const profile_t *p = find_passage(w, point, state, &r);
    if (!p) return false;
    *s = p->scenario;
    if (p->by_error) snprintf(first, sizeof first, "%.95s,", p->scenario.rule);
    s->how = CHAOS_AT_POINT;
    s->fault = fault;
    s->victim = r;
    if (!p->by_loss) s->shrinks = chaos_below(state, 2);
    s->destroys = chaos_below(state, 2);
    bool holds = fault == KOLO_FAULT_FORK || fault == KOLO_FAULT_ORPHAN; /* for so many milliseconds */
    int passages = (int)p->hits[r][point];
    snprintf(s->rule, sizeof s->rule, "%s%s:%d:%s%s", first, kolo_fail_point_at(point)->name,
             1 + chaos_below(state, early ? (passages + 3) / 4 : passages), kolo_fault_name(fault),
             holds ? ":100" : "");
    if (p->by_error) s->shrinks = false; /* that the error was met says nothing about the others */
    s->number = 1 << chaos_below(state, 8);
    s->stop_ms = 1 + chaos_below(state, 60);
    s->after_error = p->by_error || p->by_loss;
    return true;
}

static void meet(void *arg, uint64_t i)
{
    work_t *w = arg;
    const uint64_t parts = (uint64_t)chaos_options.parts, at = i * parts + (uint64_t)chaos_options.part - 1;
    const meeting_t *m = &w->meetings[at % w->nmeetings];
    uint64_t state = chaos_mix(w->seed + 0x51ed27ull * (at + 1));
    chaos_scenario_t s;
    chaos_verdict_t v = {0};
    for (int tries = 0; tries < TRIES && !v.fired; tries++) { /* threads do not pass in the same order each time */
        if (!aim(w, m->point, (kolo_fault_t)m->fault, &state, tries > 2, &s)) return;
        chaos_run(&s, own_share(w), &v, false);
        tell(&s, &v, m->point);
    }
}

/* One round. Neighbours in the order differ in both, so that a time limit leaves each with about as many. */
static void list_meetings(work_t *w)
{
    size_t n = npoints();
    for (size_t turn = 0; turn < n * KOLO_FAULT_COUNT; turn++) {
        size_t i = turn % n;
        kolo_fault_t fault = (kolo_fault_t)((turn / n + i) % KOLO_FAULT_COUNT);
        if (!is_wanted(w, i) || !chaos_can_meet(i, fault)) continue;
        w->meetings[w->nmeetings++] = (meeting_t){(uint16_t)i, (uint8_t)fault};
    }
}

static void took(void *arg, const chaos_result_t *r)
{
    work_t *w = arg;
    chaos_table_add(w->table, r);
    if (r->point < 0 || !r->fired) return;
    w->over++;
    if (w->over * (uint64_t)chaos_options.parts / w->nmeetings == w->told_rounds) return;
    printf("chaos: round %llu is over\n", (unsigned long long)++w->told_rounds);
    fflush(stdout);
}

bool chaos_points(chaos_table_t *table, uint64_t seed, int times, const char *only, uint64_t end_ns)
{
    work_t w = {.seed = seed, .only = only, .table = table};
    if (npoints() == CHAOS_POINTS) abort(); /* too many for the counters */
    w.found = chaos_share(sizeof *w.found);
    w.meetings = calloc(CHAOS_POINTS * KOLO_FAULT_COUNT, sizeof *w.meetings);
    if (!w.meetings) abort();
    list_meetings(&w);
    if (!w.nmeetings) printf("chaos: there is no point of that name\n");
    printf("chaos: points with seed %llu\n", (unsigned long long)seed);
    uint64_t share = (w.nmeetings * (uint64_t)times + (uint64_t)(chaos_options.parts - chaos_options.part)) /
                     (uint64_t)chaos_options.parts;
    chaos_jobs_t count = {PROFILES, end_ns, 0, count_passages, took, &w};
    chaos_jobs_t after = {AFTER_ERRORS, end_ns, 0, count_after_error, took, &w};
    chaos_jobs_t all = {share, end_ns, 0, meet, took, &w};
    bool fine = w.nmeetings && chaos_jobs_run(&count);
    if (fine && !chaos_options.stopped) fine = chaos_jobs_run(&after);
    if (fine && !chaos_options.stopped) fine = chaos_jobs_run(&all);
    free(w.meetings);
    munmap(w.found, sizeof *w.found);
    return fine;
}
