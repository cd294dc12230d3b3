/* SPDX-License-Identifier: Apache-2.0
 *
 * The first call of a process: NCCL's variables, Kolo's parameters, the form of log lines, and a look whether a
 * second libnccl.so is here, whose communicators would be taken for ours.
 */
#include "nccl/layer.h"

#include "base/log.h"
#include "comm/params.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool kolo_nccl_on_cpu(void)
{
    return kolo_nccl_options.cpu;
}

int kolo_nccl_version(void)
{
    return (int)kolo_nccl_options.version;
}

/* Begins a line as NCCL's begin, so that what reads those reads these; and who writes them is named. */
static int log_head(char *line, size_t bytes, kolo_log_level_t level, const char *host, const char *subsystem)
{
    return snprintf(line, bytes, "%s:%d:%ld [%d] NCCL %s Kolo [%s] ", host, (int)getpid(), syscall(SYS_gettid),
                    kolo_cuda_loaded() ? kolo_nccl_current_device() : 0,
                    level >= KOLO_LOG_DEBUG  ? "TRACE"
                    : level == KOLO_LOG_INFO ? "INFO"
                                             : "WARN",
                    subsystem);
}

typedef struct {
    char names[2][512];
    int count;
} copies_t;

static int look_at(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    copies_t *c = arg;
    const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)bytes;
    if (!base || strncmp(base, "/libnccl.so", 11) != 0) return 0;
    if (c->count < 2) snprintf(c->names[c->count], sizeof c->names[0], "%s", info->dlpi_name);
    c->count++;
    return 0;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Programs load NVIDIA's by its path although ours is there; what counts is whose functions they then find. */
static void look_for_copies(void)
{
    copies_t c = {.count = 0};
    dl_iterate_phdr(look_at, &c);
    if (c.count < 2) return;
    Dl_info found = {.dli_fbase = NULL}, own = {.dli_fbase = NULL};
    void *at = dlsym(RTLD_DEFAULT, "ncclGetVersion");
    if (at && dladdr(at, &found) && dladdr(&once, &own) && found.dli_fbase == own.dli_fbase)
        kolo_info("nccl", "%s and %s are loaded; names lead to this one", c.names[0], c.names[1]);
    else
        kolo_warn(
            "nccl",
            "two NCCL libraries are loaded, %s and %s, and names lead to the other one: communicators of one must "
            "not be given to the other (docs/nccl.md tells how to have one)",
            c.names[0], c.names[1]);
}

static kolo_status_t result;
static char message[KOLO_ERROR_TEXT_BYTES];

static void before_fork(void)
{
    kolo_nccl_handles_hold(true);
    kolo_nccl_memory_hold(true);
    kolo_nccl_errors_hold(true);
}

static void after_fork(void)
{
    kolo_nccl_errors_hold(false);
    kolo_nccl_memory_hold(false);
    kolo_nccl_handles_hold(false);
}

static void after_fork_in_child(void)
{
    after_fork();
    kolo_nccl_handles_renew();
}

static void start(void)
{
    KOLO_NCCL_WHOLE;
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
    kolo_log_set_head(log_head, kolo_nccl_words);
    kolo_log_allow_no_file(); /* as NCCL */
    result = kolo_nccl_env_load();
    if (result == KOLO_OK) result = kolo_comm_library_init();
    if (result != KOLO_OK) {
        snprintf(message, sizeof message, "%s", kolo_error_text());
        return;
    }
    kolo_info("nccl", "this is Kolo %d.%d.%d, not NCCL; it says that it is NCCL %d.%d.%d%s", KOLO_VERSION_MAJOR,
              KOLO_VERSION_MINOR, KOLO_VERSION_PATCH, kolo_nccl_version() / 10000, kolo_nccl_version() / 100 % 100,
              kolo_nccl_version() % 100, kolo_nccl_on_cpu() ? "; buffers are host memory (KOLO_NCCL_CPU)" : "");
    kolo_nccl_env_report();
    look_for_copies();
}

ncclResult_t kolo_nccl_start(void)
{
    pthread_once(&once, start);
    return KOLO_LIKELY(result == KOLO_OK) ? ncclSuccess : kolo_nccl_result_text(result, message);
}

int kolo_nccl_current_device(void)
{
    const kolo_cuda_api_t *api;
    kolo_cu_device_t device = 0;
    if (kolo_nccl_on_cpu()) return -1;
    /* without a context the runtime would take the first GPU */
    if (kolo_cuda_load(&api) != KOLO_OK || !api->ctx_device || api->ctx_device(&device)) return 0;
    return device;
}

ncclResult_t ncclGetVersion(int *version)
{
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!version) return kolo_nccl_fail(ncclInvalidArgument, "ncclGetVersion: the output is NULL");
    *version = kolo_nccl_version();
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclGetVersion, pncclGetVersion);

/* Does nothing: NCCL's reads NCCL_DEBUG again, here the log is opened once. */
void ncclResetDebugInit(void)
{
}
KOLO_NCCL_TWIN(ncclResetDebugInit, pncclResetDebugInit);
