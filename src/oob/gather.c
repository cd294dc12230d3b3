/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gather, barrier and broadcast between all ranks.
 *
 * Every all-gather takes log2(n) steps, each of which sends rows to one rank and receives rows from another: before
 * step k a rank has the rows of itself and the 2^k - 1 ranks after it; it receives those of the rank 2^k further on
 * and sends its own to the rank 2^k before it. The receiver has called the sender, so the same connections serve
 * all all-gathers.
 *
 * The same pattern spreads the addresses in the first place. A rank can call the rank 2^k further on only when it
 * knows its address; so in that gather each step carries one row more, the address of the rank that the sender
 * itself calls next. At the start a rank knows its own address and, from the root, that of the next rank.
 */
#include "oob/gather.h"

#include "base/failpoint.h"
#include "oob/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG_STEPS 24 /* bits of a tag for the step of an all-gather; its number lies above them */

typedef struct {
    int to, from;           /* ranks */
    int send_row, recv_row; /* first of the rows, which wrap round at nranks */
    int send_rows, recv_rows;
    kolo_inbound_t in;
    kolo_outbound_t out;
    kolo_conn_t *out_conn;
} step_t;

typedef struct {
    kolo_oob_t *oob;
    uint8_t *table;
    size_t row_bytes;
    uint64_t tag, deadline_ns;
    const char *what;
    int nsteps, at;
    step_t *steps;
    kolo_peer_t *to, *from; /* of the step at hand */
} gather_t;

static int make_steps(const kolo_oob_t *oob, int extra, step_t *steps)
{
    int n = oob->nranks, r = oob->rank, count = 0;
    for (int64_t have = 1; have < n; have *= 2, count++) {
        int d = (int)have, rows = (int)KOLO_MIN(have + extra, (int64_t)n - have);
        if (steps != NULL)
            steps[count] = (step_t){.to = (r + n - d) % n,
                                    .from = (r + d) % n,
                                    .send_row = r,
                                    .send_rows = rows,
                                    .recv_row = (r + d) % n,
                                    .recv_rows = rows};
    }
    return count;
}

/* Rows of the table as at most two parts. */
static int row_parts(const gather_t *g, int row, int rows, uint8_t *part[2], size_t bytes[2])
{
    int n = g->oob->nranks, straight = KOLO_MIN(rows, n - row);
    part[0] = g->row_bytes > 0 ? g->table + (size_t)row * g->row_bytes : NULL;
    bytes[0] = (size_t)straight * g->row_bytes;
    part[1] = g->table;
    bytes[1] = (size_t)(rows - straight) * g->row_bytes;
    return straight < rows ? 2 : 1;
}

static void post_step(gather_t *g, int i)
{
    step_t *step = &g->steps[i];
    uint8_t *part[2];
    size_t bytes[2];
    int parts = row_parts(g, step->recv_row, step->recv_rows, part, bytes);
    step->in = (kolo_inbound_t){.kind = KOLO_FRAME_GATHER, .peer = step->from, .tag = g->tag + (uint64_t)i};
    for (int p = 0; p < parts; p++) {
        step->in.part[p] = part[p];
        step->in.part_bytes[p] = (uint32_t)bytes[p];
        step->in.bytes += (uint32_t)bytes[p];
    }
    kolo_inbound_post(g->oob, &step->in);
}

static void start_send(gather_t *g, int i, kolo_conn_t *conn)
{
    step_t *step = &g->steps[i];
    uint8_t *part[2];
    size_t bytes[2];
    int parts = row_parts(g, step->send_row, step->send_rows, part, bytes);
    kolo_outbound_init(&step->out, KOLO_FRAME_GATHER, g->tag + (uint64_t)i);
    for (int p = 0; p < parts; p++) kolo_outbound_add(&step->out, part[p], bytes[p]);
    step->out_conn = conn;
    kolo_conn_send(conn, &step->out);
}

/* ---- waiting for a step ---- */

static bool to_connected(kolo_oob_t *oob, void *arg)
{
    gather_t *g = arg;
    return kolo_peer_out(g->to) != NULL || kolo_oob_is_lost(oob) || g->from->dial_status != KOLO_OK;
}

static bool step_over(kolo_oob_t *oob, void *arg)
{
    gather_t *g = arg;
    step_t *step = &g->steps[g->at];
    return step->in.done || kolo_oob_is_lost(oob) || g->from->gone || g->from->dial_status != KOLO_OK ||
           step->out.failed;
}

static bool sends_done(const gather_t *g)
{
    for (int i = 0; i < g->nsteps; i++)
        if (!g->steps[i].out.done) return false;
    return true;
}

static bool sends_over(kolo_oob_t *oob, void *arg)
{
    return kolo_oob_is_lost(oob) || sends_done(arg);
}

