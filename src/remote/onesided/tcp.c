/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers over a socket: each write is a frame and its bytes. The receiving side looks the window up
 * before it takes a byte, and reads straight into it, so no byte is copied by us. Where the end has lanes, large
 * writes are frames only, and their bytes go by those (lanes.h); what is behind such a frame waits for them.
 */
#include "remote/onesided/lanes.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define AT_ONCE      (8u << 20) /* bytes of one call of progress, so that other ends have their turn */
#define TOGETHER     32         /* writes that one call of the system takes */
#define BUFFER_BYTES 65536u     /* frames that come together are read together */
#define LINGER_MS    500        /* of what one connection carries when another one has ended */

typedef struct {
    uint8_t bytes[KOLO_ONESIDED_FRAME_BYTES];
    size_t got;
    kolo_onesided_frame_t frame; /* once it is complete */
    char *to;
    uint64_t done;
    size_t budget;
    uint8_t *buffer; /* [first, last) of it is read and not used; made when it is first needed */
    size_t first, last;
    kolo_lanes_t *lanes; /* made when it is first needed */
    uint64_t linger_ns;  /* until then; 0: none has ended */
} reader_t;

static kolo_status_t offer(kolo_onesided_t *end, kolo_onesided_card_t *card)
{
    (void)card;
    end->state[KOLO_ONESIDED_TCP] = calloc(1, sizeof(reader_t));
    if (end->state[KOLO_ONESIDED_TCP] == NULL)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for the connection with %s", end->who);
    return KOLO_OK;
}

static kolo_status_t connect_end(kolo_onesided_t *end, const kolo_onesided_card_t *peer)
{
    (void)end;
    (void)peer;
    return KOLO_OK;
}

static void find_mailbox(const kolo_onesided_card_t *peer, kolo_onesided_window_t *mailbox)
{
    mailbox->key = peer->mailbox_key;
}

static kolo_status_t expose(kolo_onesided_t *end, void *base, size_t bytes, uint64_t *address, uint32_t *salt,
                            void **pin)
{
    (void)end;
    (void)base;
    (void)bytes;
    (void)salt;
    (void)pin;
    *address = 0; /* in its window */
    return KOLO_OK;
}

/* Keeps the owner's thread from sleeping: there is more to do. */
static kolo_status_t come_back(kolo_onesided_t *end)
{
    kolo_waker_wake(&end->domain->waker);
    return KOLO_IN_PROGRESS;
}

static bool is_sent(const kolo_pending_write_t *write)
{
    return write->head == KOLO_ONESIDED_FRAME_BYTES && (write->parted || write->done == write->w.bytes);
}

static void encode_head(const kolo_pending_write_t *write, uint8_t head[KOLO_ONESIDED_FRAME_BYTES])
{
    kolo_onesided_frame_t frame = {.flags = write->w.flags | (write->parted ? KOLO_ONESIDED_PARTED : 0u),
                                   .number = write->w.number,
                                   .bytes = write->w.bytes};
    if (frame.bytes > 0) {
        frame.address = write->to.address + write->w.offset;
        frame.key = write->to.key;
    }
    kolo_onesided_frame_encode(&frame, head);
}

/* Does a write that has not begun go by lanes? */
static void part(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    const reader_t *r = end->state[KOLO_ONESIDED_TCP];
    if (write->head == 0 && !write->parted && r->lanes && write->w.bytes >= (uint64_t)kolo_onesided_param_split &&
        kolo_onesided_param_lanes != 1)
        write->parted = kolo_lanes_send(r->lanes, &write->w);
}

/* Gathers what is left of this write and of those behind it, as much as one call may take; returns the parts. */
static size_t gather(kolo_onesided_t *end, kolo_pending_write_t *write, uint8_t heads[][KOLO_ONESIDED_FRAME_BYTES],
                     struct iovec *iov)
{
    size_t n = 0, bytes = 0;
    /* What a record holds that has gone out in part is settled: the next call counts by what the last one
     * gathered. */
    bool settled = kolo_socket_within(&end->socket);
    for (int i = 0; write && i < TOGETHER && bytes < AT_ONCE; write = write->next, i++) {
        if (!settled) part(end, write);
        encode_head(write, heads[i]);
        if (write->head < KOLO_ONESIDED_FRAME_BYTES)
            iov[n++] = (struct iovec){heads[i] + write->head, KOLO_ONESIDED_FRAME_BYTES - write->head};
        uint64_t rest = write->parted ? 0 : write->w.bytes - write->done;
        size_t left = (size_t)KOLO_MIN(rest, (uint64_t)AT_ONCE);
        if (left > 0) iov[n++] = (struct iovec){(char *)(uintptr_t)write->w.data + write->done, left};
        bytes += KOLO_ONESIDED_FRAME_BYTES + left;
        if (left < rest) break; /* what is behind it comes later */
    }
    return n;
}

