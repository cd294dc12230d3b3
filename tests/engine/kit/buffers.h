/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of device memory share: a fake device for each rank, and buffers of floats that are there or here.
 */
#ifndef KOLO_TESTS_ENGINE_KIT_BUFFERS_H
#define KOLO_TESTS_ENGINE_KIT_BUFFERS_H

#include "engine/kit/engines.h"
#include "engine/kit/fake_device.h"

#define FAKES 3
#define SMALL 40
#define LARGE 100000 /* more bytes than what is packed by default */

extern fake_t *fakes[FAKES]; /* rank r has device r */

/* run_engines() with fake devices, of these flags, around it. */
int run_on_fakes(int n, unsigned flags, const kolo_engine_config_t *config, void (*fn)(erank_t *));

typedef struct {
    fake_t *f; /* NULL: of the CPU */
    fake_queue_t *q;
    float *memory;
    int64_t count;
} buffer_t;

void make(buffer_t *b, fake_t *f, fake_queue_t *q, int64_t count);
void drop(buffer_t *b);
/* Element k becomes first + k % 5; queued, if it is there. */
void fill(buffer_t *b, float first);
/* Each element is a times that. Waits. */
bool holds(const buffer_t *b, float a, float first);
kolo_tensor_t tensor_of(const char *name, buffer_t *b); /* in place */

#endif
