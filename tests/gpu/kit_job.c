/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as threads, as processes, or all in one thread; where they meet, and how cases are counted. See kit.h. The
 * parent of processes never touches the driver, which works in no forked child: they start by exec.
 */
#include "kit.h"

#include <dirent.h>
#include <execinfo.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 60000

static kit_options_t options = {.ranks = 2, .devices = 0, .seed = 1, .limit_s = 300};
static kit_shared_t *shared;
static size_t (*room_of)(const kit_options_t *);
static void (*run_team)(kit_team_t *);
static uint64_t begun_ms;
static _Atomic bool quiet; /* after somebody has given up, what follows is noise */

/* ---- expectations, time ---- */

bool kit_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!atomic_load(&quiet)) fprintf(stderr, "%s:%d: %s\n", file, line, text);
    return false;
}

uint64_t kit_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t kit_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* ---- meeting ---- */

bool kit_leads(const kit_team_t *t)
{
    return t->ranks[0].rank == 0;
}

void kit_give_up(kit_team_t *t)
{
    atomic_store(&t->shared->ended, 1);
    atomic_store(&quiet, true);
}

bool kit_meet(kit_team_t *t)
{
    kit_shared_t *s = t->shared;
    int round = atomic_load(&s->round);
    if (atomic_fetch_add(&s->here, 1) + 1 == t->teams) {
        atomic_store(&s->here, 0);
        atomic_fetch_add(&s->round, 1);
        return !atomic_load(&s->ended);
    }
    uint64_t end = kit_now_ms() + PATIENCE_MS;
    for (int spins = 0; atomic_load(&s->round) == round; spins++) {
        if (atomic_load(&s->ended)) return false;
        if (spins < 1000) {
            sched_yield();
            continue;
        }
        kit_nap();
        if (kit_now_ms() < end) continue;
        KIT_FAIL("rank %d: a test has hung: the others do not come", t->ranks[0].rank);
        kit_give_up(t);
        return false;
    }
    return !atomic_load(&s->ended);
}

bool kit_case_end(kit_team_t *t, bool good, const char *name)
{
    kit_shared_t *s = t->shared;
    int slot = t->number++ & 1;
    if (!good) {
        atomic_store(&s->bad[slot], 1);
        fprintf(stderr, "rank %d: FAILED: %s\n", t->ranks[0].rank, name);
    }
    bool go_on = kit_meet(t);
    if (!kit_leads(t)) return go_on;
    if (atomic_exchange(&s->bad[slot], 0) || !go_on)
        atomic_fetch_add(&s->failed, 1);
    else
        atomic_fetch_add(&s->passed, 1);
    if (t->options->verbose) fprintf(stderr, "%6llu ms %s\n", (unsigned long long)(kit_now_ms() - begun_ms), name);
    return go_on;
}

/* ---- communicators ---- */

bool kit_comms_make(kit_team_t *t, const kolo_config_t *config)
{
    kit_shared_t *s = t->shared;
    bool good = true;
    int before = atomic_load(&s->ids);
    if (!kit_meet(t)) return false;
    if (kit_leads(t)) {
        good = KIT_OK(kolo_get_unique_id(&s->id));
        atomic_fetch_add(&s->ids, 1);
    }
    for (uint64_t end = kit_now_ms() + PATIENCE_MS; atomic_load(&s->ids) == before;) {
        if (kit_now_ms() > end || atomic_load(&s->ended)) return KIT_FAIL("no id came");
        kit_nap();
    }
    if (t->n > 1) good = KIT_OK(kolo_group_start()) && good;
    for (int i = 0; i < t->n; i++) {
        kolo_config_t own = *config;
        if (t->ranks[i].device >= 0) own.device = t->ranks[i].device;
        good = KIT_OK(kolo_comm_init_rank(&t->ranks[i].comm, t->ranks[i].nranks, s->id, t->ranks[i].rank, &own)) &&
               good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    if (!good) kit_give_up(t);
    return kit_meet(t);
}

/* One thread cannot finalize several, each of which waits for the others. */
void kit_comms_end(kit_team_t *t)
{
    kolo_status_t state = KOLO_OK;
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kolo_comm_t comm = t->ranks[i].comm;
        if (!comm) continue;
        if (t->n == 1 && kolo_comm_get_async_error(comm, &state) == KOLO_OK && state == KOLO_OK)
            good = KIT_OK(kolo_comm_finalize(comm)) && good;
        good = KIT_OK(kolo_comm_destroy(comm)) && good;
        t->ranks[i].comm = NULL;
    }
    if (!good) atomic_fetch_add(&t->shared->failed, 1);
}

