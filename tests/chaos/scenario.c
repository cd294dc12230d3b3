/* SPDX-License-Identifier: Apache-2.0
 *
 * What a seed stands for: how many ranks, which wires, what they do, what happens to whom and when.
 */
#include "chaos/chaos.h"

#include <stdio.h>
#include <string.h>

static const char *const wire_names[CHAOS_WIRES] = {"single copy", "shared memory", "tcp"};
static const char *const ending_names[CHAOS_ENDINGS] = {"finalize", "abort", "shrink"};

/* Mostly what the tuner chooses; sometimes algorithms with instructions that small jobs never use otherwise. */
static const char *const algorithms[] = {
    "", "", "", "", "ring", "tree", "one_step", "all_reduce=halving_doubling,all_gather=bruck", "pat", "direct"};

/* A place that may return, for an error; any other for the rest. */
static const char *draw_point(uint64_t *state, kolo_fault_t fault)
{
    size_t n = 0;
    while (kolo_fail_point_at(n)) n++;
    for (;;) {
        const kolo_fail_point_t *p = kolo_fail_point_at((size_t)chaos_below(state, (int)n));
        if (fault != KOLO_FAULT_ERROR || p->returns) return p->name;
    }
}

static void at_moment(chaos_scenario_t *s, uint64_t *state)
{
    static const kolo_fault_t faults[] = {KOLO_FAULT_KILL, KOLO_FAULT_KILL,  KOLO_FAULT_KILL,  KOLO_FAULT_KILL,
                                          KOLO_FAULT_STOP, KOLO_FAULT_STOP,  KOLO_FAULT_RESET, KOLO_FAULT_NOFILE,
                                          KOLO_FAULT_FORK, KOLO_FAULT_NOMEM, KOLO_FAULT_EXIT,  KOLO_FAULT_ORPHAN};
    s->how = CHAOS_AT_MOMENT;
    s->fault = faults[chaos_below(state, (int)(sizeof faults / sizeof faults[0]))];
    int when = chaos_below(state, s->nsteps + 5);
    s->at_progress = when < 3 ? CHAOS_BORN + when : when == s->nsteps + 4 ? CHAOS_ENDING : CHAOS_READY + when - 3;
    s->after_us = chaos_below(state, 1 << chaos_below(state, 15));
}

static void at_point(chaos_scenario_t *s, uint64_t *state)
{
    s->how = CHAOS_AT_POINT;
    s->fault = (kolo_fault_t)(1 + chaos_below(state, KOLO_FAULT_COUNT - 1));
    int hit = 1 + chaos_below(state, 1 << chaos_below(state, 6));
    snprintf(s->rule, sizeof s->rule, "%s:%d:%s", draw_point(state, s->fault), hit, kolo_fault_name(s->fault));
}

/* What becomes of the communicator on the way. */
static void draw_moves(chaos_scenario_t *s, uint64_t *state)
{
    s->grow_at = s->revoke_at = s->exclude_at = s->early_victim = -1;
    if (chaos_below(state, 3) == 0) {
        s->grow_at = chaos_below(state, s->nsteps);
        s->grown = 1 + chaos_below(state, CHAOS_PROCS - CHAOS_RANKS);
        if (chaos_below(state, 4) == 0) s->victim = s->nranks + chaos_below(state, s->grown);
    }
    if (chaos_below(state, 3) == 0) s->revoke_at = chaos_below(state, s->nsteps);
    if (chaos_below(state, 3) == 0) s->exclude_at = chaos_below(state, s->nsteps);
    s->unnamed = chaos_below(state, 2);
}

