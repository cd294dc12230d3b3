/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a hierarchical GPU communicator (gpu/levels): two communicators of its own, one of the ranks on
 * this host, whose GPUs reach each other, and a lane, of the ranks with this rank's place on the other hosts, on
 * their CPUs; where a host has fewer ranks than that, this rank has no lane. They are made and ended with the
 * communicator they belong to, which reports their failures to the user.
 */
#include "gpu/levels/levels.h"
#include "base/failpoint.h"
#include "comm/call/call.h"
#include "comm/life/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_INSIDE = 0x6c765f69, LABEL_ACROSS = 0x6c765f61 };

typedef struct {
    int *members; /* ranks of the parent, in the child's order */
    int n, mine;
    uint8_t *addresses;
} team_t;

static void team_fini(team_t *t)
{
    free(t->members);
    free(t->addresses);
}

/* Lists the ranks of this host, or those with this rank's place on each host. */
static kolo_status_t team_init(team_t *t, const kolo_body_t *body, const uint8_t *all, bool inside)
{
    const kolo_member_t *m = &body->member;
    *t = (team_t){.members = calloc((size_t)body->nranks, sizeof(int)),
                  .addresses = calloc((size_t)body->nranks, KOLO_OOB_ADDRESS_BYTES)};
    if (!t->members || !t->addresses)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", body->nranks);
    for (int r = 0; r < body->nranks; r++) {
        bool in = inside ? m->node_of[r] == m->my_node : m->local_of[r] == m->local_of[body->rank];
        if (!in) continue;
        if (r == body->rank) t->mine = t->n;
        memcpy(t->addresses + (size_t)t->n * KOLO_OOB_ADDRESS_BYTES, all + (size_t)r * KOLO_OOB_ADDRESS_BYTES,
               KOLO_OOB_ADDRESS_BYTES);
        t->members[t->n++] = r;
    }
    return KOLO_OK;
}

/* Opens the child, which keeps the list of the members. */
static kolo_status_t open_child(kolo_body_t *body, kolo_oob_child_t *oob_child, team_t *t, uint64_t label,
                                const char *what, kolo_body_t **out)
{
    char name[64];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_body_t *child = NULL;
    snprintf(name, sizeof name, "%.30s (%s)", body->name, what);
    config.name = name;
    config.device = -1;
    config.blocking = 1;
    kolo_status_t status = kolo_body_new(t->mine, t->n, &config, body, what, &child);
    if (status != KOLO_OK) {
        kolo_oob_discard_child(oob_child);
        return status;
    }
    *out = child;
    child->levels.owner = body;
    child->levels.owner_ranks = t->members;
    t->members = NULL;
    KOLO_TRY(kolo_child_open(child, t->mine, t->n, oob_child, label, t->addresses));
    KOLO_TRY(kolo_inherit_failures(child->oob, body->oob, child->levels.owner_ranks, true));
    KOLO_TRY(kolo_body_setup(child));
    return kolo_inherit_setup_done(child->oob);
}

/* Addresses of fresh listeners go round, then each rank opens its child; a rank without a lane has none. */
static kolo_status_t make_child(kolo_body_t *body, bool inside, bool member, kolo_body_t **out)
{
    kolo_oob_child_t *oob_child = NULL;
    team_t team = {0};
    const char *what = inside ? "host" : "lane";
    uint8_t *all = calloc((size_t)body->nranks, KOLO_OOB_ADDRESS_BYTES);
    kolo_status_t status = KOLO_OK;
    if (!all) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", body->nranks);
    if (member)
        status = kolo_oob_prepare_child(body->oob, &oob_child, all + (size_t)body->rank * KOLO_OOB_ADDRESS_BYTES);
    if (status == KOLO_OK) status = kolo_oob_all_gather(body->oob, all, KOLO_OOB_ADDRESS_BYTES);
    if (status == KOLO_OK && member) status = team_init(&team, body, all, inside);
    if (status == KOLO_OK && member) {
        int color = inside ? body->member.my_node : body->member.local_of[body->rank];
        uint64_t label = (uint64_t)(inside ? LABEL_INSIDE : LABEL_ACROSS) << 32 ^ (uint64_t)color;
        status = open_child(body, oob_child, &team, label, what, out);
    } else if (oob_child) {
        kolo_oob_discard_child(oob_child);
    }
    if (*out) kolo_body_started(*out, status, what, NULL);
    team_fini(&team);
    free(all);
    return status == KOLO_OK ? KOLO_OK : kolo_child_blame(body, status);
}

