/* SPDX-License-Identifier: Apache-2.0
 *
 * See clients.h.
 */
#include "clients.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const store_client_t *)a)->name, ((const store_client_t *)b)->name);
}

void store_clients_init(store_clients_t *clients)
{
    *clients = (store_clients_t){.all = NULL};
    clients->recent.next = clients->recent.last = &clients->recent;
}

void store_clients_fini(store_clients_t *clients)
{
    tdestroy(clients->all, free);
}

static void leave_recent(store_client_t *client)
{
    client->next->last = client->last;
    client->last->next = client->next;
}

static void become_recent(store_clients_t *clients, store_client_t *client)
{
    client->next = &clients->recent;
    client->last = clients->recent.last;
    client->last->next = clients->recent.last = client;
}

/* Forgets who has asked for nothing for longest. Whoever is unknown needs a larger count than all that were
 * forgotten, or what they sent would serve again. Counts go by the clock, so those of newcomers are. */
static void forget_oldest(store_clients_t *clients)
{
    store_client_t *client = clients->recent.next;
    if (client->count > clients->floor) clients->floor = client->count;
    tdelete(client, &clients->all, by_name);
    leave_recent(client);
    free(client);
    clients->count--;
}

static bool add(store_clients_t *clients, const store_client_t *wanted)
{
    if (wanted->count <= clients->floor) return false;
    if (clients->count == KOLO_STORE_CLIENTS_MAX) forget_oldest(clients);
    store_client_t *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) return false;
    *fresh = *wanted;
    if (tsearch(fresh, &clients->all, by_name) == NULL) {
        free(fresh);
        return false;
    }
    become_recent(clients, fresh);
    clients->count++;
    return true;
}

bool store_clients_advance(store_clients_t *clients, const char name[STORE_CLIENT_NAME], uint64_t count)
{
    store_client_t wanted = {.count = count};
    memcpy(wanted.name, name, sizeof wanted.name);
    store_client_t **found = (store_client_t **)tfind(&wanted, &clients->all, by_name);
    if (found == NULL) return add(clients, &wanted);
    store_client_t *client = *found;
    if (count <= client->count) return false;
    client->count = count;
    leave_recent(client);
    become_recent(clients, client);
    return true;
}
