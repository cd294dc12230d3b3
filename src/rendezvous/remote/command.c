/* SPDX-License-Identifier: Apache-2.0
 *
 * What other threads queue for the adapter's thread: new receives, answers whose value is ready, and commands.
 */
#include "rendezvous/remote/channel.h"

#include <stdio.h>
#include <stdlib.h>

bool kolo_command_give(kolo_adapter_t *adapter, kolo_command_t *c)
{
    pthread_mutex_lock(&adapter->lock);
    bool open = !adapter->closed;
    if (open) {
        c->behind = adapter->nasked;
        *adapter->last_command = c;
        adapter->last_command = &c->next;
    }
    pthread_mutex_unlock(&adapter->lock);
    if (open) kolo_waker_wake(kolo_onesided_domain_waker(adapter->domain));
    return open;
}

void kolo_command_drop(kolo_command_t *c)
{
    kolo_socket_leave(&c->socket);
    if (c->receive) kolo_receive_unref(c->receive);
    free(c);
}

void kolo_command_called(kolo_adapter_t *adapter, kolo_command_t *c, kolo_status_t status, kolo_socket_t socket,
                         const char *text)
{
    c->status = status;
    c->socket = socket;
    if (text) snprintf(c->why, sizeof c->why, "%s", text);
    if (!kolo_command_give(adapter, c)) kolo_command_drop(c);
}

kolo_command_t *kolo_command_new(kolo_do_t what, int task)
{
    kolo_command_t *c = calloc(1, sizeof *c);
    if (c == NULL) kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a command");
    if (c) *c = (kolo_command_t){.what = what, .task = task, .socket = {.fd = -1}};
    return c;
}

static int find_task(const kolo_adapter_t *adapter, const char *device)
{
    char task[KOLO_TASK_NAME_MAX + 1];
    kolo_device_task(device, task);
    return kolo_task_find(adapter->tasks, adapter->by_name, adapter->ntasks, task);
}

static kolo_status_t remote_receive(void *arg, kolo_receive_t receive)
{
    kolo_adapter_t *adapter = arg;
    int task = find_task(adapter, receive->key.src_device);
    if (task < 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "receive of edge %s: the cluster has no task of %s",
                         receive->key.edge_name, receive->key.src_device);
    receive->remote_task = task;
    kolo_receive_ref(receive);
    pthread_mutex_lock(&adapter->lock);
    bool open = !adapter->closed;
    if (open) kolo_receives_append(&adapter->last_asked, receive);
    adapter->nasked += open;
    pthread_mutex_unlock(&adapter->lock);
    if (open) kolo_waker_wake(kolo_onesided_domain_waker(adapter->domain));
    if (open) return KOLO_OK;
    kolo_receive_unref(receive);
    return kolo_fail(KOLO_ERR_INVALID_USAGE, "receive of edge %s: this task's server is not running",
                     receive->key.edge_name);
}

static void remote_cancel(void *arg, kolo_receive_t receive)
{
    kolo_command_t *c = kolo_command_new(KOLO_DO_CANCEL, -1);
    if (c == NULL) return; /* the value comes and is dropped */
    kolo_receive_ref(receive);
    c->receive = receive;
    if (kolo_command_give(arg, c)) return;
    if (kolo_receive_part(receive)) kolo_receive_end_late(receive);
    kolo_command_drop(c);
}

const kolo_remote_ops_t kolo_adapter_remote = {.receive = remote_receive, .cancel = remote_cancel};

kolo_status_t kolo_adapter_call(kolo_adapter_t *adapter, int task)
{
    kolo_command_t *c = kolo_command_new(KOLO_DO_CALL, task);
    if (c == NULL) return KOLO_ERR_NO_MEMORY;
    if (kolo_command_give(adapter, c)) return KOLO_OK;
    kolo_command_drop(c);
    return kolo_fail(KOLO_ERR_INVALID_USAGE, "this task's server is not running");
}

void kolo_adapter_answer_ready(kolo_answer_t *answer)
{
    kolo_adapter_t *adapter = answer->adapter;
    pthread_mutex_lock(&adapter->lock);
    answer->next_ready = NULL;
    *adapter->last_ready = answer;
    adapter->last_ready = &answer->next_ready;
    pthread_mutex_unlock(&adapter->lock);
    kolo_waker_wake(kolo_onesided_domain_waker(adapter->domain));
    atomic_fetch_sub(&adapter->served, 1); /* from now on the adapter may go */
}
