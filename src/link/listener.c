/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening sockets: which address and port they have, and what happens when this process has no descriptor for a
 * caller. Whoever calls goes to accept.c.
 */
#include "link/listener.h"
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "link/route.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ACCEPTS_AT_ONCE 32
#define BACKLOG         4096

static const char *print_cause(int err, char *buf, size_t bytes)
{
    if (err == EMFILE) return kolo_fd_print_all(buf, bytes);
    return err == ENFILE || err == ENOMEM || err == ENOBUFS ? "the system as a whole is short of them"
                                                            : "accept4(2) is refused here (a sandbox?)";
}

/* Tells once in this process, and again when it has not happened for a minute: all that wait for us are tried again
 * soon. */
static void tell_of_shortage(const kolo_listener_t *listener, int err)
{
    static uint64_t last_ns; /* progress thread only */
    uint64_t now = kolo_now_ns(), before = last_ns;
    char who[128] = "this process", buf[128], need[160] = "";
    last_ns = now;
    if (before != 0 && now - before < 60 * KOLO_NS_PER_S) return;
    int nranks = listener->ops->who != NULL ? listener->ops->who(listener->owner, who, sizeof(who)) : 0;
    if (err == EMFILE && nranks > 0)
        snprintf(need, sizeof(need),
                 ". Raise the limit or keep fewer communicators: kolo-info --memory %d says how many one needs",
                 nranks);
    kolo_warn("oob", "%s cannot accept a caller now: %s: %s. Other ranks wait for it until it can%s", who,
              strerror(err), print_cause(err, buf, sizeof(buf)), need);
}

/* Tells whether one caller has ended, or the network has trouble with him. */
static bool is_callers_own(int err)
{
    return err == EINTR || err == ECONNABORTED || err == ENETDOWN || err == EPROTO || err == ENOPROTOOPT ||
           err == EHOSTDOWN || err == ENONET || err == EHOSTUNREACH || err == EOPNOTSUPP || err == ENETUNREACH;
}

static void listener_readable(void *arg, int fd, uint32_t events)
{
    kolo_listener_t *listener = arg;
    (void)events;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        if (kolo_caller_full()) {
            kolo_listener_pause(listener);
            return;
        }
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof(from);
        int caller = kolo_fd_accept(fd, (struct sockaddr *)&from, &bytes);
        if (caller >= 0) {
            KOLO_FAIL_POINT("oob.accept.caller");
            listener->starved_ns = 0;
            kolo_caller_greet(listener, caller, (const struct sockaddr *)&from);
            continue;
        }
        if (is_callers_own(errno)) continue;
        if (errno != EAGAIN) { /* who waits keeps the socket readable: it would be tried without end */
            const int err = errno;
            tell_of_shortage(listener, err);
            if (listener->starved_ns == 0) listener->starved_ns = kolo_now_ns();
            kolo_listener_pause(listener);
            if (listener->ops->starved != NULL) listener->ops->starved(listener->owner, listener->starved_ns, err);
        }
        return;
    }
}

static _Atomic uint16_t reserved_port; /* 0: none */

void kolo_listener_reserve(uint16_t port)
{
    atomic_store_explicit(&reserved_port, port, memory_order_relaxed);
}

static bool has_reserved_port(int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t bytes = sizeof(sa);
    kolo_address_t own;
    uint16_t reserved = atomic_load_explicit(&reserved_port, memory_order_relaxed);
    if (reserved == 0 || getsockname(fd, (struct sockaddr *)&sa, &bytes) != 0) return false;
    kolo_address_from_sockaddr(&own, (const struct sockaddr *)&sa);
    return !kolo_address_is_unix(&own) && kolo_address_port(&own) == reserved;
}

