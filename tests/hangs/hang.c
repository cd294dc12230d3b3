/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of a job that hangs in the way that its first argument names, for hangs_test.py. Rank 1 is the one that
 * all wait for: it does not make the last call. Each rank writes its process id to DIR/RANK, and is killed in the
 * end. usage: hang CASE DIR LIMIT_MS
 */
#include <kolo/engine.h>
#include <kolo/job.h>
#include <kolo/rendezvous.h>
#include <kolo/state.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define ODD 1

static int rank, nranks, limit_ms;
static const char *folder;
static kolo_comm_t comm;
static float data[4], large[100000];

/* What a user's program does with an error. */
static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    printf("rank %d: %s: %s\n", rank, kolo_status_string(status), kolo_get_last_error(NULL));
    fflush(stdout);
    for (;;) pause(); /* the others are to tell the same */
}

static void stay(void)
{
    for (;;) pause();
}

static void leave_out(void)
{
    if (rank == ODD) stay();
}

/* ---- collectives, messages, windows, groups ---- */

static void all_reduce(void)
{
    must(kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
}

static void lack_all_reduce(void)
{
    leave_out();
    all_reduce();
}

static void lack_barrier(void)
{
    leave_out();
    must(kolo_barrier(comm, NULL));
}

static void lack_root(void)
{
    leave_out();
    must(kolo_broadcast(data, data, 4, KOLO_FLOAT32, ODD, comm, NULL));
}

static void lack_first(void) /* too large for the connections that the barriers have made */
{
    leave_out();
    must(kolo_all_reduce(large, large, 100000, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
}

static void lack_in_ring(void)
{
    must(kolo_all_reduce(large, large, 100000, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
    lack_first();
}

static void lack_group(void)
{
    all_reduce();
    leave_out();
    must(kolo_group_start());
    kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
    kolo_barrier(comm, NULL);
    must(kolo_group_end());
}

static void talk(void) /* ranks 0 and 1 are connected afterwards */
{
    if (rank == 0) must(kolo_send(data, 4, KOLO_FLOAT32, ODD, comm, NULL));
    if (rank == ODD) must(kolo_recv(data, 4, KOLO_FLOAT32, 0, comm, NULL));
    if (rank == 0) must(kolo_recv(data, 4, KOLO_FLOAT32, ODD, comm, NULL));
    if (rank == ODD) must(kolo_send(data, 4, KOLO_FLOAT32, 0, comm, NULL));
}

static void lack_send(void)
{
    talk();
    if (rank == 0) must(kolo_recv(data, 4, KOLO_FLOAT32, ODD, comm, NULL));
}

static void lack_first_send(void)
{
    if (rank == 0) must(kolo_recv(data, 4, KOLO_FLOAT32, ODD, comm, NULL));
}

static void lack_recv(void)
{
    talk();
    for (int i = 0; rank == 0 && i < 100; i++) must(kolo_send(large, 100000, KOLO_FLOAT32, ODD, comm, NULL));
}

static void both_send(void)
{
    if (rank <= ODD) must(kolo_send(large, 100000, KOLO_FLOAT32, ODD - rank, comm, NULL));
}

static void lack_signal(void)
{
    kolo_signal_wait_t wait = {ODD, 0, 2};
    kolo_window_t window;
    must(kolo_window_register(comm, large, sizeof large, &window));
    if (rank == ODD) must(kolo_put_signal(data, 4, KOLO_FLOAT32, 0, window, 0, 0, comm, NULL));
    if (rank == 0) must(kolo_wait_signal(&wait, 1, comm, NULL));
}

static void lack_register(void)
{
    kolo_window_t window;
    leave_out();
    must(kolo_window_register(comm, large, sizeof large, &window));
}

static void lack_deregister(void)
{
    kolo_window_t window;
    must(kolo_window_register(comm, large, sizeof large, &window));
    leave_out();
    must(kolo_window_deregister(comm, window));
}

static void lack_split(void)
{
    kolo_comm_t child;
    leave_out();
    must(kolo_comm_split(comm, 0, 0, &child, NULL));
}

static void lack_dup(void)
{
    kolo_comm_t child;
    leave_out();
    must(kolo_comm_dup(comm, &child, NULL));
}

static void lack_finalize(void)
{
    leave_out();
    must(kolo_comm_finalize(comm));
}

static void stop(void)
{
    if (rank == ODD) raise(SIGSTOP);
    all_reduce();
}

static void come_late(int sig)
{
    (void)sig;
}

static void late(void) /* until SIGUSR1 */
{
    struct sigaction act = {.sa_handler = come_late};
    sigaction(SIGUSR1, &act, NULL);
    if (rank == ODD) pause();
    all_reduce();
    stay();
}

/* ---- named tensors ---- */

static kolo_tensor_engine_t engine;
static int64_t shape[1] = {4};

static void start_engine(const kolo_rank_list_t *sets, int nsets)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    config.sets = sets;
    config.nsets = nsets;
    must(kolo_engine_init(&engine, comm, &config));
}

static void submit(const char *name, int set)
{
    kolo_tensor_t t = {name, KOLO_FLOAT32, 1, shape, data, data};
    kolo_submission_t where = {.set = set};
    int64_t handle;
    must(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &where, &handle));
    must(kolo_engine_wait(engine, handle, 0, NULL));
}

static void lack_tensor(void)
{
    start_engine(NULL, 0);
    submit("layer/kernel", 0);
    leave_out();
    submit("layer/bias", 0);
}

static void lack_tensor_of_a_set(void) /* of set 2; set 1 goes on */
{
    static const int some[] = {0, 2}, members[] = {0, ODD};
    static const kolo_rank_list_t sets[] = {{some, 2}, {members, 2}};
    start_engine(sets, 2);
    if (rank != ODD) submit("layer/kernel", 1);
    if (rank == 0) submit("layer/bias", 2);
}

static void lack_join(void)
{
    int64_t handle;
    start_engine(NULL, 0);
    submit("layer/kernel", 0);
    leave_out();
    must(kolo_engine_join(engine, NULL, &handle));
    must(kolo_engine_wait(engine, handle, 0, NULL));
}

static void lack_engine_barrier(void)
{
    int64_t handle;
    start_engine(NULL, 0);
    submit("layer/kernel", 0);
    leave_out();
    must(kolo_engine_barrier(engine, NULL, &handle));
    must(kolo_engine_wait(engine, handle, 0, NULL));
}

static void lack_set(void)
{
    const int members[] = {0, ODD};
    int set;
    start_engine(NULL, 0);
    leave_out();
    must(kolo_engine_add_set(engine, members, 2, &set));
}

/* Of the process whose number is in the file: it takes no part in anything from then on. */
static void await_stop(const char *file)
{
    char path[64], state = 0;
    int pid = 0;
    while (state != 'T') {
        FILE *f = fopen(file, "r");
        if (f && fscanf(f, "%d", &pid) != 1) pid = 0;
        if (f) fclose(f);
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        f = pid ? fopen(path, "r") : NULL;
        if (f && fscanf(f, "%*d %*s %c", &state) != 1) state = 0;
        if (f) fclose(f);
        usleep(1000);
    }
}

static void lack_shutdown(void)
{
    char odd[4096];
    start_engine(NULL, 0);
    submit("layer/kernel", 0);
    if (rank == ODD) raise(SIGSTOP);
    snprintf(odd, sizeof odd, "%s/%d", folder, ODD);
    await_stop(odd);
    must(kolo_engine_shutdown(engine));
}

static void never_return(void *arg, const kolo_completion_t *completion)
{
    (void)arg, (void)completion;
    stay();
}

static void lack_end_of_callback(void)
{
    kolo_tensor_t t = {"layer/kernel", KOLO_FLOAT32, 1, shape, data, data};
    kolo_submission_t how = {.done = rank == ODD ? never_return : NULL};
    int64_t handle;
    start_engine(NULL, 0);
    must(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &how, &handle));
    if (rank == ODD) stay();
    must(kolo_engine_wait(engine, handle, 0, NULL));
    must(kolo_engine_shutdown(engine));
}

static void never_fold(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    (void)in, (void)inout, (void)count, (void)type, (void)arg;
    if (rank == ODD) stay();
}

static void lack_end_of_operator(void)
{
    kolo_op_t op;
    must(kolo_op_create_callback(&op, never_fold, NULL, KOLO_FLOAT32, comm));
    must(kolo_all_reduce(data, data, 4, KOLO_FLOAT32, op, comm, NULL));
    must(kolo_barrier(comm, NULL));
}

/* ---- keyed tensors: rank 0 is a worker, rank 1 its parameter server ---- */

static const char worker[] = "/job:worker/task:0", ps[] = "/job:ps/task:0";

/* A key from `src` to `dst`, and the step. */
static kolo_rendezvous_t open_step(kolo_server_t server, const char *src, const char *dst, const char *edge,
                                   char *text)
{
    kolo_tensor_key_t key = {0};
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t rendezvous;
    must(kolo_server_manager(server, &manager));
    must(kolo_server_incarnation(server, src, 0, &key.src_incarnation));
    snprintf(key.edge_name, sizeof key.edge_name, "%s", edge);
    snprintf(key.src_device, sizeof key.src_device, "%s/device:cpu:0", src);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:cpu:0", dst);
    must(kolo_tensor_key_make(&key, text, KOLO_TENSOR_KEY_MAX + 1));
    must(kolo_rendezvous_open(manager, 7, &rendezvous));
    return rendezvous;
}

static void never_return_of_value(void *arg, kolo_status_t status, const char *why,
                                  const kolo_transfer_args_t *sender, const kolo_transfer_args_t *receiver,
                                  kolo_value_t *value)
{
    (void)arg, (void)status, (void)why, (void)sender, (void)receiver, (void)value;
    stay();
}

static void stay_in_callback(kolo_server_t server)
{
    char text[KOLO_TENSOR_KEY_MAX + 1];
    kolo_rendezvous_t step = open_step(server, ps, ps, "gradients", text);
    kolo_value_t value = {.element = KOLO_FLOAT32, .ndims = 1, .dims = {4}, .data = data, .bytes = sizeof data};
    must(kolo_rendezvous_receive_call(step, text, NULL, never_return_of_value, NULL));
    must(kolo_rendezvous_send(step, text, &value, NULL));
}

static void lack_key(const char *source, bool calls)
{
    char text[KOLO_TENSOR_KEY_MAX + 1];
    kolo_value_t value;
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_server_t server;
    if (rank > ODD) stay();
    config.cluster = getenv("HANG_CLUSTER");
    config.task = rank == 0 ? worker : ps;
    config.secret = "0123456789abcdef";
    config.secret_bytes = 16;
    must(kolo_server_create(&server, &config));
    must(kolo_server_start(server));
    if (rank == ODD && calls) stay_in_callback(server);
    if (rank != 0) stay();
    kolo_rendezvous_t step = open_step(server, source, worker, "weights", text);
    must(kolo_rendezvous_receive(step, text, NULL, calls ? 3 * limit_ms : limit_ms, &value));
}

static void lack_key_in_one_task(void)
{
    lack_key(worker, false);
}

static void lack_key_in_two_tasks(void)
{
    lack_key(ps, false);
}

static void lack_end_of_key_callback(void)
{
    lack_key(ps, true);
}

/* ---- kolo_state ---- */

static kolo_status_t train(kolo_state_t state, void *arg)
{
    (void)arg;
    must(kolo_state_commit(state));
    leave_out();
    must(kolo_state_commit(state));
    return KOLO_OK;
}

static void lack_commit(void)
{
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    kolo_state_t state;
    config.comm = comm;
    must(kolo_state_create(&state, &config));
    must(kolo_state_register(state, "weights", data, sizeof data));
    must(kolo_state_run(state, train, NULL));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"all_reduce", lack_all_reduce},
    {"barrier", lack_barrier},
    {"broadcast_root", lack_root},
    {"connecting", lack_first},
    {"ring", lack_in_ring},
    {"group", lack_group},
    {"send", lack_send},
    {"first_send", lack_first_send},
    {"recv", lack_recv},
    {"both_send", both_send},
    {"signal", lack_signal},
    {"window_register", lack_register},
    {"window_deregister", lack_deregister},
    {"split", lack_split},
    {"dup", lack_dup},
    {"finalize", lack_finalize},
    {"stopped", stop},
    {"late", late},
    {"tensor", lack_tensor},
    {"tensor_of_a_set", lack_tensor_of_a_set},
    {"join", lack_join},
    {"engine_barrier", lack_engine_barrier},
    {"add_set", lack_set},
    {"shutdown", lack_shutdown},
    {"callback", lack_end_of_callback},
    {"key_in_one_task", lack_key_in_one_task},
    {"key_in_two_tasks", lack_key_in_two_tasks},
    {"key_callback", lack_end_of_key_callback},
    {"operator", lack_end_of_operator},
    {"commit", lack_commit},
};

int main(int argc, char **argv)
{
    kolo_job_place_t place;
    char path[4096];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    if (argc != 4) return 2;
    must(kolo_job_get_place(&place));
    rank = place.rank;
    nranks = place.nranks;
    limit_ms = atoi(argv[3]);
    folder = argv[2];
    snprintf(path, sizeof path, "%s/%d", argv[2], rank);
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "%d\n", (int)getpid()) < 0 || fclose(f) != 0) return 1;
    if (strcmp(argv[1], "init") == 0) leave_out();
    if (strcmp(argv[1], "init_last") == 0 && rank == 2) stay();
    must(kolo_job_connect(&comm, NULL));
    for (int i = 0; i < 3; i++) must(kolo_barrier(comm, NULL));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) cases[i].run();
    stay();
}
