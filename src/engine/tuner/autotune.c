/* SPDX-License-Identifier: Apache-2.0
 *
 * See autotune.h. A setting comes into force on all ranks between the same two cycles of set 0, and cycles of all
 * sets have one order (order.c), so ranks never fuse or look up by different rules. While a setting is tried
 * everything is performed as ever: a bad one costs time, nothing else.
 */
#include "engine/tuner/autotune.h"

#include "base/log.h"
#include "comm/comm.h"
#include "engine/backends/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t kolo_autotune_warm_up, kolo_autotune_steps, kolo_autotune_samples, kolo_autotune_settings;

#define CYCLES_A_STEP 1000 /* a step is over after so many, too: names need not come again */
#define SETTLING      2

/* ---- what is in force ---- */

static void switch_choices(struct kolo_tensor_engine *e, uint32_t choices)
{
    bool cache = choices >> KOLO_CHOOSE_CACHE & 1;
    e->cache_off = !cache;
    kolo_backend_switch(e, KOLO_WORK_ALL_REDUCE, "hierarchical", choices >> KOLO_CHOOSE_HIER_ALL_REDUCE & 1);
    kolo_backend_switch(e, KOLO_WORK_ALL_GATHER, "hierarchical", choices >> KOLO_CHOOSE_HIER_ALL_GATHER & 1);
    for (int id = 0; id < e->nsets; id++)
        if (e->sets[id]->rank >= 0 && !e->sets[id]->removed) kolo_cache_switch(&e->sets[id]->cache, cache);
}

static void adopt(kolo_set_t *s, const kolo_tuned_t *tuned)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_autotune_t *a = e->autotune;
    if (a) {
        double score = a->tuner && e->tuned.phase != KOLO_TUNE_WARM_UP ? a->tuner->score : -1;
        kolo_autotune_log_write(&a->log, &e->tuned, s->cycle, score);
    }
    if (tuned->tuning.choices != e->tuned.tuning.choices) switch_choices(e, tuned->tuning.choices);
    e->tuned = *tuned;
    if (!a || tuned->phase != KOLO_TUNE_OVER) return;
    kolo_autotune_log_write(&a->log, &e->tuned, s->cycle, a->tuner ? a->tuner->best_score : -1);
    if (a->tuner)
        kolo_info("engine", "tuned: fusion threshold %lld bytes, cycle time %lld us, cache %s; %.3g bytes/s",
                  (long long)tuned->tuning.fusion_threshold, (long long)tuned->tuning.cycle_time_us,
                  tuned->tuning.choices >> KOLO_CHOOSE_CACHE & 1 ? "on" : "off", a->tuner->best_score);
    kolo_autotune_end(e);
}

/* ---- rank 0 measures ---- */

static uint64_t bytes_of(const kolo_set_t *s, const kolo_response_t *r)
{
    const kolo_tensor_request_t *q = &r->request;
    size_t elem = kolo_type_size(q->type);
    int64_t rows = 0;
    if (r->status != KOLO_OK || q->work >= KOLO_WORK_JOIN) return 0;
    if (!r->rows) return (uint64_t)kolo_shape_elements(q->shape, q->ndims, 0, elem) * elem;
    for (int i = 0; i < s->size; i++) rows += r->rows[i];
    return (uint64_t)rows * (uint64_t)kolo_shape_elements(q->shape, q->ndims, 1, elem) * elem;
}

static void begin_sample(kolo_autotune_t *a, int settling)
{
    a->settling = settling;
    a->steps = 0;
    a->cycles = 0;
    a->bytes = 0;
    a->began_ns = kolo_now_ns();
}

static bool is_step(kolo_autotune_t *a, kolo_response_t *const *done, size_t count)
{
    bool step = ++a->cycles > CYCLES_A_STEP;
    for (size_t i = 0; i < count && !step; i++) step = strcmp(done[i]->request.name.text, a->mark) == 0;
    for (size_t i = 0; i < count && a->mark[0] == '\0'; i++)
        if (done[i]->request.work < KOLO_WORK_JOIN)
            memcpy(a->mark, done[i]->request.name.text, done[i]->request.name.length + 1);
    return step;
}

static kolo_status_t measure(kolo_set_t *s, kolo_response_t *const *done, size_t count)
{
    kolo_autotune_t *a = s->engine->autotune;
    bool changed;
    if (a->news) return KOLO_OK; /* what is under way belongs to no setting */
    for (size_t i = 0; i < count; i++) a->bytes += bytes_of(s, done[i]);
    if (!is_step(a, done, count)) return KOLO_OK;
    if (a->cycles > CYCLES_A_STEP) a->mark[0] = '\0';
    a->cycles = 0;
    if (a->settling > 0) {
        begin_sample(a, a->settling - 1);
        return KOLO_OK;
    }
    if (++a->steps < kolo_autotune_steps) return KOLO_OK;
    uint64_t ns = kolo_now_ns() - a->began_ns;
    KOLO_TRY(kolo_tuner_sample(a->tuner, (double)a->bytes * 1e9 / (double)KOLO_MAX(ns, 1), &changed));
    a->news = changed;
    begin_sample(a, 0);
    return KOLO_OK;
}

