/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiler plug-ins made for NCCL (NCCL_PROFILER_PLUGIN). A plug-in has a context for each communicator and is told
 * of groups, calls, and when the operations of a call have been handed over: on GPUs they may still run then, and
 * no event tells of their end, as from NCCL without kernel events.
 */
#include "nccl/profile.h"
#include "nccl/layer.h"

#include "base/log.h"
#include "base/text/plain.h"
#include "comm/identity.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>

#define OLDEST 4
#define NEWEST 7

static const kolo_nccl_profiler_table_t *plugin;
static int version;
static int mask; /* the plug-in's; it may change it at any time */
static pthread_once_t once = PTHREAD_ONCE_INIT;
_Atomic bool kolo_nccl_profiles;

/* The group of this thread, as the plug-in knows it; its communicator is that of the first call. */
static _Thread_local void *group_event;

/* ---- finding it ---- */

static void say(int level, unsigned long parts, const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    (void)parts, (void)file, (void)line;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (level == 2)
        kolo_warn("profiler", "%s", text);
    else if (level == 3 || level == 1)
        kolo_info("profiler", "%s", text);
    else
        kolo_debug("profiler", "%s", text);
}

/* Opens a file, or by a name; the program itself if it says so; and without a word the plug-in that a machine has.
 */
static void *open_library(const char *name)
{
    char file[512];
    void *library;
    if (!name || !*name) return dlopen("libnccl-profiler.so", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (kolo_plain_is_word(name, strlen(name), "STATIC_PLUGIN")) return dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library || strchr(name, '/')) return library;
    snprintf(file, sizeof file, "libnccl-profiler-%s.so", name);
    return dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static const kolo_nccl_profiler_table_t *table_of(void *library, int v)
{
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", v);
    return dlsym(library, symbol);
}

static const char *plugin_name(void)
{
    return plugin->name ? plugin->name : "without a name";
}

static void load(void)
{
    const char *name = kolo_nccl_env("NCCL_PROFILER_PLUGIN");
    char had[64] = "";
    if (getauxval(AT_SECURE) || (name && kolo_plain_is_word(name, strlen(name), "none"))) return;
    void *library = open_library(name);
    if (!library) {
        const char *why = dlerror();
        if (name) kolo_warn("profiler", "the plug-in %s (NCCL_PROFILER_PLUGIN) is not used: %s", name, why);
        return;
    }
    if (!name) name = "libnccl-profiler.so";
    for (version = NEWEST; version >= OLDEST && !plugin; version--) plugin = table_of(library, version);
    version++;
    for (int v = NEWEST + 1; v > 0 && !plugin; v--)
        if (table_of(library, v)) snprintf(had + strlen(had), sizeof had - strlen(had), " v%d", v);
    if (!plugin) {
        kolo_warn(
            "profiler",
            "the plug-in %s (NCCL_PROFILER_PLUGIN) is not used: it has no profiler of version %d to %d, but%s",
            name, OLDEST, NEWEST, *had ? had : " none");
        return;
    }
    if (!plugin->init.v5 || !plugin->start || !plugin->stop || !plugin->record || !plugin->finalize) {
        kolo_warn("profiler", "the plug-in %s (NCCL_PROFILER_PLUGIN) is not used: a function of its is NULL", name);
        return;
    }
    kolo_info("profiler", "the plug-in %s (%s, version %d) is told of calls", plugin_name(), name, version);
    atomic_store(&kolo_nccl_profiles, true);
}

/* ---- contexts ---- */

static ncclResult_t begin(ncclComm_t comm, uint64_t id, int nhosts, int nranks, int rank)
{
    const char *name = comm->config.commName;
    if (version == 4) return plugin->init.v4(&comm->profile.context, &mask, name, id, nhosts, nranks, rank, say);
    return plugin->init.v5(&comm->profile.context, id, &mask, name, nhosts, nranks, rank, say);
}

void kolo_nccl_profile_load(void)
{
    pthread_once(&once, load);
}

void kolo_nccl_profile_open(ncclComm_t comm)
{
    uint64_t id = 0;
    int rank, nranks, nhosts = 1;
    if (KOLO_LIKELY(!atomic_load_explicit(&kolo_nccl_profiles, memory_order_relaxed))) return;
    if (atomic_load(&comm->profile.open) || kolo_nccl_place(comm, &rank, &nranks) != ncclSuccess ||
        kolo_comm_identity(comm->kolo, &id, &nhosts) != KOLO_OK)
        return;
    pthread_mutex_lock(&comm->lock);
    if (!atomic_load(&comm->profile.open)) {
        ncclResult_t r = begin(comm, id, nhosts, nranks, rank);
        if (r == ncclSuccess)
            atomic_store(&comm->profile.open, true);
        else if (atomic_exchange(&kolo_nccl_profiles, false))
            kolo_warn("profiler", "the plug-in %s is not used any more: its init() gives %d (%s)", plugin_name(),
                      (int)r, ncclGetErrorString(r));
    }
    pthread_mutex_unlock(&comm->lock);
}

void kolo_nccl_profile_close(ncclComm_t comm)
{
    if (!atomic_exchange(&comm->profile.open, false)) return;
    plugin->finalize(comm->profile.context);
    comm->profile.context = NULL;
}

/* ---- events ---- */

/* Returns the event, or NULL: the plug-in does not want this kind. */
static void *start(ncclComm_t comm, kolo_nccl_event_t *e)
{
    void *event = NULL;
    if (!((uint64_t)(unsigned)__atomic_load_n(&mask, __ATOMIC_RELAXED) & e->type) ||
        (version == 4 && e->type > UINT8_MAX))
        return NULL;
    e->rank = comm->rank;
    return plugin->start(comm->profile.context, &event, e) == ncclSuccess ? event : NULL;
}

static void stop(void **event)
{
    if (*event) plugin->stop(*event);
    *event = NULL;
}

_Static_assert(KOLO_NCCL_SCATTER < KOLO_COUNTOF(((ncclComm_t)NULL)->profile.calls),
               "each collective has a counter");
static const struct {
    const char *name;
    bool message;
} kinds[] = {
    [KOLO_NCCL_ALL_REDUCE] = {"AllReduce", false},
    [KOLO_NCCL_REDUCE] = {"Reduce", false},
    [KOLO_NCCL_BROADCAST] = {"Broadcast", false},
    [KOLO_NCCL_ALL_GATHER] = {"AllGather", false},
    [KOLO_NCCL_REDUCE_SCATTER] = {"ReduceScatter", false},
    [KOLO_NCCL_ALL_TO_ALL] = {"AlltoAll", false},
    [KOLO_NCCL_GATHER] = {"Gather", false},
    [KOLO_NCCL_SCATTER] = {"Scatter", false},
    [KOLO_NCCL_SEND] = {"Send", true},
    [KOLO_NCCL_RECV] = {"Recv", true},
};

static bool is_told(const kolo_nccl_call_t *c)
{
    if ((size_t)c->kind >= KOLO_COUNTOF(kinds)) return false;
    kolo_nccl_profile_open(c->comm); /* of one that was made in a group, or in the background */
    return atomic_load(&c->comm->profile.open);
}

static bool captured(const kolo_nccl_call_t *c)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    int status = 0;
    if (!api || c->comm->device < 0 || !c->stream || !api->stream_capturing) return false;
    return api->stream_capturing(c->stream, &status) == KOLO_CU_SUCCESS && status != 0;
}

