/* SPDX-License-Identifier: Apache-2.0
 *
 * Which local address to listen on: KOLO_SOCKET_IFNAME (prefixes, "=" exact names, "^" all but),
 * KOLO_SOCKET_FAMILY, and among what they permit the interface that has or reaches the root's address, or one that
 * the other ranks know (route.h), or that has the default route. Else the first one, but loopback, bridges and
 * tunnels only when there is nothing else: two hosts may have the same address there, and it joins them not. Where
 * nothing at all is up (a fresh network namespace), a Unix socket serves: only ranks of this namespace could come
 * anyway.
 */
#include "base/log.h"
#include "link/address.h"
#include "link/link.h"
#include "link/route.h"

#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

bool kolo_address_ifname_matches(const char *list, const char *name)
{
    bool invert = false, exact = false, found = false;
    for (; *list == '^' || *list == '='; list++) {
        if (*list == '^') invert = true;
        if (*list == '=') exact = true;
    }
    while (*list != '\0') {
        size_t bytes = strcspn(list, ",");
        if (bytes > 0 && strncmp(list, name, bytes) == 0 && (!exact || name[bytes] == '\0')) found = true;
        list += bytes + (list[bytes] == ',');
    }
    return found != invert;
}

static const uint8_t *address_bytes(const struct sockaddr *sa, size_t *bytes)
{
    if (sa->sa_family == AF_INET) {
        *bytes = 4;
        return (const uint8_t *)&((const struct sockaddr_in *)(const void *)sa)->sin_addr;
    }
    *bytes = 16;
    return (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
}

/* From where the system would call those whom we are to reach. */
typedef struct {
    const struct sockaddr *root; /* NULL: not known */
    struct sockaddr_storage reaches, way_out, way_out6;
    kolo_unready_t unready[KOLO_UNREADY_MAX];
    int nunready;
} view_t;

static bool is_same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    size_t bytes;
    if (a->sa_family != b->sa_family || (a->sa_family != AF_INET && a->sa_family != AF_INET6)) return false;
    const uint8_t *first = address_bytes(a, &bytes);
    return memcmp(first, address_bytes(b, &bytes), bytes) == 0;
}

static bool has_way_out(const view_t *view, const struct ifaddrs *ifa)
{
    return is_same_address(ifa->ifa_addr, (const struct sockaddr *)&view->way_out) ||
           is_same_address(ifa->ifa_addr, (const struct sockaddr *)&view->way_out6);
}

/* Returns how good an interface is: lower is better; negative: not permitted. */
static int interface_class(const view_t *view, const struct ifaddrs *ifa)
{
    if (kolo_link_values.socket_ifname != NULL && kolo_link_values.socket_ifname[0] != '\0')
        return kolo_address_ifname_matches(kolo_link_values.socket_ifname, ifa->ifa_name) ? 0 : -1;
    if (ifa->ifa_flags & IFF_LOOPBACK) return has_way_out(view, ifa) ? 0 : 2; /* the host's own, where it routes */
    return !has_way_out(view, ifa) && kolo_route_is_virtual(ifa->ifa_name) ? 1 : 0;
}

static bool is_link_local(const struct sockaddr *sa)
{
    return sa->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr);
}

