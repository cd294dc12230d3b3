/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory, and the provider's table.
 */
#include "wire/net/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>

static kolo_status_t enroll(kolo_net_open_t *open, void *memory, size_t bytes, bool peer_writes,
                            kolo_net_region_t **region)
{
    kolo_net_region_t *r = malloc(sizeof *r);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: no memory for a region");
    r->mr = kolo_verbs.reg_mr(open->pd, memory, bytes,
                              peer_writes ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0);
    if (!r->mr) {
        int err = errno;
        free(r);
        return kolo_fail_errno(
            KOLO_ERR_SYSTEM, err,
            "verbs: device %s cannot register %zu bytes (ulimit -l, the limit of locked memory?)", open->name,
            bytes);
    }
    *region = r;
    return KOLO_OK;
}

static void withdraw(kolo_net_region_t *region)
{
    kolo_verbs.dereg_mr(region->mr);
    free(region);
}

static bool fork_safe(void)
{
    return kolo_verbs.fork_safe;
}

static void counts(const kolo_net_end_t *end, kolo_net_counts_t *out)
{
    *out = end->counts;
}

const kolo_net_ops_t kolo_net_verbs = {
    .name = "verbs",
    .version = 1,
    .what = "RDMA over InfiniBand and RoCE by libibverbs",
    .count = kolo_verbs_count,
    .properties = kolo_verbs_properties,
    .open = kolo_verbs_open,
    .close = kolo_verbs_close,
    .wake_fds = kolo_verbs_wake_fds,
    .arm = kolo_verbs_arm,
    .works = kolo_verbs_works,
    .look = kolo_verbs_look,
    .enroll = enroll,
    .withdraw = withdraw,
    .fork_safe = fork_safe,
    .listen = kolo_verbs_listen,
    .start = kolo_verbs_start,
    .connect = kolo_verbs_connect,
    .accept = kolo_verbs_connect, /* the other end is known by then: both go the same way */
    .shut = kolo_verbs_shut,
    .offered = kolo_verbs_offered,
    .isend = kolo_verbs_isend,
    .irecv = kolo_verbs_irecv,
    .push = kolo_verbs_push,
    .test = kolo_verbs_test,
    .invite = kolo_verbs_invite,
    .invited = kolo_verbs_invited,
    .isend_from = kolo_verbs_isend_from,
    .revoke = kolo_verbs_revoke,
    .counts = counts,
};
