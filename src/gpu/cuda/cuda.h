/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of GPU communicators, for its own files. limits.c: what goes which way; layout.c: the region;
 * kernels.c: modules and functions; choose.c: which family, which grid; buffers/: which buffers
 * others reach, which are good, which are left alone behind an abort; launch.c: the operations of exec.h;
 * messages.c: groups of sends and receives; engines/: what copy engines do without a kernel, puts and signals
 * (moves.c) and long operations (copies.c, words.c); waits.c: what kernels wait for; plan/: plans by a kernel that
 * interprets them.
 */
#ifndef KOLO_GPU_CUDA_CUDA_H
#define KOLO_GPU_CUDA_CUDA_H

#include "gpu/cuda/args.h"
#include "gpu/cuda/engines/copies.h"
#include "gpu/gpu.h"
#include "gpu/peers/exports.h"
#include "mem/cuda/order.h"

#define KOLO_CUDA_NEVER (UINT64_C(1) << 50) /* bytes */

typedef enum {
    KOLO_CUDA_LL,
    KOLO_CUDA_LL128,
    KOLO_CUDA_STAGED,
    KOLO_CUDA_TWO_STEP,
    KOLO_CUDA_CHAIN, /* a reduce from neighbour to neighbour, of types of more than two bytes */
    KOLO_CUDA_PLAN,  /* the interpreter of plan/ */
    KOLO_CUDA_FAMILIES
} kolo_cuda_family_t;

/* The kernels of one device; made at first use, kept for the life of the process. */
typedef struct {
    kolo_cu_module_t module;
    kolo_cu_func_t collective[KOLO_CUDA_FAMILIES][KOLO_EXEC_DEVICE_TYPES];
    kolo_cu_func_t messages, messages_few, messages_table, table, lift, products, product_sums, blend;
    bool early; /* they wait by themselves for the kernel before them */
} kolo_cuda_kernels_t;
kolo_status_t kolo_cuda_kernels(const kolo_cuda_device_t *device, uint64_t deadline_ns,
                                const kolo_cuda_kernels_t **kernels);
/* Implements kolo_cuda_tensor_fns_t's blend(), for types of floats (tensors/blend.c). */
kolo_status_t kolo_cuda_blend(const kolo_cuda_device_t *device, const kolo_blend_t *list, size_t n,
                              kolo_type_t type, double *room, kolo_cu_stream_t stream);
/* Tells whether kernels were compiled in. */
bool kolo_cuda_built(void);

typedef struct {
    int64_t blocks, stage_bytes, ll_bytes, ll128_bytes, two_bytes; /* 0: automatic */
    int64_t message_lines_bytes, give_bytes, pipe_bytes, chain_bytes, chain_row, copy_bytes, copy_piece;
    int64_t poison;
    bool early; /* kernels are launched beside the end of the one before them */
} kolo_cuda_options_t;
extern kolo_cuda_options_t kolo_cuda_options;
extern const kolo_param_table_t kolo_exec_cuda_params;

/* How many blocks of a role an operation on vectors takes from `bytes` bytes on. */
typedef struct {
    kolo_coll_t coll;
    uint64_t bytes;
    uint32_t blocks;
} kolo_cuda_blocks_t;

