/* SPDX-License-Identifier: Apache-2.0
 *
 * What came of the runs: sums, the table by fault, the faults that each point has met, and records, one line per
 * run, from which the table can be made again for several parts together.
 */
#include "chaos/chaos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* ---- sums ---- */

static void sum_count(chaos_sum_t *sum, const chaos_result_t *r)
{
    sum->runs++;
    sum->fired += r->fired;
    sum->hangs += r->hang;
    sum->wrong += r->wrong;
    sum->leaks += r->leak;
    sum->misnamed += (uint64_t)r->misnamed;
}

static void sum_detect(chaos_sum_t *sum, double ms)
{
    if (sum->ndetect == sum->capacity) {
        sum->capacity = 2 * sum->capacity + 64;
        sum->detect_ms = realloc(sum->detect_ms, sum->capacity * sizeof *sum->detect_ms);
        if (!sum->detect_ms) abort();
    }
    sum->detect_ms[sum->ndetect++] = ms;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 0 <= part <= 1 of the sorted detection times; -1 without any. */
static double detect(chaos_sum_t *sum, double part)
{
    if (!sum->ndetect) return -1;
    qsort(sum->detect_ms, sum->ndetect, sizeof *sum->detect_ms, by_value);
    return sum->detect_ms[(size_t)((double)(sum->ndetect - 1) * part)];
}

static int row_of(const chaos_result_t *r)
{
    return r->cut ? CHAOS_ROW_CUT : (int)r->fault;
}

void chaos_table_add(chaos_table_t *t, const chaos_result_t *r)
{
    int row = row_of(r);
    bool joining = r->fired && r->joining;
    sum_count(&t->all, r);
    sum_count(joining ? &t->joining[row] : &t->running[row], r);
    for (int i = 0; i < r->ndetect; i++) {
        bool late = joining || r->late[i];
        sum_detect(late ? &t->joining[row] : &t->running[row], r->detect_ms[i]);
        if (!late) sum_detect(&t->all, r->detect_ms[i]);
    }
    if (r->fired && r->point >= 0 && r->point < CHAOS_POINTS) t->met[r->point][r->fault]++;
    if (t->records) chaos_record_write(t->records, r);
}

void chaos_table_fini(chaos_table_t *t)
{
    free(t->all.detect_ms);
    for (int i = 0; i < CHAOS_ROWS; i++) free(t->running[i].detect_ms), free(t->joining[i].detect_ms);
    if (t->records && fclose(t->records) != 0) perror("chaos: records");
}

/* ---- the table ---- */

void chaos_print_head(FILE *f, const char *title)
{
    struct utsname u;
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    uname(&u);
    fprintf(f, "%s\n", title);
    fprintf(f, "%s, %s %s, %ld cores, %d runs side by side, Kolo %d.%d.%d%s\n\n", date, u.sysname, u.release,
            sysconf(_SC_NPROCESSORS_ONLN), chaos_options.jobs, KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR,
            KOLO_VERSION_PATCH, CHAOS_SANITIZED ? ", sanitized" : "");
}

static void print_row(FILE *f, int row, chaos_sum_t *sum, const char *when)
{
    char median[32] = "-", worst[32] = "-";
    const char *name = row == CHAOS_ROW_CUT ? "cut link" : kolo_fault_name((kolo_fault_t)row);
    if (!sum->runs && !sum->ndetect) return;
    if (sum->ndetect) {
        snprintf(median, sizeof median, "%.1f", detect(sum, 0.5));
        snprintf(worst, sizeof worst, "%.1f", detect(sum, 1));
    }
    fprintf(f, "%-8s %-8s %6llu %6llu %6llu %6llu %6llu %9llu %10s %10s\n", name, when,
            (unsigned long long)sum->runs, (unsigned long long)sum->fired, (unsigned long long)sum->hangs,
            (unsigned long long)sum->wrong, (unsigned long long)sum->leaks, (unsigned long long)sum->misnamed,
            median, worst);
}

void chaos_table_print(chaos_table_t *t, FILE *f)
{
    fprintf(f, "%-8s %-8s %6s %6s %6s %6s %6s %9s %10s %10s\n", "fault", "while", "runs", "faults", "hangs",
            "wrong", "leaks", "misnamed", "median ms", "worst ms");
    for (int row = 0; row < CHAOS_ROWS; row++) {
        print_row(f, row, &t->running[row], "running");
        print_row(f, row, &t->joining[row], "joining");
    }
    fprintf(
        f,
        "\nmedian, worst: from the fault to the error of each survivor, where the fault ends a rank or cuts a\n"
        "link. joining: the lost rank, or the one that hears of it, was not in yet; what nobody can know before\n"
        "it calls is found by the time limit of init (%d ms, more at loads above 8 for each core).\n"
        "misnamed: errors that do not name the lost rank, counted as wrong too%s.\n",
        CHAOS_INIT_MS * (CHAOS_SANITIZED ? 4 : 1), chaos_options.any_name ? " (not here)" : "");
}

void chaos_table_print_line(chaos_table_t *t, FILE *f)
{
    chaos_sum_t *sum = &t->all;
    fprintf(f, "chaos runs=%llu hangs=%llu wrong=%llu leaks=%llu detect_ms median=%.1f worst=%.1f\n",
            (unsigned long long)sum->runs, (unsigned long long)sum->hangs, (unsigned long long)sum->wrong,
            (unsigned long long)sum->leaks, detect(sum, 0.5), detect(sum, 1));
}

/* ---- how often each point has met each fault ---- */

/* Instructions that the interpreter knows and no algorithm uses: no program of the public API passes there. */
static bool is_unused(const char *name)
{
    static const char *const names[] = {"exec.reduce", "exec.wait", "exec.signal"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

bool chaos_can_meet(size_t i, int fault)
{
    if (is_unused(kolo_fail_point_at(i)->name)) return false;
    return fault != KOLO_FAULT_NONE && (fault != KOLO_FAULT_ERROR || kolo_fail_point_at(i)->returns);
}

bool chaos_is_first(size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(kolo_fail_point_at(k)->name, kolo_fail_point_at(i)->name) == 0) return false;
    return true;
}

uint64_t chaos_table_print_points(const chaos_table_t *t, FILE *f, uint64_t wanted, const char *only)
{
    uint64_t least = UINT64_MAX, missing = 0;
    fprintf(f, "\nhow often each point met each fault (asked: %llu)\n%-30s", (unsigned long long)wanted, "");
    for (int fault = 1; fault < KOLO_FAULT_COUNT; fault++) fprintf(f, " %6s", kolo_fault_name((kolo_fault_t)fault));
    for (size_t i = 0; kolo_fail_point_at(i); i++) {
        if (!chaos_is_first(i) || (only && !strstr(kolo_fail_point_at(i)->name, only))) continue;
        fprintf(f, "\n%-30s", kolo_fail_point_at(i)->name);
        for (int fault = 1; fault < KOLO_FAULT_COUNT; fault++) {
            uint64_t n = t->met[i][fault];
            if (!chaos_can_meet(i, fault)) {
                fprintf(f, " %6s", "-");
                continue;
            }
            fprintf(f, " %6llu", (unsigned long long)n);
            if (n < least) least = n;
            missing += n < wanted;
        }
    }
    if (least == UINT64_MAX) least = 0;
    fprintf(f, "\n-: cannot fail there, or an instruction that no algorithm uses");
    fprintf(f, "\nleast: %llu; pairs below %llu: %llu\n\n", (unsigned long long)least, (unsigned long long)wanted,
            (unsigned long long)missing);
    return missing;
}

/* ---- records ---- */

void chaos_record_write(FILE *f, const chaos_result_t *r)
{
    fprintf(f, "%llu %s %s %d %d %d %d %d %d", (unsigned long long)r->seed,
            r->point >= 0 ? kolo_fail_point_at((size_t)r->point)->name : "-",
            r->cut ? "cut" : kolo_fault_name(r->fault), r->fired, r->hang, r->wrong, r->leak, r->misnamed,
            r->joining);
    for (int i = 0; i < r->ndetect; i++) fprintf(f, " %s%.3f", r->late[i] ? "j" : "", r->detect_ms[i]);
    fprintf(f, "\n");
    fflush(f); /* whoever is ended in the middle leaves what is known */
}

static int find_point(const char *name)
{
    for (size_t i = 0; kolo_fail_point_at(i); i++)
        if (strcmp(kolo_fail_point_at(i)->name, name) == 0) return (int)i;
    return -1;
}

static bool parse(char *line, chaos_result_t *r)
{
    char *at = NULL, point[64], fault[16];
    int flags[6], used = 0;
    unsigned long long seed;
    memset(r, 0, sizeof *r);
    if (sscanf(line, "%llu %63s %15s %d %d %d %d %d %d%n", &seed, point, fault, &flags[0], &flags[1], &flags[2],
               &flags[3], &flags[4], &flags[5], &used) != 9)
        return false;
    r->seed = seed;
    r->point = find_point(point);
    r->cut = strcmp(fault, "cut") == 0;
    r->fault = kolo_fault_find(fault);
    r->fired = flags[0], r->hang = flags[1], r->wrong = flags[2], r->leak = flags[3];
    r->misnamed = flags[4], r->joining = flags[5];
    for (char *word = strtok_r(line + used, " \n", &at); word; word = strtok_r(NULL, " \n", &at))
        if (r->ndetect < CHAOS_PROCS) {
            r->late[r->ndetect] = *word == 'j';
            r->detect_ms[r->ndetect++] = strtod(word + (*word == 'j'), NULL);
        }
    return true;
}

bool chaos_records_read(const char *path, chaos_table_t *t)
{
    char line[512];
    chaos_result_t r;
    FILE *f = fopen(path, "r");
    bool fine = f != NULL;
    while (fine && fgets(line, sizeof line, f)) {
        fine = parse(line, &r);
        if (fine) chaos_table_add(t, &r);
    }
    if (!fine) fprintf(stderr, "chaos: %s: not a file of records\n", path);
    if (f) fclose(f);
    return fine;
}
