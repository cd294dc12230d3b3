/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of the tcp wire taken apart: every byte here comes from outside. See frame.h.
 */
#include "wire/tcp/frame.h"

#include <endian.h>
#include <string.h>

void kolo_tcp_frame_encode(uint8_t out[KOLO_TCP_FRAME_BYTES], const kolo_tcp_frame_t *frame)
{
    uint16_t half[2] = {htole16(frame->magic), htole16(frame->flags)};
    uint32_t bytes = htole32(frame->bytes);
    uint64_t words[3] = {htole64(frame->slot), htole64(frame->signature), htole64(frame->operation)};
    memcpy(out, half, 4);
    memcpy(out + 4, &bytes, 4);
    memcpy(out + 8, words, 24);
}

void kolo_tcp_frame_decode(kolo_tcp_frame_t *frame, const uint8_t in[KOLO_TCP_FRAME_BYTES])
{
    uint16_t half[2];
    uint32_t bytes;
    uint64_t words[3];
    memcpy(half, in, 4);
    memcpy(&bytes, in + 4, 4);
    memcpy(words, in + 8, 24);
    *frame = (kolo_tcp_frame_t){.magic = le16toh(half[0]),
                                .flags = le16toh(half[1]),
                                .bytes = le32toh(bytes),
                                .slot = le64toh(words[0]),
                                .signature = le64toh(words[1]),
                                .operation = le64toh(words[2])};
}

/* A slot's seq while its payload comes by one of several streams: no other may bring it as well. */
#define BEGUN(slot) ((slot) + (UINT64_C(1) << 63))

static kolo_slot_header_t *slot_header(const kolo_rx_t *rx, uint64_t slot)
{
    return (kolo_slot_header_t *)(void *)(rx->end.slots + (slot & rx->end.mask) * rx->end.stride);
}

static uint64_t consumed(const kolo_rx_t *rx)
{
    return atomic_load_explicit(&rx->end.head->consumed, memory_order_acquire);
}

static bool slot_free(const kolo_tcp_stream_t *s, uint64_t slot)
{
    if (!s->sink) return true;
    const kolo_rx_t *rx = s->sink->rx;
    return (int64_t)(consumed(rx) + rx->end.depth - slot) > 0;
}

/* Tells whether a patient reader will name an address for this payload once it gets to the slot. */
static bool held(const kolo_tcp_stream_t *s)
{
    return s->in_payload && s->sink->patient && s->done == 0 && s->frame.bytes >= KOLO_TCP_LARGE_BYTES &&
           s->slot != consumed(s->sink->rx);
}

static kolo_status_t check_frame(const kolo_tcp_stream_t *s, const kolo_tcp_frame_t *f)
{
    const kolo_tcp_sink_t *sink = s->sink;
    bool bye = f->flags & KOLO_TCP_FRAME_BYE;
    if (f->magic != KOLO_TCP_FRAME_MAGIC || (f->flags & ~KOLO_TCP_FRAME_BYE) != 0 || (!sink && !bye))
        return kolo_fail(KOLO_ERR_PROTOCOL, "no %s where slot %llu was awaited (magic %04x, flags %04x)",
                         sink ? "frame" : "farewell", (unsigned long long)s->slot, f->magic, f->flags);
    if (f->bytes > (bye ? 0 : sink->rx->end.slot_bytes))
        return kolo_fail(KOLO_ERR_PROTOCOL, "a frame of %u bytes for slot %llu, which holds %u", f->bytes,
                         (unsigned long long)f->slot, bye ? 0 : sink->rx->end.slot_bytes);
    if (s->back && bye) return KOLO_OK;
    /* a farewell carries the number after the last slot of all streams */
    int64_t ahead = (int64_t)(f->slot - s->slot), least = bye && !sink->mixed ? 1 - (int64_t)s->step : 0;
    if (bye || sink->mixed ? ahead < least : ahead != 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "a frame for slot %llu where slot %llu was awaited",
                         (unsigned long long)f->slot, (unsigned long long)s->slot);
    return KOLO_OK;
}

/* Tells, for mixed streams, whether the frame's slot may be filled now. */
static kolo_status_t place_mixed(kolo_tcp_stream_t *s, const kolo_tcp_frame_t *f, bool *now)
{
    const kolo_rx_t *rx = s->sink->rx;
    s->slot = f->slot; /* nothing before it comes on this stream */
    *now = slot_free(s, f->slot);
    if (!*now) return KOLO_OK;
    uint64_t seq = atomic_load_explicit(&slot_header(rx, f->slot)->seq, memory_order_relaxed);
    if ((int64_t)(f->slot - consumed(rx)) >= 0 && seq != f->slot + 1 && seq != BEGUN(f->slot)) return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "a second frame for slot %llu", (unsigned long long)f->slot);
}

static void begin_farewell(kolo_tcp_stream_t *s, const kolo_tcp_frame_t *f)
{
    s->bye = true;
    if (s->sink && !s->back) s->sink->final = f->slot;
}

/* Sets *now to false when the frame must wait for its slot. */
static kolo_status_t begin_frame(kolo_tcp_stream_t *s, const kolo_tcp_frame_t *f, bool *now)
{
    kolo_tcp_sink_t *sink = s->sink;
    *now = true;
    KOLO_TRY(check_frame(s, f));
    if (f->flags & KOLO_TCP_FRAME_BYE) {
        begin_farewell(s, f);
        return KOLO_OK;
    }
    if (sink->mixed) {
        KOLO_TRY(place_mixed(s, f, now));
        if (!*now) return KOLO_OK;
    }
    s->frame = *f;
    s->slot = f->slot;
    s->in_payload = true;
    s->done = 0;
    s->large = f->bytes >= KOLO_TCP_LARGE_BYTES;
    s->to = (char *)(slot_header(sink->rx, s->slot) + 1);
    if (sink->expect && s->slot == consumed(sink->rx) && f->bytes == sink->expect_bytes) s->to = sink->expect;
    return KOLO_OK;
}

