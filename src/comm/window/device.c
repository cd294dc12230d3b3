/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows of GPU communicators: memory of GPUs that all GPUs of the communicator reach, and the same boards of
 * signals, in host memory that the GPUs have mapped. A put is a copy on the caller's stream, a signal a word that
 * the stream writes behind it: the number of signals so far, for only this rank writes there; a wait is a wait of
 * the stream for its own board. When the communicator has failed the host writes what is awaited, so that streams
 * go on.
 */
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "comm/window/window.h"
#include "mem/cuda/beside.h"
#include "share/fdpass.h"
#include "wire/mapped.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BY_ADDRESS, BY_TICKET, BY_DESCRIPTOR }; /* how another process gets at it */

static bool same_process(const kolo_body_t *body, int peer)
{
    const kolo_peer_card_t *cards = body->member.peers;
    return cards[peer].process_hash == cards[body->rank].process_hash;
}

static bool alone_in_process(const kolo_body_t *body)
{
    for (int r = 0; r < body->nranks; r++)
        if (!same_process(body, r)) return false;
    return true;
}

/* ---- boards ---- */

kolo_status_t kolo_window_device_able(const kolo_body_t *body)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    if (body->gpu.exec && body->gpu.exec->move && api && api->stream_wait_word && api->stream_write_word)
        return KOLO_OK;
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "windows on GPUs need GPUs that all reach each other's memory (this communicator works by %s) and "
        "a driver that lets streams wait for words",
        body->gpu.exec ? body->gpu.exec->name : "nothing");
}

kolo_status_t kolo_window_device_pin(const kolo_body_t *body, void *base, size_t bytes, uint64_t *address)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    const kolo_cuda_device_t *device;
    kolo_cu_ptr_t at = 0;
    bool pushed;
    KOLO_TRY(kolo_cuda_device(body->gpu.device, &device));
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    int mode = kolo_cuda_uncaptured();
    kolo_cu_result_t r = api->host_register(base, bytes, KOLO_CU_HOST_PORTABLE | KOLO_CU_HOST_MAPPED);
    if (!r) {
        r = api->host_device_pointer(&at, base, 0);
        if (r) api->host_unregister(base);
    }
    kolo_cuda_captured(mode);
    kolo_cuda_leave(pushed);
    if (r) return kolo_cuda_fail(r, body->gpu.device, "map a board of signals");
    *address = at;
    return KOLO_OK;
}

/* ---- memory ---- */

static kolo_status_t make_own(kolo_body_t *body, kolo_window_peers_t *window, kolo_window_device_card_t *card)
{
    KOLO_TRY(kolo_mem_cuda.make(body->gpu.device, window->bytes, &window->device->made));
    window->base = window->device->made.address;
    card->allocation = window->device->made.bytes;
    return KOLO_OK;
}

static kolo_status_t look_at(kolo_body_t *body, kolo_window_peers_t *window, kolo_window_device_card_t *card)
{
    kolo_mem_place_t place;
    kolo_mem_find(window->base, &place);
    uintptr_t at = (uintptr_t)window->base;
    if (place.ops != &kolo_mem_cuda || place.device != body->gpu.device)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%p is not memory of GPU %d, on which the communicator works",
                         window->base, body->gpu.device);
    if (place.bytes - (at - place.base) < window->bytes)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%p has %llu bytes to the end of its allocation, not %zu",
                         window->base, (unsigned long long)(place.bytes - (at - place.base)), window->bytes);
    card->legacy = place.peers;
    card->offset = at - place.base;
    card->allocation = place.bytes;
    return KOLO_OK;
}

static kolo_status_t export_virtual(kolo_body_t *body, kolo_window_peers_t *window, int *fd)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_mem_t handle;
    if (!window->device->made.address && !api->mem_retain)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "this driver gives no handle of memory of the virtual kind");
    if (window->device->made.address) return kolo_mem_cuda.share(&window->device->made, fd);
    kolo_cu_result_t r = api->mem_retain(&handle, window->base);
    if (r) return kolo_cuda_fail(r, body->gpu.device, "get the handle of a window's memory");
    r = api->mem_export(fd, handle, KOLO_CU_HANDLE_FD, 0);
    api->mem_release(handle);
    if (r)
        return kolo_cuda_fail(
            r, body->gpu.device,
            "hand a window's memory to other processes (it must have been made with handles that are "
            "descriptors)");
    return KOLO_OK;
}

