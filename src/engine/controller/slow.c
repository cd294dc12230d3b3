/* SPDX-License-Identifier: Apache-2.0
 *
 * The slow path: requests that no cache knows go to rank 0, which counts and checks, and its answers go to all.
 * In a set of many ranks they go up a tree whose inner ranks merge them (tree.h).
 */
#include "engine/controller/talk.h"
#include "engine/controller/tree.h"
#include "engine/timeline/timeline.h"
#include "engine/tuner/autotune.h"

#include <limits.h>
#include <stdlib.h>

static kolo_status_t hand_in(void *arg, const kolo_tensor_request_t *request, const kolo_ranks_t *ranks)
{
    kolo_set_t *s = arg;
    /* Rank 0's own are in its timeline since they were submitted. */
    if (KOLO_UNLIKELY(s->engine->timeline != NULL))
        for (int r = kolo_ranks_next(ranks, 1); r < INT_MAX; r = kolo_ranks_next(ranks, r + 1))
            kolo_trace_ready(s, request, r);
    return kolo_controller_shared(&s->controller, request, ranks);
}

/* Concludes, once all requests are in. */
static kolo_status_t conclude(kolo_set_t *s)
{
    KOLO_TRY(kolo_controller_finish(&s->controller));
    kolo_autotune_tell(s, &s->controller.out);
    KOLO_TRY(kolo_responses_encode(&s->controller.out, s->size, s->controller.njoined, &s->engine->out));
    kolo_responses_free(&s->controller.out);
    return KOLO_OK;
}

/* Tells a timeline that was started while this rank waited for the others what they have sent since. */
static void look_for_timeline(struct kolo_tensor_engine *e)
{
    if (KOLO_UNLIKELY(atomic_load(&e->timeline_changed))) kolo_timeline_adopt(e);
}

static kolo_status_t coordinate(kolo_set_t *s, const uint64_t *lengths)
{
    const uint8_t *in = s->engine->in.bytes;
    look_for_timeline(s->engine);
    for (int r = 0; r < s->size; r++) {
        const kolo_tree_place_t place = {.first = r, .end = r + 1};
        const uint8_t *bytes = r > 0 ? in : s->engine->out.bytes;
        size_t length = r > 0 ? lengths[r] : s->engine->out.length;
        if (length > 0) KOLO_TRY(kolo_requests_decode(bytes, length, &place, s->size, hand_in, s));
        if (r > 0) in += length;
    }
    return conclude(s);
}

static kolo_status_t gather(kolo_set_t *s, size_t nrequests)
{
    struct kolo_tensor_engine *e = s->engine;
    e->out.length = 0;
    if (nrequests > 0 || s->rank == 0) KOLO_TRY(kolo_requests_encode(e->requests, nrequests, &e->out));
    if (s->rank > 0) return e->talk->gather(s, &e->out, NULL, NULL);
    uint64_t *lengths = malloc((size_t)s->size * sizeof *lengths);
    if (!lengths) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", s->size);
    kolo_status_t status = e->talk->gather(s, &e->out, &e->in, lengths);
    if (status == KOLO_OK) status = coordinate(s, lengths);
    free(lengths);
    return status;
}

/* ---- the tree ---- */

typedef struct {
    kolo_tree_place_t place, children[KOLO_TREE_FAN_IN_MAX];
    int ranks[KOLO_TREE_FAN_IN_MAX];
    uint64_t limits[KOLO_TREE_FAN_IN_MAX], lengths[KOLO_TREE_FAN_IN_MAX];
} family_t;

static kolo_status_t hear_children(kolo_set_t *s, family_t *f)
{
    int fan_in = (int)kolo_engine_tree_fan_in;
    f->place = kolo_tree_find(s->size, fan_in, s->rank);
    for (int i = 0; i < f->place.nchildren; i++) {
        f->children[i] = kolo_tree_child(&f->place, fan_in, i);
        f->ranks[i] = f->children[i].first;
        f->limits[i] = kolo_shared_bytes_max(&f->children[i]);
    }
    if (f->place.nchildren == 0) return KOLO_OK;
    return s->engine->talk->receive(s, f->ranks, f->limits, f->place.nchildren, &s->engine->in, f->lengths);
}

static kolo_status_t send_up(kolo_set_t *s, size_t nrequests, const family_t *f)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_merge_t merge = {NULL, NULL, 0, NULL, 0};
    kolo_status_t status = kolo_merge_own(&merge, s->rank, e->requests, nrequests);
    size_t at = 0;
    for (int i = 0; i < f->place.nchildren && status == KOLO_OK; at += f->lengths[i++])
        if (f->lengths[i] > 0)
            status = kolo_merge_child(&merge, &f->children[i], s->size, e->in.bytes + at, f->lengths[i]);
    if (status == KOLO_OK) status = kolo_merge_encode(&merge, &f->place, &e->out);
    kolo_merge_fini(&merge);
    return status == KOLO_OK ? e->talk->send(s, f->place.parent, &e->out) : status;
}

static kolo_status_t coordinate_tree(kolo_set_t *s, size_t nrequests, const family_t *f)
{
    const kolo_bytes_t *in = &s->engine->in;
    size_t at = 0;
    look_for_timeline(s->engine);
    for (size_t i = 0; i < nrequests; i++)
        KOLO_TRY(kolo_controller_request(&s->controller, 0, s->engine->requests[i]));
    for (int i = 0; i < f->place.nchildren; at += f->lengths[i++])
        if (f->lengths[i] > 0)
            KOLO_TRY(kolo_requests_decode(in->bytes + at, f->lengths[i], &f->children[i], s->size, hand_in, s));
    return conclude(s);
}

static kolo_status_t climb(kolo_set_t *s, size_t nrequests)
{
    family_t *f = malloc(sizeof *f);
    if (!f) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for the tree of %d ranks", s->size);
    kolo_status_t status = hear_children(s, f);
    if (status == KOLO_OK) status = s->rank > 0 ? send_up(s, nrequests, f) : coordinate_tree(s, nrequests, f);
    free(f);
    return status;
}

static bool has_tree(const kolo_set_t *s)
{
    return kolo_engine_tree_ranks > 0 && s->size > kolo_engine_tree_ranks;
}

/* ---- all ways ---- */

static kolo_status_t alone(kolo_set_t *s, size_t nrequests, kolo_responses_t *fresh)
{
    kolo_controller_t *c = &s->controller;
    for (size_t i = 0; i < nrequests; i++) KOLO_TRY(kolo_controller_request(c, 0, s->engine->requests[i]));
    KOLO_TRY(kolo_controller_finish(c));
    for (kolo_response_t *r = c->out.first, *next; r; r = next) {
        next = r->next;
        kolo_responses_add(fresh, r);
    }
    kolo_responses_init(&c->out);
    kolo_autotune_tell(s, fresh);
    s->njoined = c->njoined;
    return KOLO_OK;
}

kolo_status_t kolo_controller_negotiate_slow(kolo_set_t *s, size_t nrequests, kolo_responses_t *fresh)
{
    if (s->size == 1) return alone(s, nrequests, fresh);
    KOLO_TRY(has_tree(s) ? climb(s, nrequests) : gather(s, nrequests));
    KOLO_TRY(s->engine->talk->broadcast(s, &s->engine->out));
    return kolo_responses_decode(s->engine->out.bytes, s->engine->out.length, s->size, fresh, &s->njoined);
}
