/* SPDX-License-Identifier: Apache-2.0
 *
 * ncclConfig_t and ncclCollConfig_t as clients of any version pass them: how many bytes there are, which of the
 * fields the client's version had, which values are allowed. Most fields steer what Kolo decides by itself; they
 * are checked as NCCL checks them, and then have no effect (docs/nccl.md).
 */
#include "nccl/layer.h"

#include "base/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNDEF NCCL_CONFIG_UNDEF_INT

static const struct field {
    const char *name;
    size_t at;
    unsigned since; /* before that version the bytes were not there, or were something else */
    bool pointer;
    int min, max; /* of those that are set */
} fields[] = {
    {"blocking", offsetof(ncclConfig_t, blocking), 21400, false, 0, 1},
    {"cgaClusterSize", offsetof(ncclConfig_t, cgaClusterSize), 21700, false, 0, INT_MAX},
    {"minCTAs", offsetof(ncclConfig_t, minCTAs), 21700, false, 1, INT_MAX},
    {"maxCTAs", offsetof(ncclConfig_t, maxCTAs), 21700, false, 1, INT_MAX},
    {"netName", offsetof(ncclConfig_t, netName), 21700, true, 0, 0},
    {"splitShare", offsetof(ncclConfig_t, splitShare), 21700, false, 0, 1},
    {"trafficClass", offsetof(ncclConfig_t, trafficClass), 22500, false, INT_MIN, INT_MAX},
    {"commName", offsetof(ncclConfig_t, commName), 22500, true, 0, 0},
    {"collnetEnable", offsetof(ncclConfig_t, collnetEnable), 22700, false, 0, 1},
    {"CTAPolicy", offsetof(ncclConfig_t, CTAPolicy), 22700, false, 0, 3},
    {"shrinkShare", offsetof(ncclConfig_t, shrinkShare), 22700, false, 0, 1},
    {"nvlsCTAs", offsetof(ncclConfig_t, nvlsCTAs), 22700, false, 1, INT_MAX},
    {"nChannelsPerNetPeer", offsetof(ncclConfig_t, nChannelsPerNetPeer), 22800, false, 1, 64},
    {"nvlinkCentricSched", offsetof(ncclConfig_t, nvlinkCentricSched), 22800, false, 0, 1},
    {"graphUsageMode", offsetof(ncclConfig_t, graphUsageMode), 22900, false, 0, 2},
    {"numRmaCtx", offsetof(ncclConfig_t, numRmaCtx), 22900, false, 0, INT_MAX},
    {"maxP2pPeers", offsetof(ncclConfig_t, maxP2pPeers), 23000, false, 1, INT_MAX},
    {"graphStreamOrdering", offsetof(ncclConfig_t, graphStreamOrdering), 23005, false, 0, 1},
    {"launchOrderImplicit", offsetof(ncclConfig_t, launchOrderImplicit), 23100, false, 0, 1},
    {"numRmaSig", offsetof(ncclConfig_t, numRmaSig), 23100, false, 0, INT_MAX},
    {"rmaEagerInit", offsetof(ncclConfig_t, rmaEagerInit), 23100, false, 0, 1},
    {"hostCftMode", offsetof(ncclConfig_t, hostCftMode), 23100, false, 1, 3},
    {"nvlsHostMode", offsetof(ncclConfig_t, nvlsHostMode), 23200, false, 0, INT_MAX},
};

static void undefine(ncclConfig_t *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < KOLO_COUNTOF(fields); i++)
        if (!fields[i].pointer) *(int *)((char *)config + fields[i].at) = UNDEF;
}

static ncclResult_t check_head(const kolo_nccl_head_t *head, const char *call, const char *what,
                               const char *initializer)
{
    if (head->magic == NCCL_API_MAGIC && head->size >= sizeof *head) return ncclSuccess;
    return kolo_nccl_fail(ncclInvalidArgument, "%s: the %s was not initialised: begin with %s", call, what,
                          initializer);
}

