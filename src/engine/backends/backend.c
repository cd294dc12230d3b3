/* SPDX-License-Identifier: Apache-2.0
 *
 * Which backends there are, in which order they are asked, and the asking. See backend.h.
 */
#include "engine/backends/backend.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const kolo_backend_t *const known[] = {
    &kolo_backend_hierarchical, &kolo_backend_nccl_levels, &kolo_backend_nccl_mpi, &kolo_backend_nccl,
    &kolo_backend_mpi_levels,   &kolo_backend_mpi,         &kolo_backend_kolo};
enum { HIERARCHICAL = 0, NKNOWN = KOLO_COUNTOF(known), KOLO_ITSELF = NKNOWN - 1 };
_Static_assert(NKNOWN <= KOLO_BACKENDS_MAX, "each has a place in the tables");

const kolo_backend_t *kolo_backend_at(int number)
{
    return number >= 0 && number < NKNOWN ? known[number] : NULL;
}

static int find(const char *name, size_t length)
{
    for (int i = 0; i < NKNOWN; i++)
        if (strlen(known[i]->name) == length && memcmp(known[i]->name, name, length) == 0) return i;
    return -1;
}

/* ---- the order ---- */

static void list_names(char *names, size_t bytes)
{
    size_t at = 0;
    for (int i = 0; i < NKNOWN && at < bytes; i++)
        at += (size_t)snprintf(names + at, bytes - at, i ? ", %s" : "%s", known[i]->name);
}

static kolo_status_t refuse(const char *what, const char *name, size_t length)
{
    char names[160];
    list_names(names, sizeof names);
    return kolo_fail(
        KOLO_ERR_INVALID_ARGUMENT,
        "engine_init: the order of backends has '%.*s', which is no %s; backends are %s; an order reads "
        "'name,name;all_gather=name'",
        (int)KOLO_MIN(length, (size_t)60), name, what, names);
}

static bool has(const kolo_backends_t *b, int work, int number)
{
    for (int i = 0; i < b->norder[work]; i++)
        if (b->order[work][i].number == number) return true;
    return false;
}

static void add(kolo_backends_t *b, int work, int number)
{
    if (has(b, work, number)) return;
    b->order[work][b->norder[work]++] = (kolo_backend_choice_t){number, true};
    b->slots[number].wanted = true;
}

/* Puts one first of all that counts only once somebody switches it on (kolo_backend_switch()). */
static void add_switched_off(kolo_backends_t *b, int work, int number)
{
    if (has(b, work, number)) return;
    memmove(b->order[work] + 1, b->order[work], (size_t)b->norder[work]++ * sizeof b->order[work][0]);
    b->order[work][0] = (kolo_backend_choice_t){number, false};
    b->slots[number].wanted = true;
}

/* Parses a list of names up to `end`, for the works [from, to). */
static kolo_status_t parse_list(kolo_backends_t *b, const char *text, const char *end, int from, int to)
{
    for (int w = from; w < to; w++) b->norder[w] = 0;
    const char *comma;
    do {
        comma = memchr(text, ',', (size_t)(end - text));
        size_t length = (size_t)((comma ? comma : end) - text);
        int number = find(text, length);
        if (number < 0) return refuse("backend", text, length);
        for (int w = from; w < to; w++) add(b, w, number);
        text += length + 1;
    } while (comma);
    return KOLO_OK;
}

static kolo_status_t parse_clause(kolo_backends_t *b, const char *text, const char *end)
{
    const char *equals = memchr(text, '=', (size_t)(end - text));
    if (!equals) return parse_list(b, text, end, 0, KOLO_MOVES);
    size_t length = (size_t)(equals - text);
    for (int w = 0; w < KOLO_MOVES; w++) {
        const char *name = kolo_tensor_request_work_name((kolo_work_t)w);
        if (strlen(name) == length && memcmp(name, text, length) == 0)
            return parse_list(b, equals + 1, end, w, w + 1);
    }
    return refuse("operation", text, length);
}

