/* SPDX-License-Identifier: Apache-2.0
 *
 * What the GPU tests share: ranks as threads, as processes, or all driven by one thread; their devices, streams and
 * buffers; expectations. No test framework: the machines with GPUs have none. The same tests run on the CPU, with
 * --host, on host buffers and Kolo's own streams.
 */
#ifndef KOLO_TESTS_GPU_KIT_H
#define KOLO_TESTS_GPU_KIT_H

#include "mem/cuda/api.h"

#include <kolo/kolo.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIT_RANKS   16
#define KIT_STREAMS 4

typedef enum { KIT_THREADS, KIT_ONE_THREAD, KIT_PROCESSES } kit_mode_t;

typedef struct {
    int ranks, devices, hosts; /* hosts: that processes pretend to be on; 0: the one they are on */
    int host_ranks[KIT_RANKS]; /* how many ranks each of them has; 0: about equally many */
    kit_mode_t mode;
    bool host;  /* CPU communicators */
    bool quick; /* a few cases of each kind */
    bool verbose;
    double stress_s;
    uint64_t calls; /* of the chain test */
    uint64_t soak;  /* calls of the test that checks on the GPU */
    bool graph;     /* there: from graphs */
    int programs;   /* random ones */
    uint64_t order; /* calls of the test of sums in the order of ranks */
    int fresh;      /* calls of the test with memory that comes and goes */
    bool faults;
    bool windows;
    bool counts; /* calls of the driver */
    bool clients, places;
    bool vmm;   /* buffers over pieces that were mapped beside each other */
    bool alone; /* each process sees a GPU of its own, and no other */
    bool twice; /* all processes see one GPU alone, the same */
    uint64_t seed;
    int limit_s; /* of the whole run */
} kit_options_t;

/* Seen by all ranks: threads or processes. */
typedef struct {
    kolo_unique_id_t id;
    _Atomic int ids; /* how many were published */
    _Atomic int here, round, ended;
    _Atomic int bad[2]; /* something was wrong in this case; by the parity of its number */
    uint64_t hash[2][KIT_RANKS];
    _Atomic int passed, failed;
    _Atomic int last_step;
    _Atomic int point[4]; /* where a test has come to */
    struct {
        _Atomic int status;
        uint64_t at_ms;
        char text[512];
    } found[KIT_RANKS];
} kit_shared_t;

/* One rank: its communicator, device, streams and buffers. */
typedef struct {
    int rank, nranks;
    int device; /* -1: host */
    kolo_cu_ctx_t ctx;
    kolo_comm_t comm;
    void *streams[KIT_STREAMS]; /* two made here, the legacy default stream, the thread's own */
    size_t room;
    char *buffer;       /* on the device */
    char *image, *back; /* pinned host memory of the same length: what goes up, what came down */
    uint32_t *held;     /* a pinned word that a stream waits for */
} kit_rank_t;

/* What one thread drives: one rank, or all of them. */
typedef struct {
    const kit_options_t *options;
    kit_shared_t *shared;
    int teams; /* threads or processes that meet */
    int n;
    kit_rank_t *ranks;
    int number; /* of the case */
} kit_team_t;

/* ---- kit_device.c ---- */

