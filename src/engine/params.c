/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of this room, and how a config that leaves some open is filled in.
 */
#include "comm/params.h"
#include "engine/backends/backend.h"
#include "engine/backends/use_mpi.h"
#include "engine/batch/native.h"
#include "engine/controller/talk.h"
#include "engine/controller/tree.h"
#include "engine/timeline/timeline.h"
#include "engine/tuner/autotune.h"

#include <string.h>

static bool autotune, group_fusion;
int64_t kolo_engine_gpu_tensor_max;
static const char *backends, *cores;
static int64_t fusion_threshold, fusion_tensor_max, cache_capacity, cycle_time_ms, average, stall_warn_ms,
    stall_limit_ms;

#define CAPACITY_MAX (1 << 20)
#define CYCLE_MAX_MS (KOLO_CYCLE_TIME_MAX_US / 1000)
#define STALL_MAX_MS 86400000

static const kolo_param_t rows[] = {
    {"KOLO_FUSION_THRESHOLD", KOLO_PARAM_SIZE, "128M", 0, KOLO_TENSOR_BYTES_MAX, NULL, false,
     "engine: most bytes of one fused operation; 0: no fusion", &fusion_threshold},
    {"KOLO_FUSION_TENSOR_MAX", KOLO_PARAM_SIZE, "256K", 0, KOLO_TENSOR_BYTES_MAX, NULL, false,
     "engine: a tensor of more bytes is reduced where it lies instead of being copied into a fused operation",
     &fusion_tensor_max},
    {"KOLO_FUSION_GPU_TENSOR_MAX", KOLO_PARAM_SIZE, "8M", 0, KOLO_TENSOR_BYTES_MAX, NULL, true,
     "engine: the same for tensors that all ranks have on their GPUs, where copies are cheap and operations are "
     "not",
     &kolo_engine_gpu_tensor_max},
    {"KOLO_ENGINE_GROUP_FUSION", KOLO_PARAM_BOOL, "1", 0, 0, NULL, false,
     "engine: 0: the tensors of a group are fused with each other only, never with those of another group or of "
     "none",
     &group_fusion},
    {"KOLO_CACHE_CAPACITY", KOLO_PARAM_INT, "1024", 0, CAPACITY_MAX, NULL, false,
     "engine: number of tensors whose agreement is remembered; 0: none", &cache_capacity},
    {"KOLO_CYCLE_TIME", KOLO_PARAM_INT, "0", 0, CYCLE_MAX_MS, NULL, false,
     "engine: least milliseconds between the begins of two cycles; 0: work is done as soon as it is there",
     &cycle_time_ms},
    {"KOLO_ENGINE_AVERAGE", KOLO_PARAM_ENUM, "all", 0, 0, "all|contributors", false,
     "engine: while ranks have joined, averages are over all ranks or over those that contribute", &average},
    {"KOLO_ENGINE_CORE", KOLO_PARAM_STR, "-1", 0, 0, NULL, false,
     "engine: the core that its thread stays on; a list, as in '0,2,8-11', has one for each rank of a host, in the "
     "order of their local ranks; -1: any",
     &cores},
    {"KOLO_ENGINE_OVERLAP", KOLO_PARAM_ENUM, "auto", 0, 0, "auto|off|on", false,
     "engine: a thread of its own packs and unpacks fused tensors while others are reduced; auto: if each rank of "
     "this host has two cores",
     &kolo_engine_overlap},
    {"KOLO_ENGINE_GPU_OVERLAP", KOLO_PARAM_SIZE, "0", 0, KOLO_TENSOR_BYTES_MAX, NULL, false,
     "engine: fused operations on GPUs of at least this many bytes are packed and unpacked on streams of their "
     "own, "
     "while others are reduced; 0: none",
     &kolo_engine_gpu_overlap},
    {"KOLO_ENGINE_GPU_STREAMS", KOLO_PARAM_INT, "1", 1, KOLO_GPU_STREAMS, NULL, true,
     "engine: streams of a GPU that operations of different process sets are on, set 0 on the first, where there "
     "were "
     "several sets before anything ran on GPUs: what holds up one set leaves the others alone, but an operation "
     "takes a "
     "quarter of a GPU at most; 1: all are on one, and take what they like",
     &kolo_engine_gpu_streams},
    {"KOLO_ENGINE_STALL_WARN_MS", KOLO_PARAM_INT, "60000", 0, STALL_MAX_MS, NULL, false,
     "engine: a tensor that some ranks lack for this many milliseconds is reported in the log, with these ranks; "
     "0: never",
     &stall_warn_ms},
    {"KOLO_ENGINE_STALL_LIMIT_MS", KOLO_PARAM_INT, "0", 0, STALL_MAX_MS, NULL, false,
     "engine: milliseconds after which such a tensor, or an operation that some rank does not come to, ends the "
     "engine; 0: never",
     &stall_limit_ms},
    {"KOLO_ENGINE_BACKENDS", KOLO_PARAM_STR, "kolo", 0, 0, NULL, false,
     "engine: who moves the data, the first that can: names of backends, for all operations and then for single "
     "ones, as in 'name,name;all_gather=name'; kolo-info lists them, kolo itself is always last",
     &backends},
    {"KOLO_ENGINE_CONTROLLER", KOLO_PARAM_ENUM, "kolo", 0, 0, "kolo|mpi", false,
     "engine: what ranks agree by on what to do next", &kolo_talk_which},
    {"KOLO_ENGINE_TREE_RANKS", KOLO_PARAM_INT, "64", 0, INT32_MAX, NULL, false,
     "engine: in a process set of more ranks than this, requests go to its first rank by a tree whose inner ranks "
     "merge them; 0: never",
     &kolo_engine_tree_ranks},
    {"KOLO_ENGINE_TREE_FAN_IN", KOLO_PARAM_INT, "16", 2, KOLO_TREE_FAN_IN_MAX, NULL, false,
     "engine: ranks that send to one rank of that tree at most", &kolo_engine_tree_fan_in},
    {"KOLO_MPI", KOLO_PARAM_ENUM, "auto", 0, 0, "auto|openmpi|mpich", false,
     "engine: which MPI the backend and the controller of that name use; auto: the one that the program has "
     "loaded, else the only one that libkolo was built for",
     &kolo_mpi_which},
    {"KOLO_MPI_MODULES", KOLO_PARAM_FILE, NULL, 0, 0, NULL, false,
     "engine: directory of the modules kolo-mpi-*.so; not set: kolo beside libkolo.so", &kolo_mpi_modules},
    {"KOLO_MPI_CHUNK", KOLO_PARAM_INT, "2147483647", 1, INT32_MAX, NULL, true,
     "engine: most elements that one call of MPI gets, whose counts are int; more are cut into pieces",
     &kolo_mpi_chunk},
    {"KOLO_AUTOTUNE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "engine: 1: fusion threshold, cycle time, cache and hierarchical backends, as far as no parameter or config "
     "fixes them, are tried out while the job runs, and the best stay",
     &autotune},
    {"KOLO_AUTOTUNE_LOG", KOLO_PARAM_FILE, NULL, 0, 0, NULL, false,
     "engine: file for what autotune tries and how fast it was (comma-separated values); %r in it becomes the "
     "rank, without it rank 0 alone writes",
     &kolo_autotune_log_path},
    {"KOLO_AUTOTUNE_WARMUP_SAMPLES", KOLO_PARAM_INT, "3", 0, 1000, NULL, false,
     "engine: samples that autotune throws away at the beginning (rank 0's counts)", &kolo_autotune_warm_up},
    {"KOLO_AUTOTUNE_STEPS_PER_SAMPLE", KOLO_PARAM_INT, "10", 1, KOLO_AUTOTUNE_STEPS_MAX, NULL, false,
     "engine: steps of a sample, a step being the time until the same tensor comes again (rank 0's counts)",
     &kolo_autotune_steps},
    {"KOLO_AUTOTUNE_SAMPLES", KOLO_PARAM_INT, "3", 1, KOLO_TUNE_SAMPLES_MAX, NULL, false,
     "engine: samples of each setting; their median is its score (rank 0's counts)", &kolo_autotune_samples},
    {"KOLO_AUTOTUNE_SETTINGS", KOLO_PARAM_INT, "46", 1, KOLO_TUNE_SETTINGS_MAX, NULL, false,
     "engine: settings that autotune tries at most (rank 0's counts)", &kolo_autotune_settings},
    {"KOLO_TIMELINE", KOLO_PARAM_FILE, NULL, 0, 0, NULL, false,
     "engine: file for the timeline of every engine, from its start on; %r in it becomes the rank, without it rank "
     "0 alone writes; .gz at its end: compressed by zlib",
     &kolo_timeline_path},
    {"KOLO_TIMELINE_EVERY", KOLO_PARAM_INT, "1", 1, 1000000, NULL, false,
     "engine: of the operations on each tensor, timelines have the first and then every Nth: N times smaller files",
     &kolo_timeline_every},
    {"KOLO_TIMELINE_MARK_CYCLES", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "engine: 1: the beginnings of cycles are in the timeline of KOLO_TIMELINE", &kolo_timeline_marks},
    {"KOLO_TIMELINE_QUEUE", KOLO_PARAM_INT, "65536", 64, 1 << 24, NULL, false,
     "engine: events of 32 bytes that may wait to be written into a timeline; more are counted and left out",
     &kolo_timeline_queue},
};

