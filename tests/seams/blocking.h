/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of blocking.c.
 */
#ifndef KOLO_TESTS_SEAMS_BLOCKING_H
#define KOLO_TESTS_SEAMS_BLOCKING_H

#include "exec/exec.h"

extern const kolo_exec_ops_t seam_exec_blocking;

#endif
