/* SPDX-License-Identifier: Apache-2.0
 *
 * As much of a text as fits on a screen. Lines of the list are cut at the right; sentences go on in the next row.
 */
#include "kolo-top.h"

#include <string.h>

#define INDENT  8 /* of a sentence's further rows */
#define LONGEST 4 /* bytes of a character */

static const char *const orders[TOP_ORDERS] = {
    [TOP_BY_STUCK] = "stuck", [TOP_BY_OPS] = "ops/s", [TOP_BY_BYTES] = "bytes/s", [TOP_BY_NAME] = "name"};

static const char help[] =
    "Each line is a communicator: the number of its job, its name, its ranks and how many of them are on this "
    "host,\n"
    "operations and bytes per second of the busiest rank, the program, process and user of the lowest rank here,\n"
    "and the last operation.\n"
    "Where a rank has waited for a second, the line below says how long, and for whom. Tasks that wait for keyed\n"
    "tensors stand at the end.\n"
    "\n"
    "q      ends kolo-top\n"
    "s      changes the order: who is stuck, operations per second, bytes per second, name\n"
    "/      shows only jobs with a text in some column; Enter ends it, Escape clears it\n"
    "? h    this page; any key leaves it\n"
    "\n"
    "What each rank did last, and a verdict in several sentences: kolo-top --dump --job NUMBER\n";

/* Is this a further byte of a character? */
static bool goes_on(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Lines are cut at the right, not at a byte in the middle of a character: a byte counts as a column, which is never
 * too few. A first character fits always, so that who takes row by row comes to the end. */
static size_t fitting(const char *line, size_t length, size_t columns)
{
    size_t n = columns;
    if (length <= columns) return length;
    while (n > 0 && goes_on(line[n])) n--;
    if (n > 0) return n;
    for (n = 1; n < length && n < LONGEST && goes_on(line[n]); n++) {
    }
    return n;
}

/* A verdict is not cut: what to do stands at its end. */
static bool may_wrap(const char *line)
{
    return *line == ' ' || strncmp(line, "task ", 5) == 0;
}

/* The bytes of the next row: up to the last blank that fits, or as many as fit. */
static size_t next_row(const char *line, size_t length, size_t columns)
{
    size_t n = fitting(line, length, columns);
    if (n == length) return n;
    for (size_t at = n; at > n / 2; at--)
        if (line[at] == ' ') return at;
    return n;
}

typedef struct {
    FILE *out;
    size_t rows, columns, lines, left;
} page_t;

static void put_row(page_t *p, size_t indent, const char *text, size_t bytes)
{
    if (p->lines + 1 >= p->rows) { /* the last row is for the keys */
        p->left++;
        return;
    }
    fprintf(p->out, "%*s%.*s\n", (int)indent, "", (int)bytes, text);
    p->lines++;
}

static void put_line(page_t *p, const char *line, size_t length)
{
    size_t indent = 0, narrow = p->columns > 2 * INDENT ? INDENT : 0;
    if (!may_wrap(line)) {
        put_row(p, 0, line, fitting(line, length, p->columns));
        return;
    }
    do {
        size_t n = next_row(line, length, p->columns - indent);
        put_row(p, indent, line, n);
        for (line += n, length -= n; length > 0 && *line == ' '; length--) line++;
        indent = narrow;
    } while (length > 0);
}

void top_fit(FILE *out, const char *text, size_t rows, size_t columns, const top_view_t *view)
{
    page_t page = {.out = out, .rows = rows, .columns = columns};
    for (const char *at = view->help ? help : text, *end; *at; at = end + (*end == '\n')) {
        end = strchrnul(at, '\n');
        put_line(&page, at, (size_t)(end - at));
    }
    size_t left = page.left;
    char keys[200], more[40] = "";
    if (left) snprintf(more, sizeof more, "%zu more lines; ", left);
    if (view->help)
        snprintf(keys, sizeof keys, "any key: back");
    else if (view->typing)
        snprintf(keys, sizeof keys, "only jobs with: %s_", view->filter);
    else
        snprintf(keys, sizeof keys, "%sq: quit  ?: help  s: order (%s)  /: only some%s%s", more,
                 orders[view->order], view->filter[0] ? ": " : "", view->filter);
    fprintf(out, "%.*s", (int)fitting(keys, strlen(keys), columns), keys);
}
