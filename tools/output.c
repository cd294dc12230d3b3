/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes stdout when the program ends: some errors come up only then. See output.h.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
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

/* Descriptors 0 to 2 that are closed lead nowhere from here on: the next thing that is opened would be one of them,
 * and get what is printed. What is written to stdout is lost: that is to be an error, as of echo. */
static void fill_standard_descriptors(void)
{
    static const int modes[] = {O_RDONLY, O_RDONLY, O_RDWR};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd] | O_CLOEXEC) != fd) _exit(EXIT_FAILURE);
}

void kolo_tool_output(const char *tool)
{
    name = tool;
    fill_standard_descriptors();
    if (atexit(close_output) != 0) fprintf(stderr, "%s: out of memory\n", tool);
}

/* ---- options ---- */

#define WORD_MOST 40

/* The least number of letters put in, left out, or changed that make one word of the other. */
static int distance(const char *a, const char *b)
{
    int row[WORD_MOST + 1];
    size_t m = strlen(a), n = strlen(b);
    if (m > WORD_MOST || n > WORD_MOST) return WORD_MOST;
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int before = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int same = before + (a[i - 1] != b[j - 1]), more = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            before = row[j];
            row[j] = same < more ? same : more;
        }
    }
    return row[n];
}

const char *kolo_tool_nearest(const char *const *names, int count, const char *word)
{
    const char *best = NULL;
    int least = 3;
    for (int i = 0; i < count; i++) {
        int d = names[i] ? distance(word, names[i]) : least;
        if (d >= least || d * 2 >= (int)strlen(names[i])) continue;
        least = d;
        best = names[i];
    }
    return best;
}

void kolo_tool_suggest(const struct option *options, const char *word)
{
    char typed[WORD_MOST + 1];
    const struct option *best = NULL;
    int least = 3;
    if (strncmp(word, "--", 2) != 0) return;
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (const struct option *o = options; o->name; o++) {
        int d = distance(typed, o->name);
        if (d >= least || d * 2 >= (int)strlen(o->name)) continue;
        least = d;
        best = o;
    }
    if (best) fprintf(stderr, "did you mean --%s?\n", best->name);
}
