/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of two runs, as SVG: loss over steps, throughput and ranks over time.
 */
#include "job.h"

#include "shards.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define WIDTH  960
#define LEFT   80.0
#define RIGHT  (WIDTH - 20.0)
#define HEIGHT 684
#define EVENTS 310 /* the uppermost of the rows in which the events stand, above the panels that they mark */
#define ROWS   4   /* of them */
#define ROW    14  /* height of one */
#define BINS   48  /* of throughput, over the longer run */
#define BLUE   "#1668b8"
#define GREY   "#8a8a8a"
#define RED    "#c0392b"
/* Words over a line are read all the same. */
#define ON_WHITE "paint-order='stroke' stroke='white' stroke-width='3'"
#define FEWEST   0.0001 /* loss: what is below stays at the lower edge */

typedef struct {
    FILE *file;
    double top, bottom; /* of the panel, in pixels */
    double low, high;   /* of its axis */
    double end;         /* of the other axis: seconds, or steps */
} panel_t;

static double x_of(const panel_t *p, double at)
{
    return LEFT + (RIGHT - LEFT) * at / p->end;
}

static double y_of(const panel_t *p, double value)
{
    double part = (value - p->low) / (p->high - p->low);
    return p->bottom - (p->bottom - p->top) * fmin(fmax(part, 0), 1);
}

/* A step of an axis that makes four to ten marks: 1, 2 or 5 times a power of ten. */
static double nice_step(double range)
{
    double power = pow(10, floor(log10(range / 4)));
    double times = range / 4 / power;
    return power * (times >= 5 ? 5 : times >= 2 ? 2 : 1);
}

static double end_s(const job_t *job)
{
    return (double)job->elapsed_ns / 1e9;
}

static void y_mark(const panel_t *p, double value, const char *label)
{
    double y = y_of(p, value);
    fprintf(p->file,
            "<path d='M%.1f %.1fH%.1f' stroke='#e4e4e4'/><text x='%.1f' y='%.1f' text-anchor='end'>%s</text>\n",
            LEFT, y, RIGHT, LEFT - 6, y + 4, label);
}

static void frame(const panel_t *p, const char *title)
{
    fprintf(p->file, "<path d='M%.1f %.1fV%.1fH%.1f' stroke='#444' fill='none'/>", LEFT, p->top, p->bottom, RIGHT);
    fprintf(p->file, "<text x='%.1f' y='%.1f' font-weight='bold'>%s</text>\n", LEFT, p->top - 8, title);
}

/* ---- curves ---- */

/* The mean of the last epoch, so that an easy or hard step does not show. */
static void loss_curve(const panel_t *p, const job_t *job, const char *style)
{
    int window = shards_steps(job->images);
    double sum = 0;
    fprintf(p->file, "<path fill='none' %s d='", style);
    for (uint64_t i = 0; i < job->steps; i++) {
        uint64_t over = i < (uint64_t)window ? i + 1 : (uint64_t)window;
        sum += job->step[i].loss - (i < (uint64_t)window ? 0 : job->step[i - (uint64_t)window].loss);
        fprintf(p->file, "%s%.1f %.1f", i ? "L" : "M", x_of(p, (double)i),
                y_of(p, log10(fmax(sum / (double)over, FEWEST))));
    }
    fprintf(p->file, "'/>\n");
}

static int throughput(const job_t *job, double bin_s, double *rate)
{
    int bins = 0;
    for (int i = 0; i < BINS; i++) rate[i] = 0;
    for (uint64_t i = 0; i < job->steps; i++) {
        int bin = (int)((double)job->step[i].at_ns / 1e9 / bin_s);
        if (bin >= BINS) bin = BINS - 1;
        rate[bin] += job->step[i].samples / bin_s;
        if (bin >= bins) bins = bin + 1;
    }
    return bins > 1 ? bins - 1 : bins; /* the last bin is not full */
}

