/* SPDX-License-Identifier: Apache-2.0
 *
 * One end of a one-sided connection: the exchange of cards by which the kind is chosen, the windows that the peer
 * may write to, the queue of writes, and the events. What moves the bytes is a kolo_onesided_ops_t (shm.c, tcp.c).
 */
#include "wire/onesided/lanes.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static const kolo_onesided_ops_t *const kinds[KOLO_ONESIDED_KINDS] = {
    [KOLO_ONESIDED_SHM] = &kolo_onesided_shm,
#if defined(KOLO_HAVE_VERBS)
    [KOLO_ONESIDED_VERBS] = &kolo_onesided_verbs,
#endif
    [KOLO_ONESIDED_TCP] = &kolo_onesided_tcp,
};

/* ---- life ---- */

static kolo_status_t add_window(kolo_onesided_t *end, const kolo_exposed_t *exposed, uint64_t *key);

/* Memory for the peer to write to from the start, as window 0; the arena's first, so it is zeroed. */
static kolo_status_t offer_mailbox(kolo_onesided_t *end, size_t bytes, kolo_onesided_card_t *card)
{
    if (bytes == 0) return KOLO_OK;
    KOLO_TRY(kolo_onesided_alloc(end, bytes, &end->mailbox));
    card->mailbox_bytes = bytes;
    card->mailbox_at = (uint64_t)((char *)end->mailbox.base - kolo_arena_base(end->arena));
    kolo_exposed_t exposed = {.base = end->mailbox.base, .bytes = bytes};
    KOLO_TRY(add_window(end, &exposed, &card->mailbox_key));
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++)
        if ((end->kinds & 1u << i) && kinds[i]->offer_mailbox) KOLO_TRY(kinds[i]->offer_mailbox(end, card));
    return KOLO_OK;
}

static kolo_status_t offer(kolo_onesided_t *end, size_t mailbox)
{
    kolo_onesided_card_t card = {.uid = (uint32_t)getuid(), .pid = (int32_t)getpid()};
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++) {
        if (!(end->kinds & 1u << i) || kinds[i] == NULL) continue;
        /* What neighbours use costs less than pages that a network card holds. */
        if (i == KOLO_ONESIDED_VERBS && (card.kinds & 1u << KOLO_ONESIDED_SHM) && kolo_onesided_is_near(end))
            continue;
        kolo_status_t status = kinds[i]->offer(end, &card);
        if (status != KOLO_OK && status != KOLO_ERR_UNSUPPORTED) return status;
        if (status == KOLO_OK) card.kinds |= 1u << i;
    }
    end->kinds = card.kinds;
    KOLO_TRY(offer_mailbox(end, mailbox, &card));
    if (card.kinds == 0)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "onesided: no kind that may be used with %s works here", end->who);
    kolo_onesided_card_encode(&card, end->card_out);
    return KOLO_OK;
}

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
    kolo_status_t status = offer(end, config->mailbox);
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
        if (kinds[i]) kinds[i]->close(end);
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

bool kolo_onesided_is_open(const kolo_onesided_t *end)
{
    return end->told;
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

/* ---- the cards ---- */

static kolo_status_t hung_up(const kolo_onesided_t *end, int err)
{
    if (err == 0 || err == ECONNRESET || err == EPIPE)
        return kolo_fail(KOLO_ERR_REMOTE, "%s has closed the connection, or has died", end->who);
    if (err == EBADMSG) return kolo_fail(KOLO_ERR_PROTOCOL, "connection with %s: %s", end->who, KOLO_SEAL_ALTERED);
    return kolo_fail_errno(KOLO_ERR_REMOTE, err, "the connection with %s is broken", end->who);
}

static kolo_status_t choose(kolo_onesided_t *end)
{
    kolo_onesided_card_t card;
    const char *wrong = kolo_onesided_card_decode(end->card_in, sizeof end->card_in, &card);
    if (wrong) return kolo_fail(KOLO_ERR_PROTOCOL, "the card of %s: %s", end->who, wrong);
    bool same_host = card.shm_hash == end->domain->shm_hash && card.uid == (uint32_t)getuid();
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++) {
        if (!(end->kinds & card.kinds & 1u << i) || (i == KOLO_ONESIDED_SHM && !same_host)) continue;
        KOLO_TRY(kinds[i]->connect(end, &card));
        end->ops = kinds[i];
        end->peer_mailbox = (kolo_onesided_window_t){.bytes = card.mailbox_bytes};
        kinds[i]->find_mailbox(&card, &end->peer_mailbox);
        return KOLO_OK;
    }
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "%s and this process have no kind of one-sided transfers in common",
                     end->who);
}

