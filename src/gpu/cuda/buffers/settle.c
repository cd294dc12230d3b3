/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory after an abort. A peer's kernel stores into this rank's buffers only between two flags: this rank's, that
 * it has come to an operation (begin), and the peer's, that it is through (end). When the kernels here were ended,
 * what they have begun is withdrawn, so that nobody comes to it any more; who is in it already is waited for, but
 * not long: it is told of the abort, and then its kernels end as those here did. Nor is the GPU waited for without
 * end: a stream of the program may hold its copies up. They go through pinned memory, since the driver waits
 * itself for a copy to or from other memory.
 */
#include "base/clock.h"
#include "base/wait.h"
#include "gpu/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_MS 100
#define COPIES_MS 2000
#define PAST      0x40000000u /* a flag so far back lets nobody go on */
#define WITHDRAWN 1u          /* in the unused word of an offer */

typedef struct {
    kolo_cuda_meeting_t *mine, *theirs; /* rows: by block, two in turn */
    kolo_message_meeting_t *sent, *taken;
} rows_t;

typedef struct {
    kolo_cuda_state_t *s;
    kolo_cu_stream_t stream; /* of its own: the program may hold the others up */
    uint64_t end;            /* of copies */
    char *stage;             /* pinned */
    bool late;               /* a copy did not end in time */
    rows_t rows[KOLO_CUDA_RANKS];
} settle_t;

enum { EACH = KOLO_CUDA_FLAG / 2, MEETINGS = 2 * KOLO_CUDA_GRID };

static kolo_cuda_meeting_t *meeting(kolo_cuda_meeting_t *row, size_t i)
{
    return (kolo_cuda_meeting_t *)(void *)((char *)row + i * EACH);
}
static kolo_message_meeting_t *message(kolo_message_meeting_t *row, size_t i)
{
    return (kolo_message_meeting_t *)(void *)((char *)row + i * KOLO_CUDA_FLAG);
}

/* Copies part by part, through the stage. inwards: to the host. */
static bool copy(settle_t *w, uint64_t at, void *host, size_t bytes, bool inwards)
{
    uint64_t stage = (uint64_t)(uintptr_t)w->stage;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = KOLO_MIN(bytes - done, KOLO_CUDA_STAGE);
        if (!inwards) memcpy(w->stage, (char *)host + done, n);
        uint64_t to = inwards ? stage : at + done, from = inwards ? at + done : stage;
        if (w->s->api->memcpy_async(to, from, n, w->stream)) return false;
        kolo_status_t status = kolo_cuda_drain(w->s->device, w->stream, w->end, "copy flags after an abort");
        w->late = status == KOLO_ERR_TIMEOUT;
        if (status != KOLO_OK) return false;
        if (inwards) memcpy((char *)host + done, w->stage, n);
    }
    return true;
}

/* Returns where `from` tells `to` something: flags and offers of collectives, or of messages. */
static uint64_t row_at(const kolo_cuda_state_t *s, int to, int from, bool messages, size_t *bytes)
{
    uint64_t region = (uint64_t)(uintptr_t)s->regions.address[to];
    *bytes = (messages ? s->layout.message_blocks : (size_t)KOLO_CUDA_GRID) * KOLO_CUDA_FLAG;
    return region + (messages ? s->layout.message_meetings : s->layout.meetings) + (uint64_t)from * *bytes;
}

static bool fetch(settle_t *w, int to, int from, bool messages, void *row)
{
    size_t bytes;
    uint64_t at = row_at(w->s, to, from, messages, &bytes);
    return copy(w, at, row, bytes, true);
}

static bool fetch_theirs(settle_t *w, int peer)
{
    const rows_t *r = &w->rows[peer];
    int me = w->s->regions.rank;
    return fetch(w, me, peer, false, r->theirs) && fetch(w, me, peer, true, r->taken);
}

/* Tells whether this rank came to it, and is not known to have left it. */
static bool is_open(const kolo_cuda_meeting_t *m)
{
    return m->reachable && m->begin != m->end;
}

