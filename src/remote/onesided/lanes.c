/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes by lanes (lanes.h): writes that are cut into pieces, which any lane of the end may take, and the
 * reading of pieces straight to where they belong. Each piece has a frame as its head: KOLO_ONESIDED_PIECE, the
 * number of the write as the key, the place in the write as the address.
 */
#include "remote/onesided/lanes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE    (1u << 20)
#define EXPECTED 256u       /* announced writes that are not there yet */
#define AT_ONCE  (1u << 20) /* bytes of one turn of a lane, so that others have theirs */

/* ---- life ---- */

kolo_status_t kolo_lanes_create(kolo_onesided_t *end, kolo_lanes_t **out)
{
    kolo_lanes_t *lanes = calloc(1, sizeof *lanes);
    if (lanes == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for lanes to %s", end->who);
    lanes->domain = end->domain;
    lanes->who = end->who;
    lanes->last_out = &lanes->out;
    lanes->last_in = &lanes->in;
    pthread_mutex_init(&lanes->lock, NULL);
    *out = lanes;
    return KOLO_OK;
}

static void free_transfers(kolo_transfer_t *transfer)
{
    while (transfer) {
        kolo_transfer_t *next = transfer->next;
        free(transfer);
        transfer = next;
    }
}

void kolo_lanes_destroy(kolo_lanes_t *lanes)
{
    if (lanes == NULL) return;
    for (uint32_t i = 0; i < lanes->n; i++) {
        kolo_movers_remove(lanes->all[i]);
        kolo_socket_close(&lanes->all[i]->socket);
        free(lanes->all[i]);
    }
    free_transfers(lanes->out);
    free_transfers(lanes->in);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
}

kolo_status_t kolo_lanes_add(kolo_lanes_t *lanes, kolo_socket_t socket)
{
    kolo_onesided_lane_t *lane = lanes->n < KOLO_LANES_MAX ? calloc(1, sizeof *lane) : NULL;
    if (lane == NULL) {
        kolo_socket_close(&socket);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no room for one more lane of %s", lanes->who);
    }
    lane->of = lanes;
    lane->socket = socket;
    pthread_mutex_lock(&lanes->lock);
    lanes->all[lanes->n++] = lane;
    pthread_mutex_unlock(&lanes->lock);
    kolo_status_t status = kolo_movers_add(lanes->domain, lane);
    if (status != KOLO_OK) {
        pthread_mutex_lock(&lanes->lock);
        lanes->n--;
        pthread_mutex_unlock(&lanes->lock);
        kolo_socket_close(&lane->socket);
        free(lane);
        return status;
    }
    return KOLO_OK;
}

size_t kolo_lanes_memory(const kolo_lanes_t *lanes)
{
    return lanes ? sizeof *lanes + lanes->n * sizeof(kolo_onesided_lane_t) : 0;
}

static void kick_all(kolo_lanes_t *lanes)
{
    for (uint32_t i = 0; i < lanes->n; i++) kolo_movers_kick(lanes->all[i]->mover);
}

/* Ends a lane, and with it the connection; on a mover. The first reason counts. What the peer has written to other
 * lanes before it left is read all the same. */
static void fail(kolo_onesided_lane_t *lane, kolo_status_t status)
{
    kolo_lanes_t *lanes = lane->of;
    lane->ended = true;
    pthread_mutex_lock(&lanes->lock);
    if (atomic_load(&lanes->failed) == KOLO_OK) {
        snprintf(lanes->why, sizeof lanes->why, "%s", kolo_error_text());
        atomic_store(&lanes->failed, (int)status);
    }
    if (++lanes->nended == lanes->n || status != KOLO_ERR_REMOTE) atomic_store(&lanes->hopeless, true);
    pthread_mutex_unlock(&lanes->lock);
    kolo_waker_wake(&lanes->domain->waker);
}

static kolo_status_t broken(const kolo_lanes_t *lanes, int err)
{
    if (err == 0 || err == ECONNRESET || err == EPIPE)
        return kolo_fail(KOLO_ERR_REMOTE, "%s has closed a lane of the connection, or has died", lanes->who);
    if (err == EBADMSG) return kolo_fail(KOLO_ERR_PROTOCOL, "a lane of %s: %s", lanes->who, KOLO_SEAL_ALTERED);
    return kolo_fail_errno(KOLO_ERR_REMOTE, err, "a lane of the connection with %s is broken", lanes->who);
}

/* Counts bytes of a transfer that have been moved; the end's thread hears of the last. */
static void advance(kolo_lanes_t *lanes, kolo_transfer_t *transfer, uint64_t n)
{
    uint64_t all = transfer->bytes; /* it may be gone as soon as all is done */
    if (atomic_fetch_add_explicit(&transfer->done, n, memory_order_acq_rel) + n == all)
        kolo_waker_wake(&lanes->domain->waker);
}

/* ---- out ---- */

bool kolo_lanes_send(kolo_lanes_t *lanes, const kolo_onesided_write_t *write)
{
    kolo_transfer_t *transfer = lanes->n > 0 ? calloc(1, sizeof *transfer) : NULL;
    if (transfer == NULL) return false;
    transfer->data = (char *)(uintptr_t)write->data;
    transfer->bytes = write->bytes;
    transfer->piece = KOLO_MIN((uint64_t)PIECE, KOLO_ROUND_UP(KOLO_DIV_UP(write->bytes, lanes->n), 64u));
    transfer->cookie = write->cookie;
    pthread_mutex_lock(&lanes->lock);
    transfer->id = lanes->next_out++;
    *lanes->last_out = transfer;
    lanes->last_out = &transfer->next;
    pthread_mutex_unlock(&lanes->lock);
    kick_all(lanes);
    kolo_onesided_count_parted();
    return true;
}

static bool is_done(const kolo_transfer_t *transfer)
{
    return atomic_load_explicit(&transfer->done, memory_order_acquire) == transfer->bytes;
}

/* Takes the first one off a list. */
static kolo_transfer_t *take_off(kolo_lanes_t *lanes, kolo_transfer_t **first, kolo_transfer_t ***last)
{
    pthread_mutex_lock(&lanes->lock);
    kolo_transfer_t *transfer = *first;
    *first = transfer->next;
    if (*first == NULL) *last = first;
    pthread_mutex_unlock(&lanes->lock);
    return transfer;
}

bool kolo_lanes_sent(kolo_lanes_t *lanes, uint64_t *cookie)
{
    while (lanes->out && is_done(lanes->out)) {
        kolo_transfer_t *transfer = take_off(lanes, &lanes->out, &lanes->last_out);
        *cookie = transfer->cookie;
        free(transfer);
        if (*cookie) return true;
    }
    return false;
}

static bool begin_piece(kolo_onesided_lane_t *lane)
{
    kolo_lanes_t *lanes = lane->of;
    pthread_mutex_lock(&lanes->lock);
    kolo_transfer_t *from = lanes->out;
    while (from && from->taken == from->bytes) from = from->next;
    if (from) {
        lane->out_at = from->taken;
        lane->out_bytes = KOLO_MIN(from->piece, from->bytes - from->taken);
        from->taken += lane->out_bytes;
    }
    pthread_mutex_unlock(&lanes->lock);
    if (from == NULL) return false;
    kolo_onesided_frame_t head = {
        .flags = KOLO_ONESIDED_PIECE, .bytes = lane->out_bytes, .address = lane->out_at, .key = from->id};
    kolo_onesided_frame_encode(&head, lane->out_head);
    lane->from = from;
    lane->out_sent = 0;
    return true;
}

/* Writes as much as a turn may take. KOLO_OK: its turn is over. KOLO_IN_PROGRESS: nothing can be done now. */
static kolo_status_t push(kolo_onesided_lane_t *lane)
{
    for (size_t moved = 0; moved < AT_ONCE;) {
        if (lane->from == NULL && !begin_piece(lane)) return KOLO_IN_PROGRESS;
        uint64_t head = KOLO_MIN(lane->out_sent, (uint64_t)KOLO_ONESIDED_FRAME_BYTES), at = lane->out_sent - head;
        struct iovec iov[2] = {{lane->out_head + head, (size_t)(KOLO_ONESIDED_FRAME_BYTES - head)},
                               {lane->from->data + lane->out_at + at, (size_t)(lane->out_bytes - at)}};
        bool begun = head == KOLO_ONESIDED_FRAME_BYTES;
        ssize_t n = kolo_socket_send(&lane->socket, begun ? iov + 1 : iov, begun ? 1 : 2);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n < 0) return broken(lane->of, errno);
        lane->out_sent += (uint64_t)n;
        moved += (size_t)n;
        if (lane->out_sent < KOLO_ONESIDED_FRAME_BYTES + lane->out_bytes) continue;
        kolo_transfer_t *from = lane->from;
        lane->from = NULL;
        advance(lane->of, from, lane->out_bytes);
    }
    return KOLO_OK;
}

