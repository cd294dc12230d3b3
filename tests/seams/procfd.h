/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire of procfd.c.
 */
#ifndef KOLO_TESTS_SEAMS_PROCFD_H
#define KOLO_TESTS_SEAMS_PROCFD_H

#include "wire/mapped.h"

extern const kolo_wire_ops_t seam_wire_procfd;

#endif
