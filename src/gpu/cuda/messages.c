/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of sends and receives: one launch holds a chain of messages to and from each peer. What a rank sends to
 * itself is copied.
 */
#include "base/type.h"
#include "gpu/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* Returns how many blocks move a message, as kolo_message_share() and kolo_message_cut() (messages.cuh) have it. */
static uint32_t blocks_of(const kolo_cuda_layout_t *l, uint64_t bytes)
{
    uint64_t each =
        bytes <= l->message_lines_most ? 120u * KOLO_CUDA_MESSAGE_BLOCK_LINES : KOLO_CUDA_MESSAGE_BLOCK_BYTES;
    return (uint32_t)KOLO_MIN(KOLO_MAX(KOLO_DIV_UP(bytes, each), 1), l->message_blocks);
}

/* Copies this rank's n-th send to itself to its n-th receive: they have been checked. */
static kolo_status_t copy_own(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    size_t r = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = calls[i].count * calls[i].elem;
        if (calls[i].kind != KOLO_EXEC_SEND || calls[i].root != s->regions.rank) continue;
        while (!(calls[r].kind == KOLO_EXEC_RECV && calls[r].root == s->regions.rank)) r++;
        if (bytes) KOLO_TRY(kolo_cuda_put_copy(s, calls[r].dst, calls[i].src, bytes, calls[i].stream));
        r++;
    }
    return KOLO_OK;
}

/* ---- the messages of a launch ---- */

typedef struct {
    int chain, last;
} end_t;

typedef struct {
    kolo_cuda_message_t *at; /* room for all */
    size_t n;
    end_t ends[2][KOLO_CUDA_RANKS];
} list_t;

static void add(kolo_cuda_state_t *s, list_t *list, const kolo_exec_call_t *call)
{
    kolo_cuda_p2p_args_t *a = &s->p2p.head;
    int peer = call->root, way = call->kind == KOLO_EXEC_SEND, i = (int)list->n++;
    uint64_t bytes = call->count * call->elem;
    uint32_t blocks = blocks_of(&s->layout, bytes);
    bool into = !way && bytes > s->layout.message_lines_most; /* the sender may store to it directly */
    if (into) kolo_cuda_offer(s, call->dst, bytes, call->stream);
    a->blocks = blocks > a->blocks ? blocks : a->blocks;
    list->at[i] = (kolo_cuda_message_t){.address = (uint64_t)(uintptr_t)(way ? call->src : call->dst),
                                        .bytes = bytes,
                                        .there = into ? kolo_cuda_seen_by(s, call->dst, bytes, peer) : 0,
                                        .peer = (uint32_t)peer,
                                        .send = (uint32_t)way,
                                        .type = (uint32_t)call->reducer.type,
                                        .next = -1};
    end_t *end = &list->ends[way][peer];
    if (end->chain < 0) {
        end->chain = (int)a->nchains++;
        a->chains[end->chain] = i;
    } else {
        list->at[end->last].next = i;
    }
    end->last = i;
}

/* Chains in one order on all ranks, by sender, then by receiver. If not all blocks of a launch find room on the
 * GPU, because something else runs there, those of the first chain that is not through are there at both its
 * ends. */
static void sort_chains(kolo_cuda_state_t *s, const list_t *list)
{
    kolo_cuda_p2p_args_t *args = &s->p2p.head;
    int rank = s->regions.rank, n = s->regions.nranks, k = 0, sorted[2 * KOLO_CUDA_RANKS];
    for (int from = 0; from < n; from++) {
        for (int to = from == rank ? 0 : rank; to < (from == rank ? n : rank + 1); to++) {
            const end_t *end = &list->ends[from == rank][from == rank ? to : from];
            if (end->chain >= 0) sorted[k++] = args->chains[end->chain];
        }
    }
    memcpy(args->chains, sorted, sizeof sorted[0] * (size_t)k);
}

/* ---- more of them than a launch holds ---- */

