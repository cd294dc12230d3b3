/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers over a socket: each write is a frame and its bytes. The receiving side looks the window up
 * before it takes a byte, and reads straight into it, so no byte is copied by us.
 */
#include "wire/onesided/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define AT_ONCE (8u << 20) /* bytes of one call of progress, so that other ends have their turn */

typedef struct {
    uint8_t bytes[KOLO_ONESIDED_FRAME_BYTES];
    size_t got;
    kolo_onesided_frame_t frame; /* once it is complete */
    char *to;
    uint64_t done;
    size_t budget;
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

static kolo_status_t address(kolo_onesided_t *end, const void *base, size_t bytes, uint64_t *out)
{
    (void)end;
    (void)base;
    (void)bytes;
    *out = 0; /* in its window */
    return KOLO_OK;
}

static kolo_status_t broken(const kolo_onesided_t *end, int err)
{
    if (err == 0 || err == ECONNRESET || err == EPIPE)
        return kolo_fail(KOLO_ERR_REMOTE, "%s has closed the connection, or has died", end->who);
    return kolo_fail_errno(KOLO_ERR_REMOTE, err, "the connection with %s is broken", end->who);
}

/* There is more to do: the owner's thread is not to sleep before. */
static kolo_status_t come_back(kolo_onesided_t *end)
{
    kolo_waker_wake(&end->domain->waker);
    return KOLO_IN_PROGRESS;
}

static kolo_status_t push(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    uint8_t head[KOLO_ONESIDED_FRAME_BYTES];
    kolo_onesided_frame_t frame = {.flags = write->w.flags, .number = write->w.number, .bytes = write->w.bytes};
    if (frame.bytes > 0) {
        frame.address = write->to.address + write->w.offset;
        frame.key = write->to.key;
    }
    kolo_onesided_frame_encode(&frame, head);
    for (size_t moved = 0; write->head < sizeof head || write->done < frame.bytes;) {
        struct iovec iov[2] = {{head + write->head, sizeof head - write->head},
                               {(char *)(uintptr_t)write->w.data + write->done,
                                (size_t)KOLO_MIN(frame.bytes - write->done, (uint64_t)AT_ONCE)}};
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
        if (moved >= AT_ONCE) return come_back(end);
        ssize_t n = sendmsg(end->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n < 0) return broken(end, errno);
        size_t of_head = KOLO_MIN((size_t)n, sizeof head - write->head);
        write->head += (uint32_t)of_head;
        write->done += (size_t)n - of_head;
        moved += (size_t)n;
    }
    return KOLO_OK;
}

/* A whole frame: may it write there? */
static kolo_status_t take_frame(kolo_onesided_t *end, reader_t *r)
{
    const char *wrong = kolo_onesided_frame_decode(r->bytes, sizeof r->bytes, &r->frame);
    if (wrong == NULL && r->frame.bytes > 0) {
        r->to = kolo_onesided_find(end, r->frame.key, r->frame.address, r->frame.bytes);
        if (r->to == NULL) wrong = "it writes where there is no window for it";
    }
    if (wrong == NULL) return KOLO_OK;
    kolo_onesided_count(0, 0, 0, 1);
    return kolo_fail(KOLO_ERR_PROTOCOL, "a frame of %s (%llu bytes): %s", end->who,
                     (unsigned long long)r->frame.bytes, wrong);
}

static kolo_status_t read_some(kolo_onesided_t *end, reader_t *r, void *to, uint64_t bytes, uint64_t *n)
{
    size_t most = (size_t)KOLO_MIN(bytes, (uint64_t)AT_ONCE);
    for (;;) {
        ssize_t got = recv(end->fd, to, most, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (got <= 0) return broken(end, got < 0 ? errno : 0);
        *n = (uint64_t)got;
        r->budget -= KOLO_MIN(r->budget, (size_t)got);
        return KOLO_OK;
    }
}

static kolo_status_t pull(kolo_onesided_t *end, kolo_onesided_event_t *event)
{
    reader_t *r = end->state[KOLO_ONESIDED_TCP];
    uint64_t n;
    r->budget = AT_ONCE;
    for (;;) {
        if (r->got < sizeof r->bytes) {
            KOLO_TRY(read_some(end, r, r->bytes + r->got, sizeof r->bytes - r->got, &n));
            r->got += n;
            if (r->got < sizeof r->bytes) continue;
            KOLO_TRY(take_frame(end, r));
            r->done = 0;
        }
        /* A window may be hidden while it is being written to: the rest has no place any more. */
        if (r->done < r->frame.bytes &&
            kolo_onesided_find(end, r->frame.key, r->frame.address, r->frame.bytes) != r->to)
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s wrote into a window that was hidden", end->who);
        if (r->done < r->frame.bytes) {
            KOLO_TRY(read_some(end, r, r->to + r->done, r->frame.bytes - r->done, &n));
            r->done += n;
        }
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

static void close_end(kolo_onesided_t *end)
{
    free(end->state[KOLO_ONESIDED_TCP]);
    end->state[KOLO_ONESIDED_TCP] = NULL;
}

static size_t memory(const kolo_onesided_t *end)
{
    (void)end;
    return sizeof(reader_t);
}

const kolo_onesided_ops_t kolo_onesided_tcp = {
    .kind = KOLO_ONESIDED_TCP,
    .offer = offer,
    .connect = connect_end,
    .address = address,
    .push = push,
    .pull = pull,
    .close = close_end,
    .memory = memory,
};
