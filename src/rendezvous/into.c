/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives with a destination, memory of the caller. While one is under way from another task, that task or the
 * adapter's thread may write there at any moment. So claiming the receive (receive.c) does not end it: it ends once
 * it has parted from its destination, that is, when nothing can write there any more. A discard waits for that;
 * after an abort the thread that parts it ends it.
 */
#include "rendezvous/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTED = 1u, ENDS_LATE = 2u }; /* the second: status and why are in the receive */

kolo_status_t kolo_rendezvous_transfer_check(const kolo_transfer_args_t *args, bool receives)
{
    if (args == NULL) return KOLO_OK;
    if (args->memory != KOLO_MEMORY_HOST && args->memory != KOLO_MEMORY_DEVICE)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "rendezvous: there is no memory of kind %d", args->memory);
    if (!receives && (args->into || args->into_bytes))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "send: a destination is the receiver's to name, not the sender's");
    if ((args->into != NULL) != (args->into_bytes > 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "receive: a destination without bytes, or bytes without one");
    if (args->memory == KOLO_MEMORY_DEVICE && args->into)
        return kolo_rendezvous_device_check(args->into, "receive: its destination");
    return KOLO_OK;
}

kolo_status_t kolo_receive_takes(const kolo_receive_t receive, const kolo_value_t *value,
                                 const kolo_transfer_args_t *sender)
{
    bool there = sender && sender->memory == KOLO_MEMORY_DEVICE;
    if (value->bytes > receive->most)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "receive of edge %s: its value has %llu bytes, its destination %llu; the value stays for "
                         "the next receive",
                         receive->key.edge_name, (unsigned long long)value->bytes,
                         (unsigned long long)receive->most);
    if (receive->args.memory == KOLO_MEMORY_DEVICE && receive->args.into == NULL && !there && value->bytes > 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "receive of edge %s: its value lies in host memory, and no destination on a device was "
                         "named; the value stays for the next receive",
                         receive->key.edge_name);
    return KOLO_OK;
}

kolo_status_t kolo_receive_land(kolo_receive_t receive, const kolo_transfer_args_t *sender, kolo_value_t *value)
{
    const kolo_transfer_args_t *args = &receive->args;
    bool from_device = sender && sender->memory == KOLO_MEMORY_DEVICE,
         to_device = args->memory == KOLO_MEMORY_DEVICE;
    kolo_status_t status = KOLO_OK;
    if (value->bytes == 0 || value->data == args->into) return KOLO_OK;
    if (args->into == NULL) {
        if (from_device && !to_device) status = kolo_rendezvous_device_bring(value);
        if (status != KOLO_OK) kolo_value_release(value);
        return status;
    }
    kolo_value_t theirs = *value;
    if (from_device || to_device)
        status = kolo_rendezvous_device_copy(args->into, theirs.data, theirs.bytes);
    else
        memcpy(args->into, theirs.data, theirs.bytes);
    value->data = args->into;
    value->release = NULL;
    value->arg = NULL;
    kolo_value_release(&theirs);
    return status;
}

bool kolo_receive_part(kolo_receive_t receive)
{
    uint32_t before = atomic_fetch_or_explicit(&receive->parted, PARTED, memory_order_acq_rel);
    if (before & PARTED) return false;
    kolo_gate_open(&receive->gate);
    return (before & ENDS_LATE) != 0;
}

bool kolo_receive_has_parted(const kolo_receive_t receive)
{
    return (atomic_load_explicit(&receive->parted, memory_order_acquire) & PARTED) != 0;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_receive_t receive = arg;
    snprintf(buf, bytes, "%s, which may still be writing the value of edge %s to its destination",
             receive->key.src_device, receive->key.edge_name);
}

/* Waits until nothing can write there. It has a limit: whoever does not answer loses its channel (remote/fetch.c).
 */
void kolo_receive_wait_parted(kolo_receive_t receive)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe, receive, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&receive->gate);
        if (kolo_receive_has_parted(receive)) break;
        (void)kolo_gate_wait(&receive->gate, ticket, &wait);
    }
}

void kolo_receive_end_late(kolo_receive_t receive)
{
    char *why = receive->why;
    receive->why = NULL;
    kolo_receive_end(receive, receive->status, why ? why : "no memory for the reason", NULL, NULL);
    free(why);
}

void kolo_receive_end_when_parted(kolo_receive_t receive, kolo_status_t status, const char *why)
{
    if (receive->args.into == NULL) {
        kolo_receive_end(receive, status, why, NULL, NULL);
        return;
    }
    receive->status = status;
    receive->why = strdup(why);
    uint32_t before = atomic_fetch_or_explicit(&receive->parted, ENDS_LATE, memory_order_acq_rel);
    if (before & PARTED) kolo_receive_end_late(receive);
}
