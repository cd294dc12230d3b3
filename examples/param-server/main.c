/* SPDX-License-Identifier: Apache-2.0
 *
 * Options, and what the roles share. See ps.h; README.md says how each role is run by hand.
 */
#include "ps.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int complain(const char *what)
{
    fprintf(stderr, "param-server: %s: %s\n", what, kolo_get_last_error(NULL));
    return 1;
}

void part_of(const options_t *options, int i, size_t *first, size_t *count)
{
    size_t n = (size_t)options->servers, at = (size_t)i;
    *first = NET_PARAMS * at / n;
    *count = NET_PARAMS * (at + 1) / n - *first;
}

void task_name(char name[64], const char *job, int task)
{
    snprintf(name, 64, "/job:%s/task:%d", job, task);
}

kolo_status_t make_key(const char *from, uint64_t incarnation, const char *to, const char *edge, char *text)
{
    kolo_tensor_key_t key = {.src_incarnation = incarnation};
    snprintf(key.src_device, sizeof key.src_device, "%s/device:cpu:0", from);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:cpu:0", to);
    snprintf(key.edge_name, sizeof key.edge_name, "%s", edge);
    return kolo_tensor_key_make(&key, text, KOLO_TENSOR_KEY_MAX + 1);
}

kolo_status_t send_floats(role_t *role, uint64_t step, const char *key, const float *from, size_t count)
{
    kolo_rendezvous_t rendezvous;
    float *copy = malloc(count * sizeof *copy);
    kolo_value_t value = {.element = KOLO_FLOAT32,
                          .ndims = 1,
                          .dims = {(int64_t)count},
                          .data = copy,
                          .bytes = count * sizeof *copy,
                          .release = free,
                          .arg = copy};
    if (copy == NULL) return KOLO_ERR_NO_MEMORY;
    memcpy(copy, from, value.bytes);
    kolo_status_t status = kolo_rendezvous_open(role->manager, step, &rendezvous);
    if (status == KOLO_OK) {
        status = kolo_rendezvous_send(rendezvous, key, &value, NULL);
        kolo_rendezvous_close(rendezvous);
    }
    if (status != KOLO_OK) free(copy);
    return status;
}

kolo_status_t receive_floats(role_t *role, uint64_t step, const char *key, float *to, size_t count)
{
    kolo_rendezvous_t rendezvous;
    kolo_value_t value;
    kolo_status_t status = kolo_rendezvous_open(role->manager, step, &rendezvous);
    if (status != KOLO_OK) return status;
    status = kolo_rendezvous_receive(rendezvous, key, NULL, role->options->limit_ms, &value);
    kolo_rendezvous_close(rendezvous);
    if (status != KOLO_OK) return status;
    bool fits = value.element == KOLO_FLOAT32 && value.bytes == count * sizeof *to;
    if (fits) memcpy(to, value.data, value.bytes);
    kolo_value_release(&value);
    return fits ? KOLO_OK : KOLO_ERR_MISMATCH;
}

void tell(const role_t *role, const note_t *note)
{
    if (role->options->report_fd < 0) return;
    ssize_t n = write(role->options->report_fd, note, sizeof *note);
    if (n != (ssize_t)sizeof *note) exit(1); /* the monitor has gone */
}

static int run_role(const options_t *options)
{
    role_t role = {.options = options};
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    char cluster[2048], error[256];
    bool serves = strcmp(options->job, "ps") == 0;
    snprintf(cluster, sizeof cluster, "ps=%s;worker=%s", options->ps, options->work);
    task_name(role.me, serves ? "ps" : "worker", options->task);
    config.cluster = cluster;
    config.task = role.me;
    config.protocol = options->protocol;
    setenv("KOLO_COMM_SECRET_FILE", options->secret, 1);
    if (!digits_load(&role.digits, options->data, error, sizeof error)) {
        fprintf(stderr, "param-server: %s\n", error);
        return 1;
    }
    role.steps = (uint64_t)options->epochs * (uint64_t)shards_steps(role.digits.train.count);
    int failed = kolo_server_create(&role.server, &config) != KOLO_OK ||
                 kolo_server_manager(role.server, &role.manager) != KOLO_OK ||
                 kolo_server_start(role.server) != KOLO_OK;
    failed = failed ? complain(role.me) : serves ? run_server(&role) : run_worker(&role);
    kolo_server_destroy(role.server);
    digits_free(&role.digits);
    return failed;
}

