/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyed tensors on GPUs: between two tasks of this process, over shared memory and TCP, and within one task, sent
 * from a device, received into one, or both. On the fake driver, or on a real GPU.
 */
#include "kit.h"

#include <kolo/rendezvous.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM  ((size_t)4 << 20)
#define HALF  (ROOM / 2)
#define STEP  1
#define LIMIT 60000

static const char *const tasks[] = {"/job:ps/task:0", "/job:worker/task:0"};
static char cluster[100];
static kit_rank_t gpu;
static kolo_server_t servers[2];
static kolo_rendezvous_t steps[2];
static int checks;
static _Atomic int released; /* by the threads of the servers */

#define CHECK(what)                                                                                                \
    do {                                                                                                           \
        checks++;                                                                                                  \
        if (!(what)) KIT_FAIL("%s", #what);                                                                        \
    } while (0)

/* ---- values: in the first half of the device's buffer; destinations are in the second ---- */

static void release(void *arg)
{
    (void)arg;
    released++;
}

static char pattern(size_t i, int seed)
{
    return (char)(i * 7 + i / 251 + (size_t)seed * 31);
}

static kolo_value_t value_of(void *data, size_t bytes)
{
    return (kolo_value_t){.element = KOLO_UINT8,
                          .ndims = 1,
                          .dims = {(int64_t)bytes},
                          .data = data,
                          .bytes = bytes,
                          .release = release};
}

static kolo_value_t on_device(size_t bytes, int seed)
{
    for (size_t i = 0; i < bytes; i++) gpu.image[i] = pattern(i, seed);
    CHECK(kit_upload(&gpu, 0, bytes, gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]));
    return value_of(gpu.buffer, bytes);
}

static bool is_pattern(const char *data, size_t bytes, int seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != pattern(i, seed)) return KIT_FAIL("byte %zu is wrong", i);
    return true;
}

static bool device_has(size_t at, size_t bytes, int seed)
{
    return kit_download(&gpu, at, bytes, gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]) &&
           is_pattern(gpu.back + at, bytes, seed);
}

/* ---- tasks ---- */

static bool start(int i, const char *protocol)
{
    static const char secret[] = "known to two tasks";
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_rendezvous_manager_t manager;
    config.cluster = cluster;
    config.task = tasks[i];
    config.protocol = protocol;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    return KIT_OK(kolo_server_create(&servers[i], &config)) && KIT_OK(kolo_server_start(servers[i])) &&
           KIT_OK(kolo_server_manager(servers[i], &manager)) &&
           KIT_OK(kolo_rendezvous_open(manager, STEP, &steps[i]));
}

static const char *key_of(int from, int to)
{
    static char text[KOLO_TENSOR_KEY_MAX + 1];
    kolo_tensor_key_t key = {.edge_name = "w"};
    snprintf(key.src_device, sizeof key.src_device, "%s/device:gpu:0", tasks[from]);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:gpu:0", tasks[to]);
    KIT_OK(kolo_server_incarnation(servers[to], tasks[from], LIMIT, &key.src_incarnation));
    KIT_OK(kolo_tensor_key_make(&key, text, sizeof text));
    return text;
}

static const kolo_transfer_args_t from_device = {.memory = KOLO_MEMORY_DEVICE};

