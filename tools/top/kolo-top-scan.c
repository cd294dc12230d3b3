/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding records: the memory files named "kolo-recorder" among the descriptors of all processes that we may look
 * into, or dumps. And what became of the ranks whose record is not there.
 */
#include "kolo-top.h"

#include "base/clock.h"
#include "base/file/output.h"
#include "base/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static top_rank_t *add_rank(top_set_t *set)
{
    if (set->count == set->capacity) {
        size_t n = set->capacity ? 2 * set->capacity : 16;
        top_rank_t *more = realloc(set->ranks, n * sizeof *more);
        if (!more) return NULL;
        set->ranks = more;
        set->capacity = n;
    }
    top_rank_t *r = &set->ranks[set->count];
    memset(r, 0, sizeof *r);
    r->ops = malloc(KOLO_RECORD_ENTRIES * sizeof *r->ops);
    if (!r->ops) return NULL;
    set->count++;
    return r;
}

static void drop_last(top_set_t *set)
{
    free(set->ranks[--set->count].ops);
    free(set->ranks[set->count].raw);
}

/* The first slot from `slot` on that has memory: to look at another would give it some, in the process. */
static uint32_t next_used(int fd, uint32_t slot)
{
    off_t data = fd >= 0 ? lseek(fd, (off_t)kolo_recorder_bytes(slot), SEEK_DATA) : 0;
    if (data < 0) return UINT32_MAX;
    size_t at = (size_t)data, first = kolo_recorder_bytes(slot);
    return at <= first ? slot : slot + (uint32_t)((at - first) / sizeof(kolo_record_t));
}

/* All records in these bytes, which are those of fd unless that is -1. false: out of memory. */
static bool take_records(const top_options_t *options, int fd, const void *bytes, const kolo_recorder_info_t *info,
                         const top_rank_t *common, top_set_t *set)
{
    for (uint32_t slot = next_used(fd, 0); slot < info->slots; slot = next_used(fd, slot + 1)) {
        kolo_record_view_t view;
        bool there = false;
        for (int again = 0; again < 3 && !there; again++) there = kolo_recorder_view(bytes, info, slot, &view);
        if (!there || (options->has_job && view.job != options->job)) continue;
        top_rank_t *r = add_rank(set);
        if (!r) return false;
        kolo_record_op_t *ops = r->ops;
        *r = *common;
        r->view = view;
        r->ops = ops;
        r->slot = slot;
        r->stopped = common->stopped || view.stopped;
        if (!r->pid && (uint32_t)view.rank < view.npeers) r->pid = view.peers[view.rank].pid;
        r->nops = kolo_recorder_ops(bytes, info, slot, ops, KOLO_RECORD_ENTRIES);
        ops = realloc(r->ops, KOLO_MAX(r->nops, (size_t)1) * sizeof *ops); /* many have done little */
        if (ops) r->ops = ops;
        if (!options->save) continue;
        r->raw = malloc(sizeof *r->raw);
        if (!r->raw) return false;
        if (!kolo_recorder_copy(bytes, info, slot, r->raw)) drop_last(set);
    }
    return true;
}

typedef struct {
    const top_options_t *options;
    top_set_t *set;
} scan_t;

/* Is it there, by another descriptor? And has this user more than is looked at? */
static bool is_known(const top_set_t *set, const struct stat *st, bool *full)
{
    size_t of_user = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (set->ranks[i].inode == st->st_ino && set->ranks[i].fs == st->st_dev) return true;
        of_user += set->ranks[i].uid == st->st_uid;
    }
    *full = of_user >= TOP_MOST_RANKS;
    return false;
}

static bool take_memory(void *arg, int pid, int fd, const struct stat *st)
{
    const scan_t *scan = arg;
    kolo_recorder_info_t info;
    bool full;
    if (is_known(scan->set, st, &full)) return true;
    if (full) {
        scan->set->left_out++;
        return true;
    }
    size_t size = (size_t)st->st_size;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) return true;
    bool good = true;
    if (kolo_recorder_check(bytes, size, &info) == NULL) {
        top_rank_t common = {.pid = pid,
                             .stopped = kolo_process_stopped(pid),
                             .now_ns = kolo_now_ns(),
                             .inode = st->st_ino,
                             .fs = st->st_dev,
                             .uid = st->st_uid};
        good = take_records(scan->options, fd, bytes, &info, &common, scan->set);
    }
    munmap(bytes, size);
    return good;
}