static bool withdraw(settle_t *w, int peer)
{
    rows_t *r = &w->rows[peer];
    int me = w->s->regions.rank;
    size_t bytes, any = 0;
    uint32_t blocks = w->s->layout.message_blocks;
    r->mine = malloc((size_t)KOLO_CUDA_GRID * KOLO_CUDA_FLAG);
    r->theirs = malloc((size_t)KOLO_CUDA_GRID * KOLO_CUDA_FLAG);
    r->sent = malloc((size_t)blocks * KOLO_CUDA_FLAG);
    r->taken = malloc((size_t)blocks * KOLO_CUDA_FLAG);
    if (!r->mine || !r->theirs || !r->sent || !r->taken) return false;
    if (!fetch(w, peer, me, false, r->mine) || !fetch(w, peer, me, true, r->sent) || !fetch_theirs(w, peer))
        return false;
    for (size_t i = 0; i < MEETINGS; i++)
        if (is_open(meeting(r->mine, i))) any++, meeting(r->mine, i)->begin -= PAST;
    uint64_t at = row_at(w->s, peer, me, false, &bytes);
    if (any && !copy(w, at, r->mine, bytes, false)) return false;
    for (uint32_t i = any = 0; i < blocks; i++) {
        kolo_message_meeting_t *m = message(r->sent, i);
        if (m->there && m->begin != message(r->taken, i)->end) any++, m->begin -= PAST, m->pad = WITHDRAWN;
    }
    at = row_at(w->s, peer, me, true, &bytes);
    return !any || copy(w, at, r->sent, bytes, false);
}

/* Tells whether a peer is in it. Of a message nobody knows whether its sender has seen the offer. */
static bool is_inside(const settle_t *w, int peer)
{
    const rows_t *r = &w->rows[peer];
    for (size_t i = 0; i < MEETINGS; i++) {
        const kolo_cuda_meeting_t *mine = meeting(r->mine, i), *theirs = meeting(r->theirs, i);
        if (is_open(theirs) && theirs->begin == mine->begin + PAST) return true;
    }
    for (uint32_t i = 0; i < w->s->layout.message_blocks; i++) {
        const kolo_message_meeting_t *m = message(r->sent, i);
        if (m->pad == WITHDRAWN && message(r->taken, i)->end != m->begin + PAST) return true;
    }
    return false;
}

static bool is_any_inside(settle_t *w)
{
    bool inside = false;
    for (int p = 0; p < w->s->regions.nranks; p++) {
        if (p == w->s->regions.rank) continue;
        if (!fetch_theirs(w, p)) return false;
        inside = inside || is_inside(w, p);
    }
    return inside;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_cuda_state_t *s = arg;
    snprintf(buf, bytes, "rank %d" KOLO_WAIT_FOR "other ranks' kernels to leave its memory", s->regions.rank);
}

/* Waits a millisecond at least: then a flag that a peer has just stored is here. */
static void await(settle_t *w)
{
    kolo_wait_t wait;
    uint64_t soon = kolo_now_ns() + KOLO_NS_PER_MS;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(SETTLE_MS), describe, w->s, 1);
    while ((kolo_now_ns() < soon || is_any_inside(w)) && kolo_wait_pause(&wait) == KOLO_OK) {
    }
    kolo_wait_end(&wait);
    kolo_error_clear(); /* who is still inside then has been told */
}

void kolo_cuda_settle(kolo_cuda_state_t *s)
{
    settle_t *w = s->regions.nranks > 1 ? calloc(1, sizeof *w) : NULL;
    int mode = KOLO_CU_CAPTURE_RELAXED; /* the program may be capturing */
    if (!w) return;
    w->s = s;
    w->end = kolo_deadline_ms(COPIES_MS);
    w->stage = (char *)(s->mailbox + 1);
    s->api->capture_mode(&mode);
    bool good = !s->api->stream_create(&w->stream, KOLO_CU_STREAM_NON_BLOCKING);
    for (int p = 0; p < s->regions.nranks && good; p++)
        if (p != s->regions.rank) good = withdraw(w, p);
    if (good) await(w);
    if (w->late)
        s->unsettled = w->stream;
    else if (w->stream)
        s->api->stream_destroy(w->stream);
    s->api->capture_mode(&mode);
    if (w->late) kolo_error_clear(); /* the log tells (keep.c) */
    for (int p = 0; p < s->regions.nranks; p++) {
        free(w->rows[p].mine);
        free(w->rows[p].theirs);
        free(w->rows[p].sent);
        free(w->rows[p].taken);
    }
    free(w);
}
