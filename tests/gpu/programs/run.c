/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's share of random programs. What need not be alike on all ranks is drawn here: streams, where groups of
 * messages are cut and in which order they are posted, which streams are held for a while or destroyed. See
 * programs.h.
 */
#include "programs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A stream hangs when it does not end in so many naps (100 s on an idle machine): on a busy one a nap is longer,
 * and what is waited for is slower in the same measure. */
enum { STREAMS = 3, DRAIN_NAPS = 400000 };

typedef struct {
    kit_team_t *t;
    kit_rank_t *r;
    program_t p;
    model_t m;
    uint64_t own; /* what this rank draws by itself */
    kolo_comm_t comms[COMMS];
    void *streams[STREAMS], *graphs[GRAPHS], *capturing;
    bool fallen; /* the communicator that is aborted */
} run_t;

static void *any_stream(run_t *u)
{
    return u->capturing ? u->capturing : u->streams[kit_random(&u->own) % STREAMS];
}

static char *cell(const run_t *u, int comm, int at)
{
    return u->r->buffer + (size_t)(comm * CELLS + at) * u->m.room * sizeof(uint32_t);
}

/* What is asked of an aborted communicator may fail from then on, or from before on: others may have been sooner.
 */
static bool went(const run_t *u, int comm, kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return true;
    if (comm == u->p.aborted) return true;
    return KIT_FAIL("rank %d: %s on communicator %d: %s: %s", u->r->rank, what, comm, kolo_status_string(status),
                    kolo_get_last_error(NULL));
}

/* ---- calls ---- */

/* A group of some messages that follow each other, receives first or as they come, each on a stream. */
static bool post(run_t *u, const program_call_t *c, int first, int n)
{
    kolo_comm_t comm = u->comms[c->comm];
    void *stream = any_stream(u);
    int me = program_rank(&u->p, c->comm, u->r->rank);
    bool receives_first = kit_random(&u->own) & 1, several = (kit_random(&u->own) & 3) == 0;
    kolo_status_t status = kolo_group_start();
    for (int pass = 0; pass < 2 && status == KOLO_OK; pass++)
        for (int i = first; i < first + n && status == KOLO_OK; i++) {
            const program_message_t *g = &u->p.messages[i];
            bool sends = g->from == me && (receives_first ? pass == 1 : pass == 0);
            bool takes = g->to == me && pass == 0;
            size_t at = g->at * sizeof(uint32_t);
            if (several) stream = any_stream(u);
            if (sends)
                status = kolo_send(cell(u, c->comm, c->from) + at, g->count, KOLO_UINT32, g->to, comm, stream);
            if (takes && status == KOLO_OK)
                status = kolo_recv(cell(u, c->comm, c->to) + at, g->count, KOLO_UINT32, g->from, comm, stream);
        }
    kolo_status_t end = kolo_group_end();
    return went(u, c->comm, status == KOLO_OK ? end : status, "messages");
}

static bool messages(run_t *u, const program_call_t *c)
{
    int at = c->first, end = c->first + c->n;
    while (at < end) {
        int n = (kit_random(&u->own) & 1) ? end - at : 1 + (int)(kit_random(&u->own) % (uint64_t)(end - at));
        if (!post(u, c, at, n)) return false;
        at += n;
    }
    return true;
}

static bool call(run_t *u, const program_call_t *c)
{
    const char *src = cell(u, c->comm, c->from);
    char *dst = cell(u, c->comm, c->to);
    kolo_comm_t comm = u->comms[c->comm];
    kolo_status_t status = KOLO_OK;
    void *stream = any_stream(u);
    if (c->comm == u->p.aborted && u->fallen) return true;
    switch (c->kind) {
    case SUM:
        status = kolo_all_reduce(src, dst, c->count, KOLO_UINT32, KOLO_SUM, comm, stream);
        break;
    case BROADCAST:
        status = kolo_broadcast(src, dst, c->count, KOLO_UINT32, c->root, comm, stream);
        break;
    case REDUCE:
        status = kolo_reduce(src, dst, c->count, KOLO_UINT32, KOLO_SUM, c->root, comm, stream);
        break;
    case GATHER:
        status = kolo_all_gather(src, dst, c->count, KOLO_UINT32, comm, stream);
        break;
    case SCATTER_SUM:
        status = kolo_reduce_scatter(src, dst, c->count, KOLO_UINT32, KOLO_SUM, comm, stream);
        break;
    case EXCHANGE:
        status = kolo_all_to_all(src, dst, c->count, KOLO_UINT32, comm, stream);
        break;
    default:
        return messages(u, c);
    }
    return went(u, c->comm, status, "a call");
}

