/* SPDX-License-Identifier: Apache-2.0
 *
 * A value of 4 GiB and 5 bytes between two tasks of this process: over shared memory and TCP, into memory of Kolo's
 * and of the receiver's own, in chunks of the built-in size. Its source is sparse, so it costs 4 GiB once.
 *
 *     rendezvous_huge [PROTOCOL...]        77: this machine has not the memory
 */
#include <kolo/rendezvous.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BYTES   ((UINT64_C(4) << 30) + 5)
#define NEEDS   (UINT64_C(7) << 30) /* with room for the rest of the machine */
#define MARKS   100
#define SKIPPED 77

static const char *const tasks[] = {"/job:ps/task:0", "/job:worker/task:0"};
static char cluster[100];

static void fail(const char *what)
{
    fprintf(stderr, "rendezvous_huge: %s: %s\n", what, kolo_get_last_error(NULL));
    exit(1);
}

/* At the edges of what 32 bits can count, and all over. */
static uint64_t mark_at(int i)
{
    static const uint64_t edges[] = {0, UINT32_MAX - UINT64_C(1), UINT32_MAX, UINT32_MAX + UINT64_C(1), BYTES - 1};
    const int n = sizeof edges / sizeof *edges;
    return i < n ? edges[i] : (uint64_t)i * 43046721 % BYTES;
}

static unsigned char *map(void)
{
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) exit(SKIPPED);
    return p;
}

static kolo_server_t start(int task, const char *protocol)
{
    static const char secret[] = "known to two tasks";
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_server_t server;
    config.cluster = cluster;
    config.task = tasks[task];
    config.protocol = protocol;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    if (kolo_server_create(&server, &config) != KOLO_OK || kolo_server_start(server) != KOLO_OK) fail("start");
    return server;
}

static kolo_rendezvous_t open_step(kolo_server_t server)
{
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step = NULL;
    if (kolo_server_manager(server, &manager) != KOLO_OK || kolo_rendezvous_open(manager, 1, &step) != KOLO_OK)
        fail("step");
    return step;
}

/* All of it: zeros but for the marks, which it takes away. */
static void check(unsigned char *data)
{
    static const unsigned char zeros[1 << 20];
    for (int i = MARKS - 1; i >= 0; i--) {
        if (data[mark_at(i)] != i + 1) {
            fprintf(stderr, "rendezvous_huge: byte %llu is %d, not %d\n", (unsigned long long)mark_at(i),
                    data[mark_at(i)], i + 1);
            exit(1);
        }
    }
    for (int i = 0; i < MARKS; i++) data[mark_at(i)] = 0;
    for (uint64_t at = 0; at < BYTES; at += sizeof zeros) {
        uint64_t n = BYTES - at < sizeof zeros ? BYTES - at : sizeof zeros;
        if (memcmp(data + at, zeros, n) == 0) continue;
        fprintf(stderr, "rendezvous_huge: something lies near byte %llu\n", (unsigned long long)at);
        exit(1);
    }
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void cross(const char *protocol, kolo_server_t ps, kolo_server_t worker, int own)
{
    kolo_rendezvous_t from = open_step(ps), to = open_step(worker);
    kolo_tensor_key_t key = {.src_device = "/job:ps/task:0/device:cpu:0", .edge_name = "huge"};
    char text[KOLO_TENSOR_KEY_MAX + 1];
    unsigned char *source = map(), *mine = own ? map() : NULL;
    kolo_value_t got, value = {.element = KOLO_UINT8, .ndims = 1, .dims = {(int64_t)BYTES}, .bytes = BYTES};
    kolo_transfer_args_t args = {.into = mine, .into_bytes = own ? BYTES : 0};
    for (int i = 0; i < MARKS; i++) source[mark_at(i)] = (unsigned char)(i + 1);
    value.data = source;
    strcpy(key.dst_device, "/job:worker/task:0/device:cpu:0");
    if (kolo_server_incarnation(ps, tasks[0], 0, &key.src_incarnation) != KOLO_OK ||
        kolo_tensor_key_make(&key, text, sizeof text) != KOLO_OK)
        fail("key");
    double begin = now();
    if (kolo_rendezvous_send(from, text, &value, NULL) != KOLO_OK) fail("send");
    if (kolo_rendezvous_receive(to, text, &args, 600000, &got) != KOLO_OK) fail("receive");
    double seconds = now() - begin;
    if (got.bytes != BYTES || (own && got.data != mine)) fail("the value has another size or place");
    check(got.data);
    printf("huge rendezvous protocol=%s bytes=%llu into=%s GB_per_s=%.2f\n", protocol, (unsigned long long)BYTES,
           own ? "own" : "kolo", (double)BYTES / seconds / 1e9);
    fflush(stdout);
    kolo_value_release(&got);
    kolo_rendezvous_close(from);
    kolo_rendezvous_close(to);
    munmap(source, BYTES);
    if (mine) munmap(mine, BYTES);
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"kolo+shm", "kolo+tcp"};
    int pid = (int)getpid(), n = argc > 1 ? argc - 1 : 2;
    if ((uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) < NEEDS) {
        printf("rendezvous_huge: less than %llu GiB are free\n", (unsigned long long)(NEEDS >> 30));
        return SKIPPED;
    }
    snprintf(cluster, sizeof cluster, "ps=127.%d.%d.1:7314;worker=127.%d.%d.2:7314", 1 + pid % 200, pid / 200 % 250,
             1 + pid % 200, pid / 200 % 250);
    for (int i = 0; i < n; i++) {
        const char *protocol = argc > 1 ? argv[i + 1] : all[i];
        kolo_server_t ps = start(0, protocol), worker = start(1, protocol);
        for (int own = 0; own < 2; own++) cross(protocol, ps, worker, own);
        kolo_server_destroy(worker);
        kolo_server_destroy(ps);
    }
    return 0;
}
