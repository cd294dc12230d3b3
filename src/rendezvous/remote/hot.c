/* SPDX-License-Identifier: Apache-2.0
 *
 * Which channels an adapter looks at in each round: the hot ones, which had something to do lately, are first in
 * its list. All on the adapter's thread.
 */
#include "rendezvous/remote/channel.h"

#include <stdlib.h>

static void swap(kolo_adapter_t *adapter, uint32_t a, uint32_t b)
{
    kolo_channel_t *one = adapter->channels[a], *other = adapter->channels[b];
    adapter->channels[a] = other;
    adapter->channels[b] = one;
    other->place = a;
    one->place = b;
}

kolo_status_t kolo_adapter_add_channel(kolo_adapter_t *adapter, kolo_channel_t *channel)
{
    if (adapter->nchannels == adapter->channel_room) {
        uint32_t room = adapter->channel_room ? 2 * adapter->channel_room : 16;
        kolo_channel_t **more = realloc(adapter->channels, room * sizeof *more);
        if (more == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for %u channels", room);
        adapter->channels = more;
        adapter->channel_room = room;
    }
    channel->place = adapter->nchannels;
    adapter->channels[adapter->nchannels++] = channel;
    kolo_adapter_heat(channel);
    return KOLO_OK;
}

void kolo_adapter_heat(kolo_channel_t *channel)
{
    channel->quiet = 0;
    if (channel->place >= channel->adapter->nhot) swap(channel->adapter, channel->place, channel->adapter->nhot++);
}

void kolo_adapter_cool(kolo_channel_t *channel)
{
    if (channel->place < channel->adapter->nhot) swap(channel->adapter, channel->place, --channel->adapter->nhot);
}

void kolo_adapter_remove_channel(kolo_adapter_t *adapter, kolo_channel_t *channel)
{
    kolo_adapter_cool(channel);
    swap(adapter, channel->place, --adapter->nchannels);
}
