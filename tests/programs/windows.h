/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KOLO_TESTS_PROGRAMS_WINDOWS_H
#define KOLO_TESTS_PROGRAMS_WINDOWS_H

#include "kit/ranks.h"

/* Two windows of this communicator come and go; all its ranks call it with one seed. */
bool program_windows(kolo_comm_t comm, int rank, int nranks, uint64_t seed);

#endif
