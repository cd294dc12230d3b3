/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of this process: the file that KOLO_TUNE_FILE names, read once, when the library is first used, and
 * what is asked of it. Without the parameter every answer is "not measured".
 */
#include "tune/internal.h"

#include <stdlib.h>

static kolo_tune_table_t *loaded;

kolo_status_t kolo_tune_load(void)
{
    const char *path = kolo_tune_config.file;
    if (loaded || !path || !*path) return KOLO_OK;
    kolo_tune_table_t *table = malloc(sizeof *table);
    if (!table) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the table file %s", path);
    if (kolo_tune_table_read(path, table) != KOLO_OK) {
        free(table);
        return kolo_fail_prefix(KOLO_ERR_INVALID_ARGUMENT, "KOLO_TUNE_FILE: ");
    }
    loaded = table;
    return KOLO_OK;
}

void kolo_tune_unload(void)
{
    free(loaded);
    loaded = NULL;
}

const kolo_tune_row_t *kolo_tune_loaded_row(const kolo_tune_env_t *env, kolo_coll_t coll, uint64_t bytes)
{
    return loaded && env->nnodes <= 1 ? kolo_tune_table_find(loaded, coll, env->nranks, bytes) : NULL;
}

uint64_t kolo_tune_loaded_hash(void)
{
    return loaded ? loaded->hash : 0;
}

void kolo_tune_gpu(uint32_t nranks, kolo_tune_gpu_t *gpu)
{
    *gpu = (kolo_tune_gpu_t){.ranks = nranks};
    for (uint32_t i = 0; loaded && i < loaded->ngpus; i++)
        if (loaded->gpus[i].ranks == nranks) *gpu = loaded->gpus[i];
}

const kolo_tune_machine_t *kolo_tune_machine(void)
{
    return loaded && loaded->has_machine ? &loaded->machine : NULL;
}
