/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's thread: cycle after cycle of agreement (negotiate.c) and work (perform.c), sleep in between
 * (sleep.c), and the end.
 */
#include "comm/comm.h"
#include "engine/backends/backend.h"
#include "engine/batch/device.h"
#include "engine/batch/perform.h"
#include "engine/controller/talk.h"
#include "engine/timeline/timeline.h"
#include "engine/tuner/autotune.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CAUSE_MS 2000

static void describe_wait(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "the next cycle");
}

/* Waits for the rest of KOLO_CYCLE_TIME since the last cycle began, but not when the engine is to end. */
static kolo_status_t pace(struct kolo_tensor_engine *e)
{
    uint64_t until = e->cycle_began_ns + (uint64_t)e->tuned.tuning.cycle_time_us * 1000;
    kolo_wait_t wait;
    if (e->tuned.tuning.cycle_time_us > 0) {
        kolo_wait_init(&wait, NULL, until, describe_wait, NULL, 1);
        while (kolo_now_ns() < until && !atomic_load(&e->stop)) {
            uint32_t ticket = kolo_gate_ticket(e->gate);
            KOLO_TRY(kolo_engine_status(e));
            if (kolo_gate_wait(e->gate, ticket, &wait) == KOLO_ERR_TIMEOUT) break;
        }
    }
    e->cycle_began_ns = kolo_now_ns();
    return KOLO_OK;
}

/* ---- cycles ---- */

static void take_fresh(kolo_set_t *s)
{
    struct kolo_tensor_engine *e = s->engine;
    s->all_here = atomic_load(&s->lane.nelsewhere) == 0; /* before what was elsewhere is taken */
    kolo_entry_t *first = kolo_tensors_take(&s->lane);
    kolo_finisher_publish(e);
    if (KOLO_UNLIKELY(atomic_load(&e->timeline_changed))) kolo_timeline_adopt(e);
    if (KOLO_UNLIKELY(e->timeline != NULL)) kolo_trace_cycle(e);
    for (kolo_entry_t *entry = first, *next; entry; entry = next) {
        next = entry->next;
        entry->next = NULL;
        entry->taken_ns = e->cycle_began_ns;
        if (KOLO_UNLIKELY(e->timeline != NULL)) kolo_trace_taken(s, entry);
        if (entry->request.work == KOLO_WORK_JOIN) {
            s->join = entry;
            continue;
        }
        *s->pending_tail = entry;
        s->pending_tail = &entry->next;
        s->npending++;
    }
}

/* Puts into the cache what this rank sent: that is what the response says, but for its own part of what is cut into
 * rows. */
static kolo_status_t remember(kolo_set_t *s, const kolo_responses_t *fresh)
{
    for (const kolo_response_t *r = fresh->first; r; r = r->next) {
        kolo_tensor_request_t mine = r->request;
        if (!r->cacheable) continue;
        if (r->rows) mine.shape[0] = r->rows[s->rank];
        mine.device = r->mine_device;
        KOLO_TRY(kolo_cache_put(&s->cache, &mine, r->rows, r->device));
    }
    return KOLO_OK;
}

/* Notes the last operation, which kolo-top shows; who was missing has come. */
static void note_last(kolo_set_t *s, size_t count)
{
    char title[KOLO_TENSOR_NAME_MAX + 16];
    kolo_tensor_request_title(&s->engine->ordered[count - 1]->request, title, sizeof title);
    kolo_note_last(&s->note, title);
}

static kolo_status_t work(kolo_set_t *s, size_t count)
{
    note_last(s, count);
    kolo_controller_worked(&s->controller);
    int64_t tensor_max = s->engine->config.fusion_tensor_max;
    const kolo_fuse_rules_t rules = {.threshold = s->engine->tuned.tuning.fusion_threshold,
                                     .tensor_max = tensor_max,
                                     .gpu_tensor_max = s->ran_native ? kolo_engine_gpu_tensor_max : tensor_max,
                                     .nranks = s->size,
                                     .groups_apart = s->engine->config.group_fusion == 0};
    if (KOLO_UNLIKELY(s->engine->timeline != NULL)) kolo_trace_agreed(s, s->engine->ordered, count);
    KOLO_TRY(kolo_fusion_batches(&rules, s->engine->ordered, count, &s->engine->batches));
    return kolo_perform(s, &s->engine->batches);
}

