/* SPDX-License-Identifier: Apache-2.0
 *
 * One training step, apart from its communication: compute my share of the gradients, make the next state of their
 * sums. Whoever keeps a copy of the state can repeat a step that failed half way, with however many ranks are left.
 *
 * Weights do not depend on the number of ranks, bit by bit: gradients are summed in blocks of few samples, each
 * computed whole by one rank; a block's sum is rounded to a multiple of 2^-32, and sums of such numbers in float64
 * are exact below 2^20, in whatever order they are made.
 */
#ifndef DIGITS_TRAIN_H
#define DIGITS_TRAIN_H

#include "data.h"
#include "net.h"
#include "shards.h"

typedef struct {
    uint64_t step;    /* steps made so far */
    uint64_t samples; /* in them */
    float weights[NET_PARAMS], velocity[NET_PARAMS];
    uint8_t ledger[MOST_IMAGES]; /* of this epoch; see shards.h */
} state_t;

typedef struct {
    const images_t *images;
    uint64_t seed;
    int epochs;
    state_t *state;
    double *gradient; /* NET_PARAMS. Before train_update(): summed over ranks and divided by train_samples() */
    double loss;      /* the same */
    uint8_t *used;    /* how often each image was used. Before train_update(): summed over ranks */
    float *block;
    net_pass_t *pass; /* of the images of a step */
    int *order, order_epoch;
} train_t;

/* Borrows the images. False: out of memory. */
bool train_open(train_t *t, const images_t *images, int epochs, uint64_t seed);
void train_close(train_t *t);

uint64_t train_steps(const train_t *t);
int train_epoch(const train_t *t, uint64_t step);
/* How many there are in the step behind the state. */
int train_samples(const train_t *t);
/* Fills loss, used and gradient with the share of `rank` in that step. Calls `ready` (unless NULL) with each tensor
 * of the gradient as soon as it is complete, while those of the layers below are still to be computed. */
typedef void (*train_ready_fn)(void *arg, const net_tensor_t *tensor);
void train_compute(train_t *t, int rank, int nranks, train_ready_fn ready, void *arg);
/* Moves the state on by what was summed. False, with the reason, and nothing done, when the sums cannot be
 * right. */
bool train_update(train_t *t, const char **why);
uint64_t train_hash(const state_t *state);

#endif
