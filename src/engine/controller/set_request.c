/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to add or remove a process set, as the coordinator sees them. A change travels in the request's shape:
 * see sets/set_change.c.
 */
#include "engine/engine.h"

#include <stdio.h>

void kolo_sets_list(const int *ranks, int shown, int count, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int i = 0; i < shown && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, i ? ", %d" : "%d", ranks[i]);
    if (count > shown && at < bytes) snprintf(buf + at, bytes - at, " and %d more", count - shown);
}

void kolo_sets_show(const kolo_tensor_request_t *request, char *buf, size_t bytes)
{
    char list[200];
    int ranks[KOLO_CHANGE_NAMED], shown = 0;
    if (request->work == KOLO_WORK_REMOVE_SET) {
        snprintf(buf, bytes, "set %lld", (long long)request->shape[KOLO_CHANGE_ID]);
        return;
    }
    for (; shown < request->ndims - KOLO_CHANGE_FIRST; shown++)
        ranks[shown] = (int)request->shape[KOLO_CHANGE_FIRST + shown];
    kolo_sets_list(ranks, shown, (int)request->shape[KOLO_CHANGE_COUNT], list, sizeof list);
    if (request->shape[KOLO_CHANGE_COUNT] > KOLO_CHANGE_NAMED)
        snprintf(buf, bytes, "ranks %s (hash %llx)", list, (unsigned long long)request->shape[KOLO_CHANGE_HASH]);
    else
        snprintf(buf, bytes, "ranks %s", list);
}

bool kolo_sets_request_is_good(const kolo_tensor_request_t *request, int nranks)
{
    if (request->ndims < 2 || request->shape[0] < 0 || request->shape[1] < 0) return false;
    if (request->work == KOLO_WORK_REMOVE_SET)
        return request->ndims == 2 && request->shape[KOLO_CHANGE_ID] > 0 &&
               request->shape[KOLO_CHANGE_ID] < KOLO_SETS_MAX;
    if (request->shape[KOLO_CHANGE_COUNT] < 1 || request->shape[KOLO_CHANGE_COUNT] > nranks ||
        request->ndims !=
            KOLO_CHANGE_FIRST + KOLO_MIN(request->shape[KOLO_CHANGE_COUNT], (int64_t)KOLO_CHANGE_NAMED))
        return false;
    for (int i = KOLO_CHANGE_FIRST; i < request->ndims; i++)
        if (request->shape[i] < 0 || request->shape[i] >= nranks) return false;
    return true;
}

bool kolo_sets_is_busy(const kolo_tensor_request_t *request)
{
    return request->work == KOLO_WORK_REMOVE_SET && request->shape[KOLO_CHANGE_OUTSTANDING] > 0;
}
