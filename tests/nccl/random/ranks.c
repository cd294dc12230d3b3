/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on which the ranks agree: communicators by id, split, shrink and grow, blocking or not, ended in
 * any order and way, and operations between, alone and in groups, whose values are looked at. With
 * KOLO_NCCL_WAIT_MS also what only some of the ranks do (spoils.c). RANDOM_SEED and RANDOM_STEPS for more.
 */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA 200000

unsigned drawn(uint64_t *state, unsigned n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*state >> 33) % n;
}

unsigned for_all(play_t *p, unsigned n)
{
    return drawn(&p->shared, n);
}

unsigned alone(play_t *p, unsigned n)
{
    return drawn(&p->own, n);
}

room_t *some_room(play_t *p, int least)
{
    unsigned from = for_all(p, ROOMS);
    for (unsigned i = 0; i < ROOMS; i++) {
        room_t *room = &p->rooms[(from + i) % ROOMS];
        if (room->n >= least && !room->stopped) return room;
    }
    return &p->rooms[0];
}

room_t *empty_room(play_t *p)
{
    for (int i = 0; i < ROOMS; i++)
        if (p->rooms[i].n == 0) return &p->rooms[i];
    return NULL;
}

void set_ranks(play_t *p, room_t *room, const int *ranks, int n)
{
    room->n = n;
    room->at = -1;
    room->stopped = false;
    for (int i = 0; i < n; i++) {
        room->ranks[i] = ranks[i];
        if (ranks[i] == p->me->rank) room->at = i;
    }
}

ncclResult_t comes_to(const room_t *room, ncclResult_t r)
{
    return r == ncclInProgress ? settled(room->comm) : r;
}

void end_room(play_t *p, room_t *room, int way)
{
    if (room->comm) {
        if (way == 1) {
            OK(ncclCommAbort(room->comm));
        } else {
            if (way == 2 && !room->stopped) OK(comes_to(room, ncclCommFinalize(room->comm)));
            OK(ncclCommDestroy(room->comm));
        }
    }
    (void)p;
    memset(room, 0, sizeof *room);
}

static ncclConfig_t some_config(play_t *p, room_t *room)
{
    ncclConfig_t c = new_config();
    room->blocks = for_all(p, 3) != 0;
    c.blocking = room->blocks;
    if (for_all(p, 4) == 0) c.splitShare = 1;
    if (for_all(p, 4) == 0) c.commName = "random";
    return c;
}

/* Checks a communicator that is said to be made. */
static void is_made(play_t *p, const room_t *room, ncclResult_t r)
{
    int n = 0, rank = -1;
    if (room->at < 0) {
        FACT(room->comm == NULL);
        return;
    }
    if (!OK(r) || !FACT(room->comm != NULL)) {
        printf("step %d: no communicator\n", p->step);
        abort(); /* the others have it: nothing that follows would mean anything */
    }
    IS(ncclSuccess, settled(room->comm));
    OK(ncclCommCount(room->comm, &n));
    OK(ncclCommUserRank(room->comm, &rank));
    EQ(n, room->n);
    EQ(rank, room->at);
}

static void by_id(play_t *p)
{
    room_t *room = empty_room(p);
    int ranks[RANKS_MAX], n = 0;
    if (!room) return;
    for (int i = 0; i < p->me->n; i++)
        if (for_all(p, 3)) ranks[n++] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)for_all(p, (unsigned)i + 1), other = ranks[j];
        ranks[j] = ranks[i];
        ranks[i] = other;
    }
    ncclConfig_t c = some_config(p, room);
    bool grouped = for_all(p, 2);
    ncclUniqueId id = shared_id(p->me);
    if (n == 0) return;
    set_ranks(p, room, ranks, n);
    if (room->at < 0) return;
    if (grouped) OK(ncclGroupStart());
    ncclResult_t r = ncclCommInitRankConfig(&room->comm, n, id, room->at, &c);
    FACT(r == ncclSuccess || (r == ncclInProgress && !room->blocks));
    if (grouped) r = ncclGroupEnd();
    FACT(r == ncclSuccess || (r == ncclInProgress && !room->blocks));
    is_made(p, room, ncclSuccess);
}

