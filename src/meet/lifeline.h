/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection of a check-in, kept until the bootstrap is over (lifeline.c).
 */
#ifndef KOLO_MEET_LIFELINE_H
#define KOLO_MEET_LIFELINE_H

#include "base/status.h"
#include "link/seal.h"
#include "progress/progress.h"

#include <stdbool.h>

typedef struct kolo_lifeline kolo_lifeline_t;
/* On the progress thread. KOLO_IN_PROGRESS: `text` is news. Else it is the last word, once, and the line is to be
 * closed, here or later. KOLO_OK: the other end has said that all is well. Else it failed, and `text` says how, or
 * is empty: it ended without a word. */
typedef void (*kolo_lifeline_fn_t)(void *arg, int tag, kolo_status_t status, const char *text);
/* Tells whether this process may keep one more. */
bool kolo_lifeline_room(void);
/* Takes the socket in any case. */
kolo_status_t kolo_lifeline_open(kolo_progress_t *progress, kolo_socket_t socket, int tag, kolo_lifeline_fn_t fn,
                                 void *arg, kolo_lifeline_t **line);
/* Sends news to the other end, which does without where its buffer is full. On the progress thread. NULL is fine.
 */
void kolo_lifeline_tell(kolo_lifeline_t *line, const char *text);
/* Closes it with a last word, or without (text NULL). NULL is fine. Any thread without a lock that fn takes. */
void kolo_lifeline_close(kolo_lifeline_t *line, kolo_status_t status, const char *text);

#endif
