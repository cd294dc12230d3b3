/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas: a stretch of address space of one end, of which memory is taken as it is needed. It is sparse, so a large
 * one costs nothing; pages that were used once stay for the next user (a fresh page costs more than a copy into
 * it), and above KOLO_ONESIDED_KEEP they go back to the system.
 *
 * Free blocks are kept by address, so that neighbours join; the first that is large enough is taken.
 */
#include "base/file/fds.h"
#include "remote/onesided/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN 64u
#define PAGE  4096u
#define HUGE  (8u << 20) /* from here on memory asks for large pages */

typedef struct block {
    struct block *next;
    size_t at, bytes;
} block_t;

struct kolo_onesided_arena {
    pthread_mutex_t lock;
    int fd;
    char *map;
    size_t skip, bytes;
    block_t *free_blocks;
    size_t top;        /* from here on nothing was ever used */
    size_t used, warm; /* in use; free, but with pages */
    kolo_arena_ask_t ask;
    void *ask_arg;
    uint32_t refs; /* the creator, and each piece of memory */
};

kolo_status_t kolo_arena_create(int fd, size_t skip, size_t bytes, kolo_onesided_arena_t **out)
{
    kolo_onesided_arena_t *arena = calloc(1, sizeof *arena);
    if (arena == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for an arena");
    arena->fd = -1;
    if (fd >= 0) arena->fd = kolo_fd_copy(fd);
    int flags = MAP_NORESERVE | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    void *map = fd >= 0 && arena->fd < 0 ? MAP_FAILED
                                         : mmap(NULL, skip + bytes, PROT_READ | PROT_WRITE, flags, arena->fd, 0);
    if (map == MAP_FAILED) {
        int err = errno;
        if (arena->fd >= 0) kolo_fd_close(arena->fd);
        free(arena);
        return kolo_fail_errno(KOLO_ERR_NO_MEMORY, err,
                               "onesided: cannot map %zu bytes of address space (KOLO_ONESIDED_ARENA)",
                               skip + bytes);
    }
    pthread_mutex_init(&arena->lock, NULL);
    arena->map = map;
    arena->skip = skip;
    arena->bytes = bytes;
    arena->refs = 1;
    *out = arena;
    return KOLO_OK;
}

static void destroy(kolo_onesided_arena_t *arena)
{
    while (arena->free_blocks) {
        block_t *block = arena->free_blocks;
        arena->free_blocks = block->next;
        free(block);
    }
    munmap(arena->map, arena->skip + arena->bytes);
    if (arena->fd >= 0) kolo_fd_close(arena->fd);
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

void kolo_arena_unref(kolo_onesided_arena_t *arena)
{
    if (arena == NULL) return;
    pthread_mutex_lock(&arena->lock);
    bool last = --arena->refs == 0;
    pthread_mutex_unlock(&arena->lock);
    if (last) destroy(arena);
}

char *kolo_arena_map(kolo_onesided_arena_t *arena)
{
    return arena->map;
}

char *kolo_arena_base(kolo_onesided_arena_t *arena)
{
    return arena->map + arena->skip;
}

size_t kolo_arena_size(const kolo_onesided_arena_t *arena)
{
    return arena->bytes;
}

size_t kolo_arena_held(kolo_onesided_arena_t *arena)
{
    pthread_mutex_lock(&arena->lock);
    size_t held = arena->used + arena->warm;
    pthread_mutex_unlock(&arena->lock);
    return held;
}

void kolo_arena_ask(kolo_onesided_arena_t *arena, kolo_arena_ask_t ask, void *arg)
{
    pthread_mutex_lock(&arena->lock);
    arena->ask = ask;
    arena->ask_arg = arg;
    pthread_mutex_unlock(&arena->lock);
}

/* Takes room, with the lock held; false: there is none. */
static bool take(kolo_onesided_arena_t *arena, size_t bytes, size_t *at)
{
    for (block_t **b = &arena->free_blocks; *b; b = &(*b)->next) {
        block_t *block = *b;
        if (block->bytes < bytes) continue;
        *at = block->at;
        block->at += bytes;
        block->bytes -= bytes;
        arena->warm -= KOLO_MIN(arena->warm, bytes);
        if (block->bytes == 0) {
            *b = block->next;
            free(block);
        }
        return true;
    }
    if (arena->bytes - arena->top < bytes) return false;
    *at = arena->top;
    arena->top += bytes;
    return true;
}

kolo_status_t kolo_arena_alloc(kolo_onesided_arena_t *arena, size_t bytes, kolo_onesided_memory_t *memory)
{
    size_t unit = bytes < 16 * PAGE ? ALIGN : PAGE, room = 0, at = 0;
    if (bytes > arena->bytes)
        return kolo_fail(KOLO_ERR_NO_MEMORY,
                         "onesided: %zu bytes are more than an arena has "
                         "(KOLO_ONESIDED_ARENA)",
                         bytes);
    room = KOLO_MAX(KOLO_ROUND_UP(bytes, unit), (size_t)ALIGN);
    pthread_mutex_lock(&arena->lock);
    bool there = take(arena, room, &at);
    if (there) {
        arena->used += room;
        arena->refs++;
    }
    pthread_mutex_unlock(&arena->lock);
    if (!there)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: an arena has no %zu bytes left (KOLO_ONESIDED_ARENA)",
                         bytes);
    *memory = (kolo_onesided_memory_t){.base = kolo_arena_base(arena) + at, .bytes = room, .arena = arena};
    if (room >= HUGE && arena->fd < 0) (void)madvise(memory->base, room, MADV_HUGEPAGE);
    return KOLO_OK;
}

/* Pages that lie in it as a whole. */
static void give_pages_back(kolo_onesided_arena_t *arena, size_t at, size_t bytes)
{
    size_t first = KOLO_ROUND_UP(arena->skip + at, PAGE), last = (arena->skip + at + bytes) / PAGE * PAGE;
    if (first >= last) return;
    if (arena->ask && !arena->ask(arena->ask_arg, arena->map + first, last - first)) return;
    int failed = arena->fd >= 0 ? fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first,
                                            (off_t)(last - first))
                                : madvise(arena->map + first, last - first, MADV_DONTNEED);
    (void)failed; /* they stay, then */
}