typedef struct {
    room_t *parent, *room;
    ncclComm_t made;
    int key, ranks[RANKS_MAX], n;
    bool bare; /* without a configuration */
    ncclConfig_t config;
} split_t;

/* Draws one of one color, for which there is a room: the others' ranks have none. */
static void draw_split(play_t *p, split_t *s)
{
    int keys[RANKS_MAX];
    s->config = some_config(p, s->room);
    s->bare = for_all(p, 4) == 0;
    s->n = 0;
    s->made = (ncclComm_t)(void *)p;
    for (int i = 0; i < s->parent->n; i++)
        keys[i] = for_all(p, 4) ? (int)for_all(p, 3) : -1; /* -1: without color */
    for (int key = 0; key < 3; key++)
        for (int i = 0; i < s->parent->n; i++)
            if (keys[i] == key) s->ranks[s->n++] = s->parent->ranks[i];
    s->key = s->parent->at >= 0 ? keys[s->parent->at] : -1;
    if (s->bare) s->room->blocks = s->parent->blocks;
}

static ncclResult_t begin_split(split_t *s)
{
    return ncclCommSplit(s->parent->comm, s->key < 0 ? NCCL_SPLIT_NOCOLOR : 5, s->key, &s->made,
                         s->bare ? NULL : &s->config);
}

static void end_split(play_t *p, split_t *s)
{
    if (s->parent->at >= 0) s->room->comm = s->made;
    set_ranks(p, s->room, s->ranks, s->n);
    if (s->parent->at >= 0) is_made(p, s->room, ncclSuccess);
    if (s->n == 0) memset(s->room, 0, sizeof *s->room);
}

static void by_split(play_t *p)
{
    split_t s = {.parent = some_room(p, 1), .room = empty_room(p)};
    if (!s.room) return;
    draw_split(p, &s);
    bool grouped = for_all(p, 2);
    if (s.parent->at >= 0) {
        if (grouped) OK(ncclGroupStart());
        ncclResult_t r = begin_split(&s);
        if (grouped && r == ncclSuccess) r = ncclGroupEnd();
        OK(comes_to(s.parent, r));
    }
    end_split(p, &s);
}

/* Splits of several parents, an end and an operation of the world, in one group. */
static void several_at_once(play_t *p)
{
    split_t list[3];
    room_t *old = some_room(p, 1), *world = &p->rooms[0];
    int n = 0;
    for (int i = 0; i < ROOMS && n < 3; i++) {
        room_t *parent = &p->rooms[i], *room = empty_room(p);
        if (!room || parent->n <= 0 || !parent->blocks || parent->stopped || parent == old) continue;
        list[n] = (split_t){.parent = parent, .room = room};
        draw_split(p, &list[n]);
        room->n = -1; /* taken */
        n++;
    }
    if (old == world || !old->blocks) old = NULL;
    OK(ncclGroupStart());
    OK(ncclAllReduce(p->in, p->out, 100, ncclFloat32, ncclSum, world->comm, p->me->stream));
    for (int i = 0; i < n; i++)
        if (list[i].parent->at >= 0) OK(begin_split(&list[i]));
    if (old && old->comm) OK(ncclCommDestroy(old->comm));
    OK(ncclGroupEnd());
    if (old) memset(old, 0, sizeof *old);
    for (int i = 0; i < n; i++) end_split(p, &list[i]);
}

