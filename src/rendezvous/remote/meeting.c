/* SPDX-License-Identifier: Apache-2.0
 *
 * How tasks without listed addresses find each other. The first task of the cluster, the keeper, listens at
 * KOLO_COMM_ID and keeps all addresses (doors). Each other task listens at a port of its own, connects to the
 * keeper and sends its address (DOOR). A task that wants to connect to another asks the keeper (WHERE) and gets the
 * answer as soon as the address is known. A restarted task sends a new address and incarnation; a task that was
 * refused at the old address asks for a newer one. A restarted keeper gets all addresses again, because every task
 * reconnects to it.
 *
 * All on the adapter's thread, but for kolo_meeting_create().
 */
#include "base/process.h"
#include "rendezvous/remote/adapter.h"
#include "rendezvous/remote/channel.h"

#include "base/bytes.h"
#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEEPER 0

typedef struct {
    kolo_address_t address;
    uint64_t incarnation; /* 0: not known */
} door_t;

typedef struct asker {
    struct asker *next;
    kolo_channel_t *channel;
    int task;
    uint64_t not_this;
} asker_t;

typedef struct { /* a task that this one looks for */
    bool looks, asked;
    uint64_t not_this; /* the incarnation whose door was shut */
    uint64_t deadline_ns;
} search_t;

struct kolo_meeting {
    kolo_address_t own;
    door_t *doors;
    search_t *searches;
    int nsearches;   /* that look */
    asker_t *askers; /* the keeper's */
};

kolo_status_t kolo_meeting_create(kolo_adapter_t *adapter)
{
    kolo_meeting_t *meeting = calloc(1, sizeof *meeting);
    if (meeting) meeting->doors = calloc((size_t)adapter->ntasks, sizeof *meeting->doors);
    if (meeting) meeting->searches = calloc((size_t)adapter->ntasks, sizeof *meeting->searches);
    adapter->meeting = meeting;
    if (meeting && meeting->doors && meeting->searches) return KOLO_OK;
    return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for the doors of %d tasks", adapter->ntasks);
}

void kolo_meeting_destroy(kolo_adapter_t *adapter)
{
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL) return;
    while (meeting->askers) {
        asker_t *asker = meeting->askers;
        meeting->askers = asker->next;
        free(asker);
    }
    free(meeting->doors);
    free(meeting->searches);
    free(meeting);
    adapter->meeting = NULL;
}

kolo_status_t kolo_meeting_choose_door(const kolo_adapter_t *adapter, kolo_address_t *address)
{
    uint64_t cookie;
    *address = adapter->tasks[adapter->me].address;
    if (adapter->meeting == NULL || adapter->me == KEEPER) return KOLO_OK;
    KOLO_TRY(kolo_address_choose_local(&adapter->tasks[KEEPER].address, address));
    KOLO_TRY(kolo_random(&cookie, sizeof cookie));
    kolo_address_set_cookie(address,
                            cookie); /* a later owner of the port can refuse callers that meant this task */
    return KOLO_OK;
}

void kolo_meeting_opened(kolo_adapter_t *adapter, const kolo_address_t *address)
{
    char text[KOLO_ADDRESS_TEXT_BYTES];
    if (adapter->meeting == NULL) return;
    adapter->meeting->own = *address;
    kolo_info("rendezvous", "%s has its door at %s", adapter->tasks[adapter->me].name,
              kolo_address_print(address, text));
    if (adapter->me != KEEPER) (void)kolo_adapter_call(adapter, KEEPER);
}

/* ---- looking for a task ---- */

static void stop_looking(kolo_meeting_t *meeting, int task)
{
    if (meeting->searches[task].looks) meeting->nsearches--;
    meeting->searches[task] = (search_t){0};
}

static kolo_status_t ask(kolo_adapter_t *adapter, int task)
{
    search_t *search = &adapter->meeting->searches[task];
    kolo_channel_t *channel = adapter->peers[KEEPER].channel;
    if (adapter->me == KEEPER || channel == NULL || !channel->greeted) return KOLO_OK; /* when it is there */
    kolo_message_t where = {.kind = KOLO_MESSAGE_WHERE, .index = (uint32_t)task};
    where.shape.bytes = search->not_this;
    kolo_status_t status = kolo_channel_send(channel, &where);
    search->asked = status == KOLO_OK;
    return status;
}

