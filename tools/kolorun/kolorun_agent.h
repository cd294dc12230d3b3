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
    int pidfd;         /* -1 once its end was told; signals go by it */
    bool reaped;       /* it has ended; status and order are set, and pid may be another's */
    int status;        /* of waitpid */
    int order;         /* of the ends */
    int pipes[2];      /* its stdout and stderr; -1 when closed */
    kolorun_sink_t in; /* its stdin, what is not written yet with it; fd -1: none, or closed */
    bool in_over;      /* to be closed once all is written */
} kolorun_child_t;

typedef struct {
    kolorun_child_t *children;
    int nchildren;
    pid_t guard;                 /* leader of the process group that all of them are in; 0: it has been reaped */
    int guard_pidfd, guard_pipe; /* closing the pipe, by whatever end of ours, makes the guard end the group */
    int child_fd;                /* readable when a child of ours has ended, also one that lost its parent */
    int nreaped;
    int start_read, start_write; /* children that cannot start their program say so here */
    char dir[256];               /* private, for the files of the processes */
    int dir_lock;                /* of its .lock, locked for as long as agent or guard lives */
    char error[512];             /* why a function returned false */
    mode_t old_umask;            /* ours gives the owner all rights, whatever the user's takes away */
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
void kolorun_child_close_input(kolorun_child_t *child);
/* For pidfd_open(2) and pidfd_send_signal(2), of Linux 5.3 and 5.1: a signal by number hits whoever has the number
 * once its owner was reaped. The latter returns false for who has ended, and for -1. */
int kolorun_pidfd_open(pid_t pid);
bool kolorun_pidfd_signal(int pidfd, int sig);
/* To all processes and their children. */
void kolorun_group_signal(const kolorun_group_t *group, int sig);
/* Takes the ends of children that there are: of processes into their `reaped`, of others that had become ours. */
void kolorun_group_reap(kolorun_group_t *group);
/* The guard was found dead. */
void kolorun_group_guard_gone(kolorun_group_t *group);
/* Ends whatever is left, removes the directory, frees everything. */
void kolorun_group_fini(kolorun_group_t *group);

/* ---- kolorun_leftover.c ---- */
/* Kills and reaps all children of this process until none is left. */
void kolorun_kill_children(void);
/* kolorun's own last act: who came to it because agent and guard were killed has a moment, then ends. */
void kolorun_end_orphans(void);
/* Kills every process of ours with this variable, a text KEY=VALUE, in its environment. */
void kolorun_kill_marked(const char *mark);
/* Is its end under way, although it may take seconds (the memory of a large process)? */
bool kolorun_is_dying(pid_t pid);

/* kolorun --agent; returns its exit status. */
int kolorun_agent_main(void);

#endif