static void note_sent(kolo_pending_write_t *write, size_t n)
{
    for (; n > 0; write = write->next) {
        size_t of_head = KOLO_MIN(n, (size_t)(KOLO_ONESIDED_FRAME_BYTES - write->head));
        write->head += (uint32_t)of_head;
        n -= of_head;
        size_t of_bytes = write->parted ? 0 : (size_t)KOLO_MIN((uint64_t)n, write->w.bytes - write->done);
        write->done += of_bytes;
        n -= of_bytes;
    }
}

/* Sends small writes together: a call of the system costs more than what it carries. */
static kolo_status_t push(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    uint8_t heads[TOGETHER][KOLO_ONESIDED_FRAME_BYTES];
    struct iovec iov[2 * TOGETHER];
    for (size_t moved = 0; !is_sent(write);) {
        if (moved >= AT_ONCE) return come_back(end);
        size_t parts = gather(end, write, heads, iov);
        ssize_t n = kolo_socket_send(&end->socket, iov, (int)parts);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n < 0) return kolo_onesided_broken(end, errno);
        note_sent(write, (size_t)n);
        moved += (size_t)n;
    }
    return KOLO_OK;
}

/* Takes a whole frame, if it may write where it says. */
static kolo_status_t take_frame(kolo_onesided_t *end, reader_t *r)
{
    const char *wrong = kolo_onesided_frame_decode(r->bytes, sizeof r->bytes, &r->frame);
    if (wrong == NULL && (r->frame.flags & KOLO_ONESIDED_PIECE)) wrong = "it belongs on a lane";
    if (wrong == NULL && r->frame.bytes > 0) {
        r->to = kolo_onesided_find(end, r->frame.key, r->frame.address, r->frame.bytes);
        if (r->to == NULL) wrong = "it writes where there is no window for it";
    }
    if (wrong == NULL) return KOLO_OK;
    kolo_onesided_count(0, 0, 0, 1);
    return kolo_fail(KOLO_ERR_PROTOCOL, "a frame of %s (%llu bytes): %s", end->who,
                     (unsigned long long)r->frame.bytes, wrong);
}

