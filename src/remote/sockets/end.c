/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a connection's end: what both sides say of themselves, and how it ends.
 */
#include "base/process.h"
#include "remote/sockets/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_sockets_fail(const kolo_net_end_t *end, int err, const char *what)
{
    return kolo_fail_errno(KOLO_ERR_REMOTE, err, "sockets: %s: interface %s here, %s there: %s", end->label,
                           end->mine.device, end->peer.device[0] ? end->peer.device : "(not known yet)", what);
}

static kolo_status_t fill(kolo_net_end_t *end, kolo_net_hello_t *hello)
{
    end->requests = calloc(end->depth, sizeof *end->requests);
    end->ring = calloc(end->depth, KOLO_SOCKETS_RECORD);
    if (!end->requests || !end->ring)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "sockets: %s: no memory for %u requests", end->label, end->depth);
    end->mine = (kolo_sockets_hello_t){.sockets = (uint32_t)kolo_sockets_options.sockets, .depth = end->depth};
    snprintf(end->mine.device, sizeof end->mine.device, "%s", kolo_sockets_device_name(end->open->device));
    end->nsockets = end->mine.sockets;
    if (end->reads) {
        end->mine.address = end->open->address;
        KOLO_TRY(kolo_random(&end->mine.token, sizeof end->mine.token));
    }
    kolo_sockets_hello_encode(&end->mine, end->reads, hello);
    return KOLO_OK;
}

static kolo_status_t begin(kolo_net_open_t *open, const kolo_net_end_config_t *config, bool reads,
                           kolo_net_hello_t *hello, kolo_net_end_t **result)
{
    kolo_net_end_t *end = calloc(1, sizeof *end);
    if (!end) return kolo_fail(KOLO_ERR_NO_MEMORY, "sockets: no memory for a connection");
    end->open = open;
    end->reads = reads;
    end->acknowledged = config->acknowledged;
    end->depth = config->depth;
    end->message_bytes = config->message_bytes;
    end->offers.fd = -1;
    for (uint32_t i = 0; i < KOLO_SOCKETS_MAX; i++) end->data[i].fd = -1;
    snprintf(end->label, sizeof end->label, "%s", config->label);
    memcpy(open->key.bytes, config->key, sizeof open->key.bytes);
    end->next_end = open->first;
    if (open->first) open->first->prev = end;
    open->first = end;
    kolo_status_t status = fill(end, hello);
    if (status != KOLO_OK) {
        kolo_sockets_shut(end);
        return status;
    }
    *result = end;
    return KOLO_OK;
}

kolo_status_t kolo_sockets_listen(kolo_net_open_t *open, const kolo_net_end_config_t *config,
                                  kolo_net_hello_t *hello, kolo_net_end_t **end)
{
    return begin(open, config, true, hello, end);
}

kolo_status_t kolo_sockets_start(kolo_net_open_t *open, const kolo_net_end_config_t *config,
                                 kolo_net_hello_t *hello, kolo_net_end_t **end)
{
    return begin(open, config, false, hello, end);
}

static kolo_status_t know(kolo_net_end_t *end, const kolo_net_hello_t *hello)
{
    KOLO_TRY(kolo_sockets_hello_decode(hello, !end->reads, &end->peer));
    if (end->peer.depth != end->depth)
        return kolo_fail(KOLO_ERR_PROTOCOL, "sockets: %s: %u requests here, %u there", end->label, end->depth,
                         end->peer.depth);
    end->nsockets = KOLO_MIN(end->mine.sockets, end->peer.sockets);
    for (uint32_t i = end->nsockets; i < KOLO_SOCKETS_MAX; i++) /* it called before its hello came */
        if (end->data[i].state != KOLO_SOCKET_NONE)
            return kolo_fail(KOLO_ERR_PROTOCOL, "sockets: %s: the peer said %u sockets and opened more", end->label,
                             end->peer.sockets);
    end->named = true;
    return KOLO_OK;
}

kolo_status_t kolo_sockets_connect(kolo_net_end_t *end, const kolo_net_hello_t *peer)
{
    KOLO_TRY(know(end, peer));
    KOLO_TRY(kolo_sockets_dial(end, &end->offers));
    for (uint32_t i = 0; i < end->nsockets; i++) KOLO_TRY(kolo_sockets_dial(end, &end->data[i]));
    return KOLO_OK;
}

kolo_status_t kolo_sockets_accept(kolo_net_end_t *end, const kolo_net_hello_t *peer)
{
    return know(end, peer);
}

/* ---- the end ---- */

static void hang_up(kolo_sockets_sock_t *sock)
{
    if (sock->fd >= 0) kolo_socket_hang_up(sock->fd);
    sock->fd = -1;
    sock->state = KOLO_SOCKET_ENDED;
}

static void hang_up_all(kolo_net_end_t *end)
{
    for (uint32_t i = 0; i < KOLO_SOCKETS_MAX; i++) hang_up(&end->data[i]);
    hang_up(&end->offers);
}

/* Hangs up; what the kernel has got so far counts. */
void kolo_sockets_revoke(kolo_net_end_t *end)
{
    if (end->revoked) return;
    if (end->reads)
        (void)kolo_sockets_receive(end);
    else
        kolo_sockets_ask(end);
    end->revoked = true;
    hang_up_all(end);
}

void kolo_sockets_shut(kolo_net_end_t *end)
{
    kolo_net_open_t *open = end->open;
    if (end->prev) end->prev->next_end = end->next_end;
    if (end->next_end) end->next_end->prev = end->prev;
    if (open->first == end) open->first = end->next_end;
    hang_up_all(end);
    free(end->requests);
    free(end->ring);
    free(end);
}
