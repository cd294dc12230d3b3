/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots as a byte stream. A frame is a fixed 32-byte little-endian header and the slot's payload:
 *
 *     u16 magic   u16 flags   u32 payload bytes   u64 slot number   u64 signature   u64 operation
 *
 * A kolo_tcp_stream_t takes the frames of one socket apart. It makes no system call: it says where the next bytes
 * should be received (want) and is told how many came (got), so that the fuzzer and the sockets run the same code.
 * Small frames come many at a time through a bounded buffer; the rest of a large payload goes straight to its slot,
 * or to the address that the reader expects it at. A frame whose slot is not free is not read: the bytes wait in
 * the kernel and TCP's own flow control holds the writer back.
 */
#ifndef KOLO_WIRE_TCP_FRAME_H
#define KOLO_WIRE_TCP_FRAME_H

#include "wire/wire.h"

#include <sys/uio.h>

#define KOLO_TCP_FRAME_BYTES  32u
#define KOLO_TCP_FRAME_MAGIC  0x4f4bu /* "KO" */
#define KOLO_TCP_FRAME_BYE    1u      /* flag: the sender closes in good order, no frame follows */
#define KOLO_TCP_BUFFER_BYTES 16384u  /* what one recv() of small frames may take */
#define KOLO_TCP_LARGE_BYTES  8192u   /* payloads from here on are received where they belong, not in the buffer */

typedef struct {
    uint16_t magic, flags;
    uint32_t bytes;
    uint64_t slot, signature, operation;
} kolo_tcp_frame_t;

void kolo_tcp_frame_encode(uint8_t out[KOLO_TCP_FRAME_BYTES], const kolo_tcp_frame_t *frame);
void kolo_tcp_frame_decode(kolo_tcp_frame_t *frame, const uint8_t in[KOLO_TCP_FRAME_BYTES]);

/* What the sockets of one connection share: the reader's queue and the address it expects the next payload at. */
typedef struct {
    kolo_rx_t *rx;
    void *expect; /* for slot rx->end.next; NULL: none */
    uint32_t expect_bytes;
    uint32_t awaited; /* payload bytes of slot rx->end.next as the reader knows them; 0: it has not told */
    bool patient;     /* the reader has used rx_expect: large payloads stay in the kernel until their slot is due */
    bool mixed;       /* has or had a carrier: any slot may come on any stream */
    uint64_t arrived; /* slots filled, counted from the first slot's number */
    uint64_t final;   /* number after the last slot, as the farewell tells */
} kolo_tcp_sink_t;

typedef struct {
    kolo_tcp_sink_t *sink; /* NULL: only a farewell may come */
    uint64_t slot;         /* of the current frame; that the next one must carry (mixed: at least) */
    uint64_t step;         /* to the next slot on this socket: sockets of the connection */
    bool back;             /* from the reader of the socket's connection: the farewell is the reader's */
    bool in_payload, large, bye;
    kolo_tcp_frame_t frame; /* while in_payload */
    char *to;               /* where its payload goes */
    uint32_t done;          /* payload bytes already there */
    uint32_t begin, end;    /* bytes received but not yet taken apart: buffer[begin..end) */
    char buffer[KOLO_TCP_BUFFER_BYTES];
} kolo_tcp_stream_t;

/* Takes apart what is in the buffer, as far as slots are free. */
kolo_status_t kolo_tcp_stream_parse(kolo_tcp_stream_t *stream);
/* Says where to receive next: fills iov[0..return value); 0 = nothing may be received now. Call after parse. */
int kolo_tcp_stream_want(kolo_tcp_stream_t *stream, struct iovec iov[2]);
/* Takes `bytes` > 0 that came into what want() named; KOLO_ERR_PROTOCOL if they make no sense. */
kolo_status_t kolo_tcp_stream_got(kolo_tcp_stream_t *stream, size_t bytes);
/* Tells whether the stream is between two frames, with nothing left over. */
bool kolo_tcp_stream_idle(const kolo_tcp_stream_t *stream);
/* Takes the reader's address for the payload of slot rx->end.next, or takes it back. */
void kolo_tcp_stream_expect(kolo_tcp_stream_t *stream, void *data, uint32_t bytes);
void kolo_tcp_stream_unexpect(kolo_tcp_stream_t *stream);

#endif