/* Of addresses, or a number of tasks that meet. */
static int count_of(const char *addresses)
{
    int n = 1;
    if (strspn(addresses, "0123456789") == strlen(addresses)) return atoi(addresses);
    for (; *addresses; addresses++) n += *addresses == ',';
    return n;
}

/* The value of an option; ends the program if it is no whole number from `least` on. */
static int number(const char *option, const char *text, int least)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end != text && *end == '\0' && value >= least && value <= 1000000) return (int)value;
    fprintf(stderr, "param-server: %s \"%s\": expected a whole number from %d on\n", option, text, least);
    exit(2);
}

static int usage(int status)
{
    fprintf(status ? stderr : stdout,
            "usage: param-server [--async] [--epochs N] [--seed N] [--out DIR] [--protocol NAME] [--data FILE]\n"
            "  trains on this host: two servers, three workers; then again with a server killed and started anew\n"
            "usage: param-server --job ps|worker --task N --ps HOST:PORT,... --workers HOST:PORT,...\n"
            "                    --secret FILE [--async] [--epochs N] [--seed N] [--out DIR] [--protocol NAME]\n"
            "                    [--data FILE]\n"
            "  one task of a job on several hosts; a server keeps its part in DIR. --ps N --workers N: the tasks "
            "meet at\n"
            "  KOLO_COMM_ID=HOST:PORT, on the host of the first server\n");
    return status;
}

int main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"job", 1, NULL, 'j'},      {"task", 1, NULL, 't'},   {"ps", 1, NULL, 'p'},    {"workers", 1, NULL, 'w'},
        {"secret", 1, NULL, 's'},   {"epochs", 1, NULL, 'e'}, {"seed", 1, NULL, 'r'},  {"out", 1, NULL, 'o'},
        {"protocol", 1, NULL, 'x'}, {"data", 1, NULL, 'd'},   {"async", 0, NULL, 'a'}, {"report", 1, NULL, 'f'},
        {"help", 0, NULL, 'h'},     {NULL, 0, NULL, 0}};
    options_t options = {.epochs = 12,
                         .limit_ms = 60000,
                         .seed = 1,
                         .data = DIGITS_DATA,
                         .out = ".",
                         .report_fd = -1,
                         .servers = 2,
                         .workers = 3};
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        switch (c) {
        case 'j':
            options.job = optarg;
            break;
        case 't':
            options.task = number("--task", optarg, 0);
            break;
        case 'p':
            options.ps = optarg;
            break;
        case 'w':
            options.work = optarg;
            break;
        case 's':
            options.secret = optarg;
            break;
        case 'e':
            options.epochs = number("--epochs", optarg, 1);
            break;
        case 'r':
            options.seed = strtoull(optarg, NULL, 10);
            break;
        case 'o':
            options.out = optarg;
            break;
        case 'x':
            options.protocol = optarg;
            break;
        case 'd':
            options.data = optarg;
            break;
        case 'a':
            options.async = 1;
            break;
        case 'f':
            options.report_fd = atoi(optarg);
            break;
        case 'h':
            return usage(0);
        default:
            return usage(2);
        }
    }
    if (optind != argc) return usage(2);
    if (options.job == NULL) return run_monitor(&options);
    if (!options.ps || !options.work || !options.secret) return usage(2);
    options.servers = count_of(options.ps);
    options.workers = count_of(options.work);
    if (options.servers < 1 || options.workers < 1 || options.servers > MOST_TASKS || options.workers > MOST_TASKS)
        return usage(2);
    if (strcmp(options.job, "ps") != 0 && strcmp(options.job, "worker") != 0) return usage(2);
    return run_role(&options);
}
