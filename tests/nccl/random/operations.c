/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of a random program: alone or in groups of several communicators, with the value of each element.
 */
#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, RING, KINDS };
#define MOST 400 /* elements of a part, of 4 bytes */

typedef struct {
    room_t *room;
    int kind, count, root, number;
    ncclRedOp_t op;
    bool real, in_place; /* float or int */
    char *in, *out;
} one_t;

static int value_of(const one_t *o, int rank, int i)
{
    return (rank * 7 + i * 3 + o->number) % 13;
}

static int parts_in(const one_t *o)
{
    return o->kind == REDUCE_SCATTER || o->kind == ALL_TO_ALL || o->kind == SCATTER ? o->room->n : 1;
}

static int parts_out(const one_t *o)
{
    return o->kind == ALL_GATHER || o->kind == ALL_TO_ALL || o->kind == GATHER ? o->room->n : 1;
}

static int reduced(const one_t *o, int i)
{
    int sum = 0, most = 0, least = 1000;
    for (int m = 0; m < o->room->n; m++) {
        int v = value_of(o, o->room->ranks[m], i);
        sum += v;
        if (v > most) most = v;
        if (v < least) least = v;
    }
    return o->op == ncclMax ? most : o->op == ncclMin ? least : sum;
}

/* Whether this rank gets element i, and what. */
static bool expected(const one_t *o, int i, int *value)
{
    const room_t *room = o->room;
    int me = room->at, part = o->count ? i / o->count : 0, in = o->count ? i % o->count : 0;
    switch (o->kind) {
    case ALL_REDUCE:
        *value = reduced(o, i);
        return true;
    case REDUCE:
        *value = reduced(o, i);
        return me == o->root;
    case BROADCAST:
        *value = value_of(o, room->ranks[o->root], i);
        return true;
    case ALL_GATHER:
        *value = value_of(o, room->ranks[part], in);
        return true;
    case GATHER:
        *value = value_of(o, room->ranks[part], in);
        return me == o->root;
    case REDUCE_SCATTER:
        *value = reduced(o, me * o->count + i);
        return true;
    case ALL_TO_ALL:
        *value = value_of(o, room->ranks[part], me * o->count + in);
        return true;
    case SCATTER:
        *value = value_of(o, room->ranks[o->root], me * o->count + i);
        return true;
    default: /* RING */
        *value = value_of(o, room->ranks[(me + room->n - 1) % room->n], i);
        return room->n > 1;
    }
}

static void prepare(play_t *p, one_t *o)
{
    int n = o->count * parts_in(o);
    union {
        float f;
        int i;
    } host[MOST * RANKS_MAX];
    o->in = p->in + p->used;
    o->out = o->in_place ? o->in : p->out + p->used;
    p->used += ((size_t)o->count * (size_t)o->room->n * 4 + 15) / 16 * 16;
    for (int i = 0; i < n; i++)
        if (o->real)
            host[i].f = (float)value_of(o, p->me->rank, i);
        else
            host[i].i = value_of(o, p->me->rank, i);
    if (n) copy_bytes(p->me, o->in, host, (size_t)n * 4);
}

static ncclResult_t call(play_t *p, const one_t *o)
{
    ncclDataType_t type = o->real ? ncclFloat32 : ncclInt32;
    ncclComm_t c = o->room->comm;
    cudaStream_t s = p->me->stream;
    size_t n = (size_t)o->count;
    int size = o->room->n, me = o->room->at;
    ncclResult_t r, end;
    switch (o->kind) {
    case ALL_REDUCE:
        return ncclAllReduce(o->in, o->out, n, type, o->op, c, s);
    case REDUCE:
        return ncclReduce(o->in, o->out, n, type, o->op, o->root, c, s);
    case BROADCAST:
        return ncclBroadcast(o->in, o->out, n, type, o->root, c, s);
    case ALL_GATHER:
        return ncclAllGather(o->in, o->out, n, type, c, s);
    case REDUCE_SCATTER:
        return ncclReduceScatter(o->in, o->out, n, type, o->op, c, s);
    case ALL_TO_ALL:
        return ncclAlltoAll(o->in, o->out, n, type, c, s);
    case GATHER:
        return ncclGather(o->in, o->out, n, type, o->root, c, s);
    case SCATTER:
        return ncclScatter(o->in, o->out, n, type, o->root, c, s);
    default:
        if (size == 1) return ncclSuccess;
        OK(ncclGroupStart());
        r = ncclSend(o->in, n, type, (me + 1) % size, c, s);
        if (r == ncclSuccess) r = ncclRecv(o->out, n, type, (me + size - 1) % size, c, s);
        end = ncclGroupEnd();
        return r == ncclSuccess ? end : r;
    }
}

