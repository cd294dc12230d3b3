/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's variables, from the environment and from its configuration files, handed to Kolo's parameters. A parameter
 * of Kolo's that is set goes before the variable of NCCL's that means it.
 */
#include "nccl/env.h"
#include "nccl/layer.h"

#include "base/file/fds.h"
#include "base/log.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#define FILE_LINES 4096 /* of a configuration file at most */
#define LINE_BYTES 4096
/* Clients of NCCL do without time limits, and look into the log when a job hangs. */
#define STALL_WARN_MS "1000"

/* What the files say, by row of the table; what is in the environment goes before it. */
static char **from_file;

/* Takes NAME=value, blanks around both; # begins a comment. */
static void take_line(char *line)
{
    line[strcspn(line, "#\r\n")] = '\0';
    char *value = strchr(line, '=');
    if (!value) return;
    char *end = value;
    *value++ = '\0';
    while (isspace((unsigned char)*line)) line++;
    while (end > line && isspace((unsigned char)end[-1])) *--end = '\0';
    while (isspace((unsigned char)*value)) value++;
    for (end = value + strlen(value); end > value && isspace((unsigned char)end[-1]);) *--end = '\0';
    const kolo_nccl_env_t *row = kolo_nccl_env_find(line, strlen(line));
    if (!row) {
        if (strncmp(line, "NCCL_", 5) == 0)
            kolo_warn("nccl", "unknown variable %.64s in a configuration file", line);
        return;
    }
    char **slot = &from_file[row - kolo_nccl_env_table];
    if (!*slot) *slot = strdup(value); /* read once: lives as long as the process */
}

static void take_file(const char *path)
{
    char line[LINE_BYTES];
    struct stat is;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe must not hold us up */
    FILE *f = fd >= 0 && fstat(fd, &is) == 0 && S_ISREG(is.st_mode) ? fdopen(fd, "r") : NULL;
    if (!f) kolo_fd_close(fd);
    if (!f) return;
    for (int i = 0; i < FILE_LINES && fgets(line, sizeof line, f); i++) take_line(line);
    fclose(f);
}

const char *kolo_nccl_env(const char *key)
{
    const char *text = kolo_environment(key);
    const kolo_nccl_env_t *row = kolo_nccl_env_find(key, strlen(key));
    if (text || !row || !from_file) return text;
    return from_file[row - kolo_nccl_env_table];
}

/* Finds the text of NCCL's variable for this parameter of Kolo's: the first that is set and says something. */
static const char *for_kolo(const char *key)
{
    if (strcmp(key, "KOLO_NCCL_WINDOWS") == 0) {
        const char *text = kolo_nccl_env("NCCL_WIN_ENABLE");
        return text && strcmp(text, "0") == 0 ? text : NULL;
    }
    if (strcmp(key, "KOLO_OP_TIMEOUT_MS") == 0) return kolo_environment("KOLO_NCCL_WAIT_MS");
    if (strcmp(key, "KOLO_STALL_WARN_MS") == 0) return STALL_WARN_MS;
    for (size_t i = 0; i < kolo_nccl_env_count; i++) {
        const kolo_nccl_env_t *row = &kolo_nccl_env_table[i];
        if (row->how != KOLO_NCCL_ENV_KOLO || strcmp(row->kolo, key) != 0) continue;
        const char *text = kolo_nccl_env(row->key);
        if (text) text = kolo_nccl_env_word(row, text);
        if (text) return text;
    }
    if (strcmp(key, "KOLO_QUIET_EXIT") == 0) return "1";
    if (strcmp(key, "KOLO_HOLD_MS") == 0)
        return "20"; /* who asks while a stream is not through hears of it first */
    return strcmp(key, "KOLO_GPU_PROFILE") == 0 ? "balanced" : NULL; /* a training step computes meanwhile */
}

const char *kolo_nccl_env_behind(const char *parameter, size_t length)
{
    static const char limit[] = "KOLO_OP_TIMEOUT_MS", ours[] = "KOLO_NCCL_WAIT_MS";
    if (length == sizeof limit - 1 && memcmp(parameter, limit, length) == 0)
        return kolo_environment(ours) && !kolo_environment(limit) ? ours : NULL;
    for (size_t i = 0; i < kolo_nccl_env_count; i++) {
        const kolo_nccl_env_t *row = &kolo_nccl_env_table[i];
        if (row->how != KOLO_NCCL_ENV_KOLO || strlen(row->kolo) != length) continue;
        if (memcmp(row->kolo, parameter, length) != 0 || !kolo_nccl_env(row->key)) continue;
        return kolo_environment(row->kolo) ? NULL : row->key;
    }
    return NULL;
}

kolo_status_t kolo_nccl_env_load(void)
{
    from_file = calloc(kolo_nccl_env_count, sizeof *from_file);
    if (!from_file) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for NCCL's variables");
    const char *path = kolo_environment("NCCL_CONF_FILE"), *home = kolo_environment("HOME");
    char name[1024];
    if (getauxval(AT_SECURE)) path = home = NULL; /* they are the caller's, who may do less than the program */
    if (path) {
        take_file(path);
    } else if (home && strlen(home) < sizeof name - 16) {
        snprintf(name, sizeof name, "%s/.nccl.conf", home);
        take_file(name);
    }
    take_file("/etc/nccl.conf");
    kolo_params_set_fallback(for_kolo);
    return KOLO_OK;
}

static void report(const char *key, size_t length)
{
    const kolo_nccl_env_t *row = kolo_nccl_env_find(key, length);
    if (!row)
        kolo_warn("nccl", "unknown variable %.*s in the environment: it has no effect", (int)length, key);
    else if (row->how == KOLO_NCCL_ENV_NONE)
        kolo_info("nccl", "%s has no effect: %s", row->key, row->help);
    else if (row->how == KOLO_NCCL_ENV_KOLO)
        kolo_info("nccl", "%s is Kolo's %s", row->key, row->kolo);
}

void kolo_nccl_env_report(void)
{
    kolo_environment_each("NCCL_", report);
}
