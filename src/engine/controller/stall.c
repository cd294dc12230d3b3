/* SPDX-License-Identifier: Apache-2.0
 *
 * The stall inspector. A tensor that some ranks have submitted and others have not waits for ever, although all
 * connections work. The coordinator knows which ranks have submitted it: when the oldest row of its table has
 * waited for a while, it names the ranks that are missing, and after a second, longer time it ends the engine.
 * Cached tensors never reach the coordinator's table, so every rank removes tensors that have waited that long from
 * the cache, as it removes a changed tensor; the request then says how long the tensor has waited.
 *
 * From one second on the coordinator's flight record says who is missing, for kolo-top. It is written anew each
 * second.
 *
 * Rows that lack the same ranks are reported in one line: if a rank hangs, all tensors of a step wait for it.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "diag/verdict.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_TOLD 6
#define NAME_SHOWN 80 /* bytes of a name in a list */
#define RUNS_TOLD  8  /* runs of ranks */

/* ---- time ---- */

static uint64_t shorter(uint64_t warn_ns, uint64_t limit_ns)
{
    return warn_ns && limit_ns ? KOLO_MIN(warn_ns, limit_ns) : warn_ns | limit_ns;
}

void kolo_stall_init(kolo_stall_t *stall, int64_t warn_ms, int64_t limit_ms)
{
    stall->warn_ns = (uint64_t)warn_ms * KOLO_NS_PER_MS;
    stall->limit_ns = (uint64_t)limit_ms * KOLO_NS_PER_MS;
    stall->patience_ns = shorter(stall->warn_ns, stall->limit_ns);
    stall->next_ns = UINT64_MAX;
    stall->peers = NULL;
    stall->note = NULL;
}

/* ---- notes for kolo-top ---- */

void kolo_note_wait(kolo_note_t *note, uint64_t since_ns, bool blames, const char *text)
{
    pthread_mutex_lock(&note->lock);
    kolo_record_note_wait(note->record, since_ns, blames, text);
    pthread_mutex_unlock(&note->lock);
}

void kolo_note_last(kolo_note_t *note, const char *last)
{
    pthread_mutex_lock(&note->lock);
    kolo_record_note_last(note->record, last);
    pthread_mutex_unlock(&note->lock);
}

void kolo_note_callback(kolo_note_t *note, uint64_t since_ns)
{
    pthread_mutex_lock(&note->lock);
    kolo_record_callback(note->record, KOLO_CALLBACK_TENSOR, since_ns);
    pthread_mutex_unlock(&note->lock);
}

void kolo_note_close(kolo_note_t *note)
{
    pthread_mutex_lock(&note->lock);
    note->record = NULL;
    pthread_mutex_unlock(&note->lock);
}

static bool is_shown(const kolo_stall_t *stall, const kolo_row_t *row, uint64_t now)
{
    return stall->note && now >= row->since_ns + KOLO_STALL_SHOWN_NS;
}

/* Returns when a row is to be looked at: to warn, to end the engine, to show it, or to show it anew. */
static uint64_t due_at(const kolo_stall_t *stall, const kolo_row_t *row, uint64_t now)
{
    uint64_t warn = stall->warn_ns ? row->since_ns + (row->warnings + 1) * stall->warn_ns : UINT64_MAX;
    uint64_t limit = stall->limit_ns ? row->since_ns + stall->limit_ns : UINT64_MAX, show = UINT64_MAX;
    if (stall->note) show = (is_shown(stall, row, now) ? now : row->since_ns) + KOLO_STALL_SHOWN_NS;
    return KOLO_MIN(KOLO_MIN(warn, limit), show);
}

void kolo_stall_new_row(kolo_stall_t *stall, kolo_row_t *row)
{
    row->since_ns = kolo_now_ns();
    stall->next_ns = KOLO_MIN(stall->next_ns, due_at(stall, row, row->since_ns));
}

/* Notes how long some rank has waited before it sent its request; who has waited longest counts. */
void kolo_stall_waited(kolo_stall_t *stall, kolo_row_t *row, uint32_t waited_ms)
{
    uint64_t now = kolo_now_ns(), waited = waited_ms * KOLO_NS_PER_MS;
    row->since_ns = KOLO_MIN(row->since_ns, now > waited ? now - waited : 1);
    stall->next_ns = KOLO_MIN(stall->next_ns, is_shown(stall, row, now) ? now : due_at(stall, row, now));
}

/* ---- words ---- */