static void by_shrink(play_t *p)
{
    room_t *parent = some_room(p, 2), *room = empty_room(p);
    int excluded[RANKS_MAX], ranks[RANKS_MAX], n = 0, gone = 0;
    if (!room || parent->n < 2) return;
    ncclConfig_t c = some_config(p, room);
    int kept = (int)for_all(p, (unsigned)parent->n);
    bool ends = for_all(p, 3) == 0 && parent != &p->rooms[0];
    for (int i = 0; i < parent->n; i++)
        if (i == kept || for_all(p, 2))
            ranks[n++] = parent->ranks[i];
        else
            excluded[gone++] = i;
    if (gone == 0) return;
    if (ends) meet(p->me); /* it ends what others are in */
    set_ranks(p, room, ranks, n);
    if (room->at >= 0) {
        OK(comes_to(parent, ncclCommShrink(parent->comm, excluded, gone, &room->comm, &c,
                                           ends ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT)));
        is_made(p, room, ncclSuccess);
    }
    if (ends) parent->stopped = true;
}

/* All that the parent has, and one more. */
static void by_grow(play_t *p)
{
    room_t *parent = some_room(p, 1), *room = empty_room(p);
    int ranks[RANKS_MAX], newcomer = -1, lead = parent->ranks[0];
    ncclUniqueId id;
    if (!room || parent->n == p->me->n) return;
    ncclConfig_t c = some_config(p, room);
    for (int r = 0; r < p->me->n && newcomer < 0; r++) {
        newcomer = r;
        for (int i = 0; i < parent->n; i++)
            if (parent->ranks[i] == r) newcomer = -1;
    }
    memset(&id, 0, sizeof id);
    if (p->me->rank == lead) OK(ncclCommGetUniqueId(parent->comm, &id));
    copy_bytes(p->me, p->in, &id, sizeof id);
    OK(comes_to(&p->rooms[0],
                ncclBroadcast(p->in, p->in, sizeof id, ncclUint8, lead, p->rooms[0].comm, p->me->stream)));
    copy_bytes(p->me, &id, p->in, sizeof id);
    memcpy(ranks, parent->ranks, sizeof ranks);
    ranks[parent->n] = newcomer;
    set_ranks(p, room, ranks, parent->n + 1);
    if (room->at < 0) return;
    ncclResult_t r = p->me->rank == newcomer ? ncclCommGrow(NULL, room->n, &id, parent->n, &room->comm, &c)
                                             : ncclCommGrow(parent->comm, room->n, p->me->rank == lead ? &id : NULL,
                                                            -1, &room->comm, &c);
    FACT(r == ncclSuccess || (r == ncclInProgress && !room->blocks));
    is_made(p, room, ncclSuccess);
}

/* Several, in each rank's own order; all in a group or not. An abort ends what others are in. */
static void end_some(play_t *p)
{
    room_t *list[ROOMS];
    int ways[ROOMS], n = 0;
    bool grouped = for_all(p, 3) == 0, aborts = for_all(p, 4) == 0;
    for (int i = 1; i < ROOMS; i++)
        if (p->rooms[i].n > 0 && for_all(p, 2)) list[n++] = &p->rooms[i];
    if (aborts) meet(p->me);
    for (int i = n - 1; i > 0; i--) {
        int j = (int)alone(p, (unsigned)i + 1);
        room_t *other = list[j];
        list[j] = list[i];
        list[i] = other;
    }
    for (int i = 0; i < n; i++) ways[i] = (int)alone(p, 3);
    for (int i = 0; i < n; i++)
        if (ways[i] == 1 && !aborts) ways[i] = 0;
    if (grouped) OK(ncclGroupStart());
    for (int i = 0; i < n; i++)
        if (!grouped) {
            end_room(p, list[i], ways[i]);
        } else if (list[i]->comm) {
            OK(ncclCommDestroy(list[i]->comm));
        }
    if (grouped) {
        ncclResult_t r = ncclGroupEnd();
        FACT(r == ncclSuccess);
        for (int i = 0; i < n; i++) memset(list[i], 0, sizeof *list[i]);
    }
    if (aborts) meet(p->me);
}

