/* SPDX-License-Identifier: Apache-2.0
 *
 * Test data of collectives: a value for every (seed, rank, index) in any type, and the scalar definition of every
 * operator, written apart from the library's kernels.
 */
#ifndef KOLO_TESTS_COLL_VALUES_H
#define KOLO_TESTS_COLL_VALUES_H

#include <kolo/kolo.h>

#include <stdbool.h>

/* Any bits for integers; floats between -2 and 2 that the type can hold, close to 1 when they are to be
 * multiplied. */
void test_fill(void *buf, size_t count, kolo_type_t type, kolo_op_t op, uint64_t seed, int rank, size_t first);
/* Is `got` (element i of a result) the reduction of all ranks' values? Integers, MIN and MAX exactly, float sums
 * and products within the rounding of nranks steps. Prints the first difference. */
bool test_reduced(const void *got, size_t count, kolo_type_t type, kolo_op_t op, uint64_t seed, int nranks,
                  size_t first, const char *what);
/* Are these `count` elements rank's values from index `first` on? */
bool test_equal(const void *got, size_t count, kolo_type_t type, uint64_t seed, int rank, size_t first,
                const char *what);

extern const char *const test_type_names[KOLO_TYPE_COUNT];
extern const char *const test_op_names[KOLO_OP_BUILTIN_COUNT];

#endif
