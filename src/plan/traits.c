/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the collectives.
 */
#include "plan/traits.h"

#include <stdio.h>
#include <string.h>

const kolo_coll_traits_t kolo_coll_table[KOLO_COLL_COUNT + 1] = {
    [KOLO_COLL_ALL_REDUCE] = {"all_reduce", .reduces = true, .whole = true, .in_place = true},
    [KOLO_COLL_REDUCE] = {"reduce", .reduces = true, .dst_at_root = true, .whole = true, .in_place = true},
    [KOLO_COLL_BROADCAST] = {"broadcast", .src_at_root = true, .whole = true, .in_place = true},
    [KOLO_COLL_ALL_GATHER] = {"all_gather", .dst_by_rank = true, .in_place = true},
    [KOLO_COLL_REDUCE_SCATTER] = {"reduce_scatter", .reduces = true, .src_by_rank = true, .in_place = true},
    [KOLO_COLL_ALL_TO_ALL] = {"all_to_all", .src_by_rank = true, .dst_by_rank = true},
    [KOLO_COLL_GATHER] = {"gather", .dst_at_root = true, .dst_by_rank = true, .in_place = true},
    [KOLO_COLL_SCATTER] = {"scatter", .src_at_root = true, .src_by_rank = true, .in_place = true},
    [KOLO_COLL_BARRIER] = {"barrier", .in_place = true},
    [KOLO_COLL_P2P] = {.name = "p2p"},
    [KOLO_COLL_COUNT] = {.name = "unknown"},
};

kolo_status_t kolo_coll_parse(const char *name, kolo_coll_t *coll)
{
    char all[256] = "";
    size_t at = 0;
    for (int c = 0; c < KOLO_COLL_COUNT; c++) {
        const char *is = kolo_coll_name((kolo_coll_t)c);
        if (name && strcmp(name, is) == 0) {
            *coll = (kolo_coll_t)c;
            return KOLO_OK;
        }
        if (at < sizeof all) at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", c ? ", " : "", is);
    }
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "no collective is called '%s'; there are %s",
                     name ? name : "(null)", all);
}
