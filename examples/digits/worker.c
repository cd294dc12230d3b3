/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: trains with the others step by step, repeats with those that are left the step in which one was lost,
 * takes a newcomer in between two steps. Tells the monitor what was committed.
 */
#include "digits.h"
#include "gpu.h"
#include "members.h"
#include "reduce.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int index;
    const char *timeline; /* where to, or NULL */
    digits_t digits;
    train_t train;
    members_t members;
    uint64_t newcomer; /* 1 + the index of the newest worker that waits to be taken in, by the monitor's word */
    uint64_t taken;    /* the same of those that were tried */
    bool failed;       /* told already */
} worker_t;

static void tell(const worker_t *w, note_t *note)
{
    note->index = w->index;
    note->rank = w->members.rank;
    note->nranks = w->members.nranks;
    note_send(WORKER_FD, note); /* without a monitor there is no worker: see fleet.c */
}

__attribute__((format(printf, 2, 3))) static kolo_status_t fail(worker_t *w, const char *format, ...)
{
    note_t note = {.kind = NOTE_FAILED, .step = w->train.now ? w->train.now->step : 0};
    va_list args;
    va_start(args, format);
    vsnprintf(note.text, sizeof note.text, format, args);
    va_end(args);
    if (!w->failed) tell(w, &note);
    w->failed = true;
    return KOLO_ERR_INTERNAL;
}

/* ---- one step ---- */

typedef struct {
    reduce_t reduce;
    train_t *train;
    double scale;
} sums_t;

static void submit(void *arg, const net_tensor_t *tensor)
{
    sums_t *s = arg;
    reduce_submit(&s->reduce, tensor->name, s->train->gradient + tensor->first, tensor->count, KOLO_FLOAT64,
                  s->scale);
}

/* Each tensor of the gradient is on its way as soon as the backward pass has made it. */
static kolo_status_t compute_and_sum(worker_t *w)
{
    train_t *t = &w->train;
    sums_t s = {.train = t, .scale = 1.0 / train_samples(t)};
    reduce_begin(&s.reduce, w->members.engine);
    train_compute(t, w->members.rank, w->members.nranks, submit, &s);
    reduce_submit(&s.reduce, "loss", &t->loss, 1, KOLO_FLOAT64, s.scale);
    reduce_submit(&s.reduce, "used", t->used, (size_t)t->images->count, KOLO_UINT8, 1.0);
    kolo_status_t status = reduce_wait(&s.reduce);
    if (status == KOLO_OK || members_is_loss(status)) return status;
    return fail(w, "step %llu: %s", (unsigned long long)t->now->step, s.reduce.error);
}

static void tell_step(worker_t *w, uint64_t hash)
{
    const train_t *t = &w->train;
    int samples = (int)(t->now->samples - t->next->samples); /* `next` is the state before now */
    note_t note = {.kind = NOTE_STEP, .step = t->now->step, .hash = hash, .samples = samples};
    note.loss = t->loss;
    tell(w, &note);
}

/* A step is committed when all ranks have made the same state of it. */
static kolo_status_t one_step(worker_t *w)
{
    train_t *t = &w->train;
    agreement_t all;
    const char *why;
    kolo_status_t status = compute_and_sum(w);
    if (status != KOLO_OK) return status;
    if (!train_update(t, &why)) return fail(w, "step %llu: %s", (unsigned long long)t->now->step, why);
    uint64_t hash = train_hash(t->next);
    status = members_agree(&w->members, t->next->step, hash, w->newcomer, &all);
    if (members_is_loss(status)) return status;
    if (status != KOLO_OK) return fail(w, "%s", w->members.error);
    if (!all.equal)
        return fail(w, "step %llu: the ranks have made different weights", (unsigned long long)t->now->step);
    train_commit(t);
    tell_step(w, hash);
    w->newcomer = all.wish; /* from here on all know */
    return KOLO_OK;
}

/* ---- changes ---- */

static kolo_status_t settle(worker_t *w, bool has_state)
{
    uint64_t before = w->train.now->step;
    bool equal;
    kolo_status_t status = members_settle(&w->members, &w->train, has_state, &w->taken, &equal);
    if (members_is_loss(status)) return status;
    if (status != KOLO_OK) return fail(w, "the newest state could not be sent round: %s", w->members.error);
    if (!equal) return fail(w, "the ranks had different weights when the ranks changed");
    if (has_state && w->train.now->step > before) { /* the others heard that it is committed, then the loss came */
        note_t note = {.kind = NOTE_STEP, .step = w->train.now->step, .hash = train_hash(w->train.now)};
        tell(w, &note);
    }
    return KOLO_OK;
}

static void tell_ranks(worker_t *w, int was, uint64_t since)
{
    note_t note = {.kind = NOTE_RANKS, .was = was, .step = w->train.now->step, .us = (now_ns() - since) / 1000};
    tell(w, &note);
}

static kolo_status_t mend(worker_t *w)
{
    uint64_t since = now_ns();
    int was = w->members.nranks;
    kolo_status_t status;
    do {
        status = members_mend(&w->members);
        if (status == KOLO_OK) status = settle(w, true);
    } while (members_is_loss(status)); /* one more, meanwhile; each time the ranks are fewer */
    if (status != KOLO_OK) return fail(w, "going on after a loss failed: %s", w->members.error);
    tell_ranks(w, was, since);
    return KOLO_OK;
}

