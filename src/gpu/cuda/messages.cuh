/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between two ranks: short ones by lines of 128 bytes, which carry their own arrival (ll128.cuh). The
 * receiver of a long one tells the sender where it is to go; if the sender's GPU does not reach that, it goes
 * through stages. A launch works off chains of messages, one per peer and direction, each by blocks of its own, so
 * what one end sends in one group and the other receives in several never waits in a circle. Which way a message
 * goes, and how many blocks move it, follows from its length alone: both ends come to the same.
 */
#ifndef KOLO_GPU_CUDA_MESSAGES_CUH
#define KOLO_GPU_CUDA_MESSAGES_CUH

#include "gpu/cuda/direct.cuh"
#include "gpu/cuda/ll128.cuh"

/* One end may go by lines where the other does not, if what they have for the same message differs. An end that
 * waits for long looks for that: the receiver of a long message for lines, that of a short one for the offer of a
 * long one (kolo_line128_look()). */
KOLO_DEV void kolo_message_offer(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block)
{
    kolo_message_meeting_t *meeting =
        kolo_message_meeting(&c.layout, kolo_region(c.regions, m.peer), c.rank, block);
    kolo_message_word_store(&meeting->offer_tag, kolo_message_tag(m));
    kolo_flag_store(&meeting->offer, *kolo_message_counter(&c.layout, kolo_region(c.regions, c.rank),
                                                           KOLO_CUDA_MESSAGE_SENT_LONG, m.peer, block) +
                                         1);
}
/* What came before is behind both ends. `seen`: at the look before this one: what this end waits for was on its way
 * then, or does not come. */
KOLO_DEV void kolo_message_meets_lines(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                       bool *seen)
{
    char *own = kolo_region(c.regions, c.rank);
    uint32_t step = *kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_RECEIVED_LINES, m.peer, block);
    uint64_t there = kolo_message_what_load(kolo_message_lines(&c.layout, own, m.peer, block, step));
    bool lines = there && (uint32_t)there == step + 1;
    if (lines && *seen)
        kolo_tell_unfit((kolo_cuda_mailbox_t *)c.mailbox, c.number, m.peer, 0, kolo_message_tag(m),
                        kolo_message_tag_of(there));
    *seen = lines;
}

/* One flag of one peer; the same answer for the whole block. */
typedef enum { KOLO_LOOK_NOT, KOLO_LOOK_OFFER, KOLO_LOOK_FOR_LINES } kolo_message_look_t;
KOLO_DEV bool kolo_message_wait(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                const uint32_t *flag, uint32_t step, uint32_t what, kolo_message_look_t look)
{
    KOLO_SHARED uint32_t ended;
    kolo_sync();
    if (kolo_tid() == 0) {
        uint32_t spins = 0;
        bool seen = false;
        ended = 0;
        while (!ended && (int32_t)(kolo_flag_load(flag) - step) < 0) {
            if (kolo_give_up(&spins, c, what, m.peer, step))
                ended = 1;
            else if (spins % KOLO_SPINS_A_LOOK == 0 && look == KOLO_LOOK_OFFER)
                kolo_message_offer(c, m, block);
            else if (spins % KOLO_SPINS_A_LOOK == 0 && look == KOLO_LOOK_FOR_LINES)
                kolo_message_meets_lines(c, m, block, &seen);
        }
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
    uint32_t *counter = kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_SENT, m.peer, block),
             step = *counter;
    for (uint32_t i = 0; i < cut.tiles; i++, step++) {
        uint64_t off = ((uint64_t)i * cut.blocks + block) * cut.tile_bytes;
        if (!kolo_message_wait(c, m, block, kolo_flag(&c.layout, own, c.layout.credit, 2, m.peer, block),
                               step + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT, KOLO_LOOK_NOT))
            return false;
        kolo_tile_in<uint8_t>(kolo_stage(&c.layout, theirs, 2, c.rank, block, step), (const char *)m.address + off,
                              kolo_tile_length(off, m.bytes, cut.tile_bytes), NULL);
        kolo_sync();
        if (kolo_tid() == 0)
            kolo_flag_store(kolo_flag(&c.layout, theirs, c.layout.ready, 2, c.rank, block), step + 1);
    }
    if (kolo_tid() == 0) *counter = step;
    return true;
}

