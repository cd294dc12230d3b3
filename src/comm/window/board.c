/* SPDX-License-Identifier: Apache-2.0
 *
 * Boards of signals, and how each rank reaches each other one. Made with a communicator's first window: each rank
 * makes its board, all tell each other where it is, each tries what it may do with the others, and all learn the
 * answers: both ends of a pair have to know whether something travels between them.
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "comm/window/window.h"
#include "progress/progress.h"
#include "share/fdpass.h"
#include "share/memfd.h"
#include "wire/cma/cma.h"
#include "wire/local/local.h"
#include "wire/mapped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { /* travels */
    uint8_t name[16];
} board_card_t;

/* Boards of this process, for its other ranks: they live until the last of these has let go. */
typedef struct kolo_board_ref {
    struct kolo_board_ref *next;
    uint8_t name[16];
    kolo_signal_line_t *lines;
    size_t bytes;
    kolo_window_pinned_t *pinned; /* of a GPU communicator */
    bool spoilt;                  /* a rank did not leave it in order */
    uint32_t users;
} board_ref_t;

static pthread_mutex_t boards_lock = PTHREAD_MUTEX_INITIALIZER;
static board_ref_t *boards;

static kolo_status_t board_add(const uint8_t name[16], kolo_signal_line_t *lines, size_t bytes, board_ref_t **out)
{
    board_ref_t *b = calloc(1, sizeof *b);
    if (!b) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a board of signals");
    memcpy(b->name, name, sizeof b->name);
    b->lines = lines;
    b->bytes = bytes;
    b->users = 1;
    pthread_mutex_lock(&boards_lock);
    b->next = boards;
    boards = b;
    pthread_mutex_unlock(&boards_lock);
    *out = b;
    return KOLO_OK;
}

static board_ref_t *board_find(const uint8_t name[16])
{
    pthread_mutex_lock(&boards_lock);
    board_ref_t *b = boards;
    while (b && memcmp(b->name, name, sizeof b->name) != 0) b = b->next;
    if (b) b->users++;
    pthread_mutex_unlock(&boards_lock);
    return b;
}

/* Tells whether nobody writes to this communicator's boards any more: all ranks have finalized it, or have left. */
static bool in_order(const kolo_body_t *body)
{
    bool good = body->handle && atomic_load(&body->handle->state) == KOLO_COMM_FINALIZED && body->oob &&
                (!body->life.went || body->nranks == 1 || kolo_diag_all_left(body->oob));
    for (int r = 0; r < body->nranks && good; r++) good = !kolo_news_rank_lost(body->oob, r, NULL, 0);
    return good;
}

static void board_leave(const kolo_body_t *body, board_ref_t *b)
{
    if (!b) return;
    pthread_mutex_lock(&boards_lock);
    b->spoilt = b->spoilt || (b->pinned && !in_order(body));
    bool last = --b->users == 0;
    board_ref_t **at = &boards;
    while (last && *at != b) at = &(*at)->next;
    if (last) *at = b->next;
    pthread_mutex_unlock(&boards_lock);
    if (!last) return;
    if (b->pinned)
        kolo_window_pinned_give(b->pinned, !b->spoilt);
    else
        munmap(b->lines, b->bytes);
    free(b);
}

/* Returns room for a line for each rank, and one for the owner's own streams. */
static size_t board_bytes(const kolo_body_t *body)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return KOLO_ROUND_UP(((size_t)body->nranks + 1) * sizeof(kolo_signal_line_t), page);
}

kolo_status_t kolo_window_memory_make(const char *name, size_t bytes, int *fd, void **base)
{
    const bool alone = !kolo_memfd_may(bytes); /* what others write comes over TCP */
    int f = -1;
    if (!alone) KOLO_TRY(kolo_memfd_make(name, bytes, &f));
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, alone ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, f, 0);
    if (map == MAP_FAILED) {
        int err = errno;
        if (f >= 0) kolo_fd_close(f);
        return kolo_fail_errno(KOLO_ERR_NO_MEMORY, err, "cannot map %zu bytes of shared memory", bytes);
    }
    *fd = f;
    *base = map;
    return KOLO_OK;
}

