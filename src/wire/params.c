/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of several wires; each has a table of its own besides.
 */
#include "wire/mapped.h"

bool kolo_mapped_huge_pages;

static const kolo_param_t rows[] = {
    {"KOLO_SHM_HUGE_PAGES", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: ask for huge pages for shared segments of 2 MB and more; memory is then taken in pieces of 2 MB",
     &kolo_mapped_huge_pages},
};
const kolo_param_table_t kolo_wire_params = {"wire", rows, KOLO_COUNTOF(rows), NULL};