/* ---- teams ---- */

static void *work(void *arg)
{
    kit_team_t *t = arg;
    bool good = true;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = kit_rank_open(r, options.host ? -1 : r->rank % options.devices, room_of(&options));
    }
    if (!good) {
        atomic_fetch_add(&t->shared->failed, 1);
        kit_give_up(t);
        return NULL;
    }
    /* Ranks of one context share its default streams: there the one's operation would stand before the other's. */
    bool share = options.ranks > options.devices && options.mode != KIT_PROCESSES;
    for (int i = 0; i < t->n && share && !options.host; i++)
        for (int s = 2; s < KIT_STREAMS; s++) t->ranks[i].streams[s] = t->ranks[i].streams[s - 2];
    run_team(t);
    if (atomic_load(&t->shared->ended)) return NULL; /* work may hang on streams: the process ends */
    for (int i = 0; i < t->n; i++) kit_rank_close(&t->ranks[i]);
    return NULL;
}

static void team_init(kit_team_t *t, int teams, kit_rank_t *ranks, int first, int n)
{
    *t = (kit_team_t){.options = &options, .shared = shared, .teams = teams, .n = n, .ranks = ranks};
    for (int i = 0; i < n; i++) ranks[i] = (kit_rank_t){.rank = first + i, .nranks = options.ranks};
}

static bool open_driver(void)
{
    int devices;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
           0); /* else threads that share a GPU hang in --stress on a real one */
    if (!kit_open(options.host, &devices)) return false;
    if (!options.devices || options.devices > devices) options.devices = devices;
    if (options.ranks > options.devices && !options.twice && !options.alone) setenv("KOLO_GPU_SHARED", "1", 0);
    return options.devices > 0;
}

static void run_threads(int teams)
{
    kit_team_t t[KIT_RANKS];
    kit_rank_t ranks[KIT_RANKS];
    pthread_t threads[KIT_RANKS];
    int each = options.ranks / teams;
    if (!open_driver()) {
        atomic_fetch_add(&shared->failed, 1);
        return;
    }
    for (int i = 0; i < teams; i++) {
        team_init(&t[i], teams, ranks + i * each, i * each, each);
        if (pthread_create(&threads[i], NULL, work, &t[i])) abort();
    }
    for (int i = 0; i < teams; i++) pthread_join(threads[i], NULL);
}

/* "2": so many hosts with about equally many ranks. "3+2": two, and how many ranks each has. */
static bool parse_hosts(const char *text)
{
    int n = 0;
    options.hosts = atoi(text);
    if (!strchr(text, '+')) return true;
    for (char *end; n < KIT_RANKS; text = end + 1) {
        options.host_ranks[n++] = (int)strtol(text, &end, 10);
        if (*end != '+') break;
    }
    options.hosts = n;
    return true;
}

int kit_host_of(int rank)
{
    int h = 0;
    if (!options.host_ranks[0]) return rank * options.hosts / options.ranks;
    for (int end = options.host_ranks[0]; end <= rank && h + 1 < options.hosts; end += options.host_ranks[h]) h++;
    return h;
}

static void run_child(int rank)
{
    kit_team_t t;
    kit_rank_t r;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (options.twice) setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    if (options.alone) {
        char device[16];
        snprintf(device, sizeof device, "%d", rank);
        setenv("CUDA_VISIBLE_DEVICES", device, 1);
    }
    if (options.hosts) {
        char host[32];
        snprintf(host, sizeof host, "host %d", kit_host_of(rank));
        setenv("KOLO_HOST_ID", host, 1);
    }
    team_init(&t, options.ranks, &r, rank, 1);
    if (!open_driver()) {
        atomic_fetch_add(&shared->failed, 1);
        kit_give_up(&t);
        return;
    }
    work(&t);
}

