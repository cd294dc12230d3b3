/* SPDX-License-Identifier: Apache-2.0
 *
 * Wire "shm": the ranks are processes of one host. The queue lies in a sealed memfd that is handed over by
 * descriptor; it has no name in any file system, so nothing is left behind and the size of /dev/shm does not
 * matter.
 */
#include "wire/mapped.h"

static bool can_connect(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b)
{
    (void)ctx;
    if (!kolo_mapped_same_host(a, b, &kolo_wire_shm)) return false;
    return true;
}

static bool disabled;
static const kolo_param_t rows[] = {
    {"KOLO_SHM_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no memory shared between processes",
     &disabled},
};
static const kolo_param_table_t params = {"shm", rows, KOLO_COUNTOF(rows), NULL};

const kolo_wire_ops_t kolo_wire_shm = {
    .name = "shm",
    .version = 1,
    .what = "processes of one host: shared memory handed over by descriptor",
    .params = &params,
    .caps = KOLO_CAP_FANOUT,
    .can_connect = can_connect,
    .fill_card = kolo_memfd_card,
    .may_copy = kolo_wire_no_copies,
    .rx_setup = kolo_memfd_rx_setup,
    .tx_setup = kolo_memfd_tx_setup,
    .ref_make = kolo_wire_no_ref_make,
    .ref_start = kolo_wire_no_ref_start,
    .ref_done = kolo_wire_no_ref_done,
    KOLO_MAPPED_MEMBERS,
};
