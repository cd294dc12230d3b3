/* SPDX-License-Identifier: Apache-2.0
 *
 * Who computes which samples. An epoch is a random order of all training images, cut into steps of STEP_SAMPLES and
 * these into blocks of BLOCK_SAMPLES. The steps do not depend on the number of ranks; the blocks of a step are
 * dealt out to however many there are.
 */
#ifndef DIGITS_SHARDS_H
#define DIGITS_SHARDS_H

#include <stdbool.h>
#include <stdint.h>

#define STEP_SAMPLES  64
#define BLOCK_SAMPLES 4

typedef struct {
    int first, end; /* places in the epoch's order: first..end-1 */
} span_t;

/* The order of epoch `epoch`: each of 0..count-1 once. */
void shards_order(int *order, int count, uint64_t seed, int epoch);
/* Steps of an epoch of `count` samples; the last one may be smaller. */
int shards_steps(int count);
/* The samples of step `step` of an epoch of `count` samples. */
span_t shards_step(int count, int step);
/* What rank `rank` of `nranks` does of it: whole blocks, except the last one of the epoch. */
span_t shards_of_rank(int count, int step, int rank, int nranks);
/* The block that begins at `first` within what a rank does. */
span_t shards_block(span_t mine, int first);

/* The ledger: how often each sample was in a committed step of this epoch. Adds what a step has used; false, and
 * nothing is added, when a sample would be counted twice, or others than the step's were used. */
bool shards_book(uint8_t *ledger, const uint8_t *used, int count, const int *order, int step);
/* Was each sample counted exactly once? */
bool shards_complete(const uint8_t *ledger, int count);

#endif