static kolo_status_t check(const kolo_param_t *row, const char *text)
{
    int unused;
    if (row->value == &cores && kolo_cores_pick(text, 0, &unused) < 0)
        return kolo_param_refuse(row, text, "-1, a core, or a list of cores by local rank, as in \"0,2,8-11\"");
    return row->value == &backends ? kolo_backends_check_param(row, text) : KOLO_OK;
}
const kolo_param_table_t kolo_engine_params = {"engine", rows, KOLO_COUNTOF(rows), check};

/* A field of the caller's struct, if the struct is large enough to have it. */
#define GIVEN(field)                                                                                               \
    (given && given->size >= offsetof(kolo_engine_config_t, field) + sizeof given->field ? given->field            \
                                                                                         : config->field)

static kolo_status_t in_range(const char *name, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_init: %s is %lld, expected %lld to %lld", name,
                     (long long)value, (long long)min, (long long)max);
}

static bool is_set(const char *key)
{
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++)
        if (strcmp(rows[i].key, key) == 0) return kolo_param_in_environment(&rows[i]);
    return false;
}

kolo_tunable_t kolo_engine_tunable(const kolo_engine_config_t *given)
{
    kolo_tunable_t t = {!is_set("KOLO_FUSION_THRESHOLD"), !is_set("KOLO_CYCLE_TIME"),
                        !is_set("KOLO_CACHE_CAPACITY")};
    if (given && given->fusion_threshold != KOLO_UNDEFINED_INT64) t.threshold = false;
    if (given && given->cycle_time_us != KOLO_UNDEFINED_INT64) t.cycle = false;
    if (given && given->cache_capacity != KOLO_UNDEFINED_INT64) t.cache = false;
    return t;
}

