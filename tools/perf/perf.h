/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf: times the collectives of a job and checks their values. options.c reads the command line, ops.c knows
 * what each collective needs, measure.c times, report.c prints the table and JSON, plot.c draws. The files
 * inside*.c look into the library: which algorithm ran, what the simulator says of it, how the others compare.
 */
#ifndef KOLO_TOOLS_PERF_H
#define KOLO_TOOLS_PERF_H

#include <kolo/kolo.h>

#include <stdbool.h>
#include <stdio.h>

#define PERF_MAX_ROWS 512

typedef enum {
    PERF_ALL_REDUCE,
    PERF_REDUCE,
    PERF_BROADCAST,
    PERF_ALL_GATHER,
    PERF_REDUCE_SCATTER,
    PERF_ALL_TO_ALL,
    PERF_GATHER,
    PERF_SCATTER,
    PERF_SENDRECV,
    PERF_BARRIER,
    PERF_PUT, /* not one of `run` */
    PERF_COUNT
} perf_coll_t;
extern const char *const perf_coll_names[PERF_COUNT];
extern const char *const perf_type_names[KOLO_TYPE_COUNT];
extern const char *const perf_op_names[KOLO_OP_BUILTIN_COUNT];

typedef struct {
    bool colls[PERF_COUNT];
    uint64_t min_bytes, max_bytes, factor;
    kolo_type_t type;
    kolo_op_t op;
    int root;
    int in_place;      /* 0 out of place, 1 in place, 2 both */
    int iters, warmup; /* iters 0: from the size */
    bool check, rotate, every_algorithm;
    bool gpu, graph;
    int seconds; /* of --every-algorithm; 0: as long as it takes */
    const char *json, *plot, *table;
} perf_options_t;

typedef struct {
    kolo_comm_t comm; /* whose collectives are timed */
    kolo_comm_t host; /* where ranks meet and compare: the same, or, with --gpu, one on the CPU */
    int rank, nranks;
    const perf_options_t *options;
} perf_job_t;

typedef struct {
    perf_coll_t coll;
    uint64_t bytes; /* S: what one rank holds of the larger buffer for all_gather and its like; see ops.c */
    uint64_t count;
    bool in_place;
    int iters;
    double min_us, median_us, p99_us, predicted_us;
    double algbw, busbw; /* GB/s by the median */
    long wrong;          /* elements over all ranks; -1 not checked */
    const char *algo;    /* what ran */
    double copy_share;   /* of the copy bound; 0: not known */
} perf_row_t;

/* ---- options.c ---- */
/* -1: go on, else the exit status. */
int perf_options_parse(int argc, char **argv, perf_options_t *options);
/* Says in one line what is wrong with the arguments; returns the exit status. */
int perf_bad(const char *what, const char *text);
bool perf_parse_size(const char *text, uint64_t *value); /* with K, M or G */

/* ---- ops.c ---- */
/* Elements of the call for a message of `bytes`, and how many of them src and dst hold. */
void perf_shape(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, uint64_t *count, uint64_t *src_count,
                uint64_t *dst_count);
kolo_status_t perf_call(const perf_job_t *job, perf_coll_t coll, const void *src, void *dst, uint64_t count,
                        void *stream);
/* Bytes of a call in one host with `local` of the ranks: those read from sources, each once, and those written to
 * destinations, each once. */
double perf_touched(const perf_job_t *job, perf_coll_t coll, uint64_t count, bool in_place, int local);
double perf_bus_factor(perf_coll_t coll, int nranks);
bool perf_has_in_place(perf_coll_t coll);
void *perf_in_place_src(const perf_job_t *job, perf_coll_t coll, void *dst, uint64_t count);
void perf_fill(const perf_job_t *job, perf_coll_t coll, void *src, uint64_t src_count, int rank);
/* Windows that puts go to: a destination is known by its address. Collective; NULL: not any more. */
void perf_put_windows(void *const *dst, const kolo_window_t *windows);
/* Elements of dst that are wrong on this rank. */
long perf_check(const perf_job_t *job, perf_coll_t coll, const void *dst, uint64_t count);

/* ---- measure.c ---- */
typedef struct {
    char *src[2], *dst[2];
    uint64_t count;
    bool on_gpu;
    kolo_window_t windows[2]; /* put: of the destinations */
} perf_buffers_t;
double perf_now_us(void);
/* Frees nothing on failure: call perf_buffers_free() in any case. */
kolo_status_t perf_buffers_make(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, perf_buffers_t *b);
void perf_buffers_free(perf_buffers_t *b);
/* times[i]: this rank's microseconds of call i, each from a barrier on. */
kolo_status_t perf_time_calls(const perf_job_t *job, perf_coll_t coll, perf_buffers_t *b, bool in_place, int warmup,
                              int iters, double *times);
/* times[i] becomes the slowest rank's; then in order of size. */
kolo_status_t perf_slowest_sorted(const perf_job_t *job, double *times, int n);
/* One call, and how many elements are wrong on all ranks. */
kolo_status_t perf_check_call(const perf_job_t *job, perf_coll_t coll, perf_buffers_t *b, bool in_place,
                              long *wrong);
kolo_status_t perf_measure(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, bool in_place, perf_row_t *row);

/* ---- inside.c ---- */
/* Must ranks of this host share cores? Then the text says which. */
bool perf_inside_shared(const perf_job_t *job, char *text, size_t bytes);

/* ---- inside_model.c ---- */
#define PERF_SHARE_FROM (1u << 20) /* rows from this many bytes on tell their share of the copy bound */
typedef struct perf_model perf_model_t;
/* Measures what the simulator needs: memcpy by size on all ranks at once, a barrier by lines and by a plan. All
 * ranks call it. perf_model_close() in any case. */
kolo_status_t perf_model_open(const perf_job_t *job, perf_model_t **model);
void perf_model_close(perf_model_t *model);
/* Rank 0, after the row's calls: algorithm, prediction, share of the copy bound. */
void perf_model_row(const perf_model_t *model, perf_row_t *row);

/* ---- inside_algos.c ---- */
/* The tuner's choice beside every other algorithm that can run, at each point. Exit status. */
int perf_every_algorithm(const perf_job_t *job);

/* inside.c: whether a file can be written (NULL: true), asked before the run: an hour of measuring is not to end in
 * a path that is wrong. A run that is stopped leaves no empty file behind. */
bool perf_can_write(const char *path);
FILE *perf_output(
    const char *path); /* empties it; follows no link of another user, waits for no reader; NULL: errno */

/* ---- report.c, plot.c ---- */
void perf_print_head(const perf_job_t *job, perf_coll_t coll);
void perf_print_row(const perf_job_t *job, const perf_row_t *row);
/* The line below the table. */
void perf_print_end(const perf_job_t *job, const perf_row_t *rows, size_t count);
int perf_write_json(const perf_job_t *job, const perf_row_t *rows, size_t count, const char *path);
int perf_write_plot(const perf_job_t *job, const perf_row_t *rows, size_t count, const char *path);

#endif
