/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyed tensors, for their manual pages. One process with two tasks; argument: an address of this host that is
 * free.
 */
#include "page.h"

#include <kolo/rendezvous.h>
#include <string.h>

#define PS     "/job:ps/task:0"
#define WORKER "/job:worker/task:0"

static kolo_status_t tensor_key_make(uint64_t incarnation, const char *edge, char *text, size_t bytes)
{
    kolo_tensor_key_t key = {
        .src_device = PS "/device:cpu:0", .src_incarnation = incarnation, .dst_device = WORKER "/device:cpu:0"};
    kolo_tensor_key_t again;
    snprintf(key.edge_name, sizeof key.edge_name, "%s", edge);
    TRY(kolo_tensor_key_make(&key, text, bytes));
    TRY(kolo_tensor_key_parse(text, &again));
    EXPECT(strcmp(again.edge_name, edge) == 0 && again.frame == 0);
    return KOLO_OK;
}

/* A value of n floats, in memory that its receiver frees. */
static kolo_value_t value_of(int n)
{
    kolo_value_t value = {.element = KOLO_FLOAT32, .ndims = 1, .dims = {n}, .release = free};
    value.bytes = (size_t)n * kolo_element_size(value.element);
    value.data = value.arg = calloc((size_t)n, sizeof(float));
    return value;
}

/* Two tasks, which would be two processes. Each has a server, and the server a manager of its steps. */
static kolo_status_t server_create(kolo_server_t servers[2], const char *address)
{
    char cluster[200];
    TRY(kolo_server_register_protocol("over tcp", "tcp", 0)); /* "kolo" chooses the fastest way by itself */
    snprintf(cluster, sizeof cluster, "ps=%s:7391;worker=%s:7392", address, address);
    for (int i = 0; i < 2; i++) {
        kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
        config.cluster = cluster;
        config.task = i == 0 ? PS : WORKER;
        config.protocol = "over tcp";
        config.secret = "sixteen bytes or more";
        config.secret_bytes = strlen("sixteen bytes or more");
        TRY(kolo_server_create(&servers[i], &config));
        TRY(kolo_server_start(servers[i]));
    }
    return KOLO_OK;
}

/* The parameter server sends a value, the worker receives it, in step 1. */
static kolo_status_t rendezvous_send(kolo_server_t ps)
{
    char key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    kolo_value_t value = value_of(4);
    uint64_t incarnation;
    TRY(kolo_server_incarnation(ps, PS, 0, &incarnation));
    TRY(tensor_key_make(incarnation, "weights", key, sizeof key));
    TRY(kolo_server_manager(ps, &manager));
    TRY(kolo_rendezvous_open(manager, 1, &step));
    kolo_status_t status = kolo_rendezvous_send(step, key, &value, NULL); /* waits for nobody */
    if (status != KOLO_OK) kolo_value_release(&value);                    /* it is still ours */
    TRY(kolo_rendezvous_close(step));
    return status;
}

static kolo_status_t rendezvous_receive(kolo_server_t worker)
{
    char key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    kolo_value_t value;
    uint64_t incarnation;
    TRY(kolo_server_incarnation(worker, PS, 10000, &incarnation)); /* asks that task */
    TRY(tensor_key_make(incarnation, "weights", key, sizeof key));
    TRY(kolo_server_manager(worker, &manager));
    TRY(kolo_rendezvous_open(manager, 1, &step));
    TRY(kolo_rendezvous_receive(step, key, NULL, 10000, &value));
    EXPECT(value.dims[0] == 4);
    TRY(kolo_value_release(&value));
    return kolo_rendezvous_close(step);
}

static kolo_status_t server_stop(kolo_server_t servers[2])
{
    for (int i = 0; i < 2; i++) {
        TRY(kolo_server_stop(servers[i]));
        TRY(kolo_server_join(servers[i], 10000)); /* a task that only serves waits here from the start */
        TRY(kolo_server_destroy(servers[i]));
    }
    return KOLO_OK;
}

/* Within one task a manager is enough. */
static kolo_status_t rendezvous_manager_create(kolo_rendezvous_manager_t *manager)
{
    TRY(kolo_rendezvous_manager_create(manager));
    return kolo_rendezvous_manager_initialize(*manager, PS, 4711);
}

