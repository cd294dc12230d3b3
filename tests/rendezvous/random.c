/* SPDX-License-Identifier: Apache-2.0
 *
 * Random runs of keyed tensors with faults: three tasks of this process send and receive on two threads while steps
 * are aborted and cleaned up early, receivers give up or are slow, connections are cut and tasks are restarted.
 * Whatever happens, each receive ends once, with a value that was sent under its key, in its step, and given to
 * nobody else, or with an error; each value is released once; and no descriptor stays.
 *
 *     rendezvous_random RUNS [SEED]        what fails prints its seed; RUNS 1 with that seed repeats it
 */
#include "base/test_time.h"

#include <kolo/rendezvous.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TASKS     3
#define STEPS     3
#define EDGES     1
#define OPS       60
#define PORT      7312
#define MOST      4096
#define INTO      (1u << 20) /* most values fit in */
#define OURS      0xc3
#define RUN_LIMIT 100 /* seconds, then the run counts as stuck */

static const char *const tasks[TASKS] = {"/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"};
static const char *const protocols[] = {"kolo+shm", "kolo+tcp", "kolo+buffered", "random+buffered+tcp"};
static char cluster[300];
static uint64_t seed;

/* ---- what is counted ---- */

typedef struct {
    _Atomic uint64_t where; /* hash of key and step */
    _Atomic int begun, ended, released, given;
    unsigned char *into; /* of some receives; NULL: Kolo makes the memory */
    bool failed;         /* it is ours again since then, and full of OURS */
} record_t;
static record_t receives[MOST], values[MOST];
static _Atomic int nreceives, nvalues, wrong;
static _Atomic long ended_well, ended_badly; /* of all runs */

static void complain(const char *what, int number)
{
    fprintf(stderr, "rendezvous_random: seed %llu: %s (%d)\n", (unsigned long long)seed, what, number);
    atomic_store(&wrong, 1);
}

static uint64_t hash(const char *text, uint64_t step)
{
    uint64_t h = 0xcbf29ce484222325ull ^ (step * 0x9e3779b97f4a7c15ull);
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
    return h;
}

static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static unsigned pick(uint64_t *state, unsigned n)
{
    return (unsigned)(next(state) % n);
}

/* ---- the tasks ---- */

typedef struct {
    pthread_rwlock_t lock; /* who restarts it holds it alone */
    kolo_server_t server;
    uint64_t incarnation, before;
} task_t;
static task_t team[TASKS];
static const char *protocol;

static void start(int i)
{
    static const char secret[] = "known to three tasks";
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    config.cluster = cluster;
    config.task = tasks[i];
    config.protocol = protocol;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    config.connect_timeout_ms = 20000;
    team[i].before = team[i].incarnation;
    if (kolo_server_create(&team[i].server, &config) != KOLO_OK || kolo_server_start(team[i].server) != KOLO_OK ||
        kolo_server_incarnation(team[i].server, tasks[i], 0, &team[i].incarnation) != KOLO_OK) {
        complain(kolo_get_last_error(NULL), i);
        exit(1);
    }
}

static kolo_status_t open_step(int task, uint64_t step, kolo_rendezvous_t *rendezvous)
{
    kolo_rendezvous_manager_t manager;
    kolo_status_t status = kolo_server_manager(team[task].server, &manager);
    return status == KOLO_OK ? kolo_rendezvous_open(manager, step, rendezvous) : status;
}

typedef struct {
    int from, to;
    uint64_t step;
    char key[KOLO_TENSOR_KEY_MAX + 1];
} way_t;

