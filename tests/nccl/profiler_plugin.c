/* SPDX-License-Identifier: Apache-2.0
 *
 * A profiler plug-in as NCCL's clients have them: writes a line per event into the file PROFILER_OUT-PID. Built
 * once for each version (-DVERSION=4 to 7), and with -DVERSION=3 as one that is too old. PROFILER_MASK: which
 * events it wants; PROFILER_FAILS: its init() fails. Its structs are its own, as a plug-in brings them.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if VERSION == 4
typedef uint8_t type_t;
#else
typedef uint64_t type_t;
#endif

typedef struct {
    type_t type;
    void *parentObj;
    int rank;
    union {
        struct {
            bool graphCaptured;
            int groupDepth;
        } groupApi;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool graphCaptured;
#if VERSION >= 7
            uint64_t userTag;
#endif
        } collApi;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            bool graphCaptured;
#if VERSION >= 7
            uint64_t userTag;
#endif
        } p2pApi;
        struct {
            uint64_t seqNumber;
            const char *func;
            void const *sendBuff;
            void *recvBuff;
            size_t count;
            int root;
            const char *datatype;
            uint8_t nChannels, nWarps;
            const char *algo, *proto;
#if VERSION >= 5
            void *parentGroup;
#endif
#if VERSION >= 7
            const char *kernelVariant;
            bool isSymColl;
            uint64_t userTag;
#endif
        } coll;
        struct {
            const char *func;
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t nChannels;
#if VERSION >= 5
            void *parentGroup;
#endif
#if VERSION >= 7
            uint64_t userTag;
#endif
        } p2p;
    };
} descr_t;

typedef struct {
    int number, kind;
} event_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static int events;
static event_t pool[10000]; /* others may name one as their parent when it is over: they stay */

static int begin(void **context, uint64_t id, int *mask, const char *name, int nnodes, int nranks, int rank,
                 void (*log)(int, unsigned long, const char *, int, const char *, ...))
{
    char path[600];
    const char *wanted = getenv("PROFILER_MASK");
    log(3, 1, __FILE__, __LINE__, "the plug-in's own line: rank %d of %d", rank, nranks);
    if (getenv("PROFILER_FAILS")) return 3;
    pthread_mutex_lock(&lock);
    if (!out) {
        snprintf(path, sizeof path, "%.500s-%d", getenv("PROFILER_OUT"), (int)getpid());
        out = fopen(path, "we");
    }
    if (out)
        fprintf(out, "init rank=%d nranks=%d nodes=%d name=%s id=%llx\n", rank, nranks, nnodes, name ? name : "-",
                (unsigned long long)id);
    pthread_mutex_unlock(&lock);
    *mask = wanted ? (int)strtol(wanted, NULL, 0) : 0xffff;
    *context = malloc(sizeof(int));
    if (!*context || !out) return 2;
    *(int *)*context = rank;
    return 0;
}

static int number_of(const void *event)
{
    return event ? ((const event_t *)event)->number : 0;
}

static int start_event(void *context, void **handle, descr_t *d)
{
    pthread_mutex_lock(&lock);
    event_t *e = &pool[events % 10000];
    e->number = ++events;
    e->kind = (int)d->type;
    fprintf(out, "start %d kind=%d parent=%d rank=%d context=%d ", e->number, e->kind, number_of(d->parentObj),
            d->rank, *(int *)context);
    switch (e->kind) {
    case 1 << 1:
        fprintf(out, "func=%s count=%zu root=%d type=%s seq=%llu channels=%d algo=%s", d->coll.func, d->coll.count,
                d->coll.root, d->coll.datatype, (unsigned long long)d->coll.seqNumber, d->coll.nChannels,
                d->coll.algo);
#if VERSION >= 5
        fprintf(out, " group=%d", number_of(d->coll.parentGroup));
#endif
#if VERSION >= 7
        fprintf(out, " tag=%llu", (unsigned long long)d->coll.userTag);
#endif
        break;
    case 1 << 2:
        fprintf(out, "func=%s count=%zu peer=%d type=%s", d->p2p.func, d->p2p.count, d->p2p.peer, d->p2p.datatype);
        break;
    case 1 << 8:
        fprintf(out, "depth=%d captured=%d", d->groupApi.groupDepth, d->groupApi.graphCaptured);
        break;
    case 1 << 9:
        fprintf(out, "func=%s count=%zu type=%s", d->collApi.func, d->collApi.count, d->collApi.datatype);
#if VERSION >= 7
        fprintf(out, " tag=%llu", (unsigned long long)d->collApi.userTag);
#endif
        break;
    case 1 << 10:
        fprintf(out, "func=%s count=%zu type=%s", d->p2pApi.func, d->p2pApi.count, d->p2pApi.datatype);
        break;
    default:
        break;
    }
    fprintf(out, "\n");
    pthread_mutex_unlock(&lock);
    *handle = e;
    return 0;
}

static int stop_event(void *handle)
{
    pthread_mutex_lock(&lock);
    fprintf(out, "stop %d\n", number_of(handle));
    pthread_mutex_unlock(&lock);
    return 0;
}

static int record_state(void *handle, int state, void *args)
{
    (void)args;
    pthread_mutex_lock(&lock);
    fprintf(out, "state %d %d\n", number_of(handle), state);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int finalize(void *context)
{
    pthread_mutex_lock(&lock);
    fprintf(out, "finalize rank=%d\n", *(int *)context);
    fflush(out);
    pthread_mutex_unlock(&lock);
    free(context);
    return 0;
}

typedef void (*log_t)(int, unsigned long, const char *, int, const char *, ...);
#if VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t id, int nnodes, int nranks, int rank,
                log_t log)
#else
static int init(void **context, uint64_t id, int *mask, const char *name, int nnodes, int nranks, int rank,
                log_t log)
#endif
{
    return begin(context, id, mask, name, nnodes, nranks, rank, log);
}

#define JOIN(a, b) a##b
#define NAME(v)    JOIN(ncclProfiler_v, v)
__attribute__((visibility("default"))) struct {
    const char *name;
    int (*init)(void **,
#if VERSION == 4
                int *, const char *, uint64_t,
#else
                uint64_t, int *, const char *,
#endif
                int, int, int, log_t);
    int (*start)(void *, void **, descr_t *);
    int (*stop)(void *);
    int (*record)(void *, int, void *);
    int (*finalize)(void *);
} NAME(VERSION) = {"lines", init, start_event, stop_event, record_state, finalize};
