/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of the user as calls of the parts (parts.h).
 */
#include "gpu/levels/parts.h"

int kolo_levels_host_of(const kolo_levels_t *s, int rank)
{
    int h = 0;
    while (h + 1 < s->env.hosts && s->env.first[h + 1] <= rank) h++;
    return h;
}

uint64_t kolo_levels_room(const kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t parts)
{
    return s->room_bytes / parts / c->elem / 64 * 64;
}

kolo_exec_call_t kolo_levels_inside(const kolo_exec_call_t *c, kolo_coll_t coll)
{
    kolo_exec_call_t call = *c;
    call.coll = coll;
    call.reducer.post_div = 0;
    if (!kolo_coll_reduces(coll)) call.reducer.pre = call.reducer.pre_own = false;
    return call;
}

kolo_exec_call_t kolo_levels_across(const kolo_exec_call_t *c, kolo_coll_t coll)
{
    kolo_exec_call_t call = *c;
    call.coll = coll;
    call.reducer.pre = call.reducer.pre_own = false;
    call.op = call.reducer.post_div > 1 ? KOLO_OP_BUILTIN_COUNT : call.reducer.op; /* not the average of averages */
    return call;
}

static kolo_status_t queue(kolo_levels_t *s, const kolo_exec_part_t *part, const kolo_exec_call_t *calls, size_t n)
{
    kolo_status_t status = part->ops->launch(part->state, calls, n);
    s->begun = s->begun || status == KOLO_OK;
    return status;
}

kolo_status_t kolo_levels_launch_inside(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    kolo_exec_call_t call = *c;
    call.number = s->env.enter(s->env.enter_arg, c->number, call.word);
    return queue(s, &s->env.inside, &call, 1);
}

kolo_status_t kolo_levels_launch_across(kolo_levels_t *s, const kolo_exec_call_t *call)
{
    if (!s->env.across.ops) return KOLO_OK;
    return queue(s, &s->env.across, call, 1);
}

kolo_status_t kolo_levels_launch_whole(kolo_levels_t *s, const kolo_exec_call_t *calls, size_t n)
{
    return queue(s, &s->env.whole, calls, n);
}
