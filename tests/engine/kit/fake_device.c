/* SPDX-License-Identifier: Apache-2.0
 *
 * See fake_device.h. A row of src/mem that is added while there are fakes. The memory is a file that is mapped
 * twice: where the user sees it nobody may touch it; where it can be touched is known to the queues' threads alone.
 */
#include "engine/kit/fake_device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_BYTES ((size_t)64 << 20)
#define PAGE         4096
#define PAGES        (MEMORY_BYTES / PAGE)
#define PINS_MAX     32
#define QUEUES_MAX   16
#define DAWDLE_US    300

struct fake_event {
    _Atomic bool passed;
    _Atomic int holders; /* the user, and the queue until it has come to it */
};

typedef struct item {
    struct item *next;
    fake_step_t step; /* FAKE_NEVER: a mark */
    void *to;
    const void *from;
    size_t bytes, n;
    const kolo_lift_t *list;
    fake_event_t *event;
    char copied[];
} item_t;

struct fake_queue {
    fake_t *fake;
    pthread_t thread;
    pthread_cond_t changed;
    item_t *first, **tail;
    bool held, stop;
    _Atomic bool inside; /* somebody is in a call that no two may be in at once */
    uint64_t queued;
    _Atomic uint64_t done;
    void (*tell)(void *arg);
    void *arg;
    uint64_t random;
};

struct fake {
    int number;
    unsigned flags;
    char *face, *back;
    pthread_mutex_t lock; /* of all below, and of the queues */
    uint16_t used[PAGES]; /* pages of the allocation that begins here; UINT16_MAX: inside of one */
    struct {
        const char *from;
        size_t bytes;
        int times;
    } pins[PINS_MAX];
    fake_queue_t *queues[QUEUES_MAX];
    bool jammed; /* the queues of engines */
    _Atomic int steps[FAKE_NEVER + 1], left;
    fake_step_t break_at;
    int break_after;
    _Atomic bool broken;
    uint64_t random;
};

/* Made and ended by one thread, while no engine is there. */
#define NUMBERS 8
static fake_t *numbers[NUMBERS];
static int nfakes;

static void give_up(const char *why)
{
    fprintf(stderr, "fake device: %s\n", why);
    abort();
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* ---- memory ---- */

static bool is_ours(const fake_t *f, const void *memory)
{
    return (const char *)memory >= f->face && (const char *)memory < f->face + MEMORY_BYTES;
}

void *fake_alloc(fake_t *f, size_t bytes)
{
    size_t n = KOLO_MAX(KOLO_DIV_UP(bytes, (size_t)PAGE), (size_t)1), run = 0;
    void *memory = NULL;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < PAGES && !memory; i++) {
        run = f->used[i] ? 0 : run + 1;
        if (run < n) continue;
        size_t first = i + 1 - n;
        f->used[first] = (uint16_t)n;
        for (size_t k = first + 1; k <= i; k++) f->used[k] = UINT16_MAX;
        memory = f->face + first * PAGE;
    }
    pthread_mutex_unlock(&f->lock);
    if (!memory) give_up("no memory is left");
    return memory;
}

void fake_free(fake_t *f, void *memory)
{
    size_t first = (size_t)((char *)memory - f->face) / PAGE;
    if (!is_ours(f, memory) || f->used[first] == 0 || f->used[first] == UINT16_MAX) give_up("free of what is none");
    pthread_mutex_lock(&f->lock);
    size_t n = f->used[first];
    for (size_t k = first; k < first + n; k++) f->used[k] = 0;
    pthread_mutex_unlock(&f->lock);
}

