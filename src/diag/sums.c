/* SPDX-License-Identifier: Apache-2.0
 *
 * Which is the first operation that two ranks have called differently? Each keeps, of its last thousand operations,
 * a sum of the words of all up to that one. As long as all words are equal the sums are; from the first that
 * differs on they differ. A rank that finds out shows its peer every 32nd of its sums; the peer answers with each
 * of its own in the gap in which they part; then the first rank knows the operation, and both words from the sums
 * on either side of it.
 */
#include "base/log.h"
#include "diag/state.h"

static uint64_t load(const _Atomic uint64_t *sum)
{
    return atomic_load_explicit(sum, memory_order_acquire);
}

/* Reads a sum, whose place is written again KOLO_BOARD_SUMS operations later, before that one's number. Who reads
 * what was written then reads a newer number after it. */
bool kolo_sums_at(const kolo_board_t *board, uint64_t number, uint64_t *sum)
{
    uint64_t last = kolo_board_last(board);
    if (last == KOLO_BOARD_NONE || kolo_board_is_call(number)) return false;
    if ((int64_t)(last - number) < 0 || last - number >= KOLO_BOARD_SUMS - 1) return false;
    *sum = 0;
    if (number == board->first - 1) return true;
    if ((int64_t)(number - board->first) < 0) return false;
    *sum = load(&board->sums[number % KOLO_BOARD_SUMS]);
    return kolo_board_last(board) - number < KOLO_BOARD_SUMS - 1;
}

bool kolo_sums_parted(const kolo_board_t *board, uint64_t number, uint64_t sum)
{
    uint64_t last = kolo_board_last(board), mine;
    if (kolo_sums_at(board, number, &mine)) return mine != sum;
    if (last == KOLO_BOARD_NONE || kolo_board_is_call(number) || (int64_t)(number - board->first) < 0) return false;
    if ((int64_t)(last - number) < 0 || last - number >= KOLO_BOARD_PAST - 1) return false;
    uint16_t past = atomic_load_explicit(&board->past[number % KOLO_BOARD_PAST], memory_order_acquire);
    return kolo_board_last(board) - number < KOLO_BOARD_PAST - 1 && past != kolo_board_short(sum);
}

bool kolo_sums_word(const kolo_board_t *board, uint64_t number, uint64_t *word)
{
    uint64_t before, sum;
    if (number == KOLO_BOARD_NONE || number == board->first - 1) return false;
    if (!kolo_sums_at(board, number, &sum) || !kolo_sums_at(board, number - 1, &before)) return false;
    *word = sum - kolo_board_mixed(before);
    return true;
}

bool kolo_sums_show(kolo_peer_t *peer, uint64_t number, uint32_t step)
{
    const kolo_board_t *board = kolo_diag(peer->oob)->board;
    kolo_sums_frame_t f = {.step = step};
    uint64_t down[KOLO_SUMS_MOST];
    kolo_conn_t *conn = kolo_board_way_out(peer);
    if (conn == NULL) return false;
    while (f.count < KOLO_SUMS_MOST && kolo_sums_at(board, number - f.count * (uint64_t)step, &down[f.count]))
        f.count++;
    if (f.count == 0) return false;
    for (uint32_t i = 0; i < f.count; i++) f.sums[i] = down[f.count - 1 - i];
    kolo_sums_encode(&f, kolo_peer_diag(peer)->board_bytes);
    kolo_board_put_up(conn, KOLO_FRAME_SUMS, number, KOLO_SUMS_FRAME_BYTES(f.count));
    return true;
}

/* Returns the index of the first that differs from mine, of those that I know; count: none. *agreed: the one before
 * it is the same. */
static uint32_t first_difference(const kolo_board_t *board, uint64_t number, const kolo_sums_frame_t *f,
                                 bool *agreed)
{
    uint64_t mine;
    *agreed = false;
    for (uint32_t i = 0; i < f->count; i++) {
        bool known = kolo_sums_at(board, number - (f->count - 1 - i) * (uint64_t)f->step, &mine);
        if (known && mine != f->sums[i]) return i;
        *agreed = known;
    }
    return f->count;
}

const char *kolo_sums_arrived(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    const kolo_board_t *board = kolo_diag(oob)->board;
    kolo_sums_frame_t f;
    const char *wrong = kolo_sums_decode(conn->body, conn->frame.bytes, &f);
    bool agreed;
    if (wrong != NULL || board == NULL) return wrong;
    uint32_t i = first_difference(board, conn->frame.tag, &f, &agreed);
    if (i == f.count) return NULL;
    uint64_t number = conn->frame.tag - (f.count - 1 - i) * (uint64_t)f.step, mine;
    if (f.step > 1)
        kolo_sums_show(conn->peer, number, 1);
    else if (!agreed)
        kolo_board_note(oob, number, 0, conn->peer->rank, 0);
    else if (kolo_sums_word(board, number, &mine))
        kolo_board_note(oob, number, mine, conn->peer->rank, f.sums[i] - kolo_board_mixed(f.sums[i - 1]));
    return NULL;
}
