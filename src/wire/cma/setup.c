/* SPDX-License-Identifier: Apache-2.0
 *
 * Wire "cma": the queues of wire "shm", and slots that carry references to the writer's memory, which the reader
 * copies from or to by itself (cross memory attach: process_vm_readv(2), process_vm_writev(2)). Whether the kernel
 * permits that is found out by doing it; where it does not, the end becomes one of "shm".
 */
#include "mem/admit.h"
#include "wire/cma/cma.h"

#include "base/log.h"
#include "wire/mapped.h"

/* Tells whether the cards allow it; whether copies are permitted they cannot say: rx_setup does. */
static bool can_connect(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b)
{
    (void)ctx;
    if (!kolo_mapped_same_host(a, b, &kolo_wire_cma) || !kolo_mapped_same_host(a, b, &kolo_wire_shm)) return false;
    return true;
}

static kolo_status_t rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card)
{
    kolo_control_peer_t *writer;
    const char *why = "it was refused before";
    KOLO_TRY(kolo_memfd_rx_setup(ctx, rx, card));
    KOLO_TRY(kolo_control_peer(ctx, rx->spec.writer, &writer));
    if (!writer->cma)
        writer->cma = kolo_cma_permitted(writer->pid, &ctx->member->peers[rx->spec.writer], &why) ? 1 : -1;
    if (writer->cma > 0) return KOLO_OK;
    kolo_info("wire",
              "rank %d may not read the memory of rank %d (pid %d): %s; the two use shared memory instead of "
              "single copies",
              ctx->member->rank, rx->spec.writer, ctx->member->peers[rx->spec.writer].pid, why);
    rx->ops = &kolo_wire_shm;
    return KOLO_OK;
}

static bool disabled;
static const kolo_param_t rows[] = {
    {"KOLO_CMA_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: no single copies between processes by process_vm_readv(2)", &disabled},
    {"KOLO_CMA_PTRACER", KOLO_PARAM_ENUM, "parent", 0, 0, "none|parent|any", false,
     "whose descendants may copy from and to this process where Yama's ptrace_scope is 1 (PR_SET_PTRACER); parent: "
     "never process 1",
     &kolo_mem_ptracer},
};
static const kolo_param_table_t params = {"cma", rows, KOLO_COUNTOF(rows), NULL};

const kolo_wire_ops_t kolo_wire_cma = {
    .name = "cma",
    .version = 2,
    .what = "processes of one host: shared memory, large messages copied once by process_vm_readv(2)",
    .params = &params,
    .caps = KOLO_CAP_REF | KOLO_CAP_FANOUT,
    .fallback = &kolo_wire_shm,
    .can_connect = can_connect,
    .fill_card = kolo_cma_fill_card,
    .may_copy = kolo_cma_may_copy,
    .rx_setup = rx_setup,
    .tx_setup = kolo_memfd_tx_setup,
    .ref_make = kolo_mapped_ref_make,
    .ref_start = kolo_mapped_ref_start,
    .ref_done = kolo_cma_ref_done,
    KOLO_MAPPED_MEMBERS,
};
