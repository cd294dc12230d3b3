/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen that kolo-top draws each second: as much as fits, and the keys that say what is on it. What is drawn
 * comes as text, so that --once and a pipe get the same lines, whole.
 */
#include "kolo-top.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define REFRESH_MS 1000
#define ROWS       24 /* of a terminal that does not say how large it is */
#define COLUMNS    80
#define INDENT     8 /* of a sentence's further rows */

static const char *const orders[TOP_ORDERS] = {
    [TOP_BY_STUCK] = "stuck", [TOP_BY_OPS] = "ops/s", [TOP_BY_BYTES] = "bytes/s", [TOP_BY_NAME] = "name"};

static struct termios as_it_was, raw;
static volatile sig_atomic_t ended;

static void on_signal(int sig)
{
    (void)sig;
    ended = 1;
}

/* While kolo-top is stopped the terminal is the shell's. */
static void on_stop(int sig)
{
    int error = errno;
    (void)sig;
    tcsetattr(STDIN_FILENO, TCSANOW, &as_it_was);
    raise(SIGSTOP);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    errno = error;
}

/* Keys come one by one and are not shown. False: no keys can be had. */
static bool take_keys(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP};
    struct sigaction act = {.sa_handler = on_signal}, stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &as_it_was) != 0) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) sigaction(ends[i], &act, NULL);
    sigaction(SIGTSTP, &stop, NULL);
    raw = as_it_was;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

static void give_keys_back(void)
{
    tcsetattr(STDIN_FILENO, TCSANOW, &as_it_was);
}

static void typed(top_view_t *view, char c)
{
    size_t n = strlen(view->filter);
    if (c == '\n' || c == '\r' || c == 27) {
        if (c == 27) view->filter[0] = '\0';
        view->typing = false;
    } else if ((c == 127 || c == 8) && n > 0) {
        view->filter[n - 1] = '\0';
    } else if (c >= 32 && c < 127 && n + 1 < sizeof view->filter) {
        view->filter[n] = c;
        view->filter[n + 1] = '\0';
    }
}

void top_key(top_view_t *view, char c)
{
    if (view->typing) {
        typed(view, c);
    } else if (view->help) {
        view->help = false; /* any key */
    } else if (c == 'q') {
        view->quit = true;
    } else if (c == '?' || c == 'h') {
        view->help = true;
    } else if (c == 's') {
        view->order = (top_order_t)((view->order + 1) % TOP_ORDERS);
    } else if (c == '/') {
        view->filter[0] = '\0';
        view->typing = true;
    }
}

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

/* Lines are cut at the right, not at a byte in the middle of a character. */
static size_t fitting(const char *line, size_t length, size_t columns)
{
    if (length <= columns) return length;
    while (columns > 0 && ((unsigned char)line[columns] & 0xc0) == 0x80) columns--;
    return columns;
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

static void draw(const char *text, const top_view_t *view)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 && size.ws_col > 1;
    printf("\033[H\033[2J");
    top_fit(stdout, text, known ? size.ws_row : ROWS, known ? size.ws_col : COLUMNS, view);
}

/* Until the next look, or a key. */
static void wait_for_keys(top_view_t *view, bool keys)
{
    struct pollfd in = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
    char c;
    if (poll(&in, 1, REFRESH_MS) <= 0) return;
    while (read(STDIN_FILENO, &c, 1) == 1) top_key(view, c);
    if (in.revents & (POLLHUP | POLLERR)) view->quit = true;
}

int top_screen(const top_options_t *o)
{
    top_view_t view = {.order = TOP_BY_STUCK};
    top_set_t before, now;
    if (!top_scan(o, &before)) return TOP_FAILED;
    uint64_t then_ns = kolo_now_ns();
    bool keys = take_keys(), gone = false;
    int status = TOP_OK;
    while (!ended && !gone && !view.quit) {
        char *text = NULL;
        size_t bytes = 0;
        wait_for_keys(&view, keys);
        if (ended || view.quit) break;
        FILE *page = top_scan(o, &now) ? open_memstream(&text, &bytes) : NULL;
        if (!page) {
            status = TOP_FAILED;
            break;
        }
        uint64_t now_ns = kolo_now_ns();
        top_show(page, &now, &before, (double)(now_ns - then_ns) / (double)KOLO_NS_PER_S, &view);
        if (top_show_keys(page, o) + (int)now.count == 0) fprintf(page, "%s\n", TOP_NO_JOB);
        fclose(page);
        draw(text, &view);
        free(text);
        gone = fflush(stdout) != 0;
        top_free(&before);
        before = now;
        then_ns = now_ns;
    }
    if (keys) give_keys_back();
    printf("\n");
    top_free(&before);
    return status;
}
