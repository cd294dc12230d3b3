/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of sends and receives: one launch holds a chain of messages to and from each peer. What a rank sends to
 * itself is copied.
 */
#include "gpu/cuda/cuda.h"

#include <string.h>

/* How many blocks move a message: as kolo_message_share() and kolo_message_cut() in messages.cuh have it. */
static uint32_t blocks_of(const kolo_cuda_layout_t *l, uint64_t bytes)
{
    uint64_t each =
        bytes <= l->message_lines_most ? 120u * KOLO_CUDA_MESSAGE_BLOCK_LINES : KOLO_CUDA_MESSAGE_BLOCK_BYTES;
    uint64_t want = (bytes + each - 1) / each;
    return (uint32_t)(want < 1 ? 1 : want > l->message_blocks ? l->message_blocks : want);
}

/* The n-th send of this rank to itself goes to its n-th receive. */
static kolo_status_t copy_own(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    size_t r = 0;
    for (size_t i = 0; i < n; i++) {
        if (calls[i].kind != KOLO_EXEC_SEND || calls[i].root != s->regions.rank) continue;
        while (r < n && !(calls[r].kind == KOLO_EXEC_RECV && calls[r].root == s->regions.rank)) r++;
        if (r == n)
            return kolo_fail(KOLO_ERR_INVALID_USAGE, "rank %d sends to itself in a group that does not receive it",
                             s->regions.rank);
        uint64_t bytes = calls[i].count * calls[i].elem;
        uint64_t room = calls[r].count * calls[r].elem;
        if (bytes != room)
            return kolo_fail(KOLO_ERR_MISMATCH, "rank %d sends %llu bytes to itself and receives %llu",
                             s->regions.rank, (unsigned long long)bytes, (unsigned long long)room);
        if (bytes) KOLO_TRY(kolo_cuda_put_copy(s, calls[r].dst, calls[i].src, bytes, calls[i].stream));
        r++;
    }
    return KOLO_OK;
}

typedef struct {
    int chain, last;
} end_t;

static kolo_status_t flush(kolo_cuda_state_t *s, int *count, end_t ends[2][KOLO_CUDA_RANKS], void *stream)
{
    kolo_cuda_p2p_args_t *a = &s->p2p.head;
    int messages = *count;
    *count = 0;
    memset(ends, 0xff, sizeof(end_t) * 2 * KOLO_CUDA_RANKS);
    if (!messages) return KOLO_OK;
    kolo_cuda_grid_t grid = {a->nchains * a->blocks, KOLO_CUDA_THREADS};
    bool few = messages <= KOLO_CUDA_MESSAGES_FEW;
    return kolo_cuda_put(s, few ? s->kernels->messages_few : s->kernels->messages, grid, &s->p2p, stream);
}

kolo_status_t kolo_cuda_messages(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    kolo_cuda_p2p_args_t *a = &s->p2p.head;
    end_t ends[2][KOLO_CUDA_RANKS];
    int count = 0;
    KOLO_TRY(copy_own(s, calls, n));
    memset(ends, 0xff, sizeof ends);
    for (size_t i = 0; i < n; i++) {
        int peer = calls[i].root, way = calls[i].kind == KOLO_EXEC_SEND;
        uint64_t bytes = calls[i].count * calls[i].elem;
        if (peer == s->regions.rank) continue;
        if (count == KOLO_CUDA_MESSAGES)
            return kolo_fail(KOLO_ERR_UNSUPPORTED,
                             "a group of GPU messages holds at most %d of them; rank %d has more",
                             KOLO_CUDA_MESSAGES, s->regions.rank);
        if (count == 0) {
            a->nchains = a->blocks = 0;
            a->number = calls[i].number;
            a->word = calls[i].word;
        }
        uint32_t blocks = blocks_of(&s->layout, bytes);
        bool into = !way && bytes > s->layout.message_lines_most; /* the sender may store to it directly */
        if (into) kolo_cuda_offer(s, calls[i].dst, bytes, calls[i].stream);
        a->blocks = blocks > a->blocks ? blocks : a->blocks;
        a->messages[count] =
            (kolo_cuda_message_t){.address = (uint64_t)(uintptr_t)(way ? calls[i].src : calls[i].dst),
                                  .bytes = bytes,
                                  .there = into ? kolo_cuda_seen_by(s, calls[i].dst, bytes, peer) : 0,
                                  .peer = (uint32_t)peer,
                                  .send = (uint32_t)way,
                                  .type = (uint32_t)calls[i].reducer.type,
                                  .next = -1};
        end_t *end = &ends[way][peer];
        if (end->chain < 0) {
            end->chain = (int)a->nchains++;
            a->chains[end->chain] = count;
        } else {
            a->messages[end->last].next = count;
        }
        end->last = count++;
    }
    return flush(s, &count, ends, n ? calls[0].stream : NULL);
}
