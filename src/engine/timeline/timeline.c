/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's side of the timeline: what happens to tensors becomes records in the ring; and how timelines are
 * started and stopped while the loop runs. A start or stop leaves what it wants under a lock, and the loop takes it
 * over when it next takes submissions, so it never has to be waited for; what a start has returned before is in the
 * file.
 */
#include "engine/timeline/timeline.h"

#include "base/log.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *kolo_timeline_path;
bool kolo_timeline_marks;
int64_t kolo_timeline_queue, kolo_timeline_every;

#define NAMES_MAX 65536 /* rows of a timeline; later names are left out, and counted */
#define LATE_MS   1000
#define CLOCK_S   10 /* while there is work, clocks are compared so often: they drift */

/* ---- names ---- */

/* Finds its row, which is made if `make` says so. */
static kolo_traced_t *find_name(const kolo_set_t *s, kolo_timeline_t *t, const kolo_name_t *name, bool make)
{
    char text[KOLO_TENSOR_NAME_MAX + 32];
    kolo_name_t like = {NULL, name->hash, name->length, name->text};
    if (s->id != 0) {
        int n = snprintf(text, sizeof text, "set %d: %s", s->id, name->text + (name->text[0] == '\1'));
        kolo_name_init(&like, text, (uint32_t)n);
    }
    kolo_traced_t *traced = (kolo_traced_t *)kolo_names_find(&t->names, &like);
    if (traced || !make || t->nnames == NAMES_MAX) return traced;
    traced = malloc(sizeof *traced + like.length + 1);
    if (!traced) return NULL;
    memcpy(traced->text, like.text, like.length + 1);
    traced->name = like;
    traced->name.text = traced->text;
    traced->number = ++t->nnames;
    traced->times = 0;
    traced->negotiating = traced->recorded = traced->known = false;
    if (kolo_names_add(&t->names, &traced->name) == KOLO_OK) return traced;
    free(traced);
    return NULL;
}

kolo_traced_t *kolo_trace_find(const kolo_timeline_t *t, const kolo_entry_t *entry)
{
    return entry && entry->traced_round == t->round && entry->traced_now ? entry->traced : NULL;
}

uint16_t kolo_trace_work(const kolo_tensor_request_t *q)
{
    return (uint16_t)(q->work == KOLO_WORK_ALL_REDUCE && q->op == KOLO_ADASUM ? (int)KOLO_TRACE_ADASUM
                                                                              : (int)q->work);
}

/* ---- records ---- */

void kolo_trace_put(kolo_timeline_t *t, const kolo_trace_record_t *record)
{
    if (!kolo_trace_reserve(&t->ring, 1)) return;
    uint64_t head = atomic_load_explicit(&t->ring.head, memory_order_relaxed);
    *kolo_trace_slot(&t->ring, head) = *record;
    atomic_store_explicit(&t->ring.head, head + 1, memory_order_release);
}

/* Puts the end, with the dimensions in records behind it. */
void kolo_trace_put_done(kolo_timeline_t *t, const kolo_trace_record_t *record, const int64_t *shape, int ndims)
{
    enum { EACH = sizeof(kolo_trace_record_t) / sizeof(int64_t) };
    uint64_t more = (uint64_t)KOLO_DIV_UP(ndims, EACH);
    if (!kolo_trace_reserve(&t->ring, 1 + more)) return;
    uint64_t head = atomic_load_explicit(&t->ring.head, memory_order_relaxed);
    *kolo_trace_slot(&t->ring, head) = *record;
    for (int i = 0; i < ndims; i += EACH)
        memcpy(kolo_trace_slot(&t->ring, head + 1 + (uint64_t)(i / EACH)), shape + i,
               (size_t)KOLO_MIN((int)EACH, ndims - i) * sizeof *shape);
    atomic_store_explicit(&t->ring.head, head + 1 + more, memory_order_release);
}