/* Up to how many bytes an operation goes which way, and how many blocks it takes at most (limits.c). */
typedef struct {
    uint64_t ll_all_reduce, ll_others;                      /* longest by lines */
    uint64_t ll128_all_reduce, ll128_others, message_lines; /* by lines of 128 bytes */
    uint64_t ll128_handed;                                  /* the same of a broadcast, all_gather, all_to_all */
    uint64_t ll128_two;                                     /* all_reduce in two steps by lines of 128 bytes */
    uint64_t ll128_reduce, ll128_two_reduce;                /* reduce likewise, in one and in two steps */
    uint64_t ll128_gather;                                  /* gather by lines of 128 bytes, if need be in pieces */
    uint64_t give, give_most;   /* all_reduces by stores alone in three phases, where buffers are apart */
    uint64_t pipe, pipe_reduce; /* shortest all_reduce and reduce by tiles (piped.cuh) */
    uint64_t chain;             /* shortest reduce from neighbour to neighbour (chain.cuh) */
    uint64_t copy;              /* shortest by copy engines alone (copies.c), of what a rank sends to another */
    uint32_t chain_blocks;      /* a third of those there */
    uint64_t chain_row;         /* bytes that all of them have under way there, about */
    uint32_t blocks, ll_blocks, ll128_blocks; /* blocks: of a role, where by_length has no other number */
    uint32_t most_blocks;                     /* of a role, of any operation */
    const kolo_cuda_blocks_t *by_length;      /* rising lengths of each collective; NULL: none */
    uint32_t nlengths;
} kolo_cuda_limits_t;
void kolo_cuda_limits(const kolo_exec_tuned_t *tuned, uint32_t nranks, kolo_cuda_limits_t *limits);

/* Returns how many blocks one of so many ranks may have on a GPU at the same time, since they wait for each other.
 */
uint32_t kolo_cuda_resident(int profile, int multiprocessors, int ranks);
/* Lays out a region. torn: lines of 128 bytes may not come whole, since ranks share a GPU or have no NVLink. */
void kolo_cuda_layout(uint32_t nranks, uint32_t resident, bool torn, const kolo_cuda_limits_t *limits,
                      kolo_cuda_layout_t *layout);

/* Cuts the stages of the first two phases for `blocks` blocks, at most l->blocks: all of a long operation meet
 * first, so that nobody is at work on an earlier one's. */
void kolo_cuda_cut_stages(const kolo_cuda_layout_t *l, uint32_t blocks, kolo_cuda_layout_t *cut);

/* Addresses that were found to be memory of the right GPU: so that a call need only ask the driver whether it is
 * still the same allocation. */
#define KOLO_CUDA_KNOWN 16
typedef struct {
    uintptr_t base;
    size_t bytes;
    uint64_t id;          /* kolo_cuda_buffer_id(), or the number of a run; by which others get it: 0 they do not */
    bool here;            /* not this GPU's own memory: only it is known to reach it */
    uint64_t seen;        /* by bit: ranks whose GPUs reach it, at the same address */
    uint64_t asked_ns;    /* when the driver was asked, if that was for a call by lines; else 0 */
    kolo_cuda_run_t *run; /* its pieces; NULL: it is one allocation */
} kolo_cuda_known_t;

/* plan/programs.c: collectives that a plan is forced for. NULL: none is. */
typedef struct kolo_cuda_plans kolo_cuda_plans_t;
struct kolo_cuda_state;
kolo_status_t kolo_cuda_plans_open(const kolo_exec_env_t *env, kolo_cuda_plans_t **plans);
void kolo_cuda_plans_close(kolo_cuda_plans_t *plans);
/* Returns how long a region of `bytes` bytes becomes with what plans need. */
uint64_t kolo_cuda_plans_room(kolo_cuda_plans_t *plans, uint32_t nranks, uint64_t bytes);
/* Runs the call by its plan. *launched: there is one for it. */
kolo_status_t kolo_cuda_plans_launch(struct kolo_cuda_state *s, const kolo_exec_call_t *call, bool *launched);

