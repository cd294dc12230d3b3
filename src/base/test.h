/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka with the headers that it expects to find before it. Unit tests include this instead of <cmocka.h>.
 */
#ifndef KOLO_BASE_TEST_H
#define KOLO_BASE_TEST_H

/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
/* clang-format on */

#endif
