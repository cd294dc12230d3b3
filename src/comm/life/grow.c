/* SPDX-License-Identifier: Apache-2.0
 *
 * Grow: new processes join the ranks of a communicator. One old rank, the gateway, has made an id, by which the new
 * ones find it.
 *
 *     old ranks                    gateway                              new ranks
 *     agree over the parent (its turn ends here) -> "staff": an out-of-band object of the old ranks alone
 *     wait on the staff            opens "door" with the id   <------   open the door
 *     take the key      <------    a key from the door's, sealed       have the key from the door
 *     all-gather addresses over the staff, and over the door
 *     take the table    <------    all addresses              ------>   take the table
 *     all open the child with that key and set it up; an agreement among all ends it
 *
 * Nothing but the first step needs the parent, which serves meanwhile. Each step of the gateway carries its status,
 * so what goes wrong on one side is told on the other.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/text/plain.h"
#include "comm/call/call.h"
#include "comm/life/life.h"
#include "member/map.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROW_LABEL   0x67726f7700000000ull /* "grow" */
#define GROW_SERIES  3
#define TEXT_BYTES   512
#define MARGIN_MS    2000 /* the gateway's verdict comes before the others' own time-out */
#define DOOR_PURPOSE "grow"

typedef struct {
    kolo_start_t start; /* of an old rank; a new one uses the child alone */
    bool gateway;
    int keeper; /* the gateway's rank */
    int old, nranks, rank;
    kolo_unique_id_t id;
    kolo_oob_t *staff, *door;
    kolo_oob_child_t *oob_child;
    uint8_t *table; /* nranks addresses */
    uint8_t key[32];
} kolo_grow_t;

typedef struct { /* from the gateway to all of one side */
    int32_t status, pad;
    uint8_t sealed[KOLO_OOB_SEALED_BYTES];
    char text[TEXT_BYTES];
} kolo_grow_word_t;

static void fill_word(kolo_grow_word_t *word, kolo_status_t status)
{
    memset(word, 0, sizeof *word);
    word->status = status;
    if (status != KOLO_OK) snprintf(word->text, sizeof word->text, "%s", kolo_error_text());
}

static kolo_status_t hear_word(kolo_grow_word_t *word)
{
    kolo_plain_copy(word->text, TEXT_BYTES, word->text, TEXT_BYTES);
    if (word->status == KOLO_OK) return KOLO_OK;
    bool known = word->status > KOLO_IN_PROGRESS && word->status <= KOLO_ERR_REVOKED;
    return kolo_fail(known ? (kolo_status_t)word->status : KOLO_ERR_PROTOCOL, "%s", word->text);
}

static uint8_t *row(const kolo_grow_t *g, int rank)
{
    return g->table + (size_t)rank * KOLO_OOB_ADDRESS_BYTES;
}

/* ---- the parent's turn ---- */

typedef struct {
    kolo_offer_t offer;
    uint32_t gateway;
} kolo_grow_row_t;

static kolo_status_t check_losses(const kolo_grow_t *g, const uint8_t *out)
{
    char list[128] = "";
    for (int r = 0; r < g->old; r++) {
        size_t used = strlen(list);
        if (kolo_map_has(out, r)) snprintf(list + used, sizeof list - used, "%srank %d", used ? ", " : "", r);
    }
    return *list ? kolo_fail(KOLO_ERR_REMOTE,
                             "lost, or gone after ending the communicator: %s; shrink first, then grow", list)
                 : KOLO_OK;
}

static kolo_status_t check_rows(kolo_grow_t *g, const uint8_t *out, const kolo_grow_row_t *rows)
{
    int gateways = 0;
    KOLO_TRY(check_losses(g, out));
    for (int r = 0; r < g->old; r++) {
        KOLO_TRY(kolo_child_check_offer(&rows[r].offer, r, g->start.parent->body->name));
        if (!rows[r].gateway) continue;
        gateways++;
        g->keeper = r;
    }
    if (gateways == 1) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "%d old ranks have passed an id; it must be one, that which called kolo_comm_get_grow_id()",
                     gateways);
}