static void look_at(play_t *p, const one_t *o)
{
    int n = o->count * parts_out(o), wrong = 0;
    union {
        float f;
        int i;
    } host[MOST * RANKS_MAX];
    if (n) copy_bytes(p->me, host, o->out, (size_t)n * 4);
    for (int i = 0; i < n && wrong == 0; i++) {
        int want, got = o->real ? (int)host[i].f : host[i].i;
        if (!expected(o, i, &want) || want == got) continue;
        wrong = 1;
        printf("step %d: kind %d, count %d of %d ranks, root %d, op %d, place %d: element %d is %d, not %d\n",
               p->step, o->kind, o->count, o->room->n, o->root, (int)o->op, o->room->at, i, got, want);
        FACT(!"the value is right");
    }
}

static one_t some_operation(play_t *p, room_t *room, int number)
{
    one_t o = {.room = room, .number = number};
    o.kind = (int)for_all(p, KINDS);
    o.count = for_all(p, 12) ? (int)for_all(p, for_all(p, 2) ? 16 : MOST) : 0;
    o.root = (int)for_all(p, (unsigned)room->n);
    o.op = (ncclRedOp_t[]){ncclSum, ncclMax, ncclMin}[for_all(p, 3)];
    o.real = for_all(p, 2);
    o.in_place = (o.kind == ALL_REDUCE || o.kind == BROADCAST) && for_all(p, 2);
    return o;
}

/* The rank's own place for messages among collectives; each kind keeps its order. */
static void some_order(play_t *p, const one_t *list, int n, int *order)
{
    int collective = 0, message = 0;
    for (int i = 0; i < n; i++) {
        while (collective < n && list[collective].kind == RING) collective++;
        while (message < n && list[message].kind != RING) message++;
        bool takes_message = message < n && (collective == n || alone(p, 2));
        order[i] = takes_message ? message++ : collective++;
    }
}

void operate(play_t *p)
{
    one_t list[6];
    int order[6], n = for_all(p, 2) ? 1 : 1 + (int)for_all(p, 6);
    bool grouped = n > 1 || for_all(p, 3) == 0, takes_part = false;
    ncclResult_t r = ncclSuccess;
    p->used = 0;
    for (int i = 0; i < n; i++) {
        room_t *room = some_room(p, 1);
        if (i && room->blocks != list[0].room->blocks) room = list[0].room;
        list[i] = some_operation(p, room, p->step + i);
    }
    for (int i = 0; i < n; i++)
        if (list[i].room->at >= 0) {
            takes_part = true;
            prepare(p, &list[i]);
        }
    if (!takes_part) return;
    some_order(p, list, n, order);
    if (grouped) OK(ncclGroupStart());
    for (int i = 0; i < n; i++) {
        const one_t *o = &list[order[i]];
        if (o->room->at < 0) continue;
        r = call(p, o);
        if (!grouped) r = comes_to(o->room, r);
        if (!OK(r)) printf("step %d: kind %d of %d\n", p->step, o->kind, n);
    }
    if (grouped) r = ncclGroupEnd();
    for (int i = 0; i < n && r == ncclInProgress; i++)
        if (list[i].room->at >= 0) {
            ncclResult_t now = settled(list[i].room->comm);
            if (!OK(now)) printf("step %d: kind %d of %d\n", p->step, list[i].kind, n);
        }
    FACT(r == ncclSuccess || (r == ncclInProgress && !list[0].room->blocks));
    sync_stream(p->me);
    for (int i = 0; i < n; i++)
        if (list[i].room->at >= 0) look_at(p, &list[i]);
}
