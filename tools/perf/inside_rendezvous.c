/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf rendezvous: keyed tensors between two processes of this host. One task holds values and sends them, the
 * other receives them by key, several at a time; each step has up to KEYS keys, the same in every step. The child
 * is the task that sends; it is told what to send by a keyed tensor, too.
 */
#include "rendezvous.h"

#include "rendezvous/remote/channel.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOLDER     "/job:ps/task:0"
#define ASKER      "/job:worker/task:0"
#define KEYS       256
#define CONTROL    0 /* the step of plans and counts; steps of values follow */
#define PATIENCE   60000
#define PLAN_WORDS 3
#define SENT_AHEAD 2 /* steps whose values may lie at the holder */

typedef struct { /* one of the two tasks */
    kolo_server_t server;
    kolo_rendezvous_manager_t manager;
    uint64_t next_step;
    char keys[KEYS][KOLO_TENSOR_KEY_MAX + 1], plan[KOLO_TENSOR_KEY_MAX + 1], counts[KOLO_TENSOR_KEY_MAX + 1];
} task_t;

static int failed(const char *who, const char *what)
{
    fprintf(stderr, "kolo-perf: %s: %s: %s\n", who, what, kolo_get_last_error(NULL));
    return 1;
}

static kolo_status_t make_key(kolo_server_t server, const char *from, const char *to, const char *edge, char *text)
{
    kolo_tensor_key_t key;
    memset(&key, 0, sizeof key);
    KOLO_TRY(kolo_server_incarnation(server, from, PATIENCE, &key.src_incarnation));
    snprintf(key.src_device, sizeof key.src_device, "%s/device:cpu:0", from);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:cpu:0", to);
    snprintf(key.edge_name, sizeof key.edge_name, "%s", edge);
    return kolo_tensor_key_make(&key, text, KOLO_TENSOR_KEY_MAX + 1);
}

static kolo_status_t open_task(task_t *t, const char *cluster, const char *protocol, const char *name)
{
    static const char secret[] = "two processes of one kolo-perf";
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    char edge[32];
    config.cluster = cluster;
    config.task = name;
    config.protocol = protocol;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    t->next_step = CONTROL + 1;
    KOLO_TRY(kolo_server_create(&t->server, &config));
    KOLO_TRY(kolo_server_start(t->server));
    KOLO_TRY(kolo_server_manager(t->server, &t->manager));
    KOLO_TRY(make_key(t->server, ASKER, HOLDER, "plan", t->plan));
    KOLO_TRY(make_key(t->server, HOLDER, ASKER, "counts", t->counts));
    for (int i = 0; i < KEYS; i++) {
        snprintf(edge, sizeof edge, "layer_%d/weights", i);
        KOLO_TRY(make_key(t->server, HOLDER, ASKER, edge, t->keys[i]));
    }
    return KOLO_OK;
}

