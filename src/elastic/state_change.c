/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of the ranks of a state: the first communicator, newcomers, leavers, losses. After each change the ranks
 * exchange a table, from which all see which rank has the newest commit, which ranks lack it, and which process of
 * the launcher each rank is. See state.h.
 */
#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"
#include "elastic/state.h"
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_TRIES 5

bool kolo_state_is_loss(kolo_status_t status)
{
    return status == KOLO_ERR_REMOTE || status == KOLO_ERR_ABORTED || status == KOLO_ERR_REVOKED;
}

kolo_status_t kolo_state_end_together(kolo_state_t s, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", kolo_error_text());
    kolo_call_finalize(KOLO_CALL_WORD_COMMIT, s->comm);
    kolo_comm_destroy(s->comm);
    s->comm = NULL;
    return kolo_fail(status, "%s", text);
}

/* ---- the roll ---- */

typedef struct {
    uint64_t number, next; /* as in the state; next: has_next */
    uint64_t parts;        /* a hash of names and sizes */
    uint64_t plan, worker, min;
} row_t;

static uint64_t parts_hash(const kolo_state_t s)
{
    uint64_t hash = KOLO_HASH_INIT;
    for (size_t i = 0; i < s->nparts; i++) {
        uint64_t bytes = s->parts[i].is_value ? UINT64_MAX : s->parts[i].bytes; /* values may have any size */
        hash = kolo_hash_bytes(hash, s->parts[i].name, strlen(s->parts[i].name) + 1);
        hash = kolo_hash_bytes(hash, &bytes, sizeof bytes);
    }
    return hash;
}

static bool lacks(const row_t *row, uint64_t newest)
{
    return row->number != newest && !(row->next && row->number + 1 == newest);
}

/* Checks that all have the same buffers. If it is newcomers alone that have others, say of another build of the
 * program, they are what is wrong, and lost to the others, which go on without them. Else it is the end of all. */
static kolo_status_t compare_parts(kolo_state_t s, const row_t *rows)
{
    int wrong = -1;
    bool all = rows[0].number == 0;
    for (int r = s->nranks - 1; r > 0; r--) {
        if (rows[r].parts == rows[0].parts) continue;
        all |= rows[r].number > 0 || rows[r].next;
        wrong = r;
    }
    if (wrong < 0) return KOLO_OK;
    if (!all && rows[s->rank].parts == rows[0].parts)
        return kolo_fail(
            KOLO_ERR_REMOTE,
            "state: rank %d has registered other buffers (names, sizes or order) than the job: it is left out",
            wrong);
    kolo_status_t status = kolo_fail(
        KOLO_ERR_MISMATCH, "state: rank %d has registered other buffers (names, sizes or order) than rank 0",
        all ? wrong : s->rank);
    return all ? kolo_state_end_together(s, status) : status;
}

/* Reads what the roll says; sets what all share. */
static kolo_status_t read_roll(kolo_state_t s, const row_t *rows, uint64_t *newest, int *source, bool *any)
{
    *newest = 0;
    *source = 0;
    *any = false;
    KOLO_TRY(compare_parts(s, rows));
    for (int r = 0; r < s->nranks; r++) {
        *newest = KOLO_MAX(*newest, rows[r].number);
        s->plan = KOLO_MAX(s->plan, (uint32_t)rows[r].plan);
        s->min = KOLO_MIN(s->min, (int)rows[r].min);
        s->workers[r] = (uint32_t)rows[r].worker;
    }
    for (int r = s->nranks - 1; r >= 0; r--) {
        if (lacks(&rows[r], *newest))
            *any = true;
        else
            *source = r;
    }
    return KOLO_OK;
}

static kolo_status_t call_roll(kolo_state_t s, row_t **rows)
{
    size_t n = (size_t)s->nranks;
    uint32_t *workers = realloc(s->workers, n * sizeof *workers);
    if (workers) s->workers = workers; /* the old one is gone */
    *rows = calloc(n, sizeof **rows);
    if (!workers || !*rows) return kolo_fail(KOLO_ERR_NO_MEMORY, "state: out of memory for a roll of %zu ranks", n);
    row_t mine = {s->number, s->has_next, parts_hash(s), s->plan, s->worker, (uint64_t)s->min};
    return kolo_all_gather(&mine, *rows, sizeof mine, KOLO_UINT8, s->comm, NULL);
}

