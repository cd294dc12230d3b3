/* SPDX-License-Identifier: Apache-2.0
 *
 * Many messages with tags end at their time limit in one moment while others on the same connection go out: the end
 * of the one may complete the other. Ranks are processes.
 */
#include "kit/procs.h"

#include <kolo/message.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAIRS    400
#define ROUNDS   20
#define BYTES    66000 /* the receiver has to ask for it */
#define LIMIT_MS 5

enum { WANTED = 1, UNWANTED, READY };

static uint8_t data[BYTES];

static kolo_request_t begin(proc_t *p, bool sends, uint64_t tag, int timeout_ms)
{
    kolo_request_t request = NULL;
    kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
    opts.timeout_ms = timeout_ms;
    if (sends)
        EXPECT_OK(kolo_isend_tag(data, BYTES, KOLO_UINT8, 1, tag, p->r.comm, &opts, &request));
    else
        EXPECT_OK(kolo_irecv_tag(data, BYTES, KOLO_UINT8, 0, tag, p->r.comm, &opts, &request));
    return request;
}

static void end(kolo_request_t request, kolo_status_t want)
{
    EXPECT(kolo_request_wait(request, -1) == want);
    EXPECT_OK(kolo_request_free(request));
}

static void tell(proc_t *p, int peer)
{
    EXPECT_OK(kolo_send_tag(NULL, 0, KOLO_UINT8, peer, READY, p->r.comm, NULL));
}

static void await(proc_t *p, int peer)
{
    EXPECT_OK(kolo_recv_tag(NULL, 0, KOLO_UINT8, peer, READY, p->r.comm, NULL, NULL));
}

static void until_stopped(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (int i = 0; i < 20000 && state != 'T'; i++) {
        FILE *file = fopen(path, "r");
        if (!file) break;
        EXPECT(fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        fclose(file);
        if (state != 'T') nap_ms(1);
    }
    EXPECT(state == 'T');
}

/* Stops its process, so that all limits are over when it goes on, and the messages that are wanted are on their
 * way. */
static void send_round(proc_t *p)
{
    kolo_request_t wanted[PAIRS], unwanted[PAIRS];
    await(p, 1);
    for (int i = 0; i < PAIRS; i++) {
        wanted[i] = begin(p, true, WANTED, 0);
        unwanted[i] = begin(p, true, UNWANTED, LIMIT_MS);
    }
    tell(p, 1);
    raise(SIGSTOP);
    for (int i = 0; i < PAIRS; i++) {
        end(wanted[i], KOLO_OK);
        end(unwanted[i], KOLO_ERR_TIMEOUT);
    }
}

static void receive_round(proc_t *p, pid_t sender)
{
    kolo_request_t wanted[PAIRS];
    for (int i = 0; i < PAIRS; i++) wanted[i] = begin(p, false, WANTED, 0);
    tell(p, 0);
    await(p, 0);
    until_stopped(sender);
    nap_ms(LIMIT_MS);
    EXPECT(kill(sender, SIGCONT) == 0);
    for (int i = 0; i < PAIRS; i++) end(wanted[i], KOLO_OK);
}

static void rounds(proc_t *p)
{
    pid_t sender = getpid();
    if (p->r.rank == 0)
        EXPECT_OK(kolo_send_tag(&sender, sizeof sender, KOLO_UINT8, 1, READY, p->r.comm, NULL));
    else
        EXPECT_OK(kolo_recv_tag(&sender, sizeof sender, KOLO_UINT8, 0, READY, p->r.comm, NULL, NULL));
    for (int i = 0; i < ROUNDS; i++)
        if (p->r.rank == 0)
            send_round(p);
        else
            receive_round(p, sender);
}

static void limits_that_are_over_together_leave_the_others_whole(void **state)
{
    static const char *const plain[] = {NULL};
    (void)state;
    job_t job;
    job_start(&job, 2, plain, rounds, NULL);
    int wrong = job_finish(&job, -1);
    munmap(job.shared, sizeof *job.shared);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits_that_are_over_together_leave_the_others_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