static kolo_status_t take_newcomer(worker_t *w)
{
    note_t note = {.kind = NOTE_ID};
    uint64_t since = now_ns();
    int was = w->members.nranks;
    if (w->members.rank == 0) {
        kolo_status_t made = members_make_id(&w->members, &note.id);
        if (members_is_loss(made)) return made;
        if (made != KOLO_OK) return fail(w, "no id for the newcomer: %s", w->members.error);
        tell(w, &note);
    }
    kolo_status_t status = members_grow(&w->members, &note.id);
    w->taken = w->newcomer; /* or tried */
    if (status == KOLO_ERR_UNSUPPORTED) return fail(w, "%s", w->members.error);
    if (status != KOLO_OK) return KOLO_ERR_REMOTE;
    status = settle(w, true);
    if (status == KOLO_OK) tell_ranks(w, was, since);
    return status;
}

/* ---- the whole ---- */

static bool hear(worker_t *w)
{
    note_t note;
    int got;
    while ((got = note_receive(WORKER_FD, &note, false)) > 0)
        if (note.kind == NOTE_NEWCOMER && (uint64_t)note.index + 1 > w->newcomer)
            w->newcomer = (uint64_t)note.index + 1;
    return got == 0;
}

static kolo_status_t tell_accuracy(worker_t *w)
{
    const images_t *test = &w->digits.test;
    int rank = w->members.rank, n = w->members.nranks;
    int32_t right = net_right(w->train.now->weights, test, test->count * rank / n, test->count * (rank + 1) / n);
    reduce_t r;
    reduce_begin(&r, w->members.engine);
    reduce_submit(&r, "right", &right, 1, KOLO_INT32, 1.0);
    kolo_status_t status = reduce_wait(&r);
    if (members_is_loss(status)) return status;
    if (status != KOLO_OK) return fail(w, "the test: %s", r.error);
    note_t note = {.kind = NOTE_DONE, .step = w->train.now->step, .right = right, .samples = test->count};
    note.hash = train_hash(w->train.now);
    tell(w, &note);
    return KOLO_OK;
}

/* A new engine, at the start and after each change of ranks. */
static kolo_status_t engage(worker_t *w)
{
    kolo_status_t status = members_engage(&w->members, w->timeline, w->train.now->step);
    if (status == KOLO_OK || members_is_loss(status)) return status;
    return fail(w, "no engine: %s", w->members.error);
}

static kolo_status_t train_all(worker_t *w)
{
    for (bool tested = false; !tested;) {
        bool more = w->train.now->step < train_steps(&w->train);
        if (!hear(w)) return KOLO_ERR_REMOTE;
        kolo_status_t status = w->members.engine ? KOLO_OK : engage(w);
        if (status == KOLO_OK) status = more ? one_step(w) : tell_accuracy(w);
        tested = !more && status == KOLO_OK;
        if (status == KOLO_OK && w->newcomer > w->taken && !tested) status = take_newcomer(w);
        if (members_is_loss(status)) status = mend(w);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

static kolo_status_t get_in(worker_t *w)
{
    note_t note = {.kind = NOTE_HELLO};
    kolo_status_t status = KOLO_IN_PROGRESS;
    tell(w, &note);
    while (status == KOLO_IN_PROGRESS) {
        if (note_receive(WORKER_FD, &note, true) <= 0) return KOLO_ERR_REMOTE;
        if (note.kind == NOTE_MAKE_ID) {
            note.kind = NOTE_ID;
            if (kolo_get_unique_id(&note.id) != KOLO_OK) return fail(w, "no id: %s", kolo_get_last_error(NULL));
            tell(w, &note);
        }
        if (note.kind == NOTE_START) status = members_start(&w->members, note.id, note.nranks, note.rank);
        if (note.kind == NOTE_JOIN) {
            w->taken = (uint64_t)w->index + 1;
            status = members_join(&w->members, note.id, note.nranks);
            if (status == KOLO_OK) status = settle(w, false);
        }
    }
    if (status != KOLO_OK) return fail(w, "could not get in: %s", w->members.error);
    tell_ranks(w, 0, now_ns());
    return KOLO_OK;
}

int worker_main(const options_t *options, int index)
{
    worker_t w = {.index = index, .timeline = options->timeline};
    char error[400];
    kolo_status_t status = KOLO_OK;
    if (!digits_load(&w.digits, options->data, error, sizeof error)) status = fail(&w, "%s", error);
    if (status == KOLO_OK && !train_open(&w.train, &w.digits.train, options->epochs, options->seed))
        status = fail(&w, "out of memory");
    if (status == KOLO_OK && options->gpu && !gpu_open(index)) status = fail(&w, "no GPU: %s", gpu_error());
    if (status == KOLO_OK) status = get_in(&w);
    if (status == KOLO_OK) status = train_all(&w);
    if (status == KOLO_OK)
        members_end(&w.members); /* all that matters is done and told */
    else
        members_abort(&w.members);
    if (w.train.now) train_close(&w.train);
    digits_free(&w.digits);
    return status == KOLO_OK ? 0 : 1;
}
