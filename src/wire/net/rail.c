/* SPDX-License-Identifier: Apache-2.0
 *
 * The rails of a connection: made, lost, made anew. A connection fails when its last rail does.
 *
 * Whoever sees a rail fail sends word to the other side over the socket. The reader takes what had come by it, ends
 * it for good (nothing is written by it any more), says which slots it has, and offers the others on the rails that
 * are left. The writer keeps what went by that rail until it knows which of it has come, and sends the rest where
 * it is asked for now. When the reader's port works again it asks the writer to make the rail anew.
 */
#include "base/clock.h"
#include "base/log.h"
#include "wire/net/conn.h"
#include "wire/queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define AGAIN_MS 500 /* between two tries to make a rail anew */

/* ---- making ---- */

static kolo_status_t make_end(kolo_net_conn_t *conn, uint32_t index, kolo_net_hello_t *hello)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    kolo_net_rail_t *rail = &conn->rails[index];
    char label[80];
    snprintf(label, sizeof label, "rank %d -> rank %d, lane %u, rail %u", spec->writer, spec->reader, spec->lane,
             index);
    const kolo_net_end_config_t config = {.depth = spec->depth,
                                          .message_bytes = kolo_net_message_bytes(spec->slot_bytes),
                                          .acknowledged = conn->nrails > 1,
                                          .key = conn->state->ctx->key,
                                          .label = label};
    rail->requests = rail->done = rail->left_over_ns = 0;
    return (conn->rx ? conn->ops->listen : conn->ops->start)(rail->open, &config, hello, &rail->end);
}

kolo_status_t kolo_net_rail_make(kolo_net_conn_t *conn, uint32_t index, kolo_net_hello_t *hello)
{
    kolo_net_rail_t *rail = &conn->rails[index];
    rail->slots = calloc(kolo_net_spec(conn)->depth, sizeof *rail->slots);
    rail->passed = calloc(kolo_net_spec(conn)->depth, sizeof *rail->passed);
    if (!rail->slots || !rail->passed) return kolo_fail(KOLO_ERR_NO_MEMORY, "net: no memory for a rail");
    KOLO_TRY(conn->ops->enroll(rail->open, conn->slots, conn->slots_bytes, conn->rx != NULL, &rail->region));
    return make_end(conn, index, hello);
}

static void end_shut(kolo_net_conn_t *conn, kolo_net_rail_t *rail)
{
    kolo_net_counts_t n;
    if (!rail->end) return;
    conn->ops->counts(rail->end, &n);
    rail->before.requests += n.requests;
    rail->before.completions += n.completions;
    rail->before.doorbells += n.doorbells;
    rail->before.invitations += n.invitations;
    rail->before.trips += n.trips;
    conn->ops->shut(rail->end);
    rail->end = NULL;
}

void kolo_net_rail_free(kolo_net_conn_t *conn, kolo_net_rail_t *rail)
{
    end_shut(conn, rail);
    if (rail->region) conn->ops->withdraw(rail->region);
    free(rail->slots);
    free(rail->passed);
    rail->region = NULL;
    rail->slots = NULL;
    rail->passed = NULL;
}

/* ---- choosing ---- */

/* Counts the rails that are up; those that a lazy writer has yet to make ready are as good as up. */
static uint32_t count_up(const kolo_net_conn_t *conn)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < conn->nrails; i++)
        n += conn->rails[i].state == KOLO_NET_RAIL_UP || conn->rails[i].state == KOLO_NET_RAIL_UNUSED;
    return n;
}

/* Returns the one that will be through with what it has, and this, first: offers come back as a rail's card brings
 * them, so a slow or busy one is asked for less. Equal ones take turns. */
