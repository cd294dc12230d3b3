/* SPDX-License-Identifier: Apache-2.0
 *
 * The calling thread's last error. kolo_fail() and its kin write the text, without control characters, since words
 * of peers are in it, and log it; kolo_get_last_error(NULL) reads it.
 */
#include "base/status.h"
#include "base/log.h"
#include "base/text/plain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[KOLO_ERROR_TEXT_BYTES];

const char *kolo_error_text(void)
{
    return last_error;
}

void kolo_error_clear(void)
{
    last_error[0] = '\0';
}

const char *kolo_status_string(kolo_status_t status)
{
    switch (status) {
    case KOLO_OK:
        return "ok";
    case KOLO_IN_PROGRESS:
        return "in progress: not complete yet";
    case KOLO_ERR_INVALID_ARGUMENT:
        return "invalid argument: a value is out of its domain, nothing was done";
    case KOLO_ERR_INVALID_USAGE:
        return "invalid usage: the call is not allowed in this state";
    case KOLO_ERR_UNSUPPORTED:
        return "unsupported: not built in, or not possible on this machine";
    case KOLO_ERR_NO_MEMORY:
        return "out of memory";
    case KOLO_ERR_SYSTEM:
        return "system error: a system call failed";
    case KOLO_ERR_TIMEOUT:
        return "time-out: a deadline passed";
    case KOLO_ERR_REMOTE:
        return "remote error: a peer died or closed its connection";
    case KOLO_ERR_MISMATCH:
        return "mismatch: ranks called different operations, counts or types";
    case KOLO_ERR_ABORTED:
        return "aborted";
    case KOLO_ERR_AUTH:
        return "authentication failed: a peer does not know the job's secret";
    case KOLO_ERR_PROTOCOL:
        return "protocol error: bytes from outside make no sense";
    case KOLO_ERR_INTERNAL:
        return "internal error: a bug in Kolo";
    case KOLO_ERR_PARTITION:
        return "partition: the network has split and this side does not go on";
    case KOLO_ERR_REVOKED:
        return "revoked: the communicator can only be shrunk or ended";
    }
    return "unknown status";
}

static kolo_status_t store(kolo_status_t status, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    kolo_plain_lines(last_error);
    /* What is unsupported is mostly asked for to choose something else. */
    KOLO_LOG(status == KOLO_ERR_UNSUPPORTED ? KOLO_LOG_DEBUG : KOLO_LOG_INFO, "error", "%s: %s",
             kolo_status_string(status), last_error);
    return status;
}

kolo_status_t kolo_fail(kolo_status_t status, const char *fmt, ...)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return store(status, text);
}

kolo_status_t kolo_fail_errno(kolo_status_t status, int err, const char *fmt, ...)
{
    char text[KOLO_ERROR_TEXT_BYTES], reason[128];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", strerror_r(err, reason, sizeof reason));
    return store(status, text);
}

kolo_status_t kolo_fail_prefix(kolo_status_t status, const char *fmt, ...)
{
    char text[KOLO_ERROR_TEXT_BYTES], old[KOLO_ERROR_TEXT_BYTES];
    va_list args;
    memcpy(old, last_error, sizeof old);
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof text) snprintf(text + n, sizeof text - (size_t)n, "%s", old);
    memcpy(last_error, text, sizeof last_error);
    kolo_plain_lines(last_error);
    return status;
}