static kolo_status_t offer(kolo_body_t *body, kolo_window_peers_t *window, kolo_window_device_card_t *card,
                           uint8_t name[16])
{
    kolo_cu_ipc_t ticket;
    int fd = -1;
    if (alone_in_process(body)) return KOLO_OK;
    if (card->legacy) {
        kolo_cu_result_t r = kolo_cuda_loaded()->ipc_get(&ticket, (uintptr_t)window->base - card->offset);
        if (r) return kolo_cuda_fail(r, body->gpu.device, "hand a window's memory to other processes");
        card->way = BY_TICKET;
        memcpy(card->ticket, &ticket, sizeof card->ticket);
        return KOLO_OK;
    }
    KOLO_TRY(export_virtual(body, window, &fd));
    card->way = BY_DESCRIPTOR;
    kolo_status_t status = kolo_random(name, 16);
    if (status == KOLO_OK) status = kolo_fdpass_offer(name, body->ctx.key, &fd, 1, 0);
    kolo_fd_close(fd);
    return status;
}

kolo_status_t kolo_window_device_make(kolo_body_t *body, kolo_window_peers_t *window,
                                      kolo_window_device_card_t *card, uint8_t name[16])
{
    const kolo_cuda_device_t *device;
    bool pushed;
    window->device = calloc(1, sizeof *window->device + (size_t)body->nranks * sizeof window->device->peers[0]);
    if (!window->device)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a window of %d ranks", body->nranks);
    if (!window->bytes) return KOLO_OK;
    KOLO_TRY(kolo_cuda_device(body->gpu.device, &device));
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    int mode = kolo_cuda_uncaptured();
    kolo_status_t status = window->base ? look_at(body, window, card) : make_own(body, window, card);
    if (status == KOLO_OK) status = offer(body, window, card, name);
    kolo_cuda_captured(mode);
    kolo_cuda_leave(pushed);
    return status;
}

/* Of this process: the driver refuses two that open the same memory at the same time. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* Takes memory of a rank of this process, at its one address; of the virtual kind it is opened to this rank's GPU.
 * */
static kolo_status_t take_here(const kolo_body_t *body, const kolo_cuda_device_t *device, uint64_t address,
                               const kolo_window_device_card_t *card)
{
    kolo_mem_t whole = {.address = (char *)(uintptr_t)address - card->offset,
                        .bytes = card->allocation}; /* NOLINT */
    pthread_mutex_lock(&opening);
    bool open = kolo_cuda_reaches(device->device, (void *)(uintptr_t)address, card->legacy); /* NOLINT */
    kolo_status_t status = open ? KOLO_OK : kolo_mem_cuda.allow(&whole, body->gpu.device);
    pthread_mutex_unlock(&opening);
    return status;
}

static kolo_status_t take_other(kolo_body_t *body, int peer, const kolo_window_device_card_t *card,
                                const uint8_t name[16], kolo_window_device_peer_t *to, uint64_t *address)
{
    kolo_cu_ipc_t ticket;
    int fd = -1;
    if (card->way == BY_TICKET) {
        memcpy(&ticket, card->ticket, sizeof ticket);
        kolo_cu_result_t r = kolo_cuda_loaded()->ipc_open(&to->opened, ticket, KOLO_CU_IPC_PEER_ACCESS);
        if (r) return kolo_cuda_fail(r, body->gpu.device, "map a window of another process");
        *address = to->opened + card->offset;
        return KOLO_OK;
    }
    if (card->way != BY_DESCRIPTOR)
        return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d does not say how to reach its window", peer);
    KOLO_TRY(kolo_wire_fetch(&body->ctx, &body->member.peers[peer], name, KOLO_FDPASS_MUST_BE_THERE, &fd, 1));
    kolo_status_t status = kolo_mem_cuda.map(fd, card->allocation, body->gpu.device, &to->mapped);
    kolo_fd_close(fd);
    if (status == KOLO_OK) *address = (uint64_t)(uintptr_t)to->mapped.address + card->offset;
    return status;
}

kolo_status_t kolo_window_device_take(kolo_body_t *body, kolo_window_peers_t *window, int peer,
                                      const kolo_window_device_card_t *card, const uint8_t name[16])
{
    const kolo_cuda_device_t *device;
    uint64_t address = window->peers[peer].address, bytes = window->peers[peer].bytes;
    bool pushed;
    if (card->offset > card->allocation || bytes > card->allocation - card->offset)
        return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d says that its window is larger than its allocation", peer);
    KOLO_TRY(kolo_cuda_device(body->gpu.device, &device));
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    kolo_status_t status = KOLO_OK;
    int mode = kolo_cuda_uncaptured();
    if (peer != body->rank && same_process(body, peer))
        status = take_here(body, device, address, card);
    else if (peer != body->rank)
        status = take_other(body, peer, card, name, &window->device->peers[peer], &address);
    kolo_cuda_captured(mode);
    kolo_cuda_leave(pushed);
    if (status == KOLO_OK) window->peers[peer].at = (char *)(uintptr_t)address; /* NOLINT: a driver's address */
    return status;
}

