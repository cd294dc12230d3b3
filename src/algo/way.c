/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways to run a collective: rows of the table, by slots or by lines (algo.h).
 */
#include "algo/algo.h"

#include <string.h>

bool kolo_way_exists(kolo_coll_t coll, kolo_way_t way)
{
    const kolo_algo_row_t *row = way.algo < KOLO_ALGO_COUNT ? kolo_algo_find(coll, way.algo) : NULL;
    return row && (row->lines || !way.lines);
}

size_t kolo_way_all(kolo_coll_t coll, kolo_way_t list[KOLO_WAYS_MAX])
{
    size_t n = 0;
    for (int lines = 0; lines < 2; lines++)
        for (int a = 0; a < KOLO_ALGO_COUNT && n < KOLO_WAYS_MAX; a++) {
            kolo_way_t way = {(kolo_algo_t)a, lines};
            if (kolo_way_exists(coll, way)) list[n++] = way;
        }
    return n;
}

const char *kolo_way_name(kolo_coll_t coll, kolo_way_t way)
{
    if (!way.lines) return kolo_plan_algo_name(way.algo);
    return coll == KOLO_COLL_ALL_REDUCE && way.algo == KOLO_ALGO_DIRECT ? "flat_two_step" : "flat";
}

bool kolo_way_parse(kolo_coll_t coll, const char *name, kolo_way_t *way)
{
    kolo_way_t list[KOLO_WAYS_MAX];
    for (int c = 0; c < KOLO_COLL_COUNT; c++) {
        if (coll != KOLO_COLL_COUNT && (int)coll != c) continue;
        size_t n = kolo_way_all((kolo_coll_t)c, list);
        for (size_t i = 0; i < n; i++) {
            if (strcmp(kolo_way_name((kolo_coll_t)c, list[i]), name) != 0) continue;
            *way = list[i];
            return true;
        }
    }
    return false;
}

uint32_t kolo_way_number(kolo_way_t way)
{
    return (uint32_t)way.algo | (way.lines ? KOLO_WAY_LINES : 0);
}

kolo_way_t kolo_way_of_number(uint32_t number)
{
    kolo_way_t way = {(kolo_algo_t)(number & ~KOLO_WAY_LINES), number & KOLO_WAY_LINES};
    return way.algo < KOLO_ALGO_COUNT ? way : KOLO_WAY_NONE;
}