static bool take_process(const top_options_t *options, int pid, top_set_t *set)
{
    return top_each_memory(pid, KOLO_RECORDER_NAME, take_memory, &(scan_t){options, set});
}

static int by_job_and_rank(const void *a, const void *b)
{
    const top_rank_t *x = a, *y = b;
    if (x->view.job != y->view.job) return x->view.job < y->view.job ? -1 : 1;
    if (x->uid != y->uid) return x->uid < y->uid ? -1 : 1;
    return x->view.rank - y->view.rank;
}

/* Each rank of a job once. */
static void sort_set(top_set_t *set)
{
    size_t n = 0;
    if (set->count) qsort(set->ranks, set->count, sizeof *set->ranks, by_job_and_rank);
    for (size_t i = 0; i < set->count; i++) {
        if (n > 0 && by_job_and_rank(&set->ranks[n - 1], &set->ranks[i]) == 0) {
            free(set->ranks[i].ops);
            free(set->ranks[i].raw);
            continue;
        }
        set->ranks[n++] = set->ranks[i];
    }
    set->count = n;
}

bool top_scan(const top_options_t *options, top_set_t *set)
{
    bool good = true;
    DIR *dir = options->npids ? NULL : opendir("/proc");
    *set = (top_set_t){.here = true};
    for (int i = 0; i < options->npids && good; i++) good = take_process(options, options->pids[i], set);
    for (struct dirent *d; dir && good && (d = readdir(dir));)
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9') good = take_process(options, atoi(d->d_name), set);
    if (dir) closedir(dir);
    sort_set(set);
    if (!good) fprintf(stderr, "kolo-top: out of memory\n");
    return good;
}

/* ---- files ---- */

static void *read_file(const char *path, size_t *size)
{
    size_t most = kolo_recorder_bytes(KOLO_RECORDER_SLOTS);
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    void *bytes = NULL;
    if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        errno = ESPIPE;
    } else if (fd >= 0 && st.st_size >= 0 && (uint64_t)st.st_size <= most) {
        *size = (size_t)st.st_size;
        bytes = aligned_alloc(64, KOLO_ROUND_UP(*size + 1, (size_t)64));
        size_t at = 0;
        for (ssize_t n; bytes && at < *size && (n = read(fd, (char *)bytes + at, *size - at)) > 0;) at += (size_t)n;
        *size = at;
    } else if (fd >= 0) {
        errno = EFBIG;
    }
    if (!bytes) fprintf(stderr, "kolo-top: %s: %s\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    return bytes;
}

bool top_read_files(const top_options_t *options, char **paths, int count, top_set_t *set)
{
    bool good = true;
    *set = (top_set_t){0};
    for (int i = 0; i < count && good; i++) {
        size_t size = 0;
        kolo_recorder_info_t info;
        void *bytes = read_file(paths[i], &size);
        if (!bytes) return false;
        const char *wrong = kolo_recorder_check(bytes, size, &info);
        if (wrong) {
            fprintf(stderr, "kolo-top: %s: %s\n", paths[i], wrong);
            good = false;
        } else {
            top_rank_t common = {.now_ns = info.taken_ns};
            good = take_records(options, -1, bytes, &info, &common, set);
        }
        free(bytes);
    }
    sort_set(set);
    return good;
}

/* A dump does not say whose a record was. */
static bool is_one_users(const top_set_t *set)
{
    for (size_t i = 1; i < set->count; i++) {
        const top_rank_t *r = &set->ranks[i - 1];
        if (r->view.job != r[1].view.job || r->uid == r[1].uid) continue;
        fprintf(stderr,
                "kolo-top: users %u and %u both have records of job %016" PRIx64 ": choose processes by --pid\n",
                r->uid, r[1].uid, r->view.job);
        return false;
    }
    return true;
}

