/* SPDX-License-Identifier: Apache-2.0
 *
 * The words between a process and the launcher, and the directory through which they go. See state.h.
 */
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/file/limit.h"
#include "base/file/private.h"
#include "base/status.h"
#include "elastic/state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINK_PATH (PATH_MAX + 64)
#define KEPT      16 /* words of ours that stay for the launcher to read */

/* ---- words ---- */

/* Reads a whole number in [min, max] at *at and moves that behind it. */
static bool digits(const char **at, int64_t min, int64_t max, int64_t *value)
{
    const char *p = *at;
    int64_t v = 0;
    for (; *p >= '0' && *p <= '9' && p - *at < 10; p++) v = v * 10 + (*p - '0');
    if (p == *at || v < min || v > max) return false;
    *value = v;
    *at = p;
    return true;
}

/* Reads one behind one space. */
static bool number(const char **at, int64_t min, int64_t max, int64_t *value)
{
    const char *p = *at;
    if (*p++ != ' ' || !digits(&p, min, max, value)) return false;
    *at = p;
    return true;
}

static bool whole(const char **at, int min, int *value)
{
    int64_t v;
    if (!number(at, min, INT_MAX, &v)) return false;
    *value = (int)v;
    return true;
}

static bool plan_number(const char **at, uint32_t *plan)
{
    int64_t v;
    if (!number(at, 1, UINT32_MAX, &v)) return false;
    *plan = (uint32_t)v;
    return true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool id_of(const char **at, kolo_unique_id_t *id)
{
    const char *p = *at;
    if (*p++ != ' ') return false;
    for (int i = 0; i < KOLO_UNIQUE_ID_BYTES; i++, p += 2) {
        int high = hex(p[0]), low = high < 0 ? -1 : hex(p[1]);
        if (low < 0) return false;
        id->bytes[i] = (char)(high << 4 | low);
    }
    *at = p;
    return true;
}

void kolo_state_word_id(const kolo_unique_id_t *id, char text[2 * KOLO_UNIQUE_ID_BYTES + 1])
{
    static const char sixteen[] = "0123456789abcdef";
    for (int i = 0; i < KOLO_UNIQUE_ID_BYTES; i++) {
        text[2 * i] = sixteen[(unsigned char)id->bytes[i] >> 4];
        text[2 * i + 1] = sixteen[id->bytes[i] & 15];
    }
    text[2 * KOLO_UNIQUE_ID_BYTES] = '\0';
}

static bool list_of(const char **at, kolo_word_t *word)
{
    int64_t v;
    if (*(*at)++ != ' ') return false;
    for (word->nremove = 0; word->nremove < KOLO_STATE_LIST_MAX; (*at)++) {
        if (!digits(at, 0, UINT32_MAX, &v)) return false;
        word->remove[word->nremove++] = (uint32_t)v;
        if (**at != ',') return true;
    }
    return false;
}

static bool begins(const char **at, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(*at, name, n) != 0 || ((*at)[n] != ' ' && (*at)[n] != '\0')) return false;
    *at += n;
    return true;
}

bool kolo_state_word_parse(const char *line, size_t bytes, kolo_word_t *word)
{
    const char *at = line;
    bool good = false;
    memset(word, 0, offsetof(kolo_word_t, remove));
    if (begins(&at, "found")) {
        word->kind = KOLO_WORD_FOUND;
        good = plan_number(&at, &word->plan) && whole(&at, 1, &word->min) && whole(&at, 0, &word->add);
    } else if (begins(&at, "join")) {
        word->kind = KOLO_WORD_JOIN;
        good = plan_number(&at, &word->plan) && whole(&at, 1, &word->min) && whole(&at, 1, &word->rank) &&
               whole(&at, 2, &word->nranks) && word->rank < word->nranks && id_of(&at, &word->id);
    } else if (begins(&at, "add")) {
        word->kind = KOLO_WORD_ADD;
        good = plan_number(&at, &word->plan) && whole(&at, 1, &word->add);
    } else if (begins(&at, "remove")) {
        word->kind = KOLO_WORD_REMOVE;
        good = plan_number(&at, &word->plan) && list_of(&at, word);
    } else if (begins(&at, "min")) {
        word->kind = KOLO_WORD_MIN;
        good = whole(&at, 1, &word->min);
    } else if (begins(&at, "leave")) {
        word->kind = KOLO_WORD_LEAVE;
        good = true;
    }
    return good && at == line + bytes;
}

/* ---- the directory ---- */

