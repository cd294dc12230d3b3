/* SPDX-License-Identifier: Apache-2.0
 *
 * What users and machines do wrong, and that the others get to know it in words and can go on: pointers and devices
 * that do not fit, calls after an abort, a rank that does not come, counts that differ, a process that is killed.
 * See conform.h.
 */
#include "cases.h"
#include "conform.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef KOLO_SANITIZED
#define TIMES 5
#else
#define TIMES 1
#endif
#define SOON_MS  (1000 * TIMES) /* until survivors know */
#define LIMIT_MS (8000 * TIMES)

/* The status, with words that hold `needle`. */
static bool refused(const kit_rank_t *r, kolo_status_t want, kolo_status_t got, const char *needle,
                    const char *what)
{
    const char *text = got == KOLO_OK ? "" : kolo_get_last_error(NULL);
    if (got == want && strstr(text, needle)) return true;
    return KIT_FAIL("rank %d: %s: %s instead of %s with \"%s\": %s", r->rank, what, kolo_status_string(got),
                    kolo_status_string(want), needle, text);
}

static kolo_status_t sum(const kit_rank_t *r, const void *src, void *dst, size_t count)
{
    return kolo_all_reduce(src, dst, count, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]);
}

/* The first error of a communicator within `ms`. */
static kolo_status_t await_error(kolo_comm_t comm, uint64_t ms)
{
    kolo_status_t state = KOLO_OK;
    for (uint64_t end = kit_now_ms() + ms; kit_now_ms() < end; kit_nap())
        if (kolo_comm_get_async_error(comm, &state) == KOLO_OK && state != KOLO_OK && state != KOLO_IN_PROGRESS)
            break;
    return state;
}

static bool drains(const kit_rank_t *r, const char *what)
{
    kolo_status_t state = KOLO_IN_PROGRESS;
    for (uint64_t end = kit_now_ms() + LIMIT_MS; state == KOLO_IN_PROGRESS && kit_now_ms() < end; kit_nap())
        state = kit_query(r, r->streams[0]);
    return state == KOLO_OK || KIT_FAIL("rank %d: %s: the stream does not come to an end", r->rank, what);
}

static bool works(kit_team_t *t)
{
    case_t c = {.kind = CASE_ALL_REDUCE, .count = 20011, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 7};
    return case_run(t, &c);
}

/* ---- arguments ---- */

static bool fits_no_pointer(kit_rank_t *r)
{
    int32_t host[100] = {0};
    kit_rank_t other = {.rank = r->rank};
    bool good =
        refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, host, r->buffer, 100), "not memory of a GPU", "host source");
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, r->buffer, host, 100), "not memory of a GPU",
                   "host destination") &&
           good;
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, r->buffer, r->buffer + r->room - 40, 100), "allocation",
                   "past the end") &&
           good;
    int devices = kit_devices();
    if (devices < 2) return good;
    good = kit_rank_open(&other, (r->device + 1) % devices, 4096) && good;
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, other.buffer, r->buffer, 100), "lies on GPU",
                   "memory of another GPU") &&
           good;
    kit_rank_close(&other);
    kit_enter(r);
    return good;
}

static void add(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    (void)type;
    (void)arg;
    for (size_t i = 0; i < count; i++) ((int32_t *)inout)[i] += ((const int32_t *)in)[i];
}

static bool fits_no_operator(kit_rank_t *r)
{
    kolo_op_t op;
    kolo_status_t status = kolo_op_create_callback(&op, add, NULL, KOLO_INT32, r->comm);
    if (status == KOLO_OK) {
        status = kolo_all_reduce(r->buffer, r->buffer, 10, KOLO_INT32, op, r->comm, r->streams[0]);
        bool good = refused(r, KOLO_ERR_UNSUPPORTED, status, "GPU", "an operator of the host");
        return KIT_OK(kolo_op_destroy(op, r->comm)) && good;
    }
    return refused(r, KOLO_ERR_UNSUPPORTED, status, "GPU", "an operator of the host");
}

