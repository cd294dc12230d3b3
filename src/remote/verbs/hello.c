/* SPDX-License-Identifier: Apache-2.0
 *
 * What one end of a verbs connection sends the other: its queue pair and how packets find it, and where the
 * writer's ring of offers lies (0 of one-sided ends). A fixed little-endian layout that travels on the cards of
 * wire/connect.c and of remote/onesided; what comes in is checked field by field.
 */
#include "remote/verbs/verbs.h"

#include <endian.h>
#include <string.h>

typedef struct {
    uint32_t qpn, psn, fifo_key, depth;
    uint64_t fifo;
    uint16_t lid;
    uint8_t mtu, port, link, reserved[3];
    uint8_t gid[16];
    char device[16];
} layout_t;
_Static_assert(sizeof(layout_t) == KOLO_VERBS_HELLO_BYTES && sizeof(layout_t) <= KOLO_NET_HELLO_BYTES,
               "a hello travels on the wire's card");

void kolo_verbs_hello_encode(const kolo_verbs_hello_t *hello, kolo_net_hello_t *out)
{
    layout_t l = {.qpn = htole32(hello->qpn),
                  .psn = htole32(hello->psn),
                  .fifo_key = htole32(hello->fifo_key),
                  .depth = htole32(hello->depth),
                  .fifo = htole64(hello->fifo),
                  .lid = htole16(hello->lid),
                  .mtu = hello->mtu,
                  .port = hello->port,
                  .link = hello->link};
    memcpy(l.gid, hello->gid, sizeof l.gid);
    memcpy(l.device, hello->device, sizeof l.device);
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &l, sizeof l);
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= bytes[i];
    return any == 0;
}

static bool is_name(const char *name, size_t bytes)
{
    size_t length = strnlen(name, bytes);
    for (size_t i = 0; i < length; i++)
        if (name[i] <= ' ' || name[i] > '~') return false;
    return length > 0 && length < bytes;
}

kolo_status_t kolo_verbs_hello_decode(const kolo_net_hello_t *in, kolo_verbs_hello_t *out)
{
    layout_t l;
    const char *wrong = NULL;
    memcpy(&l, in->bytes, sizeof l);
    uint32_t depth = le32toh(l.depth);
    if (le32toh(l.qpn) == 0 || le32toh(l.qpn) > 0xffffff)
        wrong = "number of its queue pair";
    else if (le32toh(l.psn) > 0xffffff)
        wrong = "number of its first packet";
    else if (l.mtu < IBV_MTU_256 || l.mtu > IBV_MTU_4096)
        wrong = "MTU";
    else if (l.port == 0)
        wrong = "port";
    else if (l.link != IBV_LINK_LAYER_ETHERNET && l.link != IBV_LINK_LAYER_INFINIBAND)
        wrong = "link layer";
    else if (l.link == IBV_LINK_LAYER_INFINIBAND && l.lid == 0)
        wrong = "LID";
    else if (depth == 0 || (depth & (depth - 1)))
        wrong = "number of requests";
    else if (!is_name(l.device, sizeof l.device))
        wrong = "name of its device";
    else if (!is_zero(l.reserved, sizeof l.reserved) || !is_zero(in->bytes + sizeof l, sizeof in->bytes - sizeof l))
        wrong = "rest";
    if (wrong) return kolo_fail(KOLO_ERR_PROTOCOL, "verbs: the %s in the peer's hello makes no sense", wrong);
    *out = (kolo_verbs_hello_t){.qpn = le32toh(l.qpn),
                                .psn = le32toh(l.psn),
                                .lid = le16toh(l.lid),
                                .mtu = l.mtu,
                                .port = l.port,
                                .link = l.link,
                                .fifo = le64toh(l.fifo),
                                .fifo_key = le32toh(l.fifo_key),
                                .depth = depth};
    memcpy(out->gid, l.gid, sizeof out->gid);
    memcpy(out->device, l.device, sizeof out->device);
    return KOLO_OK;
}
