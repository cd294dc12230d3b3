/* SPDX-License-Identifier: Apache-2.0
 *
 * One agreement of the ranks of a set.
 */
#ifndef KOLO_ENGINE_CONTROLLER_NEGOTIATE_H
#define KOLO_ENGINE_CONTROLLER_NEGOTIATE_H

#include "engine/controller/controller.h"

struct kolo_set;

/* negotiate.c: one agreement. What is to be done stands in engine->ordered[0..count), in the same order on all
 * ranks; the new ones of it are in `fresh`. */
typedef struct {
    size_t count;
    bool news;  /* something has moved and something is left, so more may: the next cycle follows at once */
    bool left;  /* some rank has tensors, or more, that were not agreed on by this */
    bool stop;  /* some rank shuts the engine down */
    bool yield; /* some rank has a turn of another set waiting */
} kolo_outcome_t;
kolo_status_t kolo_controller_negotiate(struct kolo_set *s, kolo_responses_t *fresh, kolo_outcome_t *outcome);
size_t kolo_controller_vector_words(const struct kolo_set *s); /* of the next agreement */
/* Sends engine->requests to the coordinator and appends what it says to `fresh` (slow.c). */
kolo_status_t kolo_controller_negotiate_slow(struct kolo_set *s, size_t nrequests, kolo_responses_t *fresh);

#endif
