/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be done with a plan without running it: names, size, release, a readable listing, and the 64-bit
 * signature of an operation. The structural check is in check.c.
 */
#include "plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const algo_names[KOLO_ALGO_COUNT] = {
    [KOLO_ALGO_RING] = "ring",
    [KOLO_ALGO_TREE] = "tree",
    [KOLO_ALGO_HALVING_DOUBLING] = "halving_doubling",
    [KOLO_ALGO_DIRECT] = "direct",
    [KOLO_ALGO_ONE_STEP] = "one_step",
    [KOLO_ALGO_BRUCK] = "bruck",
    [KOLO_ALGO_PAIRWISE] = "pairwise",
    [KOLO_ALGO_PAT] = "pat",
    [KOLO_ALGO_HIERARCHICAL] = "hierarchical",
    [KOLO_ALGO_SINGLE_COPY] = "single_copy",
    [KOLO_ALGO_P2P] = "p2p",
};

static const char *const opcode_names[KOLO_OP_COUNT] = {
    [KOLO_OP_SEND] = "send",
    [KOLO_OP_RECV] = "recv",
    [KOLO_OP_RECV_REDUCE] = "recv_reduce",
    [KOLO_OP_RECV_SEND] = "recv_send",
    [KOLO_OP_RECV_REDUCE_SEND] = "recv_reduce_send",
    [KOLO_OP_RECV_REDUCE_COPY_SEND] = "recv_reduce_copy_send",
    [KOLO_OP_REDUCE_MANY] = "reduce_many",
    [KOLO_OP_COPY] = "copy",
    [KOLO_OP_REDUCE] = "reduce",
    [KOLO_OP_EXPOSE] = "expose",
    [KOLO_OP_GET] = "get",
    [KOLO_OP_GET_REDUCE] = "get_reduce",
    [KOLO_OP_PUT] = "put",
    [KOLO_OP_RELEASE] = "release",
    [KOLO_OP_SIGNAL] = "signal",
    [KOLO_OP_WAIT] = "wait",
    [KOLO_OP_LOOP] = "loop",
    [KOLO_OP_END] = "end",
};

static const char *const buf_names[] = {"none", "SRC", "DST", "SCRATCH"};

static const char *name_of(const char *const *names, unsigned count, unsigned index)
{
    return index < count ? names[index] : "unknown";
}

const char *kolo_plan_algo_name(kolo_algo_t algo)
{
    return name_of(algo_names, KOLO_ALGO_COUNT, (unsigned)algo);
}

const char *kolo_plan_opcode_name(kolo_opcode_t op)
{
    return name_of(opcode_names, KOLO_OP_COUNT, (unsigned)op);
}

static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; name && i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Writes "a, b, c" for the message of a failed parse. */
static void list_names(const char *const *names, int count, char *buf, size_t bytes)
{
    size_t at = 0;
    for (int i = 0; i < count && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%s", i ? ", " : "", names[i]);
}

kolo_status_t kolo_plan_algo_parse(const char *name, kolo_algo_t *algo)
{
    int i = find_name(algo_names, KOLO_ALGO_COUNT, name);
    if (i < 0) {
        char all[256];
        list_names(algo_names, KOLO_ALGO_COUNT, all, sizeof(all));
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "no algorithm is called '%s'; there are %s",
                         name ? name : "(null)", all);
    }
    *algo = (kolo_algo_t)i;
    return KOLO_OK;
}

bool kolo_plan_equal_only(const kolo_plan_t *plan)
{
    if (plan->coll != KOLO_COLL_ALL_TO_ALL) return false;
    for (uint32_t i = 0; i < plan->ninsns; i++) {
        const kolo_insn_t *in = &plan->insns[i];
        if (in->dst.buf == KOLO_BUF_SCRATCH || in->src.buf == KOLO_BUF_SCRATCH) return true;
        if (in->op == KOLO_OP_RECV_SEND && in->dst.buf == KOLO_BUF_NONE) return true;
    }
    return false;
}

void kolo_plan_free(kolo_plan_t *plan)
{
    if (!plan) return;
    free(plan->insns);
    free(plan->conns);
    free(plan->lanes);
    free(plan->list);
    free(plan);
}

/* ---- listing ---- */

static void print_affine(FILE *f, int32_t base, const int32_t stride[2])
{
    fprintf(f, "%" PRId32, base);
    if (stride[0]) fprintf(f, "%+" PRId32 "i", stride[0]);
    if (stride[1]) fprintf(f, "%+" PRId32 "j", stride[1]);
}

static void print_segment(FILE *f, const char *label, const kolo_segment_t *s)
{
    if (s->n == 0) return;
    fprintf(f, " %s=%s[", label, name_of(buf_names, 4, s->buf));
    if (s->buf != KOLO_BUF_NONE) print_affine(f, s->base, s->stride);
    if (s->mod) fprintf(f, " mod %" PRIu32, s->mod);
    fprintf(f, "]");
    if (s->n > 1) fprintf(f, "*%" PRIu32, s->n);
    if (s->buf == KOLO_BUF_SCRATCH || s->buf == KOLO_BUF_NONE) {
        fprintf(f, "~");
        print_affine(f, s->shape, s->shape_stride);
    }
}

