/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: calls are collected per thread; at the outermost end they become a batch, which runs (batch.c).
 */
#include "comm/call/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What has grown stays for the thread's next group. */
static _Thread_local struct {
    int depth;
    kolo_call_t *calls;
    size_t count, capacity;
    kolo_comm_t *comms; /* by share */
    size_t ncomms, comm_capacity;
    kolo_taken_t taken;
    kolo_status_t error; /* of collecting: a call was refused, or memory is short */
    char text[KOLO_ERROR_TEXT_BYTES];
} group;

bool kolo_group_open(void)
{
    return group.depth > 0;
}

bool kolo_group_has_calls(void)
{
    return group.count > 0;
}

kolo_status_t kolo_call_refused(kolo_status_t status)
{
    if (status == KOLO_OK || !group.depth || group.error != KOLO_OK) return status;
    group.error = status;
    snprintf(group.text, sizeof group.text, "%s", kolo_error_text());
    return status;
}

kolo_taken_t *kolo_group_taken(void)
{
    return &group.taken;
}

/* Empties the list of what was taken and returns what was in it. What runs may open a group on this thread. */
static kolo_taken_t take_over(void)
{
    kolo_taken_t taken = group.taken;
    group.taken = (kolo_taken_t){0};
    return taken;
}

static void tell_over(kolo_taken_t taken, kolo_status_t status, const char *why)
{
    if (KOLO_UNLIKELY(taken.first != NULL)) taken.over(taken.first, status, why);
}

static void drop_calls(void)
{
    for (size_t i = 0; i < group.count; i++) kolo_call_disown(&group.calls[i]);
}

static pthread_key_t at_exit;
static bool at_exit_made;
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

static void forget(void *unused)
{
    (void)unused;
    tell_over(take_over(), KOLO_ERR_ABORTED, "the thread ended before the group that this message was in");
    drop_calls();
    free(group.calls);
    free(group.comms);
    kolo_group_drop_life();
    kolo_group_forget();
    memset(&group, 0, sizeof group);
}

static void make_key(void)
{
    at_exit_made = pthread_key_create(&at_exit, forget) == 0;
}

kolo_status_t kolo_group_start(void)
{
    KOLO_TRY(kolo_comm_library_init());
    pthread_once(&at_exit_once, make_key);
    if (!at_exit_made)
        return kolo_fail(
            KOLO_ERR_SYSTEM,
            "group_start: the program has used up all keys of thread-specific data (PTHREAD_KEYS_MAX): "
            "call kolo_group_start() once before it does");
    if (!group.capacity && pthread_setspecific(at_exit, &at_exit) != 0)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "group_start: out of memory");
    if (group.depth >= 1 << 20) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_start: nested too deeply");
    group.depth++;
    return KOLO_OK;
}

static kolo_status_t grow(void **array, size_t *capacity, size_t count, size_t elem)
{
    if (count < *capacity) return KOLO_OK;
    size_t n = *capacity ? *capacity * 2 : 16;
    void *p = realloc(*array, n * elem);
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a group of %zu calls", n);
    *array = p;
    *capacity = n;
    return KOLO_OK;
}

/* Calls on one communicator mostly follow each other. */
static kolo_status_t find_share(kolo_call_t *call)
{
    size_t at = group.count ? group.calls[group.count - 1].share : 0;
    for (size_t i = 0; i < group.ncomms; i++, at = at + 1 < group.ncomms ? at + 1 : 0) {
        if (group.comms[at] != call->comm) continue;
        call->share = (uint32_t)at;
        return KOLO_OK;
    }
    KOLO_TRY(grow((void **)&group.comms, &group.comm_capacity, group.ncomms, sizeof(kolo_comm_t)));
    call->share = (uint32_t)group.ncomms;
    group.comms[group.ncomms++] = call->comm;
    return KOLO_OK;
}

static kolo_status_t add(kolo_call_t *call)
{
    if (kolo_group_has_life()) return kolo_fail(KOLO_ERR_INVALID_USAGE, KOLO_GROUP_MIXED);
    if (group.count && group.calls[0].comm->blocking != call->comm->blocking)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s blocks and %s does not: a group holds communicators of one kind",
                         call->comm->blocking ? call->comm->name : group.calls[0].comm->name,
                         call->comm->blocking ? group.calls[0].comm->name : call->comm->name);
    if (group.count && group.calls[0].comm->on_device != call->comm->on_device)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s works on a GPU and %s on the CPU: a group holds communicators of one kind",
                         call->comm->on_device ? call->comm->name : group.calls[0].comm->name,
                         call->comm->on_device ? group.calls[0].comm->name : call->comm->name);
    KOLO_TRY(find_share(call));
    KOLO_TRY(kolo_call_own(call));
    kolo_status_t status = grow((void **)&group.calls, &group.capacity, group.count, sizeof *group.calls);
    if (status != KOLO_OK) {
        kolo_call_disown(call);
        return status;
    }
    group.calls[group.count++] = *call;
    return KOLO_OK;
}

kolo_status_t kolo_group_add(kolo_call_t *call)
{
    return kolo_call_refused(add(call));
}

static kolo_status_t end_calls(void)
{
    if (!group.count) return KOLO_OK;
    kolo_batch_t *b = kolo_group_batch(group.calls, group.count, group.comms, group.ncomms);
    if (!b) {
        drop_calls();
        return KOLO_ERR_NO_MEMORY;
    }
    group.count = group.ncomms = 0; /* what runs may open a group on this thread */
    return kolo_group_run(b);
}

/* Ends a group in which a call was refused. What it makes has begun already, and is made before this returns. */
static kolo_status_t end_refused(void)
{
    drop_calls();
    if (kolo_group_has_life()) kolo_group_end_life();
    return kolo_fail(group.error, "group_end: nothing of the group has run, since a call in it was refused: %.900s",
                     group.text);
}

static void close_group(void)
{
    group.count = group.ncomms = 0;
    group.error = KOLO_OK;
}

kolo_status_t kolo_group_end(void)
{
    if (group.depth == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_end without group_start");
    if (--group.depth > 0) return KOLO_OK;
    kolo_status_t status;
    kolo_taken_t taken = take_over();
    if (group.error != KOLO_OK)
        status = end_refused();
    else if (group.count && group.calls[0].comm->on_device)
        status = kolo_device_submit_group(group.calls, group.count);
    else
        status = kolo_group_has_life() ? kolo_group_end_life() : end_calls();
    tell_over(taken, status, NULL);
    close_group();
    return status;
}

kolo_status_t kolo_group_drop(void)
{
    if (group.depth == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "group_drop without group_start");
    group.depth = 0;
    drop_calls();
    kolo_group_drop_life();
    tell_over(take_over(), KOLO_ERR_ABORTED, "group_drop: the group that this message was in was dropped");
    close_group();
    return KOLO_OK;
}