void kolo_window_device_free(kolo_body_t *body, kolo_window_peers_t *window)
{
    const kolo_cuda_device_t *device;
    bool pushed;
    if (!window->device) return;
    if (kolo_cuda_device(body->gpu.device, &device) != KOLO_OK || kolo_cuda_enter(device, &pushed) != KOLO_OK)
        return;
    int mode = kolo_cuda_uncaptured();
    for (int r = 0; r < body->nranks; r++) {
        kolo_window_device_peer_t *p = &window->device->peers[r];
        kolo_cuda_close_mapping(device, p->opened);
        if (p->mapped.address) kolo_mem_free(&p->mapped);
    }
    if (window->device->made.address) kolo_mem_free(&window->device->made);
    kolo_cuda_captured(mode);
    kolo_cuda_leave(pushed);
    free(window->device);
    window->device = NULL;
}

/* ---- calls ---- */

static void add_put(kolo_body_t *body, const kolo_call_t *call, kolo_exec_move_t *move)
{
    kolo_windows_t *w = body->windows;
    const kolo_window_peers_t *window = kolo_window_find(w, call->window->handle);
    kolo_window_rank_t *to = &w->ranks[call->root];
    int number = call->window->signal;
    *move = (kolo_exec_move_t){.src = call->src, .bytes = call->count * call->elem, .stream = call->stream};
    if (move->bytes) move->dst = window->peers[call->root].at + call->window->offset;
    if (number < 0) return;
    move->word = to->device_line + (uint64_t)number * sizeof(uint32_t);
    move->value = ++to->sent[number];
}

/* What a stream leaves behind when it comes to a wait: which wait it is, cyclic, never 0, and for whom. */
#define MARK_RANK(mark)   ((mark) >> 4 & 0xfff)
#define MARK_SIGNAL(mark) ((mark)&0xf)
_Static_assert(KOLO_SIGNALS <= 16, "a number of a signal fits into a mark");

static kolo_exec_move_t mark(kolo_windows_t *w, const kolo_call_t *call, const kolo_signal_wait_t *wait)
{
    kolo_exec_move_t m = {.word = w->at.word, .stream = call->stream};
    if (!wait) return m; /* it has passed */
    w->at.number = w->at.number % UINT16_MAX + 1;
    m.value = w->at.number << 16 | ((uint32_t)wait->peer & 0xfff) << 4 | (uint32_t)wait->signal;
    return m;
}

/* Returns room for two marks round each wait, where calls have a time limit. */
static size_t waits_room(const kolo_body_t *body, const kolo_call_t *call)
{
    return (size_t)call->window->nwaits * (body->op_timeout_ms ? 3 : 1);
}

static size_t add_waits(kolo_body_t *body, const kolo_call_t *call, kolo_exec_move_t *moves)
{
    kolo_windows_t *w = body->windows;
    size_t n = 0;
    for (uint32_t i = 0; i < call->window->nwaits; i++) {
        const kolo_signal_wait_t *wait = &call->window->waits[i];
        uint32_t *taken = &w->ranks[wait->peer].taken[wait->signal];
        *taken += wait->count;
        if (body->op_timeout_ms) moves[n++] = mark(w, call, wait);
        moves[n++] =
            (kolo_exec_move_t){.word = w->device_lines + (uint64_t)wait->peer * sizeof(kolo_signal_line_t) +
                                       (uint64_t)wait->signal * sizeof(uint32_t),
                               .value = *taken,
                               .wait = true,
                               .stream = call->stream};
        if (body->op_timeout_ms) moves[n++] = mark(w, call, NULL);
    }
    return n;
}

/* Takes back calls that were not queued, as if they had not been made. */
static void take_back(kolo_body_t *body, const kolo_call_t *calls, size_t count, bool waits)
{
    kolo_windows_t *w = body->windows;
    for (size_t i = 0; i < count; i++) {
        const kolo_window_call_t *c = calls[i].window;
        if (!c || (calls[i].kind == KOLO_CALL_WAIT) != waits) continue;
        if (!waits && c->signal >= 0) w->ranks[calls[i].root].sent[c->signal]--;
        for (uint32_t k = 0; waits && k < c->nwaits; k++)
            w->ranks[c->waits[k].peer].taken[c->waits[k].signal] -= c->waits[k].count;
    }
}

/* Notes what release() is to let go on. */
static void note_due(kolo_windows_t *w, const kolo_call_t *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const kolo_window_call_t *c = calls[i].window;
        for (uint32_t k = 0; c && k < c->nwaits; k++)
            atomic_store(&w->due[c->waits[k].peer * KOLO_SIGNALS + c->waits[k].signal],
                         w->ranks[c->waits[k].peer].taken[c->waits[k].signal]);
    }
}