/* Opens the link by its name and not by a descriptor, which would keep us from hearing that it is gone. */
kolo_status_t kolo_state_link_open(kolo_state_link_t *link, const char *id_file, uint32_t worker)
{
    const char *slash = id_file ? strrchr(id_file, '/') : NULL;
    size_t bytes = slash ? (size_t)(slash - id_file) : 0;
    if (bytes == 0 || bytes >= sizeof link->dir)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "KOLO_ELASTIC_WORKER is set but KOLO_ID_FILE=%s names no directory: kolorun sets both",
                         id_file ? id_file : "");
    memcpy(link->dir, id_file, bytes);
    link->dir[bytes] = '\0';
    link->worker = worker;
    link->maybe = true;
    link->watch = kolo_fd_own(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (link->watch < 0 || inotify_add_watch(link->watch, link->dir, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) < 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "inotify on the directory of the job, %s", link->dir);
    return KOLO_OK;
}

void kolo_state_link_close(kolo_state_link_t *link)
{
    if (link->watch >= 0) kolo_fd_close(link->watch);
    link->watch = -1;
}

static kolo_status_t put(kolo_state_link_t *link, const char *line, size_t bytes)
{
    char first[LINK_PATH], name[LINK_PATH];
    snprintf(first, sizeof first, "%s/.from.%u", link->dir, link->worker);
    snprintf(name, sizeof name, "%s/from.%u.%u", link->dir, link->worker, link->said);
    int fd = open(first, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "a file for the launcher, %s", first);
    (void)fchmod(fd, 0600); /* whatever the umask takes away */
    ssize_t n = kolo_file_write(fd, line, bytes);
    int why = n < 0 ? errno : ENOSPC;
    kolo_fd_close(fd);
    if (n != (ssize_t)bytes) return kolo_fail_errno(KOLO_ERR_SYSTEM, why, "a file for the launcher, %s", first);
    if (rename(first, name) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "a file for the launcher, %s", name);
    if (link->said >= KEPT) { /* long read */
        snprintf(name, sizeof name, "%s/from.%u.%u", link->dir, link->worker, link->said - KEPT);
        unlink(name);
    }
    link->said++;
    return KOLO_OK;
}

kolo_status_t kolo_state_link_say(kolo_state_link_t *link, const char *format, ...)
{
    char line[512];
    va_list args;
    if (link->watch < 0) return KOLO_OK;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof line)
        return kolo_fail(KOLO_ERR_INTERNAL, "a message to the launcher is too long");
    return put(link, line, (size_t)n);
}

/* Empties the queue of the watch. */
static kolo_status_t look(kolo_state_link_t *link)
{
    char buf[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n;
    while ((n = read(link->watch, buf, sizeof buf)) > 0) {
        link->maybe = true;
        for (const char *p = buf; p < buf + n; p += sizeof(struct inotify_event)) {
            const struct inotify_event *e = (const struct inotify_event *)(const void *)p;
            if (e->mask & IN_IGNORED)
                return kolo_fail(KOLO_ERR_SYSTEM,
                                 "the launcher (kolorun) has ended, and the job cannot go on without it");
            p += e->len;
        }
    }
    return KOLO_OK;
}

static kolo_status_t take(kolo_state_link_t *link, kolo_word_t *word, bool *got)
{
    char name[LINK_PATH];
    if (!link->maybe) return KOLO_OK;
    snprintf(name, sizeof name, "%s/to.%u.%u", link->dir, link->worker, link->heard);
    char why[LINK_PATH + 200];
    int fd = kolo_private_open(name, why, sizeof why);
    if (fd < 0 && errno == ENOENT) {
        link->maybe = false;
        return KOLO_OK;
    }
    if (fd < 0) return kolo_fail(KOLO_ERR_SYSTEM, "a file of the launcher: %s", why);
    ssize_t n = read(fd, link->line, sizeof link->line);
    kolo_fd_close(fd);
    unlink(name);
    if (n < 0 || n == (ssize_t)sizeof link->line)
        return kolo_fail(KOLO_ERR_PROTOCOL, "%s, a file of the launcher, cannot be read or is too long", name);
    link->line[n] = '\0';
    if (!kolo_state_word_parse(link->line, (size_t)n, word))
        return kolo_fail(KOLO_ERR_PROTOCOL, "the launcher has written \"%.60s\", which means nothing", link->line);
    link->heard++;
    *got = true;
    return KOLO_OK;
}

kolo_status_t kolo_state_link_hear(kolo_state_link_t *link, int timeout_ms, kolo_word_t *word, bool *got)
{
    uint64_t end = kolo_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * KOLO_NS_PER_MS;
    *got = false;
    if (link->watch < 0) return KOLO_OK;
    for (;;) {
        KOLO_TRY(look(link));
        KOLO_TRY(take(link, word, got));
        if (*got || timeout_ms == 0) return KOLO_OK;
        uint64_t now = kolo_now_ns();
        if (timeout_ms > 0 && now >= end) return KOLO_OK;
        struct pollfd p = {.fd = link->watch, .events = POLLIN};
        int left = timeout_ms < 0 ? -1 : (int)((end - now) / KOLO_NS_PER_MS) + 1;
        if (poll(&p, 1, left) < 0 && errno != EINTR) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "poll");
    }
}
