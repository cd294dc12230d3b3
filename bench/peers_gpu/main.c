/* SPDX-License-Identifier: Apache-2.0
 *
 * Options, ranks as threads or processes, their buffers and communicators, and the watchdog that ends a run which
 * takes too long. See peers_gpu.h.
 */
#include "peers_gpu.h"

#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_SYMMETRIC 1 /* NCCL_WIN_COLL_SYMMETRIC */

static options_t options = {.gpus = 2,
                            .min = 8,
                            .max = (uint64_t)8 << 30,
                            .factor = 4,
                            .type = KOLO_FLOAT32,
                            .places = {true, true},
                            .rounds = 7,
                            .budget_s = 0.25,
                            .limit_s = 300,
                            .driver_path = "libcuda.so.1",
                            .nccl_path = "libnccl.so.2",
                            .cublas_path = "libcublas.so.13"};
static shared_t *shared;

void meet(rank_t *r)
{
    int round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->here, 1) + 1 == r->o->gpus) {
        atomic_store(&shared->here, 0);
        atomic_fetch_add(&shared->round, 1);
    }
    for (int spins = 1; atomic_load_explicit(&shared->round, memory_order_acquire) == round; spins++) {
        if (spins % 4096) continue;
        if (atomic_load(&shared->ended)) die("rank %d: another rank has ended", r->rank);
        sched_yield();
    }
}

/* Ends the process by itself when the time is over: a kernel that hangs holds every other way out. */
static void *watch(void *arg)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec end;
    (void)arg;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += options.limit_s;
    pthread_mutex_lock(&lock);
    while (pthread_cond_timedwait(&never, &lock, &end) == 0) continue;
    atomic_store(&shared->ended, 1);
    int whose = atomic_load(&shared->whose);
    fprintf(stderr, "peers-gpu: not done after %d s (--limit): %s", options.limit_s, shared->doing);
    if (whose >= VARIANT)
        fprintf(stderr, ", by variant %d", whose - VARIANT + 1);
    else if (whose >= 0)
        fprintf(stderr, ", by %s", whose == NCCL ? "NCCL" : "Kolo");
    fprintf(stderr, "\n");
    fflush(NULL);
    _exit(3);
}

/* ---- a rank ---- */

/* As torch's expandable segments. The end of the process gives it back. */
static void *allocate_pieces(const rank_t *r, size_t bytes)
{
    const struct {
        int type, handles, where, device;
        void *windows;
        unsigned char flags[8];
    } prop = {1, 1, 1, r->rank, NULL, {0}}; /* pinned, by descriptor, on the device */
    const struct {
        int where, device, flags;
    } who = {1, r->rank, 3};
    unsigned long long p, handle;
    size_t each = r->o->piece, all = (bytes + each - 1) / each * each;
    CUDA_MUST(cuda.reserve(&p, all, 0, 0, 0));
    for (size_t at = 0; at < all; at += each) {
        CUDA_MUST(cuda.piece_create(&handle, each, &prop, 0));
        CUDA_MUST(cuda.piece_map(p + at, each, 0, handle, 0));
    }
    CUDA_MUST(cuda.allow(p, all, &who, 1));
    return (void *)(uintptr_t)p; /* NOLINT: a driver's address */
}

static void allocate(rank_t *r)
{
    const options_t *o = r->o;
    size_t offset = (size_t)o->offset * kolo_type_size(o->type);
    unsigned long long p;
    r->bytes = 0;
    for (int op = 0; op < OPS; op++) {
        uint64_t bytes = o->max, room;
        if (!o->ops[op]) continue;
        count_of(o, (op_t)op, &bytes);
        room = room_of(o, (op_t)op, bytes) + offset;
        if (room > r->bytes) r->bytes = room;
    }
    void **windows[] = {&r->src_window, &r->dst_window};
    for (int i = 0; i < 2; i++) {
        void *memory;
        if (o->windows) {
            NCCL_MUST(nccl.mem_alloc(&memory, r->bytes));
            NCCL_MUST(nccl.window_register(r->nccl, memory, r->bytes, windows[i], WINDOW_SYMMETRIC));
        } else if (o->piece) {
            memory = allocate_pieces(r, r->bytes);
        } else {
            CUDA_MUST(cuda.mem_alloc(&p, r->bytes));
            memory = (void *)(uintptr_t)p; /* NOLINT: a driver's address */
        }
        r->memory[i] = memory;
    }
    r->src = r->memory[0] + offset;
    r->dst = r->memory[1] + offset;
}

