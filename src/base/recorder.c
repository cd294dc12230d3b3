/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of the flight recorder: made with the first communicator of the process, gone with the last. Its pages
 * come when they are touched, so that the many unused slots cost nothing, and are given back with the slot.
 *
 * A forked child has communicators that look like its parent's. It must not write into the parent's record: the
 * child gets private memory in the same place, and a file of its own when it makes communicators.
 */
#include "base/recorder.h"
#include "base/file/fds.h"
#include "base/file/limit.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

static struct {
    pthread_mutex_t lock;
    kolo_recorder_t *all;
    int fd;
    uint32_t used; /* slots */
    bool fork_handled, told;
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* ---- fork ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&recorder.lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&recorder.lock);
}

static void after_fork_child(void)
{
    if (recorder.all) {
        /* the old place stays mapped, for whoever in the child still holds a record */
        void *at = mmap(recorder.all, kolo_recorder_bytes(KOLO_RECORDER_SLOTS), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (at == MAP_FAILED) mprotect(recorder.all, kolo_recorder_bytes(KOLO_RECORDER_SLOTS), PROT_READ);
        kolo_fd_close(recorder.fd);
    }
    recorder.all = NULL;
    recorder.fd = -1;
    recorder.used = 0;
    pthread_mutex_init(&recorder.lock, NULL);
}

/* ---- the file; with the lock held ---- */

static uint64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * KOLO_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static bool open_file(void)
{
    size_t bytes = kolo_recorder_bytes(KOLO_RECORDER_SLOTS);
    int fd = kolo_fd_own(memfd_create(KOLO_RECORDER_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
    if (fd < 0 && errno == EINVAL)
        fd = kolo_fd_own(memfd_create(KOLO_RECORDER_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) return false;
    void *at = MAP_FAILED;
    /* a reader must be able to rely on the size: what is mapped stays there */
    if (kolo_file_resize(fd, bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        kolo_fd_close(fd);
        return false;
    }
    recorder.fd = fd;
    recorder.all = at;
    kolo_recorder_info_t *info = &recorder.all->info;
    *info = (kolo_recorder_info_t){.version = KOLO_RECORDER_VERSION,
                                   .slots = KOLO_RECORDER_SLOTS,
                                   .slot_bytes = sizeof(kolo_record_t),
                                   .entry_bytes = sizeof(kolo_record_entry_t),
                                   .pid = (int32_t)getpid(),
                                   .uid = (uint32_t)getuid(),
                                   .wall_ns = wall_ns(),
                                   .mono_ns = kolo_now_ns()};
    if (gethostname(info->host, sizeof info->host - 1) != 0) snprintf(info->host, sizeof info->host, "?");
    atomic_thread_fence(memory_order_release);
    info->magic = KOLO_RECORDER_MAGIC;
    return true;
}

static void close_file(void)
{
    munmap(recorder.all, kolo_recorder_bytes(KOLO_RECORDER_SLOTS));
    kolo_fd_close(recorder.fd);
    recorder.all = NULL;
    recorder.fd = -1;
}

static bool ready(void)
{
    kolo_fd_watch_forks(); /* first: its lock is taken last */
    if (!recorder.fork_handled && pthread_atfork(before_fork, after_fork_parent, after_fork_child) != 0)
        return false;
    recorder.fork_handled = true;
    return recorder.all || open_file();
}

/* ---- slots ---- */

bool kolo_recorder_wanted = true;

kolo_record_t *kolo_recorder_take(void)
{
    kolo_record_t *record = NULL;
    if (!kolo_recorder_wanted) return NULL;
    pthread_mutex_lock(&recorder.lock);
    if (recorder.used < KOLO_RECORDER_SLOTS && ready()) {
        record = recorder.all->records;
        while (atomic_load_explicit(&record->head.live, memory_order_relaxed)) record++;
        atomic_store_explicit(&record->head.live, 1, memory_order_relaxed);
        recorder.used++;
    } else if (!recorder.told) {
        recorder.told = true;
        kolo_info("recorder", "operations of some communicators are not recorded: %s",
                  recorder.used == KOLO_RECORDER_SLOTS ? "this process has too many" : strerror(errno));
    }
    pthread_mutex_unlock(&recorder.lock);
    return record;
}

void kolo_recorder_release(kolo_record_t *record)
{
    if (!record) return;
    pthread_mutex_lock(&recorder.lock);
    /* else it is the parent's, before a fork */
    if (recorder.all && record >= recorder.all->records && record < recorder.all->records + KOLO_RECORDER_SLOTS) {
        off_t at = (off_t)((uint8_t *)record - (uint8_t *)recorder.all);
        atomic_store_explicit(&record->head.live, 0, memory_order_release);
        if (fallocate(recorder.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, sizeof *record) != 0)
            memset(record, 0, sizeof *record);
        if (--recorder.used == 0) close_file();
    }
    pthread_mutex_unlock(&recorder.lock);
}

void kolo_record_head_begin(kolo_record_t *record)
{
    atomic_fetch_add_explicit(&record->head.seq, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

void kolo_record_head_end(kolo_record_t *record)
{
    atomic_fetch_add_explicit(&record->head.seq, 1, memory_order_release);
}

static void note_begin(kolo_record_t *record)
{
    atomic_fetch_add_explicit(&record->head.note_seq, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void note_end(kolo_record_t *record)
{
    atomic_fetch_add_explicit(&record->head.note_seq, 1, memory_order_release);
}

/* Copies as much as fits. */
static void put_text(char *to, size_t bytes, const char *from)
{
    size_t n = strnlen(from, bytes - 1);
    memcpy(to, from, n);
    to[n] = '\0';
}

void kolo_record_note_wait(kolo_record_t *record, uint64_t since_ns, bool blames, const char *text)
{
    if (!record) return;
    kolo_record_note_t *note = &record->head.note;
    note_begin(record);
    note->since_ns = since_ns;
    note->blames = blames;
    put_text(note->text, sizeof note->text, text);
    note_end(record);
}

void kolo_record_note_last(kolo_record_t *record, const char *last)
{
    if (!record) return;
    note_begin(record);
    record->head.note.since_ns = 0;
    put_text(record->head.note.last, sizeof record->head.note.last, last);
    note_end(record);
}