void chaos_scenario(chaos_scenario_t *s, uint64_t seed, bool net)
{
    uint64_t state = chaos_mix(seed);
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->nranks = 2 + chaos_below(&state, CHAOS_RANKS - 1);
    s->nsteps = 4 + chaos_below(&state, 24);
    s->wires = (chaos_wires_t)chaos_below(&state, CHAOS_WIRES);
    s->ending = (chaos_ending_t)chaos_below(&state, CHAOS_ENDINGS);
    if (s->ending == CHAOS_END_SHRINK && s->nranks < 3) s->ending = CHAOS_END_FINALIZE;
    s->background = chaos_below(&state, 4) == 0;
    s->shrinks = chaos_below(&state, 3) != 0;
    s->destroys = chaos_below(&state, 2) == 0;
    s->victim = chaos_below(&state, s->nranks);
    s->stop_ms = 1 + chaos_below(&state, 1 << chaos_below(&state, 11));
    s->number = 1 << chaos_below(&state, 8);
    snprintf(s->algorithms, sizeof s->algorithms, "%s",
             algorithms[chaos_below(&state, (int)(sizeof algorithms / sizeof algorithms[0]))]);
    int how = chaos_below(&state, 20);
    if (net) {
        s->hosts = 2 + chaos_below(&state, 3);
        if (s->hosts > s->nranks) s->hosts = s->nranks;
    }
    if (how == 0)
        s->how = CHAOS_NO_FAULT;
    else if (how < 10)
        at_moment(s, &state);
    else
        at_point(s, &state);
    if (net && how % 2) {
        at_moment(s, &state);
        s->how = CHAOS_CUT_LINK;
        s->fault = KOLO_FAULT_NONE;
    }
    draw_moves(s, &state);
}

bool chaos_is_deadly(const chaos_scenario_t *s)
{
    return s->how != CHAOS_NO_FAULT && s->how != CHAOS_CUT_LINK &&
           (s->fault == KOLO_FAULT_KILL || s->fault == KOLO_FAULT_EXIT || s->fault == KOLO_FAULT_ORPHAN);
}

bool chaos_is_harmless(const chaos_scenario_t *s)
{
    if (s->after_error) return false;
    return s->how == CHAOS_NO_FAULT ||
           (s->how != CHAOS_CUT_LINK &&
            (s->fault == KOLO_FAULT_STOP || s->fault == KOLO_FAULT_DELAY || s->fault == KOLO_FAULT_FORK));
}

static void print_moment(const chaos_scenario_t *s, char *text, size_t bytes)
{
    static const char *const early[] = {"at birth", "at birth", "while joining", "once it is in"};
    if (s->at_progress <= CHAOS_READY)
        snprintf(text, bytes, "%s + %d us", early[s->at_progress], s->after_us);
    else if (s->at_progress >= CHAOS_ENDING)
        snprintf(text, bytes, "at the end + %d us", s->after_us);
    else
        snprintf(text, bytes, "after %d steps + %d us", s->at_progress - CHAOS_READY, s->after_us);
}

static void print_moves(const chaos_scenario_t *s, char *text, size_t bytes)
{
    int used = 0;
    text[0] = '\0';
    if (s->grow_at >= 0) used += snprintf(text, bytes, ", grow by %d in step %d", s->grown, s->grow_at);
    if (s->revoke_at >= 0) used += snprintf(text + used, bytes - (size_t)used, ", revoke in step %d", s->revoke_at);
    if (s->exclude_at >= 0) snprintf(text + used, bytes - (size_t)used, ", one leaves in step %d", s->exclude_at);
}

void chaos_scenario_print(const chaos_scenario_t *s, char *text, size_t bytes)
{
    char what[400], moment[64], moves[128], hosts[32] = "";
    if (s->hosts) snprintf(hosts, sizeof hosts, " on %d hosts", s->hosts);
    print_moment(s, moment, sizeof moment);
    print_moves(s, moves, sizeof moves);
    if (s->how == CHAOS_NO_FAULT)
        snprintf(what, sizeof what, "no fault");
    else if (s->how == CHAOS_AT_POINT)
        snprintf(what, sizeof what, "rank %d: %s%s%s", s->victim, s->rule, s->early_victim >= 0 ? ", before: " : "",
                 s->early_rule);
    else if (s->how == CHAOS_CUT_LINK)
        snprintf(what, sizeof what, "the link of rank %d's host is cut %s", s->victim, moment);
    else
        snprintf(what, sizeof what, "rank %d: %s %s", s->victim, kolo_fault_name(s->fault), moment);
    snprintf(text, bytes, "%d ranks%s, %s%s%s%s, %d steps%s, then %s; %s; survivors %s%s", s->nranks, hosts,
             wire_names[s->wires], *s->algorithms ? ", " : "", s->algorithms, s->background ? ", non-blocking" : "",
             s->nsteps, moves, ending_names[s->ending], what,
             s->shrinks    ? "shrink"
             : s->destroys ? "destroy"
                           : "abort",
             s->shrinks && s->unnamed ? " without a list" : "");
}
