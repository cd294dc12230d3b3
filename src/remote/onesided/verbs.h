/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of one-sided transfers over RDMA (verbs.c, verbs_setup.c, verbs_memory.c, verbs_source.c): one reliable
 * connected queue pair for each end with a completion queue of its own, on a device that the domain has opened
 * once.
 */
#ifndef KOLO_REMOTE_ONESIDED_VERBS_H
#define KOLO_REMOTE_ONESIDED_VERBS_H

#include "mem/range.h"
#include "remote/onesided/internal.h"
#include "remote/verbs/verbs.h"

#define KOLO_ONESIDED_RECEIVES 128u /* notices that may be on their way to an end; a receive each */
#define KOLO_ONESIDED_SPARE    16u  /* receives for news of receives */
#define KOLO_ONESIDED_SENDS    128u

/* Registered memory of an end: whole grains of its arena, what was kept, or a window of the program's own
 * memory. */
typedef struct kolo_verbs_region {
    struct kolo_verbs_region *next;
    char *base;
    size_t bytes;
    struct ibv_mr *mr;
    uint32_t uses; /* windows in it that are not hidden; what was kept is in use for good */
    bool own;      /* of one window, and goes with it */
    bool kept;     /* only read, for writes */
} kolo_verbs_region_t;

typedef struct { /* shared with the threads that free memory of the arena, which may outlive the end */
    pthread_mutex_t lock;
    kolo_net_open_t *device;
    kolo_onesided_arena_t *arena;
    kolo_verbs_region_t *regions;
} kolo_verbs_memory_t;

void kolo_verbs_memory_init(kolo_verbs_memory_t *m, kolo_net_open_t *device, kolo_onesided_arena_t *arena);
void kolo_verbs_memory_fini(kolo_verbs_memory_t *m); /* after the queue pair */
/* Registers memory for a window, until leave(). */
kolo_status_t kolo_verbs_memory_enter(kolo_verbs_memory_t *m, void *base, size_t bytes,
                                      kolo_verbs_region_t **region);
void kolo_verbs_memory_leave(kolo_verbs_memory_t *m, kolo_verbs_region_t *region);
/* Registers memory that writes come from, until the end goes. */
kolo_status_t kolo_verbs_memory_keep(kolo_verbs_memory_t *m, void *base, size_t bytes);
/* Returns what is known of it, for a write; NULL: nothing. */
struct ibv_mr *kolo_verbs_memory_find(kolo_verbs_memory_t *m, const void *base, size_t bytes);

/* Memory of the program that writes under way come from: theirs together, since whoever writes keeps it until
 * then. */
typedef struct kolo_verbs_source {
    struct kolo_verbs_source *next;
    const char *base;
    uint64_t bytes;
    kolo_mem_range_t *range; /* it is registered, and stays so; NULL: for these writes alone */
    struct ibv_mr *mr;
    uint32_t writes;
} kolo_verbs_source_t;

/* ---- verbs_source.c ---- */

kolo_status_t kolo_verbs_sources_open(kolo_onesided_domain_t *domain); /* its device is open */
void kolo_verbs_sources_close(kolo_onesided_domain_t *domain);         /* after its ends; before the device */
/* Registers the memory of one write, until leave(). */
kolo_status_t kolo_verbs_source_enter(kolo_onesided_t *end, const void *data, uint64_t bytes,
                                      kolo_verbs_source_t **source);

typedef struct { /* a request that the device has */
    uint64_t cookie;
    kolo_verbs_source_t *source; /* of a write whose last request this is; NULL: its memory is known anyway */
} kolo_verbs_flight_t;

typedef struct {
    kolo_net_end_t *link; /* its queue pair, both hellos, and its place among those that are armed */
    kolo_verbs_memory_t memory;
    uint32_t credits; /* notices that the peer has receives for */
    uint32_t taken;   /* receives that are posted again, and not told */
    uint64_t posted, done;
    uint32_t unsignalled;
    kolo_verbs_flight_t flights[KOLO_ONESIDED_SENDS];
    kolo_verbs_source_t *sources;
    uint64_t ahead; /* bytes that came before the notice that is due next */
    struct ibv_wc wc[KOLO_VERBS_BATCH];
    int nwc, at;
    unsigned looks;
    bool hung_up; /* the socket has ended; what has come before is first */
} kolo_onesided_verbs_t;

static inline kolo_onesided_verbs_t *kolo_onesided_verbs_of(const kolo_onesided_t *end)
{
    return end->state[KOLO_ONESIDED_VERBS];
}

void kolo_verbs_source_leave(kolo_onesided_verbs_t *v, kolo_verbs_source_t *source); /* NULL is fine */

/* ---- verbs_setup.c: slots of kolo_onesided_ops_t ---- */

kolo_status_t kolo_verbs_offer(kolo_onesided_t *end, kolo_onesided_card_t *card);
kolo_status_t kolo_verbs_offer_mailbox(kolo_onesided_t *end, kolo_onesided_card_t *card);
kolo_status_t kolo_verbs_connect_end(kolo_onesided_t *end, const kolo_onesided_card_t *peer);
void kolo_verbs_find_mailbox(const kolo_onesided_card_t *peer, kolo_onesided_window_t *mailbox);
/* Posts n more receives. */
kolo_status_t kolo_verbs_post_receives(kolo_onesided_t *end, uint32_t n);

#endif
