/* SPDX-License-Identifier: Apache-2.0
 *
 * See train.h. Stochastic gradient descent with momentum; the rate falls along a half cosine.
 */
#include "train.h"

#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RATE     0.05f
#define MOMENTUM 0.9f
#define GRID     (1.5 * (1 << 20)) /* its last bit as a double is 2^-32: adding it rounds to multiples of that */
#define GRID_END 1024.0            /* a mean gradient beyond this is not training any more */

_Static_assert(sizeof(state_t) % 8 == 0, "the hash takes words");

bool train_open(train_t *t, const images_t *images, int epochs, uint64_t seed)
{
    *t = (train_t){.images = images, .seed = seed, .epochs = epochs, .order_epoch = -1};
    t->state = calloc(1, sizeof *t->state);
    t->gradient = calloc(NET_PARAMS, sizeof *t->gradient);
    t->block = calloc(NET_PARAMS, sizeof *t->block);
    t->pass = calloc(STEP_SAMPLES, sizeof *t->pass);
    t->used = calloc((size_t)images->count, 1);
    t->order = calloc((size_t)images->count, sizeof *t->order);
    if (!t->state || !t->gradient || !t->block || !t->pass || !t->used || !t->order) {
        train_close(t);
        return false;
    }
    net_init(t->state->weights, seed);
    return true;
}

void train_close(train_t *t)
{
    free(t->state);
    free(t->gradient);
    free(t->block);
    free(t->pass);
    free(t->used);
    free(t->order);
    memset(t, 0, sizeof *t);
}

uint64_t train_steps(const train_t *t)
{
    return (uint64_t)t->epochs * (uint64_t)shards_steps(t->images->count);
}

int train_epoch(const train_t *t, uint64_t step)
{
    return (int)(step / (uint64_t)shards_steps(t->images->count));
}

static int step_in_epoch(const train_t *t)
{
    return (int)(t->state->step % (uint64_t)shards_steps(t->images->count));
}

static void look_up_order(train_t *t)
{
    int epoch = train_epoch(t, t->state->step);
    if (t->order_epoch == epoch) return;
    shards_order(t->order, t->images->count, t->seed, epoch);
    t->order_epoch = epoch;
}

static double to_grid(double x)
{
    return x + GRID - GRID;
}

int train_samples(const train_t *t)
{
    span_t span = shards_step(t->images->count, step_in_epoch(t));
    return span.end - span.first;
}

static void forward(train_t *t, span_t mine)
{
    t->loss = 0;
    memset(t->used, 0, (size_t)t->images->count);
    for (int first = mine.first; first < mine.end; first += BLOCK_SAMPLES) {
        span_t block = shards_block(mine, first);
        int count = block.end - block.first;
        t->loss += to_grid((double)net_forward(t->state->weights, t->images, t->order + first, count,
                                               t->pass + (first - mine.first)));
        for (int i = block.first; i < block.end; i++) t->used[t->order[i]]++;
    }
}

static void backward(train_t *t, span_t mine, int layer)
{
    const net_tensor_t *bias = &net_tensors[net_tensors_of(layer)], *weight = bias + 1;
    size_t begin = weight->first, end = bias->first + bias->count; /* a layer's biases lie behind its weights */
    memset(t->gradient + begin, 0, (end - begin) * sizeof *t->gradient);
    for (int first = mine.first; first < mine.end; first += BLOCK_SAMPLES) {
        span_t block = shards_block(mine, first);
        memset(t->block + begin, 0, (end - begin) * sizeof *t->block);
        net_backward(t->state->weights, layer, t->pass + (first - mine.first), block.end - block.first, t->block);
        for (size_t i = begin; i < end; i++) t->gradient[i] += to_grid((double)t->block[i]);
    }
}

void train_compute(train_t *t, int rank, int nranks, train_ready_fn ready, void *arg)
{
    look_up_order(t);
    span_t mine = shards_of_rank(t->images->count, step_in_epoch(t), rank, nranks);
    forward(t, mine);
    for (int layer = NET_LAYERS - 1; layer >= 0; layer--) {
        backward(t, mine, layer);
        for (int i = 0; ready && i < 2; i++) ready(arg, &net_tensors[net_tensors_of(layer) + i]);
    }
}

static float rate(const train_t *t)
{
    float part = (float)t->state->step / (float)train_steps(t);
    return RATE * 0.5f * (1 + cosf(3.14159265f * part));
}

static bool is_sound(const train_t *t)
{
    bool sound = fabs(t->loss) < GRID_END;
    for (int i = 0; i < NET_PARAMS; i++) sound &= fabs(t->gradient[i]) < GRID_END; /* false for what is no number */
    return sound;
}

bool train_update(train_t *t, const char **why)
{
    state_t *s = t->state;
    int step = step_in_epoch(t), images = t->images->count, samples = train_samples(t);
    float by = rate(t);
    if (!is_sound(t)) {
        *why = "the gradients have no sensible values any more";
        return false;
    }
    if (!shards_book(s->ledger, t->used, images, t->order, step)) {
        *why = "a sample of the step was left out or counted twice";
        return false;
    }
    if (step == shards_steps(images) - 1) {
        if (!shards_complete(s->ledger, images)) {
            *why = "the epoch ends and a sample was not used exactly once";
            return false;
        }
        memset(s->ledger, 0, sizeof s->ledger);
    }
    for (int i = 0; i < NET_PARAMS; i++) {
        s->velocity[i] = MOMENTUM * s->velocity[i] + (float)t->gradient[i];
        s->weights[i] = s->weights[i] - by * s->velocity[i];
    }
    s->step++;
    s->samples += (uint64_t)samples;
    return true;
}

uint64_t train_hash(const state_t *state)
{
    return random_hash(state, sizeof *state);
}