static kolo_status_t check_window(const kolo_body_t *body, const kolo_call_t *call)
{
    kolo_exec_call_t put = {.kind = KOLO_EXEC_SEND, .root = -1, .src = call->src, .count = call->count};
    const kolo_cuda_device_t *device;
    bool captured, pushed, signals = call->kind != KOLO_CALL_PUT || call->window->signal >= 0;
    put.elem = call->elem;
    if (call->kind == KOLO_CALL_PUT && call->count && !kolo_window_find(body->windows, call->window->handle))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the window of a put to rank %u is gone", call->root);
    if (call->kind == KOLO_CALL_PUT && call->count && body->gpu.exec->check)
        KOLO_TRY(body->gpu.exec->check(atomic_load(&body->gpu.state), &put, 1));
    if (!signals) return KOLO_OK;
    KOLO_TRY(kolo_cuda_device(body->gpu.device, &device));
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    kolo_status_t status = kolo_cuda_capturing(device, call->stream, &captured);
    kolo_cuda_leave(pushed);
    if (status != KOLO_OK || !captured) return status;
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "rank %d: signals, and waits for them, cannot be captured in a graph: a replay would repeat the "
        "counts of its capture (a put without a signal can)",
        body->rank);
}

kolo_status_t kolo_window_device_check(kolo_body_t *body, const kolo_call_t *calls, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (calls[i].window) KOLO_TRY(check_window(body, &calls[i]));
    return KOLO_OK;
}

kolo_status_t kolo_window_device_launch(kolo_body_t *body, const kolo_call_t *calls, size_t count, bool waits)
{
    size_t n = 0, room = 0;
    for (size_t i = 0; i < count; i++)
        if (calls[i].window && (calls[i].kind == KOLO_CALL_WAIT) == waits)
            room += waits ? waits_room(body, &calls[i]) : 1;
    if (!room) return KOLO_OK;
    for (size_t i = 0; i < count; i++)
        if (calls[i].kind == KOLO_CALL_PUT && calls[i].count &&
            !kolo_window_find(body->windows, calls[i].window->handle))
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the window of a put to rank %u is gone", calls[i].root);
    kolo_exec_move_t one, *moves = room == 1 ? &one : malloc(room * sizeof *moves);
    if (!moves) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu puts or waits", room);
    for (size_t i = 0; i < count; i++) {
        if (!calls[i].window || (calls[i].kind == KOLO_CALL_WAIT) != waits) continue;
        if (waits)
            n += add_waits(body, &calls[i], moves + n);
        else
            add_put(body, &calls[i], &moves[n++]);
    }
    if (waits) note_due(body->windows, calls, count);
    kolo_status_t status = body->gpu.exec->move(atomic_load(&body->gpu.state), moves, n);
    if (status != KOLO_OK) take_back(body, calls, count, waits);
    if (atomic_load(&body->gpu.cancelled) && atomic_load(&body->gpu.held) != KOLO_HELD)
        kolo_window_device_release(body);
    if (moves != &one) free(moves);
    return status;
}

void kolo_window_device_release(kolo_body_t *body)
{
    kolo_windows_t *w = body->windows;
    if (!w || !w->due) return;
    for (int r = 0; r < body->nranks; r++)
        for (int i = 0; i < KOLO_SIGNALS; i++) {
            uint32_t due = atomic_load(&w->due[r * KOLO_SIGNALS + i]);
            if ((int32_t)(atomic_load(&w->lines[r].words[i]) - due) >= 0) continue;
            atomic_store(&w->released, true);
            atomic_store(&w->lines[r].words[i], due);
        }
}

bool kolo_window_device_released(const kolo_body_t *body)
{
    return body->windows && atomic_load(&body->windows->released);
}

/* Looks at waits' time limits: the time runs while a stream waits, not while the wait stands behind other work on
 * it. */
kolo_status_t kolo_window_device_look(kolo_body_t *body)
{
    kolo_windows_t *w = body->windows;
    if (!w || !w->due || !body->op_timeout_ms) return KOLO_OK;
    uint32_t mark = atomic_load(&w->lines[body->nranks].words[0]);
    uint64_t now = kolo_now_ns();
    if (!mark || mark != w->at.seen) {
        w->at.seen = mark;
        w->at.since_ns = now;
        return KOLO_OK;
    }
    uint64_t waited = now - w->at.since_ns;
    if (waited < (uint64_t)body->op_timeout_ms * KOLO_NS_PER_MS) return KOLO_OK;
    return kolo_fail(KOLO_ERR_TIMEOUT,
                     "time-out: rank %d, in a wait for signals" KOLO_WAIT_FOR
                     "rank %u to signal with number %u, for "
                     "%.1f s: no signal, or too few, have come",
                     body->rank, MARK_RANK(mark), MARK_SIGNAL(mark), (double)waited / 1e9);
}