static kolo_status_t run_cycle(kolo_set_t *s, kolo_outcome_t *outcome)
{
    kolo_responses_t fresh;
    kolo_responses_init(&fresh);
    take_fresh(s);
    uint64_t began = kolo_now_ns();
    const char *before = kolo_call_set_purpose("the engine's agreement on tensors");
    kolo_status_t status = kolo_controller_negotiate(s, &fresh, outcome);
    kolo_call_set_purpose(before);
    KOLO_TALLY(s->engine->tally.negotiate_ns, kolo_now_ns() - began);
    KOLO_TALLY(s->engine->tally.cycles, 1);
    s->cycle++;
    if (s->id == 0) kolo_wake_note(s->engine, outcome);
    if (status == KOLO_OK && outcome->count > 0) status = work(s, outcome->count);
    /* `ordered` lies in the cache in part, and what is remembered may push that out: it is measured before. A
     * setting that comes into force does so afterwards, for it may switch the cache off. */
    if (status == KOLO_OK && s->engine->autotune && !fresh.tuned)
        status = kolo_autotune_cycle(s, s->engine->ordered, outcome->count, &fresh);
    if (status == KOLO_OK) status = remember(s, &fresh);
    if (status == KOLO_OK && fresh.tuned) status = kolo_autotune_cycle(s, NULL, 0, &fresh);
    if (KOLO_UNLIKELY(s->engine->timeline != NULL)) kolo_trace_cycle_over(s->engine);
    kolo_responses_free(&fresh);
    return status;
}

/* Finds what happened when a set's communicator or a backend's has failed, most likely because a rank gave up that
 * had learnt more. The news goes round on the communicator of all ranks, whose words are better; they may take a
 * moment. */
static kolo_status_t first_cause(struct kolo_tensor_engine *e, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(CAUSE_MS), describe_wait, NULL, 1);
    snprintf(text, sizeof text, "%s", kolo_error_text());
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(e->gate);
        KOLO_TRY(kolo_engine_status(e));
        if (kolo_gate_wait(e->gate, ticket, &wait) != KOLO_OK) break;
    }
    return kolo_fail(status, "%s", text);
}

static kolo_status_t run_cycles(struct kolo_tensor_engine *e)
{
    kolo_outcome_t outcome = {0};
    kolo_set_t *s = e->all;
    while (!outcome.stop) {
        bool again = outcome.news && !(outcome.yield && e->nlive > 1);
        if (outcome.news && !again && s->rank == 0) KOLO_TRY(kolo_order_call(s));
        if (!again) KOLO_TRY(kolo_engine_sleep(e, &s));
        KOLO_TRY(pace(e));
        kolo_engine_look_for_stalls(e);
        kolo_status_t status = run_cycle(s, &outcome);
        if (status != KOLO_OK) return s->id > 0 || e->foreign_failure ? first_cause(e, status) : status;
    }
    return KOLO_OK;
}

/* ---- the end ---- */

/* Agrees why the engine ends in order, in the same words on all ranks: a stall, or "rank 2 has shut the engine
 * down". Collective. */
static kolo_status_t agree_on_end(struct kolo_tensor_engine *e, kolo_status_t *why, char *text, size_t bytes)
{
    uint32_t rank = (uint32_t)e->rank;
    uint32_t lowest[2] = {e->stalled[0] ? rank : UINT32_MAX, atomic_load(&e->stop) ? rank : UINT32_MAX};
    KOLO_TRY(kolo_call_all_reduce(KOLO_CALL_WORD_ENGINE_END, lowest, 2, KOLO_UINT32, KOLO_MIN, e->all->comm));
    snprintf(text, bytes, "rank %u has shut the engine down", lowest[1]);
    *why = KOLO_ERR_ABORTED;
    if (lowest[0] == UINT32_MAX) return KOLO_OK;
    if (lowest[0] >= (uint32_t)e->size) return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %u stalls", lowest[0]);
    memcpy(text, e->stalled, KOLO_MIN(bytes, sizeof e->stalled));
    *why = KOLO_ERR_TIMEOUT;
    KOLO_TRY(kolo_broadcast(text, text, bytes, KOLO_UINT8, (int)lowest[0], e->all->comm, NULL));
    text[bytes - 1] = '\0';
    return KOLO_OK;
}