static bool capture(run_t *u, const program_step_t *s)
{
    void *plan = NULL, *stream = any_stream(u);
    int last = s->n - s->beside, beside = s->beside ? (int)(kit_random(&u->own) % (uint64_t)(last + 1)) : -1;
    for (int i = 0; i < last && beside >= 0; i++) /* calls of one communicator are in one order on all ranks */
        if (u->p.calls[s->first + i].comm == u->p.calls[s->first + last].comm) beside = last;
    bool good = kit_capture(u->r, stream);
    for (int i = 0; i <= last && good; i++) {
        if (i == beside) { /* here or there, but it is before every replay */
            void *others[STREAMS];
            memcpy(others, u->streams, sizeof others);
            for (int k = 0; k < STREAMS; k++)
                if (u->streams[k] == stream) u->streams[k] = others[(k + 1) % STREAMS];
            u->capturing = NULL;
            good = call(u, &u->p.calls[s->first + last]);
            memcpy(u->streams, others, sizeof others);
        }
        u->capturing = stream;
        if (i < last) good = good && call(u, &u->p.calls[s->first + i]);
    }
    u->capturing = NULL;
    good = kit_captured(u->r, stream, &plan) && good;
    return good && kit_graph(u->r, plan, &u->graphs[s->graph]);
}

static bool step(run_t *u, const program_step_t *s)
{
    void **stream = &u->streams[kit_random(&u->own) % STREAMS];
    switch (s->kind) {
    case CALL:
        return call(u, &u->p.calls[s->first]);
    case CAPTURE:
        return capture(u, s);
    case REPLAY:
        return kit_replay(u->r, u->graphs[s->graph], *stream);
    case DESTROY_STREAM:
        if (kit_random(&u->own) & 1) return true;
        kit_stream_end(u->r, *stream);
        return (*stream = kit_stream_new(u->r)) != NULL;
    default:
        if (s->rank != u->r->rank) return true;
        u->fallen = true;
        kit_let_go(u->r); /* it waits for what is queued to end */
        return KIT_OK(kolo_comm_abort(u->comms[s->comm]));
    }
}

/* ---- begin and end ---- */

static bool communicators(run_t *u)
{
    bool good = true;
    for (int c = 1; c < COMMS && good; c++) {
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        if (!u->p.made[c]) continue;
        if (u->comms[c]) good = KIT_OK(kolo_comm_destroy(u->comms[c]));
        u->comms[c] = NULL;
        good = good &&
               KIT_OK(kolo_comm_split(u->comms[0], 0, program_rank(&u->p, c, u->r->rank), &u->comms[c], &config));
    }
    return good;
}

static bool fill(run_t *u)
{
    model_fill(&u->m, &u->p);
    size_t each = u->m.room * sizeof(uint32_t), bytes = u->p.room * sizeof(uint32_t);
    for (int i = 0; i < COMMS * CELLS; i++) {
        memcpy(u->r->image + (size_t)i * each, model_cell(&u->m, u->r->rank, i / CELLS, i % CELLS), bytes);
        if (!kit_upload(u->r, (size_t)i * each, bytes, u->streams[0])) return false;
    }
    return kit_sync(u->r, u->streams[0]);
}

static bool drained(run_t *u)
{
    int naps = 0;
    for (int s = 0; s < STREAMS; s++) {
        kolo_status_t status;
        while ((status = kit_query(u->r, u->streams[s])) == KOLO_IN_PROGRESS) {
            if (naps++ > DRAIN_NAPS) return KIT_FAIL("rank %d: hangs on stream %d", u->r->rank, s);
            kit_nap();
        }
        if (status != KOLO_OK) return false;
    }
    return true;
}

/* Streams that are gone had calls, too: each communicator is waited for. */
static bool waited(run_t *u)
{
    bool good = drained(u);
    if (u->p.aborted > 0) {
        if (!u->fallen) good = KIT_OK(kolo_comm_abort(u->comms[u->p.aborted])) && good;
        u->comms[u->p.aborted] = NULL;
        good = drained(u) && good;
    }
    for (int c = 0; c < COMMS && good; c++)
        if (u->comms[c]) good = KIT_OK(kolo_comm_synchronize(u->comms[c]));
    return good;
}

