/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider's table, its devices and parameters. A plug-in is loaded once, when a job first asks for devices,
 * and stays: its threads may be anywhere.
 */
#include "base/file/fds.h"
#include "remote/plugin/plugin.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define FIRST_WAIT_US 50 /* of a sleeper: plug-ins wake nobody, so it looks again by itself */
#define LAST_WAIT_US  2000

kolo_plugin_options_t kolo_plugin_options = {.timeout_ms = 60000};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static kolo_status_t loaded;
static char reason[KOLO_ERROR_TEXT_BYTES], short_name[8];

static void load(void)
{
    loaded = kolo_plugin_load(&kolo_plugin, kolo_plugin_options.file, kolo_plugin_options.timeout_ms);
    if (loaded != KOLO_OK) {
        snprintf(reason, sizeof reason, "%s", kolo_error_text());
        return;
    }
    snprintf(reason, sizeof reason, "plug-in %s (%s) has no devices", kolo_plugin.name, kolo_plugin.file);
    snprintf(short_name, sizeof short_name, "+%.6s", kolo_plugin.name);
    kolo_net_plugin.card_name = short_name;
}

static int count(const char **why)
{
    *why = "KOLO_NET_PLUGIN names no plug-in";
    if (!kolo_plugin_options.file || !kolo_plugin_options.file[0]) return 0;
    pthread_once(&once, load);
    *why = reason;
    return loaded != KOLO_OK || kolo_plugin.ndevices == 0 ? -1 : kolo_plugin.ndevices;
}

static void properties(int device, kolo_net_device_t *out)
{
    *out = kolo_plugin.device[device];
}

static kolo_status_t open_device(int device, kolo_net_open_t **result)
{
    kolo_net_open_t *open = calloc(1, sizeof *open);
    if (!open) return kolo_fail(KOLO_ERR_NO_MEMORY, "plug-in: no memory for a device");
    open->device = device;
    open->wait_us = FIRST_WAIT_US;
    open->timer_fd = kolo_fd_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (open->timer_fd < 0) {
        int err = errno;
        free(open);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "plug-in: no timer; descriptor limit?");
    }
    *result = open;
    return KOLO_OK;
}

static void close_device(kolo_net_open_t *open)
{
    kolo_fd_close(open->timer_fd);
    free(open);
}

static int wake_fds(const kolo_net_open_t *open, int fds[2])
{
    fds[0] = open->timer_fd;
    return 1;
}

/* Sets the next look: sooner while something moves, later while nothing does. */
static void arm(kolo_net_open_t *open)
{
    open->wait_us = open->moved != open->moved_before ? FIRST_WAIT_US : KOLO_MIN(2 * open->wait_us, LAST_WAIT_US);
    open->moved_before = open->moved;
    const struct itimerspec at = {.it_value.tv_nsec = (long)open->wait_us * 1000};
    uint64_t times;
    if (read(open->timer_fd, &times, sizeof times) < 0 && errno != EAGAIN) return;
    timerfd_settime(open->timer_fd, 0, &at, NULL);
}

static bool works(kolo_net_open_t *open)
{
    (void)open;
    return true;
}

static kolo_status_t look(kolo_net_open_t *open)
{
    (void)open; /* a plug-in reports through its calls */
    return KOLO_OK;
}

/* Notes the memory, which each end registers for its connection, at its first request. */
static kolo_status_t enroll(kolo_net_open_t *open, void *memory, size_t bytes, bool peer_writes,
                            kolo_net_region_t **region)
{
    (void)open;
    (void)peer_writes;
    kolo_net_region_t *r = malloc(sizeof *r);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "plug-in: no memory for a region");
    *r = (kolo_net_region_t){memory, bytes};
    *region = r;
    return KOLO_OK;
}

static void withdraw(kolo_net_region_t *region)
{
    free(region);
}

static bool fork_safe(void)
{
    return false; /* not known */
}

static void counts(const kolo_net_end_t *end, kolo_net_counts_t *out)
{
    *out = end->counts;
}

kolo_net_ops_t kolo_net_plugin = {
    .name = "plugin", /* on cards: + and how it calls itself */
    .version = 1,
    .what = "network plug-ins made for NCCL, versions 8 to 11 (KOLO_NET_PLUGIN)",
    .count = count,
    .properties = properties,
    .open = open_device,
    .close = close_device,
    .wake_fds = wake_fds,
    .arm = arm,
    .works = works,
    .look = look,
    .enroll = enroll,
    .withdraw = withdraw,
    .fork_safe = fork_safe,
    .listen = kolo_plugin_listen,
    .start = kolo_plugin_start,
    .connect = kolo_plugin_connect,
    .accept = kolo_plugin_connect,
    .revoke = kolo_plugin_revoke,
    .shut = kolo_plugin_shut,
    .isend = kolo_plugin_isend,
    .irecv = kolo_plugin_irecv,
    .push = kolo_plugin_push,
    .test = kolo_plugin_test,
    .counts = counts,
};

static const kolo_param_t rows[] = {
    {"KOLO_NET_PLUGIN", KOLO_PARAM_FILE, NULL, 0, 0, NULL, false,
     "network plug-in made for NCCL (versions 8 to 11) that the net wire works by: a path, or NAME for "
     "libnccl-net-NAME.so; all ranks need the same; unset: none",
     &kolo_plugin_options.file},
    {"KOLO_NET_PLUGIN_TIMEOUT_MS", KOLO_PARAM_INT, "60000", 100, 3600000, NULL, false,
     "milliseconds within which a plug-in must say what it has, and make a connection",
     &kolo_plugin_options.timeout_ms},
};
const kolo_param_table_t kolo_plugin_params = {"net plugin", rows, KOLO_COUNTOF(rows), NULL};
