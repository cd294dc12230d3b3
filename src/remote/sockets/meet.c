/* SPDX-License-Identifier: Apache-2.0
 *
 * How the sockets of a connection come up. The writer dials; each socket then proves by link/auth.h that its other
 * end knows the job's secret, and says in its claim which end (tag) and which of its sockets (from) it is for. All
 * steps are taken by whoever calls the ends of the device next; none waits.
 */
#include "base/file/fds.h"
#include "remote/sockets/sockets.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/process.h"
#include "link/first.h"
#include "link/link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define GRACE_MS      250 /* where there is no room, callers that have had this make place */
#define OFFERS_SOCKET 0   /* in claims; data socket i is i + 1 */

static void tune(int fd)
{
    int one = 1;
    unsigned limit = (unsigned)kolo_sockets_options.timeout_ms;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

static void came_up(kolo_net_end_t *end, kolo_sockets_sock_t *sock)
{
    sock->state = KOLO_SOCKET_UP;
    sock->got = 0;
    end->nup++;
    if (!end->reads || sock != &end->offers) { /* so that the data is acknowledged at once */
        int one = 1;
        (void)setsockopt(sock->fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
    }
    if (end->nup <= end->nsockets) return;
    kolo_info("sockets", "connection %s: interface %s here, %s there, %u sockets", end->label, end->mine.device,
              end->peer.device, end->nsockets);
}

/* ---- writer ---- */

kolo_status_t kolo_sockets_dial(kolo_net_end_t *end, kolo_sockets_sock_t *sock)
{
    struct sockaddr_storage here, there;
    KOLO_FAIL_POINT_TRY("wire.sockets.dial");
    kolo_address_t mine = end->open->address;
    kolo_address_set_port(&mine, 0);
    socklen_t length = kolo_address_to_sockaddr(&end->peer.address, &there);
    sock->fd = kolo_fd_socket(there.ss_family, SOCK_STREAM);
    if (sock->fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "sockets: no socket; descriptor limit?");
    tune(sock->fd);
    socklen_t mine_length = kolo_address_to_sockaddr(&mine, &here);
    if (here.ss_family == there.ss_family && bind(sock->fd, (struct sockaddr *)&here, mine_length) != 0)
        return kolo_sockets_fail(end, errno, "cannot use the address of its interface");
    if (connect(sock->fd, (struct sockaddr *)&there, length) != 0 && errno != EINPROGRESS)
        return kolo_sockets_fail(end, errno, "cannot call the peer");
    sock->state = KOLO_SOCKET_DIALLED;
    return kolo_sockets_watch(end->open, sock->fd);
}

static kolo_status_t connected(kolo_net_end_t *end, kolo_sockets_sock_t *sock)
{
    int err = 0;
    socklen_t length = sizeof err;
    struct tcp_info info;
    socklen_t info_length = sizeof info;
    if (getsockopt(sock->fd, SOL_SOCKET, SO_ERROR, &err, &length) != 0) err = errno;
    if (err) return kolo_sockets_fail(end, err, "the peer cannot be reached");
    if (getsockopt(sock->fd, IPPROTO_TCP, TCP_INFO, &info, &info_length) != 0)
        return kolo_sockets_fail(end, errno, "its state cannot be read");
    if (info.tcpi_state != TCP_SYN_SENT && info.tcpi_state != TCP_SYN_RECV) sock->state = KOLO_SOCKET_GREETING;
    return KOLO_OK;
}

static kolo_shake_t shake_of(const kolo_net_end_t *end, kolo_sockets_sock_t *sock)
{
    return (kolo_shake_t){&end->open->key, kolo_address_cookie(&end->peer.address), sock->greeting, sock->hello};
}

static kolo_status_t greeted(kolo_net_end_t *end, kolo_sockets_sock_t *sock, int index)
{
    unsigned version;
    kolo_claim_t claim = {.purpose = KOLO_PURPOSE_STREAM,
                          .from = index,
                          .tag = end->peer.token,
                          .security = kolo_auth_greeting_security(sock->greeting)};
    if (!kolo_auth_greeting_fits(sock->greeting, &version))
        return kolo_fail(KOLO_ERR_PROTOCOL, "sockets: %s: who answers is no rank of this version", end->label);
    const kolo_shake_t shake = shake_of(end, sock);
    KOLO_TRY(kolo_auth_hello(&shake, &claim));
    if (!kolo_link_say(sock->fd, sock->hello, sizeof sock->hello))
        return kolo_sockets_fail(end, errno, "the peer has gone");
    sock->state = KOLO_SOCKET_VERDICT;
    sock->got = 0;
    return KOLO_OK;
}

static kolo_status_t judged(kolo_net_end_t *end, kolo_sockets_sock_t *sock)
{
    kolo_auth_verdict_t code;
    const kolo_shake_t shake = shake_of(end, sock);
    bool proven = kolo_auth_check_verdict(&shake, sock->verdict, &code);
    if (!proven || code != KOLO_VERDICT_OK)
        return kolo_fail(KOLO_ERR_AUTH, "sockets: %s: the peer %s", end->label,
                         proven ? "has no use for the connection any more" : "does not know the job's secret");
    came_up(end, sock);
    return KOLO_OK;
}

static kolo_status_t step(kolo_net_end_t *end, kolo_sockets_sock_t *sock, int index)
{
    if (sock->state == KOLO_SOCKET_DIALLED) KOLO_TRY(connected(end, sock));
    if (sock->state == KOLO_SOCKET_GREETING) {
        int there = kolo_link_read_up_to(sock->fd, sock->greeting, &sock->got, sizeof sock->greeting);
        if (there < 0) return kolo_sockets_fail(end, errno, "the peer has gone");
        if (there) KOLO_TRY(greeted(end, sock, index));
    }
    if (sock->state == KOLO_SOCKET_VERDICT) {
        int there = kolo_link_read_up_to(sock->fd, sock->verdict, &sock->got, sizeof sock->verdict);
        if (there < 0) return kolo_sockets_fail(end, errno, "the peer has gone");
        if (there) return judged(end, sock);
    }
    return KOLO_OK;
}

/* ---- reader ---- */

/* Returns the socket of an end that a claim means. */
static kolo_sockets_sock_t *claimed(kolo_net_open_t *open, const kolo_claim_t *claim, kolo_net_end_t **result)
{
    if (claim->purpose != KOLO_PURPOSE_STREAM) return NULL;
    for (kolo_net_end_t *end = open->first; end; end = end->next_end) {
        if (!end->reads || end->mine.token != claim->tag) continue;
        if (end->revoked || claim->from < 0 || claim->from > (int)end->nsockets) return NULL;
        kolo_sockets_sock_t *sock = claim->from == OFFERS_SOCKET ? &end->offers : &end->data[claim->from - 1];
        *result = end;
        return sock->state == KOLO_SOCKET_NONE ? sock : NULL;
    }
    return NULL;
}

/* Lets a caller in that has said its hello, or not. Either way it is none any more. */
static void judge(kolo_net_open_t *open, kolo_sockets_caller_t *caller)
{
    uint8_t verdict[KOLO_VERDICT_BYTES];
    kolo_claim_t claim;
    kolo_net_end_t *end = NULL;
    kolo_sockets_sock_t *sock = NULL;
    const kolo_shake_t shake = {&open->key, kolo_address_cookie(&open->address), caller->greeting, caller->hello};
    if (kolo_auth_check_hello(&shake, &claim) != KOLO_HELLO_OK) {
        kolo_link_count(KOLO_COUNT_AUTH);
        kolo_auth_unproven_refusal(verdict);
    } else {
        sock = claimed(open, &claim, &end);
        kolo_auth_verdict(&shake, sock ? KOLO_VERDICT_OK : KOLO_VERDICT_REFUSED, verdict);
    }
    if (!kolo_link_say(caller->fd, verdict, sizeof verdict) || !sock) {
        kolo_fd_close(caller->fd);
        return;
    }
    tune(caller->fd);
    sock->fd = caller->fd;
    came_up(end, sock);
}

static bool begin(kolo_sockets_caller_t *caller, int fd)
{
    *caller = (kolo_sockets_caller_t){
        .fd = fd, .since_ns = kolo_now_ns(), .until_ns = kolo_deadline_ms(kolo_link_values.handshake_ms)};
    return kolo_auth_greeting(KOLO_SECURITY_NONE, caller->greeting) == KOLO_OK &&
           kolo_link_say(fd, caller->greeting, sizeof caller->greeting);
}

/* Returns where the next caller goes: where the one was that has been silent longest, if there is no room. */
static kolo_sockets_caller_t *find_room(kolo_net_open_t *open)
{
    if (open->ncallers < KOLO_SOCKETS_PENDING) return &open->callers[open->ncallers];
    kolo_sockets_caller_t *oldest = &open->callers[0];
    for (uint32_t i = 1; i < open->ncallers; i++)
        if (open->callers[i].since_ns < oldest->since_ns) oldest = &open->callers[i];
    return kolo_now_ns() - oldest->since_ns >= GRACE_MS * KOLO_NS_PER_MS ? oldest : NULL;
}

/* Says, once until a caller is let in again, why none can be. */
static void tell_of_shortage(kolo_net_open_t *open, int err)
{
    char all[128];
    if (open->starved || (err != EMFILE && err != ENFILE && err != ENOMEM && err != ENOBUFS)) return;
    open->starved = true;
    kolo_warn("sockets",
              "interface %s cannot accept a caller now: %s: %s. Other ranks wait for it until that changes",
              kolo_sockets_device_name(open->device), strerror(err),
              err == EMFILE ? kolo_fd_print_all(all, sizeof all) : "the system as a whole is short");
}

static kolo_status_t let_in(kolo_net_open_t *open)
{
    for (kolo_sockets_caller_t *room; (room = find_room(open)) != NULL;) {
        int fd = kolo_fd_accept(open->listener, NULL, NULL);
        if (fd < 0) {
            tell_of_shortage(open, errno);
            break;
        }
        open->starved = false;
        kolo_sockets_caller_t caller;
        if (kolo_sockets_watch(open, fd) != KOLO_OK || !begin(&caller, fd)) {
            kolo_fd_close(fd);
            continue;
        }
        if (room < open->callers + open->ncallers) {
            kolo_link_count(KOLO_COUNT_FULL);
            kolo_fd_close(room->fd);
        } else {
            open->ncallers++;
        }
        *room = caller;
    }
    uint64_t now = open->ncallers ? kolo_now_ns() : 0;
    for (uint32_t i = 0; i < open->ncallers;) {
        kolo_sockets_caller_t *c = &open->callers[i];
        int there = kolo_link_read_up_to(c->fd, c->hello, &c->got, sizeof c->hello);
        if (there == 0 && now < c->until_ns) {
            i++;
            continue;
        }
        if (there > 0)
            judge(open, c);
        else
            kolo_fd_close(c->fd);
        *c = open->callers[--open->ncallers];
    }
    return KOLO_OK;
}

kolo_status_t kolo_sockets_meet(kolo_net_end_t *end)
{
    if (!end->named || end->nup > end->nsockets) return KOLO_OK;
    if (end->reads) return let_in(end->open);
    KOLO_TRY(step(end, &end->offers, OFFERS_SOCKET));
    for (uint32_t i = 0; i < end->nsockets; i++) KOLO_TRY(step(end, &end->data[i], (int)i + 1));
    return KOLO_OK;
}
