/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows come and go, on all ranks together: each announces where its memory lies, the others map what they can,
 * connect with those that they do not reach, and learn at the end whether all of them have got there. What one of
 * them cannot do is an error of all.
 */
#include "base/clock.h"
#include "base/process.h"
#include "base/text/plain.h"
#include "comm/window/window.h"
#include "progress/progress.h"
#include "share/fdpass.h"
#include "wire/mapped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIAL_TAG    0x6b6f6c6f77696e64ull /* "kolowind" */
#define ADDRESS_TAG 0x6b6f6c6f77616464ull /* "kolowadd" */
#define WINDOW_MAX  ((uint64_t)1 << 47)

typedef struct { /* travels */
    uint64_t address, bytes;
    uint8_t name[16]; /* of memory that Kolo has made; zeros: it is the caller's */
    uint32_t status, shared;
    kolo_window_device_card_t device;
} window_card_t;

typedef struct { /* travels: how it went */
    uint32_t status;
    char why[252];
} outcome_t;

static _Atomic uint64_t next_handle =
    16; /* so that none is taken for NULL, or for a small number of the caller's */

/* Does what `from` writes into this window of `to` travel? */
static bool travels(const kolo_windows_t *w, const window_card_t *cards, int from, int to)
{
    kolo_reach_t reach = kolo_windows_reach(w, from, to);
    return reach == KOLO_REACH_FAR || (reach == KOLO_REACH_MAP && !cards[to].shared && cards[to].bytes > 0);
}

static bool needs_end(const kolo_windows_t *w, const window_card_t *cards, int peer)
{
    int rank = w->body->rank;
    return peer != rank && !kolo_relay_has(w->relay, peer) &&
           (travels(w, cards, rank, peer) || travels(w, cards, peer, rank));
}

/* ---- connecting ---- */

static void describe_opening(void *arg, char *buf, size_t bytes)
{
    const kolo_windows_t *w = arg;
    snprintf(buf, bytes, "the connections of the windows of %s rank %d", w->body->name, w->body->rank);
}

static kolo_status_t await_open(kolo_windows_t *w, int peer, kolo_wait_t *wait)
{
    kolo_status_t status;
    while ((status = kolo_relay_settled(w->relay, peer)) == KOLO_IN_PROGRESS) KOLO_TRY(kolo_wait_pause(wait));
    return status;
}

static kolo_status_t open_end(kolo_windows_t *w, int peer, bool dial)
{
    kolo_body_t *body = w->body;
    kolo_socket_t socket;
    KOLO_TRY((dial ? kolo_oob_dial : kolo_oob_accept)(body->oob, peer, DIAL_TAG, body->ctx.deadline_ns, &socket));
    return kolo_relay_connect(w->relay, peer, socket);
}

/* Dials all first: who dials does not wait for who accepts. */
static kolo_status_t connect_ends(kolo_windows_t *w, kolo_window_peers_t *window, const window_card_t *cards)
{
    kolo_body_t *body = w->body;
    bool any = false;
    for (int r = 0; r < body->nranks; r++) any |= window->peers[r].connects = needs_end(w, cards, r);
    kolo_status_t status = any ? kolo_relay_create(w) : KOLO_OK;
    for (int dial = 1; any && dial >= 0; dial--)
        for (int r = 0; status == KOLO_OK && r < body->nranks; r++)
            if (window->peers[r].connects && (r > body->rank) == dial) status = open_end(w, r, dial);
    kolo_wait_t wait;
    kolo_wait_init(&wait, &body->stop.reason, body->ctx.deadline_ns, describe_opening, w, 1);
    wait.wakers[wait.nwakers++] = &body->ctx.waker;
    for (int r = 0; any && status == KOLO_OK && r < body->nranks; r++)
        if (window->peers[r].connects) status = await_open(w, r, &wait);
    kolo_wait_end(&wait);
    return status;
}

/* ---- addresses ---- */

static kolo_status_t expose_to(kolo_windows_t *w, kolo_window_peers_t *window, int peer)
{
    uint8_t bytes[KOLO_WINDOW_BYTES];
    window->peers[peer].relayed = false;
    KOLO_TRY(kolo_relay_expose(w->relay, peer, window->base, window->bytes, &window->peers[peer].mine));
    kolo_onesided_window_encode(&window->peers[peer].mine, bytes);
    return kolo_oob_send(w->body->oob, peer, ADDRESS_TAG, bytes, sizeof bytes);
}

