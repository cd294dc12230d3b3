/* SPDX-License-Identifier: Apache-2.0
 *
 * What kolorun was asked to do.
 */
#ifndef KOLO_TOOLS_KOLORUN_OPTIONS_H
#define KOLO_TOOLS_KOLORUN_OPTIONS_H

#include "kolorun_bind.h"
#include "kolorun_host.h"
#include "kolorun_hostlist.h"
#include "kolorun_input.h"

#define KOLORUN_STATUS_USAGE   2
#define KOLORUN_STATUS_TIMEOUT 124

typedef struct {
    int min, max;         /* min 0: not an elastic job; max 0: no limit */
    const char *discover; /* NULL: the hosts of -H stay */
    double every_s;       /* from an answer of the script to its next start */
    double patience_s;    /* how long it may run */
    double timeout_s;     /* how long fewer than min are borne with */
    double back_off_s, back_off_max_s;
    int reset_limit; /* -1: none */
} elastic_options_t;

typedef struct {
    int nranks;               /* 0: not given */
    kolorun_hostlist_t hosts; /* at least one; without -H this machine with as many slots as ranks */
    bool tagged, check_build;
    bool needless;             /* an option of mpirun that says what is so anyway */
    bool as_nccl;              /* the ranks' NCCL is Kolo's libnccl.so.2 */
    bool store;                /* a store for the ranks */
    const char *store_at;      /* for ranks on this host; NULL: none runs */
    int store_port;            /* for others */
    double timeout_s, grace_s; /* timeout 0: none */
    const char *output_dir;    /* NULL: none */
    int input;                 /* who gets our standard input: a rank, or KOLORUN_INPUT_ALL or _NONE */
    kolorun_bind_t bind;
    bool report_bindings;
    kolorun_way_t way;
    elastic_options_t elastic;
    char **env; /* K=V texts of -x */
    size_t nenv;
    char **argv;  /* the program */
    bool literal; /* it came after --: its words are never looked at */
} kolorun_options_t;

int kolorun_check_build(void); /* --check-build; returns the exit status */

/* Returns -1 to go on, else the exit status. */
int kolorun_options_parse(int argc, char **argv, kolorun_options_t *options);
void kolorun_options_fini(kolorun_options_t *options);

typedef struct {
    int rank, nranks; /* nranks 0: they change */
    int local_rank, local_size;
    int worker; /* of an elastic job: its number */
} kolorun_place_t;

/* The environment of one process, NULL at its end, to free with kolorun_env_free(): our own KOLO_ variables when it
 * runs on another host, those of -x, and its place. */
char **kolorun_env_make(const kolorun_options_t *options, bool remote, const kolorun_place_t *place);
void kolorun_env_free(char **env);

#endif