/* Returns a bound socket, or -1 and an errno. */
static int bound_socket(const kolo_address_t *address)
{
    struct sockaddr_storage sa;
    socklen_t bytes = kolo_address_to_sockaddr(address, &sa);
    int one = 1, fd = kolo_fd_socket(sa.ss_family, SOCK_STREAM);
    if (fd < 0) return -1;
    if (kolo_address_port(address) != 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    int err = kolo_route_bind(fd, (struct sockaddr *)&sa, bytes);
    if (err == 0) return fd;
    kolo_fd_close(fd);
    errno = err;
    return -1;
}

static void print_port_range(char *text, size_t bytes)
{
    int from = 0, to = 0;
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (f == NULL || fscanf(f, "%d %d", &from, &to) != 2) from = to = 0;
    if (f != NULL) fclose(f);
    snprintf(text, bytes,
             "none of the %d ports %d to %d (net.ipv4.ip_local_port_range) is free; a rank needs several",
             to - from + 1, from, to);
}

static kolo_status_t listener_bind(const kolo_address_t *address, bool quiet, int *out)
{
    struct sockaddr_storage sa;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    int err, fd = bound_socket(address);
    if (fd >= 0 && kolo_address_port(address) == 0 && has_reserved_port(fd)) {
        int held = fd; /* else the system may offer the same one again */
        fd = bound_socket(address);
        err = errno;
        kolo_fd_close(held);
        errno = err;
    }
    if (fd >= 0 && listen(fd, BACKLOG) == 0) {
        *out = fd;
        return KOLO_OK;
    }
    err = errno;
    if (fd >= 0) kolo_fd_close(fd);
    errno = err;
    char open[256] = "";
    kolo_address_to_sockaddr(address, &sa);
    if (err == EADDRNOTAVAIL && kolo_route_is_unready((const struct sockaddr *)&sa)) /* else it is another host's */
        kolo_route_unready_words((const struct sockaddr *)&sa, open, sizeof(open));
    if (quiet && (err == EADDRINUSE || (err == EADDRNOTAVAIL && open[0] == '\0'))) return KOLO_ERR_INVALID_USAGE;
    if (err == EMFILE) kolo_fd_print_all(open, sizeof(open));
    if (err == EADDRINUSE && kolo_address_port(address) == 0) print_port_range(open, sizeof(open));
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot listen on %s%s%s", kolo_address_print(address, buf),
                           open[0] != '\0' && open[0] != ';' ? "; " : "", open);
}

kolo_status_t kolo_listener_open(kolo_progress_t *progress, const kolo_listener_config_t *config,
                                 kolo_listener_t **out)
{
    const kolo_address_t *address = config->address;
    struct sockaddr_storage sa = {0};
    socklen_t bytes = sizeof(sa);
    int fd = -1;
    if (!KOLO_AUTH_STRONG && !kolo_address_is_loopback(address))
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "built without libsodium, Kolo listens on loopback only");
    KOLO_TRY(listener_bind(address, config->quiet, &fd));
    kolo_listener_t *listener = calloc(1, sizeof(*listener));
    if (listener == NULL || getsockname(fd, (struct sockaddr *)&sa, &bytes) != 0) {
        kolo_fd_close(fd);
        free(listener);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a listening socket");
    }
    *listener = (kolo_listener_t){
        .progress = progress, .fd = fd, .key = *config->key, .ops = config->ops, .owner = config->owner};
    kolo_address_from_sockaddr(&listener->address, (const struct sockaddr *)&sa);
    kolo_address_set_cookie(&listener->address, kolo_address_cookie(address));
    *out = listener; /* before a caller can come */
    kolo_status_t status = kolo_watch_add(progress, fd, EPOLLIN, listener_readable, listener, &listener->watch);
    if (status != KOLO_OK) {
        *out = NULL;
        kolo_fd_close(fd);
        free(listener);
    }
    return status;
}

kolo_address_t kolo_listener_address(const kolo_listener_t *listener)
{
    return listener->address;
}

void kolo_listener_close(kolo_listener_t *listener)
{
    if (listener == NULL) return;
    kolo_watch_del(listener->watch);
    kolo_caller_drop_all(listener);
    kolo_fd_close(listener->fd);
    kolo_auth_wipe(&listener->key, sizeof(listener->key));
    free(listener);
}