static bool is_right(run_t *u)
{
    size_t each = u->m.room * sizeof(uint32_t), bytes = u->p.room * sizeof(uint32_t);
    for (int i = 0; i < COMMS * CELLS; i++)
        if (!kit_download(u->r, (size_t)i * each, bytes, u->streams[1])) return false;
    if (!kit_sync(u->r, u->streams[1])) return false;
    model_run(&u->m, &u->p);
    for (int i = 0; i < COMMS * CELLS; i++) {
        const uint32_t *want = model_cell(&u->m, u->r->rank, i / CELLS, i % CELLS);
        const uint32_t *back = (const uint32_t *)(const void *)(u->r->back + (size_t)i * each);
        if (i / CELLS == u->p.aborted || memcmp(want, back, bytes) == 0) continue;
        uint32_t k = 0;
        while (want[k] == back[k]) k++;
        return KIT_FAIL("rank %d: communicator %d, cell %d, element %u of %u is %#x, not %#x", u->r->rank,
                        i / CELLS, i % CELLS, k, u->p.room, back[k], want[k]);
    }
    return true;
}

/* Behind an abort on all ranks, whose streams have come to their ends, the memory is the program's. */
static bool refilled(run_t *u)
{
    size_t each = u->m.room * sizeof(uint32_t), bytes = u->p.room * sizeof(uint32_t);
    size_t from = (size_t)u->p.aborted * CELLS * each;
    memset(u->r->image + from, 0x5a, CELLS * each);
    for (int i = 0; i < CELLS; i++)
        if (!kit_upload(u->r, from + (size_t)i * each, bytes, u->streams[0])) return false;
    if (!kit_sync(u->r, u->streams[0])) return false;
    kit_nap();
    for (int i = 0; i < CELLS; i++)
        if (!kit_download(u->r, from + (size_t)i * each, bytes, u->streams[0])) return false;
    if (!kit_sync(u->r, u->streams[0])) return false;
    for (int i = 0; i < CELLS; i++)
        for (size_t k = 0; k < bytes; k++)
            if (u->r->back[from + (size_t)i * each + k] != 0x5a)
                return KIT_FAIL("rank %d: memory was written to after an abort", u->r->rank);
    return true;
}

static bool one(run_t *u)
{
    uint64_t held = kit_random(&u->own);
    bool good = communicators(u) && fill(u);
    u->fallen = false;
    if (!kit_meet(u->t)) return false;
    if (good && held % 4 == 0) good = kit_hold(u->r, u->streams[held / 4 % STREAMS]);
    for (int i = 0; i < u->p.nsteps && good; i++) good = step(u, &u->p.steps[i]);
    kit_let_go(u->r);
    if (!good) kit_give_up(u->t);
    good = waited(u) && good;
    if (!good && kit_leads(u->t)) program_print(&u->p);
    for (int g = 0; g < GRAPHS; g++) {
        if (good) kit_graph_end(u->graphs[g]);
        u->graphs[g] = NULL;
    }
    good = good && is_right(u);
    if (!kit_meet(u->t)) return false;
    return good && (u->p.aborted < 0 || refilled(u));
}

static bool opened(run_t *u)
{
    u->r = &u->t->ranks[0];
    u->own = u->t->options->seed * 77 + (uint64_t)u->r->rank;
    u->comms[0] = u->r->comm;
    uint32_t room = (uint32_t)(u->r->room / (COMMS * CELLS * sizeof(uint32_t)));
    if (!model_open(&u->m, u->r->nranks, room > 1u << 17 ? 1u << 17 : room)) return KIT_FAIL("out of memory");
    for (int s = 0; s < STREAMS; s++)
        if (!(u->streams[s] = kit_stream_new(u->r))) return false;
    return true;
}

bool conform_programs(kit_team_t *t)
{
    static run_t runs[KIT_RANKS];
    run_t *u = &runs[t->ranks[0].rank];
    char text[96];
    if (t->n > 1 || t->options->host) return true;
    *u = (run_t){.t = t};
    bool good = opened(u);
    for (int i = 0; i < t->options->programs; i++) {
        if (good) {
            program_draw(&u->p, t->options->seed, i, u->r->nranks, t->options->quick);
            good = one(u);
        }
        snprintf(text, sizeof text, "program %d of seed %llu", i, (unsigned long long)t->options->seed);
        if (!kit_case_end(t, good, text) || !good) return false;
    }
    for (int c = 1; c < COMMS; c++)
        if (u->comms[c]) good = KIT_OK(kolo_comm_destroy(u->comms[c])) && good;
    for (int s = 0; s < STREAMS; s++) kit_stream_end(u->r, u->streams[s]);
    model_close(&u->m);
    return kit_case_end(t, good, "the end of the programs");
}
