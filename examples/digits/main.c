/* SPDX-License-Identifier: Apache-2.0
 *
 * Training on handwritten digits that survives the loss of a worker, in one command: this process becomes the
 * monitor, and has kolorun start it again for each worker. See README.md.
 */
#include "job.h"

#include <kolo/kolo.h>

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES       4096
#define NEAR_THOUSANDTHS 5 /* how far the two accuracies may be apart */

static const char usage[] =
    "usage: digits [--workers N] [--epochs N] [--seed X] [--kill WORKER[@STEP]] [--stop WORKER[@STEP]]\n"
    "              [--least THOUSANDTHS] [--env WORKER:NAME=VALUE] [--data FILE] [--out DIR]\n"
    "              [--no-timeline] [--gpu]\n"
    "  --workers  processes that train together, 2 to 12 (4)\n"
    "  --epochs   how often each image is used (60)\n"
    "  --seed     of the first weights and the order of the images (1)\n"
    "  --kill     kill -9 of a worker, the first is 0, after so many steps (the middle one, half way);\n"
    "             may be repeated\n"
    "  --stop     kill -STOP of a worker, and kill -CONT two seconds later\n"
    "  --env      WORKER:NAME=VALUE, for the environment of one worker of the disturbed run\n"
    "  --least    accuracy below which the run counts as failed (960)\n"
    "  --data     the images, CSV\n"
    "  --out      where picture and timeline go (the current folder)\n"
    "  --no-timeline   only the picture\n"
    "  --gpu      the sums are made on GPUs (several workers on one need KOLO_GPU_SHARED=1)\n"
    "  --help, --version\n";

static int print_usage(void)
{
    fputs(usage, stdout);
    return 0;
}

static int print_version(void)
{
    printf("digits %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
    return 0;
}

/* getopt has said what it did not understand. */
static int wrong_usage(void)
{
    fprintf(stderr, "try 'digits --help'\n");
    return 2;
}

static int bad_value(const struct option *option, const char *text)
{
    const char *want = option->val == 'w'                         ? "a number from 2 to 12"
                       : option->val == 'e'                       ? "a number from 1 to 10000"
                       : option->val == 'l'                       ? "a number from 0 to 1000"
                       : option->val == 'k' || option->val == 's' ? "WORKER or WORKER@STEP"
                       : option->val == 'E'                       ? "WORKER:NAME=VALUE"
                                                                  : "a number";
    fprintf(stderr, "digits: --%s \"%s\": expected %s\n", option->name, text, want);
    return wrong_usage();
}

static bool take_number(const char *text, long least, long most, int *number)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) return false;
    *number = (int)value;
    return true;
}

static bool take_seed(const char *text, uint64_t *seed)
{
    char *end;
    errno = 0;
    *seed = strtoull(text, &end, 0);
    return !errno && end != text && !*end && *text != '-';
}

