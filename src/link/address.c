/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses as they travel (address.h): conversion, checking, printing, parsing of host:port.
 */
#include "link/address.h"
#include "base/file/fds.h"

#include "base/bytes.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

enum { AT_FAMILY = 0, AT_PORT = 2, AT_SCOPE = 4, AT_ADDRESS = 8, AT_COOKIE = 24 };
enum { FAMILY_UNIX = 1, UNIX_DIGITS = 5 };

/* ---- Unix sockets ---- */

bool kolo_address_is_unix(const kolo_address_t *address)
{
    return kolo_get16(address->bytes + AT_FAMILY) == FAMILY_UNIX;
}

void kolo_address_set_unix(kolo_address_t *address)
{
    memset(address, 0, sizeof(*address));
    kolo_put16(address->bytes + AT_FAMILY, FAMILY_UNIX);
}

/* Tells whether it is a name as the kernel makes them. */
static bool is_unix_name(const char *name)
{
    for (int i = 0; i < UNIX_DIGITS; i++)
        if (!(name[i] >= '0' && name[i] <= '9') && !(name[i] >= 'a' && name[i] <= 'f')) return false;
    return name[UNIX_DIGITS] == '\0';
}

/* Takes port 0 for an address without a name, at which bind() chooses one. */
static socklen_t unix_to_sockaddr(const uint8_t *b, struct sockaddr_un *un)
{
    un->sun_family = AF_UNIX;
    if (kolo_get16(b + AT_PORT) == 0) return sizeof(un->sun_family);
    memcpy(un->sun_path + 1, b + AT_ADDRESS, UNIX_DIGITS);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + UNIX_DIGITS);
}

/* Gives a socket without a name, as those of callers, or with another kind of name port 0. */
static void unix_from_sockaddr(kolo_address_t *address, const struct sockaddr_un *un)
{
    kolo_address_set_unix(address);
    if (un->sun_path[0] != '\0' || !is_unix_name(un->sun_path + 1)) return;
    memcpy(address->bytes + AT_ADDRESS, un->sun_path + 1, UNIX_DIGITS);
    kolo_put16(address->bytes + AT_PORT, 1);
}

static const char *check_unix(const uint8_t *b)
{
    static const uint8_t zeros[16 - UNIX_DIGITS];
    if (kolo_get16(b + AT_PORT) != 1) return "a Unix socket with a port";
    if (kolo_get32(b + AT_SCOPE) != 0) return "a Unix socket with a scope";
    if (memcmp(b + AT_ADDRESS + UNIX_DIGITS, zeros, sizeof(zeros)) != 0) return "bytes behind a Unix socket's name";
    return is_unix_name((const char *)b + AT_ADDRESS) ? NULL : "a Unix socket whose name is not the kernel's";
}

/* ---- all kinds ---- */

void kolo_address_from_sockaddr(kolo_address_t *address, const struct sockaddr *sa)
{
    memset(address, 0, sizeof(*address));
    uint8_t *b = address->bytes;
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
        kolo_put16(b + AT_FAMILY, 4);
        kolo_put16(b + AT_PORT, ntohs(in->sin_port));
        memcpy(b + AT_ADDRESS, &in->sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sa;
        kolo_put16(b + AT_FAMILY, 6);
        kolo_put16(b + AT_PORT, ntohs(in6->sin6_port));
        kolo_put32(b + AT_SCOPE, in6->sin6_scope_id);
        memcpy(b + AT_ADDRESS, &in6->sin6_addr, 16);
    } else if (sa->sa_family == AF_UNIX) {
        unix_from_sockaddr(address, (const struct sockaddr_un *)(const void *)sa);
    }
}

const char *kolo_address_check(const kolo_address_t *address)
{
    static const uint8_t zeros[16];
    const uint8_t *b = address->bytes;
    uint16_t family = kolo_get16(b + AT_FAMILY);
    if (family != 4 && family != 6 && family != FAMILY_UNIX) return "unknown address family";
    if (kolo_get16(b + AT_PORT) == 0) return "port 0";
    if (family == FAMILY_UNIX) return check_unix(b);
    if (memcmp(b + AT_ADDRESS, zeros, family == 4 ? 4 : 16) == 0) return "no address";
    if (family == 4 && memcmp(b + AT_ADDRESS + 4, zeros, 12) != 0) return "bytes behind the IPv4 address";
    if (family == 4 && kolo_get32(b + AT_SCOPE) != 0) return "an IPv4 address with a scope";
    if (family == 4 && (b[AT_ADDRESS] >= 224 || b[AT_ADDRESS] == 0)) return "not a unicast IPv4 address";
    if (family == 6 && b[AT_ADDRESS] == 0xff) return "a multicast IPv6 address";
    return NULL;
}