static kolo_status_t hear_from(kolo_windows_t *w, kolo_window_peers_t *window, int peer)
{
    uint8_t bytes[KOLO_WINDOW_BYTES];
    KOLO_TRY(kolo_oob_recv(w->body->oob, peer, ADDRESS_TAG, bytes, sizeof bytes, w->body->ctx.deadline_ns));
    kolo_onesided_window_decode(bytes, &window->peers[peer].there);
    window->peers[peer].relayed = true;
    if (window->peers[peer].there.bytes == window->peers[peer].bytes) return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d gives two sizes for its window", peer);
}

static kolo_status_t take_window(kolo_windows_t *w, kolo_window_peers_t *window, const window_card_t *card,
                                 int peer)
{
    kolo_reach_t reach = w->ranks[peer].reach;
    window->peers[peer].address = card->address;
    window->peers[peer].bytes = card->bytes;
    if (card->bytes == 0) return KOLO_OK;
    if (w->body->gpu.device >= 0) return kolo_window_device_take(w->body, window, peer, &card->device, card->name);
    if (peer == w->body->rank || reach == KOLO_REACH_HERE)
        window->peers[peer].at = (char *)(uintptr_t)card->address;
    else if (card->shared && reach != KOLO_REACH_FAR) {
        void *base = NULL;
        KOLO_TRY(kolo_window_memory_fetch(w->body, peer, card->name, card->bytes, &base));
        window->peers[peer].at = base;
        window->peers[peer].mapped = true;
    }
    return KOLO_OK;
}

static kolo_status_t exchange(kolo_windows_t *w, kolo_window_peers_t *window, const window_card_t *cards)
{
    int n = w->body->nranks, rank = w->body->rank;
    KOLO_TRY(connect_ends(w, window, cards));
    for (int r = 0; r < n; r++) KOLO_TRY(take_window(w, window, &cards[r], r));
    for (int r = 0; r < n; r++)
        if (r != rank && window->bytes && travels(w, cards, r, rank)) KOLO_TRY(expose_to(w, window, r));
    for (int r = 0; r < n; r++)
        if (r != rank && cards[r].bytes && travels(w, cards, rank, r)) KOLO_TRY(hear_from(w, window, r));
    return KOLO_OK;
}

/* ---- making ---- */