/* Fills the buffer, which is empty; with `bytes` that belong at `to` ahead of it. *n: those that came there. */
static kolo_status_t read_more(kolo_onesided_t *end, reader_t *r, void *to, uint64_t bytes, uint64_t *n)
{
    size_t most = (size_t)KOLO_MIN(bytes, (uint64_t)AT_ONCE);
    if (r->buffer == NULL && (r->buffer = malloc(BUFFER_BYTES)) == NULL)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for what %s sends", end->who);
    struct iovec iov[2] = {{to, most}, {r->buffer, BUFFER_BYTES}};
    for (;;) {
        ssize_t got = kolo_socket_recv(&end->socket, most ? iov : iov + 1, most ? 2 : 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (got <= 0) return kolo_onesided_broken(end, got < 0 ? errno : 0);
        *n = KOLO_MIN((uint64_t)got, (uint64_t)most);
        r->first = 0;
        r->last = (size_t)got - (size_t)*n;
        r->budget -= KOLO_MIN(r->budget, (size_t)got);
        return KOLO_OK;
    }
}

/* Moves *done on towards `bytes` at `to`, from what is buffered or comes now. */
static kolo_status_t take(kolo_onesided_t *end, reader_t *r, void *to, uint64_t bytes, uint64_t *done)
{
    uint64_t n = KOLO_MIN(bytes - *done, (uint64_t)(r->last - r->first));
    if (n > 0) {
        memcpy((char *)to + *done, r->buffer + r->first, (size_t)n);
        r->first += (size_t)n;
    } else { /* a small rest comes by the buffer, with what is behind it */
        bool large = bytes - *done >= BUFFER_BYTES / 8;
        KOLO_TRY(read_more(end, r, (char *)to + *done, large ? bytes - *done : 0, &n));
    }
    *done += n;
    return KOLO_OK;
}

static kolo_status_t take_head(kolo_onesided_t *end, reader_t *r)
{
    while (r->got < sizeof r->bytes) {
        uint64_t got = r->got;
        KOLO_TRY(take(end, r, r->bytes, sizeof r->bytes, &got));
        r->got = (size_t)got;
    }
    r->done = 0;
    return take_frame(end, r);
}

/* News of lanes: writes whose bytes are all sent; and the first that was announced, if it is there and has a
 * notice. */
static kolo_status_t pull_lanes(kolo_onesided_t *end, reader_t *r, kolo_onesided_event_t *event)
{
    uint64_t cookie;
    kolo_status_t status;
    bool notify = false;
    while (kolo_lanes_sent(r->lanes, &cookie)) KOLO_TRY(kolo_onesided_done(end, cookie));
    while ((status = kolo_lanes_next(r->lanes, event, &notify)) == KOLO_OK && !notify) {
    }
    return status;
}

/* Takes the announcement of a write whose bytes come by lanes. */
static kolo_status_t expect(kolo_onesided_t *end, reader_t *r)
{
    if (r->lanes == NULL) KOLO_TRY(kolo_lanes_create(end, &r->lanes));
    if (kolo_onesided_find(end, r->frame.key, r->frame.address, r->frame.bytes) != r->to) /* it may have waited */
        return kolo_fail(KOLO_ERR_PROTOCOL, "%s wrote into a window that was hidden", end->who);
    KOLO_TRY(kolo_lanes_expect(r->lanes, &r->frame, r->to));
    r->got = 0;
    return KOLO_OK;
}

static kolo_status_t linger(reader_t *r, kolo_status_t status)
{
    if (r->linger_ns == 0) r->linger_ns = kolo_deadline_ms(LINGER_MS);
    return kolo_now_ns() < r->linger_ns ? KOLO_IN_PROGRESS : status;
}

/* Reads the next frame. Where one connection has ended, what the other ones carry is read before that is told. */
static kolo_status_t await_head(kolo_onesided_t *end, reader_t *r, kolo_status_t lanes)
{
    kolo_status_t status = r->got < sizeof r->bytes ? take_head(end, r) : KOLO_OK;
    if (status == KOLO_IN_PROGRESS && lanes != KOLO_IN_PROGRESS) return linger(r, lanes);
    if (status == KOLO_ERR_REMOTE && r->lanes && r->lanes->nin > 0) return linger(r, status);
    return status;
}

static kolo_status_t pull(kolo_onesided_t *end, kolo_onesided_event_t *event)
{
    reader_t *r = end->state[KOLO_ONESIDED_TCP];
    r->budget = AT_ONCE;
    for (;;) {
        kolo_status_t lanes = r->lanes ? pull_lanes(end, r, event) : KOLO_IN_PROGRESS;
        if (lanes == KOLO_OK) return lanes;
        if (lanes != KOLO_IN_PROGRESS && r->lanes->nin > 0 && atomic_load(&r->lanes->hopeless)) return lanes;
        KOLO_TRY(await_head(end, r, lanes));
        bool parted = r->frame.flags & KOLO_ONESIDED_PARTED;
        bool waits =
            r->lanes && r->lanes->nin > 0 && !(parted && kolo_lanes_can_expect(r->lanes, r->to, r->frame.bytes));
        if (waits) return lanes == KOLO_IN_PROGRESS ? lanes : linger(r, lanes); /* it comes behind them */
        if (parted) {
            KOLO_TRY(expect(end, r));
            continue;
        }
        /* A window may be hidden while it is being written to: the rest has no place any more. */
        if (r->done < r->frame.bytes &&
            kolo_onesided_find(end, r->frame.key, r->frame.address, r->frame.bytes) != r->to)
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s wrote into a window that was hidden", end->who);
        if (r->done < r->frame.bytes) KOLO_TRY(take(end, r, r->to, r->frame.bytes, &r->done));
        if (r->done < r->frame.bytes) {
            if (r->budget == 0) return come_back(end);
            continue;
        }
        r->got = 0;
        if (!(r->frame.flags & KOLO_ONESIDED_NOTIFY)) continue;
        event->number = r->frame.number;
        event->bytes = r->frame.bytes;
        return KOLO_OK;
    }
}

static void forget(kolo_onesided_t *end, uint64_t key)
{
    const reader_t *r = end->state[KOLO_ONESIDED_TCP];
    if (r->lanes) kolo_lanes_forget(r->lanes, key);
}

static bool is_writing(const kolo_onesided_t *end)
{
    const reader_t *r = end->state[KOLO_ONESIDED_TCP];
    return r->lanes && r->lanes->out;
}

static kolo_status_t add_lane(kolo_onesided_t *end, kolo_socket_t socket)
{
    reader_t *r = end->state[KOLO_ONESIDED_TCP];
    kolo_status_t status = r->lanes ? KOLO_OK : kolo_lanes_create(end, &r->lanes);
    if (status == KOLO_OK) return kolo_lanes_add(r->lanes, socket);
    kolo_socket_close(&socket);
    return status;
}

static void close_end(kolo_onesided_t *end)
{
    reader_t *r = end->state[KOLO_ONESIDED_TCP];
    if (r) kolo_lanes_destroy(r->lanes);
    if (r) free(r->buffer);
    free(r);
    end->state[KOLO_ONESIDED_TCP] = NULL;
}

static size_t memory(const kolo_onesided_t *end)
{
    const reader_t *r = end->state[KOLO_ONESIDED_TCP];
    return sizeof *r + (r->buffer ? BUFFER_BYTES : 0) + kolo_lanes_memory(r->lanes);
}

const kolo_onesided_ops_t kolo_onesided_tcp = {
    .kind = KOLO_ONESIDED_TCP,
    .offer = offer,
    .connect = connect_end,
    .find_mailbox = find_mailbox,
    .expose = expose,
    .push = push,
    .forget = forget,
    .is_writing = is_writing,
    .add_lane = add_lane,
    .pull = pull,
    .close = close_end,
    .memory = memory,
};