typedef struct kolo_cuda_state {
    const kolo_cuda_api_t *api;
    const kolo_cuda_device_t *device;
    const kolo_cuda_kernels_t *kernels;
    kolo_regions_t regions;
    kolo_exports_t *exports; /* to and from other processes; NULL: there are none */
    kolo_cuda_limits_t limits;
    kolo_cuda_layout_t layout;
    int profile;           /* KOLO_GPU_LATENCY and others */
    uint32_t start;        /* what counters begin at */
    bool by_pci, one_fold; /* see kolo_exec_env_t */
    bool counted;          /* as one of several ranks on its GPU (launch.c) */
    bool copied;           /* the newest piece is no kernel */
    uint64_t region_bytes; /* of all of it: layout, and what plans need */
    uint32_t resident;     /* blocks that this rank may have on its GPU at the same time */
    kolo_cuda_plans_t *plans;
    kolo_cuda_copies_t *copies;   /* NULL: none goes without a kernel */
    uint64_t copies_at;           /* of their stages in a region */
    kolo_cuda_mailbox_t *mailbox; /* pinned; KOLO_CUDA_STAGE bytes for settle.c behind it */
    kolo_cu_stream_t unsettled;   /* work of settle.c that did not end in time; NULL: none */
    bool outlived;                /* by graphs, after an end in order */
    kolo_mem_t adopted;           /* freed with the rest */
    struct kolo_cuda_state *next_kept;
    struct kolo_cuda_watched {
        uint64_t beat, seen_ns;
    } watched[KOLO_CUDA_RANKS]; /* the lines of `waiting` as they were last, and when they changed */
    kolo_cuda_order_t order;
    uint32_t launches; /* that were asked for, see kolo_cuda_tidy() */
    /* Places of `exports` change hands when what used them is complete: an event behind a launch tells, which is
     * recorded only while somebody waits for that. Clocks are those of kolo_exports_clock(). */
    kolo_cu_event_t mark;
    bool wants_mark, marked;
    uint64_t mark_clock, complete;
    bool capturing; /* the stream of the long operation that is being queued */
    kolo_cuda_known_t known[KOLO_CUDA_KNOWN];
    uint32_t next_known;
    uint64_t asked_ns;     /* now, while a call by lines is checked; else 0 */
    kolo_cu_stream_t asks; /* of the call whose memory is being checked; NULL: nobody knows */
    struct {
        kolo_cu_ptr_t all[32]; /* each at least twice as long as the one before */
        size_t lengths[32];
        size_t n, rows;         /* rows: of the last */
    } table;                    /* of groups with many messages */
    kolo_cuda_long_args_t args; /* what all calls have in common is filled in; short ones take args.c alone */
    kolo_cuda_p2p_many_t p2p;
} kolo_cuda_state_t;

typedef struct {
    uint32_t blocks, threads; /* of a launch; threads of each block */
} kolo_cuda_grid_t;

/* Fills the arguments of a collective from its call: first what the call says, then the family, then the grid
 * (choose.c). */
kolo_status_t kolo_cuda_fill(const kolo_exec_call_t *call, kolo_cuda_args_t *args);
kolo_status_t kolo_cuda_choose(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, kolo_cuda_args_t *args,
                               kolo_cuda_family_t *family, kolo_cuda_grid_t *grid);
/* Returns the longest all_reduce that can go in two steps by lines of 128 bytes, which share the room of one
 * step. */
uint64_t kolo_cuda_lines128_two_room(const kolo_cuda_layout_t *l);
/* Tells whether the call goes by lines: kernels load and store its buffers here, and nobody else has them mapped.
 */
bool kolo_cuda_goes_by_lines(const kolo_cuda_state_t *s, const kolo_exec_call_t *call);
/* Tells whether a long call whose buffers all reach goes by stores alone: what is for another rank's part is given
 * to it (direct.cuh). */
bool kolo_cuda_gives(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, const kolo_cuda_args_t *args);
/* Returns how many elements a reduce or a gather has in each of the pieces that it goes by lines in, one behind the
 * other; 0: it goes as a whole. */
uint64_t kolo_cuda_piece(const kolo_cuda_state_t *s, const kolo_exec_call_t *call);
/* Returns how many bytes of a part can go by lines at once, whatever the limits say. */
uint64_t kolo_cuda_lines_most(const kolo_cuda_state_t *s);
kolo_status_t kolo_cuda_choose_lines(const kolo_cuda_state_t *s, const kolo_exec_call_t *call,
                                     kolo_cuda_args_t *args, kolo_cuda_family_t *family, kolo_cuda_grid_t *grid);