static void drain(kolo_set_t *s, kolo_status_t status, const char *text)
{
    kolo_entry_t *entry;
    char why[KOLO_ERROR_TEXT_BYTES + KOLO_TENSOR_NAME_MAX + 64], title[KOLO_TENSOR_NAME_MAX + 16];
    while ((entry = kolo_tensors_drain(&s->lane)) != NULL) {
        kolo_tensor_request_title(&entry->request, title, sizeof title);
        snprintf(why, sizeof why, "%s was outstanding: %.1000s", title, text);
        kolo_entry_fail(entry, status, why);
        kolo_tensors_finish(&s->lane, &entry, 1);
    }
}

static void end_all(struct kolo_tensor_engine *e, kolo_status_t status, const char *text)
{
    kolo_queue_close(&e->queue, status, text);
    kolo_finisher_stop(e);
    kolo_finisher_publish(e);
    for (int id = 0; id < e->nsets; id++) drain(e->sets[id], status, text);
}

/* Finalizes the sets in the same order everywhere: all ranks come here after the same cycle. */
static void finalize_all(struct kolo_tensor_engine *e)
{
    for (int id = e->nsets; id-- > 0;) {
        if (!e->sets[id]->comm || e->sets[id]->removed) continue;
        kolo_backends_leave(e->sets[id], false);
        kolo_talk_leave(e->sets[id], false);
        kolo_set_finalize_gpu(e->sets[id]);
        kolo_call_finalize(KOLO_CALL_WORD_ENGINE_END, e->sets[id]->comm);
    }
}

static void pin(const struct kolo_tensor_engine *e)
{
    cpu_set_t set;
    if (e->config.core < 0) return;
    CPU_ZERO(&set);
    CPU_SET((size_t)e->config.core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static _Thread_local bool is_loop;

/* Notes it in the records of all sets, for the loop does nothing else meanwhile. Other threads that call functions
 * of the user hold nobody up. */
void kolo_engine_loop_calls(void *engine, bool begins)
{
    const struct kolo_tensor_engine *e = engine;
    if (!is_loop) return;
    uint64_t since_ns = begins ? kolo_about_now_ns() : 0;
    for (int id = 0; id < e->nsets; id++) kolo_note_callback(&e->sets[id]->note, since_ns);
}

void *kolo_engine_loop(void *engine)
{
    kolo_tensor_engine_t e = engine;
    char text[KOLO_ERROR_TEXT_BYTES] = "";
    is_loop = true;
    pthread_setname_np(pthread_self(), "kolo-tensors");
    pin(e);
    kolo_engine_enter(e);
    kolo_status_t why, status = run_cycles(e);
    if (status == KOLO_OK) status = agree_on_end(e, &why, text, sizeof text);
    if (status == KOLO_OK) {
        e->failure = why == KOLO_ERR_ABORTED ? KOLO_OK : why;
        snprintf(e->failure_text, sizeof e->failure_text, "engine: %.1000s", text);
        end_all(e, why, text);
        finalize_all(e); /* a peer that is lost from here on changes nothing */
        return NULL;
    }
    e->failure = atomic_load(&e->aborting) ? KOLO_ERR_ABORTED : status;
    snprintf(e->failure_text, sizeof e->failure_text, "%s",
             atomic_load(&e->aborting) ? "this rank has aborted the engine" : kolo_error_text());
    atomic_store(&e->has_failed, true);
    /* Others may wait for this rank in an operation that it will not come to. */
    kolo_sets_leave(e, true);
    end_all(e, e->failure, e->failure_text);
    return NULL;
}
