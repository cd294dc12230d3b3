/* SPDX-License-Identifier: Apache-2.0
 *
 * Fail points: the rules, and the faults themselves. See failpoint.h.
 */
#include "base/failpoint.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RULES_MAX 8
#define DELAY_MS  50
#define LINGER_MS 300
#define NUMBER_MS 60000

typedef struct {
    char name[64];
    uint64_t hit, passed;
    kolo_fault_t fault;
    long number; /* -1: not given */
} rule_t;

_Atomic uint32_t kolo_fail_points_armed;
void (*_Atomic kolo_fail_point_hook)(const char *name, kolo_fault_t fault);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rule_t rules[RULES_MAX];
static size_t nrules;

extern const kolo_fail_point_t __start_kolo_fail_points[] __attribute__((visibility("hidden")));
extern const kolo_fail_point_t __stop_kolo_fail_points[] __attribute__((visibility("hidden")));

static const char *const fault_names[KOLO_FAULT_COUNT] = {
    [KOLO_FAULT_NONE] = "none",     [KOLO_FAULT_KILL] = "kill",   [KOLO_FAULT_STOP] = "stop",
    [KOLO_FAULT_EXIT] = "exit",     [KOLO_FAULT_DELAY] = "delay", [KOLO_FAULT_RESET] = "reset",
    [KOLO_FAULT_NOFILE] = "nofile", [KOLO_FAULT_NOMEM] = "nomem", [KOLO_FAULT_FORK] = "fork",
    [KOLO_FAULT_ORPHAN] = "orphan", [KOLO_FAULT_ERROR] = "error",
};

const kolo_fail_point_t *kolo_fail_point_at(size_t i)
{
    size_t count = (size_t)(__stop_kolo_fail_points - __start_kolo_fail_points);
    return i < count ? &__start_kolo_fail_points[i] : NULL;
}

const char *kolo_fault_name(kolo_fault_t fault)
{
    return (unsigned)fault < KOLO_FAULT_COUNT ? fault_names[fault] : "?";
}

kolo_fault_t kolo_fault_find(const char *name)
{
    for (int i = 1; i < KOLO_FAULT_COUNT; i++)
        if (strcmp(fault_names[i], name) == 0) return (kolo_fault_t)i;
    return KOLO_FAULT_NONE;
}

/* ---- the faults ---- */

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR) continue;
}

static void reset_one(int fd)
{
    struct sockaddr_storage sa;
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    socklen_t bytes = sizeof sa;
    int listens = 1, type = 0;
    if (getpeername(fd, (struct sockaddr *)&sa, &bytes) != 0) return;
    if (sa.ss_family != AF_INET && sa.ss_family != AF_INET6) return;
    bytes = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM) return;
    bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens) return;
    (void)connect(fd, &nobody, sizeof nobody); /* the peer gets a reset; the descriptor stays its owner's */
}

void kolo_fault_reset_sockets(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    for (int fd = 0; fd < (int)KOLO_MIN(limit.rlim_cur, (rlim_t)65536); fd++) reset_one(fd);
}