static void say_ranks(const kolo_controller_t *c, const int *ranks, const kolo_row_t *row, char *buf, size_t bytes)
{
    int runs = 0, told = 0, lacking = 0;
    size_t at = 0;
    for (int r = 0; r < c->nranks; r++) lacking += kolo_row_lacks(c, row, r);
    at += (size_t)snprintf(buf, bytes, lacking == 1 ? "rank " : "ranks ");
    for (int r = 0; r < c->nranks && runs < RUNS_TOLD && at < bytes; r++) {
        int last = r;
        if (!kolo_row_lacks(c, row, r)) continue;
        while (last + 1 < c->nranks && kolo_row_lacks(c, row, last + 1) && ranks[last + 1] == ranks[last] + 1)
            last++;
        at += (size_t)snprintf(buf + at, bytes - at, last > r ? "%s%d to %d" : "%s%d", runs ? ", " : "", ranks[r],
                               ranks[last]);
        runs++;
        told += last - r + 1;
        r = last;
    }
    if (told < lacking && at < bytes) snprintf(buf + at, bytes - at, " and %d more", lacking - told);
}

typedef struct {
    kolo_row_t *row;
    uint64_t lacking; /* hash of the ranks that it lacks: rows of one hash are told together */
} overdue_t;
typedef struct {
    const overdue_t *rows;
    size_t count;
} lot_t;

static int in_order(const void *a, const void *b)
{
    const overdue_t *x = a, *y = b;
    if (x->lacking != y->lacking) return x->lacking < y->lacking ? -1 : 1;
    return strcmp(x->row->name.text, y->row->name.text);
}

static void say_names(int set, const overdue_t *rows, size_t count, char *buf, size_t bytes)
{
    size_t at = 0;
    char title[KOLO_TENSOR_NAME_MAX + 16];
    for (size_t i = 0; i < count && i < NAMES_TOLD && at < bytes; i++) {
        kolo_tensor_request_title(rows[i].row->kinds[0].request, title, sizeof title);
        bool cut = strlen(title) > NAME_SHOWN;
        at +=
            (size_t)snprintf(buf + at, bytes - at, "%s%.*s%s", i ? ", " : "", NAME_SHOWN, title, cut ? "..." : "");
    }
    if (count > NAMES_TOLD && at < bytes)
        at += (size_t)snprintf(buf + at, bytes - at, " and %zu more", count - NAMES_TOLD);
    if (set > 0 && at < bytes) snprintf(buf + at, bytes - at, " of process set %d", set);
}

/* Says where the first such rank is: what its program does is not the engine's to know, but its flight record may
 * tell. */
static void say_where(const kolo_controller_t *c, const int *ranks, const kolo_row_t *row, char *buf, size_t bytes)
{
    int r = 0;
    while (r < c->nranks && !kolo_row_lacks(c, row, r)) r++;
    if (!c->stall.peers || r == c->nranks) return;
    KOLO_FAIL_POINT("engine.stall.words");
    snprintf(buf, bytes, "; rank %d is process %d on host %.31s (kolo-top --dump there shows what it is in)",
             ranks[r], (int)c->stall.peers[r].pid, c->stall.peers[r].host_name);
}

/* Writes "rank 2 has not submitted tensor x, tensor y and 3 more, for which 3 ranks have waited 61.0 s". */
static void say_all(const kolo_controller_t *c, const int *ranks, lot_t lot, uint64_t now, char *buf, size_t bytes)
{
    const overdue_t *rows = lot.rows;
    size_t count = lot.count;
    char where[150] = "", who[160], names[NAMES_TOLD * (NAME_SHOWN + 8) + 80], duration[32];
    uint64_t since = now;
    int most = 0;
    for (size_t i = 0; i < count; i++) {
        since = KOLO_MIN(since, rows[i].row->since_ns);
        most = KOLO_MAX(most, rows[i].row->sent.total);
    }
    int lacking = 0;
    for (int r = 0; r < c->nranks; r++) lacking += kolo_row_lacks(c, rows[0].row, r);
    say_ranks(c, ranks, rows[0].row, who, sizeof who);
    say_names(c->set, rows, count, names, sizeof names);
    say_where(c, ranks, rows[0].row, where, sizeof where);
    kolo_verdict_duration(now - since, duration, sizeof duration);
    int n = snprintf(buf, bytes, "%s %s not submitted %s, for which %d %s waited %s%s", who,
                     lacking == 1 ? "has" : "have", names, most, most == 1 ? "rank has" : "ranks have", duration,
                     where);
    if (n >= (int)bytes) memcpy(buf + bytes - sizeof "...", "...", sizeof "..."); /* names of 80 bytes, six times */
}

/* ---- the coordinator looks at its table ---- */

static bool warn_due(const kolo_stall_t *stall, const kolo_row_t *row, uint64_t now)
{
    return stall->warn_ns && now >= row->since_ns + (row->warnings + 1) * stall->warn_ns;
}

