/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's side of the store (store.h). One connection per request: they are few, and a server that restarts or a
 * cut connection then needs no thought.
 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define AGAIN_MS 20 /* between two looks for a key that is not there */

/* Who asks. The server takes the numbers of a client in their order alone, so that each request under way has a
 * client of its own: of those that are free one, or a new one. */
typedef struct client {
    struct client *next;
    char name[33];
    uint64_t count;
} client_t;

struct kolo_store {
    uint8_t key[KOLO_STORE_KEY_BYTES];
    char host[256], port[8];
    struct addrinfo *addresses;
    pthread_mutex_t lock; /* of the list, never held while something is waited for */
    client_t *free_clients;
};

typedef struct {
    char *text;
    size_t bytes;
    kolo_store_answer_t answer;
} reply_t;

/* One call of this side: what is asked, until when, what came, and the memory for the words of a failure. */
typedef struct {
    kolo_store_t *store;
    const char *method, *scope, *key;
    const void *data;
    size_t bytes; /* of data */
    int timeout_ms;
    char *why;
    size_t why_bytes;
    int64_t deadline; /* by now_ms(); run() sets it */
    bool cut;         /* the connection ended before the answer did: it is asked again until the deadline */
    reply_t reply;    /* its text is the caller's to free */
} call_t;

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* "unix:@name": a Unix socket of the abstract kind. */
static bool is_unix(const kolo_store_t *s)
{
    return strcmp(s->host, "unix") == 0 && s->port[0] == '@';
}

/* The same on all hosts, but for their clocks' errors. */
static uint64_t clock_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* The rules of the library's base/file/private.h. */
static bool read_key(const char *path, uint8_t key[KOLO_STORE_KEY_BYTES], char *why, size_t why_bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    const char *wrong = NULL;
    if (fd < 0 || fstat(fd, &st) != 0)
        wrong = errno == ELOOP ? "it is a symbolic link: name the file itself" : strerror(errno);
    else if (!S_ISREG(st.st_mode))
        wrong = "it is not a regular file";
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        wrong = "it belongs to another user";
    else if (st.st_mode & (st.st_uid == geteuid() ? 077 : 037))
        wrong = "others may read or change it: chmod 600 it";
    else if (read(fd, key, KOLO_STORE_KEY_BYTES) != KOLO_STORE_KEY_BYTES)
        wrong = "it holds no key of a store";
    if (wrong != NULL) snprintf(why, why_bytes, "the store's key (KOLO_STORE_KEY_FILE), %s: %s", path, wrong);
    if (fd >= 0) close(fd);
    return wrong == NULL;
}

kolo_store_t *kolo_store_open(const char *address, const char *key_file, char *why, size_t why_bytes)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char hash[KOLO_STORE_HEX];
    const char *colon = address != NULL ? strrchr(address, ':') : NULL;
    if (colon == NULL || key_file == NULL || colon == address || (size_t)(colon - address) >= 256 ||
        strlen(colon) >= sizeof((kolo_store_t *)0)->port) {
        snprintf(why, why_bytes, "KOLO_STORE=host:port and KOLO_STORE_KEY_FILE are not set (use kolorun --store)");
        return NULL;
    }
    if (!kolo_store_hash("", 0, hash)) {
        snprintf(why, why_bytes, "built without libsodium: requests to the store cannot be signed");
        return NULL;
    }
    kolo_store_t *s = calloc(1, sizeof *s);
    if (s == NULL) {
        snprintf(why, why_bytes, "no memory for the store's client");
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    size_t bytes = (size_t)(colon - address);
    const bool brackets = address[0] == '[' && bytes > 2 && address[bytes - 1] == ']'; /* IPv6 */
    memcpy(s->host, address + brackets, bytes - 2 * brackets);
    snprintf(s->port, sizeof s->port, "%s", colon + 1);
    int error = is_unix(s) ? 0 : getaddrinfo(s->host, s->port, &hints, &s->addresses);
    if (error != 0) snprintf(why, why_bytes, "KOLO_STORE=%s: %s", address, gai_strerror(error));
    if (error == 0 && read_key(key_file, s->key, why, why_bytes)) return s;
    kolo_store_close(s);
    return NULL;
}

void kolo_store_close(kolo_store_t *store)
{
    if (store == NULL) return;
    while (store->free_clients != NULL) {
        client_t *c = store->free_clients;
        store->free_clients = c->next;
        free(c);
    }
    pthread_mutex_destroy(&store->lock);
    if (store->addresses != NULL) freeaddrinfo(store->addresses);
    explicit_bzero(store->key, sizeof store->key);
    free(store);
}