static const char *const type_names[ncclNumTypes] = {
    [ncclInt8] = "ncclInt8",         [ncclUint8] = "ncclUint8",           [ncclInt32] = "ncclInt32",
    [ncclUint32] = "ncclUint32",     [ncclInt64] = "ncclInt64",           [ncclUint64] = "ncclUint64",
    [ncclFloat16] = "ncclFloat16",   [ncclFloat32] = "ncclFloat32",       [ncclFloat64] = "ncclFloat64",
    [ncclBfloat16] = "ncclBfloat16", [ncclFloat8e4m3] = "ncclFloat8e4m3", [ncclFloat8e5m2] = "ncclFloat8e5m2",
};

void kolo_nccl_profile_call(kolo_nccl_call_t *c, int depth)
{
    c->told = is_told(c);
    if (!c->told) return;
    bool graph = captured(c);
    if (!group_event) {
        kolo_nccl_event_t e = {.type = KOLO_NCCL_EVENT_GROUP_API, .of.group_api = {graph, depth + 1}};
        group_event = start(c->comm, &e);
        if (group_event && depth) plugin->record(group_event, KOLO_NCCL_GROUP_STARTED, NULL);
    }
    kolo_nccl_event_t e = {.parent = group_event};
    const char *type = type_names[c->client_type];
    if (kinds[c->kind].message) {
        e.type = KOLO_NCCL_EVENT_P2P_API;
        e.of.p2p_api.name = kinds[c->kind].name;
        e.of.p2p_api.count = c->count;
        e.of.p2p_api.type = type;
        e.of.p2p_api.stream = c->stream;
        e.of.p2p_api.captured = graph;
        e.of.p2p_api.tag = c->tag;
    } else {
        e.type = KOLO_NCCL_EVENT_COLL_API;
        e.of.coll_api.name = kinds[c->kind].name;
        e.of.coll_api.count = c->count;
        e.of.coll_api.type = type;
        e.of.coll_api.root = c->root;
        e.of.coll_api.stream = c->stream;
        e.of.coll_api.captured = graph;
        e.of.coll_api.tag = c->tag;
    }
    c->call_event = start(c->comm, &e);
    void *event = c->call_event; /* the parent of what follows, although it is over */
    stop(&event);
}

