/* SPDX-License-Identifier: Apache-2.0
 *
 * The measuring loop against a peer library. Peer and Kolo run in the same processes, on the same buffers, call by
 * call in turn; every timed call starts from one kolo_barrier; a call's time is its slowest rank's; a row holds the
 * medians. Values are small integers in float32, so both results must be equal to the bit.
 * With turns: many calls of one without a pause, then many of the other, and what the machine's host took of its
 * time meanwhile. A state that feeds itself over many calls is seen only so.
 */
#ifndef KOLO_BENCH_PEERS_LOOP_H
#define KOLO_BENCH_PEERS_LOOP_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OP_ALL_REDUCE,
    OP_REDUCE,
    OP_BROADCAST,
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_ALL_TO_ALL,
    OP_PINGPONG,
    OP_COUNT
};

/* count: floats as in the call (per rank for the last three collectives). Returns 0, -1 when the peer has no such
 * call. pingpong: rank 0 sends and receives back, rank 1 the other way round. */
typedef int (*peer_call_t)(int op, const float *src, float *dst, size_t count, int rank, int nranks, void *arg);

typedef struct {
    const char *name;
    peer_call_t call;
    void *arg;
} peer_t;

/* Options: [--budget SECONDS per row] [--sizes B,B,...] [--turns N] [op...]. Prints on rank 0
 *     row OP RANKS BYTES PEER peer_us kolo_us
 * or, with turns, N times (fewer where they take long)
 *     turn OP RANKS BYTES PEER peer_us kolo_us peer_steal kolo_steal      steal: parts of 1
 * Returns the exit status. */
int peers_run(const peer_t *peer, kolo_comm_t comm, int rank, int nranks, int argc, char **argv);

#ifdef __cplusplus
}
#endif

#endif
