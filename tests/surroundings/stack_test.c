/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that calls Kolo needs 64 KB of stack (kolo.h says so): each call here has a thread of its own with that.
 */
#include <kolo/engine.h>
#include <kolo/message.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES 65536
#define COUNT       100000

static kolo_unique_id_t id;
static kolo_comm_t comm;
static int rank;
static float *x, *all;

static void must(kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    exit(1);
}

static void init(void)
{
    must(kolo_comm_init_rank(&comm, 2, id, rank, NULL), "init");
}

static void collectives(void)
{
    must(kolo_all_reduce(x, x, COUNT, KOLO_FLOAT32, KOLO_SUM, comm, NULL), "all_reduce");
    must(kolo_all_gather(x, all, COUNT, KOLO_FLOAT32, comm, NULL), "all_gather");
    must(kolo_all_reduce(x, x, 1, KOLO_BFLOAT16, KOLO_MAX, comm, NULL), "all_reduce of two bytes");
}

static void group(void)
{
    must(kolo_group_start(), "group_start");
    must(kolo_send(x, COUNT, KOLO_FLOAT32, !rank, comm, NULL), "send");
    must(kolo_recv(all, COUNT, KOLO_FLOAT32, !rank, comm, NULL), "recv");
    must(kolo_group_end(), "group_end");
}

static void tagged(void)
{
    if (rank == 0)
        must(kolo_send_tag(x, COUNT, KOLO_FLOAT32, 1, 7, comm, NULL), "send_tag");
    else
        must(kolo_recv_tag(x, COUNT, KOLO_FLOAT32, KOLO_ANY_SOURCE, 7, comm, NULL, NULL), "recv_tag");
}

static void window(void)
{
    kolo_window_t w;
    must(kolo_window_register(comm, x, COUNT, &w), "window_register");
    must(kolo_window_deregister(comm, w), "window_deregister");
}

static void engine(void)
{
    kolo_tensor_engine_t e;
    int64_t shape[1] = {100}, handle;
    kolo_tensor_t tensor = {"t", KOLO_FLOAT32, 1, shape, x, x};
    must(kolo_engine_init(&e, comm, NULL), "engine_init");
    must(kolo_engine_all_reduce(e, &tensor, KOLO_SUM, 1, 1, NULL, &handle), "engine_all_reduce");
    must(kolo_engine_wait(e, handle, 0, NULL), "engine_wait");
    must(kolo_engine_shutdown(e), "engine_shutdown");
}

static void children(void)
{
    kolo_comm_t child;
    must(kolo_comm_split(comm, 0, -rank, &child, NULL), "split");
    must(kolo_barrier(child, NULL), "barrier");
    must(kolo_comm_finalize(child), "finalize");
    must(kolo_comm_destroy(child), "destroy");
    must(kolo_comm_shrink(comm, NULL, 0, KOLO_SHRINK_DEFAULT, &child, NULL), "shrink");
    must(kolo_comm_abort(child), "abort");
}

static void refused(void)
{
    if (kolo_all_reduce(NULL, x, 10, KOLO_FLOAT32, KOLO_SUM, comm, NULL) == KOLO_OK) exit(1);
}

static void end(void)
{
    must(kolo_comm_finalize(comm), "finalize");
    must(kolo_comm_destroy(comm), "destroy");
}

static void *in_thread(void *what)
{
    (*(void (**)(void))what)();
    return NULL;
}

static int run(void)
{
    void (*steps[])(void) = {init, collectives, group, tagged, window, engine, children, refused, end};
    pthread_attr_t attr;
    pthread_t thread;
    alarm(50);
    x = calloc(COUNT, sizeof *x);
    all = calloc(2 * COUNT, sizeof *all);
    if (!x || !all || pthread_attr_init(&attr) != 0 || pthread_attr_setstacksize(&attr, STACK_BYTES) != 0) return 1;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (pthread_create(&thread, &attr, in_thread, &steps[i]) != 0 || pthread_join(thread, NULL) != 0) return 1;
    free(x);
    free(all);
    return 0;
}

/* Both ranks are children of a process without threads. */
int main(void)
{
    int pipes[2], failed = 0, status;
    if (pipe(pipes) != 0) return 1;
    for (int r = 0; r < 2; r++) {
        if (fork() != 0) continue;
        rank = r;
        if (r == 0) must(kolo_get_unique_id(&id), "id");
        if (r == 0 && write(pipes[1], &id, sizeof id) != sizeof id) exit(1);
        if (r == 1 && read(pipes[0], &id, sizeof id) != sizeof id) exit(1);
        exit(run());
    }
    while (wait(&status) > 0) failed += status != 0;
    return failed;
}