void kolo_trace_cycle(struct kolo_tensor_engine *e)
{
    if (e->timeline->marks && e->timeline->cycles++ % e->timeline->every == 0)
        kolo_trace_put(e->timeline, &(kolo_trace_record_t){e->cycle_began_ns, 0, NULL, 0, KOLO_TRACE_CYCLE, 0});
    if (e->cycle_began_ns - e->clock_ns > CLOCK_S * KOLO_NS_PER_S) atomic_store(&e->clocks_wanted, true);
}

/* Wakes the writer if it sleeps for lack of records, or if it should hurry. */
void kolo_trace_cycle_over(struct kolo_tensor_engine *e)
{
    kolo_timeline_t *t = e->timeline;
    kolo_fence_light(); /* the other half is the writer's kolo_fence_cores() */
    bool parked = atomic_load_explicit(&t->parked, memory_order_relaxed);
    if (parked || kolo_trace_is_filling(&t->ring)) kolo_gate_open(&t->gate);
}

/* Tells whether this operation is recorded. Ranks count the operations on a tensor, so all of them record the same
 * ones. */
static bool begin(kolo_timeline_t *t, kolo_traced_t *traced, uint16_t work, uint64_t ns, bool room)
{
    if (!traced->negotiating) {
        traced->negotiating = true;
        const bool wanted = traced->times++ % t->every == 0;
        if (wanted && !room) atomic_fetch_add_explicit(&t->ring.left_out, 1, memory_order_relaxed);
        traced->recorded = wanted && room;
        if (traced->recorded)
            kolo_trace_put(t, &(kolo_trace_record_t){ns, 0, traced, 0, KOLO_TRACE_NEGOTIATE, work});
    } else if (traced->recorded && !room) {
        atomic_fetch_add_explicit(&t->ring.left_out, 1, memory_order_relaxed);
    }
    return traced->recorded && room;
}

void kolo_trace_taken(kolo_set_t *s, kolo_entry_t *entry)
{
    kolo_timeline_t *t = s->engine->timeline;
    uint16_t work = kolo_trace_work(&entry->request);
    bool room = kolo_trace_has_room(&t->ring);
    kolo_traced_t *traced = find_name(s, t, &entry->request.name, room);
    entry->traced = traced;
    entry->traced_round = t->round;
    entry->traced_now = false;
    if (!traced) {
        atomic_fetch_add_explicit(&t->ring.left_out, 1, memory_order_relaxed);
        return;
    }
    uint64_t ns = entry->submitted_ns > t->start_ns ? entry->submitted_ns : entry->taken_ns;
    entry->traced_now = begin(t, traced, work, ns, room);
    if (!entry->traced_now) return;
    kolo_trace_put(t, &(kolo_trace_record_t){ns, (uint64_t)s->engine->rank, traced, 0, KOLO_TRACE_READY, work});
}

void kolo_trace_ready(kolo_set_t *s, const kolo_tensor_request_t *request, int rank)
{
    kolo_timeline_t *t = s->engine->timeline;
    uint64_t now = kolo_now_ns();
    if (request->work == KOLO_WORK_JOIN) return; /* waits for what was before, so it says nothing of who is ready */
    kolo_traced_t *traced = kolo_trace_has_room(&t->ring) ? find_name(s, t, &request->name, true) : NULL;
    if (!traced || !begin(t, traced, kolo_trace_work(request), now, true)) return;
    kolo_trace_put(t, &(kolo_trace_record_t){now, (uint64_t)s->ranks[rank], traced, 0, KOLO_TRACE_READY,
                                             kolo_trace_work(request)});
}

void kolo_trace_agreed(kolo_set_t *s, kolo_response_t *const *responses, size_t count)
{
    kolo_timeline_t *t = s->engine->timeline;
    uint64_t now = kolo_now_ns();
    t->agreed_ns = now;
    for (size_t i = 0; i < count; i++) {
        const kolo_tensor_request_t *q = &responses[i]->request;
        const kolo_entry_t *entry = responses[i]->entry;
        bool ours = kolo_trace_find(t, entry) != NULL;
        kolo_traced_t *traced = entry && entry->traced_round == t->round ? entry->traced : NULL;
        /* The coordinator has joined, or its own tensor was left out, but not what others said of it. */
        if (!traced && s->rank == 0) traced = find_name(s, t, &q->name, false);
        if (!traced || !traced->negotiating) continue;
        traced->negotiating = false;
        if (!traced->recorded) continue;
        kolo_trace_put(t, &(kolo_trace_record_t){now, ours, traced, 0, KOLO_TRACE_AGREED, kolo_trace_work(q)});
    }
}