/* Returns a map of the ranks of this process whose GPUs reach memory at `p` (expose.c). `legacy`: as in
 * kolo_cuda_reaches(). */
uint64_t kolo_cuda_seen_here(const kolo_cuda_state_t *s, const void *p, bool legacy);
/* Maps what others have offered and offers them `p`, before a long operation on `stream`. */
void kolo_cuda_offer(kolo_cuda_state_t *s, const void *p, uint64_t bytes, kolo_cu_stream_t stream);
/* Now and then, before any launch: what was freed is given up, by its owner and by those who have it mapped. */
#define KOLO_CUDA_TIDY_EACH 64 /* launches */
void kolo_cuda_tidy(kolo_cuda_state_t *s, kolo_cu_stream_t stream);
/* Queues a mark behind a launch on `stream`, if s->wants_mark. */
void kolo_cuda_mark(kolo_cuda_state_t *s, kolo_cu_stream_t stream);
/* Returns the address of this rank's memory as the GPU of rank `peer` sees it; 0 if it does not. */
uint64_t kolo_cuda_seen_by(const kolo_cuda_state_t *s, const void *p, uint64_t bytes, int peer);
/* Offers memory to others before it is used: exec.h's expect(). */
kolo_status_t kolo_cuda_expect(void *state, const void *p, uint64_t bytes);
/* Fills in where this rank's buffers are to others. */
void kolo_cuda_expose(kolo_cuda_state_t *s, const kolo_exec_call_t *call, kolo_cuda_long_args_t *args);
/* Puts a kernel on a stream, behind what this communicator has put on another one (launch.c). */
kolo_status_t kolo_cuda_put(kolo_cuda_state_t *s, kolo_cu_func_t function, kolo_cuda_grid_t grid, void *args,
                            kolo_cu_stream_t stream);
kolo_status_t kolo_cuda_put_copy(kolo_cuda_state_t *s, void *dst, const void *src, size_t bytes,
                                 kolo_cu_stream_t stream);
/* Checks that memory is this rank's GPU's, and that it is long enough (memory.c). */
kolo_status_t kolo_cuda_check_memory(kolo_cuda_state_t *s, const void *p, uint64_t bytes, const char *what);
/* Checks both buffers of a call; NULL is fine. by_lines: what was looked at a moment ago will do. */
kolo_status_t kolo_cuda_check_buffers(kolo_cuda_state_t *s, const void *src, uint64_t sends, const void *dst,
                                      uint64_t receives, bool by_lines);
void kolo_cuda_forget_memory(kolo_cuda_state_t *s);
/* Implements exec.h's move() (moves.c). */
kolo_status_t kolo_cuda_move(void *state, const kolo_exec_move_t *moves, size_t n);
/* Implements exec.h's waits() and awaited() (waits.c). */
void kolo_cuda_waits(void *state, kolo_exec_waits_t *waits);
void kolo_cuda_awaited(void *state, char *buf, size_t bytes);
/* Queues sends and receives, which have been checked, side by side (messages.c). */
kolo_status_t kolo_cuda_messages(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n);
void kolo_cuda_tables_free(kolo_cuda_state_t *s);
/* Behind an abort, when kernels here have ended: when it returns, peers do not store into this rank's buffers any
 * more. Waits a tenth of a second at most for them, and two seconds for the GPU's copies: if they do not end,
 * s->unsettled is where they are queued (settle.c). */
#define KOLO_CUDA_STAGE ((size_t)KOLO_CUDA_GRID * KOLO_CUDA_FLAG)
void kolo_cuda_settle(kolo_cuda_state_t *s);
/* Keeps what copies that are still queued will use until they are through: later communicators ask for one that is.
 * NULL: there is none (keep.c). */
void kolo_cuda_keep(kolo_cuda_state_t *s);
kolo_cuda_state_t *kolo_cuda_kept(void);

#endif
