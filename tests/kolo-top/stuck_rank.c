/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of a job that gets stuck in the way that its last argument names, for kolo_top_test.py. It says "ready"
 * before it does, and stays until it is killed.
 * usage: stuck_rank RANK NRANKS ID_FILE stop|other|kill|recv|tag|signal|queue|connect|run|tensor|cached|set
 */
#include <kolo/engine.h>
#include <kolo/message.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define ODD 1 /* the rank that does something else */

static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "stuck_rank: %s\n", kolo_get_last_error(NULL));
    exit(1);
}

/* Calls of all ranks that are no collectives; the odd one does not make them. Did it? */
static int call_whole(kolo_comm_t comm, int rank, const char *how)
{
    static float data[4];
    kolo_window_t window = NULL;
    kolo_comm_t child;
    if (strcmp(how, "deregister") == 0) {
        must(kolo_window_register(comm, data, sizeof data, &window));
        if (rank != ODD) kolo_window_deregister(comm, window);
    } else if (strcmp(how, "register") == 0) {
        if (rank != ODD) kolo_window_register(comm, data, sizeof data, &window);
    } else if (strcmp(how, "split") == 0) {
        if (rank != ODD) kolo_comm_split(comm, 0, 0, &child, NULL);
    } else if (strcmp(how, "finalize") == 0) {
        if (rank != ODD) kolo_comm_finalize(comm);
    } else {
        return 0;
    }
    return 1;
}

/* The odd rank never submits "layer/bias"; with "cached" it did so before, and with "set" it waits in a process
 * set. */
static void lack_a_tensor(kolo_comm_t comm, int rank, const char *how)
{
    static float data[4];
    int64_t shape[1] = {4}, handle;
    const int members[2] = {0, ODD};
    const kolo_rank_list_t set = {members, 2};
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_t kernel = {"layer/kernel", KOLO_FLOAT32, 1, shape, data, data}, bias = kernel;
    kolo_tensor_engine_t engine;
    bool in_set = strcmp(how, "set") == 0;
    bias.name = "layer/bias";
    config.sets = &set;
    config.nsets = 1;
    must(kolo_engine_init(&engine, comm, &config));
    kolo_submission_t where = {.set = in_set ? 1 : 0};
    for (int i = 0; i < (strcmp(how, "cached") == 0 ? 3 : 0); i++) {
        must(kolo_engine_all_reduce(engine, &bias, KOLO_SUM, 1, 1, NULL, &handle));
        must(kolo_engine_wait(engine, handle, 0, NULL));
    }
    must(kolo_engine_all_reduce(engine, &kernel, KOLO_SUM, 1, 1, NULL, &handle));
    must(kolo_engine_wait(engine, handle, 0, NULL));
    if (rank == ODD || (in_set && rank > ODD)) return;
    must(kolo_engine_all_reduce(engine, &bias, KOLO_SUM, 1, 1, &where, &handle));
    must(kolo_engine_wait(engine, handle, 0, NULL));
}

static void get_stuck(kolo_comm_t comm, int rank, int nranks, const char *how)
{
    static float data[4], more[1000];
    kolo_stream_t stream;
    if (call_whole(comm, rank, how)) return;
    if (strcmp(how, "recv") == 0) { /* each waits for the next */
        kolo_recv(data, 4, KOLO_FLOAT32, (rank + 1) % nranks, comm, NULL);
        return;
    }
    if (strcmp(how, "tag") == 0) { /* the odd one sends with another tag, and goes on to wait for anybody */
        int from = rank == ODD ? KOLO_ANY_SOURCE : ODD;
        if (rank == ODD) must(kolo_send_tag(data, 4, KOLO_FLOAT32, 0, 8, comm, NULL));
        must(kolo_recv_tag(data, 4, KOLO_FLOAT32, from, rank == ODD ? 9 : 7, comm, NULL, NULL));
        return;
    }
    if (strcmp(how, "signal") == 0) { /* the odd one sends one where two are awaited, behind one of another rank */
        kolo_signal_wait_t waits[2] = {{rank, 0, 1}, {ODD, 0, 2}};
        kolo_window_t window;
        must(kolo_window_register(comm, data, sizeof data, &window));
        for (int p = 0; rank == ODD && p < nranks; p++) must(kolo_signal(p, 0, comm, NULL));
        if (rank == ODD) return;
        must(kolo_signal(rank, 0, comm, NULL));
        must(kolo_wait_signal(waits, 2, comm, NULL));
    }
    if (strcmp(how, "tensor") == 0 || strcmp(how, "cached") == 0 || strcmp(how, "set") == 0) {
        lack_a_tensor(comm, rank, how);
        return;
    }
    if (rank == ODD && strcmp(how, "stop") == 0) raise(SIGSTOP);
    if (rank == ODD && strcmp(how, "queue") == 0) { /* behind a call that does not return */
        must(kolo_stream_create(&stream));
        must(kolo_stream_call(stream, (void (*)(void *))(uintptr_t)pause, NULL));
        must(kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, comm, stream));
        return;
    }
    if (rank == ODD && strcmp(how, "kill") == 0) return;
    if (strcmp(how, "connect") == 0) { /* too large for the connections that there are */
        if (rank != ODD) kolo_all_reduce(more, more, 1000, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
        return;
    }
    if (strcmp(how, "other") == 0) { /* nobody sends: a message would show at once that the calls differ */
        if (rank == ODD)
            kolo_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, ODD, comm, NULL);
        else
            kolo_broadcast(data, data, 4, KOLO_FLOAT32, ODD, comm, NULL);
        return;
    }
    kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
    while (strcmp(how, "run") == 0) must(kolo_all_reduce(data, data, 4, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
}

int main(int argc, char **argv)
{
    kolo_unique_id_t id;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    if (argc != 5) return 2;
    int rank = atoi(argv[1]), nranks = atoi(argv[2]);
    config.name = "stuck";
    if (rank == 0) {
        must(kolo_get_unique_id(&id));
        must(kolo_unique_id_save(&id, argv[3]));
    } else {
        must(kolo_unique_id_load(&id, argv[3], 20000));
    }
    must(kolo_comm_init_rank(&comm, nranks, id, rank, &config));
    for (int i = 0; i < 20; i++) must(kolo_barrier(comm, NULL));
    printf("ready\n");
    fflush(stdout);
    get_stuck(comm, rank, nranks, argv[4]);
    for (;;) pause();
}
