/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are through end in any order and way; who still works hears nothing (KOLO_QUIET_EXIT, 0101).
 */
#include "kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_S 0.06 /* so long who is left looks for an error after each end */

static ncclResult_t error_within(ncclComm_t comm, double s)
{
    struct timespec t;
    ncclResult_t now = ncclSuccess;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double end = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec + s, at = 0;
    while (now == ncclSuccess && at < end) {
        OK(ncclCommGetAsyncError(comm, &now));
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        clock_gettime(CLOCK_MONOTONIC, &t);
        at = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return now;
}

static void order_of(int n, int number, int *order)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = 0; i < n - 1; i++) { /* the number's digits choose who is next */
        int j = i + number % (n - i), other = order[j];
        number /= n - i;
        order[j] = order[i];
        order[i] = other;
    }
}

static void end_by(int way, ncclComm_t comm)
{
    if (way == 0) OK(ncclCommDestroy(comm));
    if (way == 1) OK(ncclCommAbort(comm));
    if (way == 2) {
        OK(ncclCommFinalize(comm));
        OK(ncclCommDestroy(comm));
    }
}

/* All orders of three ranks, the k-th of which ends by the k-th digit of `ways`. */
static void ranks_end_in_any_order_and_way(me_t *me)
{
    int order[RANKS_MAX], n = me->n < 3 ? me->n : 3;
    for (int number = 0; number < 6; number++)
        for (int ways = number; ways < 27; ways += 5) {
            ncclComm_t child = NULL;
            order_of(n, number, order);
            OK(ncclCommSplit(me->comm, me->rank < n ? 0 : NCCL_SPLIT_NOCOLOR, me->rank, &child, NULL));
            if (child) works(me, child, n);
            meet(me);
            for (int k = 0, digits = ways; k < n; k++, digits /= 3) {
                if (me->rank == order[k]) {
                    end_by(digits % 3, child);
                    child = NULL;
                }
                meet(me);
                if (child && !IS(ncclSuccess, error_within(child, LOOK_S / 6)))
                    printf("order %d %d %d, ways %d\n", order[0], order[1], order[2], ways);
            }
            works(me, me->comm, me->n);
        }
}

/* The sender is through and gone; the receiver's stream comes to the message later. */
static void what_has_arrived_is_received_after_its_sender_has_gone(me_t *me)
{
    for (int ways = 0; ways < 6; ways++) {
        ncclComm_t child = NULL;
        float *a = floats(me, 10, (float)(7 + ways)), *b = floats(me, 10, 0);
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        works(me, child, me->n);
        meet(me);
        if (me->rank == 0) {
            OK(ncclSend(a, 10, ncclFloat32, 1, child, me->stream));
            sync_stream(me);
        } else if (me->rank == 1) {
            delay_stream(me, 300);
            OK(ncclRecv(b, 10, ncclFloat32, 0, child, me->stream));
        }
        meet(me);
        if (me->rank != 1) end_by(ways % 3, child);
        if (me->rank == 1 && ways < 3) { /* it waits in destroy, or for its stream */
            OK(ncclCommDestroy(child));
        } else if (me->rank == 1) {
            IS(ncclSuccess, error_within(child, LOOK_S));
            sync_stream(me);
            IS(ncclSuccess, error_within(child, LOOK_S));
            OK(ncclCommDestroy(child));
        }
        sync_stream(me);
        if (me->rank == 1) EQ(at(me, b, 9), 7 + ways);
        meet(me);
    }
    works(me, me->comm, me->n);
}

/* Nobody meets anybody: some abort while others leave. */
static void ranks_end_at_once(me_t *me)
{
    const char *text = getenv("ENDS_AT_ONCE");
    for (int i = 0, n = text ? atoi(text) : 25; i < n; i++) {
        ncclComm_t child = NULL;
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        works(me, child, me->n);
        end_by((i / (me->rank * 2 + 1) + me->rank) % 3, child);
    }
    works(me, me->comm, me->n);
}

/* A process each: the rank's turn comes, it exits without a word; who is left then calls, or ends, too. */
static void processes_exit_in_order(me_t *me, int number)
{
    int order[RANKS_MAX];
    ncclComm_t other = NULL;
    order_of(me->n, number, order);
    OK(ncclCommSplit(me->comm, 0, me->rank, &other, NULL));
    works(me, me->comm, me->n);
    works(me, other, me->n);
    meet(me);
    for (int k = 0; k < me->n; k++) {
        /* all count along, those that have gone too: nobody waits for them */
        me_t left = *me;
        left.n = me->n - k;
        if (k) meet(&left);
        if (me->rank == order[k]) {
            if (k == me->n - 1) break; /* the last one ends in order */
            meet(&left);
            exit(0);
        }
        meet(&left);
        IS(ncclSuccess, error_within(me->comm, LOOK_S));
        IS(ncclSuccess, error_within(other, LOOK_S));
    }
    OK(ncclCommDestroy(other));
    OK(ncclCommDestroy(me->comm));
    me->comm = NULL;
}

/* Sent, destroyed, gone without a word: the receiver is later than all that. */
static void what_was_sent_before_exit_arrives(me_t *me)
{
    enum { N = 10000 }; /* more than one frame: they come over the messages' own connection */
    float *a = floats(me, N, 7), *b = floats(me, N, 0);
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == 0) {
        OK(ncclSend(a, N, ncclFloat32, 1, me->comm, me->stream));
        OK(ncclCommDestroy(me->comm));
        _exit(0);
    }
    if (me->rank == 1) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        OK(ncclRecv(b, N, ncclFloat32, 0, me->comm, me->stream));
        sync_stream(me);
        EQ(at(me, b, N - 1), 7);
    }
    OK(ncclCommDestroy(me->comm));
    me->comm = NULL;
}

#define ORDER(number)                                                                                              \
    static void processes_exit_in_order_##number(me_t *me)                                                         \
    {                                                                                                              \
        processes_exit_in_order(me, number);                                                                       \
    }
ORDER(0)
ORDER(1)
ORDER(2)
ORDER(3)
ORDER(4)
ORDER(5)

const case_t ends_cases[] = {
    {"ranks_end_in_any_order_and_way", ranks_end_in_any_order_and_way, EACH},
    {"what_has_arrived_is_received_after_its_sender_has_gone",
     what_has_arrived_is_received_after_its_sender_has_gone, EACH},
    {"ranks_end_at_once", ranks_end_at_once, EACH},
    {"what_was_sent_before_exit_arrives", what_was_sent_before_exit_arrives, PROCESSES},
    {"processes_exit_in_order_0", processes_exit_in_order_0, PROCESSES},
    {"processes_exit_in_order_1", processes_exit_in_order_1, PROCESSES},
    {"processes_exit_in_order_2", processes_exit_in_order_2, PROCESSES},
    {"processes_exit_in_order_3", processes_exit_in_order_3, PROCESSES},
    {"processes_exit_in_order_4", processes_exit_in_order_4, PROCESSES},
    {"processes_exit_in_order_5", processes_exit_in_order_5, PROCESSES},
    {NULL, NULL, EACH},
};
