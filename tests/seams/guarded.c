/* SPDX-License-Identifier: Apache-2.0
 *
 * A kind of memory that the library does not know: files that are mapped twice, once where programs see them and
 * nobody may touch them, once where this row works. All there is to it stands in this file, and kinds.c has the
 * list with it.
 */
#include "guarded.h"

#include "engine/batch/device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCKS 64
typedef struct {
    char *face, *back; /* NULL: there is none */
    size_t bytes;
    int fd;
} block_t;
static block_t blocks[BLOCKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The one with this address. */
static bool find(const void *p, block_t *block)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS && !found; i++) {
        found = blocks[i].face && (const char *)p >= blocks[i].face &&
                (const char *)p < blocks[i].face + blocks[i].bytes;
        if (found) *block = blocks[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Where it can be touched. */
static void *reach(const void *p)
{
    block_t b;
    return p && find(p, &b) ? b.back + ((const char *)p - b.face) : NULL;
}

static bool classify(const void *p, kolo_mem_place_t *place)
{
    block_t b;
    if (!find(p, &b)) return false;
    *place = (kolo_mem_place_t){.ops = &seam_mem_guarded, .base = (uintptr_t)b.face, .bytes = b.bytes};
    return true;
}

/* Takes the descriptor. */
static kolo_status_t keep(int fd, size_t bytes, kolo_mem_t *mem)
{
    block_t b = {mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0),
                 mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), bytes, fd};
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < BLOCKS && blocks[i].face) i++;
    bool good = i < BLOCKS && b.face != MAP_FAILED && b.back != MAP_FAILED;
    if (good) blocks[i] = b;
    pthread_mutex_unlock(&lock);
    if (!good) return kolo_fail(KOLO_ERR_NO_MEMORY, "no %zu bytes of guarded memory", bytes);
    *mem = (kolo_mem_t){&seam_mem_guarded, 0, b.face, bytes, (uint64_t)i};
    return KOLO_OK;
}

static kolo_status_t make(int device, size_t bytes, kolo_mem_t *mem)
{
    int fd = memfd_create("guarded", MFD_CLOEXEC);
    (void)device;
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "no file for memory");
    return keep(fd, bytes, mem);
}

static kolo_status_t share(const kolo_mem_t *mem, int *fd)
{
    *fd = fcntl(blocks[mem->handle].fd, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "no descriptor of memory") : KOLO_OK;
}

static kolo_status_t map(int fd, size_t bytes, int device, kolo_mem_t *mem)
{
    (void)device;
    return keep(fcntl(fd, F_DUPFD_CLOEXEC, 0), bytes, mem);
}

static kolo_status_t allow(const kolo_mem_t *mem, int device)
{
    (void)mem;
    return device ? kolo_fail(KOLO_ERR_UNSUPPORTED, "there is one device") : KOLO_OK;
}

static void release(kolo_mem_t *mem)
{
    block_t b = blocks[mem->handle];
    pthread_mutex_lock(&lock);
    blocks[mem->handle].face = NULL;
    pthread_mutex_unlock(&lock);
    munmap(b.face, b.bytes);
    munmap(b.back, b.bytes);
    close(b.fd);
}

static kolo_status_t read_from(int device, void *host, const void *from, size_t bytes)
{
    (void)device;
    memcpy(host, reach(from), bytes);
    return KOLO_OK;
}

static kolo_status_t write_to(int device, void *to, const void *host, size_t bytes)
{
    (void)device;
    memcpy(reach(to), host, bytes);
    return KOLO_OK;
}

static kolo_status_t has(int device)
{
    return device ? kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "guarded memory has no device %d", device) : KOLO_OK;
}

/* ---- a queue that does all at once ---- */

static kolo_status_t open_queue(int device, void (*tell)(void *arg), void *arg, void **queue)
{
    (void)tell;
    (void)arg;
    *queue = malloc(1);
    return *queue ? has(device) : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a queue");
}

static kolo_status_t passed(void *queue, void *event)
{
    (void)queue;
    (void)event; /* what a program queues here is done when it is queued */
    return KOLO_OK;
}

static kolo_status_t lift(void *queue, const kolo_lift_t *list, size_t n)
{
    (void)queue;
    for (size_t i = 0; i < n; i++) {
        kolo_lift_t one = list[i];
        one.to = reach(one.to);
        one.from = one.from ? reach(one.from) : NULL;
        kolo_lift_now(&one, 1);
    }
    return KOLO_OK;
}

static kolo_status_t fetch(void *queue, void *host, const void *memory, size_t bytes)
{
    (void)queue;
    return read_from(0, host, memory, bytes);
}

static kolo_status_t store(void *queue, void *memory, const void *host, size_t bytes)
{
    (void)queue;
    return write_to(0, memory, host, bytes);
}

static kolo_status_t mark(void *queue, uint64_t *at)
{
    (void)queue;
    *at = 0;
    return KOLO_OK;
}

static kolo_status_t reached(void *queue, uint64_t at)
{
    (void)queue;
    (void)at;
    return KOLO_OK;
}

static const kolo_mem_queue_ops_t queues = {.open = open_queue,
                                            .close = free,
                                            .passed = passed,
                                            .lift = lift,
                                            .fetch = fetch,
                                            .store = store,
                                            .mark = mark,
                                            .reached = reached};

const kolo_mem_ops_t seam_mem_guarded = {.name = "guarded",
                                         .classify = classify,
                                         .make = make,
                                         .share = share,
                                         .map = map,
                                         .allow = allow,
                                         .free = release,
                                         .read = read_from,
                                         .write = write_to,
                                         .has = has,
                                         .queues = &queues};
