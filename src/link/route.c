/* SPDX-License-Identifier: Apache-2.0
 *
 * See route.h. A datagram socket that is connected asks the routing tables, in this network namespace and without a
 * packet.
 */
#include "link/route.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/if_addr.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

static pthread_mutex_t hint_lock = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(hint_lock)
static kolo_address_t hint;
static bool has_hint;

void kolo_address_set_hint(const kolo_address_t *address)
{
    pthread_mutex_lock(&hint_lock);
    has_hint = !kolo_address_is_loopback(address);
    hint = *address;
    pthread_mutex_unlock(&hint_lock);
}

bool kolo_address_hint(kolo_address_t *address)
{
    pthread_mutex_lock(&hint_lock);
    bool has = has_hint;
    if (has) *address = hint;
    pthread_mutex_unlock(&hint_lock);
    return has;
}

bool kolo_route_source(const struct sockaddr *to, struct sockaddr_storage *source)
{
    const bool six = to->sa_family == AF_INET6;
    struct sockaddr_storage there = {0};
    socklen_t bytes = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), length = sizeof *source;
    if (!six && to->sa_family != AF_INET) return false;
    memcpy(&there, to, bytes);
    *(six ? &((struct sockaddr_in6 *)&there)->sin6_port : &((struct sockaddr_in *)&there)->sin_port) = htons(9);
    int fd = kolo_fd_socket(to->sa_family, SOCK_DGRAM);
    if (fd < 0) return false;
    bool found = connect(fd, (const struct sockaddr *)&there, bytes) == 0 &&
                 getsockname(fd, (struct sockaddr *)source, &length) == 0;
    kolo_fd_close(fd);
    /* of other addresses there are only tentative ones: nothing is known yet */
    const struct sockaddr_in6 *there6 = (const void *)&there, *source6 = (const void *)source;
    if (found && six && IN6_IS_ADDR_LOOPBACK(&source6->sin6_addr) && !IN6_IS_ADDR_LOOPBACK(&there6->sin6_addr))
        memset(source, 0, sizeof *source);
    return found && source->ss_family != AF_UNSPEC;
}

bool kolo_route_default_source(int family, struct sockaddr_storage *source)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    inet_pton(AF_INET, "192.0.2.1", &four.sin_addr); /* of the networks that are nobody's (documentation) */
    inet_pton(AF_INET6, "2001:db8::1", &six.sin6_addr);
    return kolo_route_source(family == AF_INET6 ? (const struct sockaddr *)&six : (const struct sockaddr *)&four,
                             source);
}

bool kolo_route_is_virtual(const char *name)
{
    static const char *const drivers[] = {"bridge", "tun", "vxlan", "dummy", "ipip", "wireguard"};
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (void *)&info};
    bool is = false;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int fd = kolo_fd_socket(AF_INET, SOCK_DGRAM);
    if (fd < 0) fd = kolo_fd_socket(AF_INET6, SOCK_DGRAM);
    if (fd < 0) return false;
    if (ioctl(fd, SIOCETHTOOL, &request) == 0)
        for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++) is |= strcmp(info.driver, drivers[i]) == 0;
    kolo_fd_close(fd);
    return is;
}

/* ---- addresses that the system does not use yet, or never ---- */

int kolo_route_unready(kolo_unready_t list[KOLO_UNREADY_MAX])
{
    char line[128], digits[33];
    unsigned flags = 0;
    int n = 0;
    FILE *f = fopen("/proc/net/if_inet6", "re");
    while (f != NULL && n < KOLO_UNREADY_MAX && fgets(line, sizeof line, f) != NULL) {
        kolo_unready_t *one = &list[n];
        if (sscanf(line, "%32s %*x %*x %*x %x %15s", digits, &flags, one->name) != 3 || strlen(digits) != 32)
            continue;
        one->duplicate = (flags & IFA_F_DADFAILED) != 0;
        if (!one->duplicate && ((flags & IFA_F_TENTATIVE) == 0 || (flags & IFA_F_OPTIMISTIC) != 0)) continue;
        for (int i = 0; i < 16; i++) (void)sscanf(digits + 2 * i, "%2hhx", &one->address.s6_addr[i]);
        n++;
    }
    if (f != NULL) fclose(f);
    return n;
}

const kolo_unready_t *kolo_route_find_unready(const kolo_unready_t *list, int n, const struct sockaddr *sa)
{
    if (sa->sa_family != AF_INET6) return NULL;
    const struct in6_addr *own = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
    for (int i = 0; i < n; i++)
        if (memcmp(&list[i].address, own, sizeof *own) == 0) return &list[i];
    return NULL;
}

bool kolo_route_is_unready(const struct sockaddr *sa)
{
    kolo_unready_t list[KOLO_UNREADY_MAX];
    return sa->sa_family == AF_INET6 && kolo_route_find_unready(list, kolo_route_unready(list), sa) != NULL;
}

void kolo_route_unready_words(const struct sockaddr *sa, char *text, size_t bytes)
{
    kolo_unready_t list[KOLO_UNREADY_MAX];
    char address[INET6_ADDRSTRLEN];
    size_t at = 0;
    const int n = sa == NULL || sa->sa_family == AF_INET6 ? kolo_route_unready(list) : 0;
    const kolo_unready_t *this = sa != NULL ? kolo_route_find_unready(list, n, sa) : NULL;
    text[0] = '\0';
    for (int i = 0; i < n && at + 128 < bytes; i++) {
        if (this != NULL && this != &list[i]) continue;
        inet_ntop(AF_INET6, &list[i].address, address, sizeof address);
        at += (size_t)snprintf(text + at, bytes - at,
                               list[i].duplicate ? "; another host has %s (%s), too"
                                                 : "; whether another host has %s (%s), too, is not known yet",
                               address, list[i].name);
    }
}

int kolo_route_bind(int fd, const struct sockaddr *sa, socklen_t bytes)
{
    kolo_unready_t list[KOLO_UNREADY_MAX];
    const int one = 1;
    if (bind(fd, sa, bytes) == 0) return 0;
    const int err = errno;
    const kolo_unready_t *unready =
        err == EADDRNOTAVAIL ? kolo_route_find_unready(list, kolo_route_unready(list), sa) : NULL;
    if (unready == NULL || unready->duplicate) return err;
    if (setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &one, sizeof one) != 0 || bind(fd, sa, bytes) != 0)
        return errno;
    kolo_info("oob", "an address of interface %s is tentative: who calls it waits until it no longer is",
              unready->name);
    return 0;
}

bool kolo_address_is_own(const kolo_address_t *address, char name[16])
{
    struct ifaddrs *all;
    bool own = false;
    if (kolo_address_is_unix(address) || kolo_address_is_loopback(address) || getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *ifa = all; ifa != NULL && !own; ifa = ifa->ifa_next) {
        kolo_address_t one;
        int family = ifa->ifa_addr != NULL ? ifa->ifa_addr->sa_family : AF_UNSPEC;
        if (family != AF_INET && family != AF_INET6) continue;
        kolo_address_from_sockaddr(&one, ifa->ifa_addr);
        kolo_address_set_port(&one, kolo_address_port(address));
        kolo_address_set_cookie(&one, kolo_address_cookie(address));
        own = memcmp(&one, address, sizeof one) == 0;
        if (own) snprintf(name, 16, "%.15s", ifa->ifa_name);
    }
    freeifaddrs(all);
    return own;
}
