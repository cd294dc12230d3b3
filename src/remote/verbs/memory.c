/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory, of this host and of devices beside the card, and the provider's table.
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "mem/mem.h"
#include "remote/verbs/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

kolo_status_t kolo_verbs_fail_register(const kolo_net_open_t *open, const char *what, size_t bytes, int err)
{
    struct rlimit limit = {0};
    char hint[192] = "";
    bool bounded = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (bounded && (err == ENOMEM || err == EAGAIN || err == EPERM))
        snprintf(hint, sizeof hint,
                 "; this process may lock %llu KB: raise that (ulimit -l), or " KOLO_VERBS_WITHOUT,
                 (unsigned long long)limit.rlim_cur / 1024);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "verbs: %s: device %s cannot register %zu bytes%s", what,
                           open->name, bytes, hint);
}

/* Registers a device's memory: by a descriptor where its row and the card can do that; else a module of the kernel
 * may know its pages by their address (peer memory). */
static struct ibv_mr *register_device(kolo_net_open_t *open, const kolo_mem_place_t *place, void *memory,
                                      size_t bytes, int access)
{
    struct ibv_mr *mr = NULL;
    size_t offset = 0;
    int fd = -1;
    if (kolo_verbs.reg_dmabuf_mr && place->ops->dmabuf &&
        place->ops->dmabuf(memory, bytes, &fd, &offset) == KOLO_OK) {
        mr = kolo_verbs.reg_dmabuf_mr(open->pd, offset, bytes, (uint64_t)(uintptr_t)memory, fd, access);
        int err = errno;
        kolo_fd_close(fd);
        if (mr) return mr;
        kolo_debug("verbs", "device %s: no memory of %s by DMA-BUF: %s", open->name, place->ops->name,
                   strerror(err));
    }
    return kolo_verbs.reg_mr(open->pd, memory, bytes, access);
}

static kolo_status_t enroll(kolo_net_open_t *open, void *memory, size_t bytes, bool peer_writes,
                            kolo_net_region_t **region)
{
    kolo_mem_place_t place;
    kolo_net_region_t *r = calloc(1, sizeof *r);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "verbs: no memory for a region");
    kolo_mem_find(memory, &place);
    int64_t flush = kolo_verbs_options.flush;
    r->flushed = peer_writes &&
                 (flush == KOLO_VERBS_FLUSH_ALWAYS || (flush == KOLO_VERBS_FLUSH_DEVICE && place.device >= 0));
    r->here = place.device < 0;
    /* Who may read is the queue pairs' matter: no peer's may. */
    int access = (peer_writes ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0) |
                 (r->flushed ? IBV_ACCESS_REMOTE_READ : 0);
    r->mr = place.device >= 0 ? register_device(open, &place, memory, bytes, access)
                              : kolo_verbs.reg_mr(open->pd, memory, bytes, access);
    if (!r->mr) {
        int err = errno;
        free(r);
        return kolo_verbs_fail_register(open, place.device >= 0 ? "memory of a GPU" : "memory", bytes, err);
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
    .version = 2,
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
    .take_offers = kolo_verbs_take_offers,
    .repeat_offers = kolo_verbs_repeat_offers,
    .revoke = kolo_verbs_revoke,
    .counts = counts,
};
