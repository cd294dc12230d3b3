/* SPDX-License-Identifier: Apache-2.0
 *
 * See shards.h.
 */
#include "shards.h"

#include "random.h"

void shards_order(int *order, int count, uint64_t seed, int epoch)
{
    uint64_t state = random_mix(seed) + (uint64_t)epoch;
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j = (int)random_below(&state, (uint64_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

int shards_steps(int count)
{
    return (count + STEP_SAMPLES - 1) / STEP_SAMPLES;
}

span_t shards_step(int count, int step)
{
    span_t s = {step * STEP_SAMPLES, (step + 1) * STEP_SAMPLES};
    if (s.end > count) s.end = count;
    return s;
}

span_t shards_of_rank(int count, int step, int rank, int nranks)
{
    span_t s = shards_step(count, step);
    int blocks = (s.end - s.first + BLOCK_SAMPLES - 1) / BLOCK_SAMPLES;
    span_t mine = {s.first + blocks * rank / nranks * BLOCK_SAMPLES,
                   s.first + blocks * (rank + 1) / nranks * BLOCK_SAMPLES};
    if (mine.end > s.end) mine.end = s.end;
    return mine;
}

span_t shards_block(span_t mine, int first)
{
    int end = first + BLOCK_SAMPLES;
    return (span_t){first, end < mine.end ? end : mine.end};
}

bool shards_book(uint8_t *ledger, const uint8_t *used, int count, const int *order, int step)
{
    span_t s = shards_step(count, step);
    int sum = 0;
    for (int i = s.first; i < s.end; i++)
        if (used[order[i]] != 1) return false;
    for (int i = 0; i < count; i++) {
        sum += used[i];
        if (ledger[i] + used[i] > 1) return false;
    }
    if (sum != s.end - s.first) return false;
    for (int i = 0; i < count; i++) ledger[i] = (uint8_t)(ledger[i] + used[i]);
    return true;
}

bool shards_complete(const uint8_t *ledger, int count)
{
    for (int i = 0; i < count; i++)
        if (ledger[i] != 1) return false;
    return true;
}