bool top_save(const char *path, const top_set_t *set)
{
    if (!is_one_users(set)) return false;
    uint32_t slots = (uint32_t)KOLO_MIN(set->count, (size_t)KOLO_RECORDER_SLOTS);
    kolo_recorder_t *head = calloc(1, sizeof *head);
    char wrong[4096 + 100] = "";
    FILE *f = head ? kolo_output_fopen(path, wrong, sizeof wrong) : NULL;
    bool good = f != NULL;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    if (good) {
        head->info =
            (kolo_recorder_info_t){.magic = KOLO_RECORDER_MAGIC,
                                   .version = KOLO_RECORDER_VERSION,
                                   .slots = slots,
                                   .slot_bytes = sizeof(kolo_record_t),
                                   .entry_bytes = sizeof(kolo_record_entry_t),
                                   .wall_ns = (uint64_t)wall.tv_sec * KOLO_NS_PER_S + (uint64_t)wall.tv_nsec,
                                   .mono_ns = kolo_now_ns(),
                                   .taken_ns = kolo_now_ns()};
        gethostname(head->info.host, sizeof head->info.host - 1);
        good = fwrite(head, sizeof *head, 1, f) == 1;
    }
    for (uint32_t i = 0; i < slots && good; i++) {
        set->ranks[i].raw->head.stopped = set->ranks[i].stopped;
        good = fwrite(set->ranks[i].raw, sizeof(kolo_record_t), 1, f) == 1;
    }
    if (f && fclose(f) != 0) good = false;
    if (!good && wrong[0])
        fprintf(stderr, "kolo-top: %s\n", wrong);
    else if (!good)
        fprintf(stderr, "kolo-top: %s: %s\n", path, strerror(errno));
    free(head);
    return good;
}

void top_free(top_set_t *set)
{
    while (set->count) drop_last(set);
    free(set->ranks);
    *set = (top_set_t){0};
}

/* ---- what becomes of a communicator's ranks ---- */

size_t top_job_size(const top_set_t *set, size_t first)
{
    size_t n = 1;
    const top_rank_t *r = &set->ranks[first];
    while (first + n < set->count && r[n].view.job == r->view.job && r[n].uid == r->uid) n++;
    return n;
}

static void look_for(const top_set_t *set, const kolo_record_view_t *view, kolo_verdict_rank_t *out)
{
    const kolo_record_peer_t *peer = &view->peers[out->rank];
    char path[64];
    out->presence = KOLO_RANK_ELSEWHERE;
    out->pid = peer->pid;
    if (!peer->same_host || !set->here || !peer->pid) return;
    snprintf(out->host, sizeof out->host, "%.31s", view->host);
    out->stopped = kolo_process_stopped(peer->pid);
    snprintf(path, sizeof path, "/proc/%d/fd", peer->pid);
    if (kolo_process_gone(peer->pid))
        out->presence = KOLO_RANK_GONE;
    else
        out->presence = access(path, R_OK | X_OK) == 0 ? KOLO_RANK_UNRECORDED : KOLO_RANK_UNREADABLE;
}

int top_verdict_ranks(const top_set_t *set, size_t first, size_t count, kolo_verdict_rank_t **out)
{
    const kolo_record_view_t *view = &set->ranks[first].view;
    kolo_verdict_rank_t *ranks = calloc(view->npeers + count, sizeof *ranks);
    int n = 0;
    *out = ranks;
    size_t i = first, end = first + count;
    for (int rank = 0; ranks && rank < view->nranks && (i < end || (uint32_t)rank < view->npeers); rank++) {
        const top_rank_t *r = &set->ranks[i < end ? i : first];
        if (i == end || r->view.rank != rank) {
            if ((uint32_t)rank < view->npeers) {
                ranks[n].rank = rank;
                look_for(set, view, &ranks[n++]);
            } else {
                rank = r->view.rank - 1; /* nothing is known of those between */
            }
            continue;
        }
        i++;
        kolo_verdict_rank_t *v = &ranks[n++];
        *v = (kolo_verdict_rank_t){.rank = rank,
                                   .presence = KOLO_RANK_HEARD,
                                   .stopped = r->stopped,
                                   .pid = r->pid,
                                   .failed = r->view.status,
                                   .waits = r->view.waits,
                                   .callback = r->view.callback.which};
        uint64_t since = r->view.callback.since_ns;
        if (since && since < r->now_ns) v->callback_ns = r->now_ns - since;
        snprintf(v->host, sizeof v->host, "%.31s", r->view.host);
        kolo_verdict_take(v, r->ops, r->nops, r->now_ns);
    }
    return n;
}
