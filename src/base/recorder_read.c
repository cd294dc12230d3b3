/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a flight recorder: memory of another process that may be writing it, or a file from another host. Sizes
 * are checked before anything is followed, enumerations and strings before they are handed out.
 */
#include "base/recorder.h"

#include "base/clock.h"
#include "base/text/plain.h"

#include <string.h>

const char *kolo_recorder_check(const void *bytes, size_t size, kolo_recorder_info_t *info)
{
    kolo_recorder_info_t h;
    if (size < sizeof(kolo_recorder_t)) return "too short for a record";
    memcpy(&h, bytes, sizeof h);
    if (h.magic != KOLO_RECORDER_MAGIC) return "not a record of Kolo";
    if (h.version != KOLO_RECORDER_VERSION) return "a record of another version of Kolo";
    if (h.slot_bytes != sizeof(kolo_record_t) || h.entry_bytes != sizeof(kolo_record_entry_t))
        return "a record of another layout";
    if (h.slots > KOLO_RECORDER_SLOTS || kolo_recorder_bytes(h.slots) > size) return "a record that was cut off";
    if (h.pid < 0) return "a record of an impossible process";
    *info = h;
    kolo_plain_copy(info->host, sizeof info->host, h.host, sizeof h.host);
    return NULL;
}

static kolo_record_waits_t bounded(const kolo_record_waits_t *from, int nranks)
{
    kolo_record_waits_t w = *from;
    if (w.count > KOLO_RECORD_WAITS) w.count = 0;
    for (uint32_t i = 0; i < w.count; i++)
        if (w.on[i].rank < 0 || w.on[i].rank >= nranks) w.count = 0;
    return w;
}

/* Copies the note as text that can be shown; leaves it empty if it was being written. */
static void read_note(const kolo_record_head_t *from, kolo_record_note_t *to)
{
    kolo_record_note_t note;
    uint32_t seq = atomic_load_explicit(&from->note_seq, memory_order_acquire);
    memcpy(&note, &from->note, sizeof note);
    atomic_thread_fence(memory_order_acquire);
    *to = (kolo_record_note_t){0};
    if (seq % 2 || atomic_load_explicit(&from->note_seq, memory_order_relaxed) != seq) return;
    to->since_ns = note.since_ns;
    to->blames = note.blames == 1;
    kolo_plain_copy(to->text, sizeof to->text, note.text, sizeof note.text);
    kolo_plain_copy(to->last, sizeof to->last, note.last, sizeof note.last);
}

static kolo_record_callback_t oldest_callback(const _Atomic uint64_t callbacks[KOLO_CALLBACKS])
{
    kolo_record_callback_t oldest = {0};
    for (int i = 0; i < KOLO_CALLBACKS; i++) {
        uint64_t since = atomic_load_explicit(&callbacks[i], memory_order_relaxed);
        if (since && (!oldest.since_ns || since < oldest.since_ns))
            oldest = (kolo_record_callback_t){since, (kolo_callback_t)i};
    }
    return oldest;
}

kolo_record_callback_t kolo_record_callback_read(const kolo_record_t *record)
{
    return oldest_callback(record->head.callbacks);
}

static const kolo_record_t *record_of(const void *bytes, uint32_t slot)
{
    return &((const kolo_recorder_t *)bytes)->records[slot];
}

bool kolo_recorder_view(const void *bytes, const kolo_recorder_info_t *info, uint32_t slot,
                        kolo_record_view_t *view)
{
    kolo_record_head_t h;
    if (slot >= info->slots) return false;
    const kolo_record_head_t *from = &record_of(bytes, slot)->head;
    if (atomic_load_explicit(&from->live, memory_order_acquire) != 1) return false;
    uint32_t seq = atomic_load_explicit(&from->seq, memory_order_acquire);
    if (seq == 0 || seq % 2) return false;
    memcpy(&h, from, sizeof h);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&from->seq, memory_order_relaxed) != seq) return false;
    if (h.nranks < 1 || h.rank < 0 || h.rank >= h.nranks || h.npeers > KOLO_RECORD_PEERS || h.status < 0 ||
        h.status > KOLO_ERR_REVOKED || h.npeers > (uint32_t)h.nranks)
        return false;
    *view = (kolo_record_view_t){.job = h.job,
                                 .rank = h.rank,
                                 .nranks = h.nranks,
                                 .status = (kolo_status_t)h.status,
                                 .since_ns = h.since_ns,
                                 .stopped = h.stopped == 1,
                                 .npeers = h.npeers};
    for (uint32_t i = 0; i < h.npeers; i++)
        view->peers[i] = (kolo_record_peer_t){h.peers[i].pid > 0 ? h.peers[i].pid : 0, h.peers[i].same_host != 0};
    view->waits = bounded(&h.waits, h.nranks);
    kolo_plain_copy(view->name, sizeof view->name, h.name, sizeof h.name);
    kolo_plain_copy(view->host, sizeof view->host, h.host, sizeof h.host);
    kolo_plain_copy(view->error, sizeof view->error, h.error, sizeof h.error);
    view->callback = oldest_callback(h.callbacks);
    read_note(from, &view->note);
    return true;
}

