/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines, each written by one write(2) so that lines of several ranks do not mix. See log.h.
 */
#include "base/log.h"
#include "base/file/fds.h"
#include "base/file/limit.h"
#include "base/file/output.h"
#include "base/process.h"
#include "base/text/plain.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

int kolo_log_level = KOLO_LOG_WARN;

static const char *const level_names[] = {"none", "error", "warn", "info", "debug", "trace"};
#define ROOMS     32
#define ROOM_NAME 24
static struct {
    int others; /* level of the rooms that are not named */
    int count;
    struct {
        char name[ROOM_NAME];
        int level;
    } rooms[ROOMS];
} levels = {.others = KOLO_LOG_WARN};
static kolo_log_format_t log_format;
static int log_fd = STDERR_FILENO;
static struct {
    pthread_mutex_t lock;
    bool known;
    int rank;
    char job[64];
} identity = {.lock = PTHREAD_MUTEX_INITIALIZER};
KOLO_FORK_RENEWS(identity.lock)
static char host_name[64];
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

static void find_host(void)
{
    if (gethostname(host_name, sizeof host_name - 1) != 0) host_name[0] = '?';
    kolo_plain_copy(host_name, sizeof host_name, host_name, sizeof host_name);
}

static bool no_file_allowed;

void kolo_log_allow_no_file(void)
{
    no_file_allowed = true;
}

static kolo_status_t open_file(const char *path)
{
    char name[PATH_MAX];
    const char *p = path;
    size_t at = 0;
    for (; *p && at < sizeof name - 16; p++) {
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
    if (*p)
        return kolo_fail(KOLO_ERR_SYSTEM, "cannot open log file %.100s... (KOLO_LOG_FILE): the path is too long",
                         path);
    char why[sizeof name + 100];
    int fd = kolo_output_open(name, O_APPEND, why, sizeof why);
    if (fd < 0) return kolo_fail(KOLO_ERR_SYSTEM, "cannot open log file %s (KOLO_LOG_FILE)", why);
    if (log_fd > STDERR_FILENO) kolo_fd_close(log_fd);
    log_fd = fd;
    return KOLO_OK;
}

/* ---- levels ---- */

static int level_of(const char *text, size_t length)
{
    for (int i = KOLO_LOG_NONE; i <= KOLO_LOG_TRACE; i++)
        if (kolo_plain_is_word(text, length, level_names[i])) return i;
    return -1;
}

/* Takes one part of the list; false: it is not in the grammar. */
static bool take_part(const char *part, size_t length, bool keep)
{
    const char *equal = memchr(part, '=', length);
    size_t name = equal ? (size_t)(equal - part) : 0;
    int level = equal ? level_of(equal + 1, length - name - 1) : level_of(part, length);
    if (level < 0 || (equal && name == 0) || name >= ROOM_NAME) return false;
    for (size_t i = 0; i < name; i++)
        if (!isalnum((unsigned char)part[i]) && part[i] != '_') return false;
    if (!keep) return true;
    if (level > kolo_log_level) kolo_log_level = level;
    if (!equal) {
        levels.others = level;
    } else if (levels.count < ROOMS) {
        memcpy(levels.rooms[levels.count].name, part, name);
        levels.rooms[levels.count].name[name] = '\0';
        levels.rooms[levels.count++].level = level;
    }
    return true;
}

static bool take_levels(const char *text, bool keep)
{
    int parts = 0;
    for (const char *part = text;; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        if (!take_part(part, length, keep) || ++parts > ROOMS) return false;
        if (part[length] == '\0') return true;
    }
}

bool kolo_log_levels_good(const char *text)
{
    return take_levels(text, false);
}

static bool is_on(kolo_log_level_t level, const char *room)
{
    for (int i = 0; i < levels.count; i++)
        if (strcmp(levels.rooms[i].name, room) == 0) return (int)level <= levels.rooms[i].level;
    return (int)level <= levels.others;
}

kolo_status_t kolo_log_open(const char *text, kolo_log_format_t format, const char *path)
{
    levels.others = kolo_log_level = KOLO_LOG_WARN;
    levels.count = 0;
    log_format = format;
    if (text) {
        kolo_log_level = KOLO_LOG_NONE;
        if (!take_levels(text, true)) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "KOLO_LOG: " KOLO_LOG_GRAMMAR);
        if (strchr(text, '=') && levels.others > kolo_log_level) kolo_log_level = levels.others;
    }
    kolo_status_t status = path ? open_file(path) : KOLO_OK;
    if (status == KOLO_OK || !no_file_allowed) return status;
    kolo_warn("log", "%s: the log goes to stderr", kolo_error_text());
    kolo_error_clear();
    return KOLO_OK;
}

