/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency protocol for small messages (after NCCL's LL128, on the CPU): a slot is a header line and then lines
 * of 64 bytes: 56 of data, then 4 of signature and 4 of sequence number in one word. A line is written data first,
 * the word last, so that one cache line transfer brings data and arrival together and no flag is waited for
 * separately. The header line holds the full signature; a reader looks at it only to explain a mismatch.
 */
#ifndef KOLO_WIRE_LL_H
#define KOLO_WIRE_LL_H

#include "wire/wire.h"

#include <string.h>

#define KOLO_LL_DATA  56
#define KOLO_LL_GROUP 8 /* a power of two; lines that a reader takes together; see kolo_ll_get */

typedef struct {
    _Alignas(64) uint8_t data[KOLO_LL_DATA];
    _Atomic uint64_t mark; /* kolo_ll_mark() */
} kolo_ll_line_t;
_Static_assert(sizeof(kolo_ll_line_t) == 64, "one cache line");

/* Returns the lines for `bytes` of data; at least one, so that empty messages arrive too. */
static inline size_t kolo_ll_lines(size_t bytes)
{
    return bytes ? KOLO_DIV_UP(bytes, KOLO_LL_DATA) : 1;
}
/* A message with a part for each reader: as many whole short parts to a line as fit (none straddles two, so a
 * reader waits for one line), a longer part on lines of its own. Parts are of equal length, 0 too. */
typedef struct {
    uint32_t fit;         /* parts that share a line */
    uint32_t first, each; /* the line of the first ones; from there to the next ones */
} kolo_ll_layout_t;
/* Parts on lines of their own begin at even addresses of 128 bytes, behind the header, if the slot has room
 * for that: processors fetch lines in pairs, and would take a line of another reader along while it is being
 * written. */
static inline kolo_ll_layout_t kolo_ll_layout(size_t bytes, uint32_t parts, uint32_t slot_bytes)
{
    uint32_t lines = (uint32_t)kolo_ll_lines(bytes), pairs = lines + lines % 2;
    uint32_t fit = bytes == 0 ? parts : bytes * 2 > KOLO_LL_DATA ? 1 : KOLO_LL_DATA / (uint32_t)bytes;
    if (fit > 1 || (1 + (uint64_t)parts * pairs) * sizeof(kolo_ll_line_t) > slot_bytes)
        return (kolo_ll_layout_t){fit, 0, lines};
    return (kolo_ll_layout_t){fit, 1, pairs};
}
/* Returns the first line of part `i`. */
static inline size_t kolo_ll_part_line(const kolo_ll_layout_t *l, uint32_t i)
{
    return l->first + (size_t)(i / l->fit) * l->each;
}
/* Returns the most data bytes of a slot with this payload size. */
static inline size_t kolo_ll_capacity(size_t slot_bytes)
{
    return slot_bytes / 64 * KOLO_LL_DATA;
}
static inline uint32_t kolo_ll_signature(uint64_t signature, uint64_t operation)
{
    uint64_t h = (signature ^ operation * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    return (uint32_t)(h >> 32);
}

/* Returns the last word of a line: the number of the slot plus one modulo 2^32, and above it the signature. */
static inline uint64_t kolo_ll_mark(uint64_t seq, uint32_t signature)
{
    return (uint32_t)seq | (uint64_t)signature << 32;
}

/* Writes `bytes` into lines first_line.. of slot tx->end.next (tx ready, capacity checked by the caller). Several
 * puts may fill one slot at different lines; kolo_ll_post() ends the slot. */
static inline void kolo_ll_put(kolo_tx_t *tx, size_t first_line, const void *data, size_t bytes, uint32_t signature)
{
    kolo_ll_line_t *line = (kolo_ll_line_t *)kolo_tx_payload(tx) + first_line;
    const uint8_t *from = (const uint8_t *)data;
    const uint64_t mark = kolo_ll_mark(tx->end.next + 1, signature);
    for (;;) {
        size_t n = bytes < KOLO_LL_DATA ? bytes : KOLO_LL_DATA;
        if (KOLO_LIKELY(n == KOLO_LL_DATA))
            memcpy(line->data, from, KOLO_LL_DATA);
        else if (n)
            memcpy(line->data, from, n);
        atomic_store_explicit(&line->mark, mark, memory_order_release);
        if (bytes <= KOLO_LL_DATA) return;
        bytes -= n;
        from += n;
        line++;
    }
}
/* A line keeps the number of the last message that was long enough to use it. 2^32 messages later that number would
 * look like an arrival, so each slot is swept once in KOLO_LL_SWEEP messages (new queues: kolo_queue_prepare). */
#define KOLO_LL_SWEEP (1ull << 31)
static inline void kolo_ll_sweep(void *payload, size_t slot_bytes, uint64_t seq)
{
    kolo_ll_line_t *line = (kolo_ll_line_t *)payload;
    for (size_t i = 0; i < slot_bytes / sizeof(*line); i++)
        atomic_store_explicit(&line[i].mark, kolo_ll_mark(seq, 0), memory_order_relaxed);
}
/* Leaves the full signature for whoever finds a mismatch; before the first put of a slot. */
static inline void kolo_ll_begin(kolo_tx_t *tx, uint64_t signature, uint64_t operation)
{
    kolo_slot_header_t *h = kolo_tx_header(tx);
    uint64_t age = tx->end.next - tx->spec.start;
    if (KOLO_UNLIKELY((age & (KOLO_LL_SWEEP - 1)) < tx->end.depth && age >= KOLO_LL_SWEEP))
        kolo_ll_sweep(h + 1, tx->end.slot_bytes, tx->end.next + 1 - tx->end.depth);
    h->signature = signature;
    h->operation = operation;
    atomic_store_explicit(&h->seq, tx->end.next + 1, memory_order_release);
}
static inline void kolo_ll_post(kolo_tx_t *tx)
{
    tx->end.next++;
    kolo_tx_ring(tx);
}

static inline const kolo_ll_line_t *kolo_ll_rx_line(const kolo_rx_t *rx, size_t line)
{
    return (const kolo_ll_line_t *)(const void *)(kolo_rx_header(rx) + 1) + line;
}
static inline bool kolo_ll_line_has(const kolo_ll_line_t *line, uint32_t seq)
{
    return (uint32_t)atomic_load_explicit(&line->mark, memory_order_acquire) == seq;
}
/* Returns the signature of a line that has arrived. */
static inline uint32_t kolo_ll_line_signature(const kolo_ll_line_t *line)
{
    return (uint32_t)(atomic_load_explicit(&line->mark, memory_order_relaxed) >> 32);
}
static inline bool kolo_ll_arrived(const kolo_rx_t *rx, size_t line)
{
    return kolo_ll_line_has(kolo_ll_rx_line(rx, line), (uint32_t)(rx->end.next + 1));
}
/* Gives slot `next` back to the writer, as kolo_rx_release(), but while more has arrived tells it of a quarter of
 * the queue at once: a writer that is ahead asks again and again, and each word to it takes the line from it. A
 * reader that has caught up has told everything. For rows of messages; nobody may wait for such a queue to be
 * released. */
static inline void kolo_ll_release(kolo_rx_t *rx)
{
    uint64_t quarter = KOLO_MAX(rx->end.depth / 4, 1);
    rx->end.next++;
    if ((rx->end.next & (quarter - 1)) != 0 && kolo_ll_arrived(rx, 0)) return;
    atomic_store_explicit(&rx->end.head->consumed, rx->end.next, memory_order_release);
    if (rx->bell.asleep) kolo_doorbell_ring(rx->bell.asleep, rx->bell.event_fd);
}

/* Copies what has arrived of `bytes` data bytes that start at first_line, from offset `done` (a multiple of
 * KOLO_LL_DATA) on; returns the new `done` (== bytes: complete; an empty message is complete when its line is
 * there: the caller asks kolo_ll_arrived). A wrong signature sets *mismatch and stops.
 *
 * A reader on the writer's heels takes every line away while it is being written, and each then travels twice; so
 * lines are read in groups whose last line is there (4 KB between two ranks: 0.9 to 1.5 us instead of 0.9 to 2.4).
 * Each line is asked all the same: that the last one is seen says nothing of the others on every
 * processor. */
static inline size_t kolo_ll_get(const kolo_rx_t *rx, size_t first_line, void *dst, size_t bytes, size_t done,
                                 uint32_t signature, bool *mismatch)
{
    const kolo_ll_line_t *lines = kolo_ll_rx_line(rx, first_line);
    uint8_t *to = (uint8_t *)dst;
    uint32_t seq = (uint32_t)(rx->end.next + 1);
    const uint64_t mark = kolo_ll_mark(seq, signature);
    size_t line = done / KOLO_LL_DATA, last = (bytes - 1) / KOLO_LL_DATA;
    while (done < bytes) {
        size_t end = KOLO_MIN(line | (KOLO_LL_GROUP - 1), last);
        if (!kolo_ll_line_has(&lines[line], seq) || !kolo_ll_line_has(&lines[end], seq)) return done;
        for (; line <= end; line++) {
            const kolo_ll_line_t *l = &lines[line];
            uint64_t found = atomic_load_explicit(&l->mark, memory_order_acquire);
            if (KOLO_UNLIKELY(found != mark)) {
                *mismatch = (uint32_t)found == seq;
                return done;
            }
            size_t n = KOLO_MIN(bytes - done, (size_t)KOLO_LL_DATA);
            if (KOLO_LIKELY(n == KOLO_LL_DATA))
                memcpy(to + done, l->data, KOLO_LL_DATA);
            else
                memcpy(to + done, l->data, n);
            done += n;
        }
    }
    return done;
}

#endif
