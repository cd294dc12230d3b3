/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives on a device, counted for the board (diag/board.c), by which a message that meets an operation
 * is found: the one rank waits in it for the other, which is in an operation that it cannot leave before the first
 * has come to it.
 *
 * On a device calls are queued far ahead of what runs, so the counts are not those of now. Who answers has counted
 * all that it has queued, which are at least as many. Who asks, for a message that waits, shows only what stands
 * before the next operation behind that message: all of it must be through before it comes there. So for each peer
 * and direction the last counts are kept with the number of the operation before which they hold.
 */
#include "comm/call/call.h"

#include <stdlib.h>

#define HISTORY 16

typedef struct {
    uint64_t number, count, word; /* messages before operation `number`, and the last of them */
} past_t;
typedef struct {
    past_t past[HISTORY];
    uint32_t entries; /* that were ever made */
} counted_t;
struct kolo_device_pairs {
    pthread_mutex_t lock;
    kolo_board_pair_t *asking; /* what questions show; by rank */
    counted_t counted[][2];    /* by rank and direction */
};

kolo_status_t kolo_device_pairs_open(kolo_body_t *body)
{
    if (KOLO_LIKELY(atomic_load_explicit(&body->gpu.pairs, memory_order_relaxed) != NULL)) return KOLO_OK;
    KOLO_TRY(kolo_mismatch_open_pairs(body));
    size_t n = (size_t)body->nranks;
    kolo_device_pairs_t *p = calloc(1, sizeof *p + n * sizeof p->counted[0]);
    kolo_board_pair_t *asking = calloc(n, sizeof *asking);
    if (!p || !asking) {
        free(p);
        free(asking);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d peers", body->nranks);
    }
    pthread_mutex_init(&p->lock, NULL);
    p->asking = asking;
    atomic_store(&body->track.board.asking, asking);
    atomic_store(&body->gpu.pairs, p);
    return KOLO_OK;
}

void kolo_device_pairs_free(kolo_body_t *body)
{
    kolo_device_pairs_t *p = atomic_exchange(&body->gpu.pairs, NULL);
    if (!p) return;
    pthread_mutex_destroy(&p->lock);
    free(p->asking);
    free(p);
}

void kolo_device_pairs_count(kolo_body_t *body, const kolo_call_t *call, uint64_t number)
{
    kolo_device_pairs_t *p = atomic_load_explicit(&body->gpu.pairs, memory_order_relaxed);
    int way = call->kind == KOLO_CALL_SEND ? KOLO_BOARD_SEND : KOLO_BOARD_RECV, peer = (int)call->root;
    uint64_t word = kolo_mismatch_word(call);
    if (!p || call->count == 0 || peer == body->rank) return;
    pthread_mutex_lock(&p->lock);
    counted_t *c = &p->counted[peer][way];
    past_t last = c->entries ? c->past[(c->entries - 1) % HISTORY] : (past_t){.number = ~number};
    if (last.number != number) c->entries++;
    c->past[(c->entries - 1) % HISTORY] = (past_t){number, last.count + 1, word};
    pthread_mutex_unlock(&p->lock);
    kolo_board_begin(&body->track.pairs[peer], way, KOLO_BOARD_SLOTS, word, false);
}

/* Finds what was counted before operation `number`; false: that is not known any more. */
static bool before(const counted_t *c, uint64_t number, past_t *found)
{
    uint32_t kept = c->entries < HISTORY ? c->entries : HISTORY;
    *found = (past_t){0};
    for (uint32_t i = 1; i <= kept; i++) {
        const past_t *past = &c->past[(c->entries - i) % HISTORY];
        if ((int64_t)(past->number - number) > 0) continue;
        *found = *past;
        return true;
    }
    return c->entries <= HISTORY;
}

/* Shows a peer what was counted. A send needs its receive only if it waits for room; it may have been through else.
 * */
static bool show(kolo_device_pairs_t *p, int rank, uint64_t number, bool sends)
{
    kolo_board_pair_t *show = &p->asking[rank];
    past_t past[2];
    pthread_mutex_lock(&p->lock);
    bool known = before(&p->counted[rank][0], number, &past[0]) && before(&p->counted[rank][1], number, &past[1]);
    pthread_mutex_unlock(&p->lock);
    if (!known) return false;
    for (int way = 0; way < 2; way++) {
        atomic_store(&show->word[way], past[way].word);
        atomic_store(&show->begun[way][KOLO_BOARD_SLOTS], past[way].count);
    }
    atomic_store(&show->firm[KOLO_BOARD_SLOTS], sends ? past[KOLO_BOARD_SEND].count : 0);
    return true;
}

void kolo_device_pairs_ask(kolo_body_t *body, const kolo_exec_waits_t *w)
{
    kolo_device_pairs_t *p = atomic_load(&body->gpu.pairs);
    for (int i = 0; i < w->count && p; i++)
        if (show(p, w->on[i].rank, w->number, w->on[i].room))
            kolo_diag_ask_pair(body->oob, w->on[i].rank, w->number);
}
