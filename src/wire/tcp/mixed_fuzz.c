/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer target: two streams of one reader (mixed), each with frames for any slots, whole or in pieces, in turn
 * with a reader that takes slots, names addresses and takes them back. The input is a list of steps, so that most
 * inputs have frames that make sense. Whatever comes, no two streams fill one slot, nothing is written to where the
 * reader does not expect it any more, and what is read is what was sent for that slot.
 */
#include "wire/queue.h"
#include "wire/tcp/frame.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH      4u
#define SLOT_BYTES 12288u
#define PENDING    32768u

typedef struct {
    kolo_tcp_stream_t stream;
    uint8_t sent[PENDING]; /* and not received */
    size_t from, to;
} side_t;

typedef struct {
    kolo_rx_t rx;
    kolo_tcp_sink_t sink;
    kolo_head_line_t head;
    side_t side[2];
    char user[SLOT_BYTES];
} reader_t;

static char content(uint64_t slot)
{
    return (char)(slot * 31 + 7);
}

/* Frames up to 256 bytes, or large ones, which go where they belong. */
static void send_frame(side_t *side, uint64_t slot, uint8_t size)
{
    uint32_t bytes = size < 240 ? size : KOLO_TCP_LARGE_BYTES + (size - 240u) * 256u;
    if (side->to + KOLO_TCP_FRAME_BYTES + bytes > PENDING) return;
    const kolo_tcp_frame_t frame = {.magic = KOLO_TCP_FRAME_MAGIC, .bytes = bytes, .slot = slot};
    kolo_tcp_frame_encode(side->sent + side->to, &frame);
    memset(side->sent + side->to + KOLO_TCP_FRAME_BYTES, content(slot), bytes);
    side->to += KOLO_TCP_FRAME_BYTES + bytes;
}

static bool receive(side_t *side, size_t most)
{
    struct iovec iov[2];
    if (kolo_tcp_stream_parse(&side->stream) != KOLO_OK) return false;
    int n = kolo_tcp_stream_want(&side->stream, iov);
    size_t took = 0, there = KOLO_MIN(side->to - side->from, most);
    for (int i = 0; i < n && took < there; i++) {
        size_t k = KOLO_MIN(iov[i].iov_len, there - took);
        memcpy(iov[i].iov_base, side->sent + side->from + took, k);
        took += k;
    }
    side->from += took;
    return took == 0 || kolo_tcp_stream_got(&side->stream, took) == KOLO_OK;
}

static void take_slot(reader_t *r)
{
    if (!kolo_rx_ready(&r->rx)) return;
    const kolo_slot_header_t *h = kolo_rx_header(&r->rx);
    const char *payload = kolo_rx_payload(&r->rx);
    for (uint32_t i = 0; i < h->bytes; i++)
        if (payload[i] != content(r->rx.end.next)) abort();
    memset(r->user, 0, sizeof r->user);
    kolo_rx_release(&r->rx);
}

static void expect(reader_t *r, uint32_t bytes)
{
    if (kolo_rx_ready(&r->rx) || r->sink.expect) return;
    for (int i = 0; i < 2; i++) kolo_tcp_stream_expect(&r->side[i].stream, r->user, bytes);
    r->sink.expect = r->user;
    r->sink.expect_bytes = r->sink.awaited = bytes;
    r->sink.patient = true;
}

static void unexpect(reader_t *r)
{
    if (r->rx.direct) { /* as the wire does it: it has come, and goes to the slot */
        kolo_slot_header_t *h = kolo_rx_header(&r->rx);
        memcpy(h + 1, r->rx.direct, h->bytes);
        r->rx.direct = NULL;
        return;
    }
    for (int i = 0; i < 2; i++) kolo_tcp_stream_unexpect(&r->side[i].stream);
    r->sink.expect = NULL;
}

static void check(const reader_t *r)
{
    const kolo_tcp_stream_t *a = &r->side[0].stream, *b = &r->side[1].stream;
    if (a->in_payload && b->in_payload && a->slot == b->slot) abort();
    for (int i = 0; i < 2; i++) {
        const kolo_tcp_stream_t *s = &r->side[i].stream;
        if (s->in_payload && s->to == r->user && (r->sink.expect != r->user || s->slot != r->rx.end.next)) abort();
    }
}

static bool step(reader_t *r, const uint8_t in[3], uint64_t start)
{
    side_t *side = &r->side[in[0] & 1];
    switch (in[0] >> 1 & 7) {
    case 0:
    case 1:
        send_frame(side, start + (in[1] & 15), in[2]);
        return true;
    case 2:
    case 3:
    case 4:
        return receive(side, in[1] < 200 ? in[1] : in[1] * 97u);
    case 5:
        expect(r, in[1] < 240 ? in[1] : KOLO_TCP_LARGE_BYTES + (in[1] - 240u) * 256u);
        return true;
    case 6:
        unexpect(r);
        return true;
    default:
        take_slot(r);
        return true;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    uint64_t start = data[0] & 1 ? UINT64_MAX - 2 : 0;
    size_t stride = sizeof(kolo_slot_header_t) + SLOT_BYTES;
    char *slots = aligned_alloc(KOLO_CACHE_LINE, DEPTH * stride);
    reader_t *r = aligned_alloc(KOLO_CACHE_LINE, KOLO_ROUND_UP(sizeof *r, KOLO_CACHE_LINE));
    const kolo_conn_spec_t spec = {.depth = DEPTH, .slot_bytes = SLOT_BYTES, .start = start};
    if (!slots || !r) abort();
    memset(&r->head, 0, sizeof r->head);
    atomic_init(&r->head.consumed, start);
    r->rx = kolo_queue_rx(&spec, NULL);
    r->rx.end.slots = slots;
    r->rx.end.head = &r->head;
    r->sink = (kolo_tcp_sink_t){.rx = &r->rx, .mixed = true, .arrived = start};
    for (uint32_t i = 0; i < DEPTH; i++) ((kolo_slot_header_t *)(void *)(slots + i * stride))->seq = start - 1;
    for (int i = 0; i < 2; i++) {
        r->side[i].stream = (kolo_tcp_stream_t){.sink = &r->sink, .slot = start, .step = 1};
        r->side[i].from = r->side[i].to = 0;
    }
    for (size_t i = 1; i + 3 <= size && step(r, data + i, start); i += 3) check(r);
    free(slots);
    free(r);
    return 0;
}