static bool fits_no_device(kit_rank_t *r)
{
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = 99;
    if (!KIT_OK(kolo_get_unique_id(&id))) return false;
    return refused(r, KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&comm, 1, id, 0, &config), "no GPU 99",
                   "a device that is not there");
}

static bool arguments(kit_team_t *t)
{
    bool good = true;
    for (int i = 0; i < t->n && !t->options->host; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = fits_no_pointer(r) && good;
        good = fits_no_operator(r) && good;
        good = fits_no_device(r) && good;
    }
    return kit_case_end(t, good, "arguments that do not fit are refused in words") && works(t);
}

/* Two ranks on one GPU by accident: with one process a GPU, the usual mistake. */
static bool one_gpu_for_two(kit_team_t *t)
{
    kolo_unique_id_t id;
    kolo_comm_t comms[2] = {NULL, NULL};
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    bool good = true;
    if (getenv("KOLO_GPU_SHARED") || t->options->host) return true;
    config.device = 0;
    if (kit_leads(t)) {
        good = KIT_OK(kolo_get_unique_id(&id)) && KIT_OK(kolo_group_start());
        for (int i = 0; i < 2 && good; i++) good = KIT_OK(kolo_comm_init_rank(&comms[i], 2, id, i, &config));
        kolo_status_t status = kolo_group_end();
        if (status == KOLO_OK || !strstr(kolo_get_last_error(NULL), "KOLO_GPU_SHARED"))
            good = KIT_FAIL("two ranks on a GPU: %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
    }
    return kit_case_end(t, good, "two ranks on one GPU are refused");
}

/* ---- a rank that does not come ---- */

static void abort_all(kit_team_t *t)
{
    for (int i = 0; i < t->n; i++) {
        if (t->ranks[i].comm) kolo_comm_abort(t->ranks[i].comm);
        t->ranks[i].comm = NULL;
    }
}

static bool aborted(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    bool good = true;
    if (kit_leads(t)) {
        good = KIT_OK(sum(r, r->buffer, r->buffer + 4096, 1000));
        for (int i = 0; i < 250; i++) kit_nap();
        if (kit_query(r, r->streams[0]) != KOLO_IN_PROGRESS)
            good = KIT_FAIL("an all_reduce of one rank is complete");
        kolo_comm_t comm = r->comm;
        good = KIT_OK(kolo_comm_abort(comm)) && drains(r, "abort") && good;
        kolo_status_t status = sum(r, r->buffer, r->buffer + 4096, 1000); /* r->comm is a dead handle */
        if (status != KOLO_ERR_INVALID_ARGUMENT && status != KOLO_ERR_ABORTED)
            good = KIT_FAIL("a call after the abort: %s", kolo_status_string(status));
        r->comm = NULL;
    }
    bool go_on = kit_case_end(t, good, "abort ends kernels that wait");
    abort_all(t);
    return go_on;
}

static bool late(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    bool good = true;
    case_t first = {.kind = CASE_ALL_REDUCE, .count = 1000, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 7};
    if (!case_run(t, &first)) return false; /* making connections has a limit of its own */
    if (kit_leads(t)) {
        good = KIT_OK(sum(r, r->buffer, r->buffer + 4096, 1000));
        kolo_status_t state = await_error(r->comm, LIMIT_MS);
        if (state != KOLO_ERR_TIMEOUT)
            good =
                KIT_FAIL("a rank does not come: %s: %s", kolo_status_string(state), kolo_get_last_error(r->comm));
        good = drains(r, "a time limit") && good;
    }
    bool go_on = kit_case_end(t, good, "a time limit ends an operation that nobody joins");
    abort_all(t);
    return go_on;
}

/* ---- ranks that do different things ---- */

static bool mismatched(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    size_t count = kit_leads(t) ? 1000 : 1001;
    kolo_status_t status = sum(r, r->buffer, r->buffer + 8192, count);
    if (status == KOLO_OK) status = await_error(r->comm, LIMIT_MS);
    bool good = status == KOLO_ERR_MISMATCH || KIT_FAIL("rank %d: counts differ: %s: %s", r->rank,
                                                        kolo_status_string(status), kolo_get_last_error(r->comm));
    good = drains(r, "a mismatch") && good;
    bool go_on = kit_case_end(t, good, "counts that differ are told on every rank");
    abort_all(t);
    return go_on;
}

/* ---- a process that is killed ---- */

static bool survive(kit_team_t *t, int victim)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t rest = NULL;
    kolo_status_t state = KOLO_OK;
    char needle[16];
    const size_t count = t->options->quick ? 100000 : 4000000;
    for (uint64_t end = kit_now_ms() + LIMIT_MS; state == KOLO_OK && kit_now_ms() < end;) {
        kolo_status_t status = sum(r, r->buffer, r->buffer + count * 4 + 4096, count);
        if (status != KOLO_OK) break;
        if (kolo_comm_get_async_error(r->comm, &state) != KOLO_OK) return KIT_FAIL("no state");
        for (int i = 0; i < 5 && kit_query(r, r->streams[0]) == KOLO_IN_PROGRESS; i++) kit_nap();
    }
    state = await_error(r->comm, LIMIT_MS);
    uint64_t after = kit_now_ms() - t->shared->found[victim].at_ms;
    snprintf(needle, sizeof needle, "rank %d", victim);
    bool good = true;
    if (state != KOLO_ERR_REMOTE || !strstr(kolo_get_last_error(r->comm), needle))
        good = KIT_FAIL("rank %d: %s: %s", r->rank, kolo_status_string(state), kolo_get_last_error(r->comm));
    if (after > SOON_MS) good = KIT_FAIL("rank %d: told after %llu ms", r->rank, (unsigned long long)after);
    good = drains(r, "a lost rank") && good;
    if (!KIT_OK(kolo_comm_shrink(r->comm, NULL, 0, KOLO_SHRINK_ABORT, &rest, NULL))) return false;
    KIT_OK(kolo_comm_destroy(r->comm));
    r->comm = rest;
    good = KIT_OK(kolo_comm_count(rest, &r->nranks)) && KIT_OK(kolo_comm_user_rank(rest, &r->rank)) && good;
    fprintf(stderr, "rank %d: told after %llu ms\n", r->rank, (unsigned long long)after);
    return good;
}