uint32_t kolo_net_rail_for(const kolo_net_conn_t *conn, uint64_t slot)
{
    uint32_t best = conn->nrails - 1;
    double least = 0;
    bool found = false;
    for (uint32_t k = 0; k < conn->nrails; k++) {
        uint32_t i = (uint32_t)((slot + k) % conn->nrails);
        const kolo_net_rail_t *rail = &conn->rails[i];
        if (rail->state != KOLO_NET_RAIL_UP) continue;
        double load = (double)(rail->requests - rail->done + 1) / (rail->weight > 0 ? rail->weight : 1);
        if (found && load >= least) continue;
        least = load;
        best = i;
        found = true;
    }
    return best;
}

/* ---- notes ---- */

bool kolo_net_send_note(kolo_net_conn_t *conn, const kolo_net_note_t *note)
{
    uint8_t bytes[KOLO_NET_NOTE_BYTES];
    kolo_net_note_encode(note, bytes);
    ssize_t n;
    do n = kolo_socket_send_bytes(&conn->socket, bytes, sizeof bytes);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof bytes;
}

/* Sends a note. One that does not go out leaves the two sides with different views, so the connection fails. */
static void tell(kolo_net_conn_t *conn, const kolo_net_note_t *note)
{
    if (conn->status == KOLO_OK && !kolo_net_send_note(conn, note))
        kolo_net_conn_fail(conn, KOLO_ERR_REMOTE, "cannot send the peer word of the failed rail %u", note->rail);
}

/* ---- losing ---- */

/* Offers a slot on a rail that is up, or has that done later if there is no room for another offer; whatever fails
 * is the fault of the rail that was chosen. One that is lost here has its slots offered anew, and this may be one
 * of them. */
void kolo_net_offer_again(kolo_net_conn_t *conn, uint64_t slot)
{
    uint8_t *state = &conn->states[slot & conn->rx->end.mask];
    *state = KOLO_NET_SLOT_IDLE;
    while (conn->status == KOLO_OK && *state == KOLO_NET_SLOT_IDLE) {
        uint32_t index = kolo_net_rail_for(conn, slot);
        kolo_status_t status = kolo_net_offer(conn, index, slot);
        if (status == KOLO_IN_PROGRESS) {
            conn->again = true;
            return;
        }
        if (status == KOLO_OK && conn->invites && (int64_t)(slot - conn->invited) < 0)
            status = kolo_net_invite(conn, slot);
        if (status != KOLO_OK) status = kolo_net_rail_lost(conn, index, status);
        if (status != KOLO_OK) kolo_net_conn_fail(conn, status, "%.800s", kolo_error_text());
    }
}

static void reader_loses(kolo_net_conn_t *conn, uint32_t index)
{
    const kolo_rx_t *rx = conn->rx;
    for (uint64_t slot = conn->arrived; slot != conn->handed; slot++)
        if (conn->states[slot & rx->end.mask] == KOLO_NET_SLOT_DONE)
            tell(conn, &(kolo_net_note_t){.kind = KOLO_NET_SAW, .rail = index, .value = slot});
    tell(conn, &(kolo_net_note_t){.kind = KOLO_NET_LOST, .rail = index, .value = conn->arrived});
    for (uint64_t slot = conn->arrived; conn->status == KOLO_OK && slot != conn->handed; slot++)
        if (conn->states[slot & rx->end.mask] == index + 1) kolo_net_offer_again(conn, slot);
}

static void leave_out(kolo_net_conn_t *conn, uint32_t index, const char *why)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    kolo_net_rail_t *rail = &conn->rails[index];
    kolo_net_device_t device;
    bool any;
    conn->ops->properties(rail->device, &device);
    kolo_warn("net", "connection %d -> %d lane %u goes on without device %s: %.600s", spec->writer, spec->reader,
              spec->lane, device.name, why);
    rail->state = conn->tx ? KOLO_NET_RAIL_LOST : KOLO_NET_RAIL_GONE;
    rail->again_ns = kolo_deadline_ms(AGAIN_MS);
    conn->reordered = true;
    conn->ops->revoke(rail->end);
    do any = false;
    while (kolo_net_harvest(conn, index, &any) == KOLO_OK && any);
    if (count_up(conn) == 0)
        kolo_net_conn_fail(conn, KOLO_ERR_REMOTE, "its last rail, device %s, is lost: %.600s", device.name, why);
    else if (conn->rx)
        reader_loses(conn, index);
    else
        tell(conn, &(kolo_net_note_t){.kind = KOLO_NET_LOST, .rail = index});
}