/* What a queue's thread may use for this address. */
static void *reach(fake_t *f, const void *memory, size_t bytes, bool host)
{
    if (is_ours(f, memory)) {
        if (host) give_up("memory of the device where the host's is expected");
        return f->back + ((const char *)memory - f->face);
    }
    if (!host) give_up("memory of the host where the device's is expected");
    bool pinned = bytes == 0;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < PINS_MAX; i++)
        pinned |= f->pins[i].times > 0 && (const char *)memory >= f->pins[i].from &&
                  (const char *)memory + bytes <= f->pins[i].from + f->pins[i].bytes;
    pthread_mutex_unlock(&f->lock);
    if (!pinned) give_up("host memory that is not pinned");
    return (void *)(uintptr_t)memory;
}

/* ---- queues ---- */

static bool breaks(fake_t *f, fake_step_t step)
{
    pthread_mutex_lock(&f->lock);
    if (step == f->break_at && f->break_after-- == 0) atomic_store(&f->broken, true);
    pthread_mutex_unlock(&f->lock);
    return atomic_load(&f->broken);
}

static void do_lift(fake_t *f, const item_t *it)
{
    for (size_t i = 0; i < it->n; i++) {
        kolo_lift_t l = it->list[i];
        size_t bytes = l.count * kolo_type_size(l.type);
        if (bytes == 0) continue;
        l.to = reach(f, l.to, bytes, false);
        if (l.from) l.from = reach(f, l.from, bytes, false);
        kolo_lift_now(&l, 1);
    }
}

static void tell_all(fake_t *f)
{
    if (!(f->flags & FAKE_TELLS)) return;
    pthread_mutex_lock(&f->lock); /* so that none is closed meanwhile */
    for (int i = 0; i < QUEUES_MAX; i++)
        if (f->queues[i] && f->queues[i]->tell) f->queues[i]->tell(f->queues[i]->arg);
    pthread_mutex_unlock(&f->lock);
}

static void do_item(fake_queue_t *q, item_t *it)
{
    fake_t *f = q->fake;
    if (!(f->flags & FAKE_PUNCTUAL) && next_random(&q->random) % 3 == 0)
        usleep((useconds_t)(next_random(&q->random) % DAWDLE_US));
    if (breaks(f, it->step)) return;
    if (it->step == FAKE_LIFT && it->n > 0) do_lift(f, it);
    if (it->step == FAKE_LIFT && it->bytes > 0) memcpy(reach(f, it->to, it->bytes, false), it->copied, it->bytes);
    if (it->step == FAKE_FETCH)
        memcpy(reach(f, it->to, it->bytes, true), reach(f, it->from, it->bytes, false), it->bytes);
    if (it->step == FAKE_STORE)
        memcpy(reach(f, it->to, it->bytes, false), reach(f, it->from, it->bytes, true), it->bytes);
    if (it->step == FAKE_EVENT) atomic_store(&it->event->passed, true);
}

static bool may_go(const fake_queue_t *q)
{
    return q->first && !q->held && !(q->fake->jammed && q->tell);
}

static void *queue_main(void *arg)
{
    fake_queue_t *q = arg;
    fake_t *f = q->fake;
    for (;;) {
        pthread_mutex_lock(&f->lock);
        while (!may_go(q) && !(q->stop && !q->first)) pthread_cond_wait(&q->changed, &f->lock);
        item_t *it = q->first;
        if (it) q->first = it->next;
        if (!q->first) q->tail = &q->first;
        pthread_mutex_unlock(&f->lock);
        if (!it) return NULL;
        do_item(q, it);
        bool telling = it->step >= FAKE_EVENT || atomic_load(&f->broken);
        if (it->event) fake_event_end(it->event);
        free(it);
        if (!atomic_load(&f->broken)) atomic_fetch_add(&q->done, 1);
        atomic_fetch_sub(&f->left, 1);
        if (telling) tell_all(f);
    }
}

static uint64_t put(fake_queue_t *q, item_t *it)
{
    pthread_mutex_lock(&q->fake->lock);
    it->next = NULL;
    *q->tail = it;
    q->tail = &it->next;
    uint64_t number = ++q->queued;
    atomic_fetch_add(&q->fake->left, 1);
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->fake->lock);
    return number;
}