static bool at_limit(const kolo_stall_t *stall, const kolo_row_t *row, uint64_t now)
{
    return stall->limit_ns && now >= row->since_ns + stall->limit_ns;
}

static size_t collect_row(kolo_controller_t *c, kolo_row_t *row, uint64_t now, bool shown, overdue_t *out)
{
    uint64_t soon = now + c->stall.patience_ns / 8, hash = KOLO_HASH_INIT;
    bool due = warn_due(&c->stall, row, soon) || at_limit(&c->stall, row, soon);
    if (shown ? !is_shown(&c->stall, row, now + KOLO_STALL_SHOWN_NS / 8) : !due) return 0;
    for (int r = 0; r < c->nranks; r++)
        if (kolo_row_lacks(c, row, r)) hash = kolo_hash_bytes(hash, &r, sizeof r);
    *out = (overdue_t){row, hash};
    return 1;
}

/* Rows that have waited nearly as long as the one whose turn it is are told with it: a step's tensors do not come
 * in the same moment. */
static size_t collect(kolo_controller_t *c, uint64_t now, bool shown, overdue_t *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < c->rows.nbuckets; i++)
        for (kolo_name_t *name = c->rows.buckets[i]; name; name = name->next)
            n += collect_row(c, (kolo_row_t *)name, now, shown, &rows[n]);
    if (c->njoined > 0) n += collect_row(c, &c->join_row, now, shown, &rows[n]);
    qsort(rows, n, sizeof *rows, in_order);
    return n;
}

static void find_next(kolo_controller_t *c, uint64_t now)
{
    c->stall.next_ns = c->njoined > 0 ? due_at(&c->stall, &c->join_row, now) : UINT64_MAX;
    for (size_t i = 0; i < c->rows.nbuckets; i++)
        for (const kolo_name_t *name = c->rows.buckets[i]; name; name = name->next)
            c->stall.next_ns = KOLO_MIN(c->stall.next_ns, due_at(&c->stall, (const kolo_row_t *)name, now));
}

/* Writes down the sentence on the rows among which the oldest is; an empty one when all are young. */
static void show(kolo_controller_t *c, const int *ranks, overdue_t *rows, uint64_t now)
{
    char text[KOLO_RECORD_NOTE_TEXT] = "";
    size_t from = 0, to = 0, count = collect(c, now, true, rows);
    uint64_t since = now;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].row->since_ns >= since) continue;
        since = rows[i].row->since_ns;
        for (from = i; from > 0 && rows[from - 1].lacking == rows[i].lacking;) from--;
        for (to = i; to < count && rows[to].lacking == rows[i].lacking;) to++;
    }
    if (to > from) say_all(c, ranks, (lot_t){rows + from, to - from}, now, text, sizeof text);
    kolo_note_wait(c->stall.note, to > from ? since : 0, true, text);
}

/* Writes one line for rows that lack the same ranks; true: one of them has reached the limit, and `text` says so.
 */
static bool tell(const kolo_controller_t *c, const int *ranks, lot_t lot, uint64_t now, char *text, size_t bytes)
{
    const overdue_t *rows = lot.rows;
    size_t count = lot.count;
    char line[KOLO_ERROR_TEXT_BYTES - 100];
    uint64_t soon = now + c->stall.patience_ns / 8;
    bool warn = false, over = false;
    for (size_t i = 0; i < count; i++) {
        warn |= warn_due(&c->stall, rows[i].row, now);
        over |= at_limit(&c->stall, rows[i].row, now);
    }
    if (!warn && !over) return false;
    say_all(c, ranks, lot, now, line, sizeof line);
    if (over)
        snprintf(text, bytes, "%s, KOLO_ENGINE_STALL_LIMIT_MS is over", line);
    else
        kolo_warn("engine", "%s", line);
    for (size_t i = 0; i < count; i++)
        while (warn_due(&c->stall, rows[i].row, soon)) rows[i].row->warnings++;
    return over;
}

bool kolo_stall_look(kolo_controller_t *c, const int *ranks, char *text, size_t bytes)
{
    uint64_t now = kolo_now_ns();
    bool over = false;
    if (now < c->stall.next_ns) return false;
    overdue_t *rows = malloc((c->rows.count + 2) * sizeof *rows);
    if (!rows) { /* then later */
        c->stall.next_ns = now + KOLO_NS_PER_S;
        return false;
    }
    if (c->stall.note) show(c, ranks, rows, now);
    size_t n = collect(c, now, false, rows);
    for (size_t from = 0, to; from < n && !over; from = to) {
        for (to = from; to < n && rows[to].lacking == rows[from].lacking;) to++;
        over = tell(c, ranks, (lot_t){rows + from, to - from}, now, text, bytes);
    }
    free(rows);
    find_next(c, now);
    return over;
}
