/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo against a real NCCL on the same GPUs, in the same processes, on the same buffers and streams, in turn. Both
 * libraries and the driver are loaded by dlopen; what is called of NCCL and of CUDA graphs is declared here, so it
 * builds without either.
 */
#ifndef KOLO_BENCH_PEERS_GPU_H
#define KOLO_BENCH_PEERS_GPU_H

#include <kolo/kolo.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST_RANKS    16
#define MOST_SIZES    64
#define MOST_VARIANTS 12

/* MIXED: a group of messages of many lengths between all pairs. ALTERNATE: a broadcast, a reduce_scatter, an
 * all_gather and an all_reduce of the same buffer, as one call. */
typedef enum {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    SENDRECV,
    MIXED,
    ALTERNATE,
    OPS
} op_t;
extern const char *const op_names[OPS];

/* In place as NCCL defines it: no all_to_all, no messages. */
typedef enum { OUT_OF_PLACE, IN_PLACE, PLACES } place_t;
extern const char *const place_names[PLACES];

/* From VARIANT on: Kolo with other parameters, as --variant names them. */
typedef enum { NCCL, KOLO, LIBRARIES, VARIANT = LIBRARIES } library_t;
#define MOST_LIBRARIES (VARIANT + MOST_VARIANTS)

typedef struct {
    int gpus;
    bool processes, graph, windows;
    size_t piece; /* not 0: buffers of pieces of so many bytes, mapped beside each other */
    bool ops[OPS], places[PLACES];
    bool odd;   /* counts that are no multiple of anything */
    int offset; /* elements from an aligned address to where buffers begin */
    uint64_t min, max, factor;
    kolo_type_t type;
    int rounds;      /* least, of each library at each size */
    int init_rounds; /* not 0: only what communicators cost is measured, so often */
    int product;     /* not 0: only a product of matrices of this order beside calls of `max` bytes is */
    double budget_s; /* of each library at each size */
    int limit_s;     /* of the whole run */
    const char *driver_path, *nccl_path, *cublas_path, *json_path;
    const char *variants[MOST_VARIANTS]; /* KEY=VALUE,... */
    int nvariants;
    bool alone; /* --nccl none */
} options_t;

/* Those that are measured: from first_library() to before end_of_libraries(). */
static inline library_t first_library(const options_t *o)
{
    return o->alone ? KOLO : NCCL;
}
static inline library_t end_of_libraries(const options_t *o)
{
    return (library_t)(VARIANT + o->nvariants);
}

/* ---- libs.c: results other than 0 end the process with words ---- */

typedef struct nccl_comm *nccl_comm_t;
typedef struct {
    char bytes[128];
} nccl_id_t;

typedef struct {
    int (*init)(unsigned flags);
    int (*error_name)(int error, const char **name);
    int (*driver_version)(int *version);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int bytes, int device);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*mem_alloc)(unsigned long long *p, size_t bytes);
    int (*mem_free)(unsigned long long p);
    int (*mem_info)(size_t *left, size_t *all);
    int (*memset8)(unsigned long long p, unsigned char value, size_t n, void *stream);
    int (*memcpy)(unsigned long long to, unsigned long long from, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_sync)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_elapsed)(float *ms, void *from, void *to);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    /* memory in pieces; types as in mem/cuda/api.h */
    int (*piece_create)(unsigned long long *handle, size_t bytes, const void *prop, unsigned long long flags);
    int (*piece_map)(unsigned long long p, size_t bytes, size_t offset, unsigned long long handle,
                     unsigned long long flags);
    int (*reserve)(unsigned long long *p, size_t bytes, size_t align, unsigned long long at,
                   unsigned long long flags);
    int (*allow)(unsigned long long p, size_t bytes, const void *who, size_t n);
    /* graphs; NULL where the driver has none */
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_launch)(void *exec, void *stream);
    int (*graph_exec_destroy)(void *exec);
    int (*graph_destroy)(void *graph);
} cuda_t;

typedef struct {
    int (*version)(int *version);
    int (*unique_id)(nccl_id_t *id);
    int (*init_rank)(nccl_comm_t *comm, int nranks, nccl_id_t id, int rank);
    int (*destroy)(nccl_comm_t comm);
    const char *(*error_string)(int result);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *src, void *dst, size_t count, int type, int op, nccl_comm_t comm, void *stream);
    int (*broadcast)(const void *src, void *dst, size_t count, int type, int root, nccl_comm_t comm, void *stream);
    int (*reduce)(const void *src, void *dst, size_t count, int type, int op, int root, nccl_comm_t comm,
                  void *stream);
    int (*all_gather)(const void *src, void *dst, size_t count, int type, nccl_comm_t comm, void *stream);
    int (*reduce_scatter)(const void *src, void *dst, size_t count, int type, int op, nccl_comm_t comm,
                          void *stream);
    int (*send)(const void *buf, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
    int (*recv)(void *buf, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
    /* NULL in older versions */
    int (*all_to_all)(const void *src, void *dst, size_t count, int type, nccl_comm_t comm, void *stream);
    int (*gather)(const void *src, void *dst, size_t count, int type, int root, nccl_comm_t comm, void *stream);
    int (*scatter)(const void *src, void *dst, size_t count, int type, int root, nccl_comm_t comm, void *stream);
    int (*mem_alloc)(void **p, size_t bytes);
    int (*mem_free)(void *p);
    int (*window_register)(nccl_comm_t comm, void *p, size_t bytes, void **window, int flags);
    int (*window_deregister)(nccl_comm_t comm, void *window);
} nccl_t;

typedef struct { /* libcublas */
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a,
                int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                int compute, int algo);
} cublas_t;

