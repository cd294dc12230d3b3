/* SPDX-License-Identifier: Apache-2.0
 *
 * How the ranks of a job find each other: where the unique id comes from. See kolo/job.h for the ways.
 *
 * A job that was killed leaves its file, and the next one of the same name looks there. Rank 0 writes over it, but
 * the others may come first. So an id that was there already when a rank came is taken on trial: when nobody with
 * its secret answers, and rank 0 has not removed the file as it does when its job comes to nothing, the rank waits
 * for another id to be put there.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"
#include "job/job.h"
#include "oob/oob.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS     10 /* a file system shared between hosts has nothing to wake us */
#define STALE_MIN_S 120

/* ---- the file ---- */

static kolo_status_t job_dir(char *dir, size_t bytes)
{
    struct stat st;
    const bool given = kolo_job_is_set(kolo_job_values.dir);
    if (!given && !kolo_job_is_set(kolo_job_values.home))
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "job: there is neither HOME nor KOLO_JOB_DIR, so ranks have no place to meet; set KOLO_JOB_DIR "
            "to a directory that all hosts share (a set-user-id program does not read them)");
    int n = given ? snprintf(dir, bytes, "%s", kolo_job_values.dir)
                  : snprintf(dir, bytes, "%s/.kolo", kolo_job_values.home);
    if (n < 0 || (size_t)n >= bytes) return kolo_fail(KOLO_ERR_INVALID_USAGE, "job: KOLO_JOB_DIR is too long");
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "job: cannot make %s, where ranks meet (KOLO_JOB_DIR)", dir);
    /* The umask may have taken our own rights away, here or in the rank that was first. */
    if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 0700) != 0700)
        (void)chmod(dir, (st.st_mode & 07777) | 0700);
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "job: %s must be a directory of this user that nobody else may write, for the job's secret is "
            "exchanged in it (KOLO_JOB_DIR)",
            dir);
    return KOLO_OK;
}

/* Writes which of the job's communicators this is, as the end of a file's name. */
static void put_number(const kolo_job_meeting_t *m, char *text, size_t bytes)
{
    if (m->list)
        snprintf(text, bytes, "%016" PRIx64 ".%u", m->list, m->number);
    else
        snprintf(text, bytes, "%u", m->number);
}

static kolo_status_t choose_path(kolo_job_meeting_t *m)
{
    char dir[4096], name[KOLO_JOB_NAME_BYTES], number[40];
    int n;
    put_number(m, number, sizeof number);
    if (kolo_job_is_set(kolo_job_values.id_file)) {
        n = snprintf(m->path, sizeof m->path, "%s.%s", kolo_job_values.id_file, number);
    } else if (strcmp(m->place.launcher, "kolorun") == 0) {
        return kolo_fail(
            KOLO_ERR_INVALID_ARGUMENT,
            "job: rank %d of %d knows no way to the others: start it by kolorun, or set KOLO_ID_FILE or "
            "KOLO_COMM_ID",
            m->place.rank, m->place.nranks);
    } else {
        KOLO_TRY(kolo_job_name(&kolo_job_values, &m->place, name));
        KOLO_TRY(job_dir(dir, sizeof dir));
        n = snprintf(m->path, sizeof m->path, "%s/%s.%s", dir, name, number);
        m->shared = true;
    }
    if (n > 0 && (size_t)n < sizeof m->path) return KOLO_OK;
    m->path[0] = '\0';
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job: the path of the id file is longer than a path can be");
}

/* Returns when this process began, in seconds of the real clock. */
static int64_t own_start_s(void)
{
    int parent;
    uint64_t ticks;
    struct timespec real, boot;
    if (!kolo_process_origin(getpid(), &parent, &ticks)) return 0;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    return real.tv_sec - boot.tv_sec + (int64_t)ticks / sysconf(_SC_CLK_TCK);
}

/* Refuses a file of somebody else, and one that is so much older than this process that its rank 0 must have given
 * up: its host may be gone, and then nothing says so at once. */
static bool can_be_ours(const char *path, int timeout_ms)
{
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return false;
    return st.st_mtim.tv_sec >= own_start_s() - KOLO_MAX(timeout_ms / 1000, STALE_MIN_S);
}

static bool load(const char *path, int timeout_ms, kolo_unique_id_t *id)
{
    return can_be_ours(path, timeout_ms) && kolo_id_load(id, path, 0) == KOLO_OK;
}

static kolo_status_t wait_for_file(kolo_job_meeting_t *m)
{
    const uint64_t deadline = kolo_deadline_ms(m->timeout_ms);
    const kolo_unique_id_t before = m->id;
    for (bool first = true;; first = false) {
        bool found = load(m->path, m->timeout_ms, &m->id);
        if (found && !(m->failed && memcmp(&before, &m->id, sizeof before) == 0)) {
            m->was_there = first && !m->failed;
            return KOLO_OK;
        }
        const bool late = kolo_now_ns() >= deadline;
        if (m->failed && (late || (!found && access(m->path, F_OK) != 0)))
            return kolo_fail(m->status, "%s", m->text);
        if (late)
            return kolo_fail(KOLO_ERR_TIMEOUT,
                             "job: rank %d did not leave the id in %s within %d ms: has it made this call, and do "
                             "all hosts share this directory (KOLO_JOB_DIR) and the time of day?",
                             m->first, m->path, m->timeout_ms);
        poll(NULL, 0, POLL_MS);
    }
}

