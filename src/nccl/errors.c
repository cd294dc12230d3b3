/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors as NCCL has them: few codes, and one text for the whole process, that of the last failure of any thread.
 */
#include "nccl/layer.h"

#include "base/log.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[KOLO_ERROR_TEXT_BYTES];
static _Thread_local char shown[KOLO_ERROR_TEXT_BYTES]; /* what this thread was given last */

/* Kolo's texts name Kolo's calls; who reads them here has called NCCL's. */
static const struct {
    const char *kolo, *nccl;
} names[] = {
    {" (an engine: kolo_engine_shutdown())", ""},
    {"kolo_comm_get_async_error", "ncclCommGetAsyncError"},
    {"comm_get_async_error", "ncclCommGetAsyncError"},
    {"kolo_comm_finalize", "ncclCommFinalize"},
    {"kolo_comm_destroy", "ncclCommDestroy"},
    {"kolo_comm_abort", "ncclCommAbort"},
    {"kolo_comm_revoke", "ncclCommRevoke"},
    {"kolo_comm_shrink", "ncclCommShrink"},
    {"kolo_comm_resume", "ncclCommResume"},
    {"kolo_comm_grow", "ncclCommGrow"},
    {"kolo_comm_split", "ncclCommSplit"},
    {"kolo_comm_init_rank", "ncclCommInitRank"},
    {"kolo_get_unique_id", "ncclGetUniqueId"},
    {"kolo_window_register", "ncclCommWindowRegister"},
    {"comm_leave", "ncclCommDestroy"},
    {"comm_finalize", "ncclCommFinalize"},
    {"comm_destroy", "ncclCommDestroy"},
    {"comm_abort", "ncclCommAbort"},
    {"comm_revoke", "ncclCommRevoke"},
    {"comm_get_grow_id", "ncclCommGetUniqueId"},
    {"comm_split", "ncclCommSplit"},
    {"comm_shrink", "ncclCommShrink"},
    {"comm_grow", "ncclCommGrow"},
    {"window_register", "ncclCommWindowRegister"},
    {"kolo_group_start", "ncclGroupStart"},
    {"kolo_group_end", "ncclGroupEnd"},
    {"config.gpu_profile", "what the configuration's maxCTAs and CTAPolicy choose"},
    {"KOLO_OK", "ncclSuccess"},
    {"KOLO_IN_PROGRESS", "ncclInProgress"},
};

/* Calls whose names are also words: these are replaced where a text begins with them and a colon. */
static const struct {
    const char *kolo, *nccl;
} calls[] = {
    {"all_reduce", "ncclAllReduce"},
    {"reduce", "ncclReduce"},
    {"broadcast", "ncclBroadcast"},
    {"all_gather", "ncclAllGather"},
    {"reduce_scatter", "ncclReduceScatter"},
    {"all_to_all", "ncclAlltoAll"},
    {"gather", "ncclGather"},
    {"scatter", "ncclScatter"},
    {"send", "ncclSend"},
    {"recv", "ncclRecv"},
    {"put_signal", "ncclPutSignal"},
    {"signal", "ncclSignal"},
    {"wait_signal", "ncclWaitSignal"},
    {"op_create_premul_sum", "ncclRedOpCreatePreMulSum"},
    {"op_destroy", "ncclRedOpDestroy"},
    {"init", "ncclCommInitRank"},
    {"comm_register", "ncclCommRegister"},
    {"comm_deregister", "ncclCommDeregister"},
    {"comm_suspend", "ncclCommSuspend"},
    {"comm_resume", "ncclCommResume"},
};

/* Puts the call's name in NCCL's words, if the text begins with one; returns how much of `from` that was. */
static size_t put_call(const char *from, char *to, size_t bytes, size_t *at)
{
    for (size_t i = 0; i < KOLO_COUNTOF(calls); i++) {
        size_t length = strlen(calls[i].kolo);
        if (strncmp(from, calls[i].kolo, length) != 0 || from[length] != ':') continue;
        *at += (size_t)snprintf(to, bytes, "%s", calls[i].nccl);
        return length;
    }
    return 0;
}

/* Puts the number of a created operator as the client has it (operators.c); returns how much of `from` that was. */
static size_t put_operator(const char *from, char *to, size_t bytes, size_t *at)
{
    static const char word[] = "operator ";
    char *end;
    if (strncmp(from, word, sizeof word - 1) != 0) return 0;
    long number = strtol(from + sizeof word - 1, &end, 10);
    if (number < KOLO_OP_BUILTIN_COUNT || number > INT_MAX) return 0;
    int n = snprintf(to + *at, bytes - *at, "%s%ld", word, number - KOLO_OP_BUILTIN_COUNT + ncclNumOps);
    *at += (size_t)n < bytes - *at ? (size_t)n : bytes - *at - 1;
    return (size_t)(end - from);
}

