/* SPDX-License-Identifier: Apache-2.0
 *
 * The kind of memory of guarded.c.
 */
#ifndef KOLO_TESTS_SEAMS_GUARDED_H
#define KOLO_TESTS_SEAMS_GUARDED_H

#include "mem/mem.h"

extern const kolo_mem_ops_t seam_mem_guarded; /* of device 0 */

#endif
