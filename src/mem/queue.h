/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues of a kind of memory: work in order, by the device itself, some time later. Nothing here waits for a
 * device: work is queued, a mark behind it tells when it is done. A row that has queues points to a table of these
 * functions (mem.h).
 */
#ifndef KOLO_MEM_QUEUE_H
#define KOLO_MEM_QUEUE_H

#include "mem/mem.h"

#include <kolo/kolo.h>

/* One tensor's way into a packed buffer or out of it, within the memory of one device. */
typedef struct kolo_lift {
    void *to;
    const void *from; /* NULL: `to` becomes what changes nothing under op */
    size_t count;
    kolo_type_t type;
    kolo_op_t op;
    double factor; /* what elements are multiplied by, in the type's own rules, to the bit; 1.0: a plain copy */
} kolo_lift_t;

/* Parts of two vectors, neighbours of which make a sum that takes what they have in common once (Adasum). */
typedef struct kolo_blend {
    void *to;          /* may be a or b */
    const void *a, *b; /* as all, aligned to their elements */
    size_t count;
    double *sums; /* KOLO_BLEND_...; NULL: to becomes a + b */
} kolo_blend_t;
enum { KOLO_BLEND_AB, KOLO_BLEND_AA, KOLO_BLEND_BB, KOLO_BLEND_SUMS };
#define KOLO_BLEND_CHUNK 16384 /* bytes */
/* Returns how many doubles of room the products of n parts need, that have so many bytes together. */
static inline size_t kolo_blend_room(size_t bytes, size_t n)
{
    return KOLO_BLEND_SUMS * (bytes / KOLO_BLEND_CHUNK + n);
}

typedef struct {
    void *event;
    uint64_t stream; /* another number than any stream had before; 0: not known */
    uint64_t number; /* rises from note to note of a queue: a later one of the same stream comes behind this one */
} kolo_queue_note_t;

/* Whoever decides on an error calls kolo_fail(), as everywhere. Functions of a queue are called by several threads,
 * but never by two at once, except those of which it says "any thread". None may block. */
typedef struct kolo_mem_queue_ops {
    bool tells; /* calls tell() soon after a mark or an event may have come; if not, it is asked again and again */
    /* A queue of one's own. tell: any thread, any time until close. */
    kolo_status_t (*open)(int device, void (*tell)(void *arg), void *arg, void **queue);
    void (*close)(void *queue); /* all marks are reached, or the device has failed */
    /* From here on the device may read and write this host memory. NULL: it always may. */
    kolo_status_t (*pin)(void *queue, void *host, size_t bytes);
    void (*unpin)(void *queue, void *host);
    /* Of an event that the program has made: KOLO_OK, KOLO_IN_PROGRESS, or why it will never pass. Any thread. */
    kolo_status_t (*passed)(void *queue, void *event);
    /* Queued behind what was queued before. The list stays until the next mark is reached. */
    kolo_status_t (*lift)(void *queue, const kolo_lift_t *list, size_t n);
    /* Sets the sums of each part to its products, by way of `room` (kolo_blend_room()). NULL: nothing is blended
     * here. */
    kolo_status_t (*products)(void *queue, const kolo_blend_t *list, size_t n, kolo_type_t type, double *room);
    /* Sets each part to (1 - ab / 2aa) a + (1 - ab / 2bb) b. */
    kolo_status_t (*blend)(void *queue, const kolo_blend_t *list, size_t n, kolo_type_t type);
    kolo_status_t (*fetch)(void *queue, void *host, const void *memory, size_t bytes);
    kolo_status_t (*store)(void *queue, void *memory, const void *host, size_t bytes);
    kolo_status_t (*mark)(void *queue, uint64_t *mark);
    /* KOLO_OK: all before the mark is done. KOLO_IN_PROGRESS. Else why it never will be. Any thread. */
    kolo_status_t (*reached)(void *queue, uint64_t mark);

    /* Of devices with streams and events that know of each other; `stream` NULL: it has none, and the rest is NULL,
     * too. What the queue works on, as the program's own streams are. */
    void *(*stream)(void *queue);
    /* What is queued from here on comes after the event; whoever waits is the device. */
    kolo_status_t (*wait)(void *queue, void *event);
    /* An event behind all that stands in the program's stream now. Any thread. It goes back by wait_note(), or, if
     * nobody waits for it, by drop_note(). */
    kolo_status_t (*note)(void *queue, void *stream, kolo_queue_note_t *note);
    kolo_status_t (*wait_note)(void *queue, void *event);
    void (*drop_note)(void *queue, void *event);
    /* The event of a mark; after so many more marks it may be a later one's. */
    void *(*event_of)(void *queue, uint64_t mark);
    /* What the program queues into its stream from here on comes after the mark. */
    kolo_status_t (*lead)(void *queue, uint64_t mark, void *stream);
    /* A mark whose time can be asked for, once it is reached, as kolo_now_ns() counts. */
    kolo_status_t (*stamp)(void *queue, uint64_t *stamp);
    kolo_status_t (*time_of)(void *queue, uint64_t stamp, uint64_t *ns);
} kolo_mem_queue_ops_t;

#endif
