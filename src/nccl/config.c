/* SPDX-License-Identifier: Apache-2.0
 *
 * ncclConfig_t and ncclCollConfig_t as clients of any version pass them: how many bytes there are, which of the
 * fields the client's version had, which values are allowed. Most fields steer what Kolo decides by itself; they
 * are checked as NCCL checks them, and then have no effect (docs/nccl.md).
 */
#include "nccl/layer.h"

#include "base/log.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNDEF NCCL_CONFIG_UNDEF_INT
#define FEW_BLOCKS                                                                                                 \
    32 /* NCCL's own most on the GPUs of today: whoever sets less wants the GPU for something else                 \
        */

static const struct field {
    const char *name;
    size_t at;
    unsigned since; /* before that version the bytes were not there, or were something else */
    bool pointer;
    int min, max; /* of those that are set */
    bool used;    /* it has an effect here */
} fields[] = {
    {"blocking", offsetof(ncclConfig_t, blocking), 21400, false, 0, 1, true},
    {"cgaClusterSize", offsetof(ncclConfig_t, cgaClusterSize), 21700, false, 0, INT_MAX, false},
    {"minCTAs", offsetof(ncclConfig_t, minCTAs), 21700, false, 1, INT_MAX, false},
    {"maxCTAs", offsetof(ncclConfig_t, maxCTAs), 21700, false, 1, INT_MAX, true},
    {"netName", offsetof(ncclConfig_t, netName), 21700, true, 0, 0, false},
    {"splitShare", offsetof(ncclConfig_t, splitShare), 21700, false, 0, 1, true},
    {"trafficClass", offsetof(ncclConfig_t, trafficClass), 22500, false, INT_MIN, INT_MAX, false},
    {"commName", offsetof(ncclConfig_t, commName), 22500, true, 0, 0, true},
    {"collnetEnable", offsetof(ncclConfig_t, collnetEnable), 22700, false, 0, 1, false},
    {"CTAPolicy", offsetof(ncclConfig_t, CTAPolicy), 22700, false, 0, 3, true},
    {"shrinkShare", offsetof(ncclConfig_t, shrinkShare), 22700, false, 0, 1, false},
    {"nvlsCTAs", offsetof(ncclConfig_t, nvlsCTAs), 22700, false, 1, INT_MAX, false},
    {"nChannelsPerNetPeer", offsetof(ncclConfig_t, nChannelsPerNetPeer), 22800, false, 1, 64, false},
    {"nvlinkCentricSched", offsetof(ncclConfig_t, nvlinkCentricSched), 22800, false, 0, 1, false},
    {"graphUsageMode", offsetof(ncclConfig_t, graphUsageMode), 22900, false, 0, 2, false},
    {"numRmaCtx", offsetof(ncclConfig_t, numRmaCtx), 22900, false, 0, INT_MAX, true},
    {"maxP2pPeers", offsetof(ncclConfig_t, maxP2pPeers), 23000, false, 1, INT_MAX, false},
    {"graphStreamOrdering", offsetof(ncclConfig_t, graphStreamOrdering), 23005, false, 0, 1, false},
    {"launchOrderImplicit", offsetof(ncclConfig_t, launchOrderImplicit), 23100, false, 0, 1, false},
    {"numRmaSig", offsetof(ncclConfig_t, numRmaSig), 23100, false, 0, INT_MAX, true},
    {"rmaEagerInit", offsetof(ncclConfig_t, rmaEagerInit), 23100, false, 0, 1, false},
    {"hostCftMode", offsetof(ncclConfig_t, hostCftMode), 23100, false, 1, 3, false},
    {"nvlsHostMode", offsetof(ncclConfig_t, nvlsHostMode), 23200, false, 0, INT_MAX, false},
};

static void undefine(ncclConfig_t *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < KOLO_COUNTOF(fields); i++)
        if (!fields[i].pointer) *(int *)((char *)config + fields[i].at) = UNDEF;
}

