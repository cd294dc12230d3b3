/* SPDX-License-Identifier: Apache-2.0
 *
 * KOLO_ENGINE_CORE: the core that the engine's thread stays on, one for all or a list by local rank.
 */
#include "engine/engine.h"

#include <stdlib.h>

/* Takes a whole number up to KOLO_CORE_MAX, after which *text goes on. */
static bool take_core(const char **text, long *core)
{
    char *end;
    if (**text < '0' || **text > '9') return false;
    *core = strtol(*text, &end, 10);
    *text = end;
    return *core <= KOLO_CORE_MAX;
}

int kolo_cores_pick(const char *text, int local_rank, int *core)
{
    const bool alone = text[0] == '-' && text[1] == '1' && text[2] == '\0';
    int count = 0;
    *core = -1;
    while (!alone) {
        long first, last;
        if (!take_core(&text, &first)) return -1;
        last = first;
        if (*text == '-') {
            text++;
            if (!take_core(&text, &last) || last < first) return -1;
        }
        if (local_rank >= count && local_rank - count <= last - first) *core = (int)first + local_rank - count;
        count += (int)(last - first) + 1;
        if (*text == '\0') {
            if (count == 1) *core = (int)first; /* of all ranks, whatever their numbers */
            return count;
        }
        if (*text++ != ',' || count > KOLO_CORE_MAX) return -1;
    }
    return 0;
}