/* -1: go on; else the exit status. */
static int take_options(options_t *o, bool *worker, int argc, char **argv)
{
    static const struct option names[] = {
        {"workers", required_argument, NULL, 'w'},
        {"epochs", required_argument, NULL, 'e'},
        {"seed", required_argument, NULL, 'x'},
        {"kill", required_argument, NULL, 'k'},
        {"stop", required_argument, NULL, 's'},
        {"env", required_argument, NULL, 'E'},
        {"no-timeline", no_argument, NULL, 'N'},
        {"least", required_argument, NULL, 'l'},
        {"data", required_argument, NULL, 'd'},
        {"out", required_argument, NULL, 'o'},
        {"worker", no_argument, NULL, 'W'}, /* for kolorun */
        {"timeline", required_argument, NULL, 'T'},
        {"help", no_argument, NULL, 'h'},
        {"gpu", no_argument, NULL, 'G'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    static char own_name[] = "digits";
    int c, which = 0;
    bool fine = true;
    argv[0] = own_name; /* in the messages of getopt */
    while (fine && (c = getopt_long(argc, argv, "h", names, &which)) != -1) {
        if (c == 'h') return print_usage();
        if (c == 'V') return print_version();
        if (c == '?') return wrong_usage();
        if (c == 'w') fine = take_number(optarg, 2, MOST_WORKERS, &o->workers);
        if (c == 'e') fine = take_number(optarg, 1, 10000, &o->epochs);
        if (c == 'x') fine = take_seed(optarg, &o->seed);
        if (c == 'k' || c == 's') fine = faults_take(o, c == 's', optarg);
        if (c == 'l') fine = take_number(optarg, 0, 1000, &o->least);
        if (c == 'E') fine = faults_take_setting(o, optarg);
        if (c == 'd') o->data = optarg;
        if (c == 'o') o->out = optarg;
        if (c == 'W') *worker = true;
        if (c == 'T') o->timeline = optarg;
        if (c == 'N') o->no_timeline = true;
        if (c == 'G') o->gpu = true;
    }
    if (o->faults == 0) o->fault[o->faults++] = (fault_t){.worker = o->workers / 2, .at = FAULT_HALF_WAY};
    if (!fine) return bad_value(&names[which], optarg);
    if (optind == argc) return -1;
    fprintf(stderr, "digits: unexpected argument \"%s\"\n", argv[optind]);
    return wrong_usage();
}

/* Signals come through a descriptor, so that there is one place to wait. */
static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return -1;
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool place(const options_t *o, const char *name, char *path, size_t room)
{
    if ((size_t)snprintf(path, room, "%s/%s", o->out, name) < room) return true;
    fprintf(stderr, "digits: the name of the folder is too long\n");
    return false;
}

static bool make_picture(const options_t *o, const job_t *disturbed, const job_t *undisturbed)
{
    char path[PATH_BYTES];
    if (!place(o, "digits-loss.svg", path, sizeof path)) return false;
    if (!plot_write(path, disturbed, undisturbed)) {
        fprintf(stderr, "digits: %s cannot be written: %s\n", path, strerror(errno));
        return false;
    }
    printf("%s: loss over steps, throughput and ranks over time\n", path);
    return true;
}

static bool make_timeline(const options_t *o)
{
    char path[PATH_BYTES];
    if (!o->timeline) return true;
    return place(o, "digits-timeline.json", path, sizeof path) && timeline_merge(o->timeline, path);
}

static int thousandths(const job_t *job)
{
    return (job->right * 1000 + job->tested / 2) / job->tested;
}

static bool expect(bool right, const char *what)
{
    if (!right) fprintf(stderr, "digits: %s\n", what);
    return right;
}

/* Who was killed in the first half has been replaced. Later it may be too late for that. */
static bool expect_ranks(const job_t *job, char *ranks, size_t room)
{
    int early = 0, late = 0, undone = 0, last = job_ranks(job, ranks, room);
    for (int i = 0; i < job->faults; i++) {
        undone += !job->fault[i].done;
        if (!job->fault[i].stop) *(job->fault[i].at <= job->steps / 2 ? &early : &late) += 1;
    }
    if (!expect(undone == 0, "the run was over before all was done to it that was to be done")) return false;
    if (early + late == 0) return expect(!strchr(ranks, '-'), "a worker was given up and none was killed");
    return expect(early == 0 || strchr(ranks, '-'), "a worker was killed and none is missing") &&
           expect(late > 0 || last == job->options->workers, "who was killed was not replaced");
}

static bool judge(const options_t *o, const job_t *disturbed, const job_t *undisturbed)
{
    char ranks[256];
    int with = thousandths(disturbed), without = thousandths(undisturbed);
    uint64_t lost = job_lost_steps(disturbed), samples = 0;
    for (uint64_t i = 0; i < disturbed->steps; i++) samples += (uint64_t)disturbed->step[i].samples;
    bool same = disturbed->final_hash == undisturbed->final_hash;
    printf("samples: %llu = %d epochs of %d, each image once in each epoch; weights of both runs: %s\n",
           (unsigned long long)samples, o->epochs, disturbed->images, same ? "equal, bit by bit" : "different");
    bool fine = expect(same, "the two runs have made different weights");
    fine &= expect(lost == 0 && job_lost_steps(undisturbed) == 0, "steps were lost or counted twice");
    fine &=
        expect(samples == (uint64_t)o->epochs * (uint64_t)disturbed->images, "samples were lost or counted twice");
    fine &= expect_ranks(disturbed, ranks, sizeof ranks);
    fine &= expect(with >= o->least && without >= o->least, "the accuracy is lower than --least");
    fine &= expect(abs(with - without) <= NEAR_THOUSANDTHS, "the accuracies are too far apart");
    fine &= make_picture(o, disturbed, undisturbed);
    fine &= make_timeline(o);
    printf("accuracy disturbed=%.3f undisturbed=%.3f ranks %s lost_steps=%llu\n", with / 1e3, without / 1e3, ranks,
           (unsigned long long)lost);
    return fine;
}

/* A place for what is written, before it is worth anything. */
static bool prepare(options_t *o, char *folder, size_t room)
{
    if (!place(o, "digits-timeline", folder, room)) return false;
    o->timeline = o->no_timeline ? NULL : folder;
    if ((mkdir(o->out, 0777) == 0 || errno == EEXIST) && timeline_prepare(folder)) return true;
    fprintf(stderr, "digits: %s cannot be written: %s (--out names another folder)\n", folder, strerror(errno));
    return false;
}

int main(int argc, char **argv)
{
    options_t o = {.workers = 4, .epochs = 60, .least = 960, .seed = 1, .data = DIGITS_DATA, .out = "."};
    job_t disturbed = {0}, undisturbed = {0};
    char folder[PATH_BYTES];
    bool worker = false;
    int status = take_options(&o, &worker, argc, argv);
    if (status >= 0) return status;
    if (worker) return worker_main(&o);
    if (!prepare(&o, folder, sizeof folder)) return 1;
    int signals = open_signals();
    if (signals < 0) {
        fprintf(stderr, "digits: signals cannot be awaited: %s\n", strerror(errno));
        return 1;
    }
    bool fine = job_run(&undisturbed, &o, NULL, signals) && job_run(&disturbed, &o, &undisturbed, signals) &&
                judge(&o, &disturbed, &undisturbed);
    bool interrupted = disturbed.interrupted || undisturbed.interrupted;
    if (interrupted) fprintf(stderr, "\ndigits: interrupted; all workers are ended\n");
    job_free(&disturbed);
    job_free(&undisturbed);
    close(signals);
    return interrupted ? 130 : fine ? 0 : 1;
}
