/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of the sockets provider: network interfaces, and what is open on one of them. And the provider's table.
 */
#include "base/file/fds.h"
#include "base/process.h"
#include "remote/sockets/sockets.h"

#include "base/clock.h"
#include "base/log.h"
#include "link/link.h"
#include "link/route.h"
#include "remote/verbs/options.h"

#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_MS 100 /* between two looks at an interface */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kolo_interface_t interfaces[KOLO_NET_MAX_DEVICES];
static int ninterfaces;

static void list(void)
{
    ninterfaces = kolo_address_list_local(interfaces, KOLO_NET_MAX_DEVICES);
}

static int count(const char **why)
{
    pthread_once(&once, list);
    *why = "no network interface is up that KOLO_SOCKET_IFNAME and KOLO_SOCKET_FAMILY permit";
    return ninterfaces;
}

const char *kolo_sockets_device_name(int device)
{
    return interfaces[device].name;
}

/* Reads one line of a small file, or "". */
static void read_line(const char *path, char *line, int bytes)
{
    FILE *f = fopen(path, "re");
    line[0] = '\0';
    if (!f) return;
    if (!fgets(line, bytes, f)) line[0] = '\0';
    fclose(f);
}

static void properties(int device, kolo_net_device_t *out)
{
    char path[64], text[64];
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", interfaces[device].name);
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", interfaces[device].name);
    read_line(path, text, sizeof text);
    long mbps = strtol(text, NULL, 10);
    if (mbps > 0) out->gbps = (double)mbps / 8000;
    snprintf(path, sizeof path, "/sys/class/net/%s/device", interfaces[device].name);
    kolo_net_bus_of_link(out, path);
}

/* ---- opening ---- */

kolo_status_t kolo_sockets_watch(kolo_net_open_t *open, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    if (epoll_ctl(open->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "sockets: cannot watch a socket");
    return KOLO_OK;
}

static kolo_status_t listen_on(kolo_net_open_t *open)
{
    struct sockaddr_storage sa;
    char text[KOLO_ADDRESS_TEXT_BYTES];
    uint64_t cookie;
    socklen_t length = kolo_address_to_sockaddr(&interfaces[open->device].address, &sa);
    open->listener = kolo_fd_socket(sa.ss_family, SOCK_STREAM);
    open->epoll_fd = kolo_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (open->listener < 0 || open->epoll_fd < 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "sockets: no socket; descriptor limit?");
    errno = kolo_route_bind(open->listener, (struct sockaddr *)&sa, length);
    if (errno != 0 || listen(open->listener, 1024) != 0 ||
        getsockname(open->listener, (struct sockaddr *)&sa, &length) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "sockets: cannot listen on %s of interface %s",
                               kolo_address_print(&interfaces[open->device].address, text),
                               interfaces[open->device].name);
    kolo_address_from_sockaddr(&open->address, (struct sockaddr *)&sa);
    KOLO_TRY(kolo_random(&cookie, sizeof cookie));
    kolo_address_set_cookie(&open->address, cookie);
    return kolo_sockets_watch(open, open->listener);
}

static void close_device(kolo_net_open_t *open)
{
    for (uint32_t i = 0; i < open->ncallers; i++) kolo_fd_close(open->callers[i].fd);
    if (open->listener >= 0) kolo_fd_close(open->listener);
    if (open->epoll_fd >= 0) kolo_fd_close(open->epoll_fd);
    kolo_auth_wipe(&open->key, sizeof open->key);
    free(open);
}

static kolo_status_t open_device(int device, kolo_net_open_t **result)
{
    kolo_net_open_t *open = calloc(1, sizeof *open);
    if (!open) return kolo_fail(KOLO_ERR_NO_MEMORY, "sockets: no memory for a device");
    open->device = device;
    open->listener = open->epoll_fd = -1;
    kolo_status_t status = listen_on(open);
    if (status != KOLO_OK) {
        close_device(open);
        return status;
    }
    *result = open;
    return KOLO_OK;
}

/* ---- waking, and how the interface is ---- */

static int wake_fds(const kolo_net_open_t *open, int fds[2])
{
    fds[0] = open->epoll_fd;
    return 1;
}

/* Forgets what has happened until now: the sleeper's last poll finds it. */
static void arm(kolo_net_open_t *open)
{
    struct epoll_event events[16];
    while (epoll_wait(open->epoll_fd, events, KOLO_COUNTOF(events), 0) == KOLO_COUNTOF(events))
        ;
}

static bool is_up(const kolo_net_open_t *open)
{
    struct ifreq request;
    memset(&request, 0, sizeof request);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interfaces[open->device].name);
    if (ioctl(open->listener, SIOCGIFFLAGS, &request) != 0) return false;
    return (request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_RUNNING);
}

static kolo_status_t look(kolo_net_open_t *open)
{
    uint64_t now = kolo_now_ns();
    if (now >= open->look_ns) {
        open->look_ns = now + LOOK_MS * KOLO_NS_PER_MS;
        if (is_up(open)) {
            if (open->down_since) kolo_warn("sockets", "interface %s is up again", interfaces[open->device].name);
            open->down_since = 0;
        } else if (!open->down_since) {
            kolo_warn("sockets", "interface %s is down", interfaces[open->device].name);
            open->down_since = now;
        }
    }
    if (!open->down_since || now - open->down_since < (uint64_t)kolo_verbs_options.port_down_ms * KOLO_NS_PER_MS)
        return KOLO_OK;
    return kolo_fail(KOLO_ERR_SYSTEM, "sockets: interface %s is down; look at the cable, the switch and `ip link`",
                     interfaces[open->device].name);
}

static bool works(kolo_net_open_t *open)
{
    open->look_ns = 0;
    return look(open) == KOLO_OK && !open->down_since;
}

/* ---- memory: the kernel copies, so there is nothing to enroll ---- */

static kolo_status_t enroll(kolo_net_open_t *open, void *memory, size_t bytes, bool peer_writes,
                            kolo_net_region_t **region)
{
    static kolo_net_region_t all;
    (void)open;
    (void)memory;
    (void)bytes;
    (void)peer_writes;
    *region = &all;
    return KOLO_OK;
}

static void withdraw(kolo_net_region_t *region)
{
    (void)region;
}

static bool fork_safe(void)
{
    return true;
}

static void counts(const kolo_net_end_t *end, kolo_net_counts_t *out)
{
    *out = end->counts;
}

const kolo_net_ops_t kolo_net_sockets = {
    .name = "sockets",
    .version = 1,
    .what = "TCP: several network interfaces and sockets per connection",
    .only_if_named = true,
    .count = count,
    .properties = properties,
    .open = open_device,
    .close = close_device,
    .wake_fds = wake_fds,
    .arm = arm,
    .works = works,
    .look = look,
    .enroll = enroll,
    .withdraw = withdraw,
    .fork_safe = fork_safe,
    .listen = kolo_sockets_listen,
    .start = kolo_sockets_start,
    .connect = kolo_sockets_connect,
    .accept = kolo_sockets_accept,
    .revoke = kolo_sockets_revoke,
    .shut = kolo_sockets_shut,
    .offered = kolo_sockets_offered,
    .isend = kolo_sockets_isend,
    .irecv = kolo_sockets_irecv,
    .push = kolo_sockets_push,
    .test = kolo_sockets_test,
    .counts = counts,
};