KOLO_DEV bool kolo_message_receive(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                   const kolo_message_cut_t &cut)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    uint32_t *counter = kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_RECEIVED, m.peer, block),
             step = *counter;
    for (uint32_t i = 0; i < cut.tiles; i++, step++) {
        uint64_t off = ((uint64_t)i * cut.blocks + block) * cut.tile_bytes;
        if (!kolo_message_wait(c, m, block, kolo_flag(&c.layout, own, c.layout.ready, 2, m.peer, block), step + 1,
                               KOLO_CUDA_WAITS_TILE, KOLO_LOOK_FOR_LINES))
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

/* ---- by lines ---- */

/* A block's share of a message: lines [first, first + n), in steps of what a slot holds. */
typedef struct {
    uint64_t first, n;
    bool aligned;
} kolo_message_share_t;

KOLO_DEV kolo_message_share_t kolo_message_share(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m,
                                                 uint32_t block)
{
    uint64_t all = (m.bytes + 8 * KOLO_LINE_WORDS - 1) / (8 * KOLO_LINE_WORDS), blocks, each;
    kolo_message_share_t s;
    if (all == 0) all = 1; /* an empty message arrives, too */
    blocks = (all + KOLO_CUDA_MESSAGE_BLOCK_LINES - 1) / KOLO_CUDA_MESSAGE_BLOCK_LINES;
    if (blocks > c.layout.message_blocks) blocks = c.layout.message_blocks;
    each = (all + blocks - 1) / blocks;
    s.first = each * block;
    s.n = s.first >= all ? 0 : all - s.first < each ? all - s.first : each;
    s.aligned = (m.address & 7) == 0;
    return s;
}

KOLO_DEV bool kolo_message_send_lines(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    const uint32_t *credit = kolo_message_credit(&c.layout, own, m.peer, block);
    uint32_t *counter = kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_SENT_LINES, m.peer, block);
    uint32_t step = *counter;
    kolo_message_share_t s = kolo_message_share(c, m, block);
    for (uint64_t from = 0; from < s.n; from += KOLO_CUDA_MESSAGE_SLOT_LINES, step++) {
        char *lines = kolo_message_lines(&c.layout, theirs, c.rank, block, step);
        uint32_t n =
            s.n - from < KOLO_CUDA_MESSAGE_SLOT_LINES ? (uint32_t)(s.n - from) : KOLO_CUDA_MESSAGE_SLOT_LINES;
        if (!kolo_message_wait(c, m, block, credit, step + 1 - KOLO_CUDA_DEPTH, KOLO_CUDA_WAITS_CREDIT,
                               KOLO_LOOK_NOT))
            return false;
        if (kolo_tid() == 0) kolo_message_what_store(lines, kolo_message_flag(m, step + 1));
        uint32_t batch;
        for (uint32_t at = kolo_group(); (batch = kolo_batch<KOLO_LINE_BATCH>(at, n));
             at += batch * kolo_groups()) {
            kolo_line_t x[KOLO_LINE_BATCH];
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < batch)
                    kolo_words_load<uint8_t>(&x[u], (const char *)m.address, s.first + from + line,
                                             line < n ? m.bytes : 0, s.aligned, NULL);
            }
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (u < batch)
                    kolo_line128_store(lines + (uint64_t)line * 128, &x[u], kolo_message_flag(m, step + 1),
                                       line < n);
            }
        }
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = step;
    return true;
}

KOLO_DEV bool kolo_message_receive_lines(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m,
                                         uint32_t block)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    uint32_t *counter = kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_RECEIVED_LINES, m.peer, block);
    uint32_t step = *counter;
    kolo_message_share_t s = kolo_message_share(c, m, block);
    bool ok = true;
    for (uint64_t from = 0; ok && from < s.n; from += KOLO_CUDA_MESSAGE_SLOT_LINES, step++) {
        const char *lines = kolo_message_lines(&c.layout, own, m.peer, block, step);
        uint32_t n =
            s.n - from < KOLO_CUDA_MESSAGE_SLOT_LINES ? (uint32_t)(s.n - from) : KOLO_CUDA_MESSAGE_SLOT_LINES;
        uint64_t flag = kolo_message_flag(m, step + 1);
        uint32_t batch;
        for (uint32_t at = kolo_group(); ok && (batch = kolo_batch<KOLO_LINE_BATCH>(at, n));
             at += batch * kolo_groups()) {
            kolo_line_t x[KOLO_LINE_BATCH] = {};
            ok = kolo_batch_wait<KOLO_LINE_BATCH>(c, flag, lines, at, n, x, m.peer);
#pragma unroll
            for (uint32_t u = 0; u < KOLO_LINE_BATCH; u++) {
                uint32_t line = at + u * kolo_groups();
                if (ok && u < batch)
                    kolo_words_store<uint8_t>(&x[u], (char *)m.address, s.first + from + line,
                                              line < n ? m.bytes : 0, s.aligned);
            }
        }
        kolo_sync();
        if (ok && kolo_tid() == 0)
            kolo_credit_store(kolo_message_credit(&c.layout, theirs, c.rank, block), step + 1);
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = step;
    return ok;
}

/* ---- long ones: kolo_message_meeting_t ---- */

