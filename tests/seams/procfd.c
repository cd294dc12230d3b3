/* SPDX-License-Identifier: Apache-2.0
 *
 * A wire that the library does not know: queues in memfds that a reader finds among the descriptors of the writer's
 * process, by name, in /proc. All there is to it stands in this file, and wires.c has the list with it.
 */
#include "procfd.h"

#include "share/memfd.h"
#include "wire/mapped.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    char text[64];
} name_t;

static name_t name_of(const kolo_mapping_t *map)
{
    name_t name = {"procfd-"};
    for (size_t i = 0; i < sizeof map->id; i++) snprintf(name.text + 7 + 2 * i, 3, "%02x", map->id[i]);
    return name;
}

static kolo_status_t map_fd(int fd, kolo_mapping_t *map)
{
    void *base = mmap(NULL, map->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "cannot map %zu bytes", map->bytes);
    map->base = base;
    return KOLO_OK;
}

/* The descriptor stays open, to be found, as long as the writer's end is there. */
static kolo_status_t create(kolo_wire_ctx_t *ctx, uint32_t readers, kolo_mapping_t *map)
{
    int fd, *kept = malloc(sizeof *kept);
    (void)ctx;
    (void)readers;
    if (!kept) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a descriptor's number");
    kolo_status_t status = kolo_memfd_make(name_of(map).text, map->bytes, &fd);
    if (status == KOLO_OK && (status = map_fd(fd, map)) != KOLO_OK) close(fd);
    if (status != KOLO_OK) {
        free(kept);
        return status;
    }
    *kept = fd;
    map->handle = kept;
    map->owner = true;
    return KOLO_OK;
}

static int find(int pid, const name_t *name)
{
    char folder[32], path[300], target[128], wanted[96];
    snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
    snprintf(wanted, sizeof wanted, "/memfd:%s (deleted)", name->text);
    DIR *dir = opendir(folder);
    int fd = -1;
    for (struct dirent *e; dir && fd < 0 && (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%.200s", folder, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = '\0';
        if (strcmp(target, wanted) == 0) fd = open(path, O_RDWR | O_CLOEXEC);
    }
    if (dir) closedir(dir);
    return fd;
}

static kolo_status_t open_theirs(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *writer, kolo_mapping_t *map)
{
    name_t name = name_of(map);
    int fd = find(writer->pid, &name);
    (void)ctx;
    if (fd < 0) return kolo_fail(KOLO_ERR_REMOTE, "rank %d's queue is not there; it may have failed", writer->rank);
    kolo_status_t status = kolo_memfd_check(fd, map->bytes, KOLO_WHO(writer));
    if (status == KOLO_OK) status = map_fd(fd, map);
    close(fd);
    return status;
}

static void release(kolo_mapping_t *map)
{
    if (map->owner) close(*(int *)map->handle);
    free(map->handle);
    munmap(map->base, map->bytes);
    memset(map, 0, sizeof *map);
}

static const kolo_mapped_memory_t memory = {.create = create, .open = open_theirs, .release = release};

static bool can_connect(const kolo_wire_ctx_t *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b)
{
    (void)ctx;
    return kolo_mapped_same_host(a, b, &seam_wire_procfd);
}

static kolo_status_t rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card)
{
    return kolo_mapped_rx_setup(ctx, rx, &memory, card);
}

static kolo_status_t tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card)
{
    return kolo_mapped_tx_setup(ctx, tx, &memory, card);
}

static bool disabled;
static const kolo_param_t rows[] = {
    {"KOLO_PROCFD_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no queues by way of /proc", &disabled},
};
static const kolo_param_table_t params = {"procfd", rows, KOLO_COUNTOF(rows), NULL};

const kolo_wire_ops_t seam_wire_procfd = {
    .name = "procfd",
    .version = 1,
    .what = "processes of one host: descriptors found in /proc",
    .params = &params,
    .caps = KOLO_CAP_FANOUT,
    .can_connect = can_connect,
    .fill_card = kolo_wire_no_card,
    .may_copy = kolo_wire_no_copies,
    .rx_setup = rx_setup,
    .tx_setup = tx_setup,
    .tx_connect = kolo_mapped_tx_connect,
    .rx_connect = kolo_mapped_rx_connect,
    .rx_can_connect = kolo_wire_no_wait,
    .tx_check = kolo_mapped_tx_check,
    .rx_check = kolo_mapped_rx_check,
    .ref_make = kolo_wire_no_ref_make,
    .ref_start = kolo_wire_no_ref_start,
    .ref_done = kolo_wire_no_ref_done,
    .tx_post_from = kolo_wire_no_post_from,
    .rx_expect = kolo_wire_no_expect,
    .rx_unexpect = kolo_wire_no_unexpect,
    .tx_close = kolo_mapped_tx_close,
    .rx_close = kolo_mapped_rx_close,
    .tx_fini = kolo_mapped_tx_fini,
    .rx_fini = kolo_mapped_rx_fini,
    .tx_memory = kolo_mapped_tx_memory,
    .rx_memory = kolo_mapped_rx_memory,
};
