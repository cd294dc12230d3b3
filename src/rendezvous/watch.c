/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing of the flight record of keyed tensors. See watch.h.
 */
#include "rendezvous/watch.h"
#include "base/file/fds.h"
#include "share/memfd.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PROBES 16

kolo_rendezvous_watch_t *kolo_watch_create(const char *task, uint64_t incarnation, int *fd)
{
    *fd = -1;
    if (kolo_memfd_make(KOLO_WATCH_NAME, sizeof(kolo_rendezvous_watch_t), fd) != KOLO_OK) return NULL;
    kolo_rendezvous_watch_t *watch = mmap(NULL, sizeof *watch, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (watch == MAP_FAILED) {
        kolo_fd_close(*fd);
        *fd = -1;
        return NULL;
    }
    watch->incarnation = incarnation;
    watch->pid = (int32_t)getpid();
    snprintf(watch->task, sizeof watch->task, "%s", task);
    atomic_thread_fence(memory_order_release);
    watch->magic = KOLO_WATCH_MAGIC;
    return watch;
}

void kolo_watch_unmap(kolo_rendezvous_watch_t *watch)
{
    if (watch) munmap(watch, sizeof *watch);
}

static void name_edge(kolo_watch_edge_t *edge, const kolo_tensor_key_t *key)
{
    kolo_device_task(key->dst_device, edge->to);
    snprintf(edge->edge, sizeof edge->edge, "%s", key->edge_name);
    atomic_store_explicit(&edge->named, 1, memory_order_release);
}

static uint64_t hash_edge(const kolo_tensor_key_t *key)
{
    return (kolo_key_hash(key->edge_name) * 31 + kolo_key_hash(key->dst_device)) | 1;
}

kolo_sent_t kolo_watch_last_sent(kolo_rendezvous_watch_t *watch, const kolo_tensor_key_t *key, uint64_t *step)
{
    if (watch == NULL) return KOLO_SENT_UNKNOWN;
    uint64_t hash = hash_edge(key);
    for (uint64_t i = 0; i < PROBES; i++) {
        kolo_watch_edge_t *edge = &watch->edges[(hash + i) % KOLO_WATCH_EDGES];
        if (atomic_load_explicit(&edge->hash, memory_order_relaxed) != hash) continue;
        *step = atomic_load_explicit(&edge->step, memory_order_relaxed);
        return KOLO_SENT_UP_TO;
    }
    return atomic_load_explicit(&watch->left_out, memory_order_relaxed) ? KOLO_SENT_UNKNOWN : KOLO_SENT_NEVER;
}

void kolo_watch_ended(kolo_rendezvous_watch_t *watch, const kolo_receive_t receive, kolo_status_t status)
{
    if (watch == NULL || receive->serves) return;
    uint64_t now = kolo_about_now_ns();
    if (status == KOLO_OK && now < receive->since_ns + KOLO_WATCH_LOOK_MS * KOLO_NS_PER_MS) return;
    uint64_t number = atomic_fetch_add_explicit(&watch->nended, 1, memory_order_relaxed) + 1;
    kolo_watch_ended_t *ended = &watch->ended[(number - 1) % KOLO_WATCH_ENDED];
    /* Two that write one place at a time, a round apart, may leave a line that is made of both: it stays text. */
    atomic_store_explicit(&ended->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    ended->since_ns = receive->since_ns;
    ended->end_ns = now;
    ended->step = receive->rendezvous->step;
    ended->status = (int32_t)status;
    kolo_device_task(receive->key.src_device, ended->from);
    snprintf(ended->edge, sizeof ended->edge, "%s", receive->key.edge_name);
    atomic_store_explicit(&ended->number, number, memory_order_release);
}

/* Each thread has a place that it tries first, so that threads do not meet in one line. */
_Atomic uint64_t *kolo_watch_call(kolo_rendezvous_watch_t *watch)
{
    static _Atomic uint32_t threads;
    static _Thread_local uint32_t mine;
    if (watch == NULL) return NULL;
    if (mine == 0) mine = 1 + 8 * atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < KOLO_WATCH_CALLS; i++) {
        _Atomic uint64_t *call = &watch->calls[(mine + i) % KOLO_WATCH_CALLS];
        uint64_t none = 0;
        if (atomic_compare_exchange_strong_explicit(call, &none, kolo_about_now_ns(), memory_order_relaxed,
                                                    memory_order_relaxed))
            return call;
    }
    return NULL; /* one of the others is as long in its own */
}

void kolo_watch_call_over(_Atomic uint64_t *call)
{
    if (call) atomic_store_explicit(call, 0, memory_order_relaxed);
}

uint64_t kolo_watch_callback_ns(const kolo_rendezvous_watch_t *watch, uint64_t now_ns)
{
    uint64_t oldest = now_ns;
    for (int i = 0; i < KOLO_WATCH_CALLS; i++) {
        uint64_t since = atomic_load_explicit(&watch->calls[i], memory_order_relaxed);
        if (since) oldest = KOLO_MIN(oldest, since);
    }
    return now_ns - oldest >= KOLO_WATCH_LOOK_MS * KOLO_NS_PER_MS ? now_ns - oldest : 0;
}

void kolo_watch_sent(kolo_rendezvous_watch_t *watch, const kolo_tensor_key_t *key, uint64_t step)
{
    uint64_t hash = hash_edge(key);
    for (uint64_t i = 0; i < PROBES; i++) {
        kolo_watch_edge_t *edge = &watch->edges[(hash + i) % KOLO_WATCH_EDGES];
        uint64_t found = atomic_load_explicit(&edge->hash, memory_order_relaxed);
        if (found == 0 && atomic_compare_exchange_strong(&edge->hash, &found, hash)) {
            name_edge(edge, key);
            found = hash;
        }
        if (found != hash) continue;
        uint64_t last = atomic_load_explicit(&edge->step, memory_order_relaxed);
        while (last < step && !atomic_compare_exchange_weak(&edge->step, &last, step)) {
        }
        return;
    }
    if (!atomic_load_explicit(&watch->left_out, memory_order_relaxed)) /* one is enough, and never 0 again */
        atomic_store_explicit(&watch->left_out, 1, memory_order_relaxed);
}

typedef struct {
    kolo_rendezvous_watch_t *watch;
    uint64_t now_ns;
    uint32_t n, more;
} look_t;

void kolo_watch_describe(const kolo_receive_t receive, kolo_watch_wait_t *wait)
{
    wait->since_ns = receive->since_ns;
    wait->step = receive->rendezvous->step;
    wait->sent = atomic_load_explicit(&receive->sent, memory_order_acquire);
    wait->sent_step = atomic_load_explicit(&receive->sent_step, memory_order_relaxed);
    wait->callback_ns = atomic_load_explicit(&receive->callback_ns, memory_order_relaxed);
    kolo_device_task(receive->key.src_device, wait->from);
    snprintf(wait->edge, sizeof wait->edge, "%s", receive->key.edge_name);
}

static void write_down(look_t *look, const kolo_receive_t receive)
{
    if (receive->serves || atomic_load_explicit(&receive->claimed, memory_order_relaxed)) return;
    if (look->now_ns < receive->since_ns + KOLO_WATCH_LOOK_MS * KOLO_NS_PER_MS) return;
    if (look->n == KOLO_WATCH_WAITS) {
        look->more++;
        return;
    }
    kolo_watch_describe(receive, &look->watch->waits[look->n++]);
}

static void look_at_step(look_t *look, kolo_rendezvous_t rendezvous)
{
    pthread_mutex_lock(&rendezvous->lock);
    for (kolo_receive_t r = rendezvous->others; r; r = r->next_other) write_down(look, r);
    const kolo_key_table_t *table = &rendezvous->table;
    for (size_t i = 0; i < table->nbuckets && table->nqueues > 0; i++)
        for (const kolo_queue_of_key_t *queue = table->buckets[i]; queue; queue = queue->next)
            for (const kolo_item_t *item = queue->first; item && item->receive; item = item->next)
                write_down(look, item->receive);
    pthread_mutex_unlock(&rendezvous->lock);
}

void kolo_watch_look(kolo_rendezvous_watch_t *watch, kolo_rendezvous_manager_t manager)
{
    look_t look = {.watch = watch, .now_ns = kolo_now_ns()};
    atomic_fetch_add_explicit(&watch->seq, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    pthread_mutex_lock(&manager->lock);
    for (size_t i = 0; i < manager->nbuckets; i++)
        for (kolo_rendezvous_t r = manager->buckets[i]; r; r = r->next) look_at_step(&look, r);
    pthread_mutex_unlock(&manager->lock);
    atomic_store_explicit(&watch->nwaits, look.n, memory_order_relaxed);
    atomic_store_explicit(&watch->more, look.more, memory_order_relaxed);
    atomic_fetch_add_explicit(&watch->seq, 1, memory_order_release);
}
