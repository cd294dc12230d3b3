/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of a channel over TCP (remote/onesided/lanes.h). The receiving task dials them when it first expects a
 * large value, at the address of the channel and with its tag. Until they are there, values use the first
 * connection. A lane belongs to its channel: if a lane ends, the channel ends.
 */
#include "rendezvous/remote/channel.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST 16

typedef struct {
    kolo_adapter_t *adapter;
    kolo_command_t *command; /* says how the call has ended */
    kolo_dial_t *dial;
} lane_call_t;

struct kolo_lane_calls {
    int n;
    lane_call_t call[MOST];
};

/* Takes a call that has ended, on the progress thread. */
static void called(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    lane_call_t *call = arg;
    kolo_command_t *c = call->command;
    call->command = NULL;
    kolo_command_called(call->adapter, c, status, socket, text);
}

static kolo_status_t call_lane(kolo_channel_t *channel, lane_call_t *call)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_dial_config_t config = {.address = adapter->peers[channel->peer].address,
                                 .key = adapter->key,
                                 .claim = {.purpose = KOLO_PURPOSE_STREAM,
                                           .from = adapter->me,
                                           .to = channel->peer,
                                           .tag = channel->tag | 1},
                                 .deadline_ns = kolo_deadline_ms(adapter->connect_ms),
                                 .done = called,
                                 .arg = call};
    KOLO_FAIL_POINT_TRY("rendezvous.channel.widen");
    snprintf(config.who, sizeof config.who, "%.63s", adapter->tasks[channel->peer].name);
    call->adapter = adapter;
    call->command = kolo_command_new(KOLO_DO_LANE, channel->peer);
    if (call->command == NULL) return KOLO_ERR_NO_MEMORY;
    call->command->caller = true;
    call->command->tag = config.claim.tag;
    kolo_status_t status = kolo_dial_start(adapter->progress, &config, &call->dial);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_command_drop(call->command);
    call->command = NULL;
    return status;
}

void kolo_channel_widen(kolo_channel_t *channel, uint64_t bytes)
{
    if (!channel->caller || channel->lanes || channel->tag == 0) return;
    int n = kolo_onesided_wants_lanes(channel->end, bytes);
    if (n == 0 || (channel->lanes = calloc(1, sizeof *channel->lanes)) == NULL) return;
    kolo_status_t status = KOLO_OK;
    for (channel->lanes->n = 0; channel->lanes->n < KOLO_MIN(n, MOST) && status == KOLO_OK; channel->lanes->n++)
        status = call_lane(channel, &channel->lanes->call[channel->lanes->n]);
    if (status != KOLO_OK)
        kolo_warn("rendezvous", "large values of %s go by fewer connections than they could: %s",
                  channel->adapter->tasks[channel->peer].name, kolo_error_text());
}

kolo_status_t kolo_channel_add_lane(kolo_channel_t *channel, kolo_socket_t socket)
{
    KOLO_TRY(kolo_onesided_add_lane(channel->end, socket));
    kolo_debug("rendezvous", "the channel with %s has one more lane", channel->adapter->tasks[channel->peer].name);
    return KOLO_OK;
}

void kolo_channel_narrow(kolo_channel_t *channel)
{
    for (int i = 0; channel->lanes && i < channel->lanes->n; i++) {
        lane_call_t *call = &channel->lanes->call[i];
        kolo_dial_cancel(channel->adapter->progress, &call->dial);
        if (call->command) kolo_command_drop(call->command);
    }
    free(channel->lanes);
    channel->lanes = NULL;
}