/* Has every number below the limit in use, so that no descriptor can be opened. */
void kolo_fault_fill_descriptors(void)
{
    struct rlimit limit;
    int lowest = dup(0);
    if (lowest < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    close(lowest);
    limit.rlim_cur = (rlim_t)lowest;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void fork_holder(long ms)
{
    /* Not fork(): its handlers take locks that this very thread may hold. */
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0) return;
    sleep_ms(ms);
    _exit(0);
}

static kolo_status_t act(const rule_t *rule)
{
    switch (rule->fault) {
    case KOLO_FAULT_ORPHAN:
        fork_holder(rule->number >= 0 ? rule->number : LINGER_MS);
        /* fall through */
    case KOLO_FAULT_KILL:
        kill(getpid(), SIGKILL);
        break;
    case KOLO_FAULT_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case KOLO_FAULT_EXIT:
        _exit(3);
    case KOLO_FAULT_DELAY:
        sleep_ms(rule->number >= 0 ? rule->number : DELAY_MS);
        break;
    case KOLO_FAULT_RESET:
        kolo_fault_reset_sockets();
        break;
    case KOLO_FAULT_NOFILE:
        kolo_fault_fill_descriptors();
        break;
    case KOLO_FAULT_FORK:
        fork_holder(rule->number >= 0 ? rule->number : LINGER_MS);
        break;
    case KOLO_FAULT_ERROR:
        return kolo_fail(KOLO_ERR_SYSTEM, "fail point %s: an error was asked for (KOLO_FAIL_POINT)", rule->name);
    default:
        break; /* KOLO_FAULT_NOMEM: the hook has done it */
    }
    return KOLO_OK;
}

kolo_status_t kolo_fail_point_pass(const char *name)
{
    rule_t due = {.fault = KOLO_FAULT_NONE};
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < nrules; i++)
        if (strcmp(rules[i].name, name) == 0 && ++rules[i].passed == rules[i].hit && due.fault == KOLO_FAULT_NONE)
            due = rules[i];
    pthread_mutex_unlock(&lock);
    void (*hook)(const char *, kolo_fault_t) = atomic_load(&kolo_fail_point_hook);
    if (hook) hook(name, due.fault);
    return due.fault == KOLO_FAULT_NONE ? KOLO_OK : act(&due);
}

/* ---- the rules ---- */

static bool exists(const char *name)
{
    for (size_t i = 0; kolo_fail_point_at(i); i++)
        if (strcmp(kolo_fail_point_at(i)->name, name) == 0) return true;
    return false;
}

/* Reads one rule, "name:hit:action[:number]"; changes the text. NULL: it is one. */
static const char *parse_rule(char *text, rule_t *rule)
{
    char *at = NULL, *end = NULL;
    const char *name = strtok_r(text, ":", &at), *hit = strtok_r(NULL, ":", &at),
               *action = strtok_r(NULL, ":", &at), *number = strtok_r(NULL, ":", &at);
    *rule = (rule_t){.number = -1};
    if (!name || !hit || !action || strtok_r(NULL, ":", &at)) return "name:hit:action or name:hit:action:number";
    if (!exists(name) || strlen(name) >= sizeof rule->name)
        return "the name of a fail point (kolo-info --fail-points)";
    snprintf(rule->name, sizeof rule->name, "%s", name);
    rule->hit = strtoull(hit, &end, 10);
    if (*end || rule->hit == 0 || *hit == '-') return "a hit from 1 on";
    rule->fault = kolo_fault_find(action);
    if (rule->fault == KOLO_FAULT_NONE)
        return "kill, stop, exit, delay, reset, nofile, nomem, fork, orphan or error";
    if (!number) return NULL;
    rule->number = strtol(number, &end, 10);
    return *end || rule->number < 0 || rule->number > NUMBER_MS ? "a number of milliseconds up to 60000" : NULL;
}

kolo_status_t kolo_fail_points_arm(const char *text)
{
    char copy[1024], *at = NULL;
    size_t n = 0;
    rule_t fresh[RULES_MAX];
    if (!text) text = "";
    if (strlen(text) >= sizeof copy)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "parameter KOLO_FAIL_POINT: expected at most %zu characters",
                         sizeof copy - 1);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *one = strtok_r(copy, ",", &at); one; one = strtok_r(NULL, ",", &at)) {
        const char *wanted = n < RULES_MAX ? parse_rule(one, &fresh[n++]) : "at most 8 rules";
        if (wanted)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "parameter KOLO_FAIL_POINT=\"%.64s\": expected %s", text,
                             wanted);
    }
    pthread_mutex_lock(&lock);
    memcpy(rules, fresh, n * sizeof *rules);
    nrules = n;
    pthread_mutex_unlock(&lock);
    if (n) atomic_store(&kolo_fail_points_armed, 1);
    return KOLO_OK;
}

void kolo_fail_points_watch(void)
{
    atomic_store(&kolo_fail_points_armed, 1);
}