/* Gives the newest commit to all; when there is none, what lies in the buffers of rank 0 is the first. */
static kolo_status_t settle(kolo_state_t s)
{
    row_t *rows = NULL;
    uint64_t newest = 0;
    int source = 0;
    bool any = false;
    kolo_status_t status = call_roll(s, &rows);
    if (status == KOLO_OK) status = read_roll(s, rows, &newest, &source, &any);
    bool mine = status == KOLO_OK && lacks(&rows[s->rank], newest);
    free(rows);
    KOLO_TRY(status);
    if (newest == 0) {
        newest = 1;
        any = true;
        mine = s->rank != 0;
        if (!mine) {
            KOLO_TRY(kolo_state_copy_out(s, &s->now));
            s->number = 1;
        }
    }
    if (!mine && s->number + 1 == newest) { /* others have seen this commit succeed */
        kolo_state_promote(s);
        s->number = newest;
    }
    s->has_next = false; /* it is where a commit arrives */
    if (any) {
        uint64_t before = s->synced;
        KOLO_TRY(kolo_state_copy_send(s, s->rank == source ? &s->now : &s->next, source));
        if (!mine && s->rank != source) s->synced = before;
    }
    if (mine) {
        kolo_state_promote(s);
        s->number = newest;
    }
    return kolo_state_restore(s);
}

kolo_status_t kolo_state_sync(kolo_state_t s)
{
    KOLO_TRY(kolo_state_check(s, "state_sync"));
    if (!s->comm)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_sync: only from the function of kolo_state_run()");
    return settle(s);
}

/* ---- communicators ---- */

static kolo_status_t adopt(kolo_state_t s, kolo_comm_t comm)
{
    s->comm = comm;
    KOLO_TRY(kolo_comm_count(comm, &s->nranks));
    return kolo_comm_user_rank(comm, &s->rank);
}

static kolo_status_t settle_and_say(kolo_state_t s)
{
    KOLO_TRY(settle(s));
    return kolo_state_link_say(&s->link, "ready %u %d %d %llu", s->plan, s->rank, s->nranks,
                               (unsigned long long)(s->number - 1));
}

static kolo_config_t options(const kolo_state_t s)
{
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    c.blocking = 1;
    c.init_timeout_ms = s->config.change_timeout_ms;
    c.name = "state";
    return c;
}

/* ---- getting in ---- */

/* Connects the ranks that a launcher has started; without a launcher it is one rank. */
static kolo_status_t connect_all(kolo_state_t s)
{
    kolo_comm_t comm;
    kolo_config_t c = options(s);
    KOLO_TRY(kolo_job_connect(&comm, &c));
    KOLO_TRY(adopt(s, comm));
    return settle_and_say(s);
}

static kolo_status_t be_first(kolo_state_t s, const kolo_word_t *word)
{
    kolo_unique_id_t id;
    kolo_comm_t comm;
    kolo_config_t c = options(s);
    KOLO_TRY(kolo_get_unique_id(&id));
    KOLO_TRY(kolo_comm_init_rank(&comm, 1, id, 0, &c));
    KOLO_TRY(adopt(s, comm));
    s->min = word->min;
    KOLO_TRY(settle(s));
    if (word->add == 0) {
        s->plan = word->plan;
        return kolo_state_link_say(&s->link, "ready %u 0 1 0", s->plan);
    }
    s->word = *word;
    s->word.kind = KOLO_WORD_ADD;
    s->plan_source = 0;
    return kolo_state_change(s);
}

/* Takes the program's communicator. The state waits in each call: of one that does not block it makes one that
 * does. */
static kolo_status_t take_given(kolo_state_t s)
{
    kolo_comm_t given = s->config.comm, own;
    kolo_config_t c = options(s);
    KOLO_TRY(adopt(s, given));
    if (!given->blocking) {
        KOLO_TRY(kolo_comm_shrink(given, NULL, 0, KOLO_SHRINK_DEFAULT, &own, &c));
        kolo_comm_destroy(given);
        KOLO_TRY(adopt(s, own));
    }
    return settle_and_say(s);
}

