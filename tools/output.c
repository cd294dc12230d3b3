/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes stdout when the program ends: some errors come up only then. See output.h.
 */
#include "output.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

static void close_output(void)
{
    bool failed = ferror(stdout), unused = __fpending(stdout) == 0;
    errno = 0;
    if (fclose(stdout) == 0 && !failed) return;
    if (!failed && unused && errno == EBADF) return; /* it was closed from the beginning, and nothing printed */
    fprintf(stderr, "%s: standard output: %s\n", name, errno ? strerror(errno) : "something could not be written");
    _exit(EXIT_FAILURE);
}

void kolo_tool_output(const char *tool)
{
    name = tool;
    if (atexit(close_output) != 0) fprintf(stderr, "%s: out of memory\n", tool);
}