kolo_status_t kolo_window_memory_fetch(kolo_body_t *body, int owner, const uint8_t name[16], size_t bytes,
                                       void **base)
{
    const kolo_peer_card_t *card = &body->member.peers[owner];
    int fd;
    KOLO_TRY(kolo_wire_fetch(&body->ctx, card, name, KOLO_FDPASS_MUST_BE_THERE, &fd, 1));
    kolo_status_t status = kolo_memfd_check(fd, bytes, KOLO_WHO(card));
    void *map = status == KOLO_OK ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (status == KOLO_OK && map == MAP_FAILED)
        status =
            kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "cannot map %zu bytes that rank %d shares", bytes, owner);
    kolo_fd_close(fd);
    if (status == KOLO_OK) *base = map;
    return status;
}

/* ---- who reaches whom ---- */

kolo_reach_t kolo_windows_reach(const kolo_windows_t *w, int from, int to)
{
    return (kolo_reach_t)w->reach[(size_t)from * (size_t)w->body->nranks + (size_t)to];
}

static bool may_copy(kolo_body_t *body, kolo_control_peer_t *control)
{
    const char *why = "it was refused before";
    if (!control->cma)
        control->cma = kolo_cma_permitted(control->pid, &body->member.peers[control->rank], &why) ? 1 : -1;
    if (control->cma < 0)
        kolo_info("comm", "%s rank %d may not write to the memory of rank %d: %s", body->name, body->rank,
                  control->rank, why);
    return control->cma > 0;
}

/* Asks the wire that would connect the two: what was switched off for wires is off here, too. */
static kolo_status_t find_reach(kolo_windows_t *w, int peer, const board_card_t *card)
{
    kolo_body_t *body = w->body;
    kolo_window_rank_t *r = &w->ranks[peer];
    kolo_conn_spec_t spec = {
        .kind = KOLO_CONN_PAIR, .proto = KOLO_PROTO_SIMPLE, .writer = body->rank, .reader = peer};
    const kolo_wire_ops_t *wire = kolo_wire_choose(&body->ctx, &spec);
    r->reach = KOLO_REACH_FAR;
    if (wire != &kolo_wire_local && wire != &kolo_wire_cma && wire != &kolo_wire_shm) return KOLO_OK;
    KOLO_TRY(kolo_control_peer(&body->ctx, peer, &r->control));
    if (wire == &kolo_wire_local) {
        r->board = board_find(card->name);
        if (!r->board) return kolo_fail(KOLO_ERR_REMOTE, "the board of signals of rank %d is gone", peer);
        r->reach = KOLO_REACH_HERE;
        r->line = r->board->lines + body->rank;
        if (r->board->pinned) r->device_line = r->board->pinned->address + (uint64_t)body->rank * sizeof *r->line;
        return KOLO_OK;
    }
    const kolo_window_pinned_t *pinned = NULL;
    void *map = NULL;
    if (body->gpu.device >= 0)
        KOLO_TRY(kolo_window_pinned_fetch(body, peer, card->name, board_bytes(body), &pinned));
    else
        KOLO_TRY(kolo_window_memory_fetch(body, peer, card->name, board_bytes(body), &map));
    r->map = pinned ? pinned->base : map;
    r->pinned = pinned != NULL;
    r->line = r->map + body->rank;
    r->reach = KOLO_REACH_MAP;
    if (pinned) {
        r->device_line = pinned->address + (uint64_t)body->rank * sizeof *r->line;
    } else if (wire == &kolo_wire_cma && may_copy(body, r->control)) {
        r->reach = KOLO_REACH_COPY;
    }
    return KOLO_OK;
}

/* ---- life ---- */

