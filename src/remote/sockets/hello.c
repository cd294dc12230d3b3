/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sockets provider sends in bytes: hellos, offers, and what goes before each part of a message. Little
 * endian; what comes in is checked here as far as it can be without the connection it is for.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "remote/sockets/sockets.h"

#include <string.h>

enum { AT_ADDRESS = 0, AT_TOKEN = 32, AT_SOCKETS = 40, AT_DEPTH = 44, AT_ROLE = 48, AT_DEVICE = 52, AT_END = 68 };
#define ROLE_READER 0x52u
#define ROLE_WRITER 0x57u
_Static_assert(AT_END <= KOLO_NET_HELLO_BYTES, "a hello travels on the wire's card");

void kolo_sockets_hello_encode(const kolo_sockets_hello_t *hello, bool reads, kolo_net_hello_t *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->bytes + AT_ADDRESS, hello->address.bytes, sizeof hello->address.bytes);
    kolo_put64(out->bytes + AT_TOKEN, hello->token);
    kolo_put32(out->bytes + AT_SOCKETS, hello->sockets);
    kolo_put32(out->bytes + AT_DEPTH, hello->depth);
    kolo_put32(out->bytes + AT_ROLE, reads ? ROLE_READER : ROLE_WRITER);
    memcpy(out->bytes + AT_DEVICE, hello->device, sizeof hello->device);
}

static const char *complaint(const kolo_net_hello_t *in, bool reads, const kolo_sockets_hello_t *hello)
{
    if (kolo_get32(in->bytes + AT_ROLE) != (reads ? ROLE_READER : ROLE_WRITER)) return "it is for another role";
    if (hello->sockets < 1 || hello->sockets > KOLO_SOCKETS_MAX) return "it has no number of sockets";
    if (hello->depth == 0 || (hello->depth & (hello->depth - 1))) return "it has no number of requests";
    for (const char *c = hello->device; c < hello->device + sizeof hello->device && *c; c++)
        if (*c <= ' ' || *c > '~') return "it has no name of a device";
    if (hello->device[0] == '\0' || hello->device[sizeof hello->device - 1]) return "it has no name of a device";
    return reads ? kolo_address_check(&hello->address) : NULL;
}

kolo_status_t kolo_sockets_hello_decode(const kolo_net_hello_t *in, bool reads, kolo_sockets_hello_t *out)
{
    kolo_sockets_hello_t hello = {.token = kolo_get64(in->bytes + AT_TOKEN),
                                  .sockets = kolo_get32(in->bytes + AT_SOCKETS),
                                  .depth = kolo_get32(in->bytes + AT_DEPTH)};
    memcpy(hello.address.bytes, in->bytes + AT_ADDRESS, sizeof hello.address.bytes);
    memcpy(hello.device, in->bytes + AT_DEVICE, sizeof hello.device);
    const char *why = complaint(in, reads, &hello);
    if (why) return kolo_fail(KOLO_ERR_PROTOCOL, "sockets: the peer's hello makes no sense: %s", why);
    *out = hello;
    return KOLO_OK;
}

void kolo_sockets_part_encode(const kolo_sockets_part_t *part, uint8_t out[KOLO_SOCKETS_RECORD])
{
    kolo_put64(out, part->request);
    kolo_put32(out + 8, part->total);
    kolo_put32(out + 12, part->part);
}

kolo_sockets_part_t kolo_sockets_part_decode(const uint8_t in[KOLO_SOCKETS_RECORD])
{
    return (kolo_sockets_part_t){
        .request = kolo_get64(in), .total = kolo_get32(in + 8), .part = kolo_get32(in + 12)};
}

void kolo_sockets_offer_encode(const kolo_sockets_offer_t *offer, uint8_t out[KOLO_SOCKETS_RECORD])
{
    kolo_put64(out, offer->tag);
    kolo_put32(out + 8, offer->bytes);
    kolo_put32(out + 12, offer->check);
}

kolo_sockets_offer_t kolo_sockets_offer_decode(const uint8_t in[KOLO_SOCKETS_RECORD])
{
    return (kolo_sockets_offer_t){.tag = kolo_get64(in), .bytes = kolo_get32(in + 8), .check = kolo_get32(in + 12)};
}

uint32_t kolo_sockets_parts(uint32_t total, uint32_t sockets)
{
    return total < KOLO_SOCKETS_SPLIT ? 1 : sockets;
}

/* Returns where part i begins; all parts but the last one are a multiple of 64 bytes. */
uint32_t kolo_sockets_part_at(uint32_t total, uint32_t parts, uint32_t i)
{
    uint32_t each = (total / parts + 63u) / 64u * 64u;
    return i >= parts ? total : KOLO_MIN(each * i, total);
}
