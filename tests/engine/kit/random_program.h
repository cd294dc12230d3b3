/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs for an engine: a list of tensors of all kinds, some in groups, some that one rank means
 * otherwise, some that only those submit who have not joined; and what each rank must get of them, as a sequence
 * would compute it. The same from the same seed on all ranks.
 */
#ifndef KOLO_TESTS_ENGINE_KIT_RANDOM_PROGRAM_H
#define KOLO_TESTS_ENGINE_KIT_RANDOM_PROGRAM_H

#include <kolo/engine.h>
#include <stdbool.h>
#include <stdint.h>

#define TENSORS_MAX 24
#define ROWS_MAX    6
#define COLS_MAX    5
#define RANKS_MAX   5
#define OUT_MAX     (RANKS_MAX * ROWS_MAX * COLS_MAX)
#define GROUP       3

uint64_t next_random(uint64_t *state);
int below(uint64_t *state, int n);

typedef enum { REDUCE, GATHER, BROADCAST, EXCHANGE, SCATTER, BARRIER, KINDS } kind_t;

typedef struct {
    kind_t kind;
    char name[24];
    kolo_type_t type; /* int32 or float32: values are small whole numbers */
    kolo_op_t op;
    int rows[RANKS_MAX], cols, root;
    int splits[RANKS_MAX][RANKS_MAX];
    int group; /* the first of its GROUP neighbours, -1: none */
    int odd;   /* the rank that means it otherwise, -1: none */
    double pre, post;
} item_t;

typedef struct {
    int size, nitems;
    bool joins;          /* every rank joins at the end, after as many items as in: */
    int part[RANKS_MAX]; /* all of them without joins */
    item_t items[TENSORS_MAX];
} program_t;

void make_program(uint64_t *s, program_t *p, int size, int epoch);
bool submits(const program_t *p, int i, int rank);
/* What the rank puts into element k. */
int value(int item, int rank, int k);
/* Fills in what `rank` must get; returns how many elements. */
int reference(const program_t *p, int i, int rank, double *out);

#endif
