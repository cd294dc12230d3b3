/* SPDX-License-Identifier: Apache-2.0
 *
 * See simulated.h.
 */
#include "engine/kit/simulated.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * KOLO_NS_PER_S + (uint64_t)t.tv_nsec;
}

typedef struct {
    kolo_controller_t *c;
    uint64_t records;
} sink_t;

static kolo_status_t take(void *arg, const kolo_tensor_request_t *request, const kolo_ranks_t *ranks)
{
    sink_t *s = arg;
    s->records++;
    return kolo_controller_shared(s->c, request, ranks);
}

static kolo_status_t answer_all(kolo_controller_t *c, kolo_bytes_t *answer)
{
    KOLO_TRY(kolo_controller_finish(c));
    KOLO_TRY(kolo_responses_encode(&c->out, c->nranks, c->njoined, answer));
    kolo_responses_free(&c->out);
    return KOLO_OK;
}

static kolo_status_t take_own(kolo_controller_t *c, const sim_list_t *list)
{
    for (size_t i = 0; i < list->count; i++) KOLO_TRY(kolo_controller_request(c, 0, list->requests[i]));
    return KOLO_OK;
}

/* ---- flat ---- */

kolo_status_t sim_flat(kolo_controller_t *c, const sim_list_t *lists, kolo_bytes_t *answer, sim_cost_t *cost)
{
    sim_cost_t sum = {.depth = 1};
    kolo_bytes_t bytes = {NULL, 0, 0};
    sink_t sink = {c, 0};
    uint64_t since = cpu_ns();
    kolo_status_t status = take_own(c, &lists[0]);
    sum.first.cpu_ns += cpu_ns() - since;
    for (int rank = 1; rank < c->nranks && status == KOLO_OK; rank++) {
        if (lists[rank].count == 0) continue;
        status = kolo_requests_encode(lists[rank].requests, lists[rank].count, &bytes);
        since = cpu_ns();
        const kolo_tree_place_t alone = {.first = rank, .end = rank + 1};
        if (status == KOLO_OK)
            status = kolo_requests_decode(bytes.bytes, bytes.length, &alone, c->nranks, take, &sink);
        sum.first.cpu_ns += cpu_ns() - since;
        sum.first.messages++;
        sum.first.bytes += bytes.length;
    }
    free(bytes.bytes);
    since = cpu_ns();
    if (status == KOLO_OK) status = answer_all(c, answer);
    sum.first.cpu_ns += cpu_ns() - since;
    sum.first.records = sink.records;
    if (cost) *cost = sum;
    return status;
}

/* ---- the tree ---- */

static void count_bytes(sim_work_t *w, const kolo_bytes_t *bytes)
{
    w->messages++;
    w->bytes += bytes->length;
}

static void keep_most(sim_work_t *most, const sim_work_t *w)
{
    most->messages = KOLO_MAX(most->messages, w->messages);
    most->bytes = KOLO_MAX(most->bytes, w->bytes);
    most->records = KOLO_MAX(most->records, w->records);
    most->cpu_ns = KOLO_MAX(most->cpu_ns, w->cpu_ns);
}

/* What a rank that is not the first does: boxes hold what its children have sent, and then what it sends. */
static kolo_status_t climb(const sim_list_t *list, const kolo_tree_place_t *place, int fan_in, int nranks,
                           kolo_bytes_t *boxes, sim_work_t *work)
{
    kolo_merge_t merge = {NULL, NULL, 0, NULL, 0};
    uint64_t since = cpu_ns();
    kolo_status_t status = kolo_merge_own(&merge, place->first, list->requests, list->count);
    for (int i = 0; i < place->nchildren && status == KOLO_OK; i++) {
        kolo_tree_place_t child = kolo_tree_child(place, fan_in, i);
        kolo_bytes_t *box = &boxes[child.first];
        count_bytes(work, box);
        if (box->length > 0) status = kolo_merge_child(&merge, &child, nranks, box->bytes, box->length);
        free(box->bytes);
        *box = (kolo_bytes_t){NULL, 0, 0};
    }
    if (status == KOLO_OK) status = kolo_merge_encode(&merge, place, &boxes[place->first]);
    work->records = merge.count;
    kolo_merge_fini(&merge);
    work->cpu_ns = cpu_ns() - since;
    return status;
}

static kolo_status_t climb_all(int nranks, int fan_in, const sim_list_t *lists, kolo_bytes_t *boxes,
                               sim_cost_t *sum)
{
    for (int r = nranks - 1; r > 0; r--) { /* children are higher than their parents */
        sim_work_t work = {0};
        int depth = 1;
        kolo_tree_place_t place = kolo_tree_find(nranks, fan_in, r);
        KOLO_TRY(climb(&lists[r], &place, fan_in, nranks, boxes, &work));
        for (int up = place.parent; up > 0; up = kolo_tree_find(nranks, fan_in, up).parent) depth++;
        sum->depth = KOLO_MAX(sum->depth, depth);
        keep_most(&sum->busiest, &work);
    }
    return KOLO_OK;
}

static kolo_status_t hear(kolo_controller_t *c, int fan_in, const sim_list_t *list, const kolo_bytes_t *boxes,
                          sim_work_t *work)
{
    sink_t sink = {c, 0};
    kolo_tree_place_t place = kolo_tree_find(c->nranks, fan_in, 0);
    KOLO_TRY(take_own(c, list));
    for (int i = 0; i < place.nchildren; i++) {
        kolo_tree_place_t child = kolo_tree_child(&place, fan_in, i);
        const kolo_bytes_t *box = &boxes[child.first];
        count_bytes(work, box);
        if (box->length > 0)
            KOLO_TRY(kolo_requests_decode(box->bytes, box->length, &child, c->nranks, take, &sink));
    }
    work->records = sink.records;
    return KOLO_OK;
}

kolo_status_t sim_tree(kolo_controller_t *c, int fan_in, const sim_list_t *lists, kolo_bytes_t *answer,
                       sim_cost_t *cost)
{
    sim_cost_t sum = {.depth = 0};
    kolo_bytes_t *boxes = calloc((size_t)c->nranks, sizeof *boxes);
    if (!boxes) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", c->nranks);
    kolo_status_t status = climb_all(c->nranks, fan_in, lists, boxes, &sum);
    uint64_t since = cpu_ns();
    if (status == KOLO_OK) status = hear(c, fan_in, &lists[0], boxes, &sum.first);
    if (status == KOLO_OK) status = answer_all(c, answer);
    sum.first.cpu_ns = cpu_ns() - since;
    for (int r = 0; r < c->nranks; r++) free(boxes[r].bytes);
    free(boxes);
    if (cost) *cost = sum;
    return status;
}