/* A random key; now and then of a life of its source that is over. */
static way_t choose_way(uint64_t *state)
{
    way_t way = {.from = (int)pick(state, TASKS), .to = (int)pick(state, TASKS), .step = pick(state, STEPS)};
    kolo_tensor_key_t key;
    memset(&key, 0, sizeof key);
    pthread_rwlock_rdlock(&team[way.from].lock);
    bool old = pick(state, 20) == 0 && team[way.from].before;
    key.src_incarnation = old ? team[way.from].before : team[way.from].incarnation;
    pthread_rwlock_unlock(&team[way.from].lock);
    snprintf(key.src_device, sizeof key.src_device, "%s/device:cpu:0", tasks[way.from]);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:cpu:0", tasks[way.to]);
    snprintf(key.edge_name, sizeof key.edge_name, "edge_%u", pick(state, EDGES));
    if (kolo_tensor_key_make(&key, way.key, sizeof way.key) != KOLO_OK) complain("a key cannot be made", way.from);
    return way;
}

/* ---- sends ---- */

static void release(void *arg)
{
    uint64_t *data = arg;
    atomic_fetch_add(&values[data[0]].released, 1);
    free(data);
}

static size_t choose_words(uint64_t *state)
{
    switch (pick(state, 10)) {
    case 0:
        return 20000 + pick(state, 200000);
    case 1:
    case 2:
        return 500 + pick(state, 3000);
    default:
        return 2 + pick(state, 60);
    }
}

static void send_one(uint64_t *state)
{
    way_t way = choose_way(state);
    size_t words = choose_words(state);
    uint64_t *data = malloc(words * 8);
    kolo_rendezvous_t step;
    int id = atomic_fetch_add(&nvalues, 1);
    if (data == NULL || id >= MOST) exit(2);
    data[0] = (uint64_t)id;
    for (size_t i = 1; i < words; i++) data[i] = (uint64_t)id * 1000003 + i;
    values[id].where = hash(way.key, way.step);
    kolo_value_t value = {
        .element = KOLO_UINT64, .ndims = 1, .dims = {(int64_t)words}, .data = data, .bytes = words * 8};
    value.release = release;
    value.arg = data;
    pthread_rwlock_rdlock(&team[way.from].lock);
    kolo_status_t status = open_step(way.from, way.step, &step);
    if (status == KOLO_OK) {
        status = kolo_rendezvous_send(step, way.key, &value, NULL);
        kolo_rendezvous_close(step);
    }
    pthread_rwlock_unlock(&team[way.from].lock);
    if (status != KOLO_OK) release(data); /* it has stayed ours */
}

/* ---- receives ---- */

static void check(record_t *receive, kolo_status_t status, kolo_value_t *value)
{
    atomic_fetch_add(status == KOLO_OK ? &ended_well : &ended_badly, 1);
    if (atomic_fetch_add(&receive->ended, 1) != 0) complain("a receive ended twice", (int)(receive - receives));
    if (status != KOLO_OK && receive->into) {
        memset(receive->into, OURS, INTO);
        receive->failed = true;
    }
    if (status != KOLO_OK) return;
    if (receive->into && value->data != receive->into)
        complain("a value lies elsewhere", (int)(receive - receives));
    const uint64_t *data = value->data;
    size_t words = value->bytes / 8;
    if (words < 2 || data[0] >= MOST) {
        complain("a value is nonsense", (int)words);
    } else {
        record_t *v = &values[data[0]];
        if (v->where != receive->where) complain("a value has another key or step", (int)data[0]);
        if (atomic_fetch_add(&v->given, 1) != 0) complain("a value was received twice", (int)data[0]);
        for (size_t i = 1; i < words; i++)
            if (data[i] != data[0] * 1000003 + i) {
                complain("a value has wrong words", (int)i);
                break;
            }
    }
    kolo_value_release(value);
}

static uint64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static void hear(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                 const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    (void)sender;
    (void)why;
    if (receiver->attributes) /* a slow consumer */
        for (uint64_t until = now_us() + receiver->attributes; now_us() < until;) sched_yield();
    check(arg, status, value);
}