socklen_t kolo_address_to_sockaddr(const kolo_address_t *address, struct sockaddr_storage *sa)
{
    const uint8_t *b = address->bytes;
    memset(sa, 0, sizeof(*sa));
    if (kolo_get16(b + AT_FAMILY) == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)(void *)sa;
        in->sin_family = AF_INET;
        in->sin_port = htons(kolo_get16(b + AT_PORT));
        memcpy(&in->sin_addr, b + AT_ADDRESS, 4);
        return sizeof(*in);
    }
    if (kolo_address_is_unix(address)) return unix_to_sockaddr(b, (struct sockaddr_un *)(void *)sa);
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)(void *)sa;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(kolo_get16(b + AT_PORT));
    in6->sin6_scope_id = kolo_get32(b + AT_SCOPE);
    memcpy(&in6->sin6_addr, b + AT_ADDRESS, 16);
    return sizeof(*in6);
}

bool kolo_address_is_loopback(const kolo_address_t *address)
{
    static const uint8_t loopback6[16] = {[15] = 1};
    const uint8_t *b = address->bytes;
    if (kolo_address_is_unix(address)) return true;
    if (kolo_get16(b + AT_FAMILY) == 4) return b[AT_ADDRESS] == 127;
    return memcmp(b + AT_ADDRESS, loopback6, 16) == 0;
}

static bool is_within_machine(int fd)
{
    struct sockaddr_storage sa;
    socklen_t bytes = sizeof(sa);
    kolo_address_t ends[2];
    for (int i = 0; i < 2; i++, bytes = sizeof(sa)) {
        int rc =
            i ? getpeername(fd, (struct sockaddr *)&sa, &bytes) : getsockname(fd, (struct sockaddr *)&sa, &bytes);
        if (rc != 0 || (sa.ss_family != AF_INET && sa.ss_family != AF_INET6)) return false;
        kolo_address_from_sockaddr(&ends[i], (const struct sockaddr *)&sa);
    }
    return memcmp(ends[0].bytes + AT_ADDRESS, ends[1].bytes + AT_ADDRESS, 16) == 0;
}

void kolo_socket_hang_up(int fd)
{
    static const struct linger at_once = {1, 0};
    /* Not what is sent, but what is acknowledged: the kernel delivers within a machine by a queue for each core, so
     * from a thread that moves between send and close, or while the queues are behind, a reset may overtake the
     * data. */
    int unacknowledged = 1;
    if (is_within_machine(fd) && ioctl(fd, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    kolo_fd_close(fd);
}

void kolo_address_widen(kolo_address_t *address)
{
    kolo_put32(address->bytes + AT_SCOPE, 0);
    memset(address->bytes + AT_ADDRESS, 0, 16);
}

uint16_t kolo_address_port(const kolo_address_t *address)
{
    return kolo_get16(address->bytes + AT_PORT);
}

void kolo_address_set_port(kolo_address_t *address, uint16_t port)
{
    if (kolo_address_is_unix(address))
        memset(address->bytes + AT_ADDRESS, 0, UNIX_DIGITS); /* the name was the port */
    kolo_put16(address->bytes + AT_PORT, port);
}

void kolo_address_set_cookie(kolo_address_t *address, uint64_t cookie)
{
    kolo_put64(address->bytes + AT_COOKIE, cookie);
}

uint64_t kolo_address_cookie(const kolo_address_t *address)
{
    return kolo_get64(address->bytes + AT_COOKIE);
}

const char *kolo_address_print(const kolo_address_t *address, char *buf)
{
    char host[INET6_ADDRSTRLEN] = "?";
    const uint8_t *b = address->bytes;
    bool v6 = kolo_get16(b + AT_FAMILY) == 6;
    if (kolo_address_is_unix(address)) {
        bool named = kolo_address_port(address) != 0;
        snprintf(buf, KOLO_ADDRESS_TEXT_BYTES, named ? "unix:@%.*s" : "a Unix socket", UNIX_DIGITS,
                 (const char *)b + AT_ADDRESS);
        return buf;
    }
    inet_ntop(v6 ? AF_INET6 : AF_INET, b + AT_ADDRESS, host, sizeof(host));
    snprintf(buf, KOLO_ADDRESS_TEXT_BYTES, v6 ? "[%s]:%u" : "%s:%u", host, kolo_get16(b + AT_PORT));
    return buf;
}

kolo_status_t kolo_address_parse(const char *text, kolo_address_t *address)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t host_bytes = colon != NULL ? (size_t)(colon - text) : 0;
    if (host_bytes == 0 || host_bytes >= sizeof(host))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "'%s' is not host:port", text);
    memcpy(host, text, host_bytes);
    host[host_bytes] = '\0';
    char *name = host, *end;
    if (name[0] == '[' && name[host_bytes - 1] == ']') {
        name[host_bytes - 1] = '\0';
        name++;
    }
    long port = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || *end != '\0' || port < 1 || port > 65535)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "'%s': the port must be a number from 1 to 65535", text);

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int err = getaddrinfo(name, NULL, &hints, &found);
    if (err != 0 || found == NULL)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "'%s': cannot resolve the host: %s", text, gai_strerror(err));
    kolo_address_from_sockaddr(address, found->ai_addr);
    freeaddrinfo(found);
    kolo_address_set_port(address, (uint16_t)port);
    const char *wrong = kolo_address_check(address);
    if (wrong != NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "'%s': %s", text, wrong);
    return KOLO_OK;
}