/* Finds NCCL's word for the one of Kolo's that `from` begins with, and its length; NULL: there is none. */
static const char *word_for(const char *from, bool variables, size_t *length)
{
    for (size_t i = 0; i < KOLO_COUNTOF(names); i++) {
        *length = strlen(names[i].kolo);
        if (strncmp(from, names[i].kolo, *length) == 0) return names[i].nccl;
    }
    if (!variables || strncmp(from, "KOLO_", 5) != 0) return NULL;
    *length = strspn(from, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return kolo_nccl_env_behind(from, *length);
}

static void translate(const char *from, bool variables, char *to, size_t bytes)
{
    size_t at = 0, length;
    from += put_call(from, to, bytes, &at);
    while (*from && at + 1 < bytes) {
        size_t done = put_operator(from, to, bytes, &at);
        from += done;
        if (done) continue;
        const char *word = word_for(from, variables, &length);
        if (!word) {
            to[at++] = *from++;
            continue;
        }
        int n = snprintf(to + at, bytes - at, "%s", word);
        at += (size_t)n < bytes - at ? (size_t)n : bytes - at - 1;
        from += length;
    }
    to[at] = '\0';
}

void kolo_nccl_words(const char *text, char *out, size_t bytes)
{
    translate(text, false, out, bytes);
}

void kolo_nccl_errors_hold(bool hold)
{
    (void)(hold ? pthread_mutex_lock(&lock) : pthread_mutex_unlock(&lock));
}

static void keep(const char *text, bool logged)
{
    KOLO_NCCL_WHOLE;
    pthread_mutex_lock(&lock);
    bool again = logged || strcmp(last, text) == 0;
    snprintf(last, sizeof last, "%s", text);
    pthread_mutex_unlock(&lock);
    if (!again) kolo_warn("nccl", "%s", text);
}

ncclResult_t kolo_nccl_fail(ncclResult_t result, const char *fmt, ...)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    keep(text, false);
    return result;
}

/* One row per status, in its order. */
static const ncclResult_t results[] = {
    [KOLO_OK] = ncclSuccess,
    [KOLO_IN_PROGRESS] = ncclInProgress,
    [KOLO_ERR_INVALID_ARGUMENT] = ncclInvalidArgument,
    [KOLO_ERR_INVALID_USAGE] = ncclInvalidUsage,
    [KOLO_ERR_UNSUPPORTED] = ncclInvalidUsage,
    [KOLO_ERR_NO_MEMORY] = ncclSystemError,
    [KOLO_ERR_SYSTEM] = ncclSystemError,
    [KOLO_ERR_TIMEOUT] = ncclRemoteError, /* ncclTimeout is NCCL's for kernels of the device API */
    [KOLO_ERR_REMOTE] = ncclRemoteError,
    [KOLO_ERR_MISMATCH] = ncclInvalidUsage,
    [KOLO_ERR_ABORTED] = ncclInternalError,
    [KOLO_ERR_AUTH] = ncclRemoteError,
    [KOLO_ERR_PROTOCOL] = ncclRemoteError,
    [KOLO_ERR_INTERNAL] = ncclInternalError,
    [KOLO_ERR_PARTITION] = ncclRemoteError,
    [KOLO_ERR_REVOKED] = ncclInvalidUsage,
};

static ncclResult_t result_of(kolo_status_t status, const char *text, bool logged)
{
    char words[KOLO_ERROR_TEXT_BYTES];
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS) return results[status];
    translate(text, true, words, sizeof words);
    keep(words, logged);
    return (size_t)status < KOLO_COUNTOF(results) ? results[status] : ncclInternalError;
}

ncclResult_t kolo_nccl_result_text(kolo_status_t status, const char *text)
{
    return result_of(status, text, false);
}

ncclResult_t kolo_nccl_result_polled(kolo_status_t status, const char *text, _Atomic int *reported)
{
    return result_of(status, text, atomic_exchange(reported, (int)status) == (int)status);
}

ncclResult_t kolo_nccl_result(kolo_status_t status)
{
    if (KOLO_LIKELY(status == KOLO_OK)) return ncclSuccess;
    return kolo_nccl_result_text(status, kolo_error_text());
}

/* What clients know and some compare. */
static const char *const strings[ncclNumResults] = {
    [ncclSuccess] = "no error",
    [ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    [ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    [ncclInternalError] =
        "internal error (of Kolo, which stands in for NCCL here; ncclGetLastError() has the reason)",
    [ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
    [ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
    [ncclRemoteError] = "remote process exited or there was a network error",
    [ncclInProgress] = "NCCL operation in progress",
    [ncclTimeout] = "timeout",
};

const char *ncclGetErrorString(ncclResult_t result)
{
    return (unsigned)result < ncclNumResults ? strings[result] : "unknown result code";
}
KOLO_NCCL_TWIN(ncclGetErrorString, pncclGetErrorString);

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    pthread_mutex_lock(&lock);
    memcpy(shown, last, sizeof shown);
    pthread_mutex_unlock(&lock);
    return shown;
}
KOLO_NCCL_TWIN(ncclGetLastError, pncclGetLastError);
