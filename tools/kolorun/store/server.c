/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun's side of the store: libmicrohttpd speaks HTTP, driven by kolorun's loop (no thread); here requests are
 * proved, counted and answered. A request that is refused costs its sender a connection and the job nothing.
 */
#include "store.h"

#include <stdio.h>

#if defined(KOLO_HAVE_MICROHTTPD) && defined(KOLO_HAVE_SODIUM)
#include "../kolorun.h"
#include "clients.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <microhttpd.h>
#include <net/if.h>
#include <search.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTIONS_MAX    512
#define CONNECTION_MEMORY  16384 /* request line and headers */
#define CONNECTION_TIMEOUT 10    /* seconds without a byte */
#define STRANGERS_MAX      384   /* connections that have proved nothing; one more, and the oldest has to go */

typedef struct {
    char path[KOLO_STORE_PATH_BYTES];
    uint8_t *data;
    size_t bytes;
} entry_t;

/* A connection that has proved nothing yet, in a ring in the order of their begins. */
typedef struct stranger {
    struct stranger *next, *last;
    int fd;
} stranger_t;

/* One request under way. */
typedef struct {
    char client[33], body_hash[KOLO_STORE_HEX];
    uint64_t count;
    int refused; /* status to answer without looking at the rest; 0: proved */
    uint8_t *body;
    size_t bytes;
} request_t;

struct kolo_store_server {
    struct MHD_Daemon *daemon;
    int fd, port;
    char address[24]; /* for ranks here */
    uint8_t key[KOLO_STORE_KEY_BYTES];
    void *entries; /* search tree */
    size_t stored;
    store_clients_t clients;
    stranger_t strangers; /* the ring's head */
    int nstrangers;
    kolo_store_counts_t counts;
};

bool kolo_store_server_available(void)
{
    return true;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const entry_t *)a)->path, ((const entry_t *)b)->path);
}

static void free_entry(void *p)
{
    free(((entry_t *)p)->data);
    free(p);
}

/* ---- is it one of ours? ---- */

static const char *header_of(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* No longer one of the strangers: it has proved who it is, was put out, or has ended. */
static void leave_strangers(kolo_store_server_t *s, stranger_t *one)
{
    if (one == NULL || one->next == NULL) return;
    one->next->last = one->last;
    one->last->next = one->next;
    one->next = one->last = NULL;
    s->nstrangers--;
}

/* Strangers that say nothing hold a connection for CONNECTION_TIMEOUT; they must not hold all of them. A limit for
 * each address would not do: a host has as many ranks as it likes, and strangers may be on it. */
static void on_connection(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    kolo_store_server_t *s = arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        leave_strangers(s, *state);
        free(*state);
        *state = NULL;
        return;
    }
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    stranger_t *one = fd != NULL ? malloc(sizeof *one) : NULL;
    *state = one;
    if (one == NULL) return;
    *one = (stranger_t){.next = &s->strangers, .last = s->strangers.last, .fd = fd->connect_fd};
    one->last->next = s->strangers.last = one;
    if (++s->nstrangers <= STRANGERS_MAX) return;
    shutdown(s->strangers.next->fd, SHUT_RDWR); /* its end is then found and told as any other */
    leave_strangers(s, s->strangers.next);
}