/* A short vector of numbers under a key, both ways. */
static kolo_status_t tell(task_t *t, const char *key, const uint64_t *words, int n)
{
    kolo_rendezvous_t step;
    uint64_t *copy = malloc((size_t)n * 8);
    if (copy == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory");
    memcpy(copy, words, (size_t)n * 8);
    kolo_value_t value = {.element = KOLO_UINT64, .ndims = 1, .dims = {n}, .data = copy, .bytes = (size_t)n * 8};
    value.release = free;
    value.arg = copy;
    kolo_status_t status = kolo_rendezvous_open(t->manager, CONTROL, &step);
    if (status == KOLO_OK) {
        status = kolo_rendezvous_send(step, key, &value, NULL);
        kolo_rendezvous_close(step);
    }
    if (status != KOLO_OK) free(copy);
    return status;
}

static kolo_status_t hear(task_t *t, const char *key, uint64_t *words, int n)
{
    kolo_rendezvous_t step;
    kolo_value_t value;
    KOLO_TRY(kolo_rendezvous_open(t->manager, CONTROL, &step));
    kolo_status_t status = kolo_rendezvous_receive(step, key, NULL, PATIENCE, &value);
    kolo_rendezvous_close(step);
    KOLO_TRY(status);
    bool fits = value.bytes == (size_t)n * 8;
    if (fits) memcpy(words, value.data, value.bytes);
    kolo_value_release(&value);
    return fits ? KOLO_OK : kolo_fail(KOLO_ERR_PROTOCOL, "the other process reports another set-up");
}

static void count(uint64_t words[PERF_RDV_COUNTS])
{
    kolo_onesided_counters_t c;
    kolo_onesided_get_counters(&c);
    words[PERF_RDV_COPIES] = atomic_load(&kolo_rendezvous_counters.copies);
    words[PERF_RDV_WRITES] = c.writes;
    words[PERF_RDV_NOTICES] = c.notices;
    words[PERF_RDV_MESSAGES] = atomic_load(&kolo_rendezvous_counters.messages);
    words[PERF_RDV_REQUESTS] = atomic_load(&kolo_rendezvous_counters.requests);
    words[PERF_RDV_WORK] = c.requests;
    words[PERF_RDV_COMPLETIONS] = c.completions;
    words[PERF_RDV_REGISTRATIONS] = c.registrations;
    words[PERF_RDV_REREQUESTS] = atomic_load(&kolo_rendezvous_counters.rerequests);
}

/* ---- the holder ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t released, wanted;
} released_t;
static released_t gone = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, UINT64_MAX};

static void note_release(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&gone.lock);
    if (++gone.released == gone.wanted) pthread_cond_signal(&gone.more);
    pthread_mutex_unlock(&gone.lock);
}

static void await_releases(uint64_t n)
{
    pthread_mutex_lock(&gone.lock);
    gone.wanted = n;
    while (gone.released < n) pthread_cond_wait(&gone.more, &gone.lock);
    gone.wanted = UINT64_MAX;
    pthread_mutex_unlock(&gone.lock);
}

static kolo_status_t send_step(task_t *t, uint64_t number, uint64_t n, kolo_value_t value)
{
    kolo_rendezvous_t step;
    kolo_status_t status = KOLO_OK;
    KOLO_TRY(kolo_rendezvous_open(t->manager, number, &step));
    for (uint64_t i = 0; i < n && status == KOLO_OK; i++)
        status = kolo_rendezvous_send(step, t->keys[i], &value, NULL);
    kolo_rendezvous_close(step);
    return status;
}

static kolo_status_t send_values(task_t *t, char *data, uint64_t bytes, uint64_t values)
{
    kolo_value_t value = {.element = KOLO_UINT8,
                          .ndims = 1,
                          .dims = {(int64_t)bytes},
                          .data = data,
                          .bytes = bytes,
                          .release = note_release};
    uint64_t first = t->next_step, steps = KOLO_DIV_UP(values, (uint64_t)KEYS);
    gone.released = 0;
    for (uint64_t s = 0; s < steps; s++) {
        if (s >= SENT_AHEAD) {
            await_releases((s - SENT_AHEAD + 1) * KEYS);
            KOLO_TRY(kolo_rendezvous_manager_cleanup(t->manager, first + s - SENT_AHEAD));
        }
        KOLO_TRY(send_step(t, first + s, KOLO_MIN((uint64_t)KEYS, values - s * KEYS), value));
    }
    await_releases(values);
    for (uint64_t s = 0; s < steps; s++) KOLO_TRY(kolo_rendezvous_manager_cleanup(t->manager, first + s));
    t->next_step += steps;
    return KOLO_OK;
}

static kolo_status_t hold(task_t *t)
{
    uint64_t plan[PLAN_WORDS], counts[PERF_RDV_COUNTS];
    for (;;) {
        KOLO_TRY(hear(t, t->plan, plan, PLAN_WORDS));
        if (plan[1] == 0) return KOLO_OK;
        char *data = malloc(plan[0] + 1);
        if (data == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a value");
        for (uint64_t i = 0; i < plan[0]; i++) data[i] = (char)(i * 31 + i / 251);
        count(counts); /* the value is there: the time runs from here on */
        KOLO_TRY(tell(t, t->counts, counts, PERF_RDV_COUNTS));
        KOLO_TRY(send_values(t, data, plan[0], plan[1]));
        free(data);
        count(counts);
        KOLO_TRY(tell(t, t->counts, counts, PERF_RDV_COUNTS));
    }
}

static int be_holder(const char *cluster, const char *protocol)
{
    static task_t t;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    kolo_status_t status = open_task(&t, cluster, protocol, HOLDER);
    if (status == KOLO_OK) status = hold(&t);
    if (status != KOLO_OK) failed(HOLDER, "holding values");
    kolo_server_destroy(t.server);
    return status != KOLO_OK;
}

/* ---- the asker ---- */

typedef struct {
    kolo_rendezvous_t step;
    uint64_t number;
} open_step_t;

/* The receive of value i; the steps of the last ones are open. */
static kolo_status_t begin(task_t *t, uint64_t i, open_step_t *at, const kolo_transfer_args_t *args,
                           kolo_receive_t *receive)
{
    uint64_t number = t->next_step + i / KEYS;
    if (at->step == NULL || at->number != number) {
        kolo_rendezvous_close(at->step);
        at->step = NULL;
        KOLO_TRY(kolo_rendezvous_open(t->manager, number, &at->step));
        at->number = number;
    }
    return kolo_rendezvous_receive_begin(at->step, t->keys[i % KEYS], args, receive);
}

