/* SPDX-License-Identifier: Apache-2.0
 *
 * Which executor of the list (executors.c) runs a communicator's operations.
 */
#include "gpu/gpu.h"

#include "base/text/plain.h"

#include <stdio.h>
#include <string.h>

#define AUTO "auto"

static bool is(const kolo_exec_ops_t *row, const char *name)
{
    const size_t length = strlen(name);
    return kolo_plain_is_word(name, length, AUTO) || kolo_plain_is_word(name, length, row->name);
}

kolo_status_t kolo_gpu_check_name(const kolo_param_t *row, const char *name)
{
    char names[128] = AUTO;
    for (int i = 0; kolo_executors[i]; i++) {
        if (is(kolo_executors[i], name)) return KOLO_OK;
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "|%s", kolo_executors[i]->name);
    }
    return kolo_param_refuse(row, name, names);
}

bool kolo_gpu_may_need_kernels(const char *name)
{
    bool any = false;
    for (int i = 0; kolo_executors[i]; i++)
        any = any || (is(kolo_executors[i], name) && kolo_executors[i]->by_kernels);
    return any;
}

kolo_status_t kolo_gpu_choose(const char *name, const kolo_exec_gpus_t *gpus, const kolo_exec_ops_t **exec,
                              char why[KOLO_EXEC_WHY])
{
    char refused[2 * KOLO_EXEC_WHY] = "", text[KOLO_EXEC_WHY];
    for (int i = 0; kolo_executors[i]; i++) {
        const kolo_exec_ops_t *row = kolo_executors[i];
        size_t at = strlen(refused);
        if (!is(row, name)) continue;
        if (row->serves(gpus, text)) {
            *exec = row;
            snprintf(why, KOLO_EXEC_WHY, "%.*s", KOLO_EXEC_WHY - 1, at ? refused : text);
            return KOLO_OK;
        }
        snprintf(refused + at, sizeof refused - at, "%s%s needs %s, but %s", at ? "; " : "", row->name, row->needs,
                 text);
    }
    return kolo_fail(KOLO_ERR_UNSUPPORTED,
                     "no executor of GPUs can serve this communicator (KOLO_GPU_EXECUTOR=%s): %s", name, refused);
}