static int prove(kolo_store_server_t *s, struct MHD_Connection *c, const char *method, const char *path,
                 request_t *r)
{
    const char *client = header_of(c, "Kolo-Client"), *count = header_of(c, "Kolo-Count");
    const char *hash = header_of(c, "Kolo-Body"), *signature = header_of(c, "Kolo-Signature");
    const char *length = header_of(c, "Content-Length");
    char what[KOLO_STORE_PATH_BYTES + 16], wanted[KOLO_STORE_HEX];
    uint8_t bytes[32];
    uint64_t body = 0;
    if (!client || !count || !hash || !signature) {
        s->counts.is_unsigned++;
        return MHD_HTTP_FORBIDDEN;
    }
    const bool known = !strcmp(method, "PUT") || !strcmp(method, "GET") || !strcmp(method, "DELETE");
    if (!known || !kolo_store_path_ok(path) || !kolo_store_unhex(client, bytes, 16) ||
        !kolo_store_unhex(hash, bytes, 32) || !kolo_store_count(count, &r->count) ||
        (length && !kolo_store_count(length, &body))) {
        s->counts.malformed++;
        return MHD_HTTP_BAD_REQUEST;
    }
    snprintf(what, sizeof what, "%s %s", method, path);
    memcpy(r->client, client, sizeof r->client);
    memcpy(r->body_hash, hash, sizeof r->body_hash);
    if (!kolo_store_sign(s->key, what, client, r->count, hash, wanted) || !kolo_store_same(wanted, signature)) {
        s->counts.badly_signed++;
        return MHD_HTTP_FORBIDDEN;
    }
    if (body > KOLO_STORE_VALUE_MAX) {
        s->counts.too_large++;
        return MHD_HTTP_CONTENT_TOO_LARGE;
    }
    if (store_clients_advance(&s->clients, r->client, r->count)) {
        const union MHD_ConnectionInfo *state = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        if (state != NULL) leave_strangers(s, state->socket_context);
        return 0;
    }
    s->counts.replayed++;
    return MHD_HTTP_FORBIDDEN;
}

/* ---- what is asked for ---- */

static int put(kolo_store_server_t *s, const char *path, request_t *r)
{
    entry_t wanted;
    snprintf(wanted.path, sizeof wanted.path, "%s", path);
    entry_t **found = (entry_t **)tfind(&wanted, &s->entries, by_path);
    size_t before = found ? (*found)->bytes + sizeof wanted : 0;
    if (s->stored - before + r->bytes + sizeof wanted > KOLO_STORE_ALL_MAX) return MHD_HTTP_INSUFFICIENT_STORAGE;
    entry_t *entry = found ? *found : calloc(1, sizeof *entry);
    if (entry == NULL) return MHD_HTTP_INSUFFICIENT_STORAGE;
    if (found == NULL) {
        memcpy(entry->path, wanted.path, sizeof entry->path);
        if (tsearch(entry, &s->entries, by_path) == NULL) {
            free(entry);
            return MHD_HTTP_INSUFFICIENT_STORAGE;
        }
    }
    free(entry->data);
    entry->data = r->body;
    entry->bytes = r->bytes;
    s->stored += r->bytes + sizeof wanted - before;
    r->body = NULL;
    return MHD_HTTP_OK;
}

static int answer_to(kolo_store_server_t *s, const char *method, const char *path, request_t *r,
                     const entry_t **value)
{
    char hash[KOLO_STORE_HEX];
    entry_t wanted;
    *value = NULL;
    if (!kolo_store_hash(r->body, r->bytes, hash) || !kolo_store_same(hash, r->body_hash)) {
        s->counts.badly_signed++;
        return MHD_HTTP_FORBIDDEN;
    }
    s->counts.served++;
    if (strcmp(method, "PUT") == 0) return put(s, path, r);
    snprintf(wanted.path, sizeof wanted.path, "%s", path);
    entry_t **found = (entry_t **)tfind(&wanted, &s->entries, by_path);
    if (found == NULL) return MHD_HTTP_NOT_FOUND;
    if (strcmp(method, "GET") == 0) {
        *value = *found;
        return MHD_HTTP_OK;
    }
    entry_t *entry = *found;
    tdelete(entry, &s->entries, by_path);
    s->stored -= entry->bytes + sizeof *entry;
    free_entry(entry);
    return MHD_HTTP_OK;
}

