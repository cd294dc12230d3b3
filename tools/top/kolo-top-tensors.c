/* SPDX-License-Identifier: Apache-2.0
 *
 * Named tensors and messages with tags in kolo-top. Ranks that wait for one are in no operation: their engines
 * sleep, and the flight record has a note. The one of rank 0 says who is missing; those of the others say what they
 * wait for, which is all that is known where rank 0 is on another host.
 */
#include "kolo-top.h"

#include "base/clock.h"

#include <string.h>

/* The longest wait in the notes that blame somebody, or in those that do not. */
static const top_rank_t *longest(const top_set_t *set, size_t first, size_t count, bool blames)
{
    const top_rank_t *found = NULL;
    for (size_t i = first; i < first + count; i++) {
        const kolo_record_note_t *note = &set->ranks[i].view.note;
        if (note->since_ns == 0 || note->since_ns > set->ranks[i].now_ns || (note->blames != 0) != blames) continue;
        if (!found || note->since_ns < found->view.note.since_ns) found = &set->ranks[i];
    }
    return found;
}

/* Named tensors have one note that says who is missing; of messages with tags each rank that waits has one. */
static void add_others(const top_set_t *set, size_t first, size_t count, const top_rank_t *told, char *text,
                       size_t bytes)
{
    for (size_t i = first, at = strlen(text); i < first + count; i++, at += strlen(text + at)) {
        const top_rank_t *r = &set->ranks[i];
        if (r == told || r->view.note.since_ns == 0 || r->view.note.blames == 0) continue;
        if (strlen(r->view.note.text) + 3 > bytes - at) return; /* whole sentences */
        snprintf(text + at, bytes - at, " %s.", r->view.note.text);
    }
}

uint64_t top_tensor_wait(const top_set_t *set, size_t first, size_t count, char *text, size_t bytes)
{
    const top_rank_t *r = longest(set, first, count, true);
    text[0] = '\0';
    if (r) {
        snprintf(text, bytes, "%s.", r->view.note.text);
        add_others(set, first, count, r, text, bytes);
        return r->now_ns - r->view.note.since_ns;
    }
    r = longest(set, first, count, false);
    if (!r) return 0;
    snprintf(text, bytes, "rank %d waits for %s; kolo-top on the host of rank 0 tells who has not submitted it.",
             r->view.rank, r->view.note.text);
    return r->now_ns - r->view.note.since_ns;
}

const char *top_tensor_last(const top_set_t *set, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++)
        if (set->ranks[i].view.note.last[0]) return set->ranks[i].view.note.last;
    return NULL;
}