static void give_back(rank_t *r)
{
    if (r->o->windows) {
        NCCL_MUST(nccl.window_deregister(r->nccl, r->src_window));
        NCCL_MUST(nccl.window_deregister(r->nccl, r->dst_window));
        NCCL_MUST(nccl.mem_free(r->memory[0]));
        NCCL_MUST(nccl.mem_free(r->memory[1]));
    } else if (!r->o->piece) {
        CUDA_MUST(cuda.mem_free((uintptr_t)r->memory[0]));
        CUDA_MUST(cuda.mem_free((uintptr_t)r->memory[1]));
    }
    meet(r);
    for (int l = KOLO; l < (int)end_of_libraries(r->o); l++) {
        kolos_must((library_t)l, kolos[l].finalize(kolo_comm_of(r, (library_t)l)), "comm_finalize()");
        kolos_must((library_t)l, kolos[l].destroy(kolo_comm_of(r, (library_t)l)), "comm_destroy()");
    }
    if (!r->o->alone) NCCL_MUST(nccl.destroy(r->nccl));
}

/* The communicator of each Kolo, one after the other. */
static void connect_kolos(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = r->rank;
    for (int l = KOLO; l < (int)end_of_libraries(r->o); l++) {
        kolo_comm_t *comm = l < VARIANT ? &r->kolo : &r->variants[l - VARIANT];
        if (r->rank == 0) kolos_must((library_t)l, kolos[l].get_unique_id(&r->shared->kolo_id), "get_unique_id()");
        meet(r);
        kolos_must((library_t)l, kolos[l].init_rank(comm, r->o->gpus, r->shared->kolo_id, r->rank, &config),
                   "comm_init_rank()");
        meet(r);
    }
}

static void begin(rank_t *r)
{
    int device;
    char name[128] = "";
    CUDA_MUST(cuda.device_get(&device, r->rank));
    CUDA_MUST(cuda.device_name(name, sizeof name, device));
    CUDA_MUST(cuda.context_retain(&r->context, device));
    CUDA_MUST(cuda.context_set(r->context));
    CUDA_MUST(cuda.stream_create(&r->stream, 1)); /* not blocking */
    if (r->o->init_rounds) return;
    if (r->rank == 0) {
        snprintf(shared->doing, sizeof shared->doing, "initialisation");
        atomic_store(&shared->whose, -1);
        if (!r->o->alone) NCCL_MUST(nccl.unique_id(&shared->nccl_id));
    }
    meet(r);
    if (!r->o->alone) NCCL_MUST(nccl.init_rank(&r->nccl, r->o->gpus, shared->nccl_id, r->rank));
    connect_kolos(r);
    allocate(r);
    fill_source(r);
    meet(r);
    if (r->rank == 0) report_begin(r->o, name);
}

static void *work(void *arg)
{
    rank_t *r = arg;
    const options_t *o = r->o;
    begin(r);
    if (o->init_rounds) {
        allocate(r);
        measure_init(r);
        return NULL;
    }
    if (o->product) {
        measure_product(r);
        give_back(r);
        return NULL;
    }
    for (int op = 0; op < OPS; op++) {
        uint64_t last = 0;
        for (uint64_t bytes = o->min; bytes <= o->max && o->ops[op]; bytes *= o->factor) {
            row_t row;
            uint64_t real = bytes;
            count_of(o, (op_t)op, &real);
            if (real == last) continue; /* a size below one element per rank */
            last = real;
            measure(r, (op_t)op, bytes, &row);
            if (r->rank == 0) report_row(o, &row);
        }
    }
    if (r->rank == 0) {
        report_end(o);
        snprintf(shared->doing, sizeof shared->doing, "the end");
        atomic_store(&shared->whose, -1);
    }
    give_back(r);
    return NULL;
}

/* ---- ranks ---- */

static void start_watch(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) || pthread_detach(thread)) die("no thread for the watchdog");
}

