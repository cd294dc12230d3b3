/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of NCCL's profiler plug-ins, versions 4 to 7, as they read it: written from these facts. A version
 * is the beginning of the next, but for init(), and for the type, which has one byte in version 4; so one record
 * serves all. Kolo has no proxies, channels or copy engines, and gives no event of those.
 */
#ifndef KOLO_NCCL_PROFILE_H
#define KOLO_NCCL_PROFILE_H

#include "nccl/abi.h"

enum { /* events, as bits */
       KOLO_NCCL_EVENT_GROUP = 1 << 0,
       KOLO_NCCL_EVENT_COLL = 1 << 1,
       KOLO_NCCL_EVENT_P2P = 1 << 2,
       KOLO_NCCL_EVENT_GROUP_API = 1 << 8, /* since 5, as the next two */
       KOLO_NCCL_EVENT_COLL_API = 1 << 9,
       KOLO_NCCL_EVENT_P2P_API = 1 << 10
};
enum { /* states of a group of the program's */
       KOLO_NCCL_GROUP_STARTED = 23,
       KOLO_NCCL_GROUP_ENDS = 24
};

typedef struct {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            bool captured;
            int depth; /* 1: a call outside of groups */
        } group_api;
        struct {
            const char *name;
            size_t count;
            const char *type;
            int root;
            void *stream;
            bool captured;
            uint64_t tag; /* since 7, as all tags */
        } coll_api;
        struct {
            const char *name;
            size_t count;
            const char *type;
            void *stream;
            bool captured;
            uint64_t tag;
        } p2p_api;
        struct {
            uint64_t number; /* among the communicator's calls of that name */
            const char *name;
            const void *src;
            void *dst;
            size_t count;
            int root;
            const char *type;
            uint8_t channels, warps;
            const char *algo, *proto;
            void *group; /* since 5, where the parent is the call */
            const char *kernel;
            bool symmetric;
            uint64_t tag;
        } coll;
        struct {
            const char *name;
            void *buf;
            const char *type;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
            uint64_t tag;
        } p2p;
        char room[128]; /* of the largest kind there is */
    } of;
} kolo_nccl_event_t;
_Static_assert(offsetof(kolo_nccl_event_t, of) == 24, "where plug-ins look for it");
_Static_assert(offsetof(kolo_nccl_event_t, of.coll.group) == 24 + 80, "where plug-ins look for it");
_Static_assert(offsetof(kolo_nccl_event_t, of.coll.tag) == 24 + 104, "where plug-ins look for it");

typedef void (*kolo_nccl_log_t)(int level, unsigned long parts, const char *file, int line, const char *fmt, ...);

/* What a plug-in exports as ncclProfiler_v4 to ncclProfiler_v7. */
typedef struct {
    const char *name;
    union {
        ncclResult_t (*v4)(void **context, int *mask, const char *comm_name, uint64_t comm_id, int nhosts,
                           int nranks, int rank, kolo_nccl_log_t log);
        ncclResult_t (*v5)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nhosts,
                           int nranks, int rank, kolo_nccl_log_t log);
    } init;
    ncclResult_t (*start)(void *context, void **event, kolo_nccl_event_t *what);
    ncclResult_t (*stop)(void *event);
    ncclResult_t (*record)(void *event, int state, void *more);
    ncclResult_t (*finalize)(void *context);
} kolo_nccl_profiler_table_t;

#endif
