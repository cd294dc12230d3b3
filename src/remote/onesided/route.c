/* SPDX-License-Identifier: Apache-2.0
 *
 * By which connection two ends are joined, as the kernel knows it. Who has the job's key can pass one task's card
 * on to another and stand between the two, or give a task its own card back; a task that then copied into "its
 * peer's" process would copy into one that does not talk with it, or into its own. Each end leaves its addresses in
 * its segment; only where they are those of the other end, crossed, nobody stands between them.
 */
#include "remote/onesided/internal.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Writes IPv4 as it is mapped into IPv6: the two ends may see it either way. */
static bool take_address(const struct sockaddr_storage *at, uint8_t address[16], uint16_t *port)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (at->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)at;
        memcpy(address, mapped, sizeof mapped);
        memcpy(address + sizeof mapped, &in->sin_addr, 4);
        *port = in->sin_port;
        return true;
    }
    if (at->ss_family != AF_INET6) return false;
    const struct sockaddr_in6 *in = (const void *)at;
    memcpy(address, &in->sin6_addr, 16);
    *port = in->sin6_port;
    return true;
}

/* Asks the kernel which process is behind a Unix socket, which has no address. */
static bool by_process(int fd, kolo_onesided_route_t *route)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    uint32_t self = (uint32_t)getpid();
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0 || cred.pid <= 0) return false;
    memcpy(route->from, &self, sizeof self);
    memcpy(route->to, &cred.pid, sizeof cred.pid);
    return true;
}

static bool find_route(const kolo_onesided_t *end, kolo_onesided_route_t *route)
{
    struct sockaddr_storage mine = {0}, theirs = {0};
    socklen_t n = sizeof mine, m = sizeof theirs;
    memset(route, 0, sizeof *route);
    if (getsockname(end->socket.fd, (struct sockaddr *)&mine, &n) != 0 ||
        getpeername(end->socket.fd, (struct sockaddr *)&theirs, &m) != 0)
        return false;
    route->known = 1;
    if (mine.ss_family == AF_UNIX) return by_process(end->socket.fd, route);
    return take_address(&mine, route->from, &route->from_port) && take_address(&theirs, route->to, &route->to_port);
}

void kolo_onesided_route(const kolo_onesided_t *end, kolo_onesided_route_t *route)
{
    if (!find_route(end, route)) memset(route, 0, sizeof *route);
}

bool kolo_onesided_joined(const kolo_onesided_t *end, const kolo_onesided_route_t *theirs)
{
    kolo_onesided_route_t mine;
    if (!find_route(end, &mine)) return false;
    return theirs->known == 1 && memcmp(mine.from, theirs->to, sizeof mine.from) == 0 &&
           memcmp(mine.to, theirs->from, sizeof mine.to) == 0 && mine.from_port == theirs->to_port &&
           mine.to_port == theirs->from_port;
}