/* Gets the memory of this rank's board, and puts it on the list of this process. */
static kolo_status_t open_board(kolo_windows_t *w)
{
    const kolo_body_t *body = w->body;
    kolo_window_pinned_t *pinned = NULL;
    void *base = NULL;
    if (body->gpu.device >= 0) {
        KOLO_TRY(kolo_window_pinned_make(body, board_bytes(body), &pinned));
        memcpy(w->name, pinned->name, sizeof w->name);
        base = pinned->base;
        w->fd = pinned->fd;
    } else {
        KOLO_TRY(kolo_random(w->name, sizeof w->name));
        KOLO_TRY(kolo_window_memory_make("kolo-signals", board_bytes(body), &w->fd, &base));
    }
    kolo_status_t status = board_add(w->name, base, board_bytes(body), &w->ranks[body->rank].board);
    if (status == KOLO_OK) {
        w->ranks[body->rank].board->pinned = pinned;
        w->lines = base;
        return KOLO_OK;
    }
    if (pinned) {
        w->fd = -1;
        kolo_window_pinned_give(pinned, true); /* nobody has heard of it */
    } else {
        munmap(base, board_bytes(body));
    }
    return status;
}

static kolo_status_t make_board(kolo_windows_t *w, board_card_t *card)
{
    kolo_body_t *body = w->body;
    KOLO_TRY(kolo_progress_check_files());
    KOLO_TRY(open_board(w));
    if (w->ranks[body->rank].board->pinned) {
        w->device_lines = w->ranks[body->rank].board->pinned->address;
        w->ranks[body->rank].device_line = w->device_lines + (uint64_t)body->rank * sizeof *w->lines;
        w->at.word = w->device_lines + (uint64_t)body->nranks * sizeof *w->lines;
        w->due = calloc((size_t)body->nranks * KOLO_SIGNALS, sizeof *w->due);
        if (!w->due) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for signals of %d ranks", body->nranks);
    }
    for (int r = 0; r < body->nranks; r++)
        for (int i = 0; i < KOLO_SIGNALS; i++) {
            atomic_init(&w->lines[r].words[i], (uint32_t)kolo_comm_options.counter_start);
            w->ranks[r].taken[i] = w->ranks[r].sent[i] = (uint32_t)kolo_comm_options.counter_start;
            if (w->due) atomic_init(&w->due[r * KOLO_SIGNALS + i], (uint32_t)kolo_comm_options.counter_start);
        }
    memcpy(card->name, w->name, sizeof card->name);
    return body->nranks > 1 && w->fd >= 0 ? kolo_fdpass_offer(w->name, body->ctx.key, &w->fd, 1, 0) : KOLO_OK;
}

static kolo_status_t meet(kolo_windows_t *w, board_card_t *cards)
{
    kolo_body_t *body = w->body;
    size_t n = (size_t)body->nranks;
    kolo_status_t status = make_board(w, &cards[body->rank]);
    w->ranks[body->rank].reach = KOLO_REACH_HERE;
    w->ranks[body->rank].line = w->lines ? w->lines + body->rank : NULL;
    if (n == 1) return status;
    KOLO_TRY(status);
    KOLO_TRY(kolo_oob_all_gather(body->oob, cards, sizeof *cards));
    for (int i = 1; i < body->nranks && status == KOLO_OK; i++)
        status = find_reach(w, (body->rank + i) % body->nranks, &cards[(body->rank + i) % body->nranks]);
    KOLO_TRY(status);
    for (size_t r = 0; r < n; r++) w->reach[(size_t)body->rank * n + r] = (uint8_t)w->ranks[r].reach;
    KOLO_TRY(kolo_oob_all_gather(body->oob, w->reach, n));
    for (size_t i = 0; i < n * n; i++)
        if (w->reach[i] > KOLO_REACH_FAR)
            return kolo_fail(KOLO_ERR_PROTOCOL,
                             "rank %zu sent a malformed list of the ranks whose windows it reaches", i / n);
    for (size_t i = 0; i < n * n && body->gpu.device >= 0; i++) /* the first pair, on all ranks alike */
        if (w->reach[i] == KOLO_REACH_FAR)
            return kolo_fail(KOLO_ERR_UNSUPPORTED,
                             "windows on GPUs need memory that ranks %zu and %zu share (KOLO_SHM_DISABLE)", i / n,
                             i % n);
    return KOLO_OK;
}