static kolo_status_t open_staff(kolo_grow_t *g, kolo_grow_row_t *rows, kolo_oob_child_t **child, uint8_t *addresses)
{
    kolo_oob_t *parent = g->start.parent->body->oob;
    kolo_body_t *made = g->start.child;
    uint8_t *map = calloc(1, kolo_map_bytes(g->old));
    if (!map) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", g->old);
    kolo_agreement_t a = {.series = GROW_SERIES,
                          .key = GROW_LABEL ^ (uint64_t)g->nranks,
                          .out = map,
                          .rows = (uint8_t *)rows,
                          .row_bytes = sizeof *rows,
                          .deadline_ns = kolo_start_deadline(&g->start, made->init_timeout_ms),
                          .cancel = &made->stop.abort,
                          .what = "comm_grow"};
    rows[g->rank].gateway = g->gateway;
    KOLO_FAIL_POINT("comm.grow.agree");
    kolo_own_failure_t own;
    kolo_child_offer(parent, child, &rows[g->rank].offer, &own);
    kolo_status_t status = kolo_agree_survivors(parent, &a);
    if (own.status != KOLO_OK) status = kolo_fail(own.status, "%s", own.text);
    if (status == KOLO_OK) status = check_rows(g, map, rows);
    free(map);
    KOLO_TRY(status);
    for (int r = 0; r < g->old; r++)
        memcpy(addresses + (size_t)r * KOLO_OOB_ADDRESS_BYTES, rows[r].offer.address, KOLO_OOB_ADDRESS_BYTES);
    kolo_oob_config_t config = {.rank = g->rank,
                                .nranks = g->old,
                                .timeout_ms = KOLO_MIN(made->init_timeout_ms, INT_MAX - MARGIN_MS) + MARGIN_MS,
                                .abort = &made->stop.abort,
                                .name = made->name};
    kolo_oob_child_t *taken = *child;
    *child = NULL;
    return kolo_oob_open_child(taken, &config, GROW_LABEL, addresses, &g->staff);
}

/* Inherits what the parent's ranks know of each other, for `oob`: the staff, later the child. */
static kolo_status_t inherit(const kolo_grow_t *g, kolo_oob_t *oob, kolo_oob_t *from)
{
    int n = kolo_oob_nranks(oob);
    int *members = malloc((size_t)n * sizeof *members);
    if (!members) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", n);
    for (int r = 0; r < n; r++) members[r] = r < g->old ? r : -1;
    kolo_status_t status = kolo_inherit_failures(oob, from, members, true);
    free(members);
    return status;
}

static kolo_status_t take_turn(kolo_grow_t *g)
{
    kolo_oob_child_t *child = NULL;
    kolo_grow_row_t *rows = calloc((size_t)g->old, sizeof *rows);
    kolo_status_t status = kolo_ticket_wait(g->start.parent, g->start.ticket);
    if (status == KOLO_OK && !rows) status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", g->old);
    kolo_whole_t whole;
    bool begun = status == KOLO_OK;
    if (begun) (void)kolo_whole_begin(&whole, g->start.parent->body, KOLO_CALL_WORD_GROW);
    if (status == KOLO_OK) status = open_staff(g, rows, &child, g->table);
    if (status == KOLO_OK) status = inherit(g, g->staff, g->start.parent->body->oob);
    if (begun) kolo_whole_end(&whole, status);
    if (child) kolo_oob_discard_child(child);
    free(rows);
    return status;
}

/* ---- bringing both sides together ---- */

/* Ends the gateway's wait for new ones: an old rank is lost, or the parent revoked. */
static void on_staff_news(void *arg, kolo_news_kind_t kind, int rank, const char *why)
{
    kolo_body_t *child = arg;
    uint32_t none = KOLO_STOP_NONE;
    (void)kind, (void)rank, (void)why;
    atomic_compare_exchange_strong(&child->stop.reason, &none, KOLO_STOP_LOST);
}

/* Returns the gateway's words for the new ranks, and for the old ones. */
static kolo_status_t why_no_door(void *arg)
{
    kolo_grow_t *g = arg;
    char word[400];
    if (atomic_load(&g->start.child->stop.reason) != KOLO_STOP_LOST) {
        if (!kolo_inherit_failure(g->staff, 0, word, sizeof word)) return KOLO_ERR_ABORTED;
        return kolo_fail(KOLO_ERR_ABORTED, "the grow was aborted; before that, %s", word);
    }
    kolo_status_t status = kolo_oob_barrier(g->staff); /* it fails at once, and says why */
    if (status == KOLO_OK) return kolo_fail(KOLO_ERR_REMOTE, "an old rank was lost while new ones were awaited");
    return kolo_fail_prefix(status, "while new ranks were awaited: ");
}