/* By callback, blocking with a short limit, or by a handle that is waited for or given up. */
static void receive_one(uint64_t *state)
{
    way_t way = choose_way(state);
    int id = atomic_fetch_add(&nreceives, 1), how = (int)pick(state, 6);
    record_t *r = &receives[id];
    kolo_transfer_args_t args = {.attributes = pick(state, 8) == 0 ? 1000 : 0};
    kolo_rendezvous_t step;
    kolo_receive_t handle;
    kolo_value_t value;
    if (id >= MOST) exit(2);
    if (pick(state, 3) == 0) {
        args.into = r->into = malloc(INTO);
        args.into_bytes = INTO;
    }
    r->where = hash(way.key, way.step);
    pthread_rwlock_rdlock(&team[way.to].lock);
    kolo_status_t status = open_step(way.to, way.step, &step);
    if (status != KOLO_OK) {
        pthread_rwlock_unlock(&team[way.to].lock);
        return;
    }
    if (how < 4) {
        atomic_store(&r->begun, 1); /* before, since it may end in the call */
        status = kolo_rendezvous_receive_call(step, way.key, &args, hear, r);
        if (status != KOLO_OK) atomic_store(&r->begun, 0);
    } else if (how == 4) {
        status = kolo_rendezvous_receive(step, way.key, &args, 1 + (int)pick(state, 3), &value);
        atomic_store(&r->begun, 1);
        check(r, status, &value);
    } else if (kolo_rendezvous_receive_begin(step, way.key, &args, &handle) == KOLO_OK) {
        status = pick(state, 2) ? kolo_receive_wait(handle, 1, &value) : KOLO_ERR_TIMEOUT;
        if (status == KOLO_ERR_TIMEOUT) { /* the handle is still there: the receiver goes */
            kolo_receive_discard(handle);
            if (r->into) memset(r->into, OURS, INTO);
            r->failed = r->into != NULL;
        } else {
            atomic_store(&r->begun, 1);
            check(r, status, &value);
        }
    }
    kolo_rendezvous_close(step);
    pthread_rwlock_unlock(&team[way.to].lock);
}

/* ---- faults ---- */

static void abort_step(uint64_t *state, bool cleanup)
{
    int task = (int)pick(state, TASKS);
    uint64_t number = pick(state, STEPS);
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    pthread_rwlock_rdlock(&team[task].lock);
    if (cleanup && kolo_server_manager(team[task].server, &manager) == KOLO_OK)
        (void)kolo_rendezvous_manager_cleanup(manager, number);
    if (!cleanup && open_step(task, number, &step) == KOLO_OK) {
        (void)kolo_rendezvous_abort(step, KOLO_ERR_SYSTEM, "by chance");
        kolo_rendezvous_close(step);
    }
    pthread_rwlock_unlock(&team[task].lock);
}

static void restart(uint64_t *state)
{
    int task = (int)pick(state, TASKS);
    pthread_rwlock_wrlock(&team[task].lock);
    kolo_server_destroy(team[task].server);
    start(task);
    pthread_rwlock_unlock(&team[task].lock);
}

/* Calls fn with each open descriptor; returns how many there are. */
static int each_descriptor(void (*fn)(int fd, void *arg), void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    if (dir == NULL) return 0;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(dir)) continue;
        if (fn) fn(fd, arg);
        n++;
    }
    closedir(dir);
    return n;
}

static void maybe_cut(int fd, void *arg)
{
    struct sockaddr_in here, there;
    socklen_t a = sizeof here, b = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &a) != 0 || here.sin_family != AF_INET) return;
    if (getpeername(fd, (struct sockaddr *)&there, &b) != 0 || there.sin_family != AF_INET) return;
    if (ntohs(here.sin_port) != PORT && ntohs(there.sin_port) != PORT) return;
    if (pick(arg, 3) == 0) (void)shutdown(fd, SHUT_RDWR);
}

enum { ABORTS = 1u, CLEANUPS = 2u, CUTS = 4u, RESTARTS = 8u };
static unsigned faults; /* that this run has */