/* ---- in ---- */

bool kolo_lanes_can_expect(const kolo_lanes_t *lanes, const char *to, uint64_t bytes)
{
    if (lanes->nin >= EXPECTED) return false;
    for (const kolo_transfer_t *t = lanes->in; t; t = t->next)
        if (to < t->data + t->bytes && t->data < to + bytes) return false;
    return true;
}

kolo_status_t kolo_lanes_expect(kolo_lanes_t *lanes, const kolo_onesided_frame_t *frame, char *to)
{
    kolo_transfer_t *transfer = calloc(1, sizeof *transfer);
    if (transfer == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for what %s sends", lanes->who);
    transfer->data = to;
    transfer->bytes = frame->bytes;
    transfer->key = frame->key;
    transfer->flags = frame->flags;
    transfer->number = frame->number;
    pthread_mutex_lock(&lanes->lock);
    transfer->id = lanes->next_in++;
    *lanes->last_in = transfer;
    lanes->last_in = &transfer->next;
    bool kick = lanes->waiting > 0;
    lanes->waiting = 0;
    pthread_mutex_unlock(&lanes->lock);
    lanes->nin++;
    if (kick) kick_all(lanes);
    return KOLO_OK;
}

kolo_status_t kolo_lanes_next(kolo_lanes_t *lanes, kolo_onesided_event_t *event, bool *notify)
{
    int failed = atomic_load_explicit(&lanes->failed, memory_order_acquire);
    if (lanes->in && is_done(lanes->in)) { /* what came before the end is seen before it */
        kolo_transfer_t *transfer = take_off(lanes, &lanes->in, &lanes->last_in);
        lanes->nin--;
        event->number = transfer->number;
        event->bytes = transfer->bytes;
        *notify = transfer->flags & KOLO_ONESIDED_NOTIFY;
        free(transfer);
        return KOLO_OK;
    }
    if (failed != KOLO_OK) return kolo_fail((kolo_status_t)failed, "%s", lanes->why);
    return KOLO_IN_PROGRESS;
}

void kolo_lanes_forget(kolo_lanes_t *lanes, uint64_t key)
{
    bool any = false;
    for (kolo_transfer_t *transfer = lanes->in; transfer; transfer = transfer->next) {
        if (transfer->key != key || is_done(transfer)) continue;
        atomic_store(&transfer->cancelled, true);
        any = true;
    }
    for (uint32_t i = 0; any && i < lanes->n; i++) kolo_movers_pass(lanes->all[i]->mover);
}

/* Finds the place of the piece whose head has arrived. KOLO_IN_PROGRESS: its write is not announced yet. */
static kolo_status_t look_up(kolo_onesided_lane_t *lane)
{
    kolo_lanes_t *lanes = lane->of;
    const char *wrong = kolo_onesided_frame_decode(lane->head, sizeof lane->head, &lane->frame);
    const kolo_onesided_frame_t *f = &lane->frame;
    if (wrong == NULL && (f->flags != KOLO_ONESIDED_PIECE || f->number != 0)) wrong = "it is no piece of a write";
    pthread_mutex_lock(&lanes->lock);
    kolo_transfer_t *to = lanes->in;
    while (to && to->id != f->key) to = to->next;
    bool early = wrong == NULL && to == NULL && f->key >= lanes->next_in;
    if (early) lanes->waiting++;
    if (wrong == NULL && !early &&
        (to == NULL || f->address > to->bytes || f->bytes > to->bytes - f->address ||
         f->bytes > to->bytes - to->taken))
        wrong = "it lies outside of its write, or comes twice";
    if (wrong == NULL && !early) to->taken += f->bytes;
    pthread_mutex_unlock(&lanes->lock);
    if (early) return KOLO_IN_PROGRESS;
    if (wrong) {
        kolo_onesided_count(0, 0, 0, 1);
        return kolo_fail(KOLO_ERR_PROTOCOL, "a piece of %s (%llu bytes): %s", lanes->who,
                         (unsigned long long)f->bytes, wrong);
    }
    lane->to = to;
    lane->in_done = 0;
    return KOLO_OK;
}

/* Reads what is left of the piece, and the next head. */
static kolo_status_t read_on(kolo_onesided_lane_t *lane, size_t *moved)
{
    const kolo_lanes_t *lanes = lane->of;
    uint64_t left = lane->to ? lane->frame.bytes - lane->in_done : 0;
    struct iovec iov[2] = {{NULL, 0}, {lane->head + lane->head_got, sizeof lane->head - lane->head_got}};
    if (lane->to) {
        if (atomic_load(&lane->to->cancelled))
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s wrote into a window that was hidden", lanes->who);
        iov[0] = (struct iovec){lane->to->data + lane->frame.address + lane->in_done, (size_t)left};
    }
    ssize_t n = kolo_socket_recv(&lane->socket, left ? iov : iov + 1, left ? 2 : 1);
    if (n < 0 && errno == EINTR) return KOLO_OK;
    if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
    if (n <= 0) return broken(lanes, n < 0 ? errno : 0);
    uint64_t of_piece = KOLO_MIN((uint64_t)n, left);
    lane->in_done += of_piece;
    lane->head_got += (size_t)((uint64_t)n - of_piece);
    *moved += (size_t)n;
    return KOLO_OK;
}

static kolo_status_t pull(kolo_onesided_lane_t *lane)
{
    for (size_t moved = 0; moved < AT_ONCE;) {
        if (lane->to == NULL && lane->head_got == sizeof lane->head) {
            KOLO_TRY(look_up(lane));
            lane->head_got = 0; /* the next one comes behind the piece */
        }
        KOLO_TRY(read_on(lane, &moved));
        if (lane->to == NULL || lane->in_done < lane->frame.bytes) continue;
        kolo_transfer_t *to = lane->to;
        lane->to = NULL;
        advance(lane->of, to, lane->frame.bytes);
    }
    return KOLO_OK;
}

bool kolo_lanes_step(kolo_onesided_lane_t *lane)
{
    if (lane->ended) return false;
    kolo_status_t out = atomic_load(&lane->of->failed) == KOLO_OK ? push(lane) : KOLO_IN_PROGRESS;
    kolo_status_t in = out == KOLO_OK || out == KOLO_IN_PROGRESS ? pull(lane) : out;
    if (in == KOLO_OK || in == KOLO_IN_PROGRESS) return out == KOLO_OK || in == KOLO_OK;
    fail(lane, in);
    return false;
}
