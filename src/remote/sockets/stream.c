/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests on the sockets of an end. A message is one part, or one for each data socket; before each part goes a
 * record that says which part of which request it is. The reader has offered memory for that request before, and
 * the bytes go straight into it.
 */
#include "remote/sockets/sockets.h"

#include "base/failpoint.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define PIECES 16 /* records and parts of one system call, at most */
#define ROUNDS 32 /* system calls on one socket in a row */

static kolo_sockets_request_t *request_at(const kolo_net_end_t *end, uint64_t request)
{
    return &end->requests[request & (end->depth - 1)];
}

static uint8_t *offer_at(const kolo_net_end_t *end, uint64_t request)
{
    return end->ring + (request & (end->depth - 1)) * KOLO_SOCKETS_RECORD;
}

/* ---- writer: offers ---- */

bool kolo_sockets_offered(const kolo_net_end_t *end, uint64_t *tag)
{
    if (end->next == end->offered) return false;
    *tag = kolo_sockets_offer_decode(offer_at(end, end->next)).tag;
    return true;
}

static kolo_status_t take_offer(kolo_net_end_t *end, const uint8_t *record)
{
    kolo_sockets_offer_t offer = kolo_sockets_offer_decode(record);
    if (offer.check != (uint32_t)end->offered || end->offered - end->next >= end->depth)
        return kolo_fail(KOLO_ERR_PROTOCOL, "sockets: %s: an offer that makes no sense (number %u where %u is due)",
                         end->label, offer.check, (uint32_t)end->offered);
    memcpy(offer_at(end, end->offered++), record, KOLO_SOCKETS_RECORD);
    return KOLO_OK;
}

