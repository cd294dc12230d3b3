/* SPDX-License-Identifier: Apache-2.0
 *
 * See buffers.h.
 */
#include "engine/kit/buffers.h"

#include <stdlib.h>
#include <string.h>

fake_t *fakes[FAKES];

static void begin(unsigned flags)
{
    for (int i = 0; i < FAKES; i++) fakes[i] = fake_new(i, 7 + (uint64_t)i, flags);
}

static void end(void)
{
    for (int i = 0; i < FAKES; i++) fake_end(fakes[i]);
}

int run_on_fakes(int n, unsigned flags, const kolo_engine_config_t *config, void (*fn)(erank_t *))
{
    begin(flags);
    int failures = run_engines(n, config, fn, NULL);
    end();
    return failures;
}

TEST_PLAIN static void make_values(float *values, int64_t count, float first)
{
    for (int64_t k = 0; k < count; k++) values[k] = first + (float)(k % 5);
}

TEST_PLAIN static bool are_values(const float *values, int64_t count, float a, float first)
{
    bool good = true;
    for (int64_t k = 0; k < count; k++) good &= values[k] == a * (first + (float)(k % 5));
    return good;
}

void fill(buffer_t *b, float first)
{
    float *values = malloc((size_t)b->count * sizeof *values + 1);
    make_values(values, b->count, first);
    if (b->f)
        fake_write(b->q, b->memory, values, (size_t)b->count * sizeof *values);
    else
        memcpy(b->memory, values, (size_t)b->count * sizeof *values);
    free(values);
}

void make(buffer_t *b, fake_t *f, fake_queue_t *q, int64_t count)
{
    size_t bytes = (size_t)count * sizeof(float);
    *b = (buffer_t){f, q, f ? fake_alloc(f, bytes) : malloc(bytes + 1), count};
}

bool holds(const buffer_t *b, float a, float first)
{
    float *values = malloc((size_t)b->count * sizeof *values + 1);
    if (b->f)
        fake_read(b->q, b->memory, values, (size_t)b->count * sizeof *values);
    else
        memcpy(values, b->memory, (size_t)b->count * sizeof *values);
    bool good = are_values(values, b->count, a, first);
    free(values);
    return good;
}

void drop(buffer_t *b)
{
    if (b->f)
        fake_free(b->f, b->memory);
    else
        free(b->memory);
}

kolo_tensor_t tensor_of(const char *name, buffer_t *b)
{
    return (kolo_tensor_t){name, KOLO_FLOAT32, 1, &b->count, b->memory, b->memory};
}