static bool killed(kit_team_t *t)
{
    int victim = t->ranks[0].nranks / 2;
    kit_rank_t *r = &t->ranks[0];
    if (t->options->mode != KIT_PROCESSES || r->nranks < 3) return true;
    if (!works(t)) return false;
    if (r->rank == victim) {
        for (int i = 0; i < 20; i++) sum(r, r->buffer, r->buffer + 1000000, 100000);
        t->shared->found[victim].at_ms = kit_now_ms();
        kill(getpid(), SIGKILL);
    }
    bool good = survive(t, victim);
    t->teams--; /* the dead do not meet */
    if (!good) kit_give_up(t);
    return kit_case_end(t, good, "the loss of a process is told, and the others shrink") && works(t);
}

static bool again(kit_team_t *t, const kolo_config_t *config, bool (*test)(kit_team_t *))
{
    return kit_comms_make(t, config) && test(t);
}

void conform_faults(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER, hasty = KOLO_CONFIG_INITIALIZER;
    hasty.op_timeout_ms = 500;
    if (!again(t, &config, arguments) || !one_gpu_for_two(t)) return;
    if (t->n > 1 || t->ranks[0].nranks == 1) {
        kit_comms_end(t);
        return;
    }
    abort_all(t);
    if (!again(t, &config, aborted) || !again(t, &config, killed)) return;
    abort_all(t);
    if (again(t, &hasty, late)) again(t, &config, mismatched);
}