static void run_threads(void)
{
    static rank_t ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    start_watch();
    libraries_open(&options);
    for (int i = 0; i < options.gpus; i++) {
        ranks[i] = (rank_t){.o = &options, .shared = shared, .rank = i};
        if (pthread_create(&threads[i], NULL, work, &ranks[i])) die("no thread");
    }
    for (int i = 0; i < options.gpus; i++) pthread_join(threads[i], NULL);
}

static void run_child(int rank)
{
    rank_t r = {.o = &options, .shared = shared, .rank = rank};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_watch();
    libraries_open(&options);
    work(&r);
}

/* The parent touches neither driver nor library. A child that fails ends the others. */
static int run_processes(int argc, char **argv, int fd)
{
    char *args[64], rank[32], file[32];
    int failed = 0, status;
    if (argc > 60) die("too many arguments");
    snprintf(file, sizeof file, "--shared=%d", fd);
    for (int i = 0; i < options.gpus; i++) {
        snprintf(rank, sizeof rank, "--child=%d", i);
        memcpy(args, argv, sizeof *args * (size_t)argc);
        args[argc] = rank;
        args[argc + 1] = file;
        args[argc + 2] = NULL;
        pid_t pid = fork();
        if (pid < 0) die("no process");
        if (pid > 0) continue;
        execv("/proc/self/exe", args);
        _exit(127);
    }
    for (int i = 0; i < options.gpus; i++) {
        if (wait(&status) < 0) break;
        if (status == 0) continue;
        failed = 1;
        atomic_store(&shared->ended, 1);
    }
    return failed;
}

/* ---- options ---- */

static uint64_t size_of(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    switch (*end) {
    case 'k':
    case 'K':
        return (uint64_t)(v * 1024);
    case 'm':
    case 'M':
        return (uint64_t)(v * 1048576);
    case 'g':
    case 'G':
        return (uint64_t)(v * 1073741824);
    default:
        return (uint64_t)v;
    }
}

static kolo_type_t type_of(const char *name)
{
    static const struct {
        const char *name;
        kolo_type_t type;
    } types[] = {{"float", KOLO_FLOAT32},   {"half", KOLO_FLOAT16}, {"bfloat16", KOLO_BFLOAT16},
                 {"double", KOLO_FLOAT64},  {"int8", KOLO_INT8},    {"uint8", KOLO_UINT8},
                 {"int32", KOLO_INT32},     {"int64", KOLO_INT64},  {"e4m3", KOLO_FLOAT8_E4M3},
                 {"e5m2", KOLO_FLOAT8_E5M2}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) return types[i].type;
    die("--type %s is not known: float, half, bfloat16, double, int8, uint8, int32, int64, e4m3, e5m2", name);
}

static void usage(void)
{
    die("usage: peers-gpu [OP...] [--gpus N] [--processes] [--graph] [--windows] [--min B] [--max B] [--factor N]\n"
        "  [--type T] [--rounds N] [--budget SECONDS] [--limit SECONDS] [--nccl PATH] [--driver PATH] [--init "
        "ROUNDS] [--json "
        "FILE] [--product ORDER [--cublas PATH]] [--piece B] [--place in|out] [--odd] [--offset ELEMENTS] "
        "[--variant [library=FILE,]KEY=VALUE,...]...\n"
        "OP: all_reduce all_gather reduce_scatter all_to_all broadcast reduce gather scatter sendrecv mixed "
        "alternate; none: all of them. B: 8, 64K, 8G.\n"
        "Prints NCCL's time and Kolo's for each size and their ratio; NVLink multicast is off "
        "(NCCL_NVLS_ENABLE=0).\n"
        "--product: a product of square bfloat16 matrices (cuBLAS) beside each OP (all_reduce) of --max bytes.\n"
        "--variant: Kolo once more, another file of it or with these parameters, by turns with the others. --nccl "
        "none: without NCCL.\n"
        "--piece: buffers in pieces of so many bytes (a multiple of 2M) that the program maps beside each other.");
}

static void parse_ops(int argc, char **argv)
{
    for (int i = optind; i < argc; i++) {
        int op = 0;
        while (op < OPS && strcmp(op_names[op], argv[i]) != 0) op++;
        if (op == OPS) usage();
        options.ops[op] = true;
    }
    for (int op = 0; op < OPS && optind == argc && !options.product; op++) options.ops[op] = true;
}