static item_t *item_new(fake_step_t step, size_t extra)
{
    item_t *it = calloc(1, sizeof *it + extra);
    if (!it) give_up("out of memory");
    it->step = step;
    return it;
}

fake_queue_t *fake_queue_new(fake_t *f)
{
    fake_queue_t *q = calloc(1, sizeof *q);
    if (!q) give_up("out of memory");
    q->fake = f;
    q->tail = &q->first;
    pthread_cond_init(&q->changed, NULL);
    pthread_mutex_lock(&f->lock);
    q->random = next_random(&f->random);
    int i = 0;
    while (i < QUEUES_MAX && f->queues[i]) i++;
    if (i == QUEUES_MAX) give_up("too many queues");
    f->queues[i] = q;
    pthread_mutex_unlock(&f->lock);
    if (pthread_create(&q->thread, NULL, queue_main, q)) give_up("no thread");
    return q;
}

void fake_queue_end(fake_queue_t *q)
{
    fake_t *f = q->fake;
    pthread_mutex_lock(&f->lock);
    q->stop = true;
    q->held = false;
    for (int i = 0; i < QUEUES_MAX; i++)
        if (f->queues[i] == q) f->queues[i] = NULL;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    free(q);
}

/* ---- what Kolo calls ---- */

/* Yields, so that who does not wait for his turn is caught. */
static fake_queue_t *enter(void *queue)
{
    fake_queue_t *q = queue;
    if (atomic_exchange(&q->inside, true)) give_up("two threads are in calls of one queue at once");
    for (int i = 0; i < 3; i++) sched_yield();
    return q;
}

static kolo_status_t leave(fake_queue_t *q)
{
    atomic_store(&q->inside, false);
    return KOLO_OK;
}

static void count_step(fake_queue_t *q, fake_step_t step)
{
    atomic_fetch_add(&q->fake->steps[step], 1);
}

static fake_t *fake_of(int device)
{
    return device >= 0 && device < NUMBERS ? numbers[device] : NULL;
}

static kolo_status_t has(int device)
{
    return fake_of(device) ? KOLO_OK : kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "no fake has number %d", device);
}

static kolo_status_t open_queue(int device, void (*tell)(void *arg), void *arg, void **queue)
{
    fake_queue_t *q = fake_queue_new(fake_of(device));
    pthread_mutex_lock(&q->fake->lock);
    q->tell = tell;
    q->arg = arg;
    pthread_mutex_unlock(&q->fake->lock);
    *queue = q;
    return KOLO_OK;
}

static void close_queue(void *queue)
{
    fake_queue_end(queue);
}

static kolo_status_t pin(void *queue, void *host, size_t bytes)
{
    fake_queue_t *q = enter(queue);
    fake_t *f = q->fake;
    int i = 0;
    pthread_mutex_lock(&f->lock);
    while (i < PINS_MAX && f->pins[i].times && f->pins[i].from != host) i++;
    if (i == PINS_MAX) give_up("too much is pinned");
    f->pins[i].from = host;
    f->pins[i].bytes = bytes;
    f->pins[i].times++;
    pthread_mutex_unlock(&f->lock);
    return leave(q);
}

static void unpin(void *queue, void *host)
{
    fake_queue_t *q = enter(queue);
    fake_t *f = q->fake;
    int i = 0;
    pthread_mutex_lock(&f->lock);
    while (i < PINS_MAX && !(f->pins[i].times && f->pins[i].from == host)) i++;
    if (i == PINS_MAX) give_up("unpinning of what is not pinned");
    f->pins[i].times--;
    pthread_mutex_unlock(&f->lock);
    leave(q);
}

static kolo_status_t state_of(fake_t *f, bool good)
{
    if (good) return KOLO_OK;
    return atomic_load(&f->broken) ? kolo_fail(KOLO_ERR_SYSTEM, "the fake device has broken") : KOLO_IN_PROGRESS;
}