/* Looks at the ends: the middle was written before the one and behind the other. */
static bool is_right(const kolo_value_t *value, uint64_t bytes)
{
    const char *data = value->data;
    uint64_t last = bytes - 1;
    return value->bytes == bytes && data[0] == 0 && data[last] == (char)(last * 31 + last / 251);
}

static kolo_status_t ask(task_t *t, uint64_t bytes, uint64_t values, int depth, char *room)
{
    open_step_t at = {0};
    kolo_value_t value;
    kolo_status_t status = KOLO_OK;
    kolo_receive_t *receives = calloc((size_t)depth, sizeof *receives);
    if (receives == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for receives");
    for (uint64_t i = 0; i < values + (uint64_t)depth && status == KOLO_OK; i++) {
        kolo_receive_t *receive = &receives[i % (uint64_t)depth];
        if (*receive) {
            status = kolo_receive_wait(*receive, PATIENCE, &value);
            *receive = NULL;
            if (status != KOLO_OK) break;
            if (!is_right(&value, bytes))
                status = kolo_fail(KOLO_ERR_PROTOCOL, "value %llu is wrong", (unsigned long long)i);
            kolo_value_release(&value);
        }
        kolo_transfer_args_t args = {.into = room ? room + i % (uint64_t)depth * bytes : NULL,
                                     .into_bytes = room ? bytes : 0};
        if (i < values && status == KOLO_OK) status = begin(t, i, &at, &args, receive);
        if (i >= KEYS + (uint64_t)depth && i % KEYS == 0)
            (void)kolo_rendezvous_manager_cleanup(t->manager, t->next_step + (i - (uint64_t)depth) / KEYS - 1);
    }
    kolo_rendezvous_close(at.step);
    free(receives);
    uint64_t steps = KOLO_DIV_UP(values, (uint64_t)KEYS);
    for (uint64_t s = 0; s < steps; s++) (void)kolo_rendezvous_manager_cleanup(t->manager, t->next_step + s);
    t->next_step += steps;
    return status;
}

kolo_status_t perf_rdv_measure(perf_rdv_t *r, uint64_t bytes, uint64_t values, int depth, perf_rdv_row_t *row)
{
    task_t *t = r->task;
    uint64_t plan[PLAN_WORDS] = {bytes, values, 0}, before[PERF_RDV_COUNTS] = {0}, after[PERF_RDV_COUNTS],
             here[PERF_RDV_COUNTS];
    char *room = r->own ? calloc((size_t)depth, bytes) : NULL;
    if (r->own && room == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for destinations");
    kolo_status_t status = tell(t, t->plan, plan, PLAN_WORDS);
    if (status == KOLO_OK) status = hear(t, t->counts, before, PERF_RDV_COUNTS);
    count(here);
    for (int i = 0; i < PERF_RDV_COUNTS; i++) before[i] += here[i];
    double start = perf_now_us();
    if (status == KOLO_OK) status = ask(t, bytes, values, depth, room);
    row->us = (perf_now_us() - start) / (double)values;
    free(room);
    KOLO_TRY(status);
    row->bytes = bytes;
    row->values = values;
    row->depth = depth;
    KOLO_TRY(hear(t, t->counts, after, PERF_RDV_COUNTS));
    count(here);
    for (int i = 0; i < PERF_RDV_COUNTS; i++)
        row->counts[i] = (double)(after[i] + here[i] - before[i]) / (double)values;
    return KOLO_OK;
}

kolo_status_t perf_rdv_open(perf_rdv_t *r, const char *protocol)
{
    static task_t task;
    int pid = (int)getpid();
    char cluster[200];
    snprintf(cluster, sizeof cluster, "ps=127.%d.%d.1:7311;worker=127.%d.%d.2:7311", 1 + pid % 200, pid / 200 % 250,
             1 + pid % 200, pid / 200 % 250);
    fflush(stdout);
    *r = (perf_rdv_t){.task = &task, .child = fork()};
    if (r->child < 0) return kolo_fail(KOLO_ERR_SYSTEM, "cannot start a second process");
    if (r->child == 0) _exit(be_holder(cluster, protocol));
    return open_task(&task, cluster, protocol, ASKER);
}

int perf_rdv_close(perf_rdv_t *r, bool orderly)
{
    task_t *t = r->task;
    int status = 0;
    uint64_t plan[PLAN_WORDS] = {0};
    orderly = orderly && tell(t, t->plan, plan, PLAN_WORDS) == KOLO_OK;
    if (r->child > 0 && !orderly) (void)kill(r->child, SIGKILL);
    if (r->child > 0) (void)waitpid(r->child, &status, 0);
    kolo_server_destroy(t->server);
    return orderly && status == 0 ? 0 : 1;
}
