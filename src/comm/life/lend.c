/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator takes over from its parent instead of asking its ranks again: their cards (host, process,
 * wires) and what the parent's ranks agreed on. A shrink always does, a split if its callers want to share
 * (kolo_config_t.split_share). Two exchanges of the set-up become one barrier, which also makes the connections by
 * which the ranks hear of each other's end. Sizes of slots are the parent's: the least that suits any of its ranks.
 */
#include "comm/life/life.h"

#include "base/text/plain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_body_borrow(kolo_body_t *body, const kolo_peer_card_t *cards, const kolo_agreed_t *agreed,
                               const int *members)
{
    kolo_peer_card_t *own = malloc((size_t)body->nranks * sizeof *own);
    if (!own) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the cards of %d ranks", body->nranks);
    for (int r = 0; r < body->nranks; r++) {
        own[r] = cards[members[r]];
        own[r].rank = r;
    }
    body->life.borrowed.agreed = *agreed;
    free(body->life.borrowed.cards); /* `cards` may be these */
    body->life.borrowed.cards = own;
    return KOLO_OK;
}

void kolo_body_borrow_end(kolo_body_t *body)
{
    free(body->life.borrowed.cards);
    body->life.borrowed.cards = NULL;
}

/* ---- values that all ranks must share ---- */

#define SET_BYTES 256 /* of "KOLO_ALGO=ring KOLO_X=1" */

/* Prints what the environment says about parameters that must be equal on all ranks. */
static void print_set(char *text, size_t bytes)
{
    size_t ntables, at = 0;
    const kolo_param_table_t *const *tables = kolo_param_tables(&ntables);
    char value[128];
    text[0] = '\0';
    for (size_t t = 0; t < ntables; t++) {
        for (size_t i = 0; i < tables[t]->count; i++) {
            const kolo_param_t *row = &tables[t]->rows[i];
            if (!row->must_agree || !kolo_param_in_environment(row) || at >= bytes) continue;
            kolo_param_print(row, value, sizeof value);
            at += (size_t)snprintf(text + at, bytes - at, "%s%s=%s", at ? " " : "", row->key, value);
        }
    }
    if (at == 0) snprintf(text, bytes, "none of them set");
}

/* Says which rank has other parameters: all ranks know that one has, and come here. */
static kolo_status_t tell_parameters_apart(kolo_body_t *body)
{
    char first[KOLO_ERROR_TEXT_BYTES];
    snprintf(first, sizeof first, "%s", kolo_error_text());
    char(*all)[SET_BYTES] = calloc((size_t)body->nranks, sizeof *all);
    if (!all) return kolo_fail(KOLO_ERR_MISMATCH, "%s", first);
    print_set(all[body->rank], SET_BYTES);
    kolo_status_t status = kolo_oob_all_gather(body->oob, all, SET_BYTES);
    int other = 1;
    for (int r = 0; r < body->nranks && status == KOLO_OK; r++)
        kolo_plain_copy(all[r], SET_BYTES, all[r], SET_BYTES);
    while (status == KOLO_OK && other < body->nranks && strcmp(all[other], all[0]) == 0) other++;
    if (status == KOLO_OK && other < body->nranks)
        kolo_fail(KOLO_ERR_MISMATCH,
                  "parameters that all ranks must have alike differ: rank %d has %s, rank 0 has %s", other,
                  all[other], all[0]);
    else
        kolo_fail(KOLO_ERR_MISMATCH, "%s", first);
    free(all);
    return KOLO_ERR_MISMATCH;
}

static kolo_status_t ask_all(kolo_body_t *body)
{
    kolo_agreed_t *all = &body->life.agreed;
    size_t ntables;
    const kolo_param_table_t *const *tables = kolo_param_tables(&ntables);
    uint64_t params = kolo_params_agree_hash(tables, ntables), table = kolo_tune_hash();
    uint64_t order = (uint64_t)body->choice.order;
    const kolo_agree_row_t rows[] = {
        {"must-agree parameters (hash)", KOLO_AGREE_EQUAL, &params},
        {"config.order (KOLO_ORDER_...)", KOLO_AGREE_EQUAL, &order},
        {"tuning table: rules and KOLO_TUNE_FILE (hash)", KOLO_AGREE_EQUAL, &table},
        {"L3 cache bytes", KOLO_AGREE_MIN, &all->l3_bytes},
        {"local slot bytes", KOLO_AGREE_MIN, &all->local_slot_bytes},
        {"remote slot bytes", KOLO_AGREE_MIN, &all->remote_slot_bytes},
        {"LL slot bytes", KOLO_AGREE_MIN, &all->ll_slot_bytes},
        {"fan-out", KOLO_AGREE_MIN, &all->fanout},
        {"references", KOLO_AGREE_MIN, &all->refs},
        {"LL lines", KOLO_AGREE_MIN, &all->ll},
    };
    kolo_status_t status = kolo_member_agree(body->oob, rows, KOLO_COUNTOF(rows));
    return status == KOLO_ERR_MISMATCH ? tell_parameters_apart(body) : status;
}

kolo_status_t kolo_body_meet(kolo_body_t *body)
{
    kolo_peer_card_t card;
    if (body->life.borrowed.cards) {
        KOLO_TRY(kolo_member_build(&body->member, body->rank, body->nranks, body->life.borrowed.cards));
        return kolo_oob_barrier(body->oob);
    }
    KOLO_TRY(kolo_member_fill_card(&card, body->rank, body->gpu.device));
    KOLO_TRY(kolo_wire_fill_card(&card));
    return kolo_member_gather(body->oob, &card, &body->member);
}

kolo_status_t kolo_body_agree(kolo_body_t *body)
{
    kolo_agreed_t *all = &body->life.agreed;
    *all = (kolo_agreed_t){.l3_bytes = body->choice.tune.l3_bytes,
                           .local_slot_bytes = body->choice.sizes.local_slot_bytes,
                           .remote_slot_bytes = body->choice.sizes.remote_slot_bytes,
                           .ll_slot_bytes = body->choice.sizes.ll_slot_bytes,
                           .fanout = body->choice.emit.fanout,
                           .refs = body->choice.emit.refs,
                           .ll = body->choice.tune.ll};
    if (body->life.borrowed.cards) {
        kolo_agreed_t mine = *all; /* and everybody's: it depends on the cards. A host of one rank has no fan-out */
        *all = body->life.borrowed.agreed;
        all->fanout &= mine.fanout;
        all->refs &= mine.refs;
        all->ll &= mine.ll;
    } else {
        all->refs = all->refs && kolo_wire_may_copy(&body->ctx);
        KOLO_TRY(ask_all(body));
    }
    body->choice.tune.l3_bytes = all->l3_bytes;
    body->choice.sizes.local_slot_bytes = (uint32_t)all->local_slot_bytes;
    body->choice.sizes.remote_slot_bytes = (uint32_t)all->remote_slot_bytes;
    body->choice.sizes.ll_slot_bytes = (uint32_t)all->ll_slot_bytes;
    body->choice.tune.fanout = body->choice.emit.fanout = all->fanout != 0;
    body->choice.tune.refs = body->choice.emit.refs = all->refs != 0;
    body->choice.tune.ll = all->ll != 0;
    return KOLO_OK;
}