static kolo_status_t passed(void *queue, void *event)
{
    return state_of(((fake_queue_t *)queue)->fake, atomic_load(&((fake_event_t *)event)->passed));
}

static kolo_status_t lift(void *queue, const kolo_lift_t *list, size_t n)
{
    fake_queue_t *q = enter(queue);
    item_t *it = item_new(FAKE_LIFT, 0);
    it->list = list;
    it->n = n;
    count_step(q, FAKE_LIFT);
    put(q, it);
    return leave(q);
}

static kolo_status_t cross(void *queue, fake_step_t step, void *to, const void *from, size_t bytes)
{
    fake_queue_t *q = enter(queue);
    item_t *it = item_new(step, 0);
    it->to = to;
    it->from = from;
    it->bytes = bytes;
    count_step(q, step);
    put(q, it);
    return leave(q);
}

static kolo_status_t fetch(void *queue, void *host, const void *memory, size_t bytes)
{
    return cross(queue, FAKE_FETCH, host, memory, bytes);
}

static kolo_status_t store(void *queue, void *memory, const void *host, size_t bytes)
{
    return cross(queue, FAKE_STORE, memory, host, bytes);
}

static kolo_status_t mark(void *queue, uint64_t *at)
{
    fake_queue_t *q = enter(queue);
    *at = put(q, item_new(FAKE_NEVER, 0));
    return leave(q);
}

static kolo_status_t reached(void *queue, uint64_t at)
{
    fake_queue_t *q = queue;
    return state_of(q->fake, atomic_load(&q->done) >= at);
}

#define QUEUES(how)                                                                                                \
    {                                                                                                              \
        .tells = (how), .open = open_queue, .close = close_queue, .pin = pin, .unpin = unpin, .passed = passed,    \
        .lift = lift, .fetch = fetch, .store = store, .mark = mark, .reached = reached                             \
    }
static const kolo_mem_queue_ops_t queues_that_tell = QUEUES(true), queues_to_ask = QUEUES(false);

static bool classify(const void *memory, kolo_mem_place_t *place);
static kolo_status_t make(int device, size_t bytes, kolo_mem_t *mem);
static void release(kolo_mem_t *mem);

#define ROW(which)                                                                                                 \
    {                                                                                                              \
        .name = "fake", .classify = classify, .make = make, .free = release, .has = has, .queues = &(which)        \
    }
static const kolo_mem_ops_t row_that_tells = ROW(queues_that_tell), row_to_ask = ROW(queues_to_ask);

static bool classify(const void *memory, kolo_mem_place_t *place)
{
    for (int i = 0; i < NUMBERS; i++) {
        if (!numbers[i] || !is_ours(numbers[i], memory)) continue;
        *place = (kolo_mem_place_t){
            .ops = &row_to_ask, .device = i, .base = (uintptr_t)numbers[i]->face, .bytes = MEMORY_BYTES};
        return true;
    }
    return false;
}

static kolo_status_t make(int device, size_t bytes, kolo_mem_t *mem)
{
    *mem = (kolo_mem_t){&row_to_ask, device, fake_alloc(fake_of(device), bytes), bytes, 0};
    return KOLO_OK;
}

static void release(kolo_mem_t *mem)
{
    fake_free(fake_of(mem->device), mem->address);
}

/* ---- what tests call ---- */