static void print_conn(FILE *f, const kolo_plan_t *plan, const char *label, uint16_t index, int stride)
{
    if (index == KOLO_NO_CONN) return;
    fprintf(f, " %s=%u", label, index);
    if (stride) fprintf(f, "%+di", stride);
    if (index >= plan->nconns) return;
    const kolo_plan_conn_t *c = &plan->conns[index];
    if (c->node && c->dir == KOLO_DIR_TX)
        fprintf(f, "(node:%u)", c->lane);
    else
        fprintf(f, "(%s%" PRId32 ":%u)", c->node ? "node " : "", c->peer, c->lane);
}

static void print_insn(FILE *f, const kolo_plan_t *plan, const kolo_insn_t *in)
{
    fprintf(f, "%s", kolo_plan_opcode_name((kolo_opcode_t)in->op));
    if (in->op == KOLO_OP_LOOP) fprintf(f, " %" PRIu32, in->count);
    if (in->op == KOLO_OP_SIGNAL || in->op == KOLO_OP_WAIT) fprintf(f, " event %u", in->event);
    print_segment(f, "dst", &in->dst);
    print_segment(f, "src", &in->src);
    print_conn(f, plan, "rx", in->rx, in->rx_stride);
    print_conn(f, plan, "tx", in->tx, in->tx_stride);
    if (in->op == KOLO_OP_REDUCE_MANY) {
        fprintf(f, " list=");
        for (uint32_t k = 0; k <= in->list_count; k++) {
            if (in->own_place == k) fprintf(f, "%sown", k ? "," : "");
            uint32_t at = (uint32_t)in->list_first + k;
            if (k == in->list_count || at >= plan->nlist) break;
            uint16_t c = plan->list[at];
            fprintf(f, "%s", k || in->own_place == k ? "," : "");
            if (c < plan->nconns)
                fprintf(f, "%s%" PRId32, plan->conns[c].node ? "n" : "", plan->conns[c].peer);
            else
                fprintf(f, "?");
        }
    }
    if (in->flags & KOLO_FLAG_FINAL) fprintf(f, " final");
    if (in->flags & KOLO_FLAG_DST_FIRST) fprintf(f, " dst_first");
    if (in->flags & KOLO_FLAG_RX_FIRST) fprintf(f, " rx_first");
    if (in->flags & KOLO_FLAG_RAW) fprintf(f, " raw");
    fprintf(f, "\n");
}

void kolo_plan_print(const kolo_plan_t *plan, void *file)
{
    FILE *f = file;
    fprintf(f,
            "%s by %s, rank %" PRIu32 " of %" PRIu32 ", root %" PRIu32 ": %" PRIu32 " parts of %" PRIu32
            " (src %" PRIu32 ", dst %" PRIu32 "), scratch %" PRIu32 ", slices %" PRIu32 ", depth %" PRIu32
            ", events %" PRIu32 "\n",
            kolo_coll_name(plan->coll), kolo_plan_algo_name(plan->algo), plan->rank, plan->nranks, plan->root,
            plan->nparts, plan->nsubs, plan->src_parts, plan->dst_parts, plan->nscratch, plan->slices, plan->depth,
            plan->nevents);
    for (uint32_t l = 0; l < plan->nlanes; l++) {
        fprintf(f, "lane %" PRIu32 "\n", l);
        int depth = 1;
        for (uint32_t k = 0; k < plan->lanes[l].count; k++) {
            const kolo_insn_t *in = &plan->insns[plan->lanes[l].first + k];
            if (in->op == KOLO_OP_END && depth > 1) depth--;
            fprintf(f, "%*s", depth * 4, "");
            print_insn(f, plan, in);
            if (in->op == KOLO_OP_LOOP) depth++;
        }
    }
}

/* ---- signature ---- */

#define COUNT_BITS KOLO_SIGNATURE_COUNT_BITS
#define ROOT_BITS  KOLO_SIGNATURE_ROOT_BITS
static const char *const type_names[] = {"int8",        "uint8",       "int32",    "uint32",  "int64",
                                         "uint64",      "float16",     "bfloat16", "float32", "float64",
                                         "float8_e4m3", "float8_e5m2", "int16",    "uint16",  "bool"};
static const char *const call_names[KOLO_CALL_WORDS] = {
    "comm_finalize",     "comm_split",      "comm_grow",         "window_register",
    "window_deregister", "comm_leave",      "comm_dup",          "state_commit or the end of state_run",
    "engine_init",       "engine_shutdown", "engine_remove_set", "a call that is refused"};
static const char *const op_names[] = {"sum", "prod", "min",  "max", "avg", "band",
                                       "bor", "bxor", "land", "lor", "lxor"};

const char *kolo_plan_type_name(int type)
{
    return name_of(type_names, sizeof(type_names) / sizeof(type_names[0]), (unsigned)type);
}

