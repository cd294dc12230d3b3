/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a program puts together itself (cuMemCreate, cuMemMap), as torch's expandable segments: one buffer
 * over several pieces, which other processes may get a descriptor of or not, and which come and go. See conform.h.
 */
#include "cases.h"
#include "conform.h"

#include <stdio.h>
#include <string.h>

#define MB     ((size_t)1 << 20)
#define PIECES 8
#define TURNS  3 /* others have mapped what is offered when the third call is made, at the latest */

typedef struct {
    kolo_cu_ptr_t base;
    size_t reserved, mapped, bytes[PIECES];
    int n;
} segment_t;

static bool fine(kolo_cu_result_t result, const char *what)
{
    return !result || KIT_FAIL("%s: error %d", what, (int)result);
}

static bool put_piece(const kit_rank_t *r, kolo_cu_ptr_t at, size_t bytes, bool shared)
{
    const kolo_cuda_api_t *cu = kit_cuda();
    kolo_cu_mem_prop_t prop = {.type = KOLO_CU_PINNED,
                               .handles = shared ? KOLO_CU_HANDLE_FD : 0,
                               .location = {KOLO_CU_LOCATION_DEVICE, r->device}};
    kolo_cu_access_t who = {prop.location, KOLO_CU_ACCESS_READ_WRITE};
    kolo_cu_mem_t handle;
    return fine(cu->mem_create(&handle, bytes, &prop, 0), "cuMemCreate") &&
           fine(cu->mem_map(at, bytes, 0, handle, 0), "cuMemMap") &&
           fine(cu->mem_release(handle), "cuMemRelease") &&
           fine(cu->mem_access(at, bytes, &who, 1), "cuMemSetAccess");
}

static bool grow(const kit_rank_t *r, segment_t *s, size_t bytes, bool shared)
{
    if (!put_piece(r, s->base + s->mapped, bytes, shared)) return false;
    s->bytes[s->n++] = bytes;
    s->mapped += bytes;
    return true;
}

/* Other memory in the place of a piece. */
static bool renew(const kit_rank_t *r, const segment_t *s, int piece, bool shared)
{
    kolo_cu_ptr_t at = s->base;
    for (int i = 0; i < piece; i++) at += s->bytes[i];
    return fine(kit_cuda()->mem_unmap(at, s->bytes[piece]), "cuMemUnmap") &&
           put_piece(r, at, s->bytes[piece], shared);
}

static bool end(segment_t *s)
{
    kolo_cu_ptr_t at = s->base;
    bool good = true;
    for (int i = 0; i < s->n; at += s->bytes[i++])
        good = fine(kit_cuda()->mem_unmap(at, s->bytes[i]), "cuMemUnmap") && good;
    return fine(kit_cuda()->mem_unreserve(s->base, s->reserved), "cuMemAddressFree") && good;
}

/* ---- what is made of them ---- */

static const struct {
    const char *name;
    size_t units[PIECES]; /* of each piece */
    unsigned closed;      /* by bit: pieces without a descriptor */
    bool one_rank;        /* and that only on the last rank */
} forms[] = {
    {"one piece", {3}, 0, false},
    {"several pieces", {1, 2, 1}, 0, false},
    {"several pieces that cannot be shared", {1, 2, 1}, 7, false},
    {"pieces that cannot be shared on one rank", {1, 2, 1}, 7, true},
    {"several pieces of which one cannot be shared", {1, 2, 1}, 2, false},
};
#define FORMS ((int)(sizeof forms / sizeof forms[0]))

static bool is_shared(const kit_rank_t *r, int form, int piece)
{
    return !(forms[form].closed >> piece & 1) || (forms[form].one_rank && r->rank != r->nranks - 1);
}

/* The least that there is, or more where there is time. */
static size_t unit(const kit_team_t *t)
{
    return (t->options->quick ? 2 : 8) * MB;
}

static bool make(const kit_rank_t *r, int form, size_t each, segment_t *s)
{
    *s = (segment_t){.reserved = 2 * PIECES * each};
    kit_enter(r);
    if (!fine(kit_cuda()->mem_reserve(&s->base, s->reserved, 0, 0, 0), "cuMemAddressReserve")) return false;
    for (int i = 0; i < PIECES && forms[form].units[i]; i++)
        if (!grow(r, s, forms[form].units[i] * each, is_shared(r, form, i))) return false;
    return true;
}