static bool same_subnet(const struct ifaddrs *ifa, const struct sockaddr *root)
{
    if (ifa->ifa_netmask == NULL || root->sa_family != ifa->ifa_addr->sa_family) return false;
    size_t bytes;
    const uint8_t *a = address_bytes(ifa->ifa_addr, &bytes), *b = address_bytes(root, &bytes);
    struct sockaddr_storage mask_copy = {0}; /* the kernel leaves the family of a netmask open */
    memcpy(&mask_copy, ifa->ifa_netmask,
           root->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    mask_copy.ss_family = root->sa_family;
    const uint8_t *mask = address_bytes((const struct sockaddr *)&mask_copy, &bytes);
    for (size_t i = 0; i < bytes; i++)
        if ((a[i] & mask[i]) != (b[i] & mask[i])) return false;
    return true;
}

static bool family_permitted(int family)
{
    if (kolo_link_values.socket_family == KOLO_FAMILY_IPV4) return family == AF_INET;
    if (kolo_link_values.socket_family == KOLO_FAMILY_IPV6) return family == AF_INET6;
    return family == AF_INET || family == AF_INET6;
}

/* Scores an interface: lower is better; negative: not permitted. */
static int score(const view_t *view, const struct ifaddrs *ifa)
{
    const struct sockaddr *root = view->root;
    if (ifa->ifa_addr == NULL || !(ifa->ifa_flags & IFF_UP) || !family_permitted(ifa->ifa_addr->sa_family))
        return -1;
    const kolo_unready_t *unready = kolo_route_find_unready(view->unready, view->nunready, ifa->ifa_addr);
    int class = interface_class(view, ifa);
    if (class < 0 || (unready != NULL && unready->duplicate)) return -1;
#ifndef KOLO_HAVE_SODIUM
    if (!(ifa->ifa_flags & IFF_LOOPBACK)) return -1; /* cannot authenticate: this machine only */
#endif
    int value = class * 8 + 300; /* positive whatever is taken off */
    if (is_same_address(ifa->ifa_addr, (const struct sockaddr *)&view->reaches)) value -= 200;
    if (has_way_out(view, ifa)) value -= 6;
    if (is_link_local(ifa->ifa_addr)) value += 4;
    if (unready != NULL) value += 1;                                               /* who calls it has to wait */
    if (root != NULL && root->sa_family != ifa->ifa_addr->sa_family) value += 100; /* could not reach the root */
    if (root == NULL && ifa->ifa_addr->sa_family == AF_INET6) value += 2;
    if (root == NULL || !same_subnet(ifa, root)) value += 40;
    return value;
}

static bool is_anything_up(const struct ifaddrs *all)
{
    for (const struct ifaddrs *ifa = all; ifa != NULL; ifa = ifa->ifa_next)
        if ((ifa->ifa_flags & IFF_UP) && ifa->ifa_addr != NULL &&
            (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6))
            return true;
    return false;
}

/* Lists those that are up, each once. */
static void name_all(const struct ifaddrs *all, char *text, size_t bytes)
{
    size_t n = 0;
    snprintf(text, bytes, "none");
    for (const struct ifaddrs *ifa = all; ifa != NULL; ifa = ifa->ifa_next) {
        const struct ifaddrs *before = all;
        while (before != ifa && strcmp(before->ifa_name, ifa->ifa_name) != 0) before = before->ifa_next;
        if (before != ifa || !(ifa->ifa_flags & IFF_UP) || bytes - n < IF_NAMESIZE + 2) continue;
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", n > 0 ? ", " : "", ifa->ifa_name);
    }
}

bool kolo_address_has_network(void)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) return true; /* who listens is told why that fails */
    bool up = is_anything_up(all);
    freeifaddrs(all);
    return up;
}

/* Leaves what stays unknown with family 0. */
static void look_around(view_t *view, const struct sockaddr *root)
{
    kolo_address_t known;
    struct sockaddr_storage to = {0};
    *view = (view_t){.root = root};
    view->nunready = kolo_route_unready(view->unready);
    if (root == NULL && kolo_address_hint(&known)) kolo_address_to_sockaddr(&known, &to);
    if (root != NULL || to.ss_family != 0)
        (void)kolo_route_source(root != NULL ? root : (const struct sockaddr *)&to, &view->reaches);
    (void)kolo_route_default_source(AF_INET, &view->way_out);
    (void)kolo_route_default_source(AF_INET6, &view->way_out6);
}