static kolo_status_t read_offers(kolo_net_end_t *end)
{
    kolo_sockets_sock_t *sock = &end->offers;
    uint8_t room[64 * KOLO_SOCKETS_RECORD];
    if (sock->state != KOLO_SOCKET_UP || end->offered - end->next > end->depth / 2) return KOLO_OK; /* enough */
    memcpy(room, sock->record, sock->got);
    ssize_t n = recv(sock->fd, room + sock->got, sizeof room - sock->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return KOLO_OK;
    if (n <= 0) { /* the reader has gone; who waits for it hears why from elsewhere */
        sock->state = KOLO_SOCKET_ENDED;
        return n < 0 && errno != ECONNRESET ? kolo_sockets_fail(end, errno, "the connection has failed") : KOLO_OK;
    }
    uint32_t have = sock->got + (uint32_t)n, at = 0;
    for (; have - at >= KOLO_SOCKETS_RECORD; at += KOLO_SOCKETS_RECORD) KOLO_TRY(take_offer(end, room + at));
    sock->got = have - at;
    memcpy(sock->record, room + at, sock->got);
    return KOLO_OK;
}

/* ---- writer: data ---- */

kolo_status_t kolo_sockets_isend(kolo_net_end_t *end, const void *data, uint32_t bytes,
                                 const kolo_net_region_t *region, uint64_t cookie)
{
    (void)region;
    if (end->next == end->offered || end->next - end->completed >= end->depth) return KOLO_IN_PROGRESS;
    uint32_t room = kolo_sockets_offer_decode(offer_at(end, end->next)).bytes;
    if (room < bytes)
        return kolo_fail(KOLO_ERR_PROTOCOL, "sockets: %s: the peer offers %u bytes for a message of %u", end->label,
                         room, bytes);
    uint32_t parts = kolo_sockets_parts(bytes, end->nsockets);
    *request_at(end, end->next++) = (kolo_sockets_request_t){
        .data = (char *)(uintptr_t)data, .bytes = bytes, .parts = parts, .left = parts, .cookie = cookie};
    end->counts.requests++;
    return KOLO_OK;
}

/* Finds the part of the request for data socket `index`; false: there is no such part. */
static bool part_for(const kolo_net_end_t *end, uint32_t index, uint64_t request, kolo_sockets_part_t *part,
                     struct iovec *bytes)
{
    const kolo_sockets_request_t *r = request_at(end, request);
    uint32_t n = end->nsockets, i = (index + n - (uint32_t)(request % n)) % n;
    if (i >= r->parts) return false;
    uint32_t from = kolo_sockets_part_at(r->bytes, r->parts, i);
    *part = (kolo_sockets_part_t){.request = request, .total = r->bytes, .part = i};
    bytes->iov_base = r->data + from;
    bytes->iov_len = kolo_sockets_part_at(r->bytes, r->parts, i + 1) - from;
    return true;
}

/* Gathers what is to go next: records and parts in turn, without the bytes that have gone already. */
static int gather(const kolo_net_end_t *end, uint32_t index, uint8_t records[][KOLO_SOCKETS_RECORD],
                  struct iovec *iov)
{
    const kolo_sockets_sock_t *sock = &end->data[index];
    kolo_sockets_part_t part;
    int n = 0;
    for (uint64_t r = sock->at; r != end->next && n < PIECES; r++) {
        if (!part_for(end, index, r, &part, &iov[n + 1])) continue;
        kolo_sockets_part_encode(&part, records[n / 2]);
        iov[n] = (struct iovec){records[n / 2], KOLO_SOCKETS_RECORD};
        n += 2;
    }
    size_t gone = sock->done;
    for (int i = 0; i < n && gone > 0; i++) {
        size_t skip = KOLO_MIN(gone, iov[i].iov_len);
        iov[i].iov_base = (char *)iov[i].iov_base + skip;
        iov[i].iov_len -= skip;
        gone -= skip;
    }
    return n;
}

static void advance(kolo_net_end_t *end, uint32_t index, size_t bytes)
{
    kolo_sockets_sock_t *sock = &end->data[index];
    kolo_sockets_part_t part;
    struct iovec iov;
    for (; sock->at != end->next; sock->at++, sock->done = 0) {
        if (!part_for(end, index, sock->at, &part, &iov)) continue;
        size_t take = KOLO_MIN(bytes, KOLO_SOCKETS_RECORD + iov.iov_len - sock->done);
        sock->done += (uint32_t)take;
        sock->sent += take;
        bytes -= take;
        if (sock->done < KOLO_SOCKETS_RECORD + iov.iov_len) return;
        request_at(end, sock->at)->until[index] = sock->sent;
        request_at(end, sock->at)->left--;
    }
}

static kolo_status_t send_on(kolo_net_end_t *end, uint32_t index)
{
    kolo_sockets_sock_t *sock = &end->data[index];
    if ((int64_t)(end->completed - sock->at) > 0) sock->at = end->completed; /* they had no part for it */
    for (int round = 0; round < ROUNDS && sock->at != end->next; round++) {
        uint8_t records[PIECES / 2 + 1][KOLO_SOCKETS_RECORD];
        struct iovec iov[PIECES + 2];
        size_t asked = 0;
        int n = gather(end, index, records, iov);
        for (int i = 0; i < n; i++) asked += iov[i].iov_len;
        if (n == 0) {
            advance(end, index, 0); /* none of the requests has a part for it */
            return KOLO_OK;
        }
        KOLO_FAIL_POINT_TRY("wire.sockets.send");
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(sock->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KOLO_OK;
        if (sent < 0) return kolo_sockets_fail(end, errno, "data cannot be sent");
        end->counts.doorbells++;
        advance(end, index, (size_t)sent);
        if ((size_t)sent < asked) return KOLO_OK;
    }
    return KOLO_OK;
}

static kolo_status_t send_data(kolo_net_end_t *end)
{
    for (uint32_t i = 0; i < end->nsockets; i++)
        if (end->data[i].state == KOLO_SOCKET_UP) KOLO_TRY(send_on(end, i));
    return KOLO_OK;
}

void kolo_sockets_ask(kolo_net_end_t *end)
{
    for (uint32_t i = 0; i < end->nsockets; i++) {
        kolo_sockets_sock_t *sock = &end->data[i];
        int left = 0;
        if (sock->state == KOLO_SOCKET_UP && sock->acknowledged != sock->sent &&
            ioctl(sock->fd, SIOCOUTQ, &left) == 0 && left >= 0)
            sock->acknowledged = sock->sent - KOLO_MIN((uint64_t)left, sock->sent);
    }
}

static bool is_sent(const kolo_net_end_t *end, const kolo_sockets_request_t *r)
{
    if (r->left) return false;
    for (uint32_t i = 0; end->acknowledged && i < end->nsockets; i++)
        if (end->data[i].acknowledged < r->until[i]) return false;
    return true;
}

/* ---- reader ---- */

kolo_status_t kolo_sockets_irecv(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                                 uint64_t cookie, uint64_t tag)
{
    (void)region;
    if (end->next - end->completed >= end->depth || end->next - end->offered >= end->depth) return KOLO_IN_PROGRESS;
    const kolo_sockets_offer_t offer = {.tag = tag, .bytes = bytes, .check = (uint32_t)end->next};
    kolo_sockets_offer_encode(&offer, offer_at(end, end->next));
    *request_at(end, end->next++) =
        (kolo_sockets_request_t){.data = data, .bytes = bytes, .left = 1, .cookie = cookie};
    end->counts.requests++;
    return KOLO_OK;
}

static kolo_status_t send_offers(kolo_net_end_t *end)
{
    kolo_sockets_sock_t *sock = &end->offers;
    while (sock->state == KOLO_SOCKET_UP && end->offered != end->next) {
        uint64_t in_a_row = KOLO_MIN(end->next - end->offered, end->depth - (end->offered & (end->depth - 1)));
        ssize_t n = send(sock->fd, offer_at(end, end->offered) + sock->done,
                         in_a_row * KOLO_SOCKETS_RECORD - sock->done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KOLO_OK;
        if (n < 0) { /* a writer that has ended may have left data that is still to be read */
            sock->state = KOLO_SOCKET_ENDED;
            return errno == EPIPE || errno == ECONNRESET ? KOLO_OK
                                                         : kolo_sockets_fail(end, errno, "offers cannot be sent");
        }
        end->counts.doorbells++;
        uint32_t gone = sock->done + (uint32_t)n;
        end->offered += gone / KOLO_SOCKETS_RECORD;
        sock->done = gone % KOLO_SOCKETS_RECORD;
    }
    return KOLO_OK;
}

static void part_is_there(kolo_net_end_t *end, kolo_sockets_sock_t *sock)
{
    request_at(end, sock->at)->left--;
    sock->within = false;
}

/* Takes a record, which must announce a part that is due on this socket. */
static kolo_status_t begin_part(kolo_net_end_t *end, uint32_t index)
{
    kolo_sockets_sock_t *sock = &end->data[index];
    kolo_sockets_part_t p = kolo_sockets_part_decode(sock->record);
    kolo_sockets_request_t *r = request_at(end, p.request);
    uint32_t parts = kolo_sockets_parts(p.total, end->nsockets);
    bool due = p.request - end->completed < end->next - end->completed && p.part < parts &&
               (p.request % end->nsockets + p.part) % end->nsockets == index;
    if (!due || p.total > r->bytes || (r->came & 1u << p.part) || (r->came && p.total != r->total))
        return kolo_fail(KOLO_ERR_PROTOCOL,
                         "sockets: %s: part %u of request %llu with %u bytes makes no sense; requests %llu to %llu "
                         "are due",
                         end->label, p.part, (unsigned long long)p.request, p.total,
                         (unsigned long long)end->completed, (unsigned long long)end->next);
    if (!r->came) r->left = r->parts = parts;
    r->came |= 1u << p.part;
    r->total = p.total;
    sock->at = p.request;
    sock->part_from = kolo_sockets_part_at(p.total, parts, p.part);
    sock->part_bytes = kolo_sockets_part_at(p.total, parts, p.part + 1) - sock->part_from;
    sock->done = 0;
    sock->within = true;
    if (sock->part_bytes == 0) part_is_there(end, sock);
    return KOLO_OK;
}

static kolo_status_t take_bytes(kolo_net_end_t *end, uint32_t index, size_t n)
{
    kolo_sockets_sock_t *sock = &end->data[index];
    if (sock->within) {
        size_t take = KOLO_MIN(n, (size_t)sock->part_bytes - sock->done);
        sock->done += (uint32_t)take;
        n -= take;
        if (sock->done == sock->part_bytes) part_is_there(end, sock);
    }
    sock->got += (uint32_t)n;
    if (sock->got < KOLO_SOCKETS_RECORD) return KOLO_OK;
    sock->got = 0;
    return begin_part(end, index);
}

/* Receives, with one call, the rest of a part and the record behind it. */
static kolo_status_t receive_on(kolo_net_end_t *end, uint32_t index)
{
    kolo_sockets_sock_t *sock = &end->data[index];
    for (int round = 0; round < ROUNDS; round++) {
        struct iovec iov[2] = {{NULL, 0}, {sock->record + sock->got, KOLO_SOCKETS_RECORD - sock->got}};
        if (sock->within)
            iov[0] = (struct iovec){request_at(end, sock->at)->data + sock->part_from + sock->done,
                                    sock->part_bytes - sock->done};
        struct msghdr message = {.msg_iov = sock->within ? iov : iov + 1, .msg_iovlen = sock->within ? 2 : 1};
        ssize_t n = recvmsg(sock->fd, &message, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KOLO_OK;
        if (n == 0 && !sock->within && sock->got == 0) { /* who waits for more hears from elsewhere why it ended */
            sock->state = KOLO_SOCKET_ENDED;
            return KOLO_OK;
        }
        if (n <= 0) return kolo_sockets_fail(end, n == 0 ? ECONNRESET : errno, "the connection has failed");
        end->counts.completions++;
        size_t asked = iov[0].iov_len + iov[1].iov_len;
        KOLO_TRY(take_bytes(end, index, (size_t)n));
        if ((size_t)n < asked) return KOLO_OK;
    }
    return KOLO_OK;
}

kolo_status_t kolo_sockets_receive(kolo_net_end_t *end)
{
    for (uint32_t i = 0; i < end->nsockets; i++)
        if (end->data[i].state == KOLO_SOCKET_UP) KOLO_TRY(receive_on(end, i));
    return KOLO_OK;
}

/* ---- both ---- */

static kolo_status_t step(kolo_net_end_t *end)
{
    KOLO_TRY(kolo_sockets_meet(end));
    if (end->reads) return kolo_sockets_receive(end);
    KOLO_TRY(read_offers(end));
    KOLO_TRY(send_data(end));
    if (end->acknowledged && end->completed != end->next) kolo_sockets_ask(end);
    return KOLO_OK;
}

kolo_status_t kolo_sockets_push(kolo_net_end_t *end)
{
    if (end->revoked) return kolo_fail(KOLO_ERR_ABORTED, "sockets: %s: its sockets were given up", end->label);
    return end->reads ? send_offers(end) : send_data(end);
}

/* Reports what came before a failure; the failure when there is nothing else. */
kolo_status_t kolo_sockets_test(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n)
{
    if (!end->revoked && end->status == KOLO_OK) {
        end->status = step(end);
        if (end->status != KOLO_OK) snprintf(end->error, sizeof end->error, "%s", kolo_error_text());
    }
    for (*n = 0; *n < most && end->completed != end->next; ++*n, end->completed++) {
        const kolo_sockets_request_t *r = request_at(end, end->completed);
        if (end->reads ? r->left != 0 : !is_sent(end, r)) break;
        done[*n] = (kolo_net_done_t){.cookie = r->cookie, .bytes = end->reads ? r->total : 0};
    }
    return *n > 0 || end->status == KOLO_OK || end->revoked ? KOLO_OK : kolo_fail(end->status, "%s", end->error);
}
