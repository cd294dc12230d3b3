/* SPDX-License-Identifier: Apache-2.0
 *
 * The environment that a process of kolorun gets.
 */
#include "kolorun.h"
#include "kolorun_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What belongs to one process or one host only. */
static bool goes_along(const char *variable)
{
    static const char *const stays[] = {
        "KOLO_STORE=",      "KOLO_STORE_KEY_FILE=", "KOLO_STORE_AT=", "KOLO_RANK=",          "KOLO_NRANKS=",
        "KOLO_LOCAL_RANK=", "KOLO_LOCAL_SIZE=",     "KOLO_ID_FILE=",  "KOLO_COMM_SECRET_FD="};
    if (strncmp(variable, "KOLO_", 5) != 0) return false;
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++)
        if (strncmp(variable, stays[i], strlen(stays[i])) == 0) return false;
    return true;
}

static void add(char ***env, size_t *n, const char *variable)
{
    size_t bytes = strlen(variable) + 1;
    char *text = memcpy(kolorun_grow(NULL, bytes), variable, bytes);
    *env = kolorun_grow(*env, sizeof **env * (*n + 2));
    (*env)[(*n)++] = text;
    (*env)[*n] = NULL;
}

static void add_number(char ***env, size_t *n, const char *name, int value)
{
    char text[64];
    snprintf(text, sizeof text, "%s=%d", name, value);
    add(env, n, text);
}

char **kolorun_env_make(const kolorun_options_t *options, bool remote, const kolorun_place_t *place)
{
    char **env = NULL;
    size_t n = 0;
    for (char **e = environ; remote && e != NULL && *e != NULL; e++)
        if (goes_along(*e)) add(&env, &n, *e);
    if (place->nranks > 0) {
        add_number(&env, &n, "KOLO_RANK", place->rank);
        add_number(&env, &n, "KOLO_NRANKS", place->nranks);
    } else {
        add_number(&env, &n, "KOLO_ELASTIC_WORKER", place->worker);
    }
    add_number(&env, &n, "KOLO_LOCAL_RANK", place->local_rank);
    add_number(&env, &n, "KOLO_LOCAL_SIZE", place->local_size);
    if (options->store_at != NULL) {
        char text[64];
        if (remote)
            snprintf(text, sizeof text, "KOLO_STORE_AT=%d", options->store_port);
        else
            snprintf(text, sizeof text, "KOLO_STORE_AT=%s", options->store_at);
        add(&env, &n, text);
    }
    char bind[64];
    kolorun_bind_variable(options->bind, options->report_bindings, bind, sizeof bind);
    add(&env, &n, bind);
    for (size_t i = 0; i < options->nenv; i++) add(&env, &n, options->env[i]);
    return env;
}

void kolorun_env_free(char **env)
{
    for (char **e = env; e != NULL && *e != NULL; e++) free(*e);
    free(env);
}