/* Loads the driver; false with words where there is none. After fork() and exec() only. */
bool kit_open(bool host, int *devices);
int kit_devices(void); /* that the driver shows */
/* Allocations of other processes that are mapped here now; -1: only the fake driver counts them. */
int kit_foreign(void);
/* How often this function of the fake driver was called, or all (NULL); -1: it is a real one. */
long kit_calls(const char *function);
int kit_imported(void); /* pieces of others, with what communicators map always */
/* The driver's functions beyond those that Kolo uses; NULL on the host. */
const kolo_cuda_api_t *kit_cuda(void);
bool kit_rank_open(kit_rank_t *r, int device, size_t room);
void kit_rank_close(kit_rank_t *r);
/* The rank's context becomes current. */
void kit_enter(const kit_rank_t *r);
/* No context is. */
void kit_leave(const kit_rank_t *r);
/* Device memory by itself. */
void *kit_alloc(const kit_rank_t *r, size_t bytes);
void kit_free(const kit_rank_t *r, void *p);
/* Memory that the host may touch, too; of a pool, or of a graph in a capture. NULL: none. */
void *kit_alloc_managed(const kit_rank_t *r, size_t bytes);
void *kit_alloc_queued(const kit_rank_t *r, size_t bytes, void *stream);
bool kit_free_queued(const kit_rank_t *r, void *p, void *stream);
/* In a stream's order: buffer[at, at + bytes) from image, or to back. */
bool kit_upload(kit_rank_t *r, size_t at, size_t bytes, void *stream);
bool kit_download(kit_rank_t *r, size_t at, size_t bytes, void *stream);
bool kit_sync(const kit_rank_t *r, void *stream);
/* As kit_upload() and kit_download(), between the begin of image or back and device memory of other allocations. */
bool kit_put(kit_rank_t *r, kolo_cu_ptr_t p, size_t bytes, void *stream);
bool kit_fetch(kit_rank_t *r, kolo_cu_ptr_t p, size_t bytes, void *stream);
/* A kernel of the tests, with one struct of arguments. */
bool kit_kernel(const kit_rank_t *r, const void *image, const char *name, kolo_cu_func_t *function);
bool kit_launch(const kit_rank_t *r, kolo_cu_func_t function, unsigned blocks, void *args, void *stream);
/* NULL: it could not be made. */
void *kit_stream_new(const kit_rank_t *r);
void kit_stream_end(const kit_rank_t *r, void *stream);
bool kit_stream_wait(const kit_rank_t *r, void *stream, kolo_cu_event_t event);
/* What is queued on the stream from here to there becomes the plan of a graph. */
bool kit_capture(const kit_rank_t *r, void *stream);
bool kit_captured(const kit_rank_t *r, void *stream, void **plan);
bool kit_capture_lost(const kit_rank_t *r, void *stream);      /* ends one that should have failed */
bool kit_graph(const kit_rank_t *r, void *plan, void **graph); /* while this thread captures nothing */
bool kit_replay(const kit_rank_t *r, void *graph, void *stream);
void kit_graph_end(void *graph);
/* The rank's context is current. */
bool kit_event_new(kolo_cu_event_t *event);
bool kit_event_record(kolo_cu_event_t event, void *stream);
kolo_status_t kit_event_query(kolo_cu_event_t event); /* as kit_query() */
void kit_event_end(kolo_cu_event_t event);
/* What is queued on the stream from here on waits until kit_let_go(). One stream of a rank at a time. */
bool kit_hold(const kit_rank_t *r, void *stream);
void kit_let_go(const kit_rank_t *r);
/* KOLO_OK: the stream is empty; KOLO_IN_PROGRESS: it is not. */
kolo_status_t kit_query(const kit_rank_t *r, void *stream);

/* ---- kit_job.c ---- */

/* Runs fn in every team and prints what came out: the exit status. */
int kit_main(int argc, char **argv, size_t (*room)(const kit_options_t *), void (*fn)(kit_team_t *));
/* Makes the communicators of a team. Collective over all teams. */
bool kit_comms_make(kit_team_t *t, const kolo_config_t *config);
void kit_comms_end(kit_team_t *t);
/* All teams come here. False: somebody has given up, or does not come. */
bool kit_meet(kit_team_t *t);
/* Nothing can go on after this. */
void kit_give_up(kit_team_t *t);
/* Ends a case: all teams meet, one counts it. False: end the run. */
bool kit_case_end(kit_team_t *t, bool good, const char *name);
bool kit_leads(const kit_team_t *t);
int kit_host_of(int rank);   /* --hosts */
void kit_show_threads(void); /* where each of them is, but this one */

#define KIT_FAIL(...) kit_fail(__FILE__, __LINE__, __VA_ARGS__)
bool kit_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool kit_ok(const char *file, int line, const char *call, kolo_status_t status);
#define KIT_OK(call) kit_ok(__FILE__, __LINE__, #call, (call))
/* With kit_fail.c: the rank that failures name, -1 none; and how many there were. */
extern int kit_me, kit_failures;

uint64_t kit_now_ms(void);
void kit_nap(void); /* a moment, for polling */
/* Random numbers that all ranks draw alike. */
uint64_t kit_random(uint64_t *state);

#endif
