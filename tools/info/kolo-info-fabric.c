/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info --explain --fabric: what a collective would take on many machines of a kind, joined by switches. Every
 * algorithm that can run there is emitted for all ranks, on one lane and on as many as a machine has cards, and
 * simulated (prove); the fastest is named, and what the others have too much of.
 */
#include "algo/algo.h"
#include "base/clock.h"
#include "kolo-info-machine.h"
#include "kolo-info.h"
#include "prove/verify.h"
#include "prove/walk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a machine costs apart from its cards: guessed, not measured, and the same for all algorithms. */
#define LATENCY_US       4.0 /* of a slot between hosts, without switches */
#define LOCAL_LATENCY_US 0.3
#define LOCAL_GBPS       20.0
#define INSN_US          0.05
#define SWITCH_US        0.3
#define MOST_STEPS       60000000.0 /* of one simulation; more takes minutes */
#define MOST_CONNS       6000000.0

typedef struct {
    info_machine_t machine;
    kolo_sim_fabric_t fabric;
    double gbps[INFO_MAX_CARDS];
    uint32_t close[INFO_MAX_LOCAL * INFO_MAX_CARDS], nclose[INFO_MAX_LOCAL];
    kolo_topo_search_t search;
    uint32_t nranks;
} world_t;

typedef struct {
    kolo_algo_t algo;
    uint32_t lanes;
    bool left_out;
    kolo_sim_result_t result;
} prediction_t;

/* ---- the world ---- */

static bool parse(world_t *w, const char *options)
{
    char text[512], *save, *word;
    snprintf(text, sizeof text, "%s", options);
    char *file = strtok_r(text, ",", &save);
    w->fabric.oversubscription = 1;
    w->fabric.switch_us = SWITCH_US;
    while ((word = strtok_r(NULL, ",", &save))) {
        char *end = NULL;
        if (strcmp(word, "rails") == 0) {
            w->fabric.rails = true;
            continue;
        }
        if (strncmp(word, "pod=", 4) == 0) w->fabric.pod_nodes = (uint32_t)strtoul(word + 4, &end, 10);
        if (strncmp(word, "over=", 5) == 0) w->fabric.oversubscription = strtod(word + 5, &end);
        if (end && *end == '\0' && w->fabric.oversubscription >= 1) continue;
        fprintf(stderr, "kolo-info: --fabric FILE[,rails][,pod=N][,over=X]: '%s' is none of these\n", word);
        return false;
    }
    if (file && kolo_topo_import_file(&w->machine.topo, file) == KOLO_OK) return true;
    fprintf(stderr, "kolo-info: %s\n", file ? kolo_error_text() : "--fabric needs a file");
    return false;
}

static bool describe(world_t *w, const kolo_emit_env_t *env)
{
    info_machine_t *m = &w->machine;
    uint32_t nlocal = env->nranks / env->nnodes;
    if (nlocal * env->nnodes != env->nranks || nlocal > INFO_MAX_LOCAL) {
        fprintf(stderr, "kolo-info: --fabric: %u ranks are not spread evenly over %u nodes, at most %d on each\n",
                env->nranks, env->nnodes, INFO_MAX_LOCAL);
        return false;
    }
    kolo_info_machine_place(m, (int)nlocal);
    if (m->ncards == 0) {
        fprintf(stderr, "kolo-info: --fabric: %s has no network card\n", m->topo.source);
        return false;
    }
    for (int c = 0; c < m->ncards; c++) {
        int64_t mbps = m->topo.nodes[m->cards[c]].link_mbps;
        w->gbps[c] = mbps > 0 ? (double)mbps / 8000 : 12.5;
    }
    for (int r = 0; r < m->nlocal; r++)
        w->nclose[r] = (uint32_t)kolo_info_close_cards(m, r, &w->close[r * m->ncards]);
    w->fabric.cards = (uint32_t)m->ncards;
    w->fabric.card_gbps = w->gbps;
    w->fabric.nlocal = (uint32_t)m->nlocal;
    w->fabric.close = w->close;
    w->fabric.nclose = w->nclose;
    return true;
}