static enum MHD_Result answer(kolo_store_server_t *s, struct MHD_Connection *c, const request_t *r, int status,
                              const entry_t *value)
{
    char what[16], hash[KOLO_STORE_HEX], signature[KOLO_STORE_HEX];
    struct MHD_Response *response = MHD_create_response_from_buffer(
        value ? value->bytes : 0, value && value->bytes ? value->data : (void *)(uintptr_t) "",
        MHD_RESPMEM_MUST_COPY);
    if (response == NULL) return MHD_NO;
    MHD_add_response_header(response, "Connection", "close");
    snprintf(what, sizeof what, "%d", status);
    /* To a stranger nothing is proved. */
    if (r->refused == 0 && kolo_store_hash(value ? value->data : NULL, value ? value->bytes : 0, hash) &&
        kolo_store_sign(s->key, what, r->client, r->count, hash, signature)) {
        MHD_add_response_header(response, "Kolo-Body", hash);
        MHD_add_response_header(response, "Kolo-Signature", signature);
    }
    enum MHD_Result queued = MHD_queue_response(c, (unsigned)status, response);
    MHD_destroy_response(response);
    return queued;
}

/* Called with the headers, then with pieces of the body, then to answer. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *data, size_t *bytes, void **state)
{
    kolo_store_server_t *s = arg;
    request_t *r = *state;
    const entry_t *value = NULL;
    (void)version;
    if (r == NULL) {
        *state = r = calloc(1, sizeof *r);
        if (r == NULL) return MHD_NO;
        r->refused = prove(s, c, method, path, r);
        return r->refused ? answer(s, c, r, r->refused, NULL) : MHD_YES; /* refused before its body comes */
    }
    if (*bytes > 0) {
        uint8_t *more =
            r->refused || *bytes > KOLO_STORE_VALUE_MAX - r->bytes ? NULL : realloc(r->body, r->bytes + *bytes);
        if (more != NULL) {
            memcpy(more + r->bytes, data, *bytes);
            r->body = more;
            r->bytes += *bytes;
        } else if (!r->refused) { /* in pieces, so that it did not say its size before */
            s->counts.too_large++;
            r->refused = MHD_HTTP_CONTENT_TOO_LARGE;
        }
        *bytes = 0;
        return MHD_YES;
    }
    int status = r->refused ? r->refused : answer_to(s, method, path, r, &value);
    return answer(s, c, r, status, value);
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why)
{
    request_t *r = *state;
    (void)arg, (void)c, (void)why;
    if (r != NULL) free(r->body);
    free(r);
    *state = NULL;
}

/* ---- its life ---- */

static struct MHD_Daemon *listen_at(kolo_store_server_t *s, unsigned flags, enum MHD_OPTION how, intptr_t number,
                                    const void *address)
{
    const struct MHD_OptionItem where[] = {{how, number, (void *)(uintptr_t)address}, {MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(MHD_USE_EPOLL | flags, 0, NULL, NULL, on_request, s, MHD_OPTION_ARRAY, where,
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_NOTIFY_CONNECTION,
                            on_connection, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_TIMEOUT,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
}

static bool listen_tcp(kolo_store_server_t *s, bool loopback)
{
    const struct sockaddr_in four = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY)};
    const struct sockaddr_in6 both = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    /* ssh comes to some hosts by IPv6, and they then know us by that address; there may be no IPv6 here. */
    if (!loopback) s->daemon = listen_at(s, MHD_USE_DUAL_STACK, MHD_OPTION_SOCK_ADDR, 0, &both);
    if (s->daemon == NULL) s->daemon = listen_at(s, 0, MHD_OPTION_SOCK_ADDR, 0, &four);
    const union MHD_DaemonInfo *port = s->daemon ? MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
    if (port == NULL) return false;
    s->port = port->port;
    snprintf(s->address, sizeof s->address, "127.0.0.1:%d", s->port);
    return true;
}

/* Its address can be bound all the same. */
static bool has_loopback(void)
{
    struct ifaddrs *all;
    bool up = false;
    if (getifaddrs(&all) != 0) return true;
    for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next)
        up |= (a->ifa_flags & IFF_UP) && (a->ifa_flags & IFF_LOOPBACK) && a->ifa_addr != NULL &&
              a->ifa_addr->sa_family == AF_INET;
    freeifaddrs(all);
    return up;
}

