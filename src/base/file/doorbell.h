/* SPDX-License-Identifier: Apache-2.0
 *
 * Doorbells that several communicators share, so that a process with a hundred of them does not have a hundred, and
 * a hundred of each peer's. A doorbell is an eventfd that is never read: each sleeper watches it edge-triggered in
 * an epoll descriptor of its own, so a ring ends the sleep of all who share it, once, and who is not meant looks
 * and sleeps on.
 *
 * Own ones are shared by what one thread makes: ranks that are threads of one process do not wake each other. A
 * bound on the sharers keeps a ring cheap.
 */
#ifndef KOLO_BASE_FILE_DOORBELL_H
#define KOLO_BASE_FILE_DOORBELL_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>

#define KOLO_DOORBELL_SHARERS 16

typedef struct kolo_doorbell {
    struct kolo_doorbell *next;
    bool own;        /* of this process, to sleep on; else another's (or this one's as met by a name), to ring */
    bool stale;      /* of the process that this one was forked from */
    pthread_t maker; /* of an own one */
    int users;
    uint8_t process[16]; /* whose it is: the address of that process's descriptor server (share/fdpass.h) */
    uint64_t number;     /* among those of its process; never 0, never used again */
    int event_fd;
    int alive_fd; /* of another's: readable when that process has died; -1: it is this one */
} kolo_doorbell_t;

/* Gives one to sleep on. Any thread, like all below. */
kolo_status_t kolo_doorbell_make(kolo_doorbell_t **bell);
/* Knows another process's doorbell by its two descriptors. Takes both, in any case: they are closed if it is known
 * already. */
kolo_status_t kolo_doorbell_meet(const uint8_t process[16], uint64_t number, int event_fd, int alive_fd,
                                 kolo_doorbell_t **bell);
void kolo_doorbell_put(kolo_doorbell_t *bell); /* the last user closes it; NULL is fine */

#endif
