/* SPDX-License-Identifier: Apache-2.0
 *
 * Boards of GPU communicators stay pinned as long as the process lives. To end that the driver waits for all that
 * the GPU has to do, and other threads' launches wait meanwhile, which may be what that work waits for. So a board
 * goes to the next communicator of its process, under its name, by which other processes know that they have mapped
 * it. One that was not left in order is used no more: a late peer may still write there.
 */
#include "base/file/fds.h"
#include "comm/window/window.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_window_pinned_t *spares; /* of this process */
static kolo_window_pinned_t *theirs; /* those of other processes, as they are mapped here */

static kolo_window_pinned_t *find(const uint8_t name[16], size_t bytes)
{
    kolo_window_pinned_t *p = theirs;
    while (p && (memcmp(p->name, name, sizeof p->name) != 0 || p->bytes != bytes)) p = p->next;
    return p;
}

static kolo_window_pinned_t *take_spare(size_t bytes)
{
    pthread_mutex_lock(&lock);
    kolo_window_pinned_t **at = &spares;
    while (*at && (*at)->bytes != bytes) at = &(*at)->next;
    kolo_window_pinned_t *p = *at;
    if (p) *at = p->next;
    pthread_mutex_unlock(&lock);
    return p;
}

static kolo_status_t make(const kolo_body_t *body, kolo_window_pinned_t *p)
{
    KOLO_TRY(kolo_random(p->name, sizeof p->name));
    KOLO_TRY(kolo_window_memory_make("kolo-signals", p->bytes, &p->fd, &p->base));
    kolo_status_t status = kolo_window_device_pin(body, p->base, p->bytes, &p->address);
    if (status == KOLO_OK) return KOLO_OK;
    munmap(p->base, p->bytes);
    if (p->fd >= 0) kolo_fd_close(p->fd);
    return status;
}

kolo_status_t kolo_window_pinned_make(const kolo_body_t *body, size_t bytes, kolo_window_pinned_t **pinned)
{
    kolo_window_pinned_t *p = take_spare(bytes);
    if (p) {
        memset(p->base, 0, p->bytes);
        *pinned = p;
        return KOLO_OK;
    }
    p = calloc(1, sizeof *p);
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a board of signals");
    p->bytes = bytes;
    p->fd = -1;
    kolo_status_t status = make(body, p);
    if (status == KOLO_OK)
        *pinned = p;
    else
        free(p);
    return status;
}

void kolo_window_pinned_give(kolo_window_pinned_t *pinned, bool in_order)
{
    if (!in_order) {
        if (pinned->fd >= 0) kolo_fd_close(pinned->fd);
        free(pinned); /* but not its memory */
        return;
    }
    pthread_mutex_lock(&lock);
    pinned->next = spares;
    spares = pinned;
    pthread_mutex_unlock(&lock);
}

/* Pins what was mapped, and keeps it; what another thread has pinned meanwhile is used instead. */
static kolo_status_t keep(const kolo_body_t *body, const uint8_t name[16], void *map, size_t bytes,
                          const kolo_window_pinned_t **pinned)
{
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&lock);
    kolo_window_pinned_t *p = find(name, bytes), *made = p ? NULL : calloc(1, sizeof *made);
    if (!p && !made)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a board of signals");
    else if (made) {
        *made = (kolo_window_pinned_t){.next = theirs, .base = map, .bytes = bytes, .fd = -1};
        memcpy(made->name, name, sizeof made->name);
        status = kolo_window_device_pin(body, map, bytes, &made->address);
        if (status == KOLO_OK) theirs = p = made;
    }
    pthread_mutex_unlock(&lock);
    if (!made || status != KOLO_OK) munmap(map, bytes);
    if (status != KOLO_OK) free(made);
    *pinned = p;
    return status;
}

kolo_status_t kolo_window_pinned_fetch(kolo_body_t *body, int owner, const uint8_t name[16], size_t bytes,
                                       const kolo_window_pinned_t **pinned)
{
    void *map = NULL;
    pthread_mutex_lock(&lock);
    *pinned = find(name, bytes);
    pthread_mutex_unlock(&lock);
    if (*pinned) return KOLO_OK;
    KOLO_TRY(kolo_window_memory_fetch(body, owner, name, bytes, &map));
    return keep(body, name, map, bytes, pinned);
}
