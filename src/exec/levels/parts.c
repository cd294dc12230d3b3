/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of the user as calls of the parts (parts.h).
 */
#include "exec/levels/parts.h"

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

kolo_status_t kolo_levels_launch_inside(const kolo_levels_t *s, const kolo_exec_call_t *c)
{
    kolo_exec_call_t call = *c;
    call.number = s->env.enter(s->env.enter_arg, c->number, call.word);
    return s->env.inside.ops->launch(s->env.inside.state, &call, 1);
}

kolo_status_t kolo_levels_launch_across(const kolo_levels_t *s, const kolo_exec_call_t *call)
{
    if (!s->env.across.ops) return KOLO_OK;
    return s->env.across.ops->launch(s->env.across.state, call, 1);
}

kolo_status_t kolo_levels_launch_whole(const kolo_levels_t *s, const kolo_exec_call_t *calls, size_t n)
{
    return s->env.whole.ops->launch(s->env.whole.state, calls, n);
}
