/* SPDX-License-Identifier: Apache-2.0
 *
 * KOLO_ALGO: algorithms that the user forces, as "ring" for every collective or "all_reduce=ring,broadcast=tree".
 * The text is checked when the parameters are loaded, so a misspelt name is an error and not a silent default.
 */
#include "tune/internal.h"

#include <stdio.h>
#include <string.h>

#define WORD_BYTES 64

typedef struct {
    char coll[WORD_BYTES]; /* "": every collective */
    char algo[WORD_BYTES];
} force_t;

static void copy_word(char *to, const char *from, size_t bytes)
{
    if (bytes >= WORD_BYTES) bytes = WORD_BYTES - 1; /* no name is that long, so it stays an unknown one */
    memcpy(to, from, bytes);
    to[bytes] = '\0';
}

/* Finds the next item of the list; false at its end. */
static bool next_item(const char **at, force_t *item)
{
    if (!*at || !**at) return false;
    size_t n = strcspn(*at, ","), key = strcspn(*at, "=,");
    bool has_key = key < n;
    copy_word(item->coll, *at, has_key ? key : 0);
    copy_word(item->algo, *at + (has_key ? key + 1 : 0), n - (has_key ? key + 1 : 0));
    if (has_key && key == 0) copy_word(item->coll, "=", 1);
    *at += n + ((*at)[n] == ',');
    return true;
}

/* Takes the last item that names the collective, or all; also where it has no such algorithm. */
kolo_way_t kolo_tune_forced(kolo_coll_t coll)
{
    const char *at = kolo_tune_config.algo;
    kolo_way_t found = KOLO_WAY_NONE;
    force_t item;
    while (next_item(&at, &item))
        if (!item.coll[0] || strcmp(item.coll, kolo_coll_name(coll)) == 0) {
            found = KOLO_WAY_NONE;
            kolo_way_parse(coll, item.algo, &found);
        }
    return found;
}

const char *kolo_tune_force(const char *text)
{
    const char *before = kolo_tune_config.algo;
    kolo_tune_config.algo = text;
    return before;
}

/* Writes "ring, tree or direct": the algorithms of a collective, KOLO_COLL_COUNT: of any. */
static void list_algorithms(kolo_coll_t coll, char *text, size_t bytes)
{
    size_t at = 0;
    kolo_way_t way, list[KOLO_WAYS_MAX];
    for (int a = 0; a < KOLO_ALGO_COUNT && coll == KOLO_COLL_COUNT; a++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", at ? ", " : "", kolo_plan_algo_name((kolo_algo_t)a));
    size_t n = coll == KOLO_COLL_COUNT ? 0 : kolo_way_all(coll, list);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", at ? ", " : "", kolo_way_name(coll, list[i]));
    for (int i = 0; coll == KOLO_COLL_COUNT && i < 2; i++) {
        static const char *const by_lines[] = {"flat", "flat_two_step"};
        if (kolo_way_parse(coll, by_lines[i], &way))
            at += (size_t)snprintf(text + at, bytes - at, ", %s", by_lines[i]);
    }
}

kolo_status_t kolo_tune_check_param(const kolo_param_t *row, const char *text)
{
    char allowed[512], names[300];
    const char *at = text;
    force_t item;
    if (row->value != &kolo_tune_config.algo) return KOLO_OK;
    while (next_item(&at, &item)) {
        kolo_coll_t coll = KOLO_COLL_COUNT;
        kolo_way_t way;
        if (item.coll[0] && kolo_coll_parse(item.coll, &coll) != KOLO_OK) {
            snprintf(allowed, sizeof allowed, "the name of a collective (%s) before \"=%s\"",
                     "all_reduce, broadcast, ...", item.algo);
            return kolo_param_refuse(row, text, allowed);
        }
        if (kolo_way_parse(coll, item.algo, &way)) continue;
        list_algorithms(coll, names, sizeof names);
        snprintf(allowed, sizeof allowed, "one of %s%s%s instead of \"%s\"", names, item.coll[0] ? " for " : "",
                 item.coll, item.algo);
        return kolo_param_refuse(row, text, allowed);
    }
    return KOLO_OK;
}
