/* SPDX-License-Identifier: Apache-2.0
 *
 * A small network plug-in, as others write them for NCCL, for Kolo's tests: one device, the loopback interface, one
 * TCP socket for each connection. Compiled once for each version of the interface (ABI). DOES makes it misbehave:
 * LIES puts a table of version 8 under the symbol of version 11, and the others are chosen by SMALL_DOES:
 * init-hangs, init-fails, nonsense-devices, no-name, connect-hangs, bytes-nonsense, isend-fails.
 */
#include "remote/plugin/abi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static bool does(const char *what)
{
    const char *value = getenv("SMALL_DOES");
    return value && strcmp(value, what) == 0;
}

typedef struct {
    int fd;
} listener_t;
typedef struct { /* in the caller's handle; the dialling side keeps its half-made connection there */
    uint32_t address;
    uint16_t port;
    struct comm *half;
} handle_t;
_Static_assert(sizeof(handle_t) <= KOLO_NCCL_HANDLE_BYTES, "a handle has its limit");

typedef struct request {
    bool used, done;
    uint32_t bytes, moved; /* of size and data together */
    uint32_t size;
    char *data;
    uint32_t room;
    struct comm *comm;
} request_t;
typedef struct comm {
    int fd;
    bool reads, connected;
    request_t requests[KOLO_NCCL_REQUESTS];
    uint64_t first, next;
} comm_t;

/* ---- set-up ---- */

static kolo_nccl_logger_t log_line;

static int begin(kolo_nccl_logger_t logger)
{
    log_line = logger;
    if (does("init-fails")) return KOLO_NCCL_SYSTEM_ERROR;
    while (does("init-hangs")) pause();
    if (logger) logger(KOLO_NCCL_LOG_INFO, 0, __FILE__, __LINE__, "%s: ready", "small");
    return KOLO_NCCL_SUCCESS;
}

static int devices(int *n)
{
    *n = does("nonsense-devices") ? -7 : 1;
    return KOLO_NCCL_SUCCESS;
}

static int listen_on(int device, void *handle, void **result)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof sa;
    listener_t *l = malloc(sizeof *l);
    handle_t h = {0};
    (void)device;
    if (!l) return KOLO_NCCL_SYSTEM_ERROR;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&sa, length) != 0 || listen(l->fd, 16) != 0 ||
        getsockname(l->fd, (struct sockaddr *)&sa, &length) != 0) {
        if (l->fd >= 0) close(l->fd);
        free(l);
        return KOLO_NCCL_SYSTEM_ERROR;
    }
    h.address = sa.sin_addr.s_addr;
    h.port = sa.sin_port;
    memcpy(handle, &h, sizeof h);
    *result = l;
    return KOLO_NCCL_SUCCESS;
}

static comm_t *make_comm(int fd, bool reads)
{
    int one = 1;
    comm_t *c = calloc(1, sizeof *c);
    if (!c || fd < 0) {
        if (fd >= 0) close(fd);
        free(c);
        return NULL;
    }
    c->fd = fd;
    c->reads = reads;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return c;
}

/* Comes back with nothing at first, as connections over a real network do. */
static int connect_to(int device, void *handle, void **sender)
{
    handle_t h;
    memcpy(&h, handle, sizeof h);
    (void)device;
    *sender = NULL;
    if (does("connect-hangs")) return KOLO_NCCL_SUCCESS;
    if (!h.half) {
        struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = h.address, .sin_port = h.port};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
            if (fd >= 0) close(fd);
            return KOLO_NCCL_SYSTEM_ERROR;
        }
        h.half = make_comm(fd, false); /* closes it when there is no memory */
        if (!h.half) return KOLO_NCCL_SYSTEM_ERROR;
        memcpy(handle, &h, sizeof h);
        return KOLO_NCCL_SUCCESS;
    }
    *sender = h.half;
    return KOLO_NCCL_SUCCESS;
}

static int accept_from(void *listener, void **receiver, void **offload)
{
    listener_t *l = listener;
    (void)offload;
    *receiver = NULL;
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno == EAGAIN ? KOLO_NCCL_SUCCESS : KOLO_NCCL_SYSTEM_ERROR;
    *receiver = make_comm(fd, true);
    return *receiver ? KOLO_NCCL_SUCCESS : KOLO_NCCL_SYSTEM_ERROR;
}

static int register_memory(void *comm, void *data, size_t bytes, int pointer, void **memory)
{
    (void)comm;
    (void)bytes;
    *memory = data;
    return pointer == KOLO_NCCL_PTR_HOST ? KOLO_NCCL_SUCCESS : KOLO_NCCL_INVALID_ARGUMENT;
}

static int deregister(void *comm, void *memory)
{
    (void)comm;
    return memory ? KOLO_NCCL_SUCCESS : KOLO_NCCL_INVALID_ARGUMENT;
}