/* Gives a block back, with the lock held. */
static void put(kolo_onesided_arena_t *arena, block_t *block)
{
    block_t **b = &arena->free_blocks, *before = NULL;
    for (; *b && (*b)->at < block->at; b = &(*b)->next) before = *b;
    block->next = *b;
    *b = block;
    if (block->next && block->at + block->bytes == block->next->at) {
        block_t *after = block->next;
        block->bytes += after->bytes;
        block->next = after->next;
        free(after);
    }
    if (before && before->at + before->bytes == block->at) {
        before->bytes += block->bytes;
        before->next = block->next;
        free(block);
    }
}

void kolo_onesided_free(kolo_onesided_memory_t *memory)
{
    kolo_onesided_arena_t *arena = memory->arena;
    block_t *block = arena ? malloc(sizeof *block) : NULL;
    if (arena == NULL) return;
    pthread_mutex_lock(&arena->lock);
    arena->used -= memory->bytes;
    bool cold = arena->warm + memory->bytes > (size_t)kolo_onesided_param_keep;
    size_t at = (size_t)((char *)memory->base - kolo_arena_base(arena));
    if (cold)
        give_pages_back(arena, at, memory->bytes);
    else
        arena->warm += memory->bytes;
    if (block) { /* else its addresses are lost, until the arena goes */
        *block = (block_t){.at = at, .bytes = memory->bytes};
        put(arena, block);
    }
    bool last = --arena->refs == 0;
    pthread_mutex_unlock(&arena->lock);
    if (last) destroy(arena);
    *memory = (kolo_onesided_memory_t){0};
}
