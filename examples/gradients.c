/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensor engine: each rank submits gradients by name, in its own order, and the engine averages them. Run it by
 *     kolorun -n 4 gradients
 */
#include <kolo/engine.h>
#include <stdio.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    return 1;
}

int main(void)
{
    static const char *const names[] = {"layer1/weights", "layer2/weights"};
    float gradients[2][4];
    int64_t handles[2], shape[1] = {4};
    kolo_engine_place_t place;
    kolo_tensor_engine_t engine;
    if (kolo_engine_init(&engine, NULL, NULL) != KOLO_OK) return fail("init"); /* finds the other ranks */
    if (kolo_engine_get_place(engine, &place) != KOLO_OK) return fail("place");
    for (int k = 0; k < 2; k++) {
        int i = (k + place.rank) % 2; /* another order on every other rank */
        for (int j = 0; j < 4; j++) gradients[i][j] = (float)(10 * i + place.rank);
        kolo_tensor_t tensor = {names[i], KOLO_FLOAT32, 1, shape, gradients[i], gradients[i]};
        if (kolo_engine_all_reduce(engine, &tensor, KOLO_AVG, 1, 1, NULL, &handles[i]) != KOLO_OK)
            return fail(names[i]);
    }
    for (int i = 0; i < 2; i++)
        if (kolo_engine_wait(engine, handles[i], 0, NULL) != KOLO_OK) return fail(names[i]);
    printf("rank %d of %d: %g %g\n", place.rank, place.size, (double)gradients[0][0], (double)gradients[1][0]);
    return kolo_engine_shutdown(engine) == KOLO_OK ? 0 : fail("shutdown");
}
