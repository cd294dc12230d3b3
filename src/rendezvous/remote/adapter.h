/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the adapter share: its thread (adapter.c), its connections (connect.c), its beginning and end
 * (life.c). The other files of this room use channel.h alone.
 */
#ifndef KOLO_RENDEZVOUS_ADAPTER_H
#define KOLO_RENDEZVOUS_ADAPTER_H

#include "rendezvous/remote/channel.h"

/* Runs the thread of the adapter arg until adapter->stop is set. */
void *kolo_adapter_run(void *arg);

/* ---- connect.c; on the adapter's thread, unless it says otherwise ---- */

/* Begins and ends listening: on the thread that calls start and stop. */
kolo_status_t kolo_adapter_listen(kolo_adapter_t *adapter);
void kolo_adapter_close_listener(kolo_adapter_t *adapter);
/* Starts a receive of a task, or keeps it until there is a channel. Takes the reference. */
void kolo_adapter_start_receive(kolo_adapter_t *adapter, int task, kolo_receive_t receive);
/* Starts the receives that have waited for the channel to a task, if it is open now. */
void kolo_adapter_begin_pending(kolo_adapter_t *adapter, int task);
void kolo_adapter_fail_pending(kolo_adapter_t *adapter, kolo_peer_task_t *peer, kolo_status_t status,
                               const char *why);
/* Commands CALLED and LET_IN: a socket has come, or could not be made. */
void kolo_adapter_take_socket(kolo_adapter_t *adapter, const kolo_command_t *c);
/* Takes a further connection for a channel, which may have ended meanwhile (command LANE). */
void kolo_adapter_take_lane(kolo_adapter_t *adapter, kolo_command_t *c);
/* Ends and frees the channel; what waits for it fails. */
void kolo_adapter_end_channel(kolo_channel_t *channel, kolo_status_t status, const char *why);
/* Does the same with the thread's last error if `status`, of a call on the channel, is a failure. */
void kolo_adapter_check(kolo_channel_t *channel, kolo_status_t status);

#endif
