/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators of GPUs that their ranks leave one by one, each in an order of its own, and destroy at once; and
 * waiting for one communicator's operations. See clients.h.
 */
#include "clients.h"

#include <string.h>

/* Waits for what is queued on a stream that is held on one rank while the others are in the wait. */
static bool synchronized(kit_team_t *t)
{
    bool good = true;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_put(r, A, COUNT, 41, r->streams[0]) && kit_sync(r, r->streams[0]);
        if (good && r->rank == 0) good = kit_hold(r, r->streams[0]);
    }
    good = good && clients_begin(t);
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_sum(r, A, B, r->streams[0]) && clients_sum(r, B, C, r->streams[1]);
    }
    good = good && clients_end(t);
    for (int k = 0; k < 50; k++) kit_nap();
    for (int i = 0; i < t->n; i++)
        if (t->ranks[i].rank == 0) kit_let_go(&t->ranks[i]);
    for (int i = 0; i < t->n && good; i++) good = KIT_OK(kolo_comm_synchronize(t->ranks[i].comm));
    for (int i = 0; i < t->n && good; i++) {
        void *other = kit_stream_new(&t->ranks[i]); /* which waits for neither */
        good = other && clients_is_sum(&t->ranks[i], C, COUNT, 41, 2, other, "after a wait");
        kit_stream_end(&t->ranks[i], other);
    }
    return kit_case_end(t, good, "a wait for a communicator's operations");
}

/* A communicator's ranks leave it. At once: it is destroyed, too, whatever the others still do. */
static bool leave(kit_team_t *t, kolo_comm_t *comms)
{
    bool good = clients_begin(t);
    for (int i = 0; i < t->n && good; i++) good = KIT_OK(kolo_comm_leave(comms[i]));
    good = good && clients_end(t);
    for (int i = 0; i < t->n; i++) good = KIT_OK(kolo_comm_destroy(comms[i])) && good;
    return good;
}

/* Both communicators have operations that wait for a rank that is late. */
static bool left_in_any_order(kit_team_t *t)
{
    enum { COMMS = 2 };
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS], made[COMMS][KIT_RANKS];
    bool good = true;
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    for (int c = 0; c < COMMS; c++) {
        if (!kit_comms_make(t, &config)) return false;
        for (int i = 0; i < t->n; i++) made[c][i] = t->ranks[i].comm;
    }
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_put(r, A, COUNT, 42, r->streams[0]) && kit_sync(r, r->streams[0]);
    }
    if (t->n == 1 && t->ranks[0].rank == 0) /* the others are in their calls by then */
        for (int k = 0; k < 50; k++) kit_nap();
    for (int c = 0; c < COMMS && good; c++) {
        good = clients_begin(t);
        for (int i = 0; i < t->n && good; i++) {
            t->ranks[i].comm = made[c][i];
            good = clients_sum(&t->ranks[i], A, c ? C : B, t->ranks[i].streams[c]);
        }
        good = good && clients_end(t);
    }
    for (int c = 0; c < COMMS && good; c++) good = leave(t, made[t->ranks[0].rank % 2 ? 1 - c : c]);
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], B, COUNT, 42, 1, t->ranks[i].streams[0], "left") &&
               clients_is_sum(&t->ranks[i], C, COUNT, 42, 1, t->ranks[i].streams[1], "left");
    for (int i = 0; i < t->n; i++) t->ranks[i].comm = first[i];
    return kit_case_end(t, good, "communicators that each rank leaves in another order");
}

/* The sender has left and destroyed the communicator when the receiver asks for its message. */
static bool left_before_the_others_come(kit_team_t *t, size_t count)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t first = r->comm, mine;
    if (t->n > 1) return true;
    if (!kit_comms_make(t, &config)) return false;
    mine = r->comm;
    bool good = clients_put(r, A, COUNT, 43, r->streams[0]) && clients_sum(r, A, B, r->streams[0]);
    for (int turn = 0; turn < 2 && r->rank == 0; turn++) /* the first one connects the two, if they are staged */
        good = good && KIT_OK(kolo_send(r->buffer + A, count, KOLO_INT32, 1, mine, r->streams[0]));
    if (r->rank == 1) good = good && KIT_OK(kolo_recv(r->buffer + D, count, KOLO_INT32, 0, mine, r->streams[0]));
    if (r->rank == 0) good = leave(t, &mine) && good;
    if (!kit_meet(t)) return false;
    if (r->rank == 1)
        good = good && KIT_OK(kolo_recv(r->buffer + C, count, KOLO_INT32, 0, mine, r->streams[0])) &&
               clients_is_from(r, 0, C, count, 43, r->streams[0], "from a rank that has left");
    if (r->rank > 0) good = leave(t, &mine) && good;
    r->comm = first;
    return kit_case_end(t, good, "a message of a rank that has left");
}

bool clients_leaving(kit_team_t *t)
{
    return synchronized(t) && left_in_any_order(t) && left_before_the_others_come(t, 300);
}
