/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has asked the store, and with which count: each number of a client serves once.
 */
#ifndef KOLO_TOOLS_STORE_CLIENTS_H
#define KOLO_TOOLS_STORE_CLIENTS_H

#include "store.h"

#define STORE_CLIENT_NAME 33

/* In a ring in the order of their last requests. */
typedef struct store_client {
    char name[STORE_CLIENT_NAME];
    uint64_t count;
    struct store_client *next, *last;
} store_client_t;

typedef struct {
    void *all;             /* a search tree */
    store_client_t recent; /* the ring's head: next is who has asked for nothing for longest */
    uint64_t floor;        /* the largest count of those who were forgotten */
    size_t count;
} store_clients_t;

void store_clients_init(store_clients_t *clients);
void store_clients_fini(store_clients_t *clients);
/* Takes a count of a client; false: it has served before, or may have, or there is no memory. */
bool store_clients_advance(store_clients_t *clients, const char name[STORE_CLIENT_NAME], uint64_t count);

#endif
