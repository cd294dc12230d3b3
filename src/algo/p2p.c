/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of sends and receives: a lane per peer and direction, in which the messages follow each other in the order
 * of the calls, so that the k-th send to a peer meets its k-th receive. Lanes are independent: no order of calls on
 * different ranks can block, and a slow peer holds up nobody else. Messages to oneself are copies. Source: the
 * semantics of NCCL's grouped ncclSend/ncclRecv.
 *
 * By reference: the sender exposes its part, the receiver gets it, and the sender's lane waits for the release at
 * the end of each tile. In halves: the receiver gets the first half while the sender puts the second one into the
 * receiver's exposed buffer, so that both cores copy; that reference comes back on the next connection lane. Both
 * sides must say the same about a message (it depends on its size alone). The lanes of connections are other ones
 * than those of collectives, which may run at the same time.
 */
#include "algo/algo.h"
#include "algo/emit.h"

static bool seen_before(const int *peers, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (peers[i] == peers[at]) return true;
    return false;
}

static bool flag(const bool *flags, uint32_t i)
{
    return flags && flags[i];
}

static bool any(const bool *flags, uint32_t n)
{
    bool found = false;
    for (uint32_t i = 0; flags && i < n; i++) found |= flags[i];
    return found;
}

/* Returns message i as the grid has it: whole, or its half h. */
static kolo_segment_t message(kolo_buf_t buf, uint32_t i, uint32_t nsubs)
{
    return kolo_seg(buf, (int32_t)(i * nsubs), nsubs);
}

static kolo_segment_t half(kolo_buf_t buf, uint32_t i, int h)
{
    return kolo_seg(buf, (int32_t)(i * 2) + h, 1);
}

static void sends_to(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t first, uint32_t nsubs)
{
    int peer = env->send_peers[first];
    uint16_t tx = kolo_builder_tx(b, (uint32_t)peer, KOLO_P2P_LANE);
    bool exposed = false;
    kolo_builder_lane(b);
    for (uint32_t i = first; i < env->nsends; i++) {
        if (env->send_peers[i] != peer) continue;
        bool by_ref = flag(env->send_refs, i), halves = by_ref && flag(env->send_halves, i);
        kolo_insn_t *in = kolo_builder_insn(b, by_ref ? KOLO_OP_EXPOSE : KOLO_OP_SEND);
        in->tx = tx;
        in->src = halves ? half(KOLO_BUF_SRC, i, 0) : message(KOLO_BUF_SRC, i, nsubs);
        exposed |= by_ref;
    }
    if (exposed) kolo_emit_wait_released(b, tx);
}

/* Puts the second halves of what goes to one peer into what it exposes. */
static void puts_to(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t first)
{
    int peer = env->send_peers[first];
    bool begun = false;
    for (uint32_t i = first; i < env->nsends; i++) {
        if (env->send_peers[i] != peer || !flag(env->send_refs, i) || !flag(env->send_halves, i)) continue;
        if (!begun) kolo_builder_lane(b);
        begun = true;
        kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_PUT);
        in->rx = kolo_builder_rx(b, (uint32_t)peer, KOLO_P2P_LANE + 1);
        in->src = half(KOLO_BUF_SRC, i, 1);
    }
}

/* Takes the receiver's side of them; its lane stands before the one that gets, which may copy for long. */
static void exposes_to(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t first)
{
    int peer = env->recv_peers[first];
    bool begun = false;
    for (uint32_t i = first; i < env->nrecvs; i++) {
        if (env->recv_peers[i] != peer || !flag(env->recv_refs, i) || !flag(env->recv_halves, i)) continue;
        if (!begun) kolo_builder_lane(b);
        begun = true;
        kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_EXPOSE);
        in->tx = kolo_builder_tx(b, (uint32_t)peer, KOLO_P2P_LANE + 1);
        in->src = half(KOLO_BUF_DST, i, 1);
    }
    if (begun) kolo_emit_wait_released(b, kolo_builder_tx(b, (uint32_t)peer, KOLO_P2P_LANE + 1));
}

static void recvs_from(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t first, uint32_t nsubs)
{
    int peer = env->recv_peers[first];
    uint16_t rx = kolo_builder_rx(b, (uint32_t)peer, KOLO_P2P_LANE);
    kolo_builder_lane(b);
    for (uint32_t i = first; i < env->nrecvs; i++) {
        if (env->recv_peers[i] != peer) continue;
        bool by_ref = flag(env->recv_refs, i), halves = by_ref && flag(env->recv_halves, i);
        kolo_insn_t *in = kolo_builder_insn(b, by_ref ? KOLO_OP_GET : KOLO_OP_RECV);
        in->rx = rx;
        in->dst = halves ? half(KOLO_BUF_DST, i, 0) : message(KOLO_BUF_DST, i, nsubs);
    }
}

static void to_myself(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t nsubs)
{
    kolo_builder_lane(b);
    for (uint32_t i = 0, j = 0; i < env->nsends; i++) {
        if (env->send_peers[i] != (int)env->rank) continue;
        while (j < env->nrecvs && env->recv_peers[j] != (int)env->rank) j++;
        if (j == env->nrecvs) return;
        kolo_builder_copy(b, message(KOLO_BUF_DST, j++, nsubs), message(KOLO_BUF_SRC, i, nsubs));
    }
}

static kolo_status_t check_peers(const kolo_emit_env_t *env)
{
    uint32_t out = 0, in = 0;
    for (uint32_t i = 0; i < env->nsends + env->nrecvs; i++) {
        bool send = i < env->nsends;
        int peer = send ? env->send_peers[i] : env->recv_peers[i - env->nsends];
        if (peer < 0 || (uint32_t)peer >= env->nranks)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "a %s names rank %d, but there are ranks 0 to %u",
                             send ? "send" : "receive", peer, env->nranks - 1);
        if (peer == (int)env->rank) send ? out++ : in++;
    }
    if (out != in)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "rank %u sends itself %u messages and receives %u from itself in one group: put both calls "
            "of a pair into the same group",
            env->rank, out, in);
    return KOLO_OK;
}

kolo_status_t kolo_p2p_group(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t parts = env->nsends > env->nrecvs ? env->nsends : env->nrecvs;
    kolo_builder_t *b;
    KOLO_TRY(check_peers(env));
    KOLO_TRY(kolo_emit_open(KOLO_COLL_P2P, KOLO_ALGO_P2P, env, &b));
    uint32_t nsubs = any(env->send_halves, env->nsends) || any(env->recv_halves, env->nrecvs) ? 2 : 1;
    kolo_builder_grid(b, parts ? parts : 1, nsubs, env->nsends, env->nrecvs);
    for (uint32_t i = 0; i < env->nsends; i++) {
        if (env->send_peers[i] == (int)env->rank || seen_before(env->send_peers, i)) continue;
        sends_to(b, env, i, nsubs);
        puts_to(b, env, i);
    }
    for (uint32_t i = 0; i < env->nrecvs; i++) {
        if (env->recv_peers[i] == (int)env->rank || seen_before(env->recv_peers, i)) continue;
        exposes_to(b, env, i);
        recvs_from(b, env, i, nsubs);
    }
    to_myself(b, env, nsubs);
    return kolo_builder_finish(b, plan);
}