static void cross(size_t bytes, int to, int seed)
{
    const char *key = key_of(0, to);
    kolo_transfer_args_t into = {.memory = KOLO_MEMORY_DEVICE, .into = gpu.buffer + HALF, .into_bytes = HALF};
    kolo_value_t got = {0}, value = on_device(bytes, seed);
    int before = released;
    /* From a device to the host. */
    CHECK(KIT_OK(kolo_rendezvous_send(steps[0], key, &value, &from_device)));
    CHECK(KIT_OK(kolo_rendezvous_receive(steps[to], key, NULL, LIMIT, &got)));
    CHECK(got.bytes == bytes && is_pattern(got.data, bytes, seed));
    kolo_value_release(&got);
    /* From the device to the device. */
    CHECK(KIT_OK(kolo_rendezvous_send(steps[0], key, &value, &from_device)));
    CHECK(KIT_OK(kolo_rendezvous_receive(steps[to], key, &into, LIMIT, &got)));
    CHECK(got.data == gpu.buffer + HALF && device_has(HALF, bytes, seed));
    kolo_value_release(&got);
    /* From the host to the device, the receive first. */
    kolo_receive_t receive = NULL;
    for (size_t i = 0; i < bytes; i++) gpu.image[i] = pattern(i, seed + 1);
    value = value_of(gpu.image, bytes);
    CHECK(KIT_OK(kolo_rendezvous_receive_begin(steps[to], key, &into, &receive)));
    CHECK(KIT_OK(kolo_rendezvous_send(steps[0], key, &value, NULL)));
    CHECK(KIT_OK(kolo_receive_wait(receive, LIMIT, &got)));
    CHECK(got.data == gpu.buffer + HALF && device_has(HALF, bytes, seed + 1));
    for (int spin = 0; released < before + 3 && spin < 10000; spin++) usleep(100); /* the last write's notice */
    CHECK(released == before + 3);
}

static void within_a_task(void)
{
    const char *key = key_of(0, 0);
    kolo_value_t got = {0}, value = on_device(100000, 5);
    int before = released;
    CHECK(KIT_OK(kolo_rendezvous_send(steps[0], key, &value, &from_device)));
    CHECK(KIT_OK(kolo_rendezvous_receive(steps[0], key, &from_device, LIMIT, &got)));
    CHECK(got.data == gpu.buffer && released == before); /* not copied */
    kolo_value_release(&got);
    CHECK(released == before + 1);
    cross(100000, 0, 9);
}

static void what_cannot_be_is_refused(void)
{
    const char *key = key_of(0, 1);
    char host[100];
    uint64_t end = 0;
    kolo_value_t got, value = value_of(host, sizeof host), text = value_of(&end, 8);
    kolo_transfer_args_t into = {.memory = KOLO_MEMORY_DEVICE, .into = host, .into_bytes = sizeof host};
    text.element = KOLO_ELEMENT_STRING;
    text.dims[0] = 1;
    CHECK(kolo_rendezvous_send(steps[0], key, &value, &from_device) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(kolo_rendezvous_send(steps[0], key, &text, &from_device) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(kolo_rendezvous_receive(steps[1], key, &into, 100, &got) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(kolo_rendezvous_receive(steps[1], key, &from_device, 100, &got) == KOLO_ERR_INVALID_ARGUMENT);
    /* Within a task: a value on the host is not one on a device, and stays. */
    key = key_of(0, 0);
    CHECK(KIT_OK(kolo_rendezvous_send(steps[0], key, &value, NULL)));
    CHECK(kolo_rendezvous_receive(steps[0], key, &from_device, 100, &got) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(KIT_OK(kolo_rendezvous_receive(steps[0], key, NULL, 100, &got)));
    kolo_value_release(&got);
}

int main(void)
{
    static const char *const protocols[] = {"kolo+shm", "kolo+tcp", "test+buffered"};
    static const size_t sizes[] = {1, 3000, 100000, 100000, HALF - 1};
    int devices = 0, pid = (int)getpid();
    if (!kit_open(false, &devices) || devices < 1 || !kit_rank_open(&gpu, 0, ROOM)) return 77;
    snprintf(cluster, sizeof cluster, "ps=127.%d.%d.1:7315;worker=127.%d.%d.2:7315", 1 + pid % 200, pid / 200 % 250,
             1 + pid % 200, pid / 200 % 250);
    KIT_OK(kolo_server_register_protocol("test+buffered", "shm", 1));
    for (size_t p = 0; p < sizeof protocols / sizeof *protocols; p++) {
        if (!start(0, protocols[p]) || !start(1, protocols[p])) return 1;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) cross(sizes[i], 1, (int)i);
        within_a_task();
        what_cannot_be_is_refused();
        for (int i = 0; i < 2; i++) {
            kolo_rendezvous_close(steps[i]);
            kolo_server_destroy(servers[i]);
        }
    }
    kit_rank_close(&gpu);
    printf("keyed tensors on a GPU: %d checks, %d failed\n", checks, kit_failures);
    return kit_failures != 0;
}