/* Brings a newcomer in. One that does not get in has nothing that the others could need: it waits for the next
 * plan. */
static kolo_status_t come_in(kolo_state_t s, const kolo_word_t *word)
{
    kolo_comm_t comm;
    kolo_config_t c = options(s);
    KOLO_TRY(kolo_comm_grow(NULL, word->nranks, &word->id, word->rank, &comm, &c));
    s->plan = word->plan;
    s->min = word->min;
    kolo_status_t status = adopt(s, comm);
    if (status == KOLO_OK) status = settle_and_say(s);
    if (status == KOLO_OK) return KOLO_OK;
    char text[KOLO_ERROR_TEXT_BYTES]; /* the abort has words of its own */
    snprintf(text, sizeof text, "%s", kolo_error_text());
    if (s->comm) kolo_comm_abort(comm);
    s->comm = NULL;
    s->number = 0;
    return kolo_fail(status, "%s", text);
}

static kolo_status_t wait_for_a_place(kolo_state_t s)
{
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < JOIN_TRIES; i++) {
        kolo_word_t *word = &s->word;
        bool got;
        KOLO_TRY(kolo_state_link_say(&s->link, "hello %u", s->worker));
        do KOLO_TRY(kolo_state_link_hear(&s->link, -1, word, &got));
        while (word->kind == KOLO_WORD_ADD || word->kind == KOLO_WORD_REMOVE || word->kind == KOLO_WORD_MIN);
        kolo_word_t heard = *word;
        word->plan = 0;
        if (heard.kind == KOLO_WORD_LEAVE) return KOLO_IN_PROGRESS;
        if (heard.kind == KOLO_WORD_FOUND) return be_first(s, &heard);
        status = come_in(s, &heard);
        if (status == KOLO_OK || status == KOLO_ERR_MISMATCH) return status; /* other buffers do not get better */
        kolo_warn("state", "could not get in by plan %u: %s", heard.plan, kolo_error_text());
    }
    return kolo_fail_prefix(status, "this process could not get in %d times", JOIN_TRIES);
}

kolo_status_t kolo_state_get_in(kolo_state_t s)
{
    if (s->config.comm) return take_given(s);
    const char *worker = kolo_job_values.worker;
    int number = 0;
    if (!kolo_job_is_set(worker)) return connect_all(s);
    KOLO_TRY(kolo_job_number("KOLO_ELASTIC_WORKER", worker, 0, &number));
    s->worker = (uint32_t)number;
    KOLO_TRY(kolo_state_link_open(&s->link, kolo_job_values.id_file, s->worker));
    return wait_for_a_place(s);
}

kolo_status_t kolo_state_listen(kolo_state_t s, int timeout_ms)
{
    for (bool got = true; got; timeout_ms = 0) {
        kolo_word_t word;
        KOLO_TRY(kolo_state_link_hear(&s->link, timeout_ms, &word, &got));
        if (!got) break;
        if (word.kind == KOLO_WORD_MIN)
            s->min = word.min;
        else if ((word.kind == KOLO_WORD_ADD || word.kind == KOLO_WORD_REMOVE) && word.plan > s->word.plan)
            s->word = word;
        else
            kolo_warn("state", "the launcher sent a message of kind %d for plan %u at the wrong time",
                      (int)word.kind, word.plan);
    }
    return KOLO_OK;
}

/* ---- changes by plan ---- */

static kolo_status_t take_in(kolo_state_t s, int add)
{
    kolo_unique_id_t id;
    kolo_comm_t old = s->comm, grown;
    kolo_config_t c = options(s);
    if (s->rank == 0) {
        char text[2 * KOLO_UNIQUE_ID_BYTES + 1];
        KOLO_TRY(kolo_comm_get_grow_id(old, &id));
        kolo_state_word_id(&id, text);
        KOLO_TRY(kolo_state_link_say(&s->link, "id %u %d %d %s", s->plan, s->nranks, add, text));
    }
    KOLO_TRY(kolo_comm_grow(old, s->nranks + add, s->rank == 0 ? &id : NULL, -1, &grown, &c));
    if (kolo_call_finalize(KOLO_CALL_WORD_COMMIT, old) == KOLO_ERR_MISMATCH)
        kolo_warn("state", "plan %u: %s", s->plan, kolo_error_text());
    kolo_comm_destroy(old);
    s->changes++;
    return adopt(s, grown);
}

