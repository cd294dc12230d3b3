/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that one rank alone refuses, for a reason that the others cannot know: memory that its GPU does not reach,
 * no memory, a group of which another part is wrong. Nobody waits for it: all are told, and by whom. See conform.h.
 */
#include "gpu/conform.h"

#include <stdio.h>
#include <string.h>

#define LIMIT_MS 20000

typedef enum { HOST_MEMORY, NO_MEMORY, IN_A_GROUP, SEND, RECEIVE } wrong_t;
static const struct {
    const char *name, *words;
    wrong_t wrong;
    size_t count;
} cases[] = {
    {"a short operation", "all_reduce 1000 int32", HOST_MEMORY, 1000},
    {"an operation by lines of 128 bytes", "all_reduce 100000 int32", HOST_MEMORY, 100000},
    {"a long operation", "all_reduce 1300000 int32", HOST_MEMORY, 1300000},
    {"an operation on nothing", "all_reduce 1000 int32", NO_MEMORY, 1000},
    {"a group", "all_reduce 1000 int32", IN_A_GROUP, 1000},
    {"a short send", "recv 70 int32", SEND, 70},
    {"a long send", "recv 1300000 int32", SEND, 1300000},
    {"a receive", "send 1300000 int32", RECEIVE, 1300000},
};
#define CASES ((int)(sizeof cases / sizeof cases[0]))

static int32_t mine[1300000]; /* no GPU reaches it */

static kolo_status_t sum(const kit_rank_t *r, const void *src, size_t count)
{
    return kolo_all_reduce(src, r->buffer + r->room / 2, count, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]);
}

static kolo_status_t both(const kit_rank_t *r, const void *src, size_t count)
{
    kolo_status_t status = kolo_group_start();
    if (status == KOLO_OK) status = sum(r, r->buffer, count);
    if (status == KOLO_OK) status = sum(r, src, count + 1);
    kolo_status_t end = kolo_group_end();
    return status == KOLO_OK ? end : status;
}

static kolo_status_t call(const kit_rank_t *r, int i, bool odd)
{
    const void *src = !odd ? (const void *)r->buffer : cases[i].wrong == NO_MEMORY ? NULL : (const void *)mine;
    int last = r->nranks - 1;
    size_t count = cases[i].count;
    switch (cases[i].wrong) {
    case IN_A_GROUP:
        return both(r, src, count);
    case SEND: /* from the last to the first */
        if (r->rank == last) return kolo_send(src, count, KOLO_INT32, 0, r->comm, r->streams[0]);
        return r->rank ? KOLO_OK : kolo_recv(r->buffer, count, KOLO_INT32, last, r->comm, r->streams[0]);
    case RECEIVE:
        if (r->rank == last)
            return kolo_recv(odd ? mine : (void *)(r->buffer + r->room / 2), count, KOLO_INT32, 0, r->comm,
                             r->streams[0]);
        return r->rank ? KOLO_OK : kolo_send(r->buffer, count, KOLO_INT32, last, r->comm, r->streams[0]);
    default:
        return sum(r, src, count);
    }
}

static bool is_told(kit_rank_t *r, int i)
{
    kolo_status_t state = KOLO_OK;
    char needle[64];
    for (uint64_t end = kit_now_ms() + LIMIT_MS; kit_now_ms() < end && state == KOLO_OK; kit_nap())
        if (kolo_comm_get_async_error(r->comm, &state) != KOLO_OK) break;
    const char *text = kolo_get_last_error(r->comm);
    snprintf(needle, sizeof needle, "which rank %d has refused", r->nranks - 1);
    if (state == KOLO_ERR_MISMATCH && strstr(text, needle) && strstr(text, cases[i].words)) return true;
    return KIT_FAIL("rank %d: %s that one rank refuses: %s: %s", r->rank, cases[i].name, kolo_status_string(state),
                    text);
}