bool kolo_meeting_find(kolo_adapter_t *adapter, int task, kolo_address_t *address, uint64_t *deadline_ns)
{
    kolo_meeting_t *meeting = adapter->meeting;
    *address = adapter->tasks[task].address;
    if (meeting == NULL || task == KEEPER) return true;
    const door_t *door = &meeting->doors[task];
    search_t *search = &meeting->searches[task];
    if (search->deadline_ns == 0) search->deadline_ns = *deadline_ns;
    *deadline_ns = search->deadline_ns;
    if (door->incarnation != 0 && door->incarnation != search->not_this) {
        *address = door->address;
        return true;
    }
    if (search->looks) return false;
    search->looks = true;
    meeting->nsearches++;
    if (adapter->me != KEEPER && adapter->peers[KEEPER].channel == NULL) kolo_adapter_dial(adapter, KEEPER);
    (void)ask(adapter, task); /* what fails is asked again */
    return false;
}

bool kolo_meeting_shut(kolo_adapter_t *adapter, int task, kolo_status_t status)
{
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL || task == KEEPER) return false;
    search_t *search = &meeting->searches[task];
    if (status == KOLO_ERR_TIMEOUT || status == KOLO_ERR_NO_MEMORY || search->deadline_ns == 0 ||
        kolo_now_ns() >= search->deadline_ns) {
        stop_looking(meeting, task);
        return false;
    }
    search->not_this = meeting->doors[task].incarnation;
    search->looks = search->asked = false;
    kolo_debug("rendezvous", "the door of %s is shut; it is looked for another one", adapter->tasks[task].name);
    kolo_adapter_dial(adapter, task);
    return true;
}

void kolo_meeting_reached(kolo_adapter_t *adapter, int task)
{
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting) stop_looking(meeting, task);
}

void kolo_meeting_poll(kolo_adapter_t *adapter)
{
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL || meeting->nsearches == 0) return;
    uint64_t now = kolo_now_ns();
    for (int i = 0; i < adapter->ntasks; i++) {
        char why[KOLO_WHY_BYTES], keeper[KOLO_ADDRESS_TEXT_BYTES];
        if (meeting->searches[i].looks && !meeting->searches[i].asked) (void)ask(adapter, i);
        if (!meeting->searches[i].looks || now < meeting->searches[i].deadline_ns) continue;
        bool met =
            adapter->me == KEEPER || (adapter->peers[KEEPER].channel && adapter->peers[KEEPER].channel->greeted);
        snprintf(why, sizeof why, "%s was not to be found in %d ms: %s %s (KOLO_COMM_ID)", adapter->tasks[i].name,
                 adapter->connect_ms,
                 met ? "it has not come, or not come back, to where the tasks meet,"
                     : "there was no answer where the tasks meet,",
                 kolo_address_print(&adapter->tasks[KEEPER].address, keeper));
        stop_looking(meeting, i);
        kolo_adapter_call_failed(adapter, i, KOLO_ERR_TIMEOUT, why);
    }
}

/* ---- the keeper's answers ---- */

static kolo_status_t tell(kolo_channel_t *channel, int task, const door_t *door)
{
    kolo_message_t message = {.kind = KOLO_MESSAGE_DOOR, .index = (uint32_t)task};
    message.shape.bytes = door->incarnation;
    KOLO_FAIL_POINT_TRY("rendezvous.meeting.tell");
    for (size_t i = 0; i < sizeof door->address.bytes; i++)
        snprintf(message.name + 2 * i, 3, "%02x", door->address.bytes[i]);
    return kolo_channel_send(channel, &message);
}

static bool read_address(const char *text, kolo_address_t *address)
{
    if (strlen(text) != 2 * sizeof address->bytes) return false;
    for (size_t i = 0; i < 2 * sizeof address->bytes; i++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, text[i]);
        if (digit == NULL) return false;
        uint8_t *byte = &address->bytes[i / 2];
        *byte = (uint8_t)(i % 2 ? *byte | (digit - digits) : (digit - digits) << 4);
    }
    return kolo_address_check(address) == NULL;
}

/* Takes one who waits for this door off the list; NULL: nobody does. */
static kolo_channel_t *take_asker(kolo_meeting_t *meeting, int task, const door_t *door)
{
    asker_t **at = &meeting->askers;
    while (*at && ((*at)->task != task || (*at)->not_this == door->incarnation)) at = &(*at)->next;
    asker_t *asker = *at;
    kolo_channel_t *channel = asker ? asker->channel : NULL;
    if (asker) *at = asker->next;
    free(asker);
    return channel;
}

/* Takes a door that `from` has told of: whoever looks for it goes on. Who cannot be told loses his own channel, and
 * asks again by the next one; it is not the end of `from`. */
