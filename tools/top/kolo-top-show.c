/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of kolo-top: a line for each communicator, who is stuck first, and what keeps it below.
 */
#include "kolo-top.h"

#include "base/clock.h"
#include "base/text/plain.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STUCK_NS KOLO_NS_PER_S

static void print_rate(FILE *out, double n)
{
    static const char units[] = " KMGTP";
    size_t u = 0;
    for (; n >= 1000 && u + 1 < sizeof units - 1; u++) n /= 1000;
    fprintf(out, u ? " %6.1f%c" : " %6.0f%c", n, units[u]);
}

/* What this rank did since it was looked at before. */
static void count_since(const top_rank_t *r, const top_set_t *before, double *ops, double *bytes)
{
    uint64_t from = 0;
    bool known = false;
    for (size_t i = 0; before && i < before->count; i++) {
        const top_rank_t *b = &before->ranks[i];
        if (b->inode != r->inode || b->fs != r->fs || b->slot != r->slot || b->view.job != r->view.job) continue;
        known = true;
        from = b->nops ? b->ops[b->nops - 1].index + 1 : 0;
    }
    *ops = *bytes = 0;
    if (!known || r->nops == 0) return;
    uint64_t seen = 0;
    for (size_t i = 0; i < r->nops; i++) {
        if (r->ops[i].index < from) continue;
        seen++;
        *bytes += (double)r->ops[i].count * r->ops[i].elem;
    }
    uint64_t newest = r->ops[r->nops - 1].index + 1;
    *ops = newest > from ? (double)(newest - from) : 0;
    if (seen) *bytes *= *ops / (double)seen; /* more than the record holds: they were all alike */
}

static uint64_t longest_wait(const kolo_verdict_rank_t *ranks, int n)
{
    uint64_t most = 0;
    for (int i = 0; i < n; i++)
        for (uint32_t k = 0; k < ranks[i].nops; k++) {
            const kolo_verdict_op_t *op = &ranks[i].ops[k];
            if (op->state != KOLO_RECORD_DONE && op->state != KOLO_RECORD_FAILED && op->age_ns != KOLO_AGE_UNKNOWN)
                most = KOLO_MAX(most, op->age_ns);
        }
    return most;
}

/* A communicator, as a line. */
typedef struct {
    size_t first, count;
    uint64_t wait_ns; /* of the one that waits longest; 0: nobody is stuck */
    double ops, bytes;
    int pid; /* of its lowest rank here */
    char program[32], user[33], operation[200], stuck[1024];
} line_t;

/* Of another host, or gone: "-". */
static void find_process(line_t *line, bool here)
{
    char path[64], program[32] = "";
    struct stat st;
    snprintf(line->program, sizeof line->program, "-");
    snprintf(line->user, sizeof line->user, "-");
    snprintf(path, sizeof path, "/proc/%d/comm", line->pid);
    FILE *f = here ? fopen(path, "re") : NULL;
    if (!f) return;
    if (fgets(program, sizeof program, f)) {
        program[strcspn(program, "\n")] = '\0';
        kolo_plain_copy(line->program, sizeof line->program, program,
                        sizeof program); /* it may be called anything */
    }
    if (fstat(fileno(f), &st) == 0) {
        struct passwd who, *found = NULL;
        char room[1024];
        if (getpwuid_r(st.st_uid, &who, room, sizeof room, &found) == 0 && found)
            snprintf(line->user, sizeof line->user, "%.32s", found->pw_name);
        else
            snprintf(line->user, sizeof line->user, "%u", (unsigned)st.st_uid);
    }
    fclose(f);
}