static void rate_curve(const panel_t *p, const double *rate, int bins, double bin_s, const char *style)
{
    fprintf(p->file, "<path fill='none' %s d='", style);
    for (int i = 0; i < bins; i++)
        fprintf(p->file, "%s%.1f %.1fH%.1f", i ? "L" : "M", x_of(p, i * bin_s), y_of(p, rate[i]),
                x_of(p, (i + 1) * bin_s));
    fprintf(p->file, "'/>\n");
}

static void ranks_curve(const panel_t *p, const job_t *job, const char *style)
{
    int before = 0;
    fprintf(p->file, "<path fill='none' %s d='", style);
    for (uint64_t i = 0; i < job->steps; i++) {
        if (job->step[i].nranks == before) continue;
        double x = i ? x_of(p, (double)job->step[i].at_ns / 1e9) : LEFT;
        fprintf(p->file, before ? "H%.1fV%.1f" : "M%.1f %.1f", x, y_of(p, job->step[i].nranks));
        before = job->step[i].nranks;
    }
    fprintf(p->file, "H%.1f'/>\n", x_of(p, end_s(job)));
}

/* ---- panels ---- */

/* The second is drawn over the first: both show where they are the same. */
#define OF_DISTURBED   "stroke='" BLUE "' stroke-width='2.4'"
#define OF_UNDISTURBED "stroke='" GREY "' stroke-width='1.2' stroke-dasharray='5 4'"

static void x_axis(const panel_t *p, const char *title)
{
    double step = nice_step(p->end);
    for (int i = 0; i * step <= p->end; i++)
        fprintf(p->file, "<text x='%.1f' y='%.1f' text-anchor='middle'>%g</text>\n", x_of(p, i * step),
                p->bottom + 16, i * step);
    fprintf(p->file, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", (LEFT + RIGHT) / 2, p->bottom + 34,
            title);
}

/* Where the number of ranks changed. */
static void change_marks(const panel_t *p, const job_t *job)
{
    for (uint64_t i = 1; i < job->steps; i++)
        if (job->step[i].nranks != job->step[i - 1].nranks)
            fprintf(p->file, "<path d='M%.1f %.1fV%.1f' stroke='" RED "' stroke-dasharray='2 3'/>\n",
                    x_of(p, (double)i), p->top, p->bottom);
}

/* Up to which step the losses of both runs are equal, bit by bit. */
static uint64_t alike_until(const job_t *a, const job_t *b)
{
    uint64_t i = 0;
    while (i < a->steps && i < b->steps && a->step[i].loss == b->step[i].loss) i++;
    return i;
}

/* Right above the curve, which falls. */
static void say_alike(const panel_t *p, const job_t *disturbed, const job_t *undisturbed)
{
    uint64_t until = alike_until(disturbed, undisturbed), at = disturbed->steps / 4;
    double most = FEWEST;
    if (until <= at) return;
    for (uint64_t i = at; i < disturbed->steps; i++) most = fmax(most, disturbed->step[i].loss);
    fprintf(p->file, "<text x='%.1f' y='%.1f' " ON_WHITE ">", x_of(p, (double)at), y_of(p, log10(most)) - 8);
    if (until == disturbed->steps && until == undisturbed->steps)
        fprintf(p->file, "both runs: identical at every step</text>\n");
    else
        fprintf(p->file, "both runs: identical up to step %llu</text>\n", (unsigned long long)until);
}

static void loss_panel(FILE *file, const job_t *disturbed, const job_t *undisturbed)
{
    panel_t p = {.file = file, .top = 70, .bottom = 262, .high = log10(3)};
    char label[32];
    double least = 1;
    for (uint64_t i = 0; i < disturbed->steps; i++) least = fmin(least, fmax(disturbed->step[i].loss, FEWEST));
    p.low = floor(log10(least));
    p.end = fmax(fmax((double)disturbed->steps, (double)undisturbed->steps), 1);
    for (int power = (int)p.low; power <= 0; power++) {
        snprintf(label, sizeof label, "%g", pow(10, power));
        y_mark(&p, power, label);
    }
    frame(&p, "training loss (mean of the last epoch)");
    change_marks(&p, disturbed);
    loss_curve(&p, disturbed, OF_DISTURBED);
    loss_curve(&p, undisturbed, OF_UNDISTURBED);
    say_alike(&p, disturbed, undisturbed);
    x_axis(&p, "steps");
}

