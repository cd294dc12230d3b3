/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: which ports there are (looked up once per process), and opening one for a communicator, with the address
 * that its connections use.
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "remote/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kolo_verbs_port_t ports[KOLO_NET_MAX_DEVICES];
static int nports;
static char reason[256];

/* Asks for a port. The library's function fills in what was there in its first version; the rest stays zero. */
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    memset(attr, 0, sizeof *attr);
    return kolo_verbs.query_port(context, port, (struct _compat_ibv_port_attr *)(void *)attr);
}

static double port_gbps(const struct ibv_port_attr *attr)
{
    static const struct {
        uint8_t code;
        double gbps;
    } speeds[] = {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
    static const struct {
        uint8_t code;
        int lanes;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    double gbps = 0;
    for (size_t i = 0; i < KOLO_COUNTOF(speeds); i++)
        if (speeds[i].code == attr->active_speed) gbps = speeds[i].gbps;
    for (size_t i = 0; i < KOLO_COUNTOF(widths); i++)
        if (widths[i].code == attr->active_width) return gbps * widths[i].lanes / 8;
    return 0;
}

static void look_at_port(struct ibv_context *context, const char *device, uint8_t number)
{
    struct ibv_port_attr attr;
    if (nports == KOLO_NET_MAX_DEVICES || query_port(context, number, &attr) != 0) return;
    if (!kolo_verbs_admits(kolo_verbs_options.hca, device, number)) return;
    if (attr.state != IBV_PORT_ACTIVE) {
        snprintf(reason, sizeof reason, "port %u of %s is not active", number, device);
        return;
    }
    kolo_verbs_port_t *p = &ports[nports++];
    snprintf(p->device, sizeof p->device, "%s", device);
    snprintf(p->name, sizeof p->name, "%.*s:%u", KOLO_NET_NAME_BYTES - 5, device, number);
    p->port = number;
    p->gbps = port_gbps(&attr);
}

static void look_at_device(struct ibv_device *device)
{
    struct ibv_device_attr attr;
    const char *name = kolo_verbs.get_device_name(device);
    /* iWARP needs its connections made by the kernel, and knows no immediate data. */
    if (device->transport_type != IBV_TRANSPORT_IB) return;
    struct ibv_context *context = kolo_verbs.open_device(device);
    if (!context) {
        snprintf(reason, sizeof reason, "cannot open %s: %s", name, strerror(errno));
        return;
    }
    if (kolo_verbs.query_device(context, &attr) == 0)
        for (uint8_t i = 1; i <= attr.phys_port_cnt && i; i++) look_at_port(context, name, i);
    kolo_verbs.close_device(context);
}

static void look(void)
{
    const char *why;
    int n = 0;
    if (!kolo_verbs_load(&why)) {
        snprintf(reason, sizeof reason, "%s", why);
        return;
    }
    struct ibv_device **list = kolo_verbs.get_device_list(&n);
    snprintf(reason, sizeof reason, n > 0 ? "KOLO_IB_HCA admits none" : "this system has no RDMA device");
    for (int i = 0; list && i < n; i++) look_at_device(list[i]);
    if (list) kolo_verbs.free_device_list(list);
}

int kolo_verbs_count(const char **why)
{
    pthread_once(&once, look);
    *why = reason;
    return nports;
}

void kolo_verbs_properties(int device, kolo_net_device_t *out)
{
    const kolo_verbs_port_t *p = &ports[device];
    char link[64 + IBV_SYSFS_NAME_MAX];
    *out = (kolo_net_device_t){.gbps = p->gbps};
    memcpy(out->name, p->name, sizeof out->name);
    snprintf(link, sizeof link, "/sys/class/infiniband/%s/device", p->device);
    kolo_net_bus_of_link(out, link);
}

/* ---- opening ---- */

static kolo_status_t choose_gid(kolo_net_open_t *o, const struct ibv_port_attr *attr)
{
    struct ibv_gid_entry entry;
    int best = 0, index = (int)kolo_verbs_options.gid_index;
    for (int i = 0; i < attr->gid_tbl_len && i < 256; i++) {
        if (index >= 0 && i != index) continue;
        if (kolo_verbs.query_gid_ex(o->context, o->port, (uint32_t)i, &entry, 0, sizeof entry) != 0) continue;
        int rank = kolo_verbs_gid_rank(entry.gid.raw, entry.gid_type);
        if (rank <= best) continue;
        best = rank;
        o->gid_index = (uint8_t)i;
        memcpy(o->gid, entry.gid.raw, sizeof o->gid);
    }
    if (best == 0 && index >= 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "verbs: %s has no GID at KOLO_IB_GID_INDEX=%d", o->name, index);
    if (best == 0 && o->link == IBV_LINK_LAYER_ETHERNET)
        return kolo_fail(KOLO_ERR_SYSTEM, "verbs: %s has no GID: does its network interface have an address?",
                         o->name);
    return KOLO_OK;
}

bool kolo_verbs_gid_is_there(kolo_net_open_t *o)
{
    struct ibv_gid_entry entry;
    if (o->link != IBV_LINK_LAYER_ETHERNET) return true; /* found by its LID */
    return kolo_verbs.query_gid_ex(o->context, o->port, o->gid_index, &entry, 0, sizeof entry) == 0 &&
           memcmp(entry.gid.raw, o->gid, sizeof o->gid) == 0;
}

bool kolo_verbs_address_again(kolo_net_open_t *o)
{
    struct ibv_port_attr attr;
    if (query_port(o->context, o->port, &attr) != 0 || attr.state != IBV_PORT_ACTIVE) return false;
    o->mtu = (uint8_t)attr.active_mtu;
    o->lid = attr.lid;
    return kolo_verbs_gid_is_there(o) || choose_gid(o, &attr) == KOLO_OK;
}

bool kolo_verbs_port_is_active(kolo_net_open_t *o)
{
    struct ibv_port_attr attr;
    return query_port(o->context, o->port, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
}

static struct ibv_context *open_by_name(const char *name)
{
    struct ibv_context *context = NULL;
    struct ibv_device **list = kolo_verbs.get_device_list(NULL);
    int i = 0, err;
    while (list && list[i] && strcmp(kolo_verbs.get_device_name(list[i]), name) != 0) i++;
    if (list) errno = ENODEV; /* it was taken out since devices were listed */
    if (list && list[i]) context = kolo_verbs.open_device(list[i]);
    err = errno;
    if (list) kolo_verbs.free_device_list(list);
    errno = err;
    return context;
}

static kolo_status_t unblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "verbs: a descriptor cannot be made non-blocking");
    return KOLO_OK;
}

static kolo_status_t fill(kolo_net_open_t *o, const kolo_verbs_port_t *p)
{
    struct ibv_port_attr attr;
    o->port = p->port;
    memcpy(o->name, p->name, sizeof o->name);
    o->context = open_by_name(p->device);
    if (!o->context) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "verbs: cannot open %s", p->device);
    kolo_fd_mark(o->context->cmd_fd); /* a child's copies would keep the queue pairs, and the memory of the dead */
    kolo_fd_mark(o->context->async_fd);
    if (query_port(o->context, o->port, &attr) != 0 || attr.state != IBV_PORT_ACTIVE)
        return kolo_fail(KOLO_ERR_SYSTEM, "verbs: port %u of %s is not active any more", o->port, p->device);
    o->link = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    o->mtu = (uint8_t)attr.active_mtu;
    o->lid = attr.lid;
    KOLO_TRY(choose_gid(o, &attr));
    o->pd = kolo_verbs.alloc_pd(o->context);
    if (o->pd) o->channel = kolo_verbs.create_comp_channel(o->context);
    if (!o->channel)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "verbs: %s gives no protection domain or channel", o->name);
    kolo_fd_mark(o->channel->fd);
    o->usable = true;
    KOLO_TRY(unblock(o->channel->fd));
    return unblock(o->context->async_fd);
}

kolo_status_t kolo_verbs_open(int device, kolo_net_open_t **open)
{
    kolo_net_open_t *o = calloc(1, sizeof *o);
    if (!o) return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: no memory for a device");
    kolo_status_t status = fill(o, &ports[device]);
    if (status != KOLO_OK) {
        kolo_verbs_close(o);
        return status;
    }
    *open = o;
    return KOLO_OK;
}

void kolo_verbs_close(kolo_net_open_t *o)
{
    if (o->channel) kolo_fd_unmark(o->channel->fd);
    if (o->context) {
        kolo_fd_unmark(o->context->cmd_fd);
        kolo_fd_unmark(o->context->async_fd);
    }
    if (o->channel) kolo_verbs.destroy_comp_channel(o->channel);
    if (o->pd) kolo_verbs.dealloc_pd(o->pd);
    if (o->context) kolo_verbs.close_device(o->context);
    free(o);
}