KOLO_DEV bool kolo_message_send_long(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                     const kolo_message_cut_t &cut)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    uint32_t *counter = kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_SENT_LONG, m.peer, block);
    uint32_t number = *counter + 1;
    kolo_message_meeting_t *meeting = kolo_message_meeting(&c.layout, own, m.peer, block);
    if (!kolo_message_wait(c, m, block, &meeting->begin, number, KOLO_CUDA_WAITS_CREDIT, KOLO_LOOK_OFFER))
        return false;
    uint64_t there = meeting->there, tag = meeting->tag;
    if (tag != kolo_message_tag(m)) { /* the host is told, and ends the kernel */
        uint32_t spins = 0;
        if (kolo_tid() == 0)
            kolo_tell_unfit((kolo_cuda_mailbox_t *)c.mailbox, c.number, m.peer, 1, kolo_message_tag(m), tag);
        while (kolo_tid() == 0 && !kolo_give_up(&spins, c, KOLO_CUDA_WAITS_CREDIT, m.peer, number)) {
        }
        return false;
    }
    kolo_sync();
    if (kolo_tid() == 0) *counter = number;
    if (!there) return kolo_message_send(c, m, block, cut);
    if (kolo_aligned(there, m.address))
        kolo_direct_copy<uint8_t>((char *)there, (const char *)m.address, m.bytes, block, cut.blocks);
    else
        kolo_copy_across<uint8_t>((char *)there, (const char *)m.address, m.bytes,
                                  (uint64_t)block * kolo_nthreads() + kolo_tid(),
                                  (uint64_t)cut.blocks * kolo_nthreads());
    kolo_sync();
    if (kolo_tid() == 0) kolo_flag_store(&kolo_message_meeting(&c.layout, theirs, c.rank, block)->end, number);
    return true;
}

KOLO_DEV bool kolo_message_receive_long(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block,
                                        const kolo_message_cut_t &cut)
{
    char *own = kolo_region(c.regions, c.rank), *theirs = kolo_region(c.regions, m.peer);
    uint32_t *counter = kolo_message_counter(&c.layout, own, KOLO_CUDA_MESSAGE_RECEIVED_LONG, m.peer, block);
    uint32_t number = *counter + 1;
    kolo_message_meeting_t *meeting = kolo_message_meeting(&c.layout, theirs, c.rank, block);
    kolo_sync();
    if (kolo_tid() == 0) {
        *counter = number;
        meeting->there = m.there;
        meeting->tag = kolo_message_tag(m);
        kolo_flag_store(&meeting->begin, number);
    }
    if (!m.there) return kolo_message_receive(c, m, block, cut);
    return kolo_message_wait(c, m, block, &kolo_message_meeting(&c.layout, own, m.peer, block)->end, number,
                             KOLO_CUDA_WAITS_TILE, KOLO_LOOK_FOR_LINES);
}

/* ---- chains ---- */

KOLO_DEV bool kolo_message(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t &m, uint32_t block)
{
    if (m.bytes <= c.layout.message_lines_most)
        return m.send ? kolo_message_send_lines(c, m, block) : kolo_message_receive_lines(c, m, block);
    kolo_message_cut_t cut = kolo_message_cut(&c.layout, m.bytes, c.layout.message_blocks);
    if (block >= cut.blocks) return true;
    return m.send ? kolo_message_send_long(c, m, block, cut) : kolo_message_receive_long(c, m, block, cut);
}

/* A group whose messages stand in a table: each is copied before it is used, since what is stored elsewhere might
 * be the table as far as a compiler knows. */
KOLO_DEV void kolo_messages_table(const kolo_cuda_p2p_args_t &c)
{
    kolo_begin(c.blocks == 1);
    const kolo_cuda_message_t *table = (const kolo_cuda_message_t *)c.table;
    uint32_t chain = kolo_bid() / c.blocks, block = kolo_bid() % c.blocks;
    for (int32_t i = c.chains[chain]; i >= 0;) {
        const kolo_cuda_message_t m = table[i];
        i = m.next;
        kolo_sync();
        if (!kolo_message(c, m, block)) return;
        kolo_sync();
    }
}
KOLO_DEV void kolo_table(const kolo_cuda_table_args_t &c)
{
    kolo_begin(true);
    kolo_cuda_message_t *to = (kolo_cuda_message_t *)c.to;
    for (uint32_t i = kolo_tid(); i < c.n; i += kolo_nthreads()) to[i] = c.rows[i];
}

/* more: what goes beyond KOLO_CUDA_MESSAGES_FEW, or NULL. */
KOLO_DEV void kolo_messages(const kolo_cuda_p2p_args_t &c, const kolo_cuda_message_t *more)
{
    uint32_t chain = kolo_bid() / c.blocks, block = kolo_bid() % c.blocks;
    int32_t first = c.chains[chain];
    kolo_begin(c.blocks == 1);
    for (int32_t i = first, next; i >= 0; i = next) {
        const kolo_cuda_message_t &m =
            !more || i < KOLO_CUDA_MESSAGES_FEW ? c.messages[i] : more[i - KOLO_CUDA_MESSAGES_FEW];
        next = m.next;
        kolo_sync();
        if (!kolo_message(c, m, block)) return;
        kolo_sync();
    }
}

#endif