static void act(uint64_t *state, bool may_restart)
{
    unsigned what = pick(state, 100);
    if (what < 42)
        send_one(state);
    else if (what < 92)
        receive_one(state);
    else if (what < 94 && faults & ABORTS)
        abort_step(state, false);
    else if (what < 96 && faults & CLEANUPS)
        abort_step(state, true);
    else if (what < 98 && faults & CUTS)
        each_descriptor(maybe_cut, state);
    else if (may_restart && faults & RESTARTS)
        restart(state);
}

/* ---- a run ---- */

static void *other_thread(void *arg)
{
    uint64_t state = *(uint64_t *)arg;
    for (int i = 0; i < OPS; i++) act(&state, false);
    return NULL;
}

static void end_receive(record_t *r, int number)
{
    if (r->begun && r->ended != 1) complain("a receive did not end once", number);
    for (size_t i = 0; r->failed && i < INTO; i++)
        if (r->into[i] != OURS) {
            complain("memory was written to after its receive had failed", number);
            break;
        }
    free(r->into);
}

static void run_once(void)
{
    uint64_t state = seed, other = seed ^ 0x5555;
    pthread_t thread;
    memset(receives, 0, sizeof receives);
    memset(values, 0, sizeof values);
    atomic_store(&nreceives, 0);
    atomic_store(&nvalues, 0);
    faults = pick(&state, 16);
    protocol = protocols[pick(&state, sizeof protocols / sizeof *protocols)];
    alarm(RUN_LIMIT);
    for (int i = 0; i < TASKS; i++) start(i);
    if (pthread_create(&thread, NULL, other_thread, &other) != 0) exit(2);
    for (int i = 0; i < OPS; i++) act(&state, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < TASKS; i++) kolo_server_destroy(team[i].server); /* some in the middle of transfers */
    for (int i = 0; i < atomic_load(&nreceives); i++) end_receive(&receives[i], i);
    for (int i = 0; i < atomic_load(&nvalues); i++)
        if (values[i].released != 1) complain("a value was not released once", i);
}

static char stuck_text[100];
static size_t stuck_length;

static void stuck(int signal_number)
{
    (void)signal_number;
    if (write(2, stuck_text, stuck_length) != (ssize_t)stuck_length) _exit(3);
    abort();
}

int main(int argc, char **argv)
{
    int runs = kolo_test_steps(argc > 1 ? atoi(argv[1]) : 20), pid = (int)getpid();
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    snprintf(cluster, sizeof cluster, "ps=127.%d.%d.1:%d,127.%d.%d.2:%d;worker=127.%d.%d.3:%d", 1 + pid % 200,
             pid / 200 % 250, PORT, 1 + pid % 200, pid / 200 % 250, PORT, 1 + pid % 200, pid / 200 % 250, PORT);
    setenv("KOLO_ONESIDED_SPLIT", "256K", 0); /* some values go by lanes */
    setenv("KOLO_ONESIDED_LANES", "2", 0);
    signal(SIGALRM, stuck);
    if (kolo_server_register_protocol("random+buffered+tcp", "tcp", 1) != KOLO_OK) return 2;
    for (int i = 0; i < TASKS; i++) pthread_rwlock_init(&team[i].lock, NULL);
    int descriptors = 0, failed = 0;
    for (int i = 0; i < runs; i++) {
        seed = first + (uint64_t)i;
        stuck_length = (size_t)snprintf(stuck_text, sizeof stuck_text, "rendezvous_random: seed %llu: stuck\n",
                                        (unsigned long long)seed);
        atomic_store(&wrong, 0);
        run_once();
        int now = each_descriptor(NULL, NULL);
        if (i == 0) descriptors = now; /* what the library keeps was opened by then */
        if (now > descriptors) complain("descriptors stay open", now - descriptors);
        failed += atomic_load(&wrong);
    }
    printf("%d runs from seed %llu: %ld receives with a value, %ld with an error; %d runs failed\n", runs,
           (unsigned long long)first, atomic_load(&ended_well), atomic_load(&ended_badly), failed);
    return failed != 0;
}