static void start_operation(kolo_nccl_call_t *c)
{
    ncclComm_t comm = c->comm;
    if (!comm->profile.group) {
        kolo_nccl_event_t g = {.type = KOLO_NCCL_EVENT_GROUP, .parent = group_event};
        comm->profile.group = start(comm, &g);
    }
    kolo_nccl_event_t e = {.parent = version == 4 ? comm->profile.group : c->call_event};
    const char *type = type_names[c->client_type];
    if (kinds[c->kind].message) {
        e.type = KOLO_NCCL_EVENT_P2P;
        e.of.p2p.name = kinds[c->kind].name;
        e.of.p2p.buf = c->kind == KOLO_NCCL_RECV ? c->dst : (void *)(uintptr_t)c->src;
        e.of.p2p.type = type;
        e.of.p2p.count = c->count;
        e.of.p2p.peer = c->root;
        e.of.p2p.group = comm->profile.group;
        e.of.p2p.tag = c->tag;
    } else {
        e.type = KOLO_NCCL_EVENT_COLL;
        e.of.coll.number = comm->profile.calls[c->kind]++;
        e.of.coll.name = kinds[c->kind].name;
        e.of.coll.src = c->src;
        e.of.coll.dst = c->dst;
        e.of.coll.count = c->count;
        e.of.coll.root = c->root;
        e.of.coll.type = type;
        e.of.coll.algo = "Kolo"; /* it chooses later */
        e.of.coll.proto = "Kolo";
        e.of.coll.group = comm->profile.group;
        e.of.coll.kernel = "Kolo";
        e.of.coll.tag = c->tag;
    }
    c->run_event = start(comm, &e);
}

void kolo_nccl_profile_begin(kolo_nccl_call_t *calls, size_t n, bool grouped)
{
    if (group_event && grouped) plugin->record(group_event, KOLO_NCCL_GROUP_ENDS, NULL);
    for (size_t i = 0; i < n; i++)
        if (calls[i].told) start_operation(&calls[i]);
}

void kolo_nccl_profile_end(kolo_nccl_call_t *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (calls[i].told) stop(&calls[i].run_event);
    for (size_t i = 0; i < n; i++)
        if (calls[i].told) stop(&calls[i].comm->profile.group);
    stop(&group_event);
}
