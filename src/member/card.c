/* SPDX-License-Identifier: Apache-2.0
 *
 * The card of a rank: who and where it is. Hashes instead of names, because all that anybody does with them is to
 * compare: same host, same process, can hand descriptors to each other.
 *
 * And which ranks live in this process. Between those, memory is handed over by plain addresses: who is believed to
 * be one of them can make this process write anywhere in its own memory. A rank's card says in which process it is,
 * but each task of the job has seen all cards and can show another's. So ranks are listed here before they show a
 * card.
 */
#include "base/clock.h"
#include "base/process.h"
#include "base/wait.h"
#include "member/member.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Hashes a file; a missing one (no /proc in a sandbox) is part of the identity like any other value. */
static uint64_t hash_file(uint64_t hash, const char *path)
{
    char text[256];
    FILE *file = fopen(path, "re");
    size_t n = file != NULL ? fread(text, 1, sizeof(text), file) : 0;
    if (file != NULL) fclose(file);
    return kolo_hash_bytes(hash, text, n);
}

static uint64_t hash_namespace(uint64_t hash, const char *path)
{
    struct stat info;
    uint64_t id[2] = {0, 0};
    if (stat(path, &info) == 0) {
        id[0] = (uint64_t)info.st_dev;
        id[1] = (uint64_t)info.st_ino;
    }
    return kolo_hash_bytes(hash, id, sizeof(id));
}

static uint64_t hash_host(const char *name)
{
    if (kolo_member_values.host_id != NULL && kolo_member_values.host_id[0] != '\0')
        return kolo_hash_bytes(KOLO_HASH_INIT, kolo_member_values.host_id, strlen(kolo_member_values.host_id));
    uint64_t hash = hash_file(KOLO_HASH_INIT, "/proc/sys/kernel/random/boot_id");
    hash = kolo_hash_bytes(hash, name, strlen(name));
    hash = hash_namespace(hash, "/proc/self/ns/net");
    return hash_namespace(hash, "/proc/self/ns/ipc");
}

/* Reads field 22 of /proc/PID/stat, in clock ticks since boot: tells a process from a later one with the same pid.
 * */
static uint64_t start_time(int pid)
{
    char text[1024], path[48];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, pid);
    FILE *file = fopen(path, "re");
    size_t n = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file != NULL) fclose(file);
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t kolo_member_process_hash(uint64_t host_hash, int pid)
{
    uint64_t process[2] = {(uint64_t)pid, start_time(pid)};
    return hash_namespace(kolo_hash_bytes(host_hash, process, sizeof(process)), "/proc/self/ns/pid");
}

kolo_status_t kolo_member_fill_card(kolo_peer_card_t *card, int rank, int device)
{
    char name[256] = "";
    if (card == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "card is NULL");
    if (gethostname(name, sizeof(name) - 1) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot read the host's name");
    kolo_peer_card_t made = {
        .version = KOLO_VERSION, .card_version = KOLO_CARD_VERSION, .rank = rank, .device = device};
    made.host_hash = hash_host(name);
    made.pid = (int32_t)getpid();
    made.process_hash = kolo_member_process_hash(made.host_hash, made.pid);
    made.shm_hash = hash_namespace(made.host_hash, "/proc/self/ns/net");
    made.uid = (uint32_t)getuid();
    made.cores = (uint32_t)kolo_cores();
    kolo_cores_mask(made.core_mask);
    snprintf(made.host_name, sizeof(made.host_name), "%.31s", name);
    *card = made;
    return KOLO_OK;
}

const char *kolo_member_card_print(const kolo_peer_card_t *card, char text[KOLO_WHO_BYTES])
{
    snprintf(text, KOLO_WHO_BYTES, "rank %d (host %.32s, pid %d)", card->rank, card->host_name, card->pid);
    return text;
}

/* ---- the ranks of this process ---- */

#define KEPT 1024 /* that have ended: others of their job may look at their cards only now */

typedef struct own {
    struct own *next; /* the newest first */
    uint64_t job;
    int rank;
    bool ended;
} own_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(lock)
static own_t *owns;

static own_t *find_own(uint64_t job, int rank)
{
    own_t *own = owns;
    while (own != NULL && (own->job != job || own->rank != rank)) own = own->next;
    return own;
}

/* Forgets the oldest of more than KEPT. */
static void forget_one(void)
{
    own_t **last = NULL;
    int ended = 0;
    for (own_t **at = &owns; *at != NULL; at = &(*at)->next) {
        if (!(*at)->ended) continue;
        last = at;
        ended++;
    }
    if (ended <= KEPT) return;
    own_t *own = *last;
    *last = own->next;
    free(own);
}

kolo_status_t kolo_member_own_add(uint64_t job, int rank)
{
    own_t *own = malloc(sizeof *own);
    if (own == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to list rank %d", rank);
    pthread_mutex_lock(&lock);
    *own = (own_t){.next = owns, .job = job, .rank = rank};
    owns = own;
    pthread_mutex_unlock(&lock);
    return KOLO_OK;
}

void kolo_member_own_remove(uint64_t job, int rank)
{
    pthread_mutex_lock(&lock);
    own_t *own = find_own(job, rank);
    if (own != NULL) own->ended = true;
    forget_one();
    pthread_mutex_unlock(&lock);
}

bool kolo_member_own_has(uint64_t job, int rank)
{
    pthread_mutex_lock(&lock);
    bool has = find_own(job, rank) != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}
