/* SPDX-License-Identifier: Apache-2.0
 *
 * KOLO_CHECK=deep: what is too dear to look at in every call. Is every buffer memory of this process that may be
 * read or written over its whole length? Do the messages of a group keep out of each other's buffers? Do all ranks
 * pass the same arguments? The first two are asked in the call that brings the mistake, the last one, out of band,
 * when the turn of the operation has come.
 */
#include "comm/call/call.h"
#include "mem/access.h"
#include "oob/gather.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

typedef struct { /* one buffer of a call */
    const kolo_call_t *call;
    const char *what, *name; /* "all_reduce", "the source" */
    uintptr_t from, to;
    bool write;
} kolo_range_t;

static kolo_status_t check_range(const kolo_range_t *r)
{
    kolo_accessed_t found;
    kolo_mem_access_find((const void *)r->from, r->to - r->from, r->write, &found);
    if (found.access == KOLO_ACCESS_FULL) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "%s: %s of %s rank %d, 0x%" PRIxPTR " to 0x%" PRIxPTR " (%" PRIuPTR
                     " bytes), cannot be %s from 0x%" PRIxPTR " on: %s%s%s",
                     r->what, r->name, r->call->comm->name, r->call->comm->rank, r->from, r->to, r->to - r->from,
                     r->write ? "written" : "read", found.at, kolo_mem_access_why(found.access),
                     found.path[0] ? ": " : "", found.path);
}

static kolo_status_t check_parts(const kolo_call_t *call, const void *base, const size_t *counts,
                                 const size_t *displs, bool write, const char *what)
{
    uint64_t at = 0;
    for (int i = 0; i < call->comm->nranks; i++) {
        uint64_t from = (displs ? displs[i] : at) * call->elem;
        char name[64];
        snprintf(name, sizeof name, "part %d of the %s", i, write ? "destination" : "source");
        kolo_range_t r = {call, what, name, (uintptr_t)base + from, (uintptr_t)base + from + counts[i] * call->elem,
                          write};
        at += counts[i];
        if (counts[i]) KOLO_TRY(check_range(&r));
    }
    return KOLO_OK;
}

kolo_status_t kolo_deep_check(const kolo_call_t *call, uint64_t src_bytes, uint64_t dst_bytes, const char *what)
{
    uintptr_t src = (uintptr_t)call->src, dst = (uintptr_t)call->dst;
    kolo_range_t from = {call, what, "the source", src, src + src_bytes, false};
    kolo_range_t to = {call, what, "the destination", dst, dst + dst_bytes, true};
    if (call->send_counts && src)
        KOLO_TRY(check_parts(call, call->src, call->send_counts, call->send_displs, false, what));
    else if (src && src_bytes)
        KOLO_TRY(check_range(&from));
    if (call->recv_counts && dst)
        return check_parts(call, call->dst, call->recv_counts, call->recv_displs, true, what);
    return dst && dst_bytes ? check_range(&to) : KOLO_OK;
}

/* ---- messages of a group ---- */

static bool overlaps(const kolo_call_t *a, const kolo_call_t *b)
{
    uintptr_t x = (uintptr_t)(a->kind == KOLO_CALL_SEND ? a->src : a->dst);
    uintptr_t y = (uintptr_t)(b->kind == KOLO_CALL_SEND ? b->src : b->dst);
    uint64_t n = a->count * a->elem, m = b->count * b->elem;
    return n && m && x < y + m && y < x + n;
}

kolo_status_t kolo_deep_check_group(const kolo_call_t *calls, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count; k++) {
            const kolo_call_t *a = &calls[i], *b = &calls[k];
            if (k == i || a->kind != KOLO_CALL_RECV || b->kind == KOLO_CALL_COLL || !overlaps(a, b)) continue;
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "group_end: on %s rank %d the receive from rank %u into %p (%" PRIu64
                             " bytes) overlaps the %s rank %u at %p (%" PRIu64 " bytes) of the same group",
                             a->comm->name, a->comm->rank, a->root, a->dst, a->count * a->elem,
                             b->kind == KOLO_CALL_SEND ? "send to" : "receive from", b->root,
                             b->kind == KOLO_CALL_SEND ? b->src : b->dst, b->count * b->elem);
        }
    return KOLO_OK;
}

/* ---- all ranks alike ---- */

enum { COLL, TYPE, OP, ROOT, COUNT, TABLES, FIELDS };
static const char *const fields[FIELDS] = {"collective", "type", "operator", "root", "count", "tables of counts"};