static void run_processes(char **argv, int argc, int fd)
{
    pid_t pids[KIT_RANKS];
    char *args[64], rank[KIT_RANKS][32], file[32];
    if (argc > 58) abort();
    snprintf(file, sizeof file, "--shared=%d", fd);
    for (int i = 0; i < options.ranks; i++) {
        snprintf(rank[i], sizeof rank[i], "--child=%d", i);
        memcpy(args, argv, sizeof *args * (size_t)argc);
        args[argc] = rank[i];
        args[argc + 1] = file;
        args[argc + 2] = NULL;
        pids[i] = fork();
        if (pids[i] < 0) abort();
        if (pids[i] > 0) continue;
        execv("/proc/self/exe", args);
        _exit(127);
    }
    for (int i = 0; i < options.ranks; i++) {
        int status;
        if (waitpid(pids[i], &status, 0) == pids[i] && status == 0) continue;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) continue; /* a test has done it; else others fail */
        fprintf(stderr, "the process of rank %d failed (status 0x%x)\n", i, (unsigned)status);
        atomic_fetch_add(&shared->failed, 1);
    }
}

/* ---- the program ---- */

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s [--ranks N] [--devices D] [--one-thread | --processes] [--host] [--quick] [--faults]\n"
            "       [--stress SECONDS] [--calls N] [--fresh N] [--programs N] [--places] [--soak N [--graph]]\n"
            "       [--order N] [--windows] [--clients] [--counts] "
            "[--vmm] [--seed S] "
            "[--limit SECONDS] [--hosts H | --hosts N+N...] [--twice] [--alone] "
            "[-v]\n"
            "KOLO_CUDA_LIBRARY names the driver; with more ranks than devices KOLO_GPU_SHARED=1 is set.\n",
            name);
    return 2;
}

static bool is_possible(void)
{
    if (options.hosts && options.mode != KIT_PROCESSES) {
        fprintf(stderr, "--hosts needs --processes: ranks of one process are on one host\n");
        return false;
    }
    return options.ranks >= 1 && options.ranks <= KIT_RANKS && options.devices >= 0;
}

/* Options that say yes to something. */
static bool parse_flag(int c)
{
    static const struct {
        int c;
        bool *on;
    } flags[] = {
        {'h', &options.host},   {'q', &options.quick},   {'f', &options.faults}, {'L', &options.places},
        {'g', &options.graph},  {'T', &options.twice},   {'A', &options.alone},  {'w', &options.windows},
        {'N', &options.counts}, {'O', &options.clients}, {'V', &options.vmm},    {'v', &options.verbose},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].c == c) return *flags[i].on = true;
    return false;
}

