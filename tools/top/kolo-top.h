/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of kolo-top share: the records of all ranks that were found, and what is done with them.
 */
#ifndef KOLO_TOOLS_KOLO_TOP_H
#define KOLO_TOOLS_KOLO_TOP_H

#include "diag/verdict.h"

#include <stdio.h>
#include <sys/stat.h>

enum { TOP_OK = 0, TOP_FAILED = 1, TOP_USAGE = 2 };

#define TOP_NO_JOB     "found no job of Kolo here (of other users only root can read them)"
#define TOP_PIDS       256
#define TOP_MOST_RANKS 4096u /* of one user; a record takes some 100 KB */
typedef struct {
    bool once, dump, json, join;
    bool has_job;
    uint64_t job;
    int npids, pids[TOP_PIDS];
    bool has_last;
    int64_t last; /* operations per rank in a dump */
    const char *save;
} top_options_t;

typedef struct { /* one rank of one communicator */
    kolo_record_view_t view;
    int pid;
    bool stopped;
    uint64_t now_ns; /* when it was read, by the clock of its host */
    uint64_t inode;  /* of the memory file, and which slot: the same record again next time */
    uint64_t fs;     /* the file system of the inode */
    uint32_t uid;    /* whose it is: of two users' records with one job's number, only one says the truth */
    uint32_t slot;
    kolo_record_op_t *ops; /* KOLO_RECORD_ENTRIES at most */
    size_t nops;
    kolo_record_t *raw; /* for a dump to a file; else NULL */
} top_rank_t;

typedef struct {
    top_rank_t *ranks; /* by job, then by user, then by rank; each once */
    size_t count, capacity;
    size_t left_out; /* of users who have more than TOP_MOST_RANKS */
    bool here;       /* of this host, now: whether a process lives can be asked */
} top_set_t;

/* kolo-top-scan.c: false: out of memory, or a file is bad, which is printed. */
bool top_scan(const top_options_t *options, top_set_t *set);
bool top_read_files(const top_options_t *options, char **paths, int count, top_set_t *set);
bool top_save(const char *path, const top_set_t *set);
void top_free(top_set_t *set);
/* Calls `fn` for each memory file of that name among the descriptors of a process, until it returns false: what
 * that returned last. The file cannot shrink. */
typedef bool (*top_memory_fn_t)(void *arg, int pid, int fd, const struct stat *st);
bool top_each_memory(int pid, const char *name, top_memory_fn_t fn, void *arg);
/* How many ranks from `first` on belong to one communicator. */
size_t top_job_size(const top_set_t *set, size_t first);
/* Fills `out` for each rank of the communicator that something can be said of; returns how many. Allocated. */
int top_verdict_ranks(const top_set_t *set, size_t first, size_t count, kolo_verdict_rank_t **out);

/* kolo-top-tensors.c: who has not submitted a named tensor, in one sentence that ends with '.'; returns for how
 * long the others have waited for it, 0: for nothing, and the text is "". */
uint64_t top_tensor_wait(const top_set_t *set, size_t first, size_t count, char *text, size_t bytes);
/* The tensor that the ranks agreed on last; NULL: there are none. */
const char *top_tensor_last(const top_set_t *set, size_t first, size_t count);

/* kolo-top-keys.c: keyed tensors that tasks of this host wait for, a line each; returns how many. */
int top_show_keys(FILE *out, const top_options_t *options);

/* kolo-top-dump.c */
int top_dump(const top_options_t *options, const top_set_t *set);

typedef enum { TOP_BY_STUCK, TOP_BY_OPS, TOP_BY_BYTES, TOP_BY_NAME, TOP_ORDERS } top_order_t;
typedef struct { /* what is on the screen */
    top_order_t order;
    char filter[64]; /* only jobs that have this in a column; "": all */
    bool typing;     /* the filter, just now */
    bool help;       /* instead of the list */
    bool quit;
} top_view_t;

/* kolo-top-show.c: the list of jobs; `before` is the state of a moment ago. */
void top_show(FILE *out, const top_set_t *set, const top_set_t *before, double seconds, const top_view_t *view);

/* kolo-top-screen.c: draws it each second until a key or a signal ends it. */
int top_screen(const top_options_t *options);
/* A key was pressed. */
void top_key(top_view_t *view, char key);
/* kolo-top-fit.c: draws as much of a text as fits, and a row about the keys, without an end of line. */
void top_fit(FILE *out, const char *text, size_t rows, size_t columns, const top_view_t *view);

#endif