static bool stream_ends(const kit_rank_t *r)
{
    kolo_status_t state = KOLO_IN_PROGRESS;
    for (uint64_t end = kit_now_ms() + LIMIT_MS; state == KOLO_IN_PROGRESS && kit_now_ms() < end; kit_nap())
        state = kit_query(r, r->streams[0]);
    return state == KOLO_OK || KIT_FAIL("rank %d: the stream does not come to an end", r->rank);
}

static bool one_refuses(kit_team_t *t, int i)
{
    kit_rank_t *r = &t->ranks[0];
    char name[128];
    bool odd = r->rank == r->nranks - 1;
    kolo_status_t status = call(r, i, odd);
    bool good = odd ? status == KOLO_ERR_INVALID_ARGUMENT : status == KOLO_OK;
    if (!good)
        good = KIT_FAIL("rank %d: %s: %s: %s", r->rank, cases[i].name, kolo_status_string(status),
                        kolo_get_last_error(NULL));
    good = good && is_told(r, i);
    kolo_comm_abort(r->comm);
    r->comm = NULL;
    good = stream_ends(r) && good;
    snprintf(name, sizeof name, "%s that one rank refuses is told on every rank", cases[i].name);
    return kit_case_end(t, good, name);
}

/* Whoever is refused may call again, before others have asked or with another call. */
static bool again(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    bool good = true, odd = r->rank == r->nranks - 1;
    for (int i = 0; i < 3 && good; i++) {
        if (odd && sum(r, mine, 900) != KOLO_ERR_INVALID_ARGUMENT) good = KIT_FAIL("host memory is taken");
        if (odd && i == 2)
            for (int k = 0; k < 300; k++) kit_nap(); /* others have asked by then, about another call */
        good = good && KIT_OK(sum(r, r->buffer, 1000)) && stream_ends(r);
    }
    good = good && KIT_OK(kolo_comm_synchronize(r->comm));
    if (!kit_meet(t)) return false;
    kolo_comm_abort(r->comm);
    r->comm = NULL;
    return kit_case_end(t, good, "a rank that is refused calls again");
}

/* What all have refused is nobody's fault: whoever calls again later than the others is late, no more. The last
 * sleeps until they have asked it. */
static bool all_refuse(kit_team_t *t, int i)
{
    kit_rank_t *r = &t->ranks[0];
    char name[128];
    bool odd = r->rank == r->nranks - 1, takes_part = odd || r->rank == 0 || cases[i].wrong < SEND;
    bool good = true;
    if (takes_part && cases[i].wrong >= SEND) { /* both ends */
        bool sends = (cases[i].wrong == SEND) == odd;
        kolo_status_t status =
            sends ? kolo_send(mine, cases[i].count, KOLO_INT32, odd ? 0 : r->nranks - 1, r->comm, r->streams[0])
                  : kolo_recv(mine, cases[i].count, KOLO_INT32, odd ? 0 : r->nranks - 1, r->comm, r->streams[0]);
        good = status == KOLO_ERR_INVALID_ARGUMENT || KIT_FAIL("rank %d: host memory is taken", r->rank);
    } else if (takes_part) {
        good = call(r, i, true) == KOLO_ERR_INVALID_ARGUMENT || KIT_FAIL("rank %d: host memory is taken", r->rank);
    }
    for (int k = 0; k < 600 && odd; k++) kit_nap();
    good = good && KIT_OK(call(r, i, false)) && stream_ends(r) && KIT_OK(kolo_comm_synchronize(r->comm));
    if (!kit_meet(t)) return false;
    kolo_comm_abort(r->comm);
    r->comm = NULL;
    snprintf(name, sizeof name, "%s that all refuse and call again, one of them late", cases[i].name);
    return kit_case_end(t, good, name);
}

bool conform_refused(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    if (t->options->hosts || t->options->host) return true;
    for (int i = 0; i < CASES; i++)
        if (!kit_comms_make(t, &config) || !one_refuses(t, i)) return false;
    for (int i = 0; i < CASES; i++)
        if (!kit_comms_make(t, &config) || !all_refuse(t, i)) return false;
    return kit_comms_make(t, &config) && again(t);
}
