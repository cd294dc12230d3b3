/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines, to stderr or KOLO_LOG_FILE. An off level costs one load.
 *
 *     error  the job cannot go on, nobody else will say so
 *     warn   it goes on, but a person should look
 *     info   one line per decision (wire chosen, rank joined)
 *     debug  steps inside a decision
 *     trace  one line per message
 *
 * KOLO_LOG_FORMAT=text: "kolo <level> <host>:<pid> [<room>] text"; long: with time, version, rank and job in front;
 * json: the same as an object a line, for collectors.
 */
#ifndef KOLO_BASE_LOG_H
#define KOLO_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>

typedef enum {
    KOLO_LOG_NONE = 0,
    KOLO_LOG_ERROR = 1,
    KOLO_LOG_WARN = 2,
    KOLO_LOG_INFO = 3,
    KOLO_LOG_DEBUG = 4,
    KOLO_LOG_TRACE = 5
} kolo_log_level_t;

extern int kolo_log_level; /* the highest of any room; set by kolo_log_open(), read without a lock */

typedef enum { KOLO_LOG_TEXT, KOLO_LOG_LONG, KOLO_LOG_JSON } kolo_log_format_t;

#define KOLO_LOG_GRAMMAR "none|error|warn|info|debug|trace, then any of ROOM=LEVEL: info,wire=debug"
/* Sets what is logged and where. levels: KOLO_LOG_GRAMMAR, NULL = warnings. path: %p becomes the pid, %h the host;
 * NULL = stderr. */
kolo_status_t kolo_log_open(const char *levels, kolo_log_format_t format, const char *path);
/* Tells whether the text is in the grammar. */
bool kolo_log_levels_good(const char *levels);
/* Says which rank of which job this process is, for the long forms. job NULL: not known yet; once it is, later
 * calls change nothing: a process has many communicators. Any thread. */
void kolo_log_identify(int rank, const char *job);
/* Writes what stands before a line's text in another form than text's (libnccl.so.2). Before the first line. */
typedef int (*kolo_log_head_t)(char *line, size_t bytes, kolo_log_level_t level, const char *host,
                               const char *room);
/* Writes a text of Kolo's with other words, as much as fits. */
typedef void (*kolo_log_words_t)(const char *text, char *out, size_t bytes);
void kolo_log_set_head(kolo_log_head_t head, kolo_log_words_t words);
/* Makes a log file that cannot be opened a warning from now on, with the log on stderr: programs that were made for
 * another library rely on it. */
void kolo_log_allow_no_file(void);
void kolo_log_write(kolo_log_level_t level, const char *subsystem, const char *fmt, ...) KOLO_PRINTF(3, 4);

#define KOLO_LOG(level, subsystem, ...)                                                                            \
    do {                                                                                                           \
        if (KOLO_UNLIKELY((int)(level) <= kolo_log_level)) kolo_log_write((level), (subsystem), __VA_ARGS__);      \
    } while (0)
#define kolo_error(subsystem, ...) KOLO_LOG(KOLO_LOG_ERROR, subsystem, __VA_ARGS__)
#define kolo_warn(subsystem, ...)  KOLO_LOG(KOLO_LOG_WARN, subsystem, __VA_ARGS__)
#define kolo_info(subsystem, ...)  KOLO_LOG(KOLO_LOG_INFO, subsystem, __VA_ARGS__)
#define kolo_debug(subsystem, ...) KOLO_LOG(KOLO_LOG_DEBUG, subsystem, __VA_ARGS__)
#define kolo_trace(subsystem, ...) KOLO_LOG(KOLO_LOG_TRACE, subsystem, __VA_ARGS__)

#endif