fake_t *fake_new(int number, uint64_t seed, unsigned flags)
{
    fake_t *f = calloc(1, sizeof *f);
    int fd = memfd_create("fake device", MFD_CLOEXEC);
    if (!f || fd < 0 || ftruncate(fd, (off_t)MEMORY_BYTES)) give_up("no memory");
    f->number = number;
    f->flags = flags;
    f->random = seed * 2 + 1;
    f->break_at = FAKE_NEVER;
    f->break_after = -1;
    f->face = mmap(NULL, MEMORY_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
    f->back = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (f->face == MAP_FAILED || f->back == MAP_FAILED) give_up("no memory");
    pthread_mutex_init(&f->lock, NULL);
    if (number < 0 || number >= NUMBERS || numbers[number]) give_up("a number that cannot be");
    numbers[number] = f;
    if (nfakes++ == 0) kolo_mem_add(flags & FAKE_TELLS ? &row_that_tells : &row_to_ask);
    return f;
}

void fake_end(fake_t *f)
{
    if (--nfakes == 0) kolo_mem_add(NULL);
    numbers[f->number] = NULL;
    for (int i = 0; i < QUEUES_MAX; i++)
        if (f->queues[i]) give_up("it ends, and somebody has a queue");
    for (int i = 0; i < PINS_MAX; i++)
        if (f->pins[i].times) give_up("it ends, and host memory is still pinned");
    for (size_t i = 0; i < PAGES; i++)
        if (f->used[i]) give_up("it ends, and memory of it is still in use");
    munmap(f->face, MEMORY_BYTES);
    munmap(f->back, MEMORY_BYTES);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void fake_write(fake_queue_t *q, void *memory, const void *bytes, size_t count)
{
    item_t *it = item_new(FAKE_LIFT, count);
    memcpy(it->copied, bytes, count);
    it->to = memory;
    it->bytes = count;
    put(q, it);
}

void fake_read(fake_queue_t *q, const void *memory, void *bytes, size_t count)
{
    void *host = calloc(1, count + 1);
    item_t *it = item_new(FAKE_FETCH, 0);
    if (!host) give_up("out of memory");
    pin(q, host, count);
    it->to = host;
    it->from = memory;
    it->bytes = count;
    uint64_t number = put(q, it);
    while (atomic_load(&q->done) < number && !atomic_load(&q->fake->broken)) usleep(50);
    memcpy(bytes, host, count);
    unpin(q, host);
    free(host);
}

fake_event_t *fake_event_new(fake_queue_t *q)
{
    fake_event_t *event = calloc(1, sizeof *event);
    item_t *it = item_new(FAKE_EVENT, 0);
    if (!event) give_up("out of memory");
    atomic_init(&event->holders, 2);
    it->event = event;
    put(q, it);
    return event;
}

void fake_event_end(fake_event_t *event)
{
    if (atomic_fetch_sub(&event->holders, 1) == 1) free(event);
}

static void set_held(fake_queue_t *q, bool held)
{
    pthread_mutex_lock(&q->fake->lock);
    q->held = held;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->fake->lock);
}

void fake_hold(fake_queue_t *q)
{
    set_held(q, true);
}

void fake_go(fake_queue_t *q)
{
    set_held(q, false);
}

static void set_jammed(fake_t *f, bool jammed)
{
    pthread_mutex_lock(&f->lock);
    f->jammed = jammed;
    for (int i = 0; i < QUEUES_MAX; i++)
        if (f->queues[i]) pthread_cond_signal(&f->queues[i]->changed);
    pthread_mutex_unlock(&f->lock);
}

void fake_jam(fake_t *f)
{
    set_jammed(f, true);
}

void fake_unjam(fake_t *f)
{
    set_jammed(f, false);
}

void fake_bury(fake_t *f)
{
    for (int i = 0; i < QUEUES_MAX; i++)
        if (f->queues[i] && f->queues[i]->tell) fake_queue_end(f->queues[i]);
    memset(f->pins, 0, sizeof f->pins);
    memset(f->used, 0, sizeof f->used);
}

void fake_break(fake_t *f, fake_step_t step, int n)
{
    pthread_mutex_lock(&f->lock);
    f->break_after = n;
    f->break_at = step;
    pthread_mutex_unlock(&f->lock);
}

int fake_left(fake_t *f)
{
    return atomic_load(&f->left);
}

int fake_steps(fake_t *f, fake_step_t step)
{
    return atomic_load(&f->steps[step]);
}