static client_t *take_client(kolo_store_t *s)
{
    uint8_t id[16];
    pthread_mutex_lock(&s->lock);
    client_t *c = s->free_clients;
    if (c != NULL) s->free_clients = c->next;
    pthread_mutex_unlock(&s->lock);
    if (c != NULL || getrandom(id, sizeof id, 0) != (ssize_t)sizeof id) return c;
    c = calloc(1, sizeof *c);
    if (c != NULL) kolo_store_hex(c->name, id, sizeof id);
    return c;
}

static void give_client(kolo_store_t *s, client_t *c)
{
    pthread_mutex_lock(&s->lock);
    c->next = s->free_clients;
    s->free_clients = c;
    pthread_mutex_unlock(&s->lock);
}

static int fail_with(const call_t *call, const char *what, const char *detail)
{
    snprintf(call->why, call->why_bytes, "store at %s:%s: %s%s%s", call->store->host, call->store->port, what,
             detail ? ": " : "", detail ? detail : "");
    return -1;
}

static bool wait_for(int fd, short events, int64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        int64_t left = deadline - now_ms();
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0) return true;
        if (n == 0 || errno != EINTR) {
            if (n == 0) errno = ETIMEDOUT;
            return false;
        }
    }
}

/* -1: errno of the last address that was tried. */
static int dial(const kolo_store_t *s, int64_t deadline)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const size_t name = strlen(s->port + 1);
    const struct addrinfo local = {.ai_family = AF_UNIX,
                                   .ai_addr = (struct sockaddr *)&un,
                                   .ai_addrlen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name)};
    int error = EHOSTUNREACH;
    memcpy(un.sun_path + 1, s->port + 1, name);
    for (const struct addrinfo *a = is_unix(s) ? &local : s->addresses; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), late = 0;
        socklen_t size = sizeof late;
        error = errno;
        if (fd < 0) continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return fd;
        error = errno;
        if (error == EINPROGRESS)
            error = wait_for(fd, POLLOUT, deadline) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &late, &size) == 0
                        ? late
                        : errno;
        if (error == 0) return fd;
        close(fd);
    }
    errno = error;
    return -1;
}

static bool send_all(int fd, const void *data, size_t bytes, int64_t deadline)
{
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!wait_for(fd, POLLOUT, deadline)) return false;
            continue;
        }
        if (n < 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* 1: complete; 0: the connection ended before or the time did (errno); -1: it is not what our server says */
static int receive(int fd, reply_t *reply, int64_t deadline)
{
    size_t cap = 0;
    for (;;) {
        int done = kolo_store_answer_parse(reply->text, reply->bytes, &reply->answer);
        if (done != 0) return done;
        if (cap - reply->bytes < 4096) {
            cap = cap * 2 + 8192;
            char *more = realloc(reply->text, cap);
            if (more == NULL) return 0;
            reply->text = more;
        }
        ssize_t n = recv(fd, reply->text + reply->bytes, cap - reply->bytes, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!wait_for(fd, POLLIN, deadline)) return 0;
            continue;
        }
        if (n == 0) errno = ECONNRESET;
        if (n <= 0) return 0;
        reply->bytes += (size_t)n;
    }
}

static bool is_proved(const kolo_store_t *s, const client_t *client, const reply_t *reply)
{
    char what[16], hash[KOLO_STORE_HEX], signature[KOLO_STORE_HEX];
    const kolo_store_answer_t *a = &reply->answer;
    snprintf(what, sizeof what, "%d", a->status);
    return kolo_store_hash(reply->text + a->body_at, a->body_bytes, hash) &&
           kolo_store_sign(s->key, what, client->name, client->count, hash, signature) &&
           kolo_store_same(signature, a->signature);
}