kolo_status_t kolo_net_rail_lost(kolo_net_conn_t *conn, uint32_t index, kolo_status_t status)
{
    char why[KOLO_ERROR_TEXT_BYTES];
    if (conn->rails[index].state != KOLO_NET_RAIL_UP) return KOLO_OK;
    if (status == KOLO_ERR_PROTOCOL || status == KOLO_ERR_INTERNAL || count_up(conn) < 2) return status;
    snprintf(why, sizeof why, "%s", kolo_error_text());
    kolo_net_conn_listen(conn); /* it may be the peer's farewell, or what it says of this rail */
    if (conn->status != KOLO_OK || conn->rails[index].state != KOLO_NET_RAIL_UP) return KOLO_OK;
    if (count_up(conn) < 2) return kolo_fail(status, "%s", why);
    leave_out(conn, index, why);
    return KOLO_OK;
}

/* ---- coming back ---- */

static void came_back(kolo_net_conn_t *conn, uint32_t index)
{
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    kolo_net_device_t device;
    conn->ops->properties(conn->rails[index].device, &device);
    conn->rails[index].state = KOLO_NET_RAIL_UP;
    kolo_warn("net", "connection %d -> %d lane %u uses device %s again", spec->writer, spec->reader, spec->lane,
              device.name);
}

static void give_up(kolo_net_conn_t *conn, uint32_t index)
{
    end_shut(conn, &conn->rails[index]);
    conn->rails[index].state = KOLO_NET_RAIL_GONE;
    conn->rails[index].again_ns = kolo_deadline_ms(AGAIN_MS);
}

static void ask_again(kolo_net_conn_t *conn, uint32_t index)
{
    kolo_net_note_t note = {.kind = KOLO_NET_OPEN, .rail = index};
    end_shut(conn, &conn->rails[index]);
    if (make_end(conn, index, &note.hello) != KOLO_OK) {
        give_up(conn, index);
        return;
    }
    conn->rails[index].state = KOLO_NET_RAIL_ASKED;
    tell(conn, &note);
}

void kolo_net_rails_look(kolo_net_conn_t *conn)
{
    for (uint32_t i = 0; conn->rx && i < conn->nrails; i++) {
        kolo_net_rail_t *rail = &conn->rails[i];
        if (rail->state != KOLO_NET_RAIL_GONE || kolo_now_ns() < rail->again_ns) continue;
        rail->again_ns = kolo_deadline_ms(AGAIN_MS);
        if (conn->ops->works(rail->open)) ask_again(conn, i);
    }
}

static void answer(kolo_net_conn_t *conn, const kolo_net_note_t *open)
{
    kolo_net_rail_t *rail = &conn->rails[open->rail];
    kolo_net_note_t note = {.kind = KOLO_NET_YES, .rail = open->rail};
    bool fine = rail->state == KOLO_NET_RAIL_GONE && conn->ops->works(rail->open);
    if (fine) {
        end_shut(conn, rail);
        fine = make_end(conn, open->rail, &note.hello) == KOLO_OK &&
               conn->ops->connect(rail->end, &open->hello) == KOLO_OK;
        if (!fine) give_up(conn, open->rail);
    }
    if (fine)
        came_back(conn, open->rail);
    else
        note = (kolo_net_note_t){.kind = KOLO_NET_NO, .rail = open->rail};
    tell(conn, &note);
}

/* ---- what the peer says ---- */

