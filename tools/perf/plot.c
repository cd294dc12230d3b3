/* SPDX-License-Identifier: Apache-2.0
 *
 * An SVG plot without a library: median time over bytes, both axes logarithmic, a line per collective.
 */
#include "perf.h"

#include <math.h>

enum { WIDTH = 900, HEIGHT = 560, LEFT = 80, RIGHT = 170, TOP = 40, BOTTOM = 60 };

static const char *const colors[PERF_COUNT] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e08e0b", "#00798c",
                                               "#6a4c93", "#a05195", "#444444", "#999999", "#2f4858"};

typedef struct {
    double x0, x1, y0, y1; /* log2 of bytes, log10 of us */
} range_t;

static double to_x(const range_t *r, double v)
{
    return LEFT + (v - r->x0) / (r->x1 - r->x0) * (WIDTH - LEFT - RIGHT);
}

static double to_y(const range_t *r, double v)
{
    return HEIGHT - BOTTOM - (v - r->y0) / (r->y1 - r->y0) * (HEIGHT - TOP - BOTTOM);
}

static void size_label(char *buf, size_t bytes, int exponent)
{
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    snprintf(buf, bytes, "%d %s", 1 << exponent % 10, units[exponent / 10 < 4 ? exponent / 10 : 3]);
}

static void axes(FILE *f, const range_t *r)
{
    char label[32];
    for (int e = (int)r->x0; e <= (int)r->x1; e += 2) {
        double x = to_x(r, e);
        size_label(label, sizeof label, e);
        fprintf(f, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d' stroke='#ddd'/>", x, TOP, x, HEIGHT - BOTTOM);
        fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", x, HEIGHT - BOTTOM + 18, label);
    }
    for (int e = (int)r->y0; e <= (int)r->y1; e++) {
        double y = to_y(r, e);
        fprintf(f, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#ddd'/>", LEFT, y, WIDTH - RIGHT, y);
        fprintf(f, "<text x='%d' y='%.1f' text-anchor='end'>%g us</text>\n", LEFT - 8, y + 4, pow(10, e));
    }
}

int perf_write_plot(const perf_job_t *job, const perf_row_t *rows, size_t count, const char *path)
{
    range_t r = {63, 0, 9, -9};
    bool seen[PERF_COUNT] = {false};
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].bytes == 0 || rows[i].median_us <= 0) continue;
        double x = log2((double)rows[i].bytes), y = log10(rows[i].median_us);
        r = (range_t){fmin(r.x0, floor(x)), fmax(r.x1, ceil(x)), fmin(r.y0, floor(y)), fmax(r.y1, ceil(y))};
    }
    if (r.x1 <= r.x0) r.x1 = r.x0 + 1;
    if (r.y1 <= r.y0) r.y1 = r.y0 + 1;
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
            "font-size='12'><rect width='100%%' height='100%%' fill='white'/>\n",
            WIDTH, HEIGHT);
    fprintf(f, "<text x='%d' y='22' font-size='15'>kolo-perf: median time, %d ranks, %s</text>\n", LEFT,
            job->nranks, perf_type_names[job->options->type]);
    axes(f, &r);
    int legend = 0;
    for (int c = 0; c < PERF_COUNT; c++) {
        for (int place = 0; place < 2; place++) {
            bool open = false;
            for (size_t i = 0; i < count; i++) {
                if ((int)rows[i].coll != c || rows[i].in_place != (place == 1) || rows[i].median_us <= 0) continue;
                fprintf(f, open ? "%.1f,%.1f " : "<polyline fill='none' stroke-width='2' points='%.1f,%.1f ",
                        to_x(&r, log2((double)(rows[i].bytes ? rows[i].bytes : 1))),
                        to_y(&r, log10(rows[i].median_us)));
                open = true;
            }
            if (!open) continue;
            fprintf(f, "' stroke='%s'%s/>\n", colors[c], place ? " stroke-dasharray='5 4'" : "");
            if (seen[c]) continue;
            seen[c] = true;
            fprintf(f, "<text x='%d' y='%d' fill='%s'>%s</text>\n", WIDTH - RIGHT + 14, TOP + 18 * ++legend,
                    colors[c], perf_coll_names[c]);
        }
    }
    fprintf(f, "</svg>\n");
    return fclose(f);
}
