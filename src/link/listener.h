/* SPDX-License-Identifier: Apache-2.0
 *
 * What listeners (listener.c) and their callers (accept.c) share. Progress thread only.
 */
#ifndef KOLO_LINK_LISTENER_H
#define KOLO_LINK_LISTENER_H

#include "link/link.h"

struct kolo_listener {
    kolo_progress_t *progress;
    int fd;
    kolo_watch_t *watch;
    kolo_key_t key;
    kolo_address_t address;
    const kolo_listener_ops_t *ops;
    void *owner;
    bool paused;
    kolo_listener_t *next_paused;
    uint64_t starved_ns; /* since when it has lacked descriptors; 0: it does not */
};

/* ---- accept.c ---- */

/* Tells whether as many callers wait as may. */
bool kolo_caller_full(void);
/* Greets a new caller; takes the descriptor. */
struct sockaddr;
void kolo_caller_greet(kolo_listener_t *listener, int fd, const struct sockaddr *from);
/* Accepts nobody until there is room for callers, or descriptors may be free again. */
void kolo_listener_pause(kolo_listener_t *listener);
/* Drops all callers of a listener that is being closed, and never resumes it. */
void kolo_caller_drop_all(kolo_listener_t *listener);

#endif