const char *kolo_plan_op_name(int op)
{
    return (unsigned)op < sizeof(op_names) / sizeof(op_names[0]) ? op_names[op] : "user operator";
}

const char *kolo_plan_call_name(kolo_call_word_t which)
{
    return name_of(call_names, KOLO_CALL_WORDS, which);
}

kolo_signature_fields_t kolo_signature_fields(uint64_t signature)
{
    unsigned coll = (unsigned)(signature >> (COUNT_BITS + ROOT_BITS + 10) & 31) - 1u;
    return (kolo_signature_fields_t){
        .coll = coll < KOLO_COLL_COUNT ? (kolo_coll_t)coll : KOLO_COLL_COUNT,
        .type = (int)(signature >> (COUNT_BITS + ROOT_BITS + 5) & 31),
        .op = (int)(signature >> (COUNT_BITS + ROOT_BITS) & 31),
        .root = (uint32_t)(signature >> COUNT_BITS & ((1u << ROOT_BITS) - 1)),
        .count = signature & (((uint64_t)1 << COUNT_BITS) - 1),
    };
}

static bool has_parts(const kolo_signature_fields_t *f)
{
    if (kolo_coll_rooted(f->coll))
        return f->op == KOLO_SIGNATURE_V && (f->coll == KOLO_COLL_GATHER || f->coll == KOLO_COLL_SCATTER);
    return kolo_coll_by_rank(f->coll) && f->root == KOLO_SIGNATURE_V_ROOT;
}

void kolo_signature_print(uint64_t signature, char *buf, size_t bytes)
{
    kolo_signature_fields_t f = kolo_signature_fields(signature);
    const char *type_name = kolo_plan_type_name(f.type);
    const char *op_name = kolo_plan_op_name(f.op);
    if (f.coll == KOLO_COLL_P2P && f.op == KOLO_P2P_WORD_SIGNAL) {
        snprintf(buf, bytes, "signal to rank %u", f.root);
        return;
    }
    if (f.coll == KOLO_COLL_P2P && f.op == KOLO_P2P_WORD_WAIT) {
        snprintf(buf, bytes, "wait for %" PRIu64 " signal%s from rank %u", f.count, f.count == 1 ? "" : "s",
                 f.root);
        return;
    }
    if (f.coll == KOLO_COLL_P2P && f.op >= KOLO_P2P_WORD_RECV && f.op <= KOLO_P2P_WORD_PUT) {
        static const char *const ways[] = {
            [KOLO_P2P_WORD_RECV] = "recv", [KOLO_P2P_WORD_SEND] = "send", [KOLO_P2P_WORD_PUT] = "put"};
        snprintf(buf, bytes, "%s %" PRIu64 " %s %s rank %u", ways[f.op], f.count, type_name,
                 f.op == KOLO_P2P_WORD_RECV ? "from" : "to", f.root);
        return;
    }
    if (f.coll == KOLO_COLL_BARRIER && f.op == KOLO_SIGNATURE_V) {
        snprintf(buf, bytes, "%s", kolo_plan_call_name((kolo_call_word_t)f.root));
        return;
    }
    if (f.coll == KOLO_COLL_P2P && f.op == KOLO_P2P_WORD_NONE) { /* what both ends name */
        snprintf(buf, bytes, "message of %" PRIu64 " %s", f.count, f.type == KOLO_INT8 ? "bytes" : type_name);
        return;
    }
    if (f.coll == KOLO_COLL_ALL_REDUCE && (f.op == KOLO_SIGNATURE_AGREE || f.op == KOLO_SIGNATURE_AGREE + 1)) {
        snprintf(buf, bytes, "the engine's agreement on tensors");
        return;
    }
    bool uneven = has_parts(&f), table = uneven && f.coll != KOLO_COLL_ALL_TO_ALL;
    uint64_t most = table ? ((uint64_t)1 << KOLO_SIGNATURE_SUM_BITS) - 1 : UINT64_MAX, count = f.count & most;
    int at = snprintf(buf, bytes, "%s%s", kolo_coll_name(f.coll), uneven ? "v" : "");
    if (f.coll == KOLO_COLL_BARRIER || at < 0 || (size_t)at >= bytes) return;
    if (uneven && !table)
        at += snprintf(buf + at, bytes - (size_t)at, " %s", type_name);
    else
        at +=
            snprintf(buf + at, bytes - (size_t)at, " %" PRIu64 "%s %s", count, count == most ? "+" : "", type_name);
    if (kolo_coll_reduces(f.coll) && (size_t)at < bytes)
        at += snprintf(buf + at, bytes - (size_t)at, " %s", op_name);
    if (kolo_coll_rooted(f.coll) && (size_t)at < bytes)
        at += snprintf(buf + at, bytes - (size_t)at, " root %u", f.root);
    if (table && (size_t)at < bytes)
        snprintf(buf + at, bytes - (size_t)at, " counts #%" PRIx64, f.count >> KOLO_SIGNATURE_SUM_BITS);
}
