/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs that are a rank, or none, do with an expectation that failed: they say where, count it, and go on.
 * Those with many ranks have kit_job.c.
 */
#include "kit.h"

#include <stdarg.h>
#include <stdio.h>

int kit_me = -1, kit_failures;

bool kit_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (kit_me >= 0) fprintf(stderr, "rank %d: ", kit_me);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    kit_failures++;
    return false;
}
