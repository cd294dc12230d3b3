/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf's hands inside the library. See inside.h.
 */
#include "inside.h"
#include "base/file/output.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

kolo_coll_t perf_inside_coll(perf_coll_t coll)
{
    kolo_coll_t found;
    return kolo_coll_parse(perf_coll_names[coll], &found) == KOLO_OK ? found : KOLO_COLL_P2P;
}

static bool rooted(perf_coll_t coll)
{
    return coll == PERF_REDUCE || coll == PERF_BROADCAST || coll == PERF_GATHER || coll == PERF_SCATTER;
}

static const kolo_memo_t *memo_of(const perf_job_t *job, perf_coll_t coll, uint64_t count)
{
    const kolo_body_t *body = job->comm->body;
    kolo_coll_t inside = perf_inside_coll(coll);
    kolo_type_t type = coll == PERF_BARRIER ? KOLO_UINT8 : job->options->type;
    kolo_op_t op = kolo_coll_reduces(inside) ? job->options->op : KOLO_SUM;
    uint64_t signature =
        kolo_signature(inside, (int)type, (int)op, rooted(coll) ? (uint32_t)job->options->root : 0, count);
    for (size_t i = 0; i < KOLO_MEMO_SLOTS; i++)
        if (body->plans.memo[i].signature == signature && !body->plans.memo[i].v) return &body->plans.memo[i];
    return NULL;
}

bool perf_inside_shared(const perf_job_t *job, char *text, size_t bytes)
{
    const kolo_member_t *m = &job->comm->body->member;
    return job->nranks > 1 && kolo_cores_shared(m, m->my_node, text, bytes);
}

const char *perf_inside_force(const perf_job_t *job, const char *text)
{
    memset(job->comm->body->plans.memo, 0, sizeof job->comm->body->plans.memo);
    return kolo_tune_force(text);
}

kolo_status_t perf_inside_choose(const perf_job_t *job, perf_coll_t coll, uint64_t count,
                                 kolo_tune_choice_t *choice)
{
    const kolo_body_t *body = job->comm->body;
    kolo_emit_env_t env = body->choice.emit;
    size_t elem = coll == PERF_BARRIER ? 1 : kolo_type_size(job->options->type);
    env.root = rooted(coll) ? (uint32_t)job->options->root : 0;
    return kolo_tune_choose(
        &(kolo_tune_ask_t){&body->choice.tune, &env, &body->choice.sizes, perf_inside_coll(coll), count, elem},
        choice);
}

static bool refs_only(const kolo_body_t *body, kolo_coll_t coll, kolo_algo_t algo)
{
    for (const kolo_bound_t *b = body->plans.bounds; b; b = b->next)
        if (b->plan->coll == coll && b->plan->algo == algo) return b->ref_tile != 0;
    return false;
}

kolo_status_t perf_inside_ran(const perf_job_t *job, perf_coll_t coll, uint64_t count, perf_ran_t *ran)
{
    const kolo_body_t *body = job->comm->body;
    const kolo_memo_t *memo = memo_of(job, coll, count);
    kolo_tune_choice_t choice;
    if (memo) {
        choice = (kolo_tune_choice_t){.way = kolo_way_of_number(memo->way), .piece_bytes = memo->piece_bytes};
    } else {
        KOLO_TRY(perf_inside_choose(job, coll, count, &choice));
    }
    *ran = (perf_ran_t){choice.way, choice.piece_bytes};
    if (choice.way.lines)
        ran->piece_bytes = body->choice.sizes.ll_slot_bytes;
    else if (refs_only(body, perf_inside_coll(coll), choice.way.algo))
        ran->piece_bytes = 0;
    return KOLO_OK;
}

/* ---- files ---- */

bool perf_can_write(const char *path)
{
    char why[4500];
    if (!path) return true;
    bool there = access(path, F_OK) == 0;
    int fd = kolo_output_open(path, O_APPEND, why, sizeof why);
    if (fd < 0) {
        fprintf(stderr, "kolo-perf: cannot write %s\n", why);
        return false;
    }
    close(fd);
    if (!there) unlink(path);
    return true;
}

FILE *perf_output(const char *path)
{
    char why[64];
    return kolo_output_fopen(path, why, sizeof why);
}
