/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows in random programs: two of a communicator at once, each with its own pattern of who has memory and who
 * made it, puts from all to all who have, and an end in either order.
 */
#include "programs/windows.h"

#include <stdlib.h>
#include <string.h>

#define PLACE_MOST 9000 /* bytes of one rank's part */

typedef struct {
    kolo_window_t window;
    unsigned has, made; /* bit maps of ranks: have memory; of Kolo's making */
    size_t place;
    uint8_t *own, *at;
} window_t;

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull; /* Knuth, MMIX */
    return *seed >> 33;
}

static bool open_one(window_t *w, kolo_comm_t comm, int rank, int nranks, uint64_t *seed)
{
    size_t bytes;
    w->has = (unsigned)draw(seed);
    w->made = (unsigned)draw(seed);
    w->place = 1 + draw(seed) % PLACE_MOST;
    bool mine = w->has >> rank & 1, kolos = w->made >> rank & 1;
    bytes = mine ? w->place * (size_t)nranks : 0;
    w->own = mine && !kolos ? calloc(1, bytes) : NULL;
    return EXPECT_OK(kolo_window_register(comm, w->own, bytes, &w->window)) &&
           EXPECT_OK(kolo_window_memory(comm, w->window, (void **)&w->at, NULL));
}

static bool put_all(const window_t *w, kolo_comm_t comm, int rank, int nranks, int signal)
{
    uint8_t src[PLACE_MOST];
    bool ok = true;
    memset(src, rank + 1, sizeof src);
    for (int i = 0; i < nranks; i++) {
        int to = (rank + i) % nranks;
        if (w->has >> to & 1)
            ok = EXPECT_OK(kolo_put_signal(src, w->place, KOLO_UINT8, to, w->window, (size_t)rank * w->place,
                                           signal, comm, NULL)) &&
                 ok;
    }
    return ok;
}

static bool check_all(const window_t *w, kolo_comm_t comm, int rank, int nranks, int signal)
{
    bool ok = true;
    if (!(w->has >> rank & 1)) return true;
    for (int from = nranks - 1; from >= 0 && ok; from--) {
        const kolo_signal_wait_t wait = {from, signal, 1};
        ok = EXPECT_OK(kolo_wait_signal(&wait, 1, comm, NULL));
        for (size_t i = 0; i < w->place && ok; i++) ok = EXPECT(w->at[(size_t)from * w->place + i] == from + 1);
    }
    return ok;
}

bool program_windows(kolo_comm_t comm, int rank, int nranks, uint64_t seed)
{
    window_t w[2] = {0};
    bool ok = open_one(&w[0], comm, rank, nranks, &seed);
    bool late = draw(&seed) % 2;
    if (ok && late) ok = put_all(&w[0], comm, rank, nranks, 0);
    ok = ok && open_one(&w[1], comm, rank, nranks, &seed);
    if (ok && !late) ok = put_all(&w[0], comm, rank, nranks, 0);
    ok = ok && put_all(&w[1], comm, rank, nranks, 1);
    for (int i = 0; i < 2 && ok; i++) ok = check_all(&w[i], comm, rank, nranks, i);
    int first = (int)(draw(&seed) % 2);
    for (int i = 0; i < 2 && ok; i++) ok = EXPECT_OK(kolo_window_deregister(comm, w[i ^ first].window));
    for (int i = 0; i < 2; i++) free(w[i].own);
    return ok;
}