static kolo_status_t choose(const kolo_address_t *root, kolo_address_t *address)
{
    struct sockaddr_storage root_sa = {0};
    view_t view;
    int least = 0;
    if (root != NULL) kolo_address_to_sockaddr(root, &root_sa);
    look_around(&view, root != NULL ? (const struct sockaddr *)&root_sa : NULL);
    struct ifaddrs *all, *best = NULL;
    if (getifaddrs(&all) != 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot list the network interfaces");
    for (struct ifaddrs *ifa = all; ifa != NULL; ifa = ifa->ifa_next) {
        int mine = score(&view, ifa);
        if (mine < 0 || (best != NULL && mine >= least)) continue;
        best = ifa;
        least = mine;
    }
    kolo_status_t status = KOLO_OK;
    const bool up = is_anything_up(all),
               any = !kolo_link_values.socket_ifname || !kolo_link_values.socket_ifname[0];
    if (best == NULL && !up && any && root == NULL) {
        kolo_address_set_unix(address);
        kolo_info("oob", "no network interface is up: listening on Unix sockets");
    } else if (best == NULL && !up && root != NULL) {
        char text[KOLO_ADDRESS_TEXT_BYTES];
        status =
            kolo_fail(KOLO_ERR_INVALID_USAGE,
                      "the root is at %s, but no network interface is up here, not even loopback (ip link); all "
                      "ranks must be in a network namespace that the root can be reached from",
                      kolo_address_print(root, text));
    } else if (best == NULL) {
        char names[200], unready[400];
        name_all(all, names, sizeof(names));
        kolo_route_unready_words(NULL, unready, sizeof(unready));
        status = kolo_fail(KOLO_ERR_INVALID_USAGE,
                           "no network interface is up that KOLO_SOCKET_IFNAME=%s and KOLO_SOCKET_FAMILY permit; "
                           "those that are up: %s%s%s",
                           kolo_link_values.socket_ifname != NULL ? kolo_link_values.socket_ifname : "(any)", names,
                           unready, KOLO_AUTH_STRONG ? "" : " (built without libsodium: loopback only)");
    } else {
        kolo_address_from_sockaddr(address, best->ifa_addr);
        kolo_address_set_port(address, 0);
        kolo_info("oob", "listening on interface %s", best->ifa_name);
    }
    freeifaddrs(all);
    return status;
}

/* Lists the best address of each interface, of those whose class is the lowest one that exists. */
int kolo_address_list_local(kolo_interface_t *out, int most)
{
    struct ifaddrs *all;
    view_t view;
    int scores[64], n = 0, best = INT_MAX;
    if (getifaddrs(&all) != 0) return 0;
    look_around(&view, NULL);
    for (struct ifaddrs *ifa = all; ifa != NULL; ifa = ifa->ifa_next)
        if (score(&view, ifa) >= 0) best = KOLO_MIN(best, interface_class(&view, ifa));
    for (struct ifaddrs *ifa = all; ifa != NULL; ifa = ifa->ifa_next) {
        int mine = score(&view, ifa), i = 0;
        if (mine < 0 || interface_class(&view, ifa) != best || strlen(ifa->ifa_name) >= sizeof out->name) continue;
        while (i < n && strcmp(out[i].name, ifa->ifa_name) != 0) i++;
        if (i == KOLO_MIN(most, (int)KOLO_COUNTOF(scores)) || (i < n && scores[i] <= mine)) continue;
        if (i == n) n++;
        scores[i] = mine;
        memcpy(out[i].name, ifa->ifa_name, strlen(ifa->ifa_name) + 1);
        kolo_address_from_sockaddr(&out[i].address, ifa->ifa_addr);
        kolo_address_set_port(&out[i].address, 0);
    }
    freeifaddrs(all);
    return n;
}

/* Many ranks of one process ask for the same root, and listing interfaces is slow: the last answer is kept. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    bool valid, had_root;
    kolo_address_t root, answer;
    const char *ifname;
    int64_t family;
    uint64_t when_ns;
} last;

static void renew(void) /* in a forked child: another thread of its parent may have had the lock */
{
    pthread_mutex_init(&lock, NULL);
    last.valid = false;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, renew);
}

kolo_status_t kolo_address_choose_local(const kolo_address_t *root, kolo_address_t *address)
{
    kolo_status_t status = KOLO_OK;
    if (root != NULL && kolo_address_is_unix(root)) {
        kolo_address_set_unix(address);
        return KOLO_OK;
    }
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    bool hit = last.valid && last.had_root == (root != NULL) &&
               (root == NULL || memcmp(&last.root, root, sizeof(*root)) == 0) &&
               last.ifname == kolo_link_values.socket_ifname && last.family == kolo_link_values.socket_family &&
               kolo_now_ns() - last.when_ns < KOLO_NS_PER_S;
    if (!hit) {
        last.valid = false;
        status = choose(root, &last.answer);
        if (status == KOLO_OK) {
            last.valid = true;
            last.had_root = root != NULL;
            if (root != NULL) last.root = *root;
            last.ifname = kolo_link_values.socket_ifname;
            last.family = kolo_link_values.socket_family;
            last.when_ns = kolo_now_ns();
        }
    }
    if (status == KOLO_OK) *address = last.answer;
    pthread_mutex_unlock(&lock);
    return status;
}