static kolo_status_t open_door(kolo_grow_t *g)
{
    kolo_body_t *child = g->start.child;
    char name[48]; /* words of the door are told to ranks that know other numbers */
    snprintf(name, sizeof name, "%.10s door (k is rank k+%d)", child->name, g->old - 1);
    kolo_oob_config_t config = {.rank = g->gateway ? 0 : g->rank - g->old + 1,
                                .nranks = g->nranks - g->old + 1,
                                .nids = 1,
                                .ids = &g->id,
                                .timeout_ms = child->init_timeout_ms,
                                .abort = g->gateway ? &child->stop.reason : &child->stop.abort,
                                .name = name};
    uint32_t lost = KOLO_STOP_LOST;
    KOLO_FAIL_POINT("comm.grow.door");
    if (g->gateway) kolo_news_set_handler(g->staff, on_staff_news, child);
    kolo_status_t status = kolo_oob_open_for(&config, g->gateway ? why_no_door : NULL, g, &g->door);
    if (g->gateway) kolo_news_set_handler(g->staff, NULL, NULL);
    atomic_compare_exchange_strong(&child->stop.reason, &lost, KOLO_STOP_NONE);
    KOLO_TRY(status);
    kolo_oob_derive_key(g->door, DOOR_PURPOSE, g->key);
    return KOLO_OK;
}

/* Gathers the addresses of the new ranks over the door, where the gateway is rank 0. (The old ones' go over the
 * staff.) */
static kolo_status_t gather_new(kolo_grow_t *g)
{
    int n = g->nranks - g->old + 1;
    uint8_t *rows = calloc((size_t)n, KOLO_OOB_ADDRESS_BYTES);
    if (!rows) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d addresses", n);
    if (!g->gateway)
        memcpy(rows + (size_t)(g->rank - g->old + 1) * KOLO_OOB_ADDRESS_BYTES, row(g, g->rank),
               KOLO_OOB_ADDRESS_BYTES);
    kolo_status_t status = kolo_oob_all_gather(g->door, rows, KOLO_OOB_ADDRESS_BYTES);
    if (status == KOLO_OK)
        memcpy(row(g, g->old), rows + KOLO_OOB_ADDRESS_BYTES, (size_t)(n - 1) * KOLO_OOB_ADDRESS_BYTES);
    free(rows);
    return status;
}

static kolo_status_t hand_out(kolo_grow_t *g, kolo_oob_t *oob, int from, kolo_status_t status)
{
    kolo_grow_word_t word;
    fill_word(&word, status);
    KOLO_TRY(kolo_oob_broadcast(oob, from, &word, sizeof word));
    KOLO_TRY(hear_word(&word));
    return kolo_oob_broadcast(oob, from, g->table, (size_t)g->nranks * KOLO_OOB_ADDRESS_BYTES);
}

static kolo_status_t share_key(kolo_grow_t *g, kolo_status_t status)
{
    kolo_grow_word_t word = {0};
    if (g->gateway && status == KOLO_OK) {
        fill_word(&word, KOLO_OK);
        status = kolo_oob_seal(g->staff, g->key, word.sealed);
    }
    if (g->gateway && status != KOLO_OK) fill_word(&word, status);
    KOLO_FAIL_POINT("comm.grow.key");
    KOLO_TRY(kolo_oob_broadcast(g->staff, g->keeper, &word, sizeof word));
    if (g->gateway) return status;
    KOLO_TRY(hear_word(&word));
    return kolo_oob_unseal(g->staff, word.sealed, g->key);
}

/* Keeps the first failure, and its words, over what follows from it. */
static kolo_status_t first_failure(kolo_status_t first, char text[TEXT_BYTES], kolo_status_t status)
{
    if (first != KOLO_OK || status == KOLO_OK) return first;
    snprintf(text, TEXT_BYTES, "%s", kolo_error_text());
    return status;
}