static const char addresses[] = "exchanging addresses";

static void describe_step(void *arg, char *buf, size_t bytes)
{
    gather_t *g = arg;
    kolo_oob_t *oob = g->oob;
    pthread_mutex_lock(&oob->lock);
    int at = KOLO_MIN(g->at, g->nsteps - 1);
    const step_t *step = &g->steps[at];
    char to[96] = "", got[48] = "nothing came yet";
    const char *state = g->from->live > 0 ? "connected" : g->from->dialling ? "being called" : "not connected";
    if (step->in.got > 0) snprintf(got, sizeof got, "%u of %u bytes came", step->in.got, step->in.bytes);
    if (!step->out.done)
        snprintf(to, sizeof to, "; what goes to rank %d is not sent yet (%s)", step->to,
                 g->to->live > 0 ? "connected" : "it has not called yet");
    if (!step->out.done && g->to->live == 0 && g->what == addresses) { /* who waits for nobody holds nobody up */
        snprintf(buf, bytes,
                 "rank %d to call kolo_comm_init_rank() (its address is known, it has not called; %s, "
                 "rank %d of %d)",
                 step->to, oob->name, oob->rank, oob->nranks);
        pthread_mutex_unlock(&oob->lock);
        return;
    }
    snprintf(buf, bytes, "rank %d to come to the same call (%s, %s; step %d of %d, %s%s; %s, rank %d of %d)",
             step->from, state, got, at + 1, g->nsteps, g->what, to, oob->name, oob->rank, oob->nranks);
    pthread_mutex_unlock(&oob->lock);
}

static kolo_status_t run_step(gather_t *g, int i)
{
    kolo_oob_t *oob = g->oob;
    step_t *step = &g->steps[i];
    g->at = i;
    g->to = kolo_peer_get(oob, step->to);
    g->from = kolo_peer_get(oob, step->from);
    if (g->to == NULL || g->from == NULL) return KOLO_ERR_NO_MEMORY;
    KOLO_FAIL_POINT_TRY("oob.gather.step");
    KOLO_TRY(kolo_oob_lost(oob, g->what));
    KOLO_TRY(kolo_peer_dial(oob, g->from, g->deadline_ns));
    KOLO_TRY(kolo_oob_await(oob, to_connected, g, g->deadline_ns, describe_step, g));
    kolo_conn_t *conn = kolo_peer_out(g->to);
    if (conn == NULL) return kolo_peer_check(oob, g->from, g->what);
    start_send(g, i, conn);
    KOLO_FAIL_POINT("oob.gather.sent");
    KOLO_TRY(kolo_oob_await(oob, step_over, g, g->deadline_ns, describe_step, g));
    if (step->in.done) return kolo_inbound_result(oob, g->from, &step->in, g->what);
    KOLO_TRY(kolo_peer_check(oob, g->from, g->what));
    KOLO_TRY(kolo_peer_check(oob, g->to, g->what));
    oob->failed = true;
    oob->blames = step->to;
    return kolo_fail(KOLO_ERR_REMOTE, "%s: rank %d, %s: the connection to rank %d broke", oob->name, oob->rank,
                     g->what, step->to);
}

static kolo_status_t gather_locked(gather_t *g)
{
    kolo_oob_t *oob = g->oob;
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < g->nsteps; i++) post_step(g, i);
    for (int i = 0; i < g->nsteps && status == KOLO_OK; i++) status = run_step(g, i);
    if (status == KOLO_OK && g->nsteps > 0) {
        g->at = g->nsteps - 1;
        status = kolo_oob_await(oob, sends_over, g, g->deadline_ns, describe_step, g);
        if (status == KOLO_OK && !sends_done(g)) status = kolo_oob_lost(oob, g->what);
    }
    for (int i = 0; i < g->nsteps; i++) {
        kolo_inbound_withdraw(oob, &g->steps[i].in);
        kolo_outbound_withdraw(g->steps[i].out_conn, &g->steps[i].out);
    }
    return status;
}

#define NEXT   UINT64_MAX                        /* of the object's own count */
#define BESIDE (UINT64_C(1) << (63 - TAG_STEPS)) /* a series that another thread counts */