/* A byte each way: before the other end is ready, what is written to it may be lost. */
static kolo_status_t shake_hands(kolo_onesided_t *end)
{
    static const uint8_t word = 'r';
    uint8_t theirs = 0;
    if (!end->said_ready) {
        ssize_t n = kolo_socket_send_bytes(&end->socket, &word, 1);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return KOLO_IN_PROGRESS;
        if (n < 0) return hung_up(end, errno);
        end->said_ready = true;
    }
    if (!end->heard_ready) {
        ssize_t n = kolo_socket_recv_bytes(&end->socket, &theirs, 1);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return KOLO_IN_PROGRESS;
        if (n <= 0) return hung_up(end, n < 0 ? errno : 0);
        if (theirs != word)
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s did not say that it is ready, but 0x%02x", end->who, theirs);
        end->heard_ready = true;
    }
    return KOLO_OK;
}

/* KOLO_IN_PROGRESS until both cards have passed. */
static kolo_status_t exchange(kolo_onesided_t *end)
{
    if (end->ops) return end->ops->shakes ? shake_hands(end) : KOLO_OK;
    while (end->card_sent < sizeof end->card_out) {
        ssize_t n = kolo_socket_send_bytes(&end->socket, end->card_out + end->card_sent,
                                           sizeof end->card_out - end->card_sent);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n < 0) return hung_up(end, errno);
        end->card_sent += (size_t)n;
    }
    while (end->card_got < sizeof end->card_in) {
        ssize_t n =
            kolo_socket_recv_bytes(&end->socket, end->card_in + end->card_got, sizeof end->card_in - end->card_got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n <= 0) return hung_up(end, n < 0 ? errno : 0);
        end->card_got += (size_t)n;
    }
    KOLO_TRY(choose(end));
    return end->ops->shakes ? shake_hands(end) : KOLO_OK;
}