/* One request. Returns the status, or -1. */
static int ask(call_t *call, client_t *client, const char *what)
{
    const kolo_store_t *s = call->store;
    char head[1024], hash[KOLO_STORE_HEX], signature[KOLO_STORE_HEX];
    const uint64_t now = clock_us(), count = client->count = now > client->count ? now : client->count + 1;
    if (!kolo_store_hash(call->data, call->bytes, hash) ||
        !kolo_store_sign(s->key, what, client->name, count, hash, signature))
        return fail_with(call, "the request cannot be signed", NULL);
    int fd = dial(s, call->deadline);
    if (fd < 0) return fail_with(call, "cannot connect", strerror(errno));
    int n = snprintf(head, sizeof head,
                     "%s HTTP/1.1\r\nHost: store\r\nConnection: close\r\nContent-Length: %zu\r\nKolo-Client: %s\r\n"
                     "Kolo-Count: %llu\r\nKolo-Body: %s\r\nKolo-Signature: %s\r\n\r\n",
                     what, call->bytes, client->name, (unsigned long long)count, hash, signature);
    /* A server that refuses answers before it has taken the body: its answer is read all the same. */
    bool sent = n > 0 && (size_t)n < sizeof head && send_all(fd, head, (size_t)n, call->deadline) &&
                send_all(fd, call->data, call->bytes, call->deadline);
    int error = errno, done = receive(fd, &call->reply, call->deadline);
    if (sent) error = errno;
    close(fd);
    if (done < 0) return fail_with(call, "what answers there is not the job's store", NULL);
    call->cut = done == 0 && (error == ECONNRESET || error == EPIPE);
    if (done == 0) return fail_with(call, "no answer", strerror(error));
    if (!is_proved(s, client, &call->reply)) {
        if (call->reply.answer.status == 403) return fail_with(call, "it refused the request's signature", NULL);
        return fail_with(call, "the answer is not signed with the job's key", NULL);
    }
    return call->reply.answer.status;
}

/* Asks; for a key that is not there again until it is, or the time is over. Returns the status, or -1. */
static int run(call_t *call)
{
    char what[KOLO_STORE_PATH_BYTES + 16];
    bool missing = false, again = false;
    call->deadline = now_ms() + call->timeout_ms;
    if (!kolo_store_name_ok(call->scope) || !kolo_store_name_ok(call->key) || call->bytes > KOLO_STORE_VALUE_MAX)
        return fail_with(call, "the scope, key or value cannot be one", NULL);
    client_t *client = take_client(call->store);
    if (client == NULL) return fail_with(call, "no memory or no random bytes", NULL);
    snprintf(what, sizeof what, "%s /%s/%s", call->method, call->scope, call->key);
    for (;;) {
        call->cut = false;
        int status = ask(call, client, what);
        int64_t left = call->deadline - now_ms();
        if (status == 404 && again && strcmp(call->method, "DELETE") == 0)
            status = 200; /* the one that was cut did it */
        again |= call->cut;
        if (status == 404) missing = true;
        if (status == -1 && missing && left <= 0) status = 404; /* the last look was cut short */
        if (left <= 0 || !(call->cut || (status == 404 && strcmp(call->method, "GET") == 0))) {
            give_client(call->store, client);
            return status;
        }
        free(call->reply.text);
        call->reply = (reply_t){0};
        poll(NULL, 0, left < AGAIN_MS ? (int)left : AGAIN_MS);
    }
}

int kolo_store_put(kolo_store_t *store, const char *scope, const char *key, const void *data, size_t bytes,
                   int timeout_ms, char *why, size_t why_bytes)
{
    call_t call = {.store = store,
                   .method = "PUT",
                   .scope = scope,
                   .key = key,
                   .data = data,
                   .bytes = bytes,
                   .timeout_ms = timeout_ms,
                   .why = why,
                   .why_bytes = why_bytes};
    int status = run(&call);
    free(call.reply.text);
    return status;
}

int kolo_store_get(kolo_store_t *store, const char *scope, const char *key, void **data, size_t *bytes,
                   int timeout_ms, char *why, size_t why_bytes)
{
    call_t call = {.store = store,
                   .method = "GET",
                   .scope = scope,
                   .key = key,
                   .data = "",
                   .timeout_ms = timeout_ms,
                   .why = why,
                   .why_bytes = why_bytes};
    int status = run(&call);
    reply_t *reply = &call.reply;
    if (status == 200) {
        memmove(reply->text, reply->text + reply->answer.body_at, reply->answer.body_bytes);
        *data = reply->text;
        *bytes = reply->answer.body_bytes;
    } else {
        free(reply->text);
    }
    return status;
}

int kolo_store_delete(kolo_store_t *store, const char *scope, const char *key, int timeout_ms, char *why,
                      size_t why_bytes)
{
    call_t call = {.store = store,
                   .method = "DELETE",
                   .scope = scope,
                   .key = key,
                   .data = "",
                   .timeout_ms = timeout_ms,
                   .why = why,
                   .why_bytes = why_bytes};
    int status = run(&call);
    free(call.reply.text);
    return status;
}
