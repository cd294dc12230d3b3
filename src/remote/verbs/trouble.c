/* SPDX-License-Identifier: Apache-2.0
 *
 * What a person reads when a connection fails: which one, what has happened, the device, queue pair and address at
 * both ends, and what is likely to be behind it.
 */
#include "base/clock.h"
#include "remote/verbs/verbs.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CLEAR_MS 100ull

static const char *likely_cause(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return "the peer does not answer: its process or host has died, a port or cable is down, or packets do not "
               "find the way (GID, KOLO_IB_GID_INDEX)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer had posted no receive";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
        return "the peer's memory or key is gone: it has closed the connection or has failed";
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair had failed before, or was put into its error state from outside";
    case IBV_WC_LOC_QP_OP_ERR: /* rxe: also a packet that it cannot send */
        return "the card cannot send to the peer: its network interface, its address or the route has gone (`rdma "
               "link`, `ip route`), or the queue pair is broken";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
        return "memory of this rank is not registered as it should be; please report this";
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
        return "a fault of the card or its driver; see the log of the system";
    default:
        return "see the log of the system";
    }
}

static kolo_status_t fail(const kolo_net_end_t *end, kolo_status_t status, const char *cause, const char *fmt, ...)
    KOLO_PRINTF(4, 5);
static kolo_status_t fail(const kolo_net_end_t *end, kolo_status_t status, const char *cause, const char *fmt, ...)
{
    char what[256], mine[64], peers[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    kolo_verbs_gid_text(end->mine.gid, mine, sizeof mine);
    kolo_verbs_gid_text(end->peer.gid, peers, sizeof peers);
    return kolo_fail(status,
                     "verbs: %s: %s; device %s, queue pair %u, GID %s; peer: device %s, queue pair %u, GID %s; "
                     "likely cause: %s",
                     end->label, what, end->mine.device, end->mine.qpn, mine, end->peer.device, end->peer.qpn,
                     peers, cause);
}

/* Returns what the device knows that explains a failure better than its code does: a port that is down ends
 * requests with whatever status its driver finds. "": nothing. */
static const char *told_by_device(const kolo_net_end_t *end, const char **cause)
{
    kolo_net_open_t *open = end->open;
    (void)kolo_verbs_look(open); /* what it has told since is read first */
    if (open->down_since || !kolo_verbs_port_is_active(open)) {
        *cause = KOLO_VERBS_PORT_CAUSE;
        return ", and its port is down";
    }
    if (!kolo_verbs_gid_is_there(open)) {
        *cause = KOLO_VERBS_GID_CAUSE;
        return ", and its GID is gone";
    }
    if (end->event)
        *cause = end->event_cause;
    else if (end->losses != open->losses)
        *cause = open->cause;
    else
        return "";
    return end->event ? ", and the device has told of a fault of its queue" : ", and the device was lost";
}

/* Tells whether the device has had time to report: the port of an emulated one may go down some milliseconds after
 * its packets found no way. */
bool kolo_verbs_failure_is_clear(const kolo_net_end_t *end)
{
    const char *cause;
    return end->bad.status != IBV_WC_LOC_QP_OP_ERR || *told_by_device(end, &cause) ||
           kolo_now_ns() - end->failed_ns >= CLEAR_MS * KOLO_NS_PER_MS;
}

kolo_status_t kolo_verbs_fail_completion(const kolo_net_end_t *end, const struct ibv_wc *wc)
{
    const char *cause = likely_cause(wc->status), *told = told_by_device(end, &cause);
    return fail(end, KOLO_ERR_REMOTE, cause, "completion with status %d (%s, vendor code 0x%x)%s", (int)wc->status,
                kolo_verbs.wc_status_str(wc->status), wc->vendor_err, told);
}

kolo_status_t kolo_verbs_fail_post(const kolo_net_end_t *end, int err)
{
    char text[96];
    const char *cause = "the queue pair has failed, or its device is gone", *told = told_by_device(end, &cause);
    return fail(end, KOLO_ERR_SYSTEM, cause, "the queue pair takes no request (%s)%s",
                strerror_r(err, text, sizeof text), told);
}

kolo_status_t kolo_verbs_check_events(const kolo_net_end_t *end)
{
    if (end->event) return fail(end, KOLO_ERR_SYSTEM, end->event_cause, "the device says: %s", end->event);
    if (end->losses == end->open->losses) return KOLO_OK;
    return fail(end, KOLO_ERR_SYSTEM, end->open->cause, "%s", end->open->lost);
}