kolo_status_t kolo_backends_parse(kolo_backends_t *b, const char *text)
{
    for (const char *at = text; *at;) {
        const char *end = at + strcspn(at, ";");
        KOLO_TRY(parse_clause(b, at, end));
        at = *end ? end + 1 : end;
    }
    for (int w = 0; w < KOLO_MOVES; w++) {
        add(b, w, KOLO_ITSELF);
        if (w == KOLO_WORK_ALL_REDUCE || w == KOLO_WORK_ALL_GATHER) add_switched_off(b, w, HIERARCHICAL);
    }
    return KOLO_OK;
}

kolo_status_t kolo_backends_check_param(const kolo_param_t *row, const char *text)
{
    char names[160], allowed[300];
    kolo_backends_t unused = {0};
    if (kolo_backends_parse(&unused, text) == KOLO_OK) return KOLO_OK;
    list_names(names, sizeof names);
    snprintf(allowed, sizeof allowed,
             "names of backends (%s), as in \"mpi,kolo\" or, for one operation, \"kolo;all_gather=mpi\"", names);
    return kolo_param_refuse(row, text, allowed);
}

/* ---- the life of an engine ---- */

static void open_one(struct kolo_tensor_engine *e, int i)
{
    kolo_backend_slot_t *slot = &e->backends->slots[i];
    kolo_status_t status = known[i]->open ? known[i]->open(e, &slot->state) : KOLO_OK;
    slot->open = status == KOLO_OK;
    if (!slot->open) snprintf(slot->why, sizeof slot->why, "%s", kolo_error_text());
}

/* Agrees on whether it is there on all ranks. The first that lacks it is named. */
static kolo_status_t agree_one(struct kolo_tensor_engine *e, int i)
{
    kolo_backend_slot_t *slot = &e->backends->slots[i];
    uint64_t first = slot->open ? UINT64_MAX : (uint64_t)e->rank;
    const kolo_agree_row_t row = {"backend of the engine", KOLO_AGREE_MIN, &first};
    KOLO_TRY(kolo_member_agree(e->all->comm->body->oob, &row, 1));
    if (first == UINT64_MAX) {
        atomic_store(&slot->there, true);
        return KOLO_OK;
    }
    if (slot->open)
        snprintf(slot->why, sizeof slot->why, "rank %llu lacks it, and says why", (unsigned long long)first);
    kolo_warn("engine", "backend %s: %s", known[i]->name, slot->why);
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "engine_init: backend %s, which the order '%s' wants, is not there: %.900s", known[i]->name,
                     e->config.backends, slot->why);
}

kolo_status_t kolo_backends_open(struct kolo_tensor_engine *e)
{
    e->backends = calloc(1, sizeof *e->backends);
    if (!e->backends) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    KOLO_TRY(kolo_backends_parse(e->backends, e->config.backends));
    for (int i = 0; i < NKNOWN; i++) {
        if (!e->backends->slots[i].wanted) {
            snprintf(e->backends->slots[i].why, sizeof e->backends->slots[i].why,
                     "the order of backends does not name it");
            continue;
        }
        open_one(e, i);
        KOLO_TRY(agree_one(e, i));
    }
    return KOLO_OK;
}

void kolo_backends_close(struct kolo_tensor_engine *e)
{
    if (!e->backends) return;
    for (int i = 0; i < NKNOWN; i++)
        if (e->backends->slots[i].open && known[i]->close) known[i]->close(e, e->backends->slots[i].state);
    free(e->backends);
    e->backends = NULL;
}

bool kolo_backend_switch(struct kolo_tensor_engine *e, kolo_work_t work, const char *name, bool on)
{
    int number = find(name, strlen(name));
    for (int i = 0; i < e->backends->norder[work]; i++) {
        kolo_backend_choice_t *choice = &e->backends->order[work][i];
        if (choice->number != number) continue;
        choice->on = on || number == KOLO_ITSELF;
        return atomic_load(&e->backends->slots[number].there);
    }
    return false;
}

/* ---- of a process set ---- */

static kolo_status_t meet(kolo_set_t *s, int number)
{
    void *here = NULL;
    s->backends_met |= 1u << number;
    if (!known[number]->meet) return KOLO_OK;
    KOLO_TRY(known[number]->meet(s, s->engine->backends->slots[number].state, &here));
    atomic_store(&s->backend_here[number], here);
    if (atomic_load(&s->engine->aborting)) kolo_backends_leave(s, true); /* it may have come before this one */
    return kolo_barrier(s->comm, NULL);
}