static kolo_status_t join_as_gateway(kolo_grow_t *g)
{
    char text[TEXT_BYTES];
    kolo_status_t status = first_failure(KOLO_OK, text, open_door(g));
    kolo_status_t told = share_key(g, status);
    if (status != KOLO_OK) return kolo_fail(status, "%s", text);
    status = first_failure(status, text, told);
    if (status == KOLO_OK)
        status =
            first_failure(status, text, kolo_oob_prepare_joined(g->staff, g->key, &g->oob_child, row(g, g->rank)));
    /* both gathers, whatever one brings: the others wait there, and hear the word behind them */
    if (told == KOLO_OK)
        status = first_failure(status, text, kolo_oob_all_gather(g->staff, g->table, KOLO_OOB_ADDRESS_BYTES));
    status = first_failure(status, text, gather_new(g));
    KOLO_FAIL_POINT("comm.grow.table");
    if (status != KOLO_OK) kolo_fail(status, "%s", text);
    status = first_failure(status, text, hand_out(g, g->staff, g->rank, status));
    if (status != KOLO_OK) kolo_fail(status, "%s", text);
    status = first_failure(status, text, hand_out(g, g->door, 0, status));
    return status == KOLO_OK ? KOLO_OK : kolo_fail(status, "%s", text);
}

static kolo_status_t join_as_staff(kolo_grow_t *g)
{
    KOLO_TRY(share_key(g, KOLO_OK));
    KOLO_TRY(kolo_oob_prepare_joined(g->staff, g->key, &g->oob_child, row(g, g->rank)));
    KOLO_TRY(kolo_oob_all_gather(g->staff, g->table, KOLO_OOB_ADDRESS_BYTES));
    return hand_out(g, g->staff, g->keeper, KOLO_OK);
}

static kolo_status_t join_as_new(kolo_grow_t *g)
{
    KOLO_TRY(open_door(g));
    KOLO_TRY(kolo_oob_prepare_joined(g->door, g->key, &g->oob_child, row(g, g->rank)));
    KOLO_TRY(gather_new(g));
    return hand_out(g, g->door, 0, KOLO_OK);
}

/* ---- one rank's part ---- */

static kolo_status_t make_child(kolo_grow_t *g)
{
    kolo_body_t *child = g->start.child;
    kolo_oob_child_t *taken = g->oob_child;
    uint8_t *out = calloc(1, kolo_map_bytes(g->nranks));
    bool again;
    if (!out) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", g->nranks);
    g->oob_child = NULL;
    kolo_status_t status = kolo_child_open(child, g->rank, g->nranks, taken, GROW_LABEL, g->table);
    if (status == KOLO_OK && g->staff) status = inherit(g, child->oob, g->staff);
    if (status == KOLO_OK) status = kolo_child_settle(child, kolo_deadline_ms(child->init_timeout_ms), &again, out);
    free(out);
    return status;
}

static void end(kolo_oob_t *oob, kolo_status_t status)
{
    if (!oob) return;
    if (status != KOLO_OK) kolo_oob_give_reason(oob, kolo_error_text());
    kolo_oob_close(oob);
    kolo_oob_fini(oob);
}

static kolo_status_t grow(kolo_start_t *start)
{
    kolo_grow_t *g = (kolo_grow_t *)start;
    bool is_new = !start->parent;
    kolo_status_t status = KOLO_OK;
    g->table = calloc((size_t)g->nranks, KOLO_OOB_ADDRESS_BYTES);
    if (!g->table) status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d addresses", g->nranks);
    if (!is_new) {
        kolo_status_t turn = take_turn(g); /* in any case: the ticket is to be ended */
        if (status == KOLO_OK) status = turn;
        kolo_start_leave(start);
        /* Connects neighbours, so that a death among those who wait is seen. */
        if (status == KOLO_OK) status = kolo_oob_barrier(g->staff);
    }
    if (status == KOLO_OK) status = is_new ? join_as_new(g) : g->gateway ? join_as_gateway(g) : join_as_staff(g);
    if (status == KOLO_OK) status = make_child(g);
    if (g->oob_child) kolo_oob_discard_child(g->oob_child);
    if (g->gateway && status != KOLO_OK) kolo_root_dismiss(&g->id, status, kolo_error_text());
    end(g->door, status);
    end(g->staff, status);
    free(g->table);
    explicit_bzero(g->key, sizeof g->key);
    explicit_bzero(&g->id, sizeof g->id);
    return status;
}

/* ---- the call ---- */