static void parse(int argc, char **argv, int *child, int *fd)
{
    static const struct option longs[] = {
        {"gpus", 1, NULL, 'n'},   {"processes", 0, NULL, 'p'}, {"graph", 0, NULL, 'g'},  {"windows", 0, NULL, 'w'},
        {"min", 1, NULL, 'b'},    {"max", 1, NULL, 'e'},       {"factor", 1, NULL, 'f'}, {"type", 1, NULL, 't'},
        {"rounds", 1, NULL, 'r'}, {"budget", 1, NULL, 'B'},    {"limit", 1, NULL, 'l'},  {"nccl", 1, NULL, 'N'},
        {"json", 1, NULL, 'j'},   {"driver", 1, NULL, 'D'},    {"child", 1, NULL, 'C'},  {"shared", 1, NULL, 'F'},
        {"init", 1, NULL, 'I'},   {"product", 1, NULL, 'P'},   {"cublas", 1, NULL, 'L'}, {"piece", 1, NULL, 'V'},
        {"place", 1, NULL, 'O'},  {"odd", 0, NULL, 'd'},       {"offset", 1, NULL, 'o'}, {"variant", 1, NULL, 'v'},
        {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'n':
            options.gpus = atoi(optarg);
            break;
        case 'p':
            options.processes = true;
            break;
        case 'g':
            options.graph = true;
            break;
        case 'w':
            options.windows = true;
            break;
        case 'b':
            options.min = size_of(optarg);
            break;
        case 'e':
            options.max = size_of(optarg);
            break;
        case 'f':
            options.factor = size_of(optarg);
            break;
        case 't':
            options.type = type_of(optarg);
            break;
        case 'r':
            options.rounds = atoi(optarg);
            break;
        case 'I':
            options.init_rounds = atoi(optarg);
            break;
        case 'P':
            options.product = atoi(optarg);
            break;
        case 'V':
            options.piece = size_of(optarg);
            break;
        case 'O':
            if (strcmp(optarg, "in") != 0 && strcmp(optarg, "out") != 0) usage();
            options.places[strcmp(optarg, "in") == 0 ? OUT_OF_PLACE : IN_PLACE] = false;
            break;
        case 'd':
            options.odd = true;
            break;
        case 'o':
            options.offset = atoi(optarg);
            break;
        case 'L':
            options.cublas_path = optarg;
            break;
        case 'B':
            options.budget_s = atof(optarg);
            break;
        case 'l':
            options.limit_s = atoi(optarg);
            break;
        case 'v':
            if (options.nvariants == MOST_VARIANTS) die("at most %d --variant", MOST_VARIANTS);
            options.variants[options.nvariants++] = optarg;
            break;
        case 'N':
            options.nccl_path = optarg;
            options.alone = strcmp(optarg, "none") == 0;
            break;
        case 'D':
            options.driver_path = optarg;
            break;
        case 'j':
            options.json_path = optarg;
            break;
        case 'C':
            *child = atoi(optarg);
            break;
        case 'F':
            *fd = atoi(optarg);
            break;
        default:
            usage();
        }
    }
    if (options.init_rounds) options.max = 32u << 20; /* what it uses its communicators for */
    if (options.product && optind == argc) options.ops[ALL_REDUCE] = true;
    parse_ops(argc, argv);
    if (options.gpus < 1 || options.gpus > MOST_RANKS || options.min < 1 || options.max < options.min ||
        options.factor < 2 || options.offset < 0 || options.offset > 1024 || options.product < 0 ||
        options.product % 8 || options.rounds < 1 || options.rounds > 100 || options.limit_s < 1 ||
        (options.alone && (options.windows || options.init_rounds || options.product)))
        usage();
}

int main(int argc, char **argv)
{
    int child = -1, fd = -1, failed = 0;
    parse(argc, argv, &child, &fd);
    if (fd < 0) {
        fd = memfd_create("peers-gpu", 0);
        if (fd < 0 || ftruncate(fd, sizeof *shared) != 0) die("no shared memory");
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) die("no shared memory");
    if (child >= 0)
        run_child(child);
    else if (options.processes)
        failed = run_processes(argc, argv, fd);
    else
        run_threads();
    fflush(NULL);
    _exit(failed); /* libraries' threads are not waited for */
}