/* Where not even loopback is up, as ranks do then: under a name that the kernel chooses. */
static bool listen_unix(kolo_store_server_t *s)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof un;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&un, sizeof un.sun_family) == 0 &&
        listen(fd, CONNECTIONS_MAX) == 0 && getsockname(fd, (struct sockaddr *)&un, &bytes) == 0)
        s->daemon = listen_at(s, 0, MHD_OPTION_LISTEN_SOCKET, fd, NULL);
    if (s->daemon == NULL && fd >= 0) close(fd);
    snprintf(s->address, sizeof s->address, "unix:@%.5s", un.sun_path + 1);
    return s->daemon != NULL;
}

kolo_store_server_t *kolo_store_server_start(bool loopback, char *why, size_t why_bytes)
{
    kolo_store_server_t *s = calloc(1, sizeof *s);
    if (s == NULL || sodium_init() < 0 || getrandom(s->key, sizeof s->key, 0) != (ssize_t)sizeof s->key) {
        snprintf(why, why_bytes, "the store has no memory or no random bytes");
        free(s);
        return NULL;
    }
    s->strangers.next = s->strangers.last = &s->strangers;
    store_clients_init(&s->clients);
    bool listens = loopback && !has_loopback() ? listen_unix(s) : listen_tcp(s, loopback);
    const union MHD_DaemonInfo *fd = listens ? MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (fd == NULL) {
        snprintf(why, why_bytes, "the store cannot listen: %s", strerror(errno));
        kolo_store_server_stop(s);
        return NULL;
    }
    s->fd = fd->epoll_fd;
    return s;
}

const char *kolo_store_server_address(const kolo_store_server_t *server)
{
    return server->address;
}

int kolo_store_server_port(const kolo_store_server_t *server)
{
    return server->port;
}

const uint8_t *kolo_store_server_key(const kolo_store_server_t *server)
{
    return server->key;
}

int kolo_store_server_fd(const kolo_store_server_t *server)
{
    return server->fd;
}

double kolo_store_server_next_s(const kolo_store_server_t *server)
{
    MHD_UNSIGNED_LONG_LONG ms;
    return MHD_get_timeout(server->daemon, &ms) == MHD_YES ? kolorun_now() + (double)ms * 1e-3 : 0;
}

void kolo_store_server_run(kolo_store_server_t *server)
{
    MHD_run(server->daemon);
}

const kolo_store_counts_t *kolo_store_server_counts(const kolo_store_server_t *server)
{
    return &server->counts;
}

void kolo_store_server_stop(kolo_store_server_t *server)
{
    if (server == NULL) return;
    if (server->daemon) MHD_stop_daemon(server->daemon);
    tdestroy(server->entries, free_entry);
    store_clients_fini(&server->clients);
    sodium_memzero(server->key, sizeof server->key);
    free(server);
}

#else

bool kolo_store_server_available(void)
{
    return false;
}

kolo_store_server_t *kolo_store_server_start(bool loopback, char *why, size_t why_bytes)
{
    (void)loopback;
    snprintf(why, why_bytes, "there is no store: kolorun was built without libmicrohttpd or libsodium");
    return NULL;
}

int kolo_store_server_port(const kolo_store_server_t *server)
{
    (void)server;
    return 0;
}

const char *kolo_store_server_address(const kolo_store_server_t *server)
{
    (void)server;
    return "";
}

const uint8_t *kolo_store_server_key(const kolo_store_server_t *server)
{
    (void)server;
    return NULL;
}

int kolo_store_server_fd(const kolo_store_server_t *server)
{
    (void)server;
    return -1;
}

double kolo_store_server_next_s(const kolo_store_server_t *server)
{
    (void)server;
    return 0;
}

void kolo_store_server_run(kolo_store_server_t *server)
{
    (void)server;
}

const kolo_store_counts_t *kolo_store_server_counts(const kolo_store_server_t *server)
{
    (void)server;
    return NULL;
}

void kolo_store_server_stop(kolo_store_server_t *server)
{
    (void)server;
}

#endif