static kolo_status_t open_part(kolo_body_t *ctx_of, const kolo_exec_env_t *env, const kolo_exec_ops_t *ops,
                               kolo_host_side_t *side, kolo_exec_part_t *part)
{
    kolo_exec_env_t own = *env;
    own.plan = NULL; /* of the whole, not of a part */
    uint64_t deadline = env->ctx->deadline_ns, before = ctx_of->ctx.deadline_ns;
    own.ctx = &ctx_of->ctx;
    own.tuned = kolo_device_tuned(ctx_of);
    own.host_arg = side;
    own.ctx->deadline_ns = deadline;
    part->ops = ops;
    kolo_status_t status = ops->open(&own, &part->state);
    own.ctx->deadline_ns = before;
    return status;
}

static kolo_status_t open_parts(kolo_body_t *body, const kolo_exec_env_t *env, kolo_levels_env_t *levels)
{
    bool leads = body->member.local_of[body->rank] < kolo_levels_lanes(levels->size, levels->hosts);
    KOLO_TRY(make_child(body, true, true, &body->levels.inside));
    KOLO_TRY(make_child(body, false, leads, &body->levels.across));
    body->levels.lane_side = (kolo_host_side_t){body->levels.across, body};
    KOLO_TRY(open_part(body->levels.inside, env, &kolo_exec_cuda, NULL, &levels->inside));
    if (leads)
        KOLO_TRY(open_part(body->levels.across, env, &kolo_exec_staged, &body->levels.lane_side, &levels->across));
    return open_part(body, env, &kolo_exec_staged, &body->gpu.host_side, &levels->whole);
}

/* Numbers the kernels inside a host: who differs there finds out by what the user has called, and by the kernels of
 * that call, one behind the other. */
static uint64_t enter_inside(void *arg, uint64_t call, uint64_t word)
{
    kolo_body_t *inside = arg;
    bool same = kolo_board_call_of(inside->levels.step) == call;
    inside->levels.step = same ? call | ((inside->levels.step + 1) & (KOLO_BOARD_STEPS - 1)) : call;
    kolo_board_publish_call(&inside->track.board, inside->levels.step, word);
    return inside->levels.step;
}

static kolo_status_t watch_inside(kolo_body_t *inside, void *state)
{
    inside->gpu.exec = &kolo_exec_cuda;
    atomic_store(&inside->gpu.state, state);
    if (atomic_load(&inside->stop.reason)) kolo_device_cancel(inside);
    return kolo_device_watch_start(inside);
}

kolo_status_t kolo_device_levels_open(void *arg, const kolo_exec_env_t *env, void **state)
{
    kolo_body_t *body = arg;
    kolo_levels_env_t levels = {.rank = body->rank,
                                .hosts = body->member.nnodes,
                                .first = body->member.node_first,
                                .size = body->member.node_size,
                                .device = body->gpu.device,
                                .enter = enter_inside};
    kolo_status_t status = open_parts(body, env, &levels);
    levels.enter_arg = body->levels.inside;
    if (status == KOLO_OK) status = watch_inside(body->levels.inside, levels.inside.state);
    if (status == KOLO_OK) status = kolo_levels_make(&levels, state);
    if (status == KOLO_OK) return KOLO_OK;
    char text[KOLO_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", kolo_error_text());
    const kolo_exec_part_t *parts[] = {&levels.inside, &levels.across, &levels.whole};
    kolo_device_levels_look_away(body);
    for (int i = 0; i < 3; i++)
        if (parts[i]->ops) parts[i]->ops->close(parts[i]->state);
    kolo_device_levels_close(body);
    return kolo_fail(status, "%s", text);
}

void kolo_device_levels_look_away(kolo_body_t *body)
{
    kolo_body_t *inside = body->levels.inside;
    if (!inside) return;
    kolo_news_set_handler(inside->oob, NULL, NULL); /* its news would end kernels of what is closed next */
    kolo_device_watch_alone(inside);
    KOLO_FAIL_POINT("comm.device.look_away");
    kolo_device_watch_stop(inside);
    atomic_store(&inside->gpu.state, NULL); /* which the hierarchical executor closes */
}

void kolo_device_levels_close(kolo_body_t *body)
{
    kolo_body_t **children[] = {&body->levels.inside, &body->levels.across};
    for (int i = 0; i < 2; i++) {
        kolo_body_t *child = *children[i];
        *children[i] = NULL;
        if (child && kolo_handle_retire(child->handle, "device", false) == KOLO_OK) kolo_body_free(child);
    }
}