static kolo_status_t leave_out(kolo_state_t s, const uint32_t *workers, int count)
{
    kolo_comm_t old = s->comm, rest;
    kolo_config_t c = options(s);
    int n = 0;
    bool me = false;
    int *ranks = calloc((size_t)s->nranks, sizeof *ranks);
    if (!ranks) return kolo_fail(KOLO_ERR_NO_MEMORY, "state: out of memory");
    for (int r = 0; r < s->nranks; r++) {
        bool out = false;
        for (int i = 0; i < count; i++) out |= workers[i] == s->workers[r];
        if (out) ranks[n++] = r;
        me |= out && r == s->rank;
    }
    kolo_status_t status = KOLO_OK;
    if (n == 0 || n == s->nranks) { /* somebody keeps the state */
        kolo_warn("state", "plan %u removes %d of %d ranks: nothing is done", s->plan, n, s->nranks);
    } else if (me) {
        s->comm = NULL;
        s->leaving = true;
        kolo_comm_destroy(old);
        status = kolo_state_link_say(&s->link, "left");
        if (status == KOLO_OK) status = KOLO_IN_PROGRESS;
    } else if ((status = kolo_comm_shrink(old, ranks, n, KOLO_SHRINK_DEFAULT, &rest, &c)) == KOLO_OK) {
        kolo_comm_destroy(old);
        s->changes++;
        status = adopt(s, rest);
    }
    free(ranks);
    return status;
}

kolo_status_t kolo_state_change(kolo_state_t s)
{
    uint32_t head[3] = {s->word.plan, (uint32_t)s->word.add, (uint32_t)s->word.nremove};
    uint32_t workers[KOLO_STATE_LIST_MAX];
    int source = s->plan_source;
    s->plan_source = -1;
    if (s->rank == source && s->word.nremove > 0)
        memcpy(workers, s->word.remove, (size_t)s->word.nremove * sizeof *workers);
    KOLO_TRY(kolo_broadcast(head, head, 3, KOLO_UINT32, source, s->comm, NULL));
    s->plan = head[0];
    if (head[2] > KOLO_STATE_LIST_MAX || head[1] > INT32_MAX / 2)
        return kolo_state_end_together(s, kolo_fail(KOLO_ERR_PROTOCOL,
                                                    "state: plan %u has %u newcomers and removes %u", head[0],
                                                    head[1], head[2]));
    if (head[2] > 0) {
        KOLO_TRY(kolo_broadcast(workers, workers, head[2], KOLO_UINT32, source, s->comm, NULL));
        KOLO_TRY(leave_out(s, workers, (int)head[2]));
    } else {
        kolo_status_t status = take_in(s, (int)head[1]);
        if (status != KOLO_OK && !kolo_state_is_loss(status) && status != KOLO_ERR_UNSUPPORTED) {
            /* A newcomer did not come: those that are here go on, by the way they would without one of them. */
            kolo_warn("state", "plan %u: nobody was taken in: %s", s->plan, kolo_error_text());
            status = KOLO_ERR_REMOTE;
        }
        KOLO_TRY(status);
    }
    return settle_and_say(s);
}

/* ---- losses ---- */

kolo_status_t kolo_state_mend(kolo_state_t s)
{
    kolo_comm_t rest;
    kolo_config_t c = options(s);
    s->plan_source = -1;
    kolo_comm_revoke(s->comm); /* who does not know yet learns it by this */
    KOLO_TRY(kolo_comm_shrink(s->comm, NULL, 0, KOLO_SHRINK_ABORT, &rest, &c));
    kolo_comm_abort(s->comm);
    s->changes++;
    s->losses++;
    KOLO_TRY(adopt(s, rest));
    return settle_and_say(s);
}