static void fill_line(line_t *line, const top_set_t *set, const top_set_t *before, double seconds)
{
    const kolo_record_view_t *view = &set->ranks[line->first].view;
    char text[1024];
    kolo_verdict_rank_t *ranks;
    for (size_t i = line->first; i < line->first + line->count; i++) {
        double o, b;
        count_since(&set->ranks[i], before, &o, &b);
        line->ops = KOLO_MAX(line->ops, o / seconds);
        line->bytes = KOLO_MAX(line->bytes, b / seconds);
    }
    line->pid = set->ranks[line->first].pid;
    find_process(line, set->here);
    snprintf(line->operation, sizeof line->operation, "-");
    int n = top_verdict_ranks(set, line->first, line->count, &ranks);
    for (int i = 0; i < n; i++) {
        if (!ranks[i].nops) continue;
        const kolo_verdict_op_t *op = &ranks[i].ops[ranks[i].nops - 1];
        kolo_verdict_words(op, text, 160);
        if (op->kind == KOLO_RECORD_COLL)
            snprintf(line->operation, sizeof line->operation, "%" PRIu64 " %.160s", op->number, text);
        else
            snprintf(line->operation, sizeof line->operation, "%.160s", text);
        break;
    }
    uint64_t wait = longest_wait(ranks, n);
    if (kolo_verdict_brief(ranks, n, view->nranks, line->stuck, sizeof line->stuck) && wait >= STUCK_NS)
        line->wait_ns = wait;
    free(ranks);
    const char *tensor = top_tensor_last(set, line->first, line->count);
    if (tensor) snprintf(line->operation, sizeof line->operation, "%s", tensor);
    if (line->wait_ns == 0)
        line->wait_ns = top_tensor_wait(set, line->first, line->count, line->stuck, sizeof line->stuck);
    if (line->wait_ns < STUCK_NS) line->wait_ns = 0;
}

static bool is_wanted(const line_t *line, const kolo_record_view_t *view, const char *filter)
{
    char all[400];
    snprintf(all, sizeof all, "%016" PRIx64 " %s %s %d %s %s", view->job, view->name, line->program, line->pid,
             line->user, line->operation);
    return !filter[0] || strcasestr(all, filter) != NULL;
}

static void show_line(FILE *out, const top_set_t *set, const line_t *line)
{
    const kolo_record_view_t *view = &set->ranks[line->first].view;
    char duration[32];
    fprintf(out, "%016" PRIx64 "  %-12.12s %5d %5zu", view->job, view->name, view->nranks, line->count);
    print_rate(out, line->ops);
    print_rate(out, line->bytes);
    fprintf(out, "  %-12.12s %7d %-8.8s  %s\n", line->program, line->pid, line->user, line->operation);
    if (line->wait_ns) {
        kolo_verdict_duration(line->wait_ns, duration, sizeof duration);
        fprintf(out, "    stuck for %s: %s\n", duration, line->stuck);
    }
    for (size_t i = line->first; i < line->first + line->count; i++)
        if (set->ranks[i].view.status != KOLO_OK)
            fprintf(out, "    rank %d failed: %.200s\n", set->ranks[i].view.rank, set->ranks[i].view.error);
}

/* ---- the order ---- */

typedef struct {
    const top_set_t *set;
    top_order_t order;
} sorting_t;

static int more_first(double a, double b)
{
    return (a < b) - (a > b);
}

static int by_order(const void *a, const void *b, void *arg)
{
    const line_t *x = a, *y = b;
    const sorting_t *s = arg;
    int c = 0;
    if (s->order == TOP_BY_STUCK) c = more_first((double)x->wait_ns, (double)y->wait_ns);
    if (s->order == TOP_BY_OPS) c = more_first(x->ops, y->ops);
    if (s->order == TOP_BY_BYTES) c = more_first(x->bytes, y->bytes);
    if (s->order == TOP_BY_NAME) c = strcmp(s->set->ranks[x->first].view.name, s->set->ranks[y->first].view.name);
    return c ? c : (x->first > y->first) - (x->first < y->first);
}

void top_show(FILE *out, const top_set_t *set, const top_set_t *before, double seconds, const top_view_t *view)
{
    size_t n = 0;
    line_t *lines = calloc(set->count + 1, sizeof *lines);
    if (!lines) {
        fprintf(out, "kolo-top: no memory for %zu ranks\n", set->count);
        return;
    }
    for (size_t first = 0, count; first < set->count; first += count) {
        count = top_job_size(set, first);
        lines[n].first = first;
        lines[n].count = count;
        fill_line(&lines[n++], set, before, seconds);
    }
    qsort_r(lines, n, sizeof *lines, by_order, &(sorting_t){set, view->order});
    fprintf(out, "%-16s  %-12s %5s %5s %7s %7s  %-12s %7s %-8s  %s\n", "JOB", "NAME", "RANKS", "HERE", "OPS/S",
            "BYTES/S", "PROGRAM", "PID", "USER", "LAST OPERATION");
    for (size_t i = 0; i < n; i++)
        if (is_wanted(&lines[i], &set->ranks[lines[i].first].view, view->filter)) show_line(out, set, &lines[i]);
    if (set->left_out)
        fprintf(out, "%zu memory files of users with more than %u records are left out\n", set->left_out,
                TOP_MOST_RANKS);
    free(lines);
}