kolo_status_t kolo_comm_get_grow_id(kolo_comm_t comm, kolo_unique_id_t *id)
{
    if (!id) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_get_grow_id: the output is NULL");
    kolo_body_t *body = kolo_handle_visit(comm, "comm_get_grow_id");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    int state = atomic_load(&comm->state);
    kolo_status_t status = state == KOLO_COMM_READY
                               ? kolo_id_create_grow(comm->nranks, id)
                               : kolo_fail_prefix(kolo_handle_refuse(comm, state), "comm_get_grow_id: ");
    kolo_handle_leave(comm);
    return status;
}

static kolo_status_t new_grow(int old, int nranks, const kolo_unique_id_t *id, int rank, kolo_grow_t **out)
{
    if (nranks <= old || nranks > (1 << 20))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_grow: nranks is %d, expected %d to %d", nranks, old + 1,
                         1 << 20);
    kolo_grow_t *g = calloc(1, sizeof *g);
    if (!g) return kolo_fail(KOLO_ERR_NO_MEMORY, "comm_grow: out of memory");
    g->start = (kolo_start_t){.run = grow, .what = "comm_grow"};
    g->old = old;
    g->nranks = nranks;
    g->rank = rank;
    if (id) g->id = *id;
    *out = g;
    return KOLO_OK;
}

static void *join_in_background(void *arg)
{
    kolo_grow_t *g = arg;
    kolo_body_t *child = g->start.child;
    kolo_body_started(child, grow(&g->start), "comm_grow", NULL);
    free(g);
    kolo_handle_leave(child->handle);
    return NULL;
}

static kolo_status_t join(kolo_grow_t *g, const kolo_config_t *config, kolo_comm_t *newcomm)
{
    kolo_body_t *child;
    kolo_status_t status = kolo_body_new(g->rank, g->nranks, config, NULL, "comm_grow", &child);
    if (status != KOLO_OK) {
        free(g);
        return status;
    }
    g->start.child = child;
    if (child->life.blocking && !kolo_group_open()) {
        status = grow(&g->start);
        kolo_body_started(child, status, "comm_grow", NULL);
        status = kolo_body_made(child, status);
    } else {
        status = kolo_body_background(child, join_in_background, g);
        if (status == KOLO_OK) {
            *newcomm = child->handle;
            return kolo_group_open() ? kolo_group_add_life(child->handle, KOLO_GROUP_MAKES, NULL)
                                     : KOLO_IN_PROGRESS;
        }
    }
    free(g);
    if (status == KOLO_OK)
        *newcomm = child->handle;
    else
        kolo_body_free(child);
    return status;
}

static kolo_status_t grow_as_new(int nranks, const kolo_unique_id_t *id, int rank, kolo_comm_t *newcomm,
                                 const kolo_config_t *config)
{
    kolo_grow_t *g = NULL;
    if (!id) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_grow: a new rank (comm is NULL) needs the id");
    if (!newcomm) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_grow: the output handle is NULL");
    KOLO_TRY(kolo_comm_library_init());
    KOLO_TRY(kolo_comm_config_check(config, "comm_grow"));
    kolo_status_t status = kolo_id_check(id);
    if (status != KOLO_OK) return kolo_fail_prefix(status, "comm_grow: ");
    int old = kolo_id_grows_from(id);
    if (old == 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_grow: the id was not made by kolo_comm_get_grow_id()");
    if (rank < old || rank >= nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_grow: a new rank is %d, expected %d to %d", rank, old,
                         nranks - 1);
    KOLO_TRY(kolo_group_admit_life("comm_grow"));
    KOLO_TRY(new_grow(old, nranks, id, rank, &g));
    return join(g, config, newcomm);
}

kolo_status_t kolo_comm_grow(kolo_comm_t comm, int nranks, const kolo_unique_id_t *id, int rank,
                             kolo_comm_t *newcomm, const kolo_config_t *config)
{
    kolo_grow_t *g = NULL;
    if (!comm) return grow_as_new(nranks, id, rank, newcomm, config);
    KOLO_TRY(kolo_start_check(comm, newcomm, config, "comm_grow"));
    if (rank != -1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "comm_grow: rank is %d, an old rank keeps its own and passes -1", rank);
    if (id && kolo_id_grows_from(id) != comm->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "comm_grow: the id was not made by kolo_comm_get_grow_id() for a communicator of %d ranks",
                         comm->nranks);
    KOLO_TRY(new_grow(comm->nranks, nranks, id, comm->rank, &g));
    g->gateway = id != NULL;
    g->start.parent = comm;
    return kolo_start(&g->start, true, true, newcomm, config);
}
