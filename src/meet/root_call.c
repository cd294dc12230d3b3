/* SPDX-License-Identifier: Apache-2.0
 *
 * How a root calls ranks back: a bounded number at a time, the others wait in a queue. A rank hears the address of
 * the next rank, or why there is no job.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "meet/root.h"

#include <stdio.h>
#include <stdlib.h>

#define CALLS_AT_ONCE 128

static void call_more(root_t *root);

static void call_done(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    call_t *call = arg;
    root_t *root = call->root;
    for (call_t **at = &root->active; *at != NULL; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            break;
        }
    root->nactive--;
    kolo_socket_leave(&socket); /* a reply's connection ends with it */
    bool counts = call->counts;
    int rank = call->rank;
    free(call);
    if (counts) {
        root->told++;
        if (status == KOLO_OK && rank >= root->first && rank < root->first + root->count)
            root->entries[rank - root->first].step = STEP_TOLD;
    }
    if (status != KOLO_OK && root->failure == KOLO_OK && counts)
        kolo_root_fail(root, KOLO_ERR_REMOTE, "rank %d checked in but cannot be called back: %s", rank, text);
    call_more(root);
    kolo_root_finish_if_done(root);
}

static void call_more(root_t *root)
{
    while (root->waiting != NULL && root->nactive < CALLS_AT_ONCE) {
        call_t *call = root->waiting;
        root->waiting = call->next;
        if (root->waiting == NULL) root->waiting_tail = &root->waiting;
        call->next = root->active;
        root->active = call;
        root->nactive++;
        kolo_dial_config_t config = {
            .address = call->address,
            .key = root->id.secret,
            .claim = {.purpose = KOLO_PURPOSE_REPLY, .from = KOLO_RANK_ROOT, .to = call->rank},
            .deadline_ns = root->deadline_ns + KOLO_ROOT_LINGER_MS * KOLO_NS_PER_MS,
            .done = call_done,
            .arg = call,
            .frame = call->reply,
            .frame_bytes = sizeof(call->reply)};
        snprintf(config.who, sizeof(config.who), "rank %d", call->rank);
        if (kolo_dial_start(root->progress, &config, &call->dial) != KOLO_OK) {
            int rank = call->rank;
            bool counts = call->counts;
            kolo_error("oob", "the root cannot call rank %d: %s", rank, kolo_error_text());
            root->active = call->next;
            root->nactive--;
            free(call);
            if (counts) kolo_root_fail(root, KOLO_ERR_REMOTE, "the root cannot call rank %d", rank);
        }
    }
}

void kolo_root_call(root_t *root, int rank, const kolo_address_t *address, bool counts, const kolo_reply_t *reply)
{
    call_t *call = calloc(1, sizeof(*call));
    KOLO_FAIL_POINT("oob.root.reply");
    if (call == NULL) {
        kolo_error("oob", "the root has no memory to call rank %d", rank);
        if (counts) kolo_root_fail(root, KOLO_ERR_NO_MEMORY, "the root has no memory to call rank %d", rank);
        return;
    }
    call->root = root;
    call->rank = rank;
    call->counts = counts;
    call->address = *address;
    kolo_meet_reply_encode(reply, call->reply);
    *root->waiting_tail = call;
    root->waiting_tail = &call->next;
    call_more(root);
}

void kolo_root_tell_failure(root_t *root, int rank, const kolo_address_t *address, bool counts)
{
    kolo_reply_t reply = {.status = root->failure};
    snprintf(reply.text, sizeof(reply.text), "%s", root->failure_text);
    kolo_root_call(root, rank, address, counts, &reply);
}

void kolo_root_tell_next(root_t *root, int rank)
{
    int next = (rank + 1) % root->nranks, i = rank - root->first;
    bool mine = next >= root->first && next < root->first + root->count;
    kolo_reply_t reply = {.status = KOLO_OK, .next_rank = next};
    if (root->entries[i].step != STEP_CHECKED_IN) return;
    if (mine && root->entries[next - root->first].step < STEP_CHECKED_IN) return;
    if (!mine && !root->neighbour_seen) return;
    reply.next = mine ? root->entries[next - root->first].peer : root->neighbour;
    kolo_root_call(root, rank, &root->entries[i].root_only, true, &reply);
}

static void calls_free(call_t *call, kolo_progress_t *progress)
{
    for (call_t *next; call != NULL; call = next) {
        next = call->next;
        kolo_dial_cancel(progress, &call->dial);
        free(call);
    }
}

void kolo_root_free_calls(root_t *root)
{
    calls_free(root->waiting, root->progress);
    calls_free(root->active, root->progress);
}
