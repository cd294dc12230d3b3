/* SPDX-License-Identifier: Apache-2.0
 *
 * The agent of one host: kolorun_agent.c talks with kolorun, kolorun_launch.c starts processes and ends them.
 */
#ifndef KOLO_TOOLS_KOLORUN_AGENT_H
#define KOLO_TOOLS_KOLORUN_AGENT_H

#include "kolorun.h"
#include "kolorun_bind.h"
#include "kolorun_frame.h"

typedef struct {
    int id;
    pid_t pid;
    int pidfd;    /* -1 after the end */
    int pipes[2]; /* its stdout and stderr; -1 when closed */
} kolorun_child_t;

typedef struct {
    kolorun_child_t *children;
    int nchildren;
    pid_t guard;                 /* leader of the process group that all of them are in */
    int guard_pidfd, guard_pipe; /* closing the pipe, by whatever end of ours, makes the guard end the group */
    int start_read, start_write; /* children that cannot start their program say so here */
    char dir[256];               /* private, for the files of the processes */
    char error[512];             /* why a function returned false */
    sigset_t old_mask;
    struct rlimit old_files;
    kolorun_places_t *places; /* NULL: not looked at */
} kolorun_group_t;

typedef struct {
    int id, error;
} kolorun_start_error_t;

/* Makes the directory and the guard. */
bool kolorun_group_init(kolorun_group_t *group);
/* *child: the new process. */
bool kolorun_group_start(kolorun_group_t *group, int id, const kolorun_spec_t *spec, const kolorun_child_t **child);
/* To all processes and their children. */
void kolorun_group_signal(const kolorun_group_t *group, int sig);
/* The guard was found dead. */
void kolorun_group_guard_gone(kolorun_group_t *group);
/* Ends whatever is left, removes the directory, frees everything. */
void kolorun_group_fini(kolorun_group_t *group);

/* kolorun --agent; returns its exit status. */
int kolorun_agent_main(void);

#endif
