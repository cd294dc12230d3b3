/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen that kolo-top draws each second: as much as fits (kolo-top-fit.c), and the keys that say what is on
 * it. What is drawn comes as text, so that --once and a pipe get the same lines, whole.
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