bool kolo_onesided_hung_up(const kolo_onesided_t *end)
{
    char byte;
    ssize_t n = recv(end->socket.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

bool kolo_onesided_is_near(const kolo_onesided_t *end)
{
    struct sockaddr_storage mine = {0}, theirs = {0};
    socklen_t n = sizeof mine, m = sizeof theirs;
    if (getsockname(end->socket.fd, (struct sockaddr *)&mine, &n) != 0 ||
        getpeername(end->socket.fd, (struct sockaddr *)&theirs, &m) != 0 || mine.ss_family != theirs.ss_family)
        return false;
    if (mine.ss_family == AF_UNIX) return true;
    const struct sockaddr_in *a = (const void *)&mine, *b = (const void *)&theirs;
    const struct sockaddr_in6 *a6 = (const void *)&mine, *b6 = (const void *)&theirs;
    if (mine.ss_family == AF_INET6) return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
    return mine.ss_family == AF_INET &&
           (a->sin_addr.s_addr == b->sin_addr.s_addr || ntohl(b->sin_addr.s_addr) >> 24 == 127);
}

/* ---- memory ---- */

kolo_status_t kolo_onesided_need_arena(kolo_onesided_t *end)
{
    if (end->arena) return KOLO_OK; /* but over shared memory it need not be one that others map */
    return kolo_arena_create(-1, 0, (size_t)kolo_onesided_param_arena, &end->arena);
}

kolo_status_t kolo_onesided_alloc(kolo_onesided_t *end, size_t bytes, kolo_onesided_memory_t *memory)
{
    KOLO_TRY(kolo_onesided_need_arena(end));
    return kolo_arena_alloc(end->arena, bytes, memory);
}

static kolo_status_t more_windows(kolo_onesided_t *end)
{
    uint32_t n = end->nexposed ? 2 * end->nexposed : 16;
    kolo_exposed_t *more = n <= 1u << 24 ? realloc(end->exposed, n * sizeof *more) : NULL;
    if (more == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for %u windows to %s", n, end->who);
    memset(more + end->nexposed, 0, (n - end->nexposed) * sizeof *more);
    end->exposed = more;
    end->nexposed = n;
    return KOLO_OK;
}

static kolo_status_t choose_salt(kolo_onesided_domain_t *domain, uint32_t *salt)
{
    if (domain->nsalts == 0) {
        if (getrandom(domain->salts, sizeof domain->salts, 0) != (ssize_t)sizeof domain->salts)
            return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "onesided: no random bytes for a window");
        domain->nsalts = KOLO_COUNTOF(domain->salts);
    }
    *salt = domain->salts[--domain->nsalts];
    return KOLO_OK;
}

static kolo_status_t add_window(kolo_onesided_t *end, const kolo_exposed_t *exposed, uint64_t *key)
{
    uint32_t i = end->free_exposed, salt = exposed->salt;
    while (i < end->nexposed && end->exposed[i].base) i++;
    if (i == end->nexposed) KOLO_TRY(more_windows(end));
    if (salt == 0) KOLO_TRY(choose_salt(end->domain, &salt));
    end->exposed[i] = *exposed;
    end->exposed[i].salt = salt;
    end->free_exposed = i + 1;
    *key = (uint64_t)salt << 32 | i;
    return KOLO_OK;
}

kolo_status_t kolo_onesided_expose(kolo_onesided_t *end, void *base, size_t bytes, kolo_onesided_window_t *window)
{
    kolo_exposed_t exposed = {.base = base, .bytes = bytes};
    uint64_t address, key;
    if (end->ops == NULL) return kolo_fail(KOLO_ERR_INVALID_USAGE, "onesided: %s is not connected yet", end->who);
    if (base == NULL || bytes == 0) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "onesided: nothing to expose");
    KOLO_TRY(end->ops->expose(end, base, bytes, &address, &exposed.salt, &exposed.pin));
    kolo_status_t status = add_window(end, &exposed, &key);
    if (status != KOLO_OK && end->ops->hide) end->ops->hide(end, exposed.pin);
    if (status != KOLO_OK) return status;
    *window = (kolo_onesided_window_t){.address = address, .bytes = bytes, .key = key};
    return KOLO_OK;
}

bool kolo_onesided_pays(const kolo_onesided_t *end, uint64_t bytes)
{
    return end->ops && (end->ops->pays == NULL || end->ops->pays(end, bytes));
}

kolo_status_t kolo_onesided_keep(kolo_onesided_t *end, void *base, size_t bytes)
{
    return end->ops && end->ops->keep ? end->ops->keep(end, base, bytes) : KOLO_OK;
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

void *kolo_onesided_mailbox(kolo_onesided_t *end)
{
    return end->mailbox.base;
}

const kolo_onesided_window_t *kolo_onesided_peer_mailbox(const kolo_onesided_t *end)
{
    return &end->peer_mailbox;
}

void kolo_onesided_hide(kolo_onesided_t *end, const kolo_onesided_window_t *window)
{
    uint32_t i = (uint32_t)window->key;
    if (i < end->nexposed && end->exposed[i].base && end->exposed[i].salt == (uint32_t)(window->key >> 32)) {
        if (end->ops->hide) end->ops->hide(end, end->exposed[i].pin);
        if (end->ops->forget) end->ops->forget(end, window->key);
        end->exposed[i].base = NULL;
        end->free_exposed = KOLO_MIN(end->free_exposed, i);
    }
}

char *kolo_onesided_find(kolo_onesided_t *end, uint64_t key, uint64_t address, uint64_t bytes)
{
    uint32_t i = (uint32_t)key;
    if (i >= end->nexposed || end->exposed[i].base == NULL || end->exposed[i].salt != (uint32_t)(key >> 32))
        return NULL;
    const kolo_exposed_t *e = &end->exposed[i];
    return address <= e->bytes && bytes <= e->bytes - address ? e->base + address : NULL;
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
        KOLO_TRY(exchange(end));
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

kolo_status_t kolo_onesided_progress(kolo_onesided_t *end, kolo_onesided_event_t *events, int max, int *count)
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