/* Calls whose buffers cover all of the segment. */
static bool calls(kit_team_t *t, const segment_t *segments, uint64_t seed)
{
    static const case_kind_t kinds[] = {CASE_ALL_REDUCE, CASE_ALL_GATHER, CASE_ALL_TO_ALL, CASE_RING};
    for (int i = 0; i < t->n; i++) {
        t->ranks[i].buffer = (char *)(uintptr_t)segments[i].base; /* NOLINT: a driver's address */
        t->ranks[i].room = segments[i].mapped;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            case_t c = {.kind = kinds[k],
                        .count = segments[0].mapped / 4,
                        .type = KOLO_FLOAT32,
                        .op = KOLO_SUM,
                        .in_place = turn & 1 && case_has_place(kinds[k]),
                        .seed = seed + k};
            if (kinds[k] == CASE_RING && t->ranks[0].nranks == 1) continue;
            while (case_room(&c, t->ranks[0].nranks) > segments[0].mapped) c.count -= c.count / 32 + 1;
            if (!case_run(t, &c)) return false;
        }
    }
    return true;
}

/* Short calls on other memory, until what was freed is given up. */
static bool settle(kit_team_t *t, char *const *was, size_t room)
{
    case_t c = {.kind = CASE_ALL_REDUCE, .count = 4, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 5};
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        t->ranks[i].buffer = was[i];
        t->ranks[i].room = room;
    }
    for (int i = 0; i < 140 && good; i++) good = case_run(t, &c);
    return good;
}

/* Who maps how much is counted by the fake driver alone, and where all ranks are processes. */
static bool maps(const kit_team_t *t, int before, bool some)
{
    const kit_rank_t *r = &t->ranks[0];
    int now = kit_imported();
    if (now < 0 || t->options->mode != KIT_PROCESSES || r->nranks == 1 || (now > before) == some) return true;
    return KIT_FAIL("rank %d maps %d pieces of others, %d before", r->rank, now, before);
}

/* Is there anything to map for this rank? */
static bool others_share(const kit_rank_t *r, int form)
{
    return !forms[form].closed || (forms[form].one_rank && (r->nranks > 2 || r->rank == r->nranks - 1));
}

static bool run_form(kit_team_t *t, int form, char *const *was, size_t room)
{
    segment_t segments[KIT_RANKS];
    uint64_t seed = t->options->seed * 1000 + (uint64_t)form * 100;
    int before = kit_imported();
    bool good = true;
    for (int i = 0; i < t->n; i++) good = make(&t->ranks[i], form, unit(t), &segments[i]) && good;
    good = good && calls(t, segments, seed);
    good = kit_case_end(t, good && maps(t, before, others_share(&t->ranks[0], form)), forms[form].name) && good;
    for (int i = 0; i < t->n && good; i++) {
        kit_enter(&t->ranks[i]);
        good =
            renew(&t->ranks[i], &segments[i], segments[i].n / 2, is_shared(&t->ranks[i], form, segments[i].n / 2));
    }
    good = good && calls(t, segments, seed + 10) && kit_case_end(t, good, "one of them is other memory");
    for (int i = 0; i < t->n && good; i++) {
        kit_enter(&t->ranks[i]);
        good = grow(&t->ranks[i], &segments[i], unit(t), is_shared(&t->ranks[i], form, 0));
    }
    good = good && calls(t, segments, seed + 20) && kit_case_end(t, good, "there is one more");
    for (int i = 0; i < t->n && good; i++) {
        kit_enter(&t->ranks[i]);
        good = kit_sync(&t->ranks[i], t->ranks[i].streams[0]) && end(&segments[i]);
    }
    good = good && settle(t, was, room);
    return kit_case_end(t, good && maps(t, before, false), "and nobody keeps what was freed") && good;
}

bool conform_vmm(kit_team_t *t)
{
    char *was[KIT_RANKS];
    size_t room = t->ranks[0].room;
    bool good = true;
    for (int i = 0; i < t->n; i++) was[i] = t->ranks[i].buffer;
    if (t->options->host) return true;
    for (int form = 0; form < FORMS && good; form++) good = run_form(t, form, was, room);
    return good;
}