/* Says once what has no effect: whoever sets it may wonder, but a job makes many communicators and calls. */
static void say_unused(const char *what, const char *list, atomic_flag *said)
{
    if (*list && !atomic_flag_test_and_set(said))
        kolo_info("nccl", "a %s sets%s, which Kolo decides by itself: no effect (said once; docs/nccl.md)", what,
                  list);
}

static bool is_set(const ncclConfig_t *config, const struct field *f)
{
    const char *at = (const char *)config + f->at;
    return f->pointer ? *(const char *const *)at != NULL : *(const int *)at != UNDEF;
}

static void say_unused_fields(const ncclConfig_t *config)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char list[512] = "";
    for (size_t i = 0, at = 0; i < KOLO_COUNTOF(fields) && at < sizeof list; i++)
        if (!fields[i].used && is_set(config, &fields[i]))
            at += (size_t)snprintf(list + at, sizeof list - at, " %s", fields[i].name);
    say_unused("configuration", list, &said);
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
    say_unused_fields(out);
    return ncclSuccess;
}

int kolo_nccl_config_blocks(const ncclConfig_t *config)
{
    const char *forced = kolo_nccl_env("NCCL_COMM_BLOCKING");
    if (forced && (strcmp(forced, "0") == 0 || strcmp(forced, "1") == 0)) return forced[0] == '1';
    return config->blocking == UNDEF ? 1 : config->blocking;
}

/* Tells whether the profile that takes few blocks is wanted; Kolo has no number of them for a communicator. As with
 * NCCL the environment goes before the configuration. */
static bool wants_few_blocks(const ncclConfig_t *config)
{
    static const char *const keys[] = {"NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"};
    for (size_t i = 0; i < KOLO_COUNTOF(keys); i++) {
        const char *text = kolo_environment("KOLO_GPU_PROFILE") ? NULL : kolo_nccl_env(keys[i]);
        int most = text ? atoi(text) : 0;
        if (most > 0) return most < FEW_BLOCKS;
    }
    return config->maxCTAs != UNDEF && config->maxCTAs < FEW_BLOCKS;
}

kolo_config_t kolo_nccl_config_kolo(const ncclConfig_t *config, int blocking)
{
    kolo_config_t k = KOLO_CONFIG_INITIALIZER;
    k.blocking = blocking;
    k.name = config->commName && *config->commName ? config->commName : "nccl";
    if (config->splitShare == 1) k.split_share = 1;
    if ((config->CTAPolicy != UNDEF && config->CTAPolicy != 0) || wants_few_blocks(config))
        k.gpu_profile = KOLO_GPU_COMPUTE;
    return k;
}

/* ---- of one call ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void say_chosen(void)
{
    kolo_warn("nccl", "a call's configuration names algorithms (algSelection): Kolo chooses by itself; KOLO_ALGO "
                      "forces one for all calls");
}

static void say_unused_of_call(const ncclCollConfig_t *config)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char list[128];
    snprintf(list, sizeof list, "%s%s%s%s%s%s", config->minCTAs != UNDEF ? " minCTAs" : "",
             config->maxCTAs != UNDEF ? " maxCTAs" : "", config->nvlsCTAs != UNDEF ? " nvlsCTAs" : "",
             config->cgaClusterSize != UNDEF ? " cgaClusterSize" : "",
             config->CTAPolicy != UNDEF ? " CTAPolicy" : "", config->ext ? " ext" : "");
    say_unused("call's configuration", list, &said);
}

/* Reads one call's configuration. The profile of a communicator is Kolo's measure of how much of a GPU a call may
 * take; it is not changed by call. */
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
    say_unused_of_call(config);
    if (config->head.size >= offsetof(ncclCollConfig_t, launchCompletionEvent)) out->tag = config->userProfilerTag;
    if (config->head.size >= sizeof *config && config->head.version >= 23200)
        out->event = config->launchCompletionEvent;
    return ncclSuccess;
}
