/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between two ranks, through stages of their own. A launch works off chains of messages, one per peer and
 * direction, each by blocks of its own, so what one end sends in one group and the other receives in several never
 * waits in a circle. How many blocks move a message follows from its length alone: both ends come to the same.
 */
#ifndef KOLO_EXEC_CUDA_MESSAGES_CUH
#define KOLO_EXEC_CUDA_MESSAGES_CUH

#include "exec/cuda/staged.cuh"

/* One flag of one peer; the same answer for the whole block. */
KOLO_DEV bool kolo_message_wait(const kolo_cuda_p2p_args_t &c, const uint32_t *flag, uint32_t step, uint32_t what,
                                uint32_t peer)
{
    KOLO_SHARED uint32_t ended;
    kolo_sync();
    if (kolo_tid() == 0) {
        uint32_t spins = 0;
        ended = 0;
        while (!ended && (int32_t)(kolo_flag_load(flag) - step) < 0)
            if (kolo_give_up(&spins, (kolo_cuda_mailbox_t *)c.mailbox, what, peer, step)) ended = 1;
    }
    kolo_sync();
    return !ended;
}

/* How a message is cut: `blocks` blocks take turns with tiles of `tile_bytes`. */
typedef struct {
    uint32_t blocks, tile_bytes, tiles; /* tiles of each block */
} kolo_message_cut_t;

KOLO_DEV kolo_message_cut_t kolo_message_cut(const kolo_cuda_layout_t *l, uint64_t bytes, uint32_t most)
{
    kolo_message_cut_t cut;
    uint64_t want = (bytes + KOLO_CUDA_MESSAGE_BLOCK_BYTES - 1) / KOLO_CUDA_MESSAGE_BLOCK_BYTES;
    cut.blocks = (uint32_t)(want < 1 ? 1 : want > most ? most : want);
    uint64_t each = ((bytes + cut.blocks - 1) / cut.blocks + 127) / 128 * 128;
    cut.tile_bytes = each > l->tile_bytes ? l->tile_bytes : each ? (uint32_t)each : 128;
    uint64_t row = (uint64_t)cut.blocks * cut.tile_bytes;
    cut.tiles = (uint32_t)((bytes + row - 1) / row);
    if (cut.tiles == 0) cut.tiles = 1;
    return cut;
}

KOLO_DEV bool kolo_message_send(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                const kolo_message_cut_t &cut)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    uint32_t *counter = kolo_message_counter(&c.layout, own, 1, m.peer, block), step = *counter;
    for (uint32_t i = 0; i < cut.tiles; i++, step++) {
        uint64_t off = ((uint64_t)i * cut.blocks + block) * cut.tile_bytes;
        if (!kolo_message_wait(c, kolo_flag(&c.layout, own, c.layout.credit, 2, m.peer, block),
                               step + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT, m.peer))
            return false;
        kolo_tile_in<uint8_t>(kolo_stage(&c.layout, theirs, 2, c.rank, block, step), (const char *)m.address + off,
                              kolo_tile_length(off, m.bytes, cut.tile_bytes), NULL);
        kolo_sync();
        if (kolo_tid() == 0) kolo_flag_store(kolo_flag(&c.layout, theirs, c.layout.ready, 2, c.rank, block), step + 1);
    }
    if (kolo_tid() == 0) *counter = step;
    return true;
}

KOLO_DEV bool kolo_message_receive(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                   const kolo_message_cut_t &cut)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    uint32_t *counter = kolo_message_counter(&c.layout, own, 0, m.peer, block), step = *counter;
    for (uint32_t i = 0; i < cut.tiles; i++, step++) {
        uint64_t off = ((uint64_t)i * cut.blocks + block) * cut.tile_bytes;
        if (!kolo_message_wait(c, kolo_flag(&c.layout, own, c.layout.ready, 2, m.peer, block), step + 1,
                               KOLO_CUDA_WAITS_TILE, m.peer))
            return false;
        kolo_tile_out<uint8_t>((char *)m.address + off, kolo_stage(&c.layout, own, 2, m.peer, block, step),
                               kolo_tile_length(off, m.bytes, cut.tile_bytes));
        kolo_sync();
        if (kolo_tid() == 0)
            kolo_flag_store(kolo_flag(&c.layout, theirs, c.layout.credit, 2, c.rank, block), step + 1);
    }
    if (kolo_tid() == 0) *counter = step;
    return true;
}

KOLO_DEV void kolo_messages(const kolo_cuda_p2p_args_t &c)
{
    uint32_t chain = kolo_bid() / c.blocks, block = kolo_bid() % c.blocks;
    for (int32_t i = c.chains[chain]; i >= 0; i = c.messages[i].next) {
        const kolo_cuda_message_t &m = c.messages[i];
        kolo_message_cut_t cut = kolo_message_cut(&c.layout, m.bytes, c.layout.message_blocks);
        if (block >= cut.blocks) continue;
        kolo_sync();
        if (m.send ? !kolo_message_send(c, m, block, cut) : !kolo_message_receive(c, m, block, cut)) return;
        kolo_sync();
    }
}

#endif