static uint64_t load64(const _Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

static uint32_t load32(const _Atomic uint32_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

static bool read_entry(const kolo_record_t *record, uint64_t index, kolo_record_op_t *op)
{
    const kolo_record_entry_t *e = &record->entries[index % KOLO_RECORD_ENTRIES];
    uint64_t seq = 2 * index + 2;
    if (atomic_load_explicit(&e->seq, memory_order_acquire) != seq) return false;
    uint32_t state = atomic_load_explicit(&e->state, memory_order_acquire), what = load32(&e->what);
    *op = (kolo_record_op_t){.index = index,
                             .number = load64(&e->number),
                             .word = load64(&e->word),
                             .count = load64(&e->count),
                             .begun_ns = load64(&e->begun_ns),
                             .ended_ns = load64(&e->ended_ns),
                             .root = load32(&e->root),
                             .queued_us = load32(&e->queued_us),
                             .elem = what >> 8 & 0xff,
                             .algo = what >> 16 & 0xff};
    atomic_thread_fence(memory_order_acquire);
    if (load64(&e->seq) != seq) return false;
    if ((what & 0xff) >= KOLO_RECORD_KINDS || (state & 0xff) == KOLO_RECORD_NONE ||
        (state & 0xff) > KOLO_RECORD_FAILED || state >> 8 > KOLO_ERR_REVOKED)
        return false;
    op->kind = (kolo_record_kind_t)(what & 0xff);
    op->state = (kolo_record_state_t)(state & 0xff);
    op->status = (kolo_status_t)(state >> 8);
    return true;
}

void kolo_record_waits_read(const kolo_record_t *record, kolo_record_waits_t *waits)
{
    const kolo_record_head_t *h = &record->head;
    uint32_t seq = atomic_load_explicit(&h->seq, memory_order_acquire);
    kolo_record_waits_t w;
    memcpy(&w, &h->waits, sizeof w);
    *waits = bounded(&w, h->nranks);
    atomic_thread_fence(memory_order_acquire);
    if (seq % 2 || atomic_load_explicit(&h->seq, memory_order_relaxed) != seq) waits->count = 0;
}

/* Sets how far an operation of a device is, by what the device waits for. */
static void settle(kolo_record_op_t *op, const kolo_record_waits_t *w)
{
    if (op->state != KOLO_RECORD_LAUNCHED || !w->count) return;
    if ((int64_t)(op->number - w->number) < 0) op->state = KOLO_RECORD_DONE;
    if (op->number != w->number || op->word != w->word) return;
    op->state = KOLO_RECORD_RUNNING;
    op->begun_ns = w->since_ns;
}

size_t kolo_record_ops(const kolo_record_t *record, kolo_record_op_t *ops, size_t most)
{
    uint64_t end = 0; /* one more than the newest index */
    kolo_record_waits_t waits;
    kolo_record_waits_read(record, &waits);
    for (uint64_t i = 0; i < KOLO_RECORD_ENTRIES; i++) {
        uint64_t seq = load64(&record->entries[i].seq), index = seq / 2 - 1;
        if (seq >= 2 && seq % 2 == 0 && index % KOLO_RECORD_ENTRIES == i && index + 1 > end) end = index + 1;
    }
    size_t n = 0, span = KOLO_MIN(most, (size_t)KOLO_RECORD_ENTRIES);
    for (uint64_t index = end > span ? end - span : 0; index < end; index++) {
        if (!read_entry(record, index, &ops[n])) continue;
        settle(&ops[n++], &waits);
    }
    return n;
}

size_t kolo_recorder_ops(const void *bytes, const kolo_recorder_info_t *info, uint32_t slot, kolo_record_op_t *ops,
                         size_t most)
{
    return slot < info->slots ? kolo_record_ops(record_of(bytes, slot), ops, most) : 0;
}

void kolo_record_note_read(const kolo_record_t *record, kolo_record_note_t *note)
{
    read_note(&record->head, note);
}

bool kolo_recorder_copy(const void *bytes, const kolo_recorder_info_t *info, uint32_t slot, kolo_record_t *to)
{
    kolo_record_view_t view;
    if (slot >= info->slots) return false;
    const kolo_record_t *from = record_of(bytes, slot);
    uint32_t seq = atomic_load_explicit(&from->head.seq, memory_order_acquire);
    memcpy(to, from, sizeof *to);
    atomic_thread_fence(memory_order_acquire);
    if (seq % 2 || atomic_load_explicit(&from->head.seq, memory_order_relaxed) != seq) return false;
    for (uint32_t i = 0; i < KOLO_RECORD_ENTRIES; i++)
        if (load64(&from->entries[i].seq) != load64(&to->entries[i].seq))
            memset(&to->entries[i], 0, sizeof to->entries[i]);
    return kolo_recorder_view(bytes, info, slot, &view);
}