static bool parse(int argc, char **argv, int *child, int *fd)
{
    static const struct option longs[] = {
        {"ranks", 1, NULL, 'n'},     {"devices", 1, NULL, 'd'}, {"one-thread", 0, NULL, 'o'},
        {"processes", 0, NULL, 'p'}, {"host", 0, NULL, 'h'},    {"quick", 0, NULL, 'q'},
        {"faults", 0, NULL, 'f'},    {"stress", 1, NULL, 's'},  {"calls", 1, NULL, 'c'},
        {"seed", 1, NULL, 'S'},      {"limit", 1, NULL, 'l'},   {"child", 1, NULL, 'C'},
        {"shared", 1, NULL, 'F'},    {"verbose", 0, NULL, 'v'}, {"hosts", 1, NULL, 'H'},
        {"twice", 0, NULL, 'T'},     {"alone", 0, NULL, 'A'},   {"fresh", 1, NULL, 'r'},
        {"windows", 0, NULL, 'w'},   {"soak", 1, NULL, 'k'},    {"graph", 0, NULL, 'g'},
        {"vmm", 0, NULL, 'V'},       {"clients", 0, NULL, 'O'}, {"programs", 1, NULL, 'P'},
        {"places", 0, NULL, 'L'},    {"order", 1, NULL, 'K'},   {"counts", 0, NULL, 'N'},
        {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "v", longs, NULL)) != -1;) {
        long long number = optarg ? atoll(optarg) : 0;
        if (parse_flag(c)) continue;
        switch (c) {
        case 'n':
            options.ranks = (int)number;
            break;
        case 'd':
            options.devices = (int)number;
            break;
        case 'o':
            options.mode = KIT_ONE_THREAD;
            break;
        case 'p':
            options.mode = KIT_PROCESSES;
            break;
        case 's':
            options.stress_s = atof(optarg);
            break;
        case 'K':
            options.order = (uint64_t)number;
            break;
        case 'r':
            options.fresh = (int)number;
            break;
        case 'P':
            options.programs = (int)number;
            break;
        case 'k':
            options.soak = (uint64_t)number;
            break;
        case 'c':
            options.calls = (uint64_t)number;
            break;
        case 'S':
            options.seed = (uint64_t)number;
            break;
        case 'l':
            options.limit_s = (int)number;
            break;
        case 'C':
            *child = (int)number;
            break;
        case 'F':
            *fd = (int)number;
            break;
        case 'H':
            if (!parse_hosts(optarg)) return false;
            break;
        default:
            return false;
        }
    }
    return optind == argc && is_possible();
}

static void show_stack(int signal)
{
    void *frames[64];
    (void)signal;
    int n = backtrace(frames, 64);      /* NOLINT(bugprone-signal-handler): the process ends then */
    backtrace_symbols_fd(frames, n, 2); /* NOLINT(bugprone-signal-handler) */
}

/* The threads of the library let SIGPROF in, and no other. */
void kit_show_threads(void)
{
    struct timespec moment = {0, 20000000};
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *e; threads && (e = readdir(threads));) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == gettid()) continue;
        fprintf(stderr, "process %d, thread %s\n", (int)getpid(), e->d_name);
        syscall(SYS_tgkill, getpid(), atoi(e->d_name), SIGPROF);
        nanosleep(&moment, NULL);
    }
    if (threads) closedir(threads);
}

/* Shows where each thread is, and ends the process. */
static void *too_late(void *arg)
{
    struct timespec limit = {options.limit_s, 0};
    (void)arg;
    while (nanosleep(&limit, &limit)) { /* kit_show_threads() woke it */
    }
    fprintf(stderr, "the run has taken longer than --limit allows\n");
    alarm(5); /* should this hang, too */
    kit_show_threads();
    _exit(124);
}

int kit_main(int argc, char **argv, size_t (*room)(const kit_options_t *), void (*fn)(kit_team_t *))
{
    int child = -1, fd = -1;
    pthread_t watchdog;
    void *frame;
    room_of = room;
    run_team = fn;
    begun_ms = kit_now_ms();
    if (!parse(argc, argv, &child, &fd)) return usage(argv[0]);
    backtrace(&frame, 1); /* loads what it needs */
    signal(SIGPROF, show_stack);
    if (pthread_create(&watchdog, NULL, too_late, NULL)) abort();
    if (fd < 0) {
        fd = memfd_create("kolo-gpu-test", 0);
        if (fd < 0 || ftruncate(fd, sizeof *shared) != 0) abort();
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) abort();
    if (child >= 0) {
        run_child(child);
        return 0;
    }
    if (options.mode == KIT_PROCESSES)
        run_processes(argv, argc, fd);
    else
        run_threads(options.mode == KIT_ONE_THREAD ? 1 : options.ranks);
    int passed = atomic_load(&shared->passed), failed = atomic_load(&shared->failed);
    if (passed + failed == 0) failed = 1; /* nothing was looked at */
    printf("%d passed, %d failed\n", passed, failed);
    fflush(NULL);
    _exit(failed ? 1 : 0);
}