static void local_key(const char *edge, char *text, size_t bytes)
{
    snprintf(text, bytes, PS "/device:cpu:0;%016x;" PS "/device:cpu:1;%s;0:0", 4711, edge);
}

static void arrived(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                    const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    (void)sender, (void)receiver;
    if (status != KOLO_OK) fprintf(stderr, "%s\n", why);
    if (value) kolo_value_release(value);
    *(int *)arg += status == KOLO_OK;
}

static kolo_status_t rendezvous_receive_call(kolo_rendezvous_t step)
{
    char key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_value_t value = value_of(2);
    int came = 0;
    local_key("bias", key, sizeof key);
    TRY(kolo_rendezvous_receive_call(step, key, NULL, arrived, &came));
    TRY(kolo_rendezvous_send(step, key, &value, NULL)); /* runs the callback */
    EXPECT(came == 1);
    return KOLO_OK;
}

static kolo_status_t rendezvous_receive_begin(kolo_rendezvous_t step)
{
    char key[KOLO_TENSOR_KEY_MAX + 1], other[KOLO_TENSOR_KEY_MAX + 1];
    kolo_value_t value = value_of(2), got;
    kolo_receive_t receive, never;
    int ended;
    local_key("scale", key, sizeof key);
    local_key("not sent", other, sizeof other);
    TRY(kolo_rendezvous_receive_begin(step, key, NULL, &receive));
    TRY(kolo_rendezvous_receive_begin(step, other, NULL, &never));
    TRY(kolo_rendezvous_send(step, key, &value, NULL));
    TRY(kolo_receive_poll(receive, &ended));
    EXPECT(ended);
    TRY(kolo_receive_wait(receive, 1000, &got)); /* frees the handle */
    TRY(kolo_value_release(&got));
    return kolo_receive_discard(never);
}

static kolo_status_t rendezvous_send_set(kolo_rendezvous_t step)
{
    char first[KOLO_TENSOR_KEY_MAX + 1], second[KOLO_TENSOR_KEY_MAX + 1];
    const char *keys[2] = {first, second};
    kolo_value_t values[2] = {value_of(1), value_of(2)}, got[2];
    int sent;
    local_key("first", first, sizeof first);
    local_key("second", second, sizeof second);
    TRY(kolo_rendezvous_send_set(step, keys, values, 2, &sent));
    TRY(kolo_rendezvous_receive_set(step, keys, got, 2, 1000)); /* both or none */
    EXPECT(sent == 2 && got[1].dims[0] == 2);
    for (int i = 0; i < 2; i++) TRY(kolo_value_release(&got[i]));
    return KOLO_OK;
}

/* A step that cannot be completed: all who wait in it are told, now and later. */
static kolo_status_t rendezvous_abort(kolo_rendezvous_t step)
{
    char key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_value_t value;
    local_key("weights", key, sizeof key);
    TRY(kolo_rendezvous_abort(step, KOLO_ERR_ABORTED, "the loss is not a number"));
    EXPECT(kolo_rendezvous_receive(step, key, NULL, 0, &value) == KOLO_ERR_ABORTED);
    return KOLO_OK;
}

static kolo_status_t rendezvous_manager_cleanup(kolo_rendezvous_manager_t manager)
{
    size_t steps;
    TRY(kolo_rendezvous_manager_cleanup(manager, 1)); /* step 1 is over: what was not received is released */
    TRY(kolo_rendezvous_manager_cleanup_all(manager));
    TRY(kolo_rendezvous_manager_count(manager, &steps));
    EXPECT(steps == 0);
    return kolo_rendezvous_manager_destroy(manager);
}

int main(int argc, char **argv)
{
    kolo_server_t servers[2];
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    if (argc != 2) return 2;
    SHOW(server_create, servers, argv[1]);
    SHOW(rendezvous_send, servers[0]);
    SHOW(rendezvous_receive, servers[1]);
    SHOW(server_stop, servers);
    SHOW(rendezvous_manager_create, &manager);
    SHOW(kolo_rendezvous_open, manager, 1, &step);
    SHOW(rendezvous_receive_call, step);
    SHOW(rendezvous_receive_begin, step);
    SHOW(rendezvous_send_set, step);
    SHOW(rendezvous_abort, step);
    SHOW(kolo_rendezvous_close, step);
    SHOW(rendezvous_manager_cleanup, manager);
    return 0;
}
