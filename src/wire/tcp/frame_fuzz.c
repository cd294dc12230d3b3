/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer target: any bytes in pieces of any length through one socket's stream, with a reader that now and then
 * releases slots, names addresses and changes its mind; as the only stream, or as one of several (mixed). The first
 * input bytes choose how.
 */
#include "wire/queue.h"
#include "wire/tcp/frame.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    uint32_t slot_bytes = data[0] & 1 ? 65536 : 256, piece = data[1] * 7 + 1u, habit = data[2];
    uint64_t start = data[3] & 1 ? UINT64_MAX - 2 : 0;
    data += 4;
    size -= 4;
    size_t stride = sizeof(kolo_slot_header_t) + slot_bytes;
    char *slots = aligned_alloc(KOLO_CACHE_LINE, DEPTH * stride), *user = malloc(slot_bytes);
    kolo_tcp_stream_t *s = calloc(1, sizeof *s);
    kolo_head_line_t head;
    memset(&head, 0, sizeof head);
    atomic_init(&head.consumed, start);
    const kolo_conn_spec_t spec = {.depth = DEPTH, .slot_bytes = slot_bytes, .start = start};
    kolo_rx_t rx = kolo_queue_rx(&spec, NULL);
    rx.end.slots = slots;
    rx.end.head = &head;
    bool mixed = habit & 16;
    kolo_tcp_sink_t sink = {.rx = &rx, .mixed = mixed, .arrived = start};
    if (!slots || !user || !s) abort();
    for (uint32_t i = 0; i < DEPTH; i++) ((kolo_slot_header_t *)(void *)(slots + i * stride))->seq = start - 1;
    *s = (kolo_tcp_stream_t){.sink = &sink, .slot = start, .step = 1};
    while (size > 0 && kolo_tcp_stream_parse(s) == KOLO_OK) {
        struct iovec iov[2];
        int n = kolo_tcp_stream_want(s, iov);
        size_t took = 0;
        for (int i = 0; i < n && size > 0 && took < piece; i++) {
            size_t k = KOLO_MIN(KOLO_MIN(iov[i].iov_len, size), piece - took);
            memcpy(iov[i].iov_base, data, k);
            data += k;
            size -= k;
            took += k;
            if (k < iov[i].iov_len) break;
        }
        if (took > 0 && kolo_tcp_stream_got(s, took) != KOLO_OK) break;
        if (habit & 1 && !kolo_rx_ready(&rx) && !sink.expect) {
            kolo_tcp_stream_expect(s, user, habit & 2 ? 200 : 9000);
            sink.expect = user;
            sink.expect_bytes = sink.awaited = habit & 2 ? 200 : 9000;
            sink.patient = true;
        } else if (habit & 4 && sink.expect) {
            kolo_tcp_stream_unexpect(s);
            sink.expect = NULL;
        }
        bool stuck = took == 0;
        while (kolo_rx_ready(&rx) && (stuck || habit & 8)) {
            const kolo_slot_header_t *h = kolo_rx_header(&rx);
            if (h->bytes > slot_bytes || (rx.direct && rx.direct != user)) abort();
            volatile char last = h->bytes ? ((const char *)kolo_rx_payload(&rx))[h->bytes - 1] : 0;
            (void)last;
            kolo_rx_release(&rx);
            stuck = false;
        }
        if (stuck && mixed) break; /* other streams might bring what is missing */
        if (stuck) abort();        /* nothing to read, nothing to receive: it would wait for ever */
    }
    free(slots);
    free(user);
    free(s);
    return 0;
}
