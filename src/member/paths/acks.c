/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that sent bytes are acknowledged. A path may carry heartbeats and lose longer packets, because a link in
 * it takes shorter packets than the ends believe and does not report it. The kernel then repeats the same segment
 * for a quarter of an hour, without an error. The kernel's own limit (TCP_USER_TIMEOUT) would also end connections
 * whose slow reader has closed its window; but there no bytes are unacknowledged, which distinguishes the two.
 */
#include "member/life.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

static bool overdue(int fd, kolo_acks_t *acks, uint64_t now, uint64_t limit_ns)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof(info.tcpi_bytes_acked))
        return false;
    if (info.tcpi_unacked == 0 || info.tcpi_bytes_acked != acks->acked) {
        acks->acked = info.tcpi_bytes_acked;
        acks->since_ns = info.tcpi_unacked > 0 ? now : 0;
        return false;
    }
    if (acks->since_ns == 0) acks->since_ns = now;
    return info.tcpi_retransmits > 0 && now > acks->since_ns && now - acks->since_ns >= limit_ns;
}

bool kolo_peer_acks_missing(kolo_peer_t *peer, uint64_t now, uint64_t limit_ns)
{
    bool missing = false;
    for (kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next)
        if (!conn->dead && overdue(conn->socket.fd, &conn->acks, now, limit_ns)) missing = true;
    for (kolo_watched_stream_t *stream = peer->watched; stream != NULL; stream = stream->next)
        if (overdue(stream->fd, &stream->acks, now, limit_ns)) missing = true;
    return missing;
}

void kolo_peer_acks_forgive(kolo_peer_t *peer, uint64_t late_ns)
{
    for (kolo_conn_t *conn = peer->conns; conn != NULL; conn = conn->next)
        if (conn->acks.since_ns != 0) conn->acks.since_ns += late_ns;
    for (kolo_watched_stream_t *stream = peer->watched; stream != NULL; stream = stream->next)
        if (stream->acks.since_ns != 0) stream->acks.since_ns += late_ns;
}
