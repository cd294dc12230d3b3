/* SPDX-License-Identifier: Apache-2.0
 *
 * What the system knows of its networks: which of its addresses reaches another, which addresses are its own, and
 * which interfaces join something within this machine.
 */
#ifndef KOLO_LINK_ROUTE_H
#define KOLO_LINK_ROUTE_H

#include "link/address.h"

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
/* Takes an address that the other ranks know (MASTER_ADDR): where nothing better is known, this process listens on
 * the interface that has it or reaches it. */
void kolo_address_set_hint(const kolo_address_t *address);
bool kolo_address_hint(kolo_address_t *address);

#endif