void kolo_log_identify(int rank, const char *job)
{
    pthread_mutex_lock(&identity.lock);
    if (!identity.job[0]) {
        identity.known = true;
        identity.rank = rank;
        snprintf(identity.job, sizeof identity.job, "%s", job ? job : "");
    }
    pthread_mutex_unlock(&identity.lock);
}

/* ---- lines ---- */

#define HEAD_BYTES 400
#define TEXT_OF(n) #n
#define TEXT(n)    TEXT_OF(n)
#define VERSION    TEXT(KOLO_VERSION_MAJOR) "." TEXT(KOLO_VERSION_MINOR) "." TEXT(KOLO_VERSION_PATCH)

/* Writes "2026-11-27T09:14:03.123456Z". */
static void print_time(char *buf, size_t bytes)
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(buf, bytes, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buf + n, bytes - n, ".%06ldZ", now.tv_nsec / 1000);
}

/* Writes " rank 3 of 11cd8633cad4264e", or as members of an object; "" if it is not known. */
static void print_identity(char *buf, size_t bytes)
{
    buf[0] = '\0';
    pthread_mutex_lock(&identity.lock);
    if (identity.known && log_format == KOLO_LOG_JSON)
        snprintf(buf, bytes, "\"rank\": %d, \"job\": \"%s\", ", identity.rank, identity.job);
    else if (identity.known)
        snprintf(buf, bytes, identity.job[0] ? " rank %d of %s" : " rank %d", identity.rank, identity.job);
    pthread_mutex_unlock(&identity.lock);
}

static kolo_log_head_t other_head;
static kolo_log_words_t other_words;

void kolo_log_set_head(kolo_log_head_t head, kolo_log_words_t words)
{
    other_head = head;
    other_words = words;
}

/* Writes what comes before the text; returns its bytes. */
static size_t print_head(kolo_log_level_t level, const char *room, char *line, size_t bytes)
{
    static const char *const formats[] = {
        [KOLO_LOG_LONG] = "%s kolo " VERSION " %s %s:%d%s [%s] ",
        [KOLO_LOG_JSON] = "{\"time\": \"%s\", \"version\": \"" VERSION "\", \"level\": \"%s\", \"host\": \"%s\", "
                          "\"pid\": %d, %s\"room\": \"%s\", \"text\": \"",
    };
    char when[40], who[120];
    int n;
    if (log_format == KOLO_LOG_TEXT && other_head) {
        n = other_head(line, bytes, level, host_name, room);
    } else if (log_format == KOLO_LOG_TEXT) {
        n = snprintf(line, bytes, "kolo %s %s:%d [%s] ", level_names[level], host_name, (int)getpid(), room);
    } else {
        print_time(when, sizeof when);
        print_identity(who, sizeof who);
        n = snprintf(line, bytes, formats[log_format], when, level_names[level], host_name, (int)getpid(), who,
                     room);
    }
    return n < 0 ? 0 : (size_t)n < bytes ? (size_t)n : bytes - 1;
}

/* Copies text as the inside of a JSON string; what is not ASCII goes as it is. Returns the bytes. */
static size_t put_json(char *to, size_t bytes, const char *text)
{
    size_t at = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && at + 7 < bytes; c++) {
        if (*c < 32 || *c == 127)
            at += (size_t)snprintf(to + at, bytes - at, "\\u%04x", *c);
        else if (*c == '"' || *c == '\\')
            at += (size_t)snprintf(to + at, bytes - at, "\\%c", *c);
        else
            to[at++] = (char)*c;
    }
    return at;
}

void kolo_log_write(kolo_log_level_t level, const char *room, const char *fmt, ...)
{
    char own[KOLO_ERROR_TEXT_BYTES], other[KOLO_ERROR_TEXT_BYTES], line[2 * KOLO_ERROR_TEXT_BYTES + HEAD_BYTES];
    va_list args;
    int saved = errno;
    if (!is_on(level, room)) return;
    pthread_once(&host_once, find_host);
    va_start(args, fmt);
    vsnprintf(own, sizeof own, fmt, args);
    va_end(args);
    if (other_words) other_words(own, other, sizeof other);
    char *text = other_words ? other : own;
    kolo_plain_lines(text);
    size_t n = print_head(level, room, line, HEAD_BYTES);
    if (log_format == KOLO_LOG_JSON) {
        n += put_json(line + n, sizeof line - n - 4, text);
        line[n++] = '"';
        line[n++] = '}';
    } else {
        size_t length = strlen(text);
        memcpy(line + n, text, length);
        n += length;
    }
    line[n++] = '\n';
    ssize_t written = kolo_file_write(log_fd, line, n);
    (void)written; /* a log that cannot be written must not fail the job */
    errno = saved;
}
