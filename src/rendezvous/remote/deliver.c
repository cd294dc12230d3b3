/* SPDX-License-Identifier: Apache-2.0
 *
 * How receives from other tasks end, on the adapter's thread: with a value or a status, in a callback on the pool
 * or for a thread that sleeps at a gate. A receive that another thread has claimed is only parted from its
 * destination.
 */
#include "rendezvous/remote/channel.h"

void kolo_adapter_part(kolo_adapter_t *adapter, kolo_receive_t receive)
{
    if (!kolo_receive_part(receive)) {
        kolo_receive_unref(receive);
    } else if (receive->fn) {
        kolo_callback_pool_add(adapter->pool, receive, receive->status, receive->why, NULL);
    } else {
        kolo_receive_end_late(receive);
        kolo_receive_unref(receive);
    }
}

void kolo_adapter_deliver(kolo_adapter_t *adapter, kolo_receive_t receive, kolo_status_t status, const char *why,
                          const kolo_value_t *value)
{
    kolo_rendezvous_unlist(receive);
    if (!kolo_receive_claim(receive)) {
        kolo_value_t late = value ? *value : (kolo_value_t){0};
        kolo_value_release(&late);
        kolo_adapter_part(adapter, receive);
        return;
    }
    if (value && value->data && receive->args.into && value->data != receive->args.into) { /* it has yet to land */
        KOLO_RDV_COUNT(copies, 1);
        KOLO_RDV_COUNT(copied_bytes, value->bytes);
    }
    if (receive->fn) {
        kolo_callback_pool_add(adapter->pool, receive, status, why, value);
        return;
    }
    kolo_value_t given = value ? *value : (kolo_value_t){0};
    if (value && (status = kolo_receive_land(receive, NULL, &given)) != KOLO_OK) {
        given = (kolo_value_t){0};
        why = kolo_error_text();
    }
    kolo_receive_settle(receive, status, why, &given);
    receive->next_deferred = NULL;
    *adapter->last_settled = receive;
    adapter->last_settled = &receive->next_deferred;
}

void kolo_adapter_wake_settled(kolo_adapter_t *adapter)
{
    kolo_receive_t receive = adapter->settled;
    adapter->settled = NULL;
    adapter->last_settled = &adapter->settled;
    while (receive) {
        kolo_receive_t next = receive->next_deferred;
        kolo_gate_open(&receive->gate);
        kolo_receive_unref(receive);
        receive = next;
    }
}
