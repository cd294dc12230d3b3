/* SPDX-License-Identifier: Apache-2.0
 *
 * An SVG plot without a library: median time and bus bandwidth over bytes, all axes logarithmic, a line per
 * collective, with its name at its end. Points are the sizes that were measured; under the times lies a band down
 * to the least one. Where the algorithm changes, the new one is named. The head explains what is there, and nothing
 * else.
 */
#include "perf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    WIDTH = 900,
    LEFT = 90,
    RIGHT = 170,
    TOP = 66,
    PANEL = 380,
    BETWEEN = 90,
    HEIGHT = TOP + 2 * (PANEL + BETWEEN),
    NAME_HEIGHT = 14
};

static const char *const colors[PERF_COUNT] = {"#1b6ca8", "#d1495b", "#2e8b57", "#e08e0b", "#8e5ea2", "#00a3a3",
                                               "#8c5a2b", "#e377c2", "#444444", "#999999", "#9aa51b"};

/* One of the two panels. */
typedef struct {
    double (*value)(const perf_row_t *row); /* 0: none */
    const char *title, *unit;
    int top;
    double x0, x1, y0, y1; /* log2 of bytes, log10 of the value */
} panel_t;

static double time_of(const perf_row_t *row)
{
    return row->median_us;
}

static double busbw_of(const perf_row_t *row)
{
    return row->busbw;
}

static double to_x(const panel_t *p, double v)
{
    return LEFT + (v - p->x0) / (p->x1 - p->x0) * (WIDTH - LEFT - RIGHT);
}

static double to_y(const panel_t *p, double v)
{
    return p->top + PANEL - (v - p->y0) / (p->y1 - p->y0) * PANEL;
}

static void size_label(char *buf, size_t bytes, int exponent)
{
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    snprintf(buf, bytes, "%d %s", 1 << exponent % 10, units[exponent / 10 < 4 ? exponent / 10 : 3]);
}

/* 10^exponent of a unit, with fewer zeros: 100 us, 10 ms; 0.01 GB/s is 10 MB/s. */
static void value_label(const panel_t *p, int exponent, char *buf, size_t bytes)
{
    static const char *const times[] = {"ns", "us", "ms", "s"}, *const rates[] = {"B/s", "KB/s", "MB/s", "GB/s",
                                                                                  "TB/s"};
    bool time = p->value == time_of;
    int all = exponent + (time ? 3 : 9), unit = all / 3, most = time ? 3 : 4;
    if (all < 0) {
        snprintf(buf, bytes, "%g %s", pow(10, exponent), p->unit);
        return;
    }
    unit = unit > most ? most : unit;
    snprintf(buf, bytes, "%g %s", pow(10, all - 3 * unit), (time ? times : rates)[unit]);
}