kolo_status_t kolo_autotune_cycle(kolo_set_t *s, kolo_response_t *const *done, size_t count,
                                  const kolo_responses_t *fresh)
{
    kolo_autotune_t *a = s->engine->autotune;
    if (s->id != 0) return KOLO_OK;
    if (fresh->tuned) {
        adopt(s, &fresh->tuning);
        if (s->engine->autotune && a->tuner) {
            a->news = false;
            begin_sample(a, SETTLING);
        }
        return KOLO_OK;
    }
    return a && a->tuner ? measure(s, done, count) : KOLO_OK;
}

bool kolo_autotune_has_news(const kolo_set_t *s)
{
    return s->id == 0 && s->engine->autotune && s->engine->autotune->news;
}

void kolo_autotune_tell(kolo_set_t *s, kolo_responses_t *answers)
{
    if (!kolo_autotune_has_news(s)) return;
    const kolo_tuner_t *t = s->engine->autotune->tuner;
    answers->tuned = true;
    answers->tuning = (kolo_tuned_t){t->now, t->phase};
}

/* ---- life ---- */

/* Tells whether it is on, and is there on hosts where it makes a difference. */
static bool is_hierarchical(const struct kolo_tensor_engine *e, kolo_work_t work, bool *there)
{
    *there = false;
    for (int i = 0; i < e->backends->norder[work]; i++) {
        const kolo_backend_choice_t *c = &e->backends->order[work][i];
        if (strcmp(kolo_backend_at(c->number)->name, "hierarchical") != 0) continue;
        *there =
            atomic_load(&e->backends->slots[c->number].there) && e->place.local_size > 1 && e->place.cross_size > 1;
        return c->on;
    }
    return false;
}

static kolo_status_t make_tuner(struct kolo_tensor_engine *e)
{
    kolo_autotune_t *a = e->autotune;
    kolo_tuner_rules_t rules = {.threshold = e->tunable.threshold,
                                .cycle = e->tunable.cycle,
                                .choices =
                                    e->tunable.cache && e->config.cache_capacity > 0 ? 1u << KOLO_CHOOSE_CACHE : 0,
                                .warm_up = (int)kolo_autotune_warm_up,
                                .samples = (int)kolo_autotune_samples,
                                .settings = (int)kolo_autotune_settings};
    bool there;
    is_hierarchical(e, KOLO_WORK_ALL_REDUCE, &there);
    if (there) rules.choices |= 1u << KOLO_CHOOSE_HIER_ALL_REDUCE;
    is_hierarchical(e, KOLO_WORK_ALL_GATHER, &there);
    if (there) rules.choices |= 1u << KOLO_CHOOSE_HIER_ALL_GATHER;
    a->tuner = calloc(1, sizeof *a->tuner);
    if (!a->tuner) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    begin_sample(a, SETTLING);
    return kolo_tuner_init(a->tuner, &rules, &e->tuned.tuning);
}

/* Shares how it went: what rank 0 has failed at, has failed for all. */
static kolo_status_t share(struct kolo_tensor_engine *e, kolo_status_t status)
{
    struct {
        int32_t status;
        char text[252];
    } word = {(int32_t)status, ""};
    if (e->size == 1) return status;
    if (status != KOLO_OK) snprintf(word.text, sizeof word.text, "%s", kolo_error_text());
    KOLO_TRY(kolo_broadcast(&word, &word, sizeof word, KOLO_UINT8, 0, e->all->comm, NULL));
    word.text[sizeof word.text - 1] = '\0';
    if (e->rank == 0 || word.status == KOLO_OK) return status;
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "engine_init: rank 0 cannot tune: %s", word.text);
}

kolo_status_t kolo_autotune_begin(struct kolo_tensor_engine *e)
{
    uint32_t choices = e->config.cache_capacity > 0 ? 1u << KOLO_CHOOSE_CACHE : 0;
    bool there;
    if (is_hierarchical(e, KOLO_WORK_ALL_REDUCE, &there)) choices |= 1u << KOLO_CHOOSE_HIER_ALL_REDUCE;
    if (is_hierarchical(e, KOLO_WORK_ALL_GATHER, &there)) choices |= 1u << KOLO_CHOOSE_HIER_ALL_GATHER;
    e->tuned = (kolo_tuned_t){{e->config.fusion_threshold, e->config.cycle_time_us, choices},
                              kolo_autotune_warm_up > 0 ? KOLO_TUNE_WARM_UP : KOLO_TUNE_SEARCH};
    if (!e->config.autotune) return KOLO_OK;
    e->autotune = calloc(1, sizeof *e->autotune);
    if (!e->autotune) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    kolo_autotune_log_open(&e->autotune->log, e->rank);
    return share(e, e->rank == 0 ? make_tuner(e) : KOLO_OK);
}

void kolo_autotune_end(struct kolo_tensor_engine *e)
{
    kolo_autotune_t *a = e->autotune;
    if (!a) return;
    e->autotune = NULL;
    kolo_autotune_log_close(&a->log);
    if (a->tuner) kolo_tuner_fini(a->tuner);
    free(a->tuner);
    free(a);
}
