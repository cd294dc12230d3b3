/* SPDX-License-Identifier: Apache-2.0
 *
 * What the system knows of its networks: which of its addresses reaches another, which addresses are its own, and
 * which interfaces join something within this machine.
 */
#ifndef KOLO_LINK_ROUTE_H
#define KOLO_LINK_ROUTE_H

#include "link/address.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/* Finds the own address that the system would call `to` from; nothing is sent. false: there is no way. */
bool kolo_route_source(const struct sockaddr *to, struct sockaddr_storage *source);
/* Finds the default route's address, for whatever is not in a table. */
bool kolo_route_default_source(int family, struct sockaddr_storage *source);
/* Tells whether it is a bridge, a tunnel or the like, whose other end is on this machine. */
bool kolo_route_is_virtual(const char *name);
/* Tells whether it is an address of this host, and of which interface. Not loopback's, which every host has. */
bool kolo_address_is_own(const kolo_address_t *address, char name[16]);
/* IPv6 addresses of this host that the system does not use: it still asks whether another host has them, too
 * (tentative), or one has. */
typedef struct {
    struct in6_addr address;
    bool duplicate;
    char name[16]; /* of the interface */
} kolo_unready_t;
#define KOLO_UNREADY_MAX 16
/* Lists them, at most that many. Mostly there are none. */
int kolo_route_unready(kolo_unready_t list[KOLO_UNREADY_MAX]);
/* Finds an address among them; NULL: it is none of them. */
const kolo_unready_t *kolo_route_find_unready(const kolo_unready_t *list, int n, const struct sockaddr *sa);
bool kolo_route_is_unready(const struct sockaddr *sa);
/* Writes "; another host has fd00::1 (eth0), too" or the like, of this one or, if that is none of them, of all. ""
 * if there are none, or for an IPv4 address. */
void kolo_route_unready_words(const struct sockaddr *sa, char *text, size_t bytes);
/* Binds a socket, also to an address that is tentative: it can be called as soon as it no longer is. 0 or an
 * errno. */
int kolo_route_bind(int fd, const struct sockaddr *sa, socklen_t bytes);
/* Takes an address that the other ranks know (MASTER_ADDR): where nothing better is known, this process listens on
 * the interface that has it or reaches it. */
void kolo_address_set_hint(const kolo_address_t *address);
bool kolo_address_hint(kolo_address_t *address);

#endif