/* Marks, as the writer, what went by the rail and did not come as to be sent again. */
static void settle(kolo_net_conn_t *conn, const kolo_net_note_t *note)
{
    const kolo_tx_t *tx = conn->tx;
    for (uint64_t slot = conn->freed; slot != tx->end.next; slot++) {
        uint8_t *state = &conn->states[slot & tx->end.mask];
        if ((int64_t)(slot - note->value) < 0)
            *state = KOLO_NET_SLOT_DONE;
        else if (*state == note->rail + 1)
            *state = KOLO_NET_SLOT_IDLE;
    }
    conn->rails[note->rail].state = KOLO_NET_RAIL_GONE;
    kolo_net_free_slots(conn);
}

/* Forgets, as a lazy writer, a rail that the reader has lost before this end was ready. Nothing has gone by it; it
 * may be made anew. */
static void not_used(kolo_net_conn_t *conn, uint32_t index)
{
    conn->ops->revoke(conn->rails[index].end);
    conn->rails[index].state = KOLO_NET_RAIL_GONE;
    conn->reordered = true;
}

static void writer_takes(kolo_net_conn_t *conn, const kolo_net_note_t *note)
{
    const kolo_tx_t *tx = conn->tx;
    kolo_net_rail_t *rail = &conn->rails[note->rail];
    if (note->kind == KOLO_NET_OPEN) {
        answer(conn, note);
        return;
    }
    if (note->kind == KOLO_NET_LOST && !conn->ready && rail->state == KOLO_NET_RAIL_UNUSED) {
        not_used(conn, note->rail);
        return;
    }
    if (rail->state == KOLO_NET_RAIL_UP) leave_out(conn, note->rail, "the peer has lost it");
    bool due = rail->state == KOLO_NET_RAIL_LOST && (int64_t)(note->value - tx->end.next) <= 0;
    if (note->kind == KOLO_NET_LOST && due)
        settle(conn, note);
    else if (note->kind == KOLO_NET_SAW && due && note->value != tx->end.next) {
        if ((int64_t)(note->value - conn->freed) >= 0)
            conn->states[note->value & tx->end.mask] = KOLO_NET_SLOT_DONE;
    } else
        kolo_net_conn_fail(conn, KOLO_ERR_PROTOCOL, "note %d about rail %u and slot %llu makes no sense",
                           (int)note->kind, note->rail, (unsigned long long)note->value);
}

static void reader_takes(kolo_net_conn_t *conn, const kolo_net_note_t *note)
{
    kolo_net_rail_t *rail = &conn->rails[note->rail];
    bool asked = rail->state == KOLO_NET_RAIL_ASKED;
    if (note->kind == KOLO_NET_LOST) {
        if (rail->state == KOLO_NET_RAIL_UP) leave_out(conn, note->rail, "the peer has lost it");
    } else if (note->kind == KOLO_NET_YES && asked) {
        if (conn->ops->accept(rail->end, &note->hello) == KOLO_OK) {
            came_back(conn, note->rail);
        } else {
            give_up(conn, note->rail);
            tell(conn, &(kolo_net_note_t){.kind = KOLO_NET_LOST, .rail = note->rail, .value = conn->arrived});
        }
    } else if (note->kind == KOLO_NET_NO && asked) {
        give_up(conn, note->rail);
    } else if (note->kind != KOLO_NET_YES && note->kind != KOLO_NET_NO) {
        kolo_net_conn_fail(conn, KOLO_ERR_PROTOCOL, "note %d about rail %u makes no sense", (int)note->kind,
                           note->rail);
    }
}

void kolo_net_take_note(kolo_net_conn_t *conn, const kolo_net_note_t *note)
{
    if (note->rail >= conn->nrails || conn->nrails < 2)
        kolo_net_conn_fail(conn, KOLO_ERR_PROTOCOL, "a note about rail %u of %u", note->rail, conn->nrails);
    else if (conn->tx)
        writer_takes(conn, note);
    else
        reader_takes(conn, note);
}
