/* SPDX-License-Identifier: Apache-2.0
 *
 * A socket address as it travels: 32 bytes, little endian. The cookie is random per listening socket; a dialler
 * proves that it means this very socket, so an address that outlived its job opens nothing.
 *
 *     0 family (4, 6 or 1)   2 port   4 scope   8 address (IPv4: 4 bytes, then zeros)   24 cookie
 *
 * Family 1 is a Unix socket, for a machine without any network interface (decision 0041). Its address is a name of
 * the abstract kind, five hexadecimal digits that the kernel chose; its port is 1, or 0 to listen under any name.
 * Such names belong to a network namespace, as ports do.
 */
#ifndef KOLO_LINK_ADDRESS_H
#define KOLO_LINK_ADDRESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/socket.h>

typedef struct {
    uint8_t bytes[32];
} kolo_address_t;

#define KOLO_ADDRESS_TEXT_BYTES 80

void kolo_address_from_sockaddr(kolo_address_t *address, const struct sockaddr *sa);
/* Returns NULL when it is one that could be dialled, else what is wrong with it. Pure; fuzzed. */
const char *kolo_address_check(const kolo_address_t *address);
/* Translates a checked address. */
socklen_t kolo_address_to_sockaddr(const kolo_address_t *address, struct sockaddr_storage *sa);
/* Tells whether an address is loopback or a Unix socket: not reachable from outside of this machine. */
bool kolo_address_is_loopback(const kolo_address_t *address);
bool kolo_address_is_unix(const kolo_address_t *address);
/* Makes an address to listen at of a Unix socket, under any name. */
void kolo_address_set_unix(kolo_address_t *address);
/* Closes a TCP connection. Within one machine, when all has been sent (which there means delivered), the connection
 * ends by a reset: it then holds no local port for another minute (TIME_WAIT guards against what wanders in
 * networks), and many ranks on a machine do not use the ports up. What was sent can still be read. */
void kolo_socket_hang_up(int fd);
/* Makes it an address to listen at, on all interfaces of its family. */
void kolo_address_widen(kolo_address_t *address);
uint16_t kolo_address_port(const kolo_address_t *address);
void kolo_address_set_port(kolo_address_t *address, uint16_t port); /* 0 for a Unix socket, which loses its name */
void kolo_address_set_cookie(kolo_address_t *address, uint64_t cookie);
uint64_t kolo_address_cookie(const kolo_address_t *address);
/* Writes "10.0.0.1:4711", "[fe80::1]:4711" or "unix:@0a3f1" (the name that ss -x prints) into a buffer of
 * KOLO_ADDRESS_TEXT_BYTES; returns it. */
const char *kolo_address_print(const kolo_address_t *address, char *buf);

/* Chooses the local address (port 0) that this process listens on: by KOLO_SOCKET_IFNAME and KOLO_SOCKET_FAMILY, on
 * the subnet of `root` (NULL: none) where one of the permitted interfaces is on it. A Unix socket if the root is
 * one, or if there is no root yet and no interface at all is up. */
kolo_status_t kolo_address_choose_local(const kolo_address_t *root, kolo_address_t *address);
/* Tells whether any interface is up, be it loopback. */
bool kolo_address_has_network(void);
/* The interfaces that KOLO_SOCKET_IFNAME and KOLO_SOCKET_FAMILY permit, each with its best address (port 0), in the
 * order of the system; without KOLO_SOCKET_IFNAME loopback and container bridges only where there is nothing else.
 * Returns how many; at most `most`. */
typedef struct {
    char name[16];
    kolo_address_t address;
} kolo_interface_t;
int kolo_address_list_local(kolo_interface_t *out, int most);
/* Tells whether an interface name matches a list in NCCL's syntax: "eth,ib" prefixes, "=eth0" exact, "^docker" all
 * but. */
bool kolo_address_ifname_matches(const char *list, const char *name);
/* Parses host:port (host a name or an address, [v6]:port) as an address with cookie 0. */
kolo_status_t kolo_address_parse(const char *text, kolo_address_t *address);

#endif