/* Makes a longer table. Older ones stay, for graphs that have their address. */
static kolo_status_t make_table(kolo_cuda_state_t *s, size_t rows)
{
    size_t room = 2 * s->table.rows > rows ? 2 * s->table.rows : rows;
    int mode = KOLO_CU_CAPTURE_RELAXED; /* the program may be capturing */
    kolo_cu_ptr_t at = 0;
    if (s->table.n == KOLO_COUNTOF(s->table.all))
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "rank %d has a group of %zu GPU messages", s->regions.rank, rows);
    kolo_cu_result_t r = s->api->capture_mode(&mode);
    if (!r) {
        r = kolo_cuda_take_block(s->device, room * sizeof(kolo_cuda_message_t), &at);
        s->api->capture_mode(&mode);
    }
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "get memory for a long group of messages");
    s->table.lengths[s->table.n] = room * sizeof(kolo_cuda_message_t);
    s->table.all[s->table.n++] = at;
    s->table.rows = room;
    return KOLO_OK;
}

void kolo_cuda_tables_free(kolo_cuda_state_t *s)
{
    for (size_t i = 0; i < s->table.n; i++) kolo_cuda_give_block(s->device, s->table.lengths[i], s->table.all[i]);
    s->table.n = 0;
}

static kolo_status_t fill_table(kolo_cuda_state_t *s, const list_t *list, kolo_cu_stream_t stream)
{
    uint64_t table = s->table.all[s->table.n - 1];
    for (size_t i = 0; i < list->n; i += KOLO_CUDA_TABLE_ROWS) {
        kolo_cuda_table_args_t args = {.to = table + i * sizeof *list->at};
        args.n = (uint32_t)KOLO_MIN(list->n - i, (size_t)KOLO_CUDA_TABLE_ROWS);
        memcpy(args.rows, &list->at[i], args.n * sizeof *list->at);
        KOLO_TRY(kolo_cuda_put(s, s->kernels->table, (kolo_cuda_grid_t){1, 96}, &args, stream));
    }
    s->p2p.head.table = table;
    return KOLO_OK;
}

static kolo_status_t put_list(kolo_cuda_state_t *s, list_t *list, kolo_cu_stream_t stream)
{
    kolo_cuda_p2p_args_t *a = &s->p2p.head;
    kolo_cuda_grid_t grid = {a->nchains * a->blocks, KOLO_CUDA_THREADS};
    if (!list->n) return KOLO_OK;
    sort_chains(s, list);
    if (list->n > KOLO_CUDA_MESSAGES) {
        KOLO_TRY(fill_table(s, list, stream));
        return kolo_cuda_put(s, s->kernels->messages_table, grid, a, stream);
    }
    bool few = list->n <= KOLO_CUDA_MESSAGES_FEW;
    return kolo_cuda_put(s, few ? s->kernels->messages_few : s->kernels->messages, grid, a, stream);
}

kolo_status_t kolo_cuda_messages(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    list_t list = {.at = s->p2p.head.messages};
    size_t others = 0;
    for (size_t i = 0; i < n; i++) others += calls[i].root != s->regions.rank;
    bool many = others > KOLO_CUDA_MESSAGES;
    if (many && n > INT32_MAX) return kolo_fail(KOLO_ERR_UNSUPPORTED, "a group of %zu messages", n);
    if (many && n > s->table.rows) KOLO_TRY(make_table(s, n));
    if (many) list.at = malloc(n * sizeof *list.at);
    if (!list.at) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a group of %zu messages", n);
    memset(list.ends, 0xff, sizeof list.ends);
    s->p2p.head.nchains = s->p2p.head.blocks = 0;
    s->p2p.head.number = calls->number;
    s->p2p.head.word = calls->word;
    kolo_status_t status = copy_own(s, calls, n);
    for (size_t i = 0; i < n && status == KOLO_OK; i++)
        if (calls[i].root != s->regions.rank) add(s, &list, &calls[i]);
    if (status == KOLO_OK) status = put_list(s, &list, calls->stream);
    if (many) free(list.at);
    return status;
}