static kolo_status_t learn(const kolo_channel_t *from, int task, const door_t *door)
{
    kolo_adapter_t *adapter = from->adapter;
    kolo_meeting_t *meeting = adapter->meeting;
    kolo_status_t own = KOLO_OK;
    meeting->doors[task] = *door;
    for (kolo_channel_t *channel; (channel = take_asker(meeting, task, door)) != NULL;) {
        kolo_status_t status = tell(channel, task, door);
        if (channel == from)
            own = status;
        else
            kolo_adapter_check(channel, status);
    }
    if (own != KOLO_OK) return own;
    search_t *search = &meeting->searches[task];
    if (!search->looks || search->not_this == door->incarnation) return KOLO_OK;
    search->looks = search->asked = false;
    meeting->nsearches--;
    kolo_adapter_dial(adapter, task);
    return KOLO_OK;
}

kolo_status_t kolo_meeting_heard(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_adapter_t *adapter = channel->adapter;
    door_t door = {.incarnation = m->shape.bytes};
    bool keeps = adapter->me == KEEPER && !channel->caller, asks = channel->caller && channel->peer == KEEPER;
    if (adapter->meeting == NULL || (!keeps && !asks))
        return kolo_channel_bad_message(channel, "DOOR", "the tasks do not meet here");
    if (m->index >= (uint32_t)adapter->ntasks || (keeps && (int)m->index != channel->peer) || m->index == KEEPER)
        return kolo_channel_bad_message(channel, "DOOR", "this task does not keep the addresses");
    if (door.incarnation == 0 || !read_address(m->name, &door.address))
        return kolo_channel_bad_message(channel, "DOOR", "nobody could be called there");
    return learn(channel, (int)m->index, &door);
}

kolo_status_t kolo_meeting_asked(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL || adapter->me != KEEPER || m->index == KEEPER || m->index >= (uint32_t)adapter->ntasks)
        return kolo_channel_bad_message(channel, "WHERE", "the tasks do not meet here, or there is no such task");
    const door_t *door = &meeting->doors[m->index];
    if (door->incarnation != 0 && door->incarnation != m->shape.bytes) return tell(channel, (int)m->index, door);
    for (asker_t *asker = meeting->askers; asker; asker = asker->next) /* one question of each is enough */
        if (asker->channel == channel && asker->task == (int)m->index) {
            asker->not_this = m->shape.bytes;
            return KOLO_OK;
        }
    asker_t *asker = malloc(sizeof *asker);
    if (asker == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a request for an address");
    *asker =
        (asker_t){.next = meeting->askers, .channel = channel, .task = (int)m->index, .not_this = m->shape.bytes};
    meeting->askers = asker;
    return KOLO_OK;
}

/* ---- the channel to the keeper ---- */

kolo_status_t kolo_meeting_greeted(kolo_channel_t *channel)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL || !channel->caller || channel->peer != KEEPER) return KOLO_OK;
    door_t own = {.address = meeting->own, .incarnation = adapter->incarnation};
    KOLO_TRY(tell(channel, adapter->me, &own));
    for (int i = 0; i < adapter->ntasks && meeting->nsearches > 0; i++)
        if (meeting->searches[i].looks && !meeting->searches[i].asked) KOLO_TRY(ask(adapter, i));
    return KOLO_OK;
}

void kolo_meeting_left(kolo_adapter_t *adapter, const kolo_channel_t *channel)
{
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL) return;
    for (asker_t **at = &meeting->askers; *at;) {
        asker_t *asker = *at;
        if (asker->channel == channel) {
            *at = asker->next;
            free(asker);
        } else {
            at = &asker->next;
        }
    }
    if (channel->caller && channel->peer == KEEPER)
        for (int i = 0; i < adapter->ntasks; i++) meeting->searches[i].asked = false;
}

void kolo_meeting_keeper_lost(kolo_adapter_t *adapter, kolo_status_t status, const char *why)
{
    kolo_meeting_t *meeting = adapter->meeting;
    if (meeting == NULL || adapter->me == KEEPER || atomic_load(&adapter->stop)) return;
    if (status == KOLO_ERR_REMOTE || status == KOLO_ERR_TIMEOUT) { /* it may come back, and wants to know us then */
        kolo_adapter_dial(adapter, KEEPER);
        return;
    }
    for (int i = 0; i < adapter->ntasks; i++) {
        if (!meeting->searches[i].looks) continue;
        stop_looking(meeting, i);
        kolo_adapter_call_failed(adapter, i, status, why);
    }
}