static void rate_panel(panel_t *p, const job_t *disturbed, const job_t *undisturbed)
{
    char label[32];
    double rate[2][BINS], most = 1, bin_s = p->end / BINS;
    int bins[] = {throughput(disturbed, bin_s, rate[0]), throughput(undisturbed, bin_s, rate[1])};
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < bins[r]; i++) most = fmax(most, rate[r][i]);
    p->top = 379;
    p->bottom = 509;
    p->low = 0;
    p->high = most * 1.05;
    double step = nice_step(p->high);
    for (int i = 0; i * step <= p->high; i++) {
        snprintf(label, sizeof label, "%g", i * step);
        y_mark(p, i * step, label);
    }
    frame(p, "throughput, samples/s");
    rate_curve(p, rate[0], bins[0], bin_s, OF_DISTURBED);
    rate_curve(p, rate[1], bins[1], bin_s, OF_UNDISTURBED);
}

static void ranks_panel(panel_t *p, const job_t *disturbed, const job_t *undisturbed)
{
    char label[32];
    p->top = 554;
    p->bottom = 634;
    p->low = 0;
    p->high = disturbed->options->workers + 0.5;
    for (int i = 0; i <= disturbed->options->workers; i++) {
        snprintf(label, sizeof label, "%d", i);
        y_mark(p, i, label);
    }
    frame(p, "ranks");
    ranks_curve(p, disturbed, OF_DISTURBED);
    ranks_curve(p, undisturbed, OF_UNDISTURBED);
}

/* Each line begins at its words, so that it crosses none of the rows above. */
static void events(const panel_t *p, const job_t *job)
{
    for (int i = 0; i < job->events; i++) {
        double x = x_of(p, job->event[i].at_s);
        int y = EVENTS + i % ROWS * ROW;
        bool left = x > RIGHT - 160;
        fprintf(p->file, "<path d='M%.1f %dV%.1f' stroke='" RED "' stroke-dasharray='2 3'/>", x, y - 8, p->bottom);
        fprintf(p->file, "<text x='%.1f' y='%d' fill='" RED "' " ON_WHITE " text-anchor='%s'>%s</text>\n",
                left ? x - 4 : x + 4, y, left ? "end" : "start", job->event[i].text);
    }
}

static void where_and_when(FILE *file)
{
    char host[65] = "?", date[32] = "?";
    time_t now = time(NULL);
    struct tm tm;
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "?");
    if (localtime_r(&now, &tm)) strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    fprintf(file, "<text x='%.0f' y='42'>%s, %s</text>\n", LEFT, host, date);
}

bool plot_write(const char *path, const job_t *disturbed, const job_t *undisturbed)
{
    FILE *file = fopen(path, "we");
    if (!file) return false;
    panel_t p = {.file = file, .end = fmax(fmax(end_s(disturbed), end_s(undisturbed)), 0.001)};
    fprintf(file,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' "
            "font-family='sans-serif' font-size='12'><rect width='100%%' height='100%%' fill='white'/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(file,
            "<text x='%.0f' y='24' font-size='16'>Handwritten digits, %d workers</text><path d='M%d "
            "32h30' " OF_DISTURBED "/><text x='%d' y='36'>disturbed</text><path d='M%d 32h30' " OF_UNDISTURBED
            "/><text x='%d' y='36'>undisturbed</text>\n",
            LEFT, disturbed->options->workers, 620, 656, 760, 796);
    where_and_when(file);
    loss_panel(file, disturbed, undisturbed);
    rate_panel(&p, disturbed, undisturbed);
    ranks_panel(&p, disturbed, undisturbed);
    x_axis(&p, "seconds since the start");
    events(&p, disturbed);
    fprintf(file, "</svg>\n");
    bool fine = !ferror(file);
    return fclose(file) == 0 && fine;
}
