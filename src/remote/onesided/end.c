/* SPDX-License-Identifier: Apache-2.0
 *
 * One end of a one-sided connection: its life, the queue of writes, and the events. connect.c chooses the kind,
 * windows.c has the memory that the peer may write to. What moves the bytes is a kolo_onesided_ops_t (shm.c, tcp.c,
 * verbs.c).
 */
#include "remote/onesided/lanes.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- life ---- */

kolo_status_t kolo_onesided_open(kolo_onesided_domain_t *domain, const kolo_onesided_config_t *config,
                                 kolo_onesided_t **out)
{
    kolo_onesided_t *end = calloc(1, sizeof *end);
    if (end == NULL) {
        kolo_socket_t socket = config->socket;
        kolo_socket_close(&socket);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for a connection with %s", config->who);
    }
    end->domain = domain;
    domain->ends++;
    end->socket = config->socket;
    end->kinds = config->kinds ? config->kinds : ~0u;
    end->last_write = &end->writes;
    snprintf(end->who, sizeof end->who, "%s", config->who);
    kolo_status_t status = kolo_onesided_offer(end, config->mailbox);
    if (status == KOLO_OK) status = kolo_waker_add_fd(&domain->waker, end->socket.fd);
    if (status == KOLO_OK)
        *out = end;
    else
        kolo_onesided_close(end);
    return status;
}

static void free_writes(kolo_pending_write_t *write)
{
    while (write) {
        kolo_pending_write_t *next = write->next;
        free(write);
        write = next;
    }
}

void kolo_onesided_close(kolo_onesided_t *end)
{
    if (end == NULL) return;
    kolo_waker_del_fd(&end->domain->waker, end->socket.fd);
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++)
        if (kolo_onesided_kinds[i]) kolo_onesided_kinds[i]->close(end);
    kolo_socket_close(&end->socket);
    free_writes(end->writes);
    free_writes(end->spare_writes);
    kolo_onesided_free(&end->mailbox);
    kolo_arena_unref(end->arena);
    end->domain->ends--;
    free(end->cookies);
    free(end->exposed);
    free(end);
}

kolo_onesided_kind_t kolo_onesided_kind(const kolo_onesided_t *end)
{
    return end->ops ? end->ops->kind : KOLO_ONESIDED_KINDS;
}

size_t kolo_onesided_memory(const kolo_onesided_t *end)
{
    size_t bytes = sizeof *end + end->cookie_room * 8 + end->nexposed * sizeof *end->exposed;
    if (end->arena) bytes += kolo_arena_held(end->arena);
    return bytes + (end->ops ? end->ops->memory(end) : 0);
}

int kolo_onesided_wants_lanes(const kolo_onesided_t *end, uint64_t bytes)
{
    int n = kolo_movers_wanted();
    return n > 1 && end->ops && end->ops->add_lane && bytes >= (uint64_t)kolo_onesided_param_split ? n : 0;
}

kolo_status_t kolo_onesided_add_lane(kolo_onesided_t *end, kolo_socket_t socket)
{
    if (end->ops && end->ops->add_lane) return end->ops->add_lane(end, socket);
    kolo_socket_close(&socket);
    return kolo_fail(KOLO_ERR_PROTOCOL, "%s calls again, for a connection that needs no lanes", end->who);
}

/* ---- writes ---- */

kolo_status_t kolo_onesided_write(kolo_onesided_t *end, const kolo_onesided_write_t *write)
{
    if (end->failed != KOLO_OK) return kolo_fail(end->failed, "%s", end->why);
    if (end->ops == NULL) return kolo_fail(KOLO_ERR_INVALID_USAGE, "onesided: %s is not connected yet", end->who);
    if (write->bytes > 0 && (write->data == NULL || write->to == NULL || write->offset > write->to->bytes ||
                             write->bytes > write->to->bytes - write->offset))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "onesided: a write of %llu bytes does not fit into its window at %s",
                         (unsigned long long)write->bytes, end->who);
    kolo_pending_write_t *pending = end->spare_writes;
    if (pending)
        end->spare_writes = pending->next;
    else
        pending = malloc(sizeof *pending);
    if (pending == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for a write to %s", end->who);
    *pending = (kolo_pending_write_t){.w = *write};
    if (write->bytes > 0) pending->to = *write->to;
    pending->w.to = &pending->to;
    *end->last_write = pending;
    end->last_write = &pending->next;
    kolo_onesided_count(1, write->bytes, 0, 0);
    return KOLO_OK;
}