void kolo_backends_leave(kolo_set_t *s, bool abort)
{
    for (int i = NKNOWN; i-- > 0;) {
        void *here = atomic_load(&s->backend_here[i]);
        if (here && known[i]->leave && !atomic_exchange(&s->backend_left[i], true)) known[i]->leave(here, abort);
    }
}

void kolo_backends_free(kolo_set_t *s)
{
    for (int i = 0; i < NKNOWN; i++) {
        void *here = atomic_exchange(&s->backend_here[i], NULL);
        if (here && known[i]->free) known[i]->free(here);
    }
    s->backends_met = 0;
}

kolo_status_t kolo_backends_status(const kolo_set_t *s)
{
    for (int i = 0; i < NKNOWN; i++) {
        void *here = atomic_load(&s->backend_here[i]);
        if (!here || !known[i]->status) continue;
        KOLO_FAIL_POINT("engine.backend.status");
        KOLO_TRY(known[i]->status(here));
    }
    return KOLO_OK;
}

/* ---- a move ---- */

int kolo_backend_choose(const kolo_set_t *s, const kolo_need_t *need)
{
    const kolo_backends_t *b = s->engine->backends;
    KOLO_FAIL_POINT("engine.backend.choose");
    for (int i = 0; i < b->norder[need->work]; i++) {
        const kolo_backend_choice_t *choice = &b->order[need->work][i];
        if (choice->on && known[choice->number]->takes(s, need)) return choice->number;
    }
    return KOLO_ITSELF;
}

bool kolo_backend_takes_device(const kolo_set_t *s, const kolo_need_t *need)
{
    const kolo_backends_t *b = s->engine->backends;
    kolo_need_t there = *need, here = *need;
    there.memory = KOLO_MEMORY_DEVICE;
    here.memory = KOLO_MEMORY_HOST;
    for (int i = 0; i < b->norder[need->work]; i++) {
        const kolo_backend_choice_t *choice = &b->order[need->work][i];
        if (!choice->on) continue;
        if (known[choice->number]->takes(s, &there)) return true;
        if (known[choice->number]->takes(s, &here)) return false;
    }
    return false;
}

bool kolo_backend_is_kolo(const kolo_set_t *s, const kolo_need_t *need)
{
    return kolo_backend_choose(s, need) == KOLO_ITSELF;
}

kolo_status_t kolo_backend_run(kolo_set_t *s, const kolo_move_t *move)
{
    int number = kolo_backend_choose(s, &move->need);
    kolo_backend_slot_t *slot = &s->engine->backends->slots[number];
    s->engine->backend_ran = number;
    if (KOLO_UNLIKELY(!(s->backends_met & 1u << number))) KOLO_TRY(meet(s, number));
    KOLO_TALLY(slot->moves, 1);
    KOLO_TALLY(slot->bytes, move->need.bytes);
    kolo_status_t status = known[number]->run(s, atomic_load(&s->backend_here[number]), move);
    if (status != KOLO_OK) {
        bool device = move->need.memory == KOLO_MEMORY_DEVICE;
        s->engine->foreign_failure = number != KOLO_ITSELF || device;
        /* on GPUs Kolo can begin anew, unless the GPU itself has failed */
        s->engine->backend_failed = !device || (number == KOLO_ITSELF && status != KOLO_ERR_SYSTEM);
    }
    return status;
}

/* ---- queries ---- */

kolo_status_t kolo_engine_get_backend(kolo_tensor_engine_t engine, int index, kolo_backend_info_t *info)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_get_backend"));
    if (!info) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_backend: the output is NULL");
    if (index < 0 || index >= NKNOWN)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_backend: index is %d, there are %d backends", index,
                         NKNOWN);
    const kolo_backend_slot_t *slot = &engine->backends->slots[index];
    *info = (kolo_backend_info_t){.name = known[index]->name,
                                  .available = atomic_load(&slot->there),
                                  .why = slot->why,
                                  .operations = atomic_load(&slot->moves),
                                  .bytes = atomic_load(&slot->bytes)};
    return KOLO_OK;
}