/* Rings over all ranks, one for each card of a machine. */
static bool search(world_t *w, const kolo_emit_env_t *env)
{
    const info_machine_t *m = &w->machine;
    uint32_t nnics = env->nnodes * (uint32_t)m->ncards;
    kolo_topo_place_t *places = malloc((env->nranks + nnics) * sizeof *places), *nics = places + env->nranks;
    if (!places) return false;
    for (uint32_t r = 0; r < env->nranks; r++)
        places[r] = kolo_info_rank_place(m, (int)(r % (uint32_t)m->nlocal), env->node_of[r]);
    for (uint32_t i = 0; i < nnics; i++)
        nics[i] = kolo_topo_place(&m->topo, m->cards[i % (uint32_t)m->ncards], (int)(i / (uint32_t)m->ncards));
    kolo_status_t status = kolo_topo_search(places, (int)env->nranks, m->ncards, nics, (int)nnics, &w->search);
    free(places);
    if (status != KOLO_OK) fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
    return status == KOLO_OK;
}

/* ---- predictions ---- */

static double steps_of(const kolo_plan_t *plan)
{
    kolo_cursor_t at;
    double n = 0;
    for (uint32_t l = 0; l < plan->nlanes; l++)
        for (kolo_cursor_start(&at); kolo_cursor_at(&at, plan, l); kolo_cursor_next(&at))
            if (++n > MOST_STEPS) return n;
    return n;
}

static kolo_status_t emit_all(const world_t *w, const kolo_emit_env_t *base, kolo_coll_t coll, prediction_t *p,
                              uint64_t bytes, uint32_t slot_bytes, kolo_plan_t **plans)
{
    kolo_emit_env_t env = *base;
    env.lanes = p->lanes;
    env.rings = w->search.ring;
    env.nrings = p->lanes;
    for (env.rank = 0; env.rank < env.nranks; env.rank++) {
        KOLO_TRY(kolo_algo_emit(coll, p->algo, &env, &plans[env.rank]));
        const kolo_plan_t *plan = plans[env.rank];
        if (env.rank > 0) continue;
        double tiles = (double)bytes / ((double)plan->slices * slot_bytes * plan->nparts * plan->nsubs);
        p->left_out = steps_of(plan) * KOLO_MAX(tiles, 1.0) * env.nranks > MOST_STEPS ||
                      (double)plan->nconns * env.nranks > MOST_CONNS;
        if (p->left_out) return KOLO_OK;
    }
    return KOLO_OK;
}

static kolo_status_t predict(const world_t *w, const kolo_emit_env_t *env, kolo_coll_t coll, uint64_t count,
                             uint32_t elem_bytes, uint32_t slot_bytes, prediction_t *p)
{
    const kolo_sim_machine_t machine = {.local = {LOCAL_LATENCY_US, LOCAL_GBPS},
                                        .remote = {LATENCY_US, w->gbps[0]},
                                        .copy_gbps = LOCAL_GBPS,
                                        .insn_us = INSN_US,
                                        .slot_bytes = slot_bytes,
                                        .fabric = &w->fabric};
    kolo_plan_t **plans = calloc(env->nranks, sizeof *plans);
    if (!plans) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the plans of %u ranks", env->nranks);
    kolo_status_t status = emit_all(w, env, coll, p, count * elem_bytes, slot_bytes, plans);
    if (status == KOLO_OK && !p->left_out)
        status = kolo_prove_simulate(&(kolo_sim_case_t){(const kolo_plan_t *const *)plans, env->nranks,
                                                        env->node_of, count, elem_bytes, &machine},
                                     &p->result);
    for (uint32_t r = 0; r < env->nranks; r++)
        if (plans[r]) kolo_plan_free(plans[r]);
    free(plans);
    return status;
}

static int by_time(const void *a, const void *b)
{
    const prediction_t *x = a, *y = b;
    if (x->left_out != y->left_out) return x->left_out ? 1 : -1;
    return (x->result.time_us > y->result.time_us) - (x->result.time_us < y->result.time_us);
}

