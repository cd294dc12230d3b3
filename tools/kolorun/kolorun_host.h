/* SPDX-License-Identifier: Apache-2.0
 *
 * A host on which processes are started: this machine, or another over ssh; the same calls for both. On each host
 * one agent runs (kolorun --agent), connected by its standard input and output. It starts processes, hands on what
 * they print, tells how they ended, and ends all that is left of them when its input ends, by whatever end of ours,
 * kill -9 included. A guard beside it does the same should the agent be killed.
 *
 * The processes of a host share a private directory (mode 0700); KOLO_ID_FILE in their environment names a file in
 * it. Whatever file appears there on one host, kolorun_host_put_file() can lay beside it on the others: that is how
 * the unique id travels, over the connections of ssh and not over command lines or environments. Nothing of a
 * program's environment is on a command line either.
 *
 * No function waits, except close. One thread; the caller's loop polls what kolorun_host_polls() gives it.
 */
#ifndef KOLO_TOOLS_KOLORUN_HOST_H
#define KOLO_TOOLS_KOLORUN_HOST_H

#include "kolorun_frame.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

typedef struct kolorun_host kolorun_host_t;

/* What happened, reported by kolorun_host_progress(). id is the one given to kolorun_host_start(). */
typedef struct {
    void (*started)(void *arg, kolorun_host_t *host, int id, int pid);
    void (*not_started)(void *arg, kolorun_host_t *host, int id, int error);
    /* stream is 1 or 2. What a process wrote comes before its end. */
    void (*output)(void *arg, kolorun_host_t *host, int id, int stream, const void *data, size_t bytes);
    void (*ended)(void *arg, kolorun_host_t *host, int id, int wait_status);
    /* How many bytes of its input a process has taken (-1: it reads no more). */
    void (*took)(void *arg, kolorun_host_t *host, int id, int bytes);
    /* A process left a file of this name in the host's directory. May be NULL. */
    void (*file)(void *arg, kolorun_host_t *host, const char *name, const void *data, size_t bytes);
    /* What the agent or ssh printed on its stderr: a line, without its end. */
    void (*said)(void *arg, kolorun_host_t *host, const char *line);
    /* The agent or the connection has ended, with all of its processes; comes once, nothing comes after it. */
    void (*lost)(void *arg, kolorun_host_t *host, const char *why);
} kolorun_host_events_t;

/* How to come to hosts; filled once by kolorun_way_init(). */
typedef struct {
    const char *ssh;    /* command of ssh with its options, split at blanks; NULL: "ssh" */
    const char *remote; /* path of kolorun on other hosts; NULL: the same path as here */
    char self[4096];    /* of this program */
    sigset_t mask;      /* what agents and their processes start with */
    struct rlimit files;
    int start_timeout_s; /* until an agent must have said hello; default 60 */
} kolorun_way_t;

bool kolorun_way_init(kolorun_way_t *way);

/* Is this name ours ("localhost", "127.0.0.1", "::1", the host's own name, an address of it)? Then no ssh is
 * used. */
bool kolorun_host_is_here(const char *name);

/* Starts the agent and returns at once; processes may be given to it at once too. name, events and way must stay.
 * NULL: why (in a sentence of at most why_bytes). */
kolorun_host_t *kolorun_host_open(const char *name, const kolorun_way_t *way, const kolorun_host_events_t *events,
                                  void *arg, char *why, size_t why_bytes);
const char *kolorun_host_name(const kolorun_host_t *host);
bool kolorun_host_is_local(const kolorun_host_t *host); /* no ssh between */

/* id: any number >= 0 that no living process of this host has. false: the arguments are too large. */
bool kolorun_host_start(kolorun_host_t *host, int id, const kolorun_spec_t *spec);
/* To one process, or (KOLORUN_ALL) to all of the host and their children. */
void kolorun_host_signal(kolorun_host_t *host, int id, int sig);
/* Stops and resumes the reading of stdout (1) or stderr (2) of all processes. */
void kolorun_host_pause(kolorun_host_t *host, int stream, bool on);
/* For the standard input of a process that was started with one; 0 bytes: its end. At most KOLORUN_INPUT_WINDOW
 * bytes may be under way until `took` has reported them. */
void kolorun_host_input(kolorun_host_t *host, int id, const void *data, size_t bytes);
void kolorun_host_put_file(kolorun_host_t *host, const char *name, const void *data, size_t bytes);

#define KOLORUN_HOST_POLLS 4
/* Fills KOLORUN_HOST_POLLS entries (fd -1: not used). */
void kolorun_host_polls(const kolorun_host_t *host, struct pollfd polls[KOLORUN_HOST_POLLS]);
/* Takes what came and calls events. Call it when any of the entries has an event, and when the time below is
 * over. */
void kolorun_host_progress(kolorun_host_t *host);
/* Seconds of the monotonic clock at which progress must be called next; 0: only when something comes. */
double kolorun_host_next_s(const kolorun_host_t *host);

/* Ends whatever still runs there and waits for the agent's end, at most `patience_s`; then ends the ssh hard. */
void kolorun_host_close(kolorun_host_t *host, double patience_s);
/* Several at once: they end side by side. */
void kolorun_hosts_close(kolorun_host_t **hosts, int count, double patience_s);

#endif