/* Tells whether rank 0 has to be reached by ranks of this host alone, whatever the launcher says of how many are
 * here. */
static bool is_for_one_host(const kolo_job_meeting_t *m)
{
    char text[300];
    if (m->place.local_size != m->place.nranks) return false;
    return !kolo_job_address(&kolo_job_values, &m->place, m->number, text, sizeof text) ||
           kolo_id_is_loopback(text);
}

/* Writes where kolorun says which ranks have ended; false: another launcher does not. */
static bool put_ended(const kolo_job_meeting_t *m, char *path, size_t bytes)
{
    if (strcmp(m->place.launcher, "kolorun") != 0 || !kolo_job_is_set(kolo_job_values.id_file)) return false;
    int n = snprintf(path, bytes, "%s.ended", kolo_job_values.id_file);
    return n > 0 && (size_t)n < bytes;
}

static kolo_status_t meet_by_file(kolo_job_meeting_t *m)
{
    char path[sizeof m->path];
    const bool told = put_ended(m, path, sizeof path);
    if (m->path[0] == '\0') KOLO_TRY(choose_path(m));
    if (m->rank > 0)
        return m->shared ? wait_for_file(m)
                         : kolo_id_await(&m->id, m->path, m->timeout_ms, &(kolo_ended_t){told ? path : NULL, 0, 0},
                                         m->first);
    KOLO_TRY(is_for_one_host(m) ? kolo_id_create_local(&m->id) : kolo_id_create(&m->id));
    if (told) kolo_root_watch_ended(&m->id, path, m->ranks, m->nranks);
    return kolo_id_save(&m->id, m->path);
}

void kolo_job_clear(const kolo_job_meeting_t *m)
{
    kolo_unique_id_t there;
    if (m->path[0] == '\0' || m->rank > 0) return;
    /* By now the next job of the name may have put its own there. */
    if (kolo_id_load(&there, m->path, 0) == KOLO_OK && memcmp(&there, &m->id, sizeof there) == 0) unlink(m->path);
    explicit_bzero(&there, sizeof there);
}

bool kolo_job_meet_again(kolo_job_meeting_t *m, kolo_status_t status)
{
    if (!m->was_there) return false;
    if (status != KOLO_ERR_REMOTE && status != KOLO_ERR_AUTH && status != KOLO_ERR_PROTOCOL) return false;
    m->failed = true;
    m->was_there = false;
    m->status = status;
    snprintf(m->text, sizeof m->text, "%s", kolo_error_text());
    kolo_info("job", "rank %d waits for another id in %s: %s", m->place.rank, m->path, m->text);
    return true;
}

/* ---- the address ---- */

/* Meets at an address, with a secret of the job's own, and the communicator's, so that ranks of another that meet
 * there are refused. */
static kolo_status_t meet_at(kolo_job_meeting_t *m, const char *address)
{
    char name[KOLO_JOB_NAME_BYTES], number[40], scope[440];
    KOLO_TRY(kolo_job_name(&kolo_job_values, &m->place, name));
    put_number(m, number, sizeof number);
    snprintf(scope, sizeof scope, "%s %s.%s", address, name, number);
    return kolo_id_create_computed(address, scope, m->rank == 0, m->place.local_size == m->place.nranks, &m->id);
}

/* Compares what the launcher says of the host of rank 0 with what this host knows of itself. */
static void look_at_address(const kolo_job_meeting_t *m)
{
    char text[300];
    if (!kolo_job_address(&kolo_job_values, &m->place, m->number, text, sizeof text) || kolo_id_hint(text)) return;
    if (m->place.local_size != m->place.nranks) return;
    kolo_warn(
        "job",
        "rank %d: the launcher says that all %d ranks are on this host (LOCAL_WORLD_SIZE is WORLD_SIZE), but the "
        "address of rank 0's host, %s, is none of this host's. Set LOCAL_WORLD_SIZE to the ranks of each host",
        m->place.rank, m->place.nranks, text);
}

kolo_status_t kolo_job_meet(kolo_job_meeting_t *m)
{
    char address[300];
    if (m->nranks == 1) return kolo_id_create_local(&m->id);
    if (m->place.local_size != m->place.nranks) /* each says what is wrong with its own, at once */
        KOLO_TRY(kolo_id_check_interfaces());
    look_at_address(m);
    if (kolo_job_is_set(kolo_job_values.id_file)) return meet_by_file(m);
    if (kolo_id_has_address() && m->first > 0)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "job: ranks meet at KOLO_COMM_ID, an address of rank 0, but the list begins with rank %d: put "
            "rank 0 first, or name a file that all see by KOLO_ID_FILE",
            m->first);
    if (kolo_id_has_address()) return kolo_id_create(&m->id);
    if (m->first > 0 || !kolo_id_has_secret() ||
        !kolo_job_address(&kolo_job_values, &m->place, m->number, address, sizeof address))
        return meet_by_file(m);
    kolo_status_t status = meet_at(m, address);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "job: ranks were to meet at %s: ", address);
}