/* ---- requests: size, then data, in order ---- */

static int begin_request(comm_t *c, void *data, size_t bytes, void *memory, void **request)
{
    *request = NULL;
    if (!memory || does("isend-fails")) return KOLO_NCCL_INTERNAL_ERROR;
    if (c->next - c->first == KOLO_NCCL_REQUESTS) return KOLO_NCCL_INTERNAL_ERROR; /* the caller must not */
    request_t *r = &c->requests[c->next++ % KOLO_NCCL_REQUESTS];
    *r = (request_t){.used = true, .data = data, .comm = c, .room = (uint32_t)bytes};
    r->size = c->reads ? 0 : (uint32_t)bytes;
    r->bytes = r->size + 4;
    *request = r;
    return KOLO_NCCL_SUCCESS;
}

/* 1: all of the request has gone or come. */
static int move(comm_t *c, request_t *r)
{
    while (r->moved < r->bytes) {
        char *at = r->moved < 4 ? (char *)&r->size + r->moved : r->data + (r->moved - 4);
        size_t n = r->moved < 4 ? 4 - r->moved : r->bytes - r->moved;
        ssize_t done =
            c->reads ? recv(c->fd, at, n, MSG_DONTWAIT) : send(c->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (done <= 0) return -1;
        r->moved += (uint32_t)done;
        if (c->reads && r->moved == 4) r->bytes = r->size + 4;
        if (r->size > r->room) return -1;
    }
    return 1;
}

static int test(void *request, int *done, int *bytes)
{
    request_t *asked = request;
    comm_t *c = asked->comm;
    *done = 0;
    for (; c->first != c->next; c->first++) {
        request_t *r = &c->requests[c->first % KOLO_NCCL_REQUESTS];
        int moved = move(c, r);
        if (moved < 0) return KOLO_NCCL_REMOTE_ERROR;
        if (moved == 0) break;
        r->done = true;
    }
    if (!asked->done) return KOLO_NCCL_SUCCESS;
    *done = 1;
    if (bytes) *bytes = does("bytes-nonsense") ? -1 : (int)asked->size;
    asked->used = false;
    return KOLO_NCCL_SUCCESS;
}

static int close_comm(void *comm)
{
    comm_t *c = comm;
    close(c->fd);
    free(c);
    return KOLO_NCCL_SUCCESS;
}

static int close_listener(void *listener)
{
    close(((listener_t *)listener)->fd);
    free(listener);
    return KOLO_NCCL_SUCCESS;
}

/* ---- tables ---- */

#define DEVICE_NAME (does("no-name") ? NULL : (char *)(uintptr_t) "small0")

#if ABI == 8 || defined(LIES)
static int properties8(int device, kolo_nccl_properties_v8_t *out)
{
    (void)device;
    *out = (kolo_nccl_properties_v8_t){
        .name = DEVICE_NAME, .pointers = KOLO_NCCL_PTR_HOST, .mbps = 10000, .max_comms = 1024, .max_receives = 1};
    return KOLO_NCCL_SUCCESS;
}
static int connect8(int device, void *handle, void **sender, void **offload)
{
    (void)offload;
    return connect_to(device, handle, sender);
}
static int isend8(void *comm, void *data, int bytes, int tag, void *memory, void **request)
{
    (void)tag;
    return begin_request(comm, data, (size_t)bytes, memory, request);
}
static int irecv8(void *comm, int n, void **data, int *bytes, int *tags, void **memory, void **request)
{
    (void)tags;
    if (n != 1) return KOLO_NCCL_INVALID_ARGUMENT;
    return begin_request(comm, data[0], (size_t)bytes[0], memory[0], request);
}
#else
static int properties9(int device, kolo_nccl_properties_v9_t *out)
{
    (void)device;
    *out = (kolo_nccl_properties_v9_t){.name = DEVICE_NAME,
                                       .pointers = KOLO_NCCL_PTR_HOST,
                                       .mbps = 10000,
                                       .max_comms = 1024,
                                       .max_receives = 1,
                                       .vdevice = {.count = 1, .devices = {0}},
                                       .max_p2p_bytes = 1 << 30,
                                       .max_collective_bytes = 1 << 30};
    return KOLO_NCCL_SUCCESS;
}
#endif
#if ABI == 9
static int connect9(int device, void *handle, void **sender, void **offload)
{
    (void)offload;
    return connect_to(device, handle, sender);
}
static int isend9(void *comm, void *data, size_t bytes, int tag, void *memory, void **request)
{
    (void)tag;
    return begin_request(comm, data, bytes, memory, request);
}
static int irecv9(void *comm, int n, void **data, size_t *bytes, int *tags, void **memory, void **request)
{
    (void)tags;
    if (n != 1) return KOLO_NCCL_INVALID_ARGUMENT;
    return begin_request(comm, data[0], bytes[0], memory[0], request);
}
#elif ABI >= 10 && !defined(LIES)
static int isend10(void *comm, void *data, size_t bytes, int tag, void *memory, void *profile, void **request)
{
    (void)tag;
    (void)profile;
    return begin_request(comm, data, bytes, memory, request);
}
static int irecv10(void *comm, int n, void **data, size_t *bytes, int *tags, void **memory, void **profiles,
                   void **request)
{
    (void)tags;
    if (n != 1 || !profiles) return KOLO_NCCL_INVALID_ARGUMENT;
    return begin_request(comm, data[0], bytes[0], memory[0], request);
}
#endif

#define COMMON                                                                                                     \
    .name = "Small", .devices = devices, .accept = accept_from, .register_memory = register_memory,                \
    .deregister = deregister, .test = test, .close_send = close_comm, .close_receive = close_comm,                 \
    .close_listen = close_listener

#if ABI == 8
extern const kolo_nccl_net_v8_t ncclNetPlugin_v8;
EXPORTED const kolo_nccl_net_v8_t ncclNetPlugin_v8 = {
    COMMON,          .init = begin,   .properties = properties8, .listen = listen_on, .connect = connect8,
    .isend = isend8, .irecv = irecv8,
};
#elif defined(LIES)
/* As from a build against the wrong header: what follows the table is something else. */
extern const struct {
    kolo_nccl_net_v8_t table;
    uint64_t else_[4];
} ncclNetPlugin_v11;
EXPORTED const __typeof__(ncclNetPlugin_v11) ncclNetPlugin_v11 = {
    .table = {COMMON, .init = begin, .properties = properties8, .listen = listen_on, .connect = connect8,
              .isend = isend8, .irecv = irecv8},
    .else_ = {17, 4, 2026, 1},
};
#elif ABI == 9
extern const kolo_nccl_net_v9_t ncclNetPlugin_v9;
EXPORTED const kolo_nccl_net_v9_t ncclNetPlugin_v9 = {
    COMMON,          .init = begin,   .properties = properties9, .listen = listen_on, .connect = connect9,
    .isend = isend9, .irecv = irecv9,
};
#elif ABI == 10
static int begin10(kolo_nccl_logger_t logger, kolo_nccl_profiler_t profiler)
{
    return profiler ? begin(logger) : KOLO_NCCL_INVALID_ARGUMENT;
}
static int connect10(int device, kolo_nccl_config_t *config, void *handle, void **sender, void **offload)
{
    (void)offload;
    return config->traffic_class == -1 ? connect_to(device, handle, sender) : KOLO_NCCL_INVALID_ARGUMENT;
}
extern const kolo_nccl_net_v10_t ncclNetPlugin_v10;
EXPORTED const kolo_nccl_net_v10_t ncclNetPlugin_v10 = {
    COMMON,           .init = begin10,  .properties = properties9, .listen = listen_on, .connect = connect10,
    .isend = isend10, .irecv = irecv10,
};
#else
static int context_of_all;
static int begin11(void **context, uint64_t comm_id, kolo_nccl_config_t *config, kolo_nccl_logger_t logger,
                   kolo_nccl_profiler_t profiler)
{
    (void)comm_id;
    (void)profiler;
    *context = &context_of_all;
    return config ? begin(logger) : KOLO_NCCL_INVALID_ARGUMENT;
}
static int properties11(int device, kolo_nccl_properties_v11_t *out)
{
    out->max_multi_request = 1;
    return properties9(device, &out->v9);
}
static int listen11(void *context, int device, void *handle, void **listener)
{
    return context == &context_of_all ? listen_on(device, handle, listener) : KOLO_NCCL_INVALID_ARGUMENT;
}
static int connect11(void *context, int device, void *handle, void **sender, void **offload)
{
    (void)offload;
    return context == &context_of_all ? connect_to(device, handle, sender) : KOLO_NCCL_INVALID_ARGUMENT;
}
static int finalize(void *context)
{
    return context == &context_of_all ? KOLO_NCCL_SUCCESS : KOLO_NCCL_INVALID_ARGUMENT;
}
extern const kolo_nccl_net_v11_t ncclNetPlugin_v11;
EXPORTED const kolo_nccl_net_v11_t ncclNetPlugin_v11 = {
    COMMON,           .init = begin11,  .properties = properties11, .listen = listen11, .connect = connect11,
    .isend = isend10, .irecv = irecv10, .finalize = finalize,
};
/* It could do collectives, too; nobody asks it to. */
extern const int ncclCollNetPlugin_v11;
EXPORTED const int ncclCollNetPlugin_v11 = 1;
#endif