void kolo_trace_do(kolo_set_t *s, kolo_response_t *const *batch, size_t count, int what, uint64_t from, uint64_t to)
{
    kolo_timeline_t *t = s->engine->timeline;
    for (size_t i = 0; i < count; i++) {
        kolo_traced_t *traced = kolo_trace_find(t, batch[i]->entry);
        if (traced) kolo_trace_put(t, &(kolo_trace_record_t){from, to, traced, 0, KOLO_TRACE_DO, (uint16_t)what});
    }
}

void kolo_trace_begin(kolo_set_t *s, kolo_response_t *const *batch, size_t count)
{
    kolo_trace_do(s, batch, count, KOLO_DO_QUEUE, s->engine->timeline->agreed_ns, kolo_now_ns());
}

void kolo_trace_done(kolo_set_t *s, kolo_response_t *const *batch, size_t count)
{
    kolo_timeline_t *t = s->engine->timeline;
    uint64_t now = kolo_now_ns();
    for (size_t i = 0; i < count; i++) {
        const kolo_entry_t *entry = batch[i]->entry;
        kolo_traced_t *traced = kolo_trace_find(t, entry);
        if (!traced || entry->late) continue;
        const kolo_tensor_request_t *q = &entry->request;
        int ndims = q->work < KOLO_WORK_ADD_SET ? q->ndims : 0; /* a change of the sets has no shape */
        kolo_trace_record_t record = {now,
                                      (uint64_t)q->type << 32 | (uint64_t)ndims,
                                      traced,
                                      (uint32_t)entry->status,
                                      KOLO_TRACE_DONE,
                                      kolo_trace_work(q)};
        kolo_trace_put_done(t, &record, q->shape, ndims);
    }
}

void kolo_trace_clock(struct kolo_tensor_engine *e)
{
    kolo_trace_put(e->timeline, &(kolo_trace_record_t){e->clock_ns, (uint64_t)e->clock_offset_ns, NULL,
                                                       (uint32_t)KOLO_MIN(e->clock_error_ns, (uint64_t)UINT32_MAX),
                                                       KOLO_TRACE_CLOCK, 0});
}

/* ---- start and stop ---- */

/* Makes "%r" the rank. Without it, rank 0 alone writes. */
static kolo_status_t fill_path(kolo_timeline_t *t, const char *path)
{
    size_t at = 0;
    for (const char *p = path; *p; p++) {
        bool rank = p[0] == '%' && p[1] == 'r';
        if (at + 16 > sizeof t->path)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine: the timeline's path %.40s... is too long", path);
        if (!rank) t->path[at++] = *p;
        if (rank) at += (size_t)snprintf(t->path + at, 16, "%d", t->rank);
        p += rank;
    }
    t->path[at] = '\0';
    return KOLO_OK;
}

void kolo_timeline_free(kolo_timeline_t *t)
{
    for (size_t i = 0; i < t->names.nbuckets; i++) {
        for (kolo_name_t *n = t->names.buckets[i], *next; n; n = next) {
            next = n->next;
            free(n);
        }
    }
    kolo_names_fini(&t->names);
    kolo_trace_ring_fini(&t->ring);
    kolo_gzip_close(t->gzip);
    free(t->text);
    free(t);
}

