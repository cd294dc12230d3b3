/* SPDX-License-Identifier: Apache-2.0
 *
 * A server: holds its part of the weights. After each step its part is in a file before anybody sees it, so that a
 * server that was killed goes on where it was: with the step after the last one that is in the file.
 */
#include "ps.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATE     0.05f
#define MOMENTUM 0.9f

typedef struct {
    uint64_t step;    /* that is done */
    uint64_t applied; /* gradients that have gone into it */
    float weights[NET_PARAMS], speed[NET_PARAMS];
} part_t;

static void file_name(const role_t *role, char *name, size_t room, const char *suffix)
{
    snprintf(name, room, "%s/param-server-part-%d%s", role->options->out, role->options->task, suffix);
}

/* The new file takes the old one's name only once it is complete. */
static bool save(const role_t *role, const part_t *part)
{
    char name[512], fresh[512];
    file_name(role, name, sizeof name, "");
    file_name(role, fresh, sizeof fresh, ".new");
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool fine = fd >= 0 && write(fd, part, sizeof *part) == (ssize_t)sizeof *part;
    if (fd >= 0 && close(fd) != 0) fine = false;
    if (fine && rename(fresh, name) == 0) return true;
    perror(fresh);
    return false;
}

static void load(const role_t *role, part_t *part, size_t first, size_t count)
{
    char name[512];
    file_name(role, name, sizeof name, "");
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    bool found = fd >= 0 && read(fd, part, sizeof *part) == (ssize_t)sizeof *part;
    if (fd >= 0) close(fd);
    if (found) return;
    float *all = calloc(NET_PARAMS, sizeof *all);
    memset(part, 0, sizeof *part);
    if (all == NULL) return;
    net_init(all, role->options->seed);
    memcpy(part->weights, all + first, count * sizeof *all);
    free(all);
}

static kolo_status_t send_weights(role_t *role, const part_t *part, size_t count, uint64_t incarnation)
{
    char to[64], key[KOLO_TENSOR_KEY_MAX + 1];
    for (int w = 0; w < role->options->workers; w++) {
        task_name(to, "worker", w);
        kolo_status_t status = make_key(role->me, incarnation, to, "weights", key);
        if (status == KOLO_OK) status = send_floats(role, part->step + 1, key, part->weights, count);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

/* Where this life begins, for workers that have seen another one end. */
static kolo_status_t tell_step(role_t *role, const part_t *part, uint64_t incarnation)
{
    char to[64], key[KOLO_TENSOR_KEY_MAX + 1];
    float step = (float)part->step; /* exact up to 16 million steps */
    for (int w = 0; w < role->options->workers; w++) {
        task_name(to, "worker", w);
        kolo_status_t status = make_key(role->me, incarnation, to, "step", key);
        if (status == KOLO_OK) status = send_floats(role, 0, key, &step, 1);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

static kolo_status_t add_gradients(role_t *role, part_t *part, size_t count, float *sum, float *one,
                                   const uint64_t *incarnations)
{
    char from[64], key[KOLO_TENSOR_KEY_MAX + 1];
    memset(sum, 0, count * sizeof *sum);
    for (int w = 0; w < role->options->workers; w++) {
        task_name(from, "worker", w);
        kolo_status_t status = make_key(from, incarnations[w], role->me, "gradient", key);
        if (status == KOLO_OK) status = receive_floats(role, part->step + 1, key, one, count);
        if (status != KOLO_OK) return status;
        for (size_t i = 0; i < count; i++) sum[i] += one[i];
        part->applied++;
    }
    return KOLO_OK;
}

static void move_on(const role_t *role, part_t *part, size_t count, const float *sum)
{
    float rate = RATE * 0.5f * (1 + cosf(3.14159265f * (float)part->step / (float)role->steps));
    for (size_t i = 0; i < count; i++) {
        part->speed[i] = MOMENTUM * part->speed[i] + sum[i] / STEP_SAMPLES;
        part->weights[i] -= rate * part->speed[i];
    }
    part->step++;
}

static int serve(role_t *role, part_t *part, size_t count, float *sum, float *one)
{
    uint64_t incarnations[MOST_TASKS], mine;
    if (kolo_server_incarnation(role->server, role->me, 0, &mine) != KOLO_OK) return complain(role->me);
    if (tell_step(role, part, mine) != KOLO_OK) return complain(role->me);
    for (int w = 0; w < role->options->workers; w++) {
        char name[64];
        task_name(name, "worker", w);
        if (kolo_server_incarnation(role->server, name, role->options->limit_ms, &incarnations[w]) != KOLO_OK)
            return complain(role->me);
    }
    for (;;) {
        if (send_weights(role, part, count, mine) != KOLO_OK) return complain(role->me);
        if (part->step == role->steps) break;
        if (add_gradients(role, part, count, sum, one, incarnations) != KOLO_OK) return complain(role->me);
        uint64_t done = part->step + 1; /* all workers have had the weights of it */
        move_on(role, part, count, sum);
        if (!save(role, part)) return 1;
        kolo_rendezvous_manager_cleanup(role->manager, done);
        tell(role,
             &(note_t){.role = 'p', .task = role->options->task, .step = part->step, .applied = part->applied});
    }
    /* The workers fetch the last weights, and then say so. */
    for (int w = 0; w < role->options->workers; w++) {
        char name[64], key[KOLO_TENSOR_KEY_MAX + 1];
        task_name(name, "worker", w);
        if (make_key(name, incarnations[w], role->me, "done", key) != KOLO_OK ||
            receive_floats(role, 0, key, one, 1) != KOLO_OK)
            return complain(role->me);
    }
    return 0;
}

int run_server(role_t *role)
{
    size_t first, count;
    part_t *part = calloc(1, sizeof *part);
    float *sum = calloc(NET_PARAMS, sizeof *sum), *one = calloc(NET_PARAMS, sizeof *one);
    int failed = 1;
    part_of(role->options, role->options->task, &first, &count);
    if (part && sum && one) {
        load(role, part, first, count);
        failed = serve(role, part, count, sum, one);
    }
    free(part);
    free(sum);
    free(one);
    return failed;
}
