/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls on requests: what has become of a message, waiting for it, and its end. A request owns its result, so
 * it outlives its communicator.
 */
#include "base/clock.h"
#include "comm/tagged/tagged.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static kolo_status_t check(kolo_request_t r, const char *what)
{
    if (!r) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the request is NULL", what);
    if (!kolo_slot_lives(r))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a request, or one that was freed", what,
                         (void *)r);
    if (r->pid != getpid())
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "%s: the request belongs to the process that this one was forked from", what);
    return KOLO_OK;
}

static bool is_complete(kolo_request_t r)
{
    kolo_tagged_lock();
    bool complete = r->messages == NULL;
    kolo_tagged_unlock();
    return complete;
}

/* Returns the result as this thread's error. It does not change any more. */
static kolo_status_t result_of(kolo_request_t r)
{
    if (r->status == KOLO_OK) return KOLO_OK;
    return kolo_fail(r->status, "%s", r->text ? r->text : "a message failed, and there is no memory to say why");
}

kolo_status_t kolo_request_test(kolo_request_t request, int *complete)
{
    KOLO_TRY(check(request, "request_test"));
    if (!complete) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "request_test: the output is NULL");
    *complete = is_complete(request);
    return KOLO_OK;
}

typedef struct {
    const kolo_request_t *requests;
    int count;
} some_t;

/* Finds the first that is complete; -1: none; *all_null: there is nothing to wait for. */
static int find_complete(const some_t *some, bool *all_null)
{
    int found = -1;
    *all_null = true;
    kolo_tagged_lock();
    for (int i = 0; i < some->count && found < 0; i++) {
        if (!some->requests[i]) continue;
        *all_null = false;
        if (!some->requests[i]->messages) found = i;
    }
    kolo_tagged_unlock();
    return found;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const some_t *some = arg;
    kolo_request_t r = NULL;
    int open = 0;
    kolo_tagged_lock();
    for (int i = 0; i < some->count; i++)
        if (some->requests[i] && some->requests[i]->messages) {
            if (!r) r = some->requests[i];
            open++;
        }
    snprintf(buf, bytes, "a message");
    if (r) kolo_tagged_describe(r, buf, bytes);
    kolo_tagged_unlock();
    size_t used = 0;
    while (used < bytes && buf[used]) used++;
    if (open > 1) snprintf(buf + used, bytes - used, " or one of %d others", open - 1);
}

/* Waits for one of them. KOLO_IN_PROGRESS: none in this time. */
static kolo_status_t wait_some(some_t *some, int timeout_ms, int *index)
{
    kolo_wait_t wait;
    bool all_null;
    kolo_status_t status = KOLO_OK;
    *index = find_complete(some, &all_null);
    if (*index >= 0 || all_null) return KOLO_OK;
    if (timeout_ms == 0) return kolo_fail(KOLO_IN_PROGRESS, "no message is complete yet");
    kolo_wait_init(&wait, NULL, timeout_ms > 0 ? kolo_deadline_ms(timeout_ms) : 0, describe, some, 1);
    (void)kolo_wait_check(&wait); /* sets when to warn first */
    while (*index < 0 && status == KOLO_OK) {
        uint32_t ticket = kolo_gate_ticket(&kolo_tagged_gate);
        *index = find_complete(some, &all_null);
        if (*index < 0) status = kolo_gate_wait(&kolo_tagged_gate, ticket, &wait);
    }
    kolo_wait_end(&wait);
    if (*index >= 0) return KOLO_OK;
    return status == KOLO_ERR_TIMEOUT ? KOLO_IN_PROGRESS : status;
}

kolo_status_t kolo_request_wait(kolo_request_t request, int timeout_ms)
{
    some_t some = {&request, 1};
    int index;
    KOLO_TRY(check(request, "request_wait"));
    if (timeout_ms < -1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "request_wait: timeout_ms is %d, and must be -1 or more",
                         timeout_ms);
    KOLO_TRY(wait_some(&some, timeout_ms, &index));
    return result_of(request);
}

kolo_status_t kolo_request_wait_any(const kolo_request_t *requests, int count, int timeout_ms, int *index)
{
    some_t some = {requests, count};
    int found;
    if (!index || count < 0 || (count > 0 && !requests))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "request_wait_any: the list or the output is NULL, or count < 0");
    if (timeout_ms < -1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "request_wait_any: timeout_ms is %d, and must be -1 or more",
                         timeout_ms);
    for (int i = 0; i < count; i++)
        if (requests[i]) KOLO_TRY(check(requests[i], "request_wait_any"));
    KOLO_TRY(wait_some(&some, timeout_ms, &found));
    *index = found;
    return KOLO_OK;
}

kolo_status_t kolo_request_error(kolo_request_t request, const char **text)
{
    KOLO_TRY(check(request, "request_error"));
    bool complete = is_complete(request);
    if (text) *text = complete && request->text ? request->text : "";
    return complete ? request->status : KOLO_IN_PROGRESS;
}

kolo_status_t kolo_request_get_received(kolo_request_t request, kolo_received_t *received)
{
    KOLO_TRY(check(request, "request_get_received"));
    if (!received) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "request_get_received: the output is NULL");
    if (!is_complete(request) || request->sends || request->status != KOLO_OK)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "request_get_received: the request is %s",
                         request->sends         ? "a send"
                         : is_complete(request) ? "a receive that failed"
                                                : "not complete");
    *received = request->got;
    return KOLO_OK;
}

static void cancel(kolo_request_t r)
{
    char words[KOLO_TAGGED_WORDS_BYTES];
    kolo_tagged_lock();
    if (r->messages) {
        kolo_tagged_describe(r, words, sizeof words);
        kolo_fail(KOLO_ERR_ABORTED, "%s: it was cancelled by kolo_request_cancel() or kolo_request_free()", words);
        kolo_tagged_end(r, KOLO_ERR_ABORTED);
    }
    kolo_tagged_unlock();
}

kolo_status_t kolo_request_cancel(kolo_request_t request)
{
    KOLO_TRY(check(request, "request_cancel"));
    cancel(request);
    return KOLO_OK;
}

kolo_status_t kolo_request_free(kolo_request_t request)
{
    if (!request) return KOLO_OK;
    KOLO_TRY(check(request, "request_free"));
    cancel(request);
    if (!kolo_slot_end(request))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "request_free: another thread has freed this request");
    free(request->text);
    request->text = NULL;
    kolo_tagged_give_back(request);
    return KOLO_OK;
}
