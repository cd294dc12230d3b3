/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators that are made and ended in a group. Making begins with the call, in the background, whatever the
 * communicator's kind; ending begins when the group ends, all side by side, so that one thread may drive all ranks.
 * The end of the group waits for those that block.
 */
#include "comm/call/call.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kolo_comm_t comm;
    kolo_group_life_t what;
    kolo_status_t (*begin)(kolo_comm_t comm);
    kolo_status_t status; /* of the beginning */
} entry_t;

static _Thread_local struct {
    entry_t *list;
    size_t n, room;
} life;

bool kolo_group_has_life(void)
{
    return life.n > 0;
}

void kolo_group_drop_life(void)
{
    free(life.list);
    life.list = NULL;
    life.n = life.room = 0;
}

kolo_status_t kolo_group_admit_life(const char *what)
{
    if (kolo_group_has_calls())
        return kolo_call_refused(kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: " KOLO_GROUP_MIXED, what));
    if (!kolo_group_open() || life.n < life.room) return KOLO_OK;
    size_t room = life.room ? 2 * life.room : 16;
    entry_t *list = realloc(life.list, room * sizeof *list);
    if (!list)
        return kolo_call_refused(kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a group of %zu calls", room));
    life.list = list;
    life.room = room;
    return KOLO_OK;
}

kolo_status_t kolo_group_add_life(kolo_comm_t comm, kolo_group_life_t what,
                                  kolo_status_t (*begin)(kolo_comm_t comm))
{
    static const char *const names[] = {"a communicator that is made", "comm_finalize", "comm_destroy"};
    KOLO_TRY(kolo_group_admit_life(names[what]));
    life.list[life.n++] = (entry_t){comm, what, begin, KOLO_OK};
    return KOLO_OK;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const struct kolo_comm *h = arg;
    snprintf(buf, bytes, "the end of %s rank %d, in a group", h->name, h->rank);
}

/* Waits without a limit of its own: the end has a deadline and the abort flag. */
static void await_end(kolo_comm_t comm)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe, comm, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&comm->gate);
        if (atomic_load(&comm->state) != KOLO_COMM_FINALIZING) return;
        kolo_gate_wait(&comm->gate, ticket, &wait);
    }
}

static kolo_status_t outcome(kolo_comm_t comm)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    kolo_status_t status = kolo_handle_error(comm, text, sizeof text);
    return status == KOLO_OK ? KOLO_OK : kolo_fail(status, "%s", text);
}

static kolo_status_t end_one(entry_t *e)
{
    if (e->what == KOLO_GROUP_DESTROYS) return e->begin(e->comm);
    if (e->status != KOLO_OK && e->status != KOLO_IN_PROGRESS) return e->status;
    if (!e->comm->blocking) return KOLO_IN_PROGRESS;
    if (e->what == KOLO_GROUP_MAKES)
        kolo_handle_started(e->comm);
    else
        await_end(e->comm);
    return outcome(e->comm);
}

kolo_status_t kolo_group_end_life(void)
{
    kolo_status_t first = KOLO_OK;
    char text[KOLO_ERROR_TEXT_BYTES];
    bool pending = false;
    for (size_t i = 0; i < life.n; i++)
        if (life.list[i].what == KOLO_GROUP_ENDS) life.list[i].status = life.list[i].begin(life.list[i].comm);
    for (int turn = 0; turn < 2; turn++) { /* what is destroyed may have been finalized here */
        for (size_t i = 0; i < life.n; i++) {
            if ((life.list[i].what == KOLO_GROUP_DESTROYS) != turn) continue;
            kolo_status_t status = end_one(&life.list[i]);
            pending = pending || status == KOLO_IN_PROGRESS;
            if (status == KOLO_OK || status == KOLO_IN_PROGRESS || first != KOLO_OK) continue;
            first = status;
            snprintf(text, sizeof text, "%s", kolo_error_text());
        }
    }
    kolo_group_drop_life();
    if (first != KOLO_OK) return kolo_fail(first, "%s", text);
    return pending ? KOLO_IN_PROGRESS : KOLO_OK;
}