static kolo_status_t gather(gather_t *g, int extra, uint64_t number)
{
    kolo_oob_t *oob = g->oob;
    if (oob->nranks == 1) return KOLO_OK;
    g->nsteps = make_steps(oob, extra, NULL);
    g->steps = calloc((size_t)g->nsteps, sizeof(step_t));
    if (g->steps == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no memory for an all-gather", oob->name);
    make_steps(oob, extra, g->steps);
    pthread_mutex_lock(&oob->lock);
    g->tag = (number == NEXT ? oob->gathers++ : number) << TAG_STEPS;
    kolo_status_t status = gather_locked(g);
    if (status != KOLO_OK) oob->failed = true;
    pthread_mutex_unlock(&oob->lock);
    free(g->steps);
    return status;
}

kolo_status_t kolo_oob_gather_addresses(kolo_oob_t *oob, uint64_t deadline_ns)
{
    kolo_address_t mine = oob->table[oob->rank];
    KOLO_FAIL_POINT_TRY("oob.addresses.start");
    gather_t g = {.oob = oob,
                  .table = (uint8_t *)oob->table,
                  .row_bytes = sizeof(kolo_address_t),
                  .deadline_ns = deadline_ns,
                  .what = addresses};
    KOLO_TRY(gather(&g, 1, NEXT));
    for (int i = 0; i < oob->nranks; i++) {
        const char *wrong = kolo_address_check(&oob->table[i]);
        if (wrong == NULL && i == oob->rank && memcmp(&mine, &oob->table[i], sizeof(mine)) != 0) wrong = "not ours";
        if (wrong != NULL)
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s: rank %d got an address for rank %d that is none: %s",
                             oob->name, oob->rank, i, wrong);
    }
    return KOLO_OK;
}

static kolo_status_t gather_rows(kolo_oob_t *oob, void *table, size_t bytes, uint64_t deadline_ns, uint64_t number)
{
    if (oob == NULL || (table == NULL && bytes > 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "all-gather: oob or table is NULL");
    if (bytes > KOLO_GATHER_FRAME_MAX / (size_t)oob->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: rows of %zu bytes are too large for %d ranks", oob->name,
                         bytes, oob->nranks);
    gather_t g = {.oob = oob,
                  .table = table,
                  .row_bytes = bytes,
                  .deadline_ns = kolo_oob_deadline(oob, deadline_ns),
                  .what = kolo_wait_purpose_call("in an all-gather")};
    return gather(&g, 0, number);
}

kolo_status_t kolo_oob_all_gather_until(kolo_oob_t *oob, void *table, size_t bytes, uint64_t deadline_ns)
{
    return gather_rows(oob, table, bytes, deadline_ns, NEXT);
}

kolo_status_t kolo_oob_all_gather_beside(kolo_oob_t *oob, uint64_t number, void *table, size_t bytes)
{
    return gather_rows(oob, table, bytes, 0, BESIDE | number);
}

kolo_status_t kolo_oob_all_gather(kolo_oob_t *oob, void *table, size_t bytes)
{
    return kolo_oob_all_gather_until(oob, table, bytes, 0);
}

kolo_status_t kolo_oob_barrier(kolo_oob_t *oob)
{
    if (oob == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "barrier: oob is NULL");
    gather_t g = {
        .oob = oob, .deadline_ns = kolo_oob_deadline(oob, 0), .what = kolo_wait_purpose_call("in a barrier")};
    return gather(&g, 0, NEXT);
}

/* Broadcasts by a binomial tree over ranks counted from the root: rank v gets from v without its highest bit. */
static kolo_status_t broadcast_part(kolo_oob_t *oob, int root, uint64_t tag, void *data, size_t bytes,
                                    uint64_t deadline_ns)
{
    int n = oob->nranks, v = (oob->rank - root + n) % n, bit = 1;
    kolo_message_to_t letter = {KOLO_FRAME_BROADCAST, 0, tag, deadline_ns};
    if (v > 0) {
        while (bit * 2 <= v) bit *= 2;
        letter.rank = (v - bit + root) % n;
        KOLO_TRY(kolo_oob_recv_kind(oob, &letter, data, bytes));
        bit *= 2;
    }
    for (; bit < n - v; bit *= 2) {
        letter.rank = (v + bit + root) % n;
        KOLO_TRY(kolo_oob_send_kind(oob, &letter, data, bytes));
    }
    return KOLO_OK;
}

kolo_status_t kolo_oob_broadcast(kolo_oob_t *oob, int root, void *data, size_t bytes)
{
    if (oob == NULL || (data == NULL && bytes > 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "broadcast: oob or data is NULL");
    if (root < 0 || root >= oob->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: broadcast root %d is not a rank of 0..%d", oob->name, root,
                         oob->nranks - 1);
    uint64_t tag = oob->broadcasts++ << 32, deadline = kolo_oob_deadline(oob, 0);
    uint8_t *at = data;
    do { /* zero bytes still travel: a broadcast orders its ranks */
        size_t part = KOLO_MIN(bytes, (size_t)KOLO_OOB_MESSAGE_MAX);
        KOLO_TRY(broadcast_part(oob, root, tag++, at, part, deadline));
        at += part;
        bytes -= part;
    } while (bytes > 0);
    return KOLO_OK;
}