bool kolo_onesided_is_writing(const kolo_onesided_t *end)
{
    return end->writes || end->ncookies > 0 || end->ops == NULL ||
           (end->ops->is_writing && end->ops->is_writing(end));
}

kolo_status_t kolo_onesided_done(kolo_onesided_t *end, uint64_t cookie)
{
    if (end->ncookies == end->cookie_room) {
        size_t room = end->cookie_room ? 2 * end->cookie_room : 16;
        uint64_t *ring = malloc(room * sizeof *ring);
        if (ring == NULL)
            return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for the writes to %s", end->who);
        for (size_t i = 0; i < end->ncookies; i++)
            ring[i] = end->cookies[(end->first_cookie + i) & (end->cookie_room - 1)];
        free(end->cookies);
        end->cookies = ring;
        end->cookie_room = room;
        end->first_cookie = 0;
    }
    end->cookies[(end->first_cookie + end->ncookies++) & (end->cookie_room - 1)] = cookie;
    return KOLO_OK;
}

static kolo_status_t push_writes(kolo_onesided_t *end)
{
    kolo_pending_write_t *write;
    while ((write = end->writes) != NULL) {
        kolo_status_t status = end->ops->push(end, write);
        if (status == KOLO_IN_PROGRESS) return KOLO_OK;
        KOLO_TRY(status);
        if (write->w.cookie && !end->ops->later && !write->parted)
            KOLO_TRY(kolo_onesided_done(end, write->w.cookie));
        end->writes = write->next;
        if (end->writes == NULL) end->last_write = &end->writes;
        write->next = end->spare_writes;
        end->spare_writes = write;
    }
    return KOLO_OK;
}

/* ---- events ---- */

static kolo_status_t next_event(kolo_onesided_t *end, kolo_onesided_event_t *event)
{
    *event = (kolo_onesided_event_t){0};
    if (!end->told) {
        KOLO_TRY(kolo_onesided_exchange(end));
        end->told = true;
        event->kind = KOLO_ONESIDED_OPENED;
        return KOLO_OK;
    }
    kolo_status_t status = KOLO_IN_PROGRESS;
    if (end->ncookies == 0) status = end->ops->pull(end, event);
    if (status == KOLO_IN_PROGRESS && end->ncookies > 0) { /* maybe told by that pull */
        event->kind = KOLO_ONESIDED_WRITTEN;
        event->cookie = end->cookies[end->first_cookie++ & (end->cookie_room - 1)];
        end->ncookies--;
        return KOLO_OK;
    }
    if (status == KOLO_OK) {
        event->kind = KOLO_ONESIDED_NOTIFIED;
        kolo_onesided_count(0, 0, 1, 0);
    }
    return status;
}

kolo_status_t kolo_onesided_step(kolo_onesided_t *end, kolo_onesided_event_t *events, int max, int *count)
{
    kolo_status_t status = end->failed, pushed = KOLO_OK;
    *count = 0;
    if (status != KOLO_OK) return kolo_fail(status, "%s", end->why);
    /* A write may find the connection broken before what the peer has sent last is read: that comes first. */
    if (end->told) pushed = push_writes(end);
    while (*count < max && (status = next_event(end, &events[*count])) == KOLO_OK) ++*count;
    /* Completed writes may have made room for queued ones, which no other event would start. */
    if (status == KOLO_IN_PROGRESS && pushed == KOLO_OK && end->told && end->ops->later) pushed = push_writes(end);
    if (status == KOLO_IN_PROGRESS) status = pushed;
    if (status == KOLO_OK) return KOLO_OK;
    end->failed = status;
    snprintf(end->why, sizeof end->why, "%s", kolo_error_text());
    return *count > 0 ? KOLO_OK : status; /* the next call tells */
}
