/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines, each written by one write(2) so that lines of several ranks do not mix. See log.h.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kolo_log_level = KOLO_LOG_WARN;

static const char *const level_names[] = {"none", "error", "warn", "info", "debug", "trace"};
static int log_fd = STDERR_FILENO;
static char host_name[64];
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

static void find_host(void)
{
    if (gethostname(host_name, sizeof host_name - 1) != 0) host_name[0] = '?';
}

static kolo_status_t open_file(const char *path)
{
    char name[1024];
    size_t at = 0;
    for (const char *p = path; *p && at < sizeof name - 16; p++) {
        if (p[0] == '%' && p[1] == 'p') {
            at += (size_t)snprintf(name + at, sizeof name - at, "%d", (int)getpid());
            p++;
        } else if (p[0] == '%' && p[1] == 'h' && at + sizeof host_name < sizeof name - 16) {
            pthread_once(&host_once, find_host);
            at += (size_t)snprintf(name + at, sizeof name - at, "%s", host_name);
            p++;
        } else {
            name[at++] = *p;
        }
    }
    name[at] = '\0';
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot open log file %s (KOLO_LOG_FILE)", name);
    if (log_fd > STDERR_FILENO) close(log_fd);
    log_fd = fd;
    return KOLO_OK;
}

kolo_status_t kolo_log_open(kolo_log_level_t level, const char *path)
{
    kolo_log_level = (int)level;
    return path ? open_file(path) : KOLO_OK;
}

static int head(char *line, size_t bytes, kolo_log_level_t level, const char *host, const char *subsystem)
{
    return snprintf(line, bytes, "kolo %s %s:%d [%s] ", level_names[level], host, (int)getpid(), subsystem);
}
static kolo_log_head_t log_head = head;

void kolo_log_set_head(kolo_log_head_t fn)
{
    log_head = fn;
}

void kolo_log_write(kolo_log_level_t level, const char *subsystem, const char *fmt, ...)
{
    char line[KOLO_ERROR_TEXT_BYTES + 256];
    va_list args;
    int saved = errno;
    pthread_once(&host_once, find_host);
    int n = log_head(line, 256, level, host_name, subsystem);
    if (n < 0) return;
    if (n > 255) n = 255;
    va_start(args, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, args);
    va_end(args);
    size_t length = (size_t)n + (size_t)(m < 0 ? 0 : m);
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    ssize_t written = write(log_fd, line, length);
    (void)written; /* a log that cannot be written must not fail the job */
    errno = saved;
}