static void axes(FILE *f, const panel_t *p)
{
    char label[32];
    int bottom = p->top + PANEL;
    for (int e = (int)p->x0 + (int)(p->x1 - p->x0) % 2; e <= (int)p->x1; e += 2) { /* the last one, too */
        double x = to_x(p, e);
        size_label(label, sizeof label, e);
        fprintf(f, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d' stroke='#ddd'/>", x, p->top, x, bottom);
        fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", x, bottom + 18, label);
    }
    for (int e = (int)p->y0; e <= (int)p->y1; e++) {
        double y = to_y(p, e);
        fprintf(f, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#ddd'/>", LEFT, y, WIDTH - RIGHT, y);
        value_label(p, e, label, sizeof label);
        fprintf(f, "<text x='%d' y='%.1f' text-anchor='end'>%s</text>\n", LEFT - 8, y + 4, label);
    }
    fprintf(f, "<text x='%d' y='%d' font-weight='bold'>%s</text>\n", LEFT, p->top - 8, p->title);
    fprintf(f, "<text x='%d' y='%d' text-anchor='middle'>bytes</text>\n", LEFT + (WIDTH - LEFT - RIGHT) / 2,
            bottom + 40);
}

/* false: no row has such a value. */
static bool set_range(panel_t *p, const perf_row_t *rows, size_t count)
{
    p->x0 = 63, p->x1 = 0, p->y0 = 9, p->y1 = -9;
    for (size_t i = 0; i < count; i++) {
        double value = p->value(&rows[i]);
        if (rows[i].bytes == 0 || value <= 0) continue;
        double x = log2((double)rows[i].bytes), y = log10(value);
        p->x0 = fmin(p->x0, floor(x)), p->x1 = fmax(p->x1, ceil(x));
        p->y0 = fmin(p->y0, floor(y)), p->y1 = fmax(p->y1, ceil(y));
    }
    if (p->x0 > p->x1) return false;
    if (p->x1 == p->x0) p->x1++;
    if (p->y1 == p->y0) p->y1++;
    return true;
}

/* A line of a collective, as it is drawn. */
typedef struct {
    const perf_row_t *rows;
    size_t count;
    int coll;
    bool in_place;
} line_t;

/* The next row of the line from `at` on that has a place in the panel; count: none. A barrier has no bytes. */
static size_t next_row(const panel_t *p, const line_t *l, size_t at)
{
    while (at < l->count && ((int)l->rows[at].coll != l->coll || l->rows[at].in_place != l->in_place ||
                             l->rows[at].bytes == 0 || p->value(&l->rows[at]) <= 0))
        at++;
    return at;
}

static double x_of(const panel_t *p, const perf_row_t *row)
{
    return to_x(p, log2((double)row->bytes));
}

static double y_of(const panel_t *p, double value)
{
    return fmin(to_y(p, log10(value)), p->top + PANEL);
}

/* From the medians down to the least times. */
static void band(FILE *f, const panel_t *p, const line_t *l)
{
    size_t rows[PERF_MAX_ROWS], n = 0;
    for (size_t i = next_row(p, l, 0); i < l->count && n < PERF_MAX_ROWS; i = next_row(p, l, i + 1))
        if (l->rows[i].min_us > 0) rows[n++] = i;
    if (p->value != time_of || n < 2) return;
    fprintf(f, "<polygon stroke='none' fill='%s' fill-opacity='0.15' points='", colors[l->coll]);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%.1f,%.1f ", x_of(p, &l->rows[rows[i]]), y_of(p, l->rows[rows[i]].median_us));
    for (size_t i = n; i-- > 0;)
        fprintf(f, "%.1f,%.1f ", x_of(p, &l->rows[rows[i]]), y_of(p, l->rows[rows[i]].min_us));
    fprintf(f, "'/>\n");
}

/* Where the algorithm of a line changes. */
typedef struct {
    const perf_row_t *row;
    double x, y; /* y: of the line there */
} kink_t;
typedef struct {
    kink_t list[PERF_MAX_ROWS];
    size_t n;
} kinks_t;

static void points(FILE *f, const panel_t *p, const line_t *l, kinks_t *kinks)
{
    const char *before = NULL;
    for (size_t i = next_row(p, l, 0); i < l->count; i = next_row(p, l, i + 1)) {
        double x = x_of(p, &l->rows[i]), y = y_of(p, p->value(&l->rows[i]));
        const char *algo = l->rows[i].algo;
        fprintf(f, "<circle cx='%.1f' cy='%.1f' r='2.5' fill='%s'/>", x, y, colors[l->coll]);
        if (p->value == time_of && !l->in_place && before && algo && strcmp(before, algo) != 0 &&
            kinks->n < PERF_MAX_ROWS)
            kinks->list[kinks->n++] = (kink_t){&l->rows[i], x, y};
        before = algo;
    }
    fprintf(f, "\n");
}

/* The names of the new algorithms at one size stand above each other, over all lines: there they cross none. */
static void name_kinks(FILE *f, const panel_t *p, const kinks_t *kinks, const perf_row_t *rows, size_t count)
{
    for (size_t i = 0; i < kinks->n; i++) {
        const kink_t *k = &kinks->list[i];
        double top = k->y;
        int below = 0; /* those at this size whose lines are lower */
        for (size_t r = 0; r < count; r++)
            if (rows[r].bytes == k->row->bytes && rows[r].coll != PERF_BARRIER)
                top = fmin(top, y_of(p, p->value(&rows[r])));
        for (size_t j = 0; j < kinks->n; j++)
            below += kinks->list[j].x == k->x && (kinks->list[j].y > k->y || (kinks->list[j].y == k->y && j < i));
        fprintf(f, "<text x='%.1f' y='%.1f' font-size='9' text-anchor='end' fill='%s'>%s</text>\n", k->x,
                top - 7 - 10 * below, colors[k->row->coll], k->row->algo);
    }
}

/* Returns where the line ends, 0 if there is none. */
static double curve(FILE *f, const panel_t *p, const line_t *l, kinks_t *kinks)
{
    double end = 0;
    size_t first = next_row(p, l, 0);
    if (first == l->count) return 0;
    band(f, p, l);
    fprintf(f, "<polyline fill='none' stroke-width='2' points='");
    for (size_t i = first; i < l->count; i = next_row(p, l, i + 1)) {
        end = y_of(p, p->value(&l->rows[i]));
        fprintf(f, "%.1f,%.1f ", x_of(p, &l->rows[i]), end);
    }
    fprintf(f, "' stroke='%s'%s/>\n", colors[l->coll], l->in_place ? " stroke-dasharray='5 4'" : "");
    points(f, p, l, kinks);
    return end;
}

typedef struct {
    double y;
    int coll;
} name_t;

static int by_y(const void *a, const void *b)
{
    const name_t *x = a, *y = b;
    return (x->y > y->y) - (x->y < y->y);
}

/* Beside the ends of the lines, and not over each other. */
static void names(FILE *f, const panel_t *p, name_t *ends, int n)
{
    qsort(ends, (size_t)n, sizeof *ends, by_y);
    double free_from = p->top, free_to = p->top + PANEL;
    for (int i = 0; i < n; i++) {
        ends[i].y = fmax(ends[i].y, free_from);
        free_from = ends[i].y + NAME_HEIGHT;
    }
    for (int i = n - 1; i >= 0; i--) {
        ends[i].y = fmin(ends[i].y, free_to);
        free_to = ends[i].y - NAME_HEIGHT;
    }
    for (int i = 0; i < n; i++)
        fprintf(f, "<text x='%d' y='%.1f' fill='%s'>%s</text>\n", WIDTH - RIGHT + 8, ends[i].y + 4,
                colors[ends[i].coll], perf_coll_names[ends[i].coll]);
}

static void panel(FILE *f, panel_t *p, const perf_row_t *rows, size_t count)
{
    name_t ends[PERF_COUNT];
    static kinks_t kinks;
    int n = 0;
    kinks.n = 0;
    if (!set_range(p, rows, count)) return;
    axes(f, p);
    for (int c = 0; c < PERF_COUNT; c++) {
        line_t out = {rows, count, c, false}, in = {rows, count, c, true};
        double y = curve(f, p, &out, &kinks), y_in = curve(f, p, &in, &kinks);
        if (y > 0 || y_in > 0) ends[n++] = (name_t){y > 0 ? y : y_in, c};
    }
    name_kinks(f, p, &kinks, rows, count);
    names(f, p, ends, n);
}

/* What was measured, where and when. */
static void head(FILE *f, const perf_job_t *job, const perf_row_t *rows, size_t count)
{
    bool dashed = false, banded = false, named = false;
    for (size_t i = 0; i < count; i++) {
        dashed = dashed || rows[i].in_place;
        banded = banded || (rows[i].bytes > 0 && rows[i].min_us > 0);
        named = named || (i > 0 && rows[i].coll == rows[i - 1].coll && rows[i].algo && rows[i - 1].algo &&
                          strcmp(rows[i].algo, rows[i - 1].algo) != 0);
    }
    char host[65] = "?", date[32] = "?";
    time_t now = time(NULL);
    struct tm tm;
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "?");
    if (localtime_r(&now, &tm)) strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    fprintf(f, "<text x='%d' y='22' font-size='15'>kolo-perf: %d ranks, %s</text>\n", LEFT, job->nranks,
            perf_type_names[job->options->type]);
    fprintf(f, "<text x='%d' y='40'>rank 0 on %s, %s, Kolo %d.%d.%d%s%s%s</text>\n", LEFT, host, date,
            KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH, dashed ? "; in place: dashed" : "",
            banded ? "; band: down to the least time" : "",
            named ? "; small words: the algorithm from there on" : "");
}

int perf_write_plot(const perf_job_t *job, const perf_row_t *rows, size_t count, const char *path)
{
    panel_t panels[] = {{.value = time_of, .title = "median time of a call", .unit = "us", .top = TOP},
                        {.value = busbw_of,
                         .title = "busbw (bus bandwidth as nccl-tests define it)",
                         .unit = "GB/s",
                         .top = TOP + PANEL + BETWEEN}};
    FILE *f = perf_output(path);
    if (!f) return -1;
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
            "font-size='12'><rect width='100%%' height='100%%' fill='white'/>\n",
            WIDTH, HEIGHT);
    head(f, job, rows, count);
    for (size_t i = 0; i < sizeof panels / sizeof panels[0]; i++) panel(f, &panels[i], rows, count);
    fprintf(f, "</svg>\n");
    return fclose(f);
}