/* What is called of each Kolo. */
typedef struct {
    __typeof__(&kolo_get_last_error) get_last_error;
    __typeof__(&kolo_get_unique_id) get_unique_id;
    __typeof__(&kolo_comm_init_rank) init_rank;
    __typeof__(&kolo_comm_finalize) finalize;
    __typeof__(&kolo_comm_destroy) destroy;
    __typeof__(&kolo_group_start) group_start;
    __typeof__(&kolo_group_end) group_end;
    __typeof__(&kolo_all_reduce) all_reduce;
    __typeof__(&kolo_all_gather) all_gather;
    __typeof__(&kolo_reduce_scatter) reduce_scatter;
    __typeof__(&kolo_broadcast) broadcast;
    __typeof__(&kolo_reduce) reduce;
    __typeof__(&kolo_all_to_all) all_to_all;
    __typeof__(&kolo_gather) gather;
    __typeof__(&kolo_scatter) scatter;
    __typeof__(&kolo_send) send;
    __typeof__(&kolo_recv) recv;
} kolo_functions_t;

extern cuda_t cuda;
extern nccl_t nccl;
extern kolo_functions_t kolos[MOST_LIBRARIES]; /* from KOLO on */
extern cublas_t cublas;
void libraries_open(const options_t *o);
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void cuda_must(int result, const char *what);
void nccl_must(int result, const char *what);
void kolo_must(kolo_status_t status, const char *what);
void kolos_must(library_t library, kolo_status_t status, const char *what);
/* variants.c: loads the library once more for each variant, which reads its parameters then. */
void variants_open(const options_t *o);
#define CUDA_MUST(call) cuda_must((call), #call)
#define NCCL_MUST(call) nccl_must((call), #call)
#define KOLO_MUST(call) kolo_must((call), #call)

/* ---- what all ranks see, threads or processes ---- */

typedef struct {
    nccl_id_t nccl_id;
    kolo_unique_id_t kolo_id;
    _Atomic int here, round, ended;
    _Atomic int calls, rounds; /* of the measurement that comes */
    double us[2][MOST_RANKS];
    char doing[160];   /* what the watchdog names, */
    _Atomic int whose; /* and whose call it is: a library_t, or -1 */
} shared_t;

typedef struct {
    const options_t *o;
    shared_t *shared;
    int rank, turn;
    void *context, *stream;
    nccl_comm_t nccl;
    kolo_comm_t kolo, variants[MOST_VARIANTS];
    char *src, *dst; /* device */
    char *memory[2]; /* what they lie in */
    size_t bytes;    /* of each, from there */
    void *src_window, *dst_window;
} rank_t;

static inline kolo_comm_t kolo_comm_of(const rank_t *r, library_t library)
{
    return library < VARIANT ? r->kolo : r->variants[library - VARIANT];
}

/* All ranks; ends the process when one has given up. */
void meet(rank_t *r);

/* ---- calls.c ---- */

/* Elements of a call whose larger buffer has about `bytes`; *bytes becomes what it is. */
size_t count_of(const options_t *o, op_t op, uint64_t *bytes);
/* Of the longer one of its buffers. */
uint64_t room_of(const options_t *o, op_t op, uint64_t bytes);
/* Bytes that must cross a GPU's link over bytes of the call. */
double share_of(const options_t *o, op_t op);
bool has_place(op_t op, place_t place);
void call(const rank_t *r, library_t library, op_t op, place_t place, size_t count);
/* Where the call leaves its result on this rank, and how many bytes; none: 0. */
char *result_of(const rank_t *r, op_t op, place_t place, size_t count, size_t *bytes);

/* ---- values.c ---- */

/* Small integers, other ones on each rank. */
void fill_source(const rank_t *r);
/* Runs all and compares what they leave in the first and the last bytes of the result. */
void compare(rank_t *r, op_t op, place_t place, size_t count, uint64_t bytes);

/* ---- measure.c ---- */

typedef struct {
    op_t op;
    uint64_t bytes;
    double us[PLACES][MOST_LIBRARIES]; /* medians of the slowest rank's time for one call; 0: not asked for */
    int calls, rounds;                 /* of the last place */
} row_t;
/* Collective; the row is filled in on rank 0. */
void measure(rank_t *r, op_t op, uint64_t bytes, row_t *row);

/* ---- init.c ---- */

/* Collective; rank 0 prints. */
void measure_init(rank_t *r);

/* ---- product.c ---- */

/* How much slower a product of matrices becomes beside each call that is asked for, and how long that takes then:
 * by NCCL, by Kolo's two profiles and by its variants, in turn. Collective; rank 0 prints. */
void measure_product(rank_t *r);

/* ---- report.c ---- */

void report_begin(const options_t *o, const char *device);
void report_row(const options_t *o, const row_t *row);
void report_end(const options_t *o);

#endif