static kolo_status_t fill_card(kolo_window_peers_t *window, kolo_body_t *body, void *buf, size_t bytes,
                               window_card_t *card)
{
    if (bytes > WINDOW_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%zu bytes are too many (a negative number?)", bytes);
    KOLO_TRY(kolo_progress_check_files());
    window->base = buf;
    window->bytes = bytes;
    if (body->gpu.device >= 0) {
        KOLO_TRY(kolo_window_device_make(body, window, &card->device, card->name));
    } else if (!buf && bytes) {
        KOLO_TRY(kolo_random(card->name, sizeof card->name));
        KOLO_TRY(kolo_window_memory_make("kolo-window", window->bytes, &window->fd, &window->base));
        window->made = true;
        card->shared = window->fd >= 0;
        if (card->shared && body->nranks > 1)
            KOLO_TRY(kolo_fdpass_offer(card->name, body->ctx.key, &window->fd, 1, 0));
    }
    card->address = (uint64_t)(uintptr_t)window->base;
    card->bytes = window->bytes;
    return KOLO_OK;
}

/* Learns how it went with each. Different statuses on different ranks: the first one that is none counts. */
static kolo_status_t agree(kolo_body_t *body, kolo_status_t status, bool *agreed)
{
    size_t n = (size_t)body->nranks;
    outcome_t *all = calloc(n, sizeof *all);
    if (!all) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu ranks", n);
    all[body->rank].status = (uint32_t)status;
    if (status != KOLO_OK) snprintf(all[body->rank].why, sizeof all->why, "%s", kolo_error_text());
    kolo_status_t gathered = kolo_oob_all_gather(body->oob, all, sizeof *all);
    *agreed = gathered == KOLO_OK;
    for (size_t r = 0; r < n && gathered == KOLO_OK; r++) {
        if (all[r].status == KOLO_OK) continue;
        bool known = all[r].status > KOLO_IN_PROGRESS && all[r].status <= KOLO_ERR_REVOKED;
        gathered = known ? (kolo_status_t)all[r].status : KOLO_ERR_PROTOCOL;
        (void)kolo_fail(gathered, "rank %zu: %s", r,
                        kolo_plain_copy(all[r].why, sizeof all[r].why, all[r].why, sizeof all[r].why));
    }
    free(all);
    return gathered;
}

static kolo_status_t try_make(kolo_windows_t *w, kolo_window_peers_t *window, void *buf, size_t bytes,
                              window_card_t *cards, bool *agreed)
{
    kolo_body_t *body = w->body;
    window_card_t *mine = &cards[body->rank];
    KOLO_TRY(agree(body, fill_card(window, body, buf, bytes, mine), agreed));
    *agreed = false;
    KOLO_TRY(kolo_oob_all_gather(body->oob, cards, sizeof *cards));
    for (int r = 0; r < body->nranks; r++)
        if (cards[r].bytes > WINDOW_MAX) return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d has too large a window", r);
    return agree(body, exchange(w, window, cards), agreed);
}

static void hide_all(kolo_windows_t *w, kolo_window_peers_t *window)
{
    for (int r = 0; r < w->body->nranks; r++)
        if (window->peers[r].mine.bytes) kolo_relay_hide(w->relay, r, &window->peers[r].mine);
}

/* Gives up ends of which one may be there and the other not. The next window makes them anew, on all ranks. */
static void give_up_ends(kolo_windows_t *w, kolo_window_peers_t *window)
{
    for (int r = 0; r < w->body->nranks && w->relay; r++)
        if (window->peers[r].connects) kolo_relay_give_up(w->relay, r);
}

kolo_status_t kolo_window_make(kolo_body_t *body, void *buf, size_t bytes, uint64_t *handle, bool *agreed)
{
    size_t n = (size_t)body->nranks;
    *agreed = false;
    body->ctx.deadline_ns = kolo_deadline_ms(body->init_timeout_ms);
    kolo_status_t status = kolo_windows_open(body);
    *agreed = status == KOLO_ERR_UNSUPPORTED; /* all have seen who reaches whom */
    if (status != KOLO_OK) return status;
    kolo_windows_t *w = body->windows;
    kolo_window_peers_t *window = calloc(1, sizeof *window + n * sizeof window->peers[0]);
    window_card_t *cards = calloc(n, sizeof *cards);
    if (!window || !cards) {
        free(window);
        free(cards);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a window of %zu ranks", n);
    }
    window->fd = -1;
    status = try_make(w, window, buf, bytes, cards, agreed);
    kolo_fdpass_withdraw(cards[body->rank].name); /* if it was offered */
    free(cards);
    if (status != KOLO_OK) {
        hide_all(w, window);
        give_up_ends(w, window);
        kolo_window_free(w, window);
        return status;
    }
    window->handle = *handle = atomic_fetch_add(&next_handle, 16);
    pthread_mutex_lock(&w->lock);
    window->next = w->first;
    w->first = window;
    pthread_mutex_unlock(&w->lock);
    return KOLO_OK;
}

/* ---- unmaking ---- */

static void describe_fence(void *arg, char *buf, size_t bytes)
{
    const kolo_windows_t *w = arg;
    snprintf(buf, bytes, "what others have written to the windows of %s rank %d", w->body->name, w->body->rank);
}

/* Waits until all that was on its way to this rank is there, whoever sent it. */
static kolo_status_t fence(kolo_windows_t *w)
{
    kolo_body_t *body = w->body;
    kolo_status_t status = KOLO_OK;
    kolo_wait_t wait;
    for (int r = 0; r < body->nranks; r++)
        if (kolo_relay_has(w->relay, r)) KOLO_TRY(kolo_relay_fence(w->relay, r));
    kolo_wait_init(&wait, &body->stop.reason, body->ctx.deadline_ns, describe_fence, w, 1);
    wait.wakers[wait.nwakers++] = &body->ctx.waker;
    for (int r = 0; r < body->nranks && status == KOLO_OK; r++) {
        if (!kolo_relay_has(w->relay, r)) continue;
        while (status == KOLO_OK && !kolo_relay_fence_passed(w->relay, r)) {
            status = kolo_relay_check(w->relay, r);
            if (status == KOLO_OK) status = kolo_wait_pause(&wait);
        }
    }
    kolo_wait_end(&wait);
    return status;
}

kolo_status_t kolo_window_unmake(kolo_body_t *body, uint64_t handle)
{
    kolo_windows_t *w = body->windows;
    kolo_window_peers_t *window = kolo_window_find(w, handle);
    if (!window)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "this is not a window of this communicator, or it has ended");
    body->ctx.deadline_ns = kolo_deadline_ms(body->init_timeout_ms);
    if (body->gpu.device >= 0) /* what this rank has put is there */
        KOLO_TRY(kolo_lost_ends(body, kolo_device_drain(body)));
    if (w->relay) KOLO_TRY(fence(w));
    KOLO_TRY(kolo_oob_barrier(body->oob)); /* no rank copies or stores there any more */
    pthread_mutex_lock(&w->lock);
    kolo_window_peers_t **at = &w->first;
    while (*at != window) at = &(*at)->next;
    *at = window->next;
    pthread_mutex_unlock(&w->lock);
    hide_all(w, window);
    kolo_window_free(w, window);
    return KOLO_OK;
}
