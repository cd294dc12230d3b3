/* SPDX-License-Identifier: Apache-2.0
 *
 * What the training programs of tests add up: samples whose sum is known beforehand, so that a step that is lost,
 * done twice or done by halves is seen in it.
 */
#ifndef KOLO_TEST_SAMPLES_H
#define KOLO_TEST_SAMPLES_H

#include <stdint.h>

#define SAMPLES 13 /* of a step, whoever takes which */

static inline int64_t sample(int64_t step, int i)
{
    return (step * 7919 + i * 104729) % 1000003;
}

static inline int64_t right_sum(int64_t steps)
{
    int64_t sum = 0;
    for (int64_t s = 0; s < steps; s++)
        for (int i = 0; i < SAMPLES; i++) sum += sample(s, i);
    return sum;
}

#endif