/* What is wrong is refused, and changes nothing. */
static void refused(play_t *p)
{
    room_t *room = some_room(p, 1);
    ncclComm_t c = room->comm;
    cudaStream_t s = p->me->stream;
    int value = 0;
    if (!c) return;
    switch (alone(p, 8)) {
    case 0:
        IS(ncclInvalidArgument, ncclBroadcast(p->in, p->out, 8, ncclInt8, room->n, c, s));
        break;
    case 1:
        IS(ncclInvalidArgument, ncclAllReduce(p->in, p->out, 8, ncclNumTypes, ncclSum, c, s));
        break;
    case 2:
        IS(ncclInvalidArgument, ncclAllReduce(p->in, p->out, 8, ncclInt8, (ncclRedOp_t)1234, c, s));
        break;
    case 3:
        IS(ncclInvalidArgument, ncclCommSplit(c, -7, 0, &(ncclComm_t){NULL}, NULL));
        break;
    case 4:
        IS(ncclInvalidArgument, ncclCommShrink(c, &room->at, 1, &(ncclComm_t){NULL}, NULL, 0));
        break;
    case 5: /* an error in a group: nothing of it runs */
        OK(ncclGroupStart());
        OK(ncclAllReduce(p->in, p->out, 8, ncclInt8, ncclSum, c, s));
        IS(ncclInvalidArgument, ncclReduce(p->in, p->out, 8, ncclInt8, ncclSum, -1, c, s));
        OK(ncclCommDestroy(c));
        IS(ncclInvalidArgument, ncclGroupEnd());
        break;
    case 6:
        IS(ncclInvalidArgument, ncclSend(p->in, 8, ncclInt8, -1, c, s));
        break;
    case 7:
        OK(ncclGroupStart());
        OK(ncclAllReduce(p->in, p->out, 8, ncclInt8, ncclSum, c, s));
        OK(ncclGroupSimulateEnd(NULL));
        break;
    }
    OK(ncclCommCount(c, &value));
    EQ(value, room->n);
}

static void step(play_t *p)
{
    bool spoils = getenv("KOLO_NCCL_WAIT_MS") != NULL;
    switch (for_all(p, spoils ? 17 : 15)) {
    case 0:
        by_id(p);
        break;
    case 1:
    case 2:
        by_split(p);
        break;
    case 3:
        by_shrink(p);
        break;
    case 4:
        by_grow(p);
        break;
    case 5:
    case 6:
        end_some(p);
        break;
    case 7:
        refused(p);
        break;
    case 14:
        several_at_once(p);
        break;
    case 15:
    case 16:
        spoil(p);
        break;
    default:
        operate(p);
        break;
    }
}

static void random_calls_of_all_ranks(me_t *me)
{
    const char *seed = getenv("RANDOM_SEED"), *steps = getenv("RANDOM_STEPS");
    static const int all[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    play_t p = {.me = me};
    p.shared = (seed ? strtoull(seed, NULL, 0) : 39) * 1000003;
    p.own = p.shared + 77 * (uint64_t)(me->rank + 1);
    p.in = (char *)floats(me, ARENA / 4, 0);
    p.out = (char *)floats(me, ARENA / 4, 0);
    p.rooms[0].blocks = true;
    p.rooms[0].comm = me->comm;
    set_ranks(&p, &p.rooms[0], all, me->n);
    for (int n = steps ? atoi(steps) : on_gpu() ? 60 : 150; p.step < n; p.step++) step(&p);
    meet(me);
    for (int i = 1; i < ROOMS; i++) end_room(&p, &p.rooms[i], (int)alone(&p, 3));
    works(me, me->comm, me->n);
}

const case_t ranks_cases[] = {
    {"random_calls_of_all_ranks", random_calls_of_all_ranks, EACH},
    {NULL, NULL, EACH},
};