/* Rings take the lanes that they are given, the others have what they need. */
static int name_of(const prediction_t *p, char *text, size_t bytes)
{
    if (p->algo != KOLO_ALGO_RING) return snprintf(text, bytes, "%s", kolo_plan_algo_name(p->algo));
    return snprintf(text, bytes, "%s on %u lane%s", kolo_plan_algo_name(p->algo), p->lanes,
                    p->lanes == 1 ? "" : "s");
}

/* Why the second is not the first: more through the busiest card, more between switches, or else more steps. */
static void explain(const prediction_t *best, const prediction_t *next)
{
    char a[64], b[64];
    const kolo_sim_result_t *x = &best->result, *y = &next->result;
    name_of(best, a, sizeof a);
    name_of(next, b, sizeof b);
    printf("on this fabric: %s, %.2f times faster than %s", a, y->time_us / x->time_us, b);
    if ((double)y->max_link_bytes > 1.2 * (double)x->max_link_bytes)
        printf(", whose busiest card carries %.1f times as much",
               (double)y->max_link_bytes / (double)x->max_link_bytes);
    else if ((double)y->spine_bytes > 1.2 * (double)x->spine_bytes + 1)
        printf(", which sends %.1f MB more between leaf switches", (double)(y->spine_bytes - x->spine_bytes) / 1e6);
    else
        printf(": their cards carry about the same, its way is shorter");
    putchar('\n');
}

static void print_table(prediction_t *p, int n)
{
    char name[64];
    qsort(p, (size_t)n, sizeof *p, by_time);
    for (int i = 0; i < n; i++) {
        name_of(&p[i], name, sizeof name);
        if (p[i].left_out)
            printf("  %-34s not simulated: too many steps\n", name);
        else
            printf("  %-34s %12.1f us, busiest card %.3f MB, between leaf switches %.1f MB\n", name,
                   p[i].result.time_us, (double)p[i].result.max_link_bytes / 1e6,
                   (double)p[i].result.spine_bytes / 1e6);
    }
    if (n > 1 && !p[1].left_out) explain(&p[0], &p[1]);
}

static int predict_all(world_t *w, const kolo_emit_env_t *env, kolo_coll_t coll, uint64_t count,
                       uint32_t elem_bytes, uint32_t slot_bytes)
{
    prediction_t p[64];
    int n = 0;
    for (size_t i = 0; i < kolo_algo_rows; i++) {
        if (kolo_algos[i].coll != coll || !kolo_algos[i].usable(env)) continue;
        for (uint32_t lanes = 1; lanes <= w->fabric.cards && n < (int)KOLO_COUNTOF(p);
             lanes = lanes == 1 && w->fabric.cards > 1 ? w->fabric.cards : w->fabric.cards + 1) {
            if (lanes > 1 && kolo_algos[i].algo != KOLO_ALGO_RING) continue;
            p[n] = (prediction_t){.algo = kolo_algos[i].algo, .lanes = lanes};
            if (predict(w, env, coll, count, elem_bytes, slot_bytes, &p[n]) != KOLO_OK) {
                fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
                return INFO_FAILED;
            }
            n++;
        }
    }
    print_table(p, n);
    return INFO_OK;
}

int kolo_info_predict(const char *options, const kolo_emit_env_t *env, kolo_coll_t coll, uint64_t count,
                      uint32_t elem_bytes, uint32_t slot_bytes)
{
    world_t *w = calloc(1, sizeof *w);
    int status = INFO_USAGE;
    if (w && parse(w, options) && describe(w, env) && search(w, env)) {
        printf("\npredicted: %u nodes of %u cards with %.1f GB/s each, all cards of a %s at one leaf switch, ",
               env->nnodes, w->fabric.cards, w->gbps[0], w->fabric.rails ? "rail" : "pod");
        if (w->fabric.pod_nodes)
            printf("pods of %u nodes, %.1f:1 above\n", w->fabric.pod_nodes, w->fabric.oversubscription);
        else
            printf("one pod\n");
        status = predict_all(w, env, coll, count, elem_bytes, slot_bytes);
    }
    if (w) {
        kolo_topo_search_fini(&w->search);
        kolo_topo_fini(&w->machine.topo);
    }
    free(w);
    return status;
}