static kolo_status_t make(kolo_tensor_engine_t e, const char *path, bool marks, kolo_timeline_t **out)
{
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    kolo_timeline_t *t = aligned_alloc(KOLO_CACHE_LINE, KOLO_ROUND_UP(sizeof *t, (size_t)KOLO_CACHE_LINE));
    if (!t) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a timeline");
    memset(t, 0, sizeof *t);
    atomic_store(&t->holders, 1);
    t->rank = e->rank;
    t->marks = marks;
    t->every = (uint64_t)kolo_timeline_every;
    t->fd = -1;
    t->start_ns = kolo_now_ns();
    kolo_status_t status = fill_path(t, path);
    if (status == KOLO_OK) status = kolo_trace_ring_init(&t->ring, (uint64_t)kolo_timeline_queue);
    if (status == KOLO_OK) status = kolo_timeline_open(t, &e->place, host);
    if (status != KOLO_OK)
        kolo_timeline_free(t);
    else
        *out = t;
    return status;
}

static void drop(kolo_timeline_t *t)
{
    if (t && atomic_fetch_sub(&t->holders, 1) == 1) kolo_timeline_free(t);
}

/* Has the loop write into t from now on, NULL: nothing; what it wrote into before is completed. */
static void replace(kolo_tensor_engine_t e, kolo_timeline_t *t)
{
    pthread_mutex_lock(&e->timeline_lock);
    kolo_timeline_t *old = e->timeline_next;
    if (t) t->round = ++e->timeline_round;
    e->timeline_next = t;
    atomic_store(&e->queue.stamping, t != NULL);
    atomic_store(&e->timeline_changed, true);
    pthread_mutex_unlock(&e->timeline_lock);
    if (!old) return;
    kolo_timeline_close(old);
    drop(old);
}

void kolo_timeline_adopt(struct kolo_tensor_engine *e)
{
    pthread_mutex_lock(&e->timeline_lock);
    kolo_timeline_t *old = e->timeline;
    e->timeline = e->timeline_next;
    if (e->timeline) atomic_fetch_add(&e->timeline->holders, 1);
    atomic_store(&e->timeline_changed, false);
    pthread_mutex_unlock(&e->timeline_lock);
    drop(old);
}

static kolo_status_t start(kolo_tensor_engine_t e, const char *path, bool marks)
{
    kolo_timeline_t *t = NULL;
    replace(e, NULL); /* it may have the same path */
    if (e->rank > 0 && !strstr(path, "%r")) return KOLO_OK;
    KOLO_TRY(make(e, path, marks, &t));
    replace(e, t);
    atomic_store(&e->clocks_wanted, true);
    return KOLO_OK;
}

void kolo_timeline_begin(struct kolo_tensor_engine *e)
{
    if (kolo_timeline_path && start(e, kolo_timeline_path, kolo_timeline_marks) != KOLO_OK)
        kolo_warn("engine", "rank %d goes on without a timeline (KOLO_TIMELINE): %s", e->rank, kolo_error_text());
}

void kolo_timeline_end(struct kolo_tensor_engine *e)
{
    replace(e, NULL);
    drop(e->timeline);
    e->timeline = NULL;
}

kolo_status_t kolo_engine_timeline_start(kolo_tensor_engine_t engine, const char *path, int mark_cycles)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_timeline_start"));
    if (!path || !*path) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_timeline_start: there is no path");
    KOLO_TRY(start(engine, path, mark_cycles != 0));
    kolo_engine_kick(engine);
    return KOLO_OK;
}

static void describe_late(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "the engine to write down what GPUs have done");
}

/* Waits for times of what is complete, which the loop puts as soon as it wakes. It may be in an operation with
 * others. */
static void await_late(kolo_tensor_engine_t e)
{
    kolo_wait_t wait;
    if (!atomic_load(&e->has_late)) return;
    kolo_engine_kick(e);
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(LATE_MS), describe_late, NULL, 1);
    while (atomic_load(&e->has_late))
        if (kolo_wait_pause(&wait) != KOLO_OK) {
            kolo_warn("engine", "the timeline lacks times of GPUs: the engine has been busy for a second");
            break;
        }
    kolo_wait_end(&wait);
}

kolo_status_t kolo_engine_timeline_stop(kolo_tensor_engine_t engine)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_timeline_stop"));
    await_late(engine);
    replace(engine, NULL);
    return KOLO_OK;
}
