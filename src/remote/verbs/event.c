/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device reports by itself: that completions have come, to a sleeper who asked for it, and that something
 * has happened to a port, an address, a queue pair or all of it.
 */
#include "base/clock.h"
#include "base/log.h"
#include "remote/verbs/verbs.h"

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

/* Marks all ends as lost; each says so with its next test(). */
static void lose_all(kolo_net_open_t *open, const char *what, const char *cause)
{
    if (!open->usable) return;
    open->usable = false;
    open->losses++;
    open->cause = cause;
    snprintf(open->lost, sizeof open->lost, "%s", what);
}

static void lose_end(kolo_net_open_t *open, const struct ibv_async_event *event, const char *cause)
{
    const char *text = kolo_verbs.event_type_str(event->event_type);
    bool of_queue = event->event_type == IBV_EVENT_CQ_ERR;
    for (kolo_net_end_t *end = open->first; end; end = end->next) {
        if (of_queue ? event->element.cq != end->cq : !end->qp || event->element.qp != end->qp) continue;
        end->event = text;
        end->event_cause = cause;
    }
}

static void look_at_gid(kolo_net_open_t *open)
{
    char gid[64], what[160];
    if (kolo_verbs_gid_is_there(open)) return;
    kolo_verbs_gid_text(open->gid, gid, sizeof gid);
    snprintf(what, sizeof what, "its GID %s (entry %u) is gone", gid, open->gid_index);
    lose_all(open, what, KOLO_VERBS_GID_CAUSE);
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
        if (mine && !open->fatal) open->usable = true; /* what was lost is lost, but new connections may be made */
        break;
    case IBV_EVENT_DEVICE_FATAL:
        lose_all(open, text, "the card was reset or taken out; see the log of the system");
        open->fatal = true;
        break;
    case IBV_EVENT_QP_FATAL:
        lose_end(open, event, "a fault of the card or its driver; see the log of the system");
        break;
    case IBV_EVENT_QP_REQ_ERR:
        lose_end(open, event, "the peer has sent what this queue pair cannot take");
        break;
    case IBV_EVENT_QP_ACCESS_ERR:
        lose_end(open, event, "the peer wrote where it may not: its key is wrong, or from before a failure");
        break;
    case IBV_EVENT_CQ_ERR:
        lose_end(open, event, "more completions than its queue has room for; please report this");
        break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_LID_CHANGE:
        if (mine) kolo_info("verbs", "device %s: %s", open->name, text);
        break; /* the GID is looked at below */
    default:
        kolo_debug("verbs", "device %s: %s", open->name, text);
    }
}

/* Takes the device's reports: each becomes an error of the ends that it is about, with words about each. */
kolo_status_t kolo_verbs_look(kolo_net_open_t *open)
{
    struct ibv_async_event event;
    struct pollfd fd = {.fd = open->context->async_fd, .events = POLLIN};
    bool addresses = false;
    while (poll(&fd, 1, 0) > 0 && kolo_verbs.get_async_event(open->context, &event) == 0) {
        addresses |= event.event_type == IBV_EVENT_GID_CHANGE;
        take_event(open, &event);
        kolo_verbs.ack_async_event(&event);
    }
    if (addresses) look_at_gid(open);
    uint64_t limit = (uint64_t)kolo_verbs_options.port_down_ms * KOLO_NS_PER_MS;
    if (open->down_since && kolo_now_ns() - open->down_since >= limit)
        lose_all(open, "its port is down", KOLO_VERBS_PORT_CAUSE);
    return KOLO_OK;
}

bool kolo_verbs_works(kolo_net_open_t *open)
{
    (void)kolo_verbs_look(open);
    if (open->fatal || open->down_since || !kolo_verbs_address_again(open)) return false;
    open->usable = true;
    return true;
}
