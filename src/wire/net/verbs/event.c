/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device tells by itself: that completions have come, to a sleeper who asked for it, and that something has
 * happened to a port, an address, a queue pair or all of it.
 */
#include "base/clock.h"
#include "base/log.h"
#include "wire/net/verbs/verbs.h"

#include <poll.h>
#include <stdio.h>

int kolo_verbs_wake_fds(const kolo_net_open_t *open, int fds[2])
{
    fds[0] = open->channel->fd;
    fds[1] = open->context->async_fd;
    return 2;
}

void kolo_verbs_drop_events(kolo_net_open_t *open)
{
    struct ibv_cq *cq;
    void *arg;
    while (kolo_verbs.get_cq_event(open->channel, &cq, &arg) == 0) kolo_verbs.ack_cq_events(cq, 1);
}

void kolo_verbs_arm(kolo_net_open_t *open)
{
    kolo_verbs_drop_events(open);
    for (kolo_net_end_t *end = open->first; end; end = end->next) ibv_req_notify_cq(end->cq, 0);
}

static void fail_all(kolo_net_open_t *open, const char *what, const char *hint)
{
    if (open->status != KOLO_OK) return;
    open->status = KOLO_ERR_SYSTEM;
    snprintf(open->error, sizeof open->error, "verbs: device %s: %s%s", open->name, what, hint);
}

static void take_event(kolo_net_open_t *open, const struct ibv_async_event *event)
{
    const char *text = kolo_verbs.event_type_str(event->event_type);
    bool mine = event->element.port_num == open->port;
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
        if (mine && !open->down_since) {
            open->down_since = kolo_now_ns();
            kolo_warn("verbs", "device %s: its port is down", open->name);
        }
        break;
    case IBV_EVENT_PORT_ACTIVE:
        if (mine && open->down_since) kolo_warn("verbs", "device %s: its port is up again", open->name);
        if (mine) open->down_since = 0;
        if (mine && !open->fatal)
            open->status = KOLO_OK; /* what was lost is lost, but new connections may be made */
        break;
    case IBV_EVENT_DEVICE_FATAL:
        fail_all(open, text, "; the system's log says more");
        open->fatal = true;
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_CQ_ERR:
        /* Its completions tell which and why; this tells who only receives. */
        kolo_warn("verbs", "device %s: %s", open->name, text);
        break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_LID_CHANGE:
        if (mine) kolo_warn("verbs", "device %s: %s; connections may fail", open->name, text);
        break;
    default:
        kolo_debug("verbs", "device %s: %s", open->name, text);
    }
}

kolo_status_t kolo_verbs_look(kolo_net_open_t *open)
{
    struct ibv_async_event event;
    struct pollfd fd = {.fd = open->context->async_fd, .events = POLLIN};
    while (poll(&fd, 1, 0) > 0 && kolo_verbs.get_async_event(open->context, &event) == 0) {
        take_event(open, &event);
        kolo_verbs.ack_async_event(&event);
    }
    uint64_t limit = (uint64_t)kolo_verbs_options.port_down_ms * KOLO_NS_PER_MS;
    if (open->down_since && kolo_now_ns() - open->down_since >= limit)
        fail_all(open, "its port is down", "; look at the cable, the switch and `rdma link`");
    return open->status == KOLO_OK ? KOLO_OK : kolo_fail(open->status, "%s", open->error);
}

bool kolo_verbs_works(kolo_net_open_t *open)
{
    return kolo_verbs_look(open) == KOLO_OK && !open->down_since && kolo_verbs_port_is_active(open);
}