static void windows_free(kolo_windows_t *w)
{
    kolo_body_t *body = w->body;
    kolo_relay_close(w->relay);
    if (w->first && body->life.ctx_open)
        kolo_control_fail(&body->ctx); /* no copy into what is the caller's again */
    while (w->first) {
        kolo_window_peers_t *next = w->first->next;
        kolo_window_free(w, w->first);
        w->first = next;
    }
    for (int r = 0; w->ranks && r < body->nranks; r++) {
        if (w->ranks[r].map && !w->ranks[r].pinned) munmap(w->ranks[r].map, board_bytes(body));
        board_leave(body, w->ranks[r].board);
    }
    pthread_mutex_destroy(&w->lock);
    free(w->ranks);
    free(w->reach);
    free(w->due);
    free(w);
}

kolo_status_t kolo_windows_open(kolo_body_t *body)
{
    size_t n = (size_t)body->nranks;
    if (body->windows) return KOLO_OK;
    kolo_windows_t *w = calloc(1, sizeof *w);
    board_card_t *cards = calloc(n, sizeof *cards);
    if (!w || !cards) {
        free(w);
        free(cards);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for windows of %zu ranks", n);
    }
    w->body = body;
    w->fd = -1;
    pthread_mutex_init(&w->lock, NULL);
    w->ranks = calloc(n, sizeof *w->ranks);
    w->reach = calloc(n, n);
    kolo_status_t status =
        w->ranks && w->reach ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for windows of %zu ranks", n);
    if (status == KOLO_OK) status = meet(w, cards);
    kolo_fdpass_withdraw(w->name); /* all have it, or will not get it */
    if (w->fd >= 0 && body->gpu.device < 0) kolo_fd_close(w->fd);
    w->fd = -1;
    free(cards);
    if (status == KOLO_OK)
        body->windows = w; /* the progress thread looks at it from here on */
    else
        windows_free(w);
    return status;
}

kolo_window_peers_t *kolo_window_find(kolo_windows_t *w, uint64_t handle)
{
    kolo_window_peers_t *window = w ? w->first : NULL;
    while (window && window->handle != handle) window = window->next;
    return window;
}

bool kolo_windows_any(kolo_windows_t *w)
{
    pthread_mutex_lock(&w->lock);
    bool any = w->first != NULL;
    pthread_mutex_unlock(&w->lock);
    return any;
}

void kolo_window_free(kolo_windows_t *w, kolo_window_peers_t *window)
{
    kolo_window_device_free(w->body, window);
    for (int r = 0; r < w->body->nranks; r++)
        if (window->peers[r].mapped) munmap(window->peers[r].at, window->peers[r].bytes);
    if (window->made) {
        munmap(window->base, window->bytes);
        if (window->fd >= 0) kolo_fd_close(window->fd);
    }
    free(window);
}

void kolo_windows_close(kolo_body_t *body)
{
    kolo_windows_t *w = body->windows;
    if (w) windows_free(w);
    body->windows = NULL;
}

size_t kolo_windows_memory(kolo_body_t *body)
{
    kolo_windows_t *w = body->windows;
    size_t n = (size_t)body->nranks, bytes;
    if (!w) return 0;
    bytes =
        sizeof *w + n * sizeof *w->ranks + n * n + board_bytes(body) + (w->relay ? kolo_relay_memory(w->relay) : 0);
    pthread_mutex_lock(&w->lock);
    for (kolo_window_peers_t *win = w->first; win; win = win->next)
        bytes += sizeof *win + n * sizeof win->peers[0] + (win->made ? win->bytes : 0);
    pthread_mutex_unlock(&w->lock);
    return bytes;
}