/* Notes, for mixed streams, that the rest of the payload comes later. */
static void note_begun(const kolo_tcp_stream_t *s)
{
    if (s->sink->mixed)
        atomic_store_explicit(&slot_header(s->sink->rx, s->slot)->seq, BEGUN(s->slot), memory_order_relaxed);
}

static void end_frame(kolo_tcp_stream_t *s)
{
    kolo_tcp_sink_t *sink = s->sink;
    kolo_slot_header_t *h = slot_header(sink->rx, s->slot);
    if (s->slot == consumed(sink->rx)) {
        bool direct = sink->expect && s->to == sink->expect;
        sink->rx->direct = direct ? sink->expect : NULL;
        if (!sink->expect) sink->patient = false;
        sink->expect = NULL;
        sink->awaited = 0;
    }
    h->bytes = s->frame.bytes;
    h->flags = 0;
    h->signature = s->frame.signature;
    h->operation = s->frame.operation;
    atomic_store_explicit(&h->seq, s->slot + 1, memory_order_release);
    s->in_payload = false;
    s->slot += sink->mixed ? 1 : s->step;
    sink->arrived++;
}

kolo_status_t kolo_tcp_stream_parse(kolo_tcp_stream_t *s)
{
    for (;;) {
        uint32_t there = s->end - s->begin;
        if (!s->in_payload) {
            kolo_tcp_frame_t frame;
            bool now;
            if (there == 0 && !s->bye) return KOLO_OK;
            if (s->bye && there > 0) return kolo_fail(KOLO_ERR_PROTOCOL, "%u bytes after the last frame", there);
            if (there < KOLO_TCP_FRAME_BYTES || !slot_free(s, s->slot)) return KOLO_OK;
            kolo_tcp_frame_decode(&frame, (const uint8_t *)s->buffer + s->begin);
            KOLO_TRY(begin_frame(s, &frame, &now));
            if (!now) return KOLO_OK;
            s->begin += KOLO_TCP_FRAME_BYTES;
            continue;
        }
        if (held(s)) {
            note_begun(s);
            return KOLO_OK;
        }
        uint32_t n = KOLO_MIN(there, s->frame.bytes - s->done);
        if (n > 0) memcpy(s->to + s->done, s->buffer + s->begin, n);
        s->begin += n;
        s->done += n;
        if (s->done < s->frame.bytes) {
            note_begun(s);
            return KOLO_OK;
        }
        end_frame(s);
    }
}

int kolo_tcp_stream_want(kolo_tcp_stream_t *s, struct iovec iov[2])
{
    int n = 0;
    uint32_t tail = KOLO_TCP_BUFFER_BYTES;
    if (held(s)) return 0;
    if (s->in_payload) {
        if (s->begin != s->end) return 0; /* no longer held: parse first */
        /* After a large payload another one is likely: of that, take the header only, so that its payload needs no
         * copy. */
        iov[n++] = (struct iovec){s->to + s->done, s->frame.bytes - s->done};
        s->begin = s->end = 0;
        if (s->large) tail = KOLO_TCP_FRAME_BYTES;
    } else {
        if (s->end - s->begin >= KOLO_TCP_FRAME_BYTES || (!s->bye && !slot_free(s, s->slot))) return 0;
        if (s->begin > 0) memmove(s->buffer, s->buffer + s->begin, s->end - s->begin);
        s->end -= s->begin;
        s->begin = 0;
        bool header_only = s->large || !s->sink || s->sink->awaited >= KOLO_TCP_LARGE_BYTES;
        if (header_only && s->end < KOLO_TCP_FRAME_BYTES) tail = KOLO_TCP_FRAME_BYTES;
    }
    iov[n++] = (struct iovec){s->buffer + s->end, tail - s->end};
    return n;
}

kolo_status_t kolo_tcp_stream_got(kolo_tcp_stream_t *s, size_t bytes)
{
    if (s->in_payload) {
        uint32_t n = (uint32_t)KOLO_MIN(bytes, (size_t)(s->frame.bytes - s->done));
        s->done += n;
        bytes -= n;
    }
    s->end += (uint32_t)bytes;
    return kolo_tcp_stream_parse(s);
}

bool kolo_tcp_stream_idle(const kolo_tcp_stream_t *s)
{
    return !s->in_payload && s->begin == s->end;
}

/* Moves a payload that is on its way from one place to another. */
static void redirect(kolo_tcp_stream_t *s, char *to)
{
    if (s->done > 0) memcpy(to, s->to, s->done);
    s->to = to;
}

void kolo_tcp_stream_expect(kolo_tcp_stream_t *s, void *data, uint32_t bytes)
{
    if (s->in_payload && s->slot == s->sink->rx->end.next && s->frame.bytes == bytes && s->to != data)
        redirect(s, data);
}

void kolo_tcp_stream_unexpect(kolo_tcp_stream_t *s)
{
    kolo_rx_t *rx = s->sink->rx;
    if (s->in_payload && s->slot == rx->end.next && s->to == s->sink->expect)
        redirect(s, (char *)(slot_header(rx, s->slot) + 1));
}
