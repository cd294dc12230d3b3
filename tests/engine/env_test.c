/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that knows nothing but the engine: kolorun's variables tell it the rest.
 */
#include <kolo/engine.h>
#include <stdio.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    return 1;
}

static int one_life(float round)
{
    kolo_tensor_engine_t engine;
    kolo_engine_place_t place;
    float x = round;
    int64_t handle;
    const kolo_tensor_t t = {"x", KOLO_FLOAT32, 0, NULL, &x, &x};
    if (kolo_engine_init(&engine, NULL, NULL) != KOLO_OK) return fail("init");
    if (kolo_engine_get_place(engine, &place) != KOLO_OK) return fail("place");
    if (kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, NULL, &handle) != KOLO_OK) return fail("all_reduce");
    if (kolo_engine_wait(engine, handle, 30000, NULL) != KOLO_OK) return fail("wait");
    if (kolo_engine_barrier(engine, NULL, &handle) != KOLO_OK) return fail("barrier");
    if (kolo_engine_wait(engine, handle, 30000, NULL) != KOLO_OK) return fail("wait");
    if (kolo_engine_shutdown(engine) != KOLO_OK) return fail("shutdown");
    if (place.size != 3 || place.local_size != 3 || place.local_rank != place.rank || x != 3 * round) {
        fprintf(stderr, "rank %d of %d: x is %g\n", place.rank, place.size, (double)x);
        return 1;
    }
    return 0;
}

int main(void)
{
    /* Again and again: each time the ranks find each other anew. */
    for (int round = 1; round <= 5; round++)
        if (one_life((float)round) != 0) return 1;
    return 0;
}