ncclResult_t kolo_nccl_config_read(const ncclConfig_t *config, const char *call, ncclConfig_t *out)
{
    undefine(out);
    if (!config) return ncclSuccess;
    ncclResult_t r = check_head(&config->head, call, "ncclConfig_t", "NCCL_CONFIG_INITIALIZER");
    if (r != ncclSuccess) return r;
    for (size_t i = 0; i < KOLO_COUNTOF(fields); i++) {
        const struct field *f = &fields[i];
        size_t bytes = f->pointer ? sizeof(char *) : sizeof(int);
        if (config->head.version < f->since || config->head.size < f->at + bytes) continue;
        memcpy((char *)out + f->at, (const char *)config + f->at, bytes);
        if (f->pointer) continue;
        int value = *(const int *)((const char *)out + f->at);
        if (value != UNDEF && (value < f->min || value > f->max))
            return kolo_nccl_fail(ncclInvalidArgument, "%s: %s is %d in the configuration, expected %d to %d", call,
                                  f->name, value, f->min, f->max);
    }
    if (out->minCTAs != UNDEF && out->maxCTAs != UNDEF && out->minCTAs > out->maxCTAs)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: minCTAs is %d and maxCTAs %d in the configuration", call,
                              out->minCTAs, out->maxCTAs);
    return ncclSuccess;
}

int kolo_nccl_config_blocks(const ncclConfig_t *config)
{
    const char *forced = kolo_nccl_env("NCCL_COMM_BLOCKING");
    if (forced) return atoi(forced) != 0;
    return config->blocking == UNDEF ? 1 : config->blocking;
}

kolo_config_t kolo_nccl_config_kolo(const ncclConfig_t *config, int blocking)
{
    kolo_config_t k = KOLO_CONFIG_INITIALIZER;
    k.blocking = blocking;
    k.name = config->commName && *config->commName ? config->commName : "nccl";
    if (config->splitShare == 1) k.split_share = 1;
    if (config->CTAPolicy != UNDEF && config->CTAPolicy != 0) k.gpu_profile = KOLO_GPU_COMPUTE;
    return k;
}

/* ---- of one call ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void say_chosen(void)
{
    kolo_warn("nccl", "a call's configuration names algorithms (algSelection): Kolo chooses by itself; KOLO_ALGO "
                      "forces one for all calls");
}

/* The profile of a communicator is Kolo's measure of how much of a GPU a call may take; it is not changed by
 * call. */
ncclResult_t kolo_nccl_call_config_read(const ncclCollConfig_t *config, kolo_nccl_call_t *out)
{
    const char *call = out->name;
    if (!config) return ncclSuccess;
    ncclResult_t r = check_head(&config->head, call, "ncclCollConfig_t", "NCCL_COLLCONFIG_INITIALIZER");
    if (r != ncclSuccess) return r;
    if (config->head.size < offsetof(ncclCollConfig_t, userProfilerTag))
        return kolo_nccl_fail(ncclInvalidArgument, "%s: the ncclCollConfig_t has %zu bytes, expected %zu or more",
                              call, config->head.size, offsetof(ncclCollConfig_t, userProfilerTag));
    const int least[] = {config->minCTAs, config->maxCTAs, config->nvlsCTAs};
    for (size_t i = 0; i < KOLO_COUNTOF(least); i++)
        if (least[i] != UNDEF && least[i] < 1)
            return kolo_nccl_fail(ncclInvalidArgument, "%s: a number of CTAs is %d, expected 1 or more", call,
                                  least[i]);
    if (config->minCTAs != UNDEF && config->maxCTAs != UNDEF && config->minCTAs > config->maxCTAs)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: minCTAs is %d and maxCTAs %d", call, config->minCTAs,
                              config->maxCTAs);
    if (config->cgaClusterSize != UNDEF && config->cgaClusterSize < 0)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: cgaClusterSize is %d", call, config->cgaClusterSize);
    if (config->CTAPolicy != UNDEF && (config->CTAPolicy < 0 || config->CTAPolicy > 3))
        return kolo_nccl_fail(ncclInvalidArgument, "%s: CTAPolicy is %d, expected 0 to 3", call, config->CTAPolicy);
    if (config->algSelection && *config->algSelection) pthread_once(&once, say_chosen);
    if (config->head.size >= offsetof(ncclCollConfig_t, launchCompletionEvent)) out->tag = config->userProfilerTag;
    if (config->head.size >= sizeof *config && config->head.version >= 23200)
        out->event = config->launchCompletionEvent;
    return ncclSuccess;
}
