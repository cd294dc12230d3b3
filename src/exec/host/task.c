/* SPDX-License-Identifier: Apache-2.0
 *
 * What all tasks share: the waiting loop, and words for what goes wrong.
 */
#include "exec/host/task.h"

#include <inttypes.h>
#include <stdio.h>

#define WORDS           160
#define POLLS_PER_CHECK 1024u

void kolo_task_trace_step(kolo_task_t *task, const kolo_trace_step_t *step)
{
    kolo_exec_trace_t *t = task->trace;
    if (t->count < t->capacity) t->steps[t->count] = *step;
    t->count++;
}

kolo_status_t kolo_task_mismatch(kolo_task_t *task, const kolo_rx_t *rx, uint64_t bytes, uint64_t got)
{
    const kolo_slot_header_t *h = kolo_rx_header(rx);
    uint64_t signature = h->signature, operation = h->operation;
    uint32_t rank = task->rank;
    char mine[WORDS], theirs[WORDS];
    task->met = true;
    task->met_rank = rx->spec.writer;
    task->met_signature = signature;
    task->met_operation = operation;
    kolo_signature_print(task->signature, mine, sizeof(mine));
    kolo_signature_print(signature, theirs, sizeof(theirs));
    bool message = kolo_signature_fields(task->signature).coll == KOLO_COLL_P2P &&
                   kolo_signature_fields(signature).coll == KOLO_COLL_P2P;
    if (message && signature != task->signature)
        return kolo_fail(KOLO_ERR_MISMATCH,
                         "rank %" PRIu32
                         " expects a %s from rank %d, which has sent it a %s: send and receive must have "
                         "the same count and type, and the same order",
                         rank, mine, rx->spec.writer, theirs);
    if (message && got != bytes)
        return kolo_fail(KOLO_ERR_MISMATCH,
                         "rank %" PRIu32 " expects %" PRIu64
                         " bytes of a message from rank %d, which has sent it %" PRIu64
                         ": send and receive must have the same count and type, and the same order",
                         rank, bytes, rx->spec.writer, got);
    if (signature == task->signature && operation == task->operation)
        return kolo_fail(KOLO_ERR_MISMATCH,
                         "rank %" PRIu32 " and rank %d are both in operation %" PRIu64
                         " (%s), but rank %d sent %" PRIu64 " bytes where %" PRIu64
                         " were expected: counts of this operation differ between the ranks",
                         rank, rx->spec.writer, operation, mine, rx->spec.writer, got, bytes);
    return kolo_fail(KOLO_ERR_MISMATCH,
                     "rank %" PRIu32 " is in operation %" PRIu64 " (%s), but rank %d is in operation %" PRIu64
                     " (%s): all ranks must make the same calls in the same order",
                     rank, task->operation, mine, rx->spec.writer, operation, theirs);
}

/* ---- what is awaited ---- */

typedef struct {
    char *buf;
    size_t bytes, used;
} text_t;

static kolo_status_t tell(kolo_tx_t *tx, kolo_rx_t *rx, const char *what, void *arg)
{
    text_t *t = arg;
    if (t->used >= t->bytes) return KOLO_OK;
    int reader = tx ? tx->spec.reader : -1, n;
    const char *sep = t->used ? ", " : "";
    if (rx)
        n = snprintf(t->buf + t->used, t->bytes - t->used, "%s%s rank %d", sep, what, rx->spec.writer);
    else if (reader >= 0)
        n = snprintf(t->buf + t->used, t->bytes - t->used, "%s%s rank %d", sep, what, reader);
    else
        n = snprintf(t->buf + t->used, t->bytes - t->used, "%s%s the other ranks of this host", sep, what);
    if (n > 0) t->used += (size_t)n;
    return KOLO_OK;
}

void kolo_task_describe(void *arg, char *buf, size_t bytes)
{
    kolo_task_t *task = arg;
    char words[WORDS], what[512] = "";
    text_t t = {.buf = what, .bytes = sizeof(what)};
    task->way->visit_waits(task, tell, &t);
    kolo_signature_print(task->signature, words, sizeof(words));
    snprintf(buf, bytes, "rank %" PRIu32 ", in operation %" PRIu64 " (%s, %s algorithm)" KOLO_WAIT_FOR "%s",
             task->rank, task->operation, words, task->way->algorithm(task), t.used ? what : "its own lanes");
}

typedef struct {
    int *ranks;
    size_t count, most;
} awaited_t;

static kolo_status_t note_rank(kolo_tx_t *tx, kolo_rx_t *rx, const char *what, void *arg)
{
    awaited_t *a = arg;
    int rank = rx ? rx->spec.writer : tx->spec.reader;
    (void)what;
    if (rank >= 0 && a->count < a->most) a->ranks[a->count++] = rank;
    return KOLO_OK;
}

size_t kolo_task_awaited(kolo_task_t *task, int *ranks, size_t most)
{
    awaited_t a = {ranks, 0, most};
    task->way->visit_waits(task, note_rank, &a);
    return a.count;
}

static kolo_status_t ask(kolo_tx_t *tx, kolo_rx_t *rx, const char *what, void *arg)
{
    (void)what;
    /* A line that does not come may belong to another operation, whose message has fewer of them: the header
     * tells. */
    if (rx && rx->spec.proto == KOLO_PROTO_LL && kolo_rx_ready(rx)) {
        kolo_task_t *task = arg;
        const kolo_slot_header_t *h = kolo_rx_header(rx);
        if (h->signature != task->signature || h->operation != task->operation)
            return kolo_task_mismatch(task, rx, 0, 0);
    }
    if (rx) return rx->ops && rx->ops->rx_check ? rx->ops->rx_check(rx) : KOLO_OK;
    return tx->ops && tx->ops->tx_check ? tx->ops->tx_check(tx) : KOLO_OK;
}

kolo_status_t kolo_task_check_peers(kolo_task_t *task)
{
    kolo_status_t status = task->way->visit_waits(task, ask, task);
    if (status == KOLO_OK) return KOLO_OK;
    char what[512];
    kolo_task_describe(task, what, sizeof(what));
    return kolo_fail_prefix(status, "while waiting as %s: ", what);
}

/* ---- waiting ---- */

void kolo_task_cancel(kolo_task_t *task)
{
    task->way->cancel(task);
}

kolo_status_t kolo_task_run(kolo_task_t *task, kolo_wait_t *wait)
{
    kolo_status_t status;
    uint32_t polls = 0;
    for (;;) {
        bool moved = false;
        status = task->step(task, &moved);
        if (status != KOLO_IN_PROGRESS) break;
        if (moved) {
            kolo_wait_end(wait);
            polls = 0;
        }
        if (task->ctx && (status = kolo_wire_step(task->ctx)) != KOLO_OK) break;
        if (moved) { /* a long copy goes on in pieces, none of which waits */
            if (KOLO_UNLIKELY(kolo_wait_is_aborted(wait)) && (status = kolo_wait_check(wait)) != KOLO_OK) break;
            continue;
        }
        if (KOLO_UNLIKELY(++polls % POLLS_PER_CHECK == 0 || wait->armed) &&
            (status = kolo_task_check_peers(task)) != KOLO_OK)
            break;
        if ((status = kolo_wait_pause(wait)) != KOLO_OK) break;
    }
    kolo_wait_end(wait);
    if (status != KOLO_OK) kolo_task_cancel(task);
    return status;
}
