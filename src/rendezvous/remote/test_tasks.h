/* SPDX-License-Identifier: Apache-2.0
 *
 * Two tasks that are servers of one process, for unit tests: on loopback addresses that follow from the process'
 * number, so that tests that run at the same time do not meet; values whose releases are counted. The same tests
 * for each protocol.
 */
#ifndef KOLO_RENDEZVOUS_TEST_TASKS_H
#define KOLO_RENDEZVOUS_TEST_TASKS_H

#include "base/test.h"
#include "remote/net.h"
#include "rendezvous/remote/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PS     "/job:ps/task:0"
#define WORKER "/job:worker/task:0"

static const char *protocol;
static bool buffered;
static char cluster[300];
static const char secret[] = "a secret of these tests alone";

static inline kolo_server_t make_server(const char *task, const void *with)
{
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_server_t server = NULL;
    config.cluster = cluster;
    config.task = task;
    config.protocol = protocol;
    config.secret = with;
    config.secret_bytes = sizeof secret;
    if (kolo_server_create(&server, &config) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return server;
}

static inline kolo_server_t start_server(const char *task)
{
    kolo_server_t server = make_server(task, secret);
    if (kolo_server_start(server) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return server;
}

typedef struct {
    kolo_server_t ps, worker;
    kolo_rendezvous_t at_ps, at_worker; /* step 1 */
} fixture_t;
static _Atomic int made, released;

static inline kolo_rendezvous_t open_step(kolo_server_t server, uint64_t step)
{
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t rendezvous;
    assert_int_equal(kolo_server_manager(server, &manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, step, &rendezvous), KOLO_OK);
    return rendezvous;
}

static inline void name_cluster(void)
{
    int pid = (int)getpid();
    snprintf(cluster, sizeof cluster, "ps=127.%d.%d.1:7311;worker=127.%d.%d.2:7311,127.%d.%d.3:7311", 1 + pid % 200,
             pid / 200 % 250, 1 + pid % 200, pid / 200 % 250, 1 + pid % 200, pid / 200 % 250);
}

static inline int set_up(void **state)
{
    fixture_t *f = calloc(1, sizeof *f);
    atomic_store(&made, 0);
    atomic_store(&released, 0);
    name_cluster();
    f->ps = start_server(PS);
    f->worker = start_server(WORKER);
    f->at_ps = open_step(f->ps, 1);
    f->at_worker = open_step(f->worker, 1);
    *state = f;
    return 0;
}

/* Checks that every value that a test sent was released, once. */
static inline int tear_down(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_close(f->at_ps);
    kolo_rendezvous_close(f->at_worker);
    kolo_server_destroy(f->worker);
    kolo_server_destroy(f->ps);
    free(f);
    if (atomic_load(&made) == atomic_load(&released)) return 0;
    printf("%d values made, %d released\n", atomic_load(&made), atomic_load(&released));
    return 1;
}

static inline void release(void *arg)
{
    free(arg);
    atomic_fetch_add(&released, 1);
}

static inline kolo_value_t make_value(int64_t elements, int seed)
{
    size_t bytes = (size_t)elements * 4;
    uint32_t *data = malloc(bytes + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < elements; i++) data[i] = (uint32_t)(i * 2654435761u) ^ (uint32_t)seed;
    atomic_fetch_add(&made, 1);
    return (kolo_value_t){.element = KOLO_UINT32,
                          .ndims = 2,
                          .dims = {elements, 1},
                          .data = data,
                          .bytes = bytes,
                          .release = release,
                          .arg = data};
}

static inline void check_value(kolo_value_t *value, int64_t elements, int seed)
{
    const uint32_t *data = value->data;
    assert_int_equal(value->element, KOLO_UINT32);
    assert_int_equal(value->ndims, 2);
    assert_int_equal(value->dims[0], elements);
    assert_int_equal(value->bytes, elements * 4);
    for (int64_t i = 0; i < elements; i++)
        if (data[i] != ((uint32_t)(i * 2654435761u) ^ (uint32_t)seed)) fail_msg("element %ld is wrong", (long)i);
    kolo_value_release(value);
}

/* Returns a key of an edge from `from` to `to`, which must be running. */
static inline char *make_key(kolo_server_t asker, const char *from, const char *to, const char *edge)
{
    static char text[8][KOLO_TENSOR_KEY_MAX + 1];
    static int next;
    kolo_tensor_key_t key = {0};
    char *at = text[next++ % 8];
    if (kolo_server_incarnation(asker, from, 20000, &key.src_incarnation) != KOLO_OK)
        fail_msg("%s", kolo_error_text());
    snprintf(key.src_device, sizeof key.src_device, "%s/device:cpu:0", from);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:cpu:0", to);
    snprintf(key.edge_name, sizeof key.edge_name, "%s", edge);
    assert_int_equal(kolo_tensor_key_make(&key, at, KOLO_TENSOR_KEY_MAX + 1), KOLO_OK);
    return at;
}

static inline void send_value(kolo_rendezvous_t step, const char *key, int64_t elements, int seed)
{
    kolo_value_t value = make_value(elements, seed);
    if (kolo_rendezvous_send(step, key, &value, NULL) != KOLO_OK) fail_msg("%s", kolo_error_text());
}

static inline void receive_value(kolo_rendezvous_t step, const char *key, int64_t elements, int seed)
{
    kolo_value_t value;
    if (kolo_rendezvous_receive(step, key, NULL, 30000, &value) != KOLO_OK) fail_msg("%s", kolo_error_text());
    check_value(&value, elements, seed);
}

/* ---- callbacks ---- */

typedef struct {
    _Atomic int calls;
    kolo_status_t status;
    pthread_t thread;
    char why[300];
} heard_t;

static inline void hear(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                        const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    heard_t *heard = arg;
    (void)sender;
    (void)receiver;
    heard->status = status;
    heard->thread = pthread_self();
    snprintf(heard->why, sizeof heard->why, "%s", why ? why : "");
    if (value) kolo_value_release(value);
    atomic_fetch_add(&heard->calls, 1);
}

static inline void wait_calls(heard_t *heard, int calls)
{
    uint64_t deadline = kolo_deadline_ms(30000);
    while (atomic_load(&heard->calls) < calls) {
        if (kolo_now_ns() > deadline) fail_msg("no callback came");
        sched_yield();
    }
}

/* ---- protocols ---- */

/* Runs the tests with this protocol. Without a name of the one to be run (`only`), RDMA runs where a card is. */
static inline int run_protocol(const char *only, const char *name, int (*tests)(const char *name))
{
    const char *why;
    if (only ? strcmp(only, name) != 0 : strstr(name, "verbs") && !kolo_net_has("verbs", &why)) return 0;
    protocol = name;
    buffered = strstr(name, "buffered") != NULL;
    return tests(name);
}

/* Runs both modes over each wire, or the protocol that the command line names; returns how many tests failed. The
 * virtual machine (tests/vm), which has a card, asks for those over RDMA by name. */
static inline int run_protocols(const char *only, int (*tests)(const char *name))
{
    static const char *const names[] = {"kolo+shm",          "kolo+tcp",          "kolo+verbs",
                                        "test+buffered+shm", "test+buffered+tcp", "test+buffered+verbs"};
    int failed = 0;
    bool known = !only;
    for (size_t i = 0; i < KOLO_COUNTOF(names); i++) {
        known = known || strcmp(only, names[i]) == 0;
        const char *wire = strrchr(names[i], '+') + 1;
        if (strstr(names[i], "buffered") && kolo_server_register_protocol(names[i], wire, 1) != KOLO_OK) return 1;
        failed += run_protocol(only, names[i], tests);
    }
    if (!known) printf("no protocol is named %s\n", only);
    return known ? failed : 1;
}

#endif
