/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of clients share: numbers that differ by rank and `salt`, and sums of them. See conform.h.
 */
#ifndef KOLO_TESTS_GPU_CLIENTS_H
#define KOLO_TESTS_GPU_CLIENTS_H

#include "gpu/conform.h"

enum { A = 0, B = 1 << 19, C = 2 << 19, D = 3 << 19, E = 4 << 19 }; /* places in a rank's buffer */
enum { COUNT = 20000 };

int32_t clients_number(int rank, size_t k, int salt);
bool clients_put(kit_rank_t *r, size_t at, size_t count, int salt, void *stream);
/* What a sum over all ranks' numbers gives, summed `times` times in all. */
bool clients_is_sum(kit_rank_t *r, size_t at, size_t count, int salt, int times, void *stream, const char *what);
bool clients_is_from(kit_rank_t *r, int rank, size_t at, size_t count, int salt, void *stream, const char *what);
/* Queues a sum of COUNT numbers. */
bool clients_sum(const kit_rank_t *r, size_t from, size_t to, void *stream);
/* A group where one thread drives several ranks. */
bool clients_begin(const kit_team_t *t);
bool clients_end(const kit_team_t *t);

/* kinds.c */
bool clients_kinds(kit_team_t *t);
/* leaving.c */
bool clients_leaving(kit_team_t *t);
/* outlive.c */
bool clients_outlive(kit_team_t *t);
/* scalar.c */
bool clients_scalars(kit_team_t *t);
/* current.c */
bool clients_current(kit_team_t *t);
/* broken.c */
bool clients_broken(kit_team_t *t);
/* behind.c */
bool clients_behind(kit_team_t *t);

/* crowd.c: of conform_places(). Other blocks have taken a part of each multiprocessor. */
bool clients_crowd(kit_team_t *t);
/* ends.c: of conform_places(). The second one is for a thread: lets go of what `rank` (kit_rank_t *) holds, 20 s
 * later at the latest. */
bool clients_ends(kit_team_t *t);
void *clients_let_go_late(void *rank);

#endif