static void fill_row(const kolo_call_t *call, uint64_t row[FIELDS])
{
    size_t n = (size_t)call->comm->nranks * sizeof(size_t);
    uint64_t hash = KOLO_HASH_INIT;
    bool reduces = kolo_coll_reduces(call->coll), all_to_all = call->coll == KOLO_COLL_ALL_TO_ALL;
    /* those of all_to_allv differ by rank */
    if (call->send_counts && !all_to_all) hash = kolo_hash_bytes(hash, call->send_counts, n);
    if (call->recv_counts && !all_to_all) hash = kolo_hash_bytes(hash, call->recv_counts, n);
    if (call->recv_displs && call->coll == KOLO_COLL_ALL_GATHER) hash = kolo_hash_bytes(hash, call->recv_displs, n);
    row[COLL] = (uint64_t)call->coll;
    row[TYPE] = (uint64_t)call->type;
    row[OP] = reduces ? KOLO_MIN((uint64_t)call->op, (uint64_t)KOLO_OP_BUILTIN_COUNT) : 0;
    row[ROOT] = call->root;
    row[COUNT] = call->count;
    row[TABLES] = hash;
}

static void print_field(int field, const uint64_t *row, char *text, size_t bytes)
{
    char words[160];
    bool table = row[ROOT] == KOLO_SIGNATURE_V_ROOT && row[COLL] != KOLO_COLL_ALL_TO_ALL;
    uint64_t count = table ? kolo_signature_table(row[COUNT], (uint32_t)row[TABLES]) : row[COUNT];
    kolo_signature_print(
        kolo_signature((kolo_coll_t)row[COLL], (int)row[TYPE], (int)row[OP], (uint32_t)row[ROOT], count), words,
        sizeof words);
    if (field == TABLES)
        snprintf(text, bytes, "others");
    else
        snprintf(text, bytes, "%" PRIu64 " (%s)", row[field], words);
}

static kolo_status_t compare_rows(const kolo_body_t *body, uint64_t number, const uint64_t (*rows)[FIELDS])
{
    char theirs[200], first[200];
    for (int rank = 1; rank < body->nranks; rank++)
        for (int field = 0; field < FIELDS; field++) {
            if (rows[rank][field] == rows[0][field]) continue;
            print_field(field, rows[rank], theirs, sizeof theirs);
            print_field(field, rows[0], first, sizeof first);
            return kolo_fail(KOLO_ERR_MISMATCH,
                             "operation %" PRIu64 ": rank %d passes %s %s, rank 0 %s: all ranks must pass the same",
                             number, rank, fields[field], theirs, first);
        }
    return KOLO_OK;
}

/* Gathers for the operation of this number. Where a thread of the communicator's own runs the operations, the
 * program's may gather meanwhile, on each rank at another point. */
static kolo_status_t gather(kolo_body_t *body, uint64_t number, bool again, void *table, size_t bytes)
{
    const kolo_exec_ops_t *exec = body->gpu.exec;
    return exec && exec->by_host ? kolo_oob_all_gather_beside(body->oob, 2 * number + again, table, bytes)
                                 : kolo_oob_all_gather(body->oob, table, bytes);
}

/* Compares what a rank sends to another with what that expects; all see it, so that all fail alike. */
static kolo_status_t compare_tables(const kolo_call_t *call, uint64_t number)
{
    kolo_body_t *body = call->comm->body;
    size_t n = (size_t)body->nranks;
    uint64_t *table = calloc(n * n, 2 * sizeof *table);
    if (!table) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the counts of %zu ranks", n);
    uint64_t *mine = table + (size_t)body->rank * 2 * n;
    for (size_t r = 0; r < n; r++) {
        mine[r] = call->send_counts[r];
        mine[n + r] = call->recv_counts[r];
    }
    kolo_status_t status = gather(body, number, true, table, 2 * n * sizeof *table);
    for (size_t a = 0; a < n && status == KOLO_OK; a++)
        for (size_t b = 0; b < n && status == KOLO_OK; b++) {
            uint64_t sends = table[a * 2 * n + b], expects = table[b * 2 * n + n + a];
            if (sends != expects)
                status = kolo_fail(KOLO_ERR_MISMATCH,
                                   "all_to_allv: rank %zu sends rank %zu %" PRIu64
                                   " elements (send_counts[%zu]), which expects %" PRIu64 " (recv_counts[%zu])",
                                   a, b, sends, b, expects, a);
        }
    free(table);
    return status;
}

kolo_status_t kolo_deep_check_ranks(const kolo_call_t *call)
{
    kolo_body_t *body = call->comm->body;
    uint64_t number = body->track.operation;
    uint64_t(*rows)[FIELDS] = calloc((size_t)body->nranks, sizeof *rows);
    if (!rows) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the arguments of %d ranks", body->nranks);
    fill_row(call, rows[body->rank]);
    /* ranks that are in something else do not come to this: they find out as from any other wait for connections */
    kolo_board_publish(&body->track.board, number, kolo_call_signature(call));
    atomic_store_explicit(&body->track.board.connecting, number, memory_order_relaxed);
    kolo_status_t status = gather(body, number, false, rows, sizeof rows[0]);
    if (status == KOLO_OK) status = compare_rows(body, number, (const uint64_t(*)[FIELDS])rows);
    if (status == KOLO_OK && call->coll == KOLO_COLL_ALL_TO_ALL && call->send_counts)
        status = compare_tables(call, number);
    atomic_store_explicit(&body->track.board.connecting, KOLO_BOARD_NONE, memory_order_relaxed);
    free(rows);
    return status;
}
