/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with requests in random programs: put aside and taken along by the next call on their communicator,
 * begun by a question, waited for at once or at the end; and messages with tags, received in their order or late,
 * from a rank or from any, asked about, and receives that are cancelled. See programs.h.
 */
#include "programs/programs.h"

#include "coll/values.h"

enum {
    ROOM = 40,   /* elements that a tagged receive may have more room for than comes */
    NEVER = 1000 /* a tag that nobody sends */
};

void program_put_aside(run_t *run, const event_t *e, int from, int to)
{
    int c = e->comm, complete;
    kolo_comm_t comm = run->comms[c];
    held_t *h = program_hold(run, e, e->count, e->count);
    h->sends = run->ranks[c] == from;
    h->receives = run->ranks[c] == to;
    if (h->sends) test_fill(h->src, e->count, e->type, KOLO_SUM, e->seed, from, 0);
    if (h->sends) EXPECT_OK(kolo_isend(h->src, e->count, e->type, to, comm, &h->pending));
    if (h->receives) EXPECT_OK(kolo_irecv(h->dst, e->count, e->type, from, comm, &h->pending));
    run->aside[c] = h;
    switch (program_draw(&run->own) % 4) {
    case 0:
        EXPECT_OK(kolo_pending_wait(h->pending));
        h->pending = NULL;
        break;
    case 1:
        EXPECT_OK(kolo_pending_test(h->pending, &complete));
        break;
    default:
        return;
    }
    run->aside[c] = NULL;
}

void program_begin_aside(run_t *run, int c)
{
    int complete;
    for (int i = 0; i < COMMS; i++) {
        if (i == c || !run->aside[i]) continue;
        EXPECT_OK(kolo_pending_test(run->aside[i]->pending, &complete));
        run->aside[i] = NULL;
    }
}

/* Into a buffer with room to spare at times. */
static void receive(const run_t *run, held_t *h, int from)
{
    const event_t *e = h->e;
    EXPECT_OK(kolo_irecv_tag(h->dst, h->dst_count, e->type, e->any ? KOLO_ANY_SOURCE : from, e->tag,
                             run->comms[e->comm], NULL, &h->request));
}

static int sender(const run_t *run, const event_t *e)
{
    int list[MAX_RANKS], n = program_members(e->comm, run->r->rank, run->r->nranks, list);
    return program_place(list, n, e->root);
}

/* A receive of what nobody sends takes nothing. */
static void cancel_one(const run_t *run, const event_t *e)
{
    kolo_request_t request;
    char unused[8] = "";
    int complete = 1;
    EXPECT_OK(kolo_irecv_tag(unused, sizeof unused, KOLO_UINT8, KOLO_ANY_SOURCE, NEVER, run->comms[e->comm], NULL,
                             &request));
    EXPECT_OK(kolo_request_test(request, &complete));
    EXPECT(!complete);
    EXPECT_OK(kolo_request_cancel(request));
    EXPECT(kolo_request_wait(request, -1) == KOLO_ERR_ABORTED);
    EXPECT_OK(kolo_request_free(request));
}

/* A message to itself has two requests, and two places. */
void program_call_tagged(run_t *run, const event_t *e, int from, int to)
{
    int c = e->comm, me = run->ranks[c];
    if (me == from) {
        held_t *h = program_hold(run, e, e->count, 0);
        h->sends = true;
        test_fill(h->src, e->count, e->type, KOLO_SUM, e->seed, from, 0);
        EXPECT_OK(kolo_isend_tag(h->src, e->count, e->type, to, e->tag, run->comms[c], NULL, &h->request));
    }
    if (me != to) return;
    held_t *h = program_hold(run, e, 0, e->count + program_draw(&run->own) % ROOM);
    h->receives = true;
    if (program_draw(&run->own) % 8 == 0) cancel_one(run, e);
    run->later = run->later || program_draw(&run->own) % 4 == 0;
    if (run->later) return; /* and all after it, for their order */
    receive(run, h, from);
    if (run->cut_left || program_draw(&run->own) % 4) return;
    program_begin_aside(run, -1);
    EXPECT_OK(kolo_request_wait(h->request, -1));
}

static void look_at(const run_t *run, const held_t *h)
{
    kolo_received_t got = {0};
    const event_t *e = h->e;
    EXPECT_OK(kolo_request_get_received(h->request, &got));
    size_t bytes = e->count * kolo_type_size(e->type);
    for (size_t i = bytes; i < h->dst_count * kolo_type_size(e->type); i++) EXPECT((uint8_t)h->dst[i] == 0xa5);
    EXPECT(got.source == sender(run, e) && got.tag == e->tag && got.bytes == bytes);
}

void program_wait_requests(run_t *run)
{
    kolo_request_t all[FLUSH * 2];
    int n = 0, at = 0;
    for (size_t i = 0; i < run->nheld; i++) {
        held_t *h = &run->held[i];
        if (h->e->kind == TAGGED && h->receives && !h->request) receive(run, h, sender(run, h->e));
        if (h->request) all[n++] = h->request;
    }
    run->later = false;
    for (int i = n; i > 0 && at >= 0; i--) { /* in the order in which they end */
        EXPECT_OK(kolo_request_wait_any(all, n, -1, &at));
        if (at < 0) break;
        EXPECT_OK(kolo_request_wait(all[at], 0));
        all[at] = NULL;
    }
    for (size_t i = run->nheld; i-- > 0;) {
        held_t *h = &run->held[i];
        EXPECT_OK(kolo_pending_wait(h->pending));
        if (h->request && h->receives) look_at(run, h);
        EXPECT_OK(kolo_request_free(h->request));
        h->pending = NULL;
        h->request = NULL;
    }
}
