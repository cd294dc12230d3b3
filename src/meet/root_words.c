/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ranks have checked in and which have not: the error text of a root whose time is over, and what kolo-top
 * shows before that.
 */
#include "meet/root.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <unistd.h>

int kolo_root_shown(const root_t *root, int rank)
{
    return root->id.first_rank > 0 && rank > 0 ? rank + root->id.first_rank - 1 : rank;
}

typedef struct {
    char *at, *end;
    int parts;
} list_t;

static void list_range(list_t *list, int from, int to, const char *note)
{
    if (list->parts++ == 12) list->at += snprintf(list->at, (size_t)(list->end - list->at), ", ...");
    if (list->parts > 12) return;
    char range[64];
    snprintf(range, sizeof(range), from == to ? "%d" : "%d-%d", from, to);
    int n = snprintf(list->at, (size_t)(list->end - list->at), "%s%s%s", list->parts > 1 ? ", " : "", range, note);
    list->at += KOLO_MIN((size_t)n, (size_t)(list->end - list->at - 1));
}

/* Returns the next rank. */
static int list_old(list_t *list)
{
    list->parts++;
    list->at += snprintf(list->at, (size_t)(list->end - list->at), "the old rank that has the id");
    return 1;
}

void kolo_root_missing(const root_t *root, char *text, size_t bytes)
{
    char *end = text + bytes - 8;
    list_t list = {text, end, 0};
    text[0] = '\0';
    for (int i = 0, from = 0; i <= root->count; i++) {
        if (i < root->count && i > from && root->entries[i].step == root->entries[from].step) continue;
        if (i > from && root->entries[from].step < STEP_CHECKED_IN) {
            const char *note =
                root->entries[from].step == STEP_NEVER ? " (never called)" : " (proved itself, sent nothing)";
            if (root->id.first_rank > 0 && from == 0) from = list_old(&list);
            if (i > from)
                list_range(&list, kolo_root_shown(root, root->first + from),
                           kolo_root_shown(root, root->first + i - 1), note);
        }
        from = i;
    }
    if (root->nids > 1 && root->seen == root->count && !root->neighbour_seen)
        snprintf(text, bytes, "%d (first rank of the next root)", (root->first + root->count) % root->nranks);
}

#define NEWS_MS 500
#define NAMED_MISSING                                                                                              \
    16 /* with more than that they are named with the news: 2,048 ranks may come in one second                     \
        */

static void open_record(root_t *root)
{
    root->record = kolo_recorder_take();
    if (root->record == NULL) return;
    kolo_record_head_begin(root->record);
    kolo_record_head_t *h = &root->record->head;
    h->job = kolo_hash_bytes(KOLO_HASH_INIT, &root->id.address, sizeof(root->id.address));
    h->rank = root->first;
    h->nranks = root->nranks;
    h->since_ns = kolo_now_ns();
    snprintf(h->name, sizeof(h->name), "init");
    gethostname(h->host, sizeof(h->host) - 1);
    kolo_record_head_end(root->record);
}

void kolo_root_sentence(const root_t *root, char *text, size_t bytes)
{
    char who[400] = "";
    int missing = root->count - root->seen;
    kolo_root_missing(root, who, sizeof(who));
    snprintf(text, bytes, "%s%s %s missing: %d of %d ranks have called kolo_comm_init_rank() or kolo_job_connect()",
             missing > 1 ? "ranks " : "rank ", who, missing > 1 ? "are" : "is", root->seen, root->count);
}

static void note(root_t *root, const char *text)
{
    if (root->record != NULL) kolo_record_note_wait(root->record, root->shown_ns, true, text);
}

/* Tells the ranks that wait, a moment after somebody has come. On the progress thread. */
static void tell_news(void *arg)
{
    root_t *root = arg;
    char text[KOLO_RECORD_NOTE_TEXT];
    root->news_due = false;
    if (root->failure != KOLO_OK || root->seen == root->count) return;
    kolo_root_sentence(root, text, sizeof(text));
    note(root, text);
    for (int i = 0; i < root->count; i++) kolo_lifeline_tell(root->entries[i].line, text);
}

static void plan_news(root_t *root)
{
    if (root->news_due) return;
    root->news_due = true;
    if (root->news != NULL)
        kolo_timer_restart(root->news, NEWS_MS);
    else if (kolo_timer_add(root->progress, NEWS_MS, tell_news, root, &root->news) != KOLO_OK)
        kolo_warn("oob", "the ranks that wait do not hear for whom: %s", kolo_error_text());
}

void kolo_root_show(root_t *root)
{
    char text[KOLO_RECORD_NOTE_TEXT];
    int missing = root->count - root->seen;
    if (missing > 0) plan_news(root);
    if (root->record == NULL && missing > 0 && root->seen == 1) open_record(root);
    if (root->record == NULL) return;
    if (missing == 0) {
        kolo_recorder_release(root->record);
        root->record = NULL;
        return;
    }
    root->shown_ns = kolo_now_ns();
    snprintf(text, sizeof(text), "ranks are missing: %d of %d have called", root->seen, root->count);
    if (missing <= NAMED_MISSING) kolo_root_sentence(root, text, sizeof(text));
    note(root, text);
}