kolo_status_t kolo_engine_core_fill(const kolo_engine_place_t *place, kolo_engine_config_t *config)
{
    if (config->core != KOLO_UNDEFINED_INT) return KOLO_OK;
    int listed = kolo_cores_pick(cores, place->local_rank, &config->core);
    if (listed <= 1 || config->core >= 0) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "engine_init: KOLO_ENGINE_CORE=%.200s has %d cores, but this is number %d (from 0) of the %d "
                     "ranks on this host: list one for each, or a single one for all",
                     cores, listed, place->local_rank, place->local_size);
}

kolo_status_t kolo_engine_config_fill(const kolo_engine_config_t *given, kolo_engine_config_t *config)
{
    *config = (kolo_engine_config_t)KOLO_ENGINE_CONFIG_INITIALIZER;
    if (given &&
        (given->magic != KOLO_ENGINE_CONFIG_MAGIC || given->size < offsetof(kolo_engine_config_t, average)))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "engine_init: the config was not made from KOLO_ENGINE_CONFIG_INITIALIZER");
    config->fusion_threshold = GIVEN(fusion_threshold);
    config->fusion_tensor_max = GIVEN(fusion_tensor_max);
    config->cache_capacity = GIVEN(cache_capacity);
    config->cycle_time_us = GIVEN(cycle_time_us);
    config->average = GIVEN(average);
    config->core = GIVEN(core);
    config->stall_warn_ms = GIVEN(stall_warn_ms);
    config->stall_limit_ms = GIVEN(stall_limit_ms);
    config->nsets = GIVEN(nsets);
    config->sets = GIVEN(sets);
    config->backends = GIVEN(backends);
    config->autotune = GIVEN(autotune);
    config->group_fusion = GIVEN(group_fusion);
    if (config->fusion_threshold == KOLO_UNDEFINED_INT64) config->fusion_threshold = fusion_threshold;
    if (config->fusion_tensor_max == KOLO_UNDEFINED_INT64) config->fusion_tensor_max = fusion_tensor_max;
    if (config->cache_capacity == KOLO_UNDEFINED_INT64) config->cache_capacity = cache_capacity;
    if (config->cycle_time_us == KOLO_UNDEFINED_INT64) config->cycle_time_us = cycle_time_ms * 1000;
    if (config->average == KOLO_UNDEFINED_INT) config->average = (int)average;
    if (config->stall_warn_ms == KOLO_UNDEFINED_INT64) config->stall_warn_ms = stall_warn_ms;
    if (config->stall_limit_ms == KOLO_UNDEFINED_INT64) config->stall_limit_ms = stall_limit_ms;
    if (!config->backends) config->backends = backends;
    if (config->autotune == KOLO_UNDEFINED_INT) config->autotune = autotune;
    if (config->group_fusion == KOLO_UNDEFINED_INT) config->group_fusion = group_fusion;
    KOLO_TRY(in_range("autotune", config->autotune, 0, 1));
    KOLO_TRY(in_range("group_fusion", config->group_fusion, 0, 1));
    KOLO_TRY(in_range("fusion_threshold", config->fusion_threshold, 0, KOLO_TENSOR_BYTES_MAX));
    KOLO_TRY(in_range("fusion_tensor_max", config->fusion_tensor_max, 0, KOLO_TENSOR_BYTES_MAX));
    KOLO_TRY(in_range("cache_capacity", config->cache_capacity, 0, CAPACITY_MAX));
    KOLO_TRY(in_range("cycle_time_us", config->cycle_time_us, 0, CYCLE_MAX_MS * INT64_C(1000)));
    KOLO_TRY(in_range("average", config->average, KOLO_AVERAGE_ALL, KOLO_AVERAGE_CONTRIBUTORS));
    KOLO_TRY(in_range("stall_warn_ms", config->stall_warn_ms, 0, STALL_MAX_MS));
    KOLO_TRY(in_range("stall_limit_ms", config->stall_limit_ms, 0, STALL_MAX_MS));
    if (config->core != KOLO_UNDEFINED_INT) KOLO_TRY(in_range("core", config->core, -1, KOLO_CORE_MAX));
    KOLO_TRY(in_range("nsets", config->nsets, 0, KOLO_SETS_MAX - 1));
    if (config->nsets > 0 && !config->sets)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_init: %d process sets, but the list of them is NULL",
                         config->nsets);
    return KOLO_OK;
}
