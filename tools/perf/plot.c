/* SPDX-License-Identifier: Apache-2.0
 *
 * An SVG plot without a library: median time and bus bandwidth over bytes, all axes logarithmic, a line per
 * collective.
 */
#include "perf.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

enum {
    WIDTH = 900,
    LEFT = 90,
    RIGHT = 170,
    TOP = 66,
    PANEL = 380,
    BETWEEN = 90,
    HEIGHT = TOP + 2 * (PANEL + BETWEEN)
};

static const char *const colors[PERF_COUNT] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e08e0b", "#00798c",
                                               "#6a4c93", "#a05195", "#444444", "#999999", "#2f4858"};

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

static void axes(FILE *f, const panel_t *p)
{
    char label[32];
    int bottom = p->top + PANEL;
    for (int e = (int)p->x0; e <= (int)p->x1; e += 2) {
        double x = to_x(p, e);
        size_label(label, sizeof label, e);
        fprintf(f, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d' stroke='#ddd'/>", x, p->top, x, bottom);
        fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", x, bottom + 18, label);
    }
    for (int e = (int)p->y0; e <= (int)p->y1; e++) {
        double y = to_y(p, e);
        fprintf(f, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#ddd'/>", LEFT, y, WIDTH - RIGHT, y);
        fprintf(f, "<text x='%d' y='%.1f' text-anchor='end'>%g %s</text>\n", LEFT - 8, y + 4, pow(10, e), p->unit);
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

static bool curve(FILE *f, const panel_t *p, const perf_row_t *rows, size_t count, int coll, bool in_place)
{
    bool open = false;
    for (size_t i = 0; i < count; i++) {
        double value = p->value(&rows[i]);
        if ((int)rows[i].coll != coll || rows[i].in_place != in_place || value <= 0) continue;
        if (!open) fprintf(f, "<polyline fill='none' stroke-width='2' points='");
        fprintf(f, "%.1f,%.1f ", to_x(p, log2((double)(rows[i].bytes ? rows[i].bytes : 1))), to_y(p, log10(value)));
        open = true;
    }
    if (open) fprintf(f, "' stroke='%s'%s/>\n", colors[coll], in_place ? " stroke-dasharray='5 4'" : "");
    return open;
}

static void panel(FILE *f, panel_t *p, const perf_row_t *rows, size_t count)
{
    int legend = 0;
    if (!set_range(p, rows, count)) return;
    axes(f, p);
    for (int c = 0; c < PERF_COUNT; c++) {
        bool out = curve(f, p, rows, count, c, false), in = curve(f, p, rows, count, c, true);
        if (out || in)
            fprintf(f, "<text x='%d' y='%d' fill='%s'>%s</text>\n", WIDTH - RIGHT + 14, p->top + 18 * ++legend,
                    colors[c], perf_coll_names[c]);
    }
}

/* What was measured, where and when. */
static void head(FILE *f, const perf_job_t *job)
{
    char host[65] = "?", date[32] = "?";
    time_t now = time(NULL);
    struct tm tm;
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "?");
    if (localtime_r(&now, &tm)) strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    fprintf(f, "<text x='%d' y='22' font-size='15'>kolo-perf: %d ranks, %s</text>\n", LEFT, job->nranks,
            perf_type_names[job->options->type]);
    fprintf(f, "<text x='%d' y='40'>rank 0 on %s, %s, Kolo %d.%d.%d; in place: dashed</text>\n", LEFT, host, date,
            KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
}

int perf_write_plot(const perf_job_t *job, const perf_row_t *rows, size_t count, const char *path)
{
    panel_t panels[] = {{.value = time_of, .title = "median time of a call", .unit = "us", .top = TOP},
                        {.value = busbw_of,
                         .title = "busbw (bus bandwidth as nccl-tests define it)",
                         .unit = "GB/s",
                         .top = TOP + PANEL + BETWEEN}};
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
            "font-size='12'><rect width='100%%' height='100%%' fill='white'/>\n",
            WIDTH, HEIGHT);
    head(f, job);
    for (size_t i = 0; i < sizeof panels / sizeof panels[0]; i++) panel(f, &panels[i], rows, count);
    fprintf(f, "</svg>\n");
    return fclose(f);
}
