/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the wires as a whole and of those on one host; tcp has a table of its own.
 */
#include "wire/mapped.h"

bool kolo_wire_disabled[KOLO_WIRE_COUNT];
bool kolo_mapped_huge_pages;
int64_t kolo_mapped_ptracer;

static const kolo_param_t rows[] = {
    {"KOLO_LOCAL_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: ranks of one process do not use its memory directly", &kolo_wire_disabled[KOLO_WIRE_LOCAL]},
    {"KOLO_CMA_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: no single copies between processes by process_vm_readv(2)", &kolo_wire_disabled[KOLO_WIRE_CMA]},
    {"KOLO_CMA_PTRACER", KOLO_PARAM_ENUM, "parent", 0, 0, "none|parent|any", false,
     "whose descendants may copy from and to this process where Yama's ptrace_scope is 1 (PR_SET_PTRACER)",
     &kolo_mapped_ptracer},
    {"KOLO_SHM_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no memory shared between processes",
     &kolo_wire_disabled[KOLO_WIRE_SHM]},
    {"KOLO_NET_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no RDMA between ranks",
     &kolo_wire_disabled[KOLO_WIRE_NET]},
    {"KOLO_TCP_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no TCP between ranks once they are connected",
     &kolo_wire_disabled[KOLO_WIRE_TCP]},
    {"KOLO_SHM_HUGE_PAGES", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: ask for huge pages for shared segments of 2 MB and more; memory is then taken in pieces of 2 MB",
     &kolo_mapped_huge_pages},
};
const kolo_param_table_t kolo_wire_params = {"wire", rows, KOLO_COUNTOF(rows), NULL};
