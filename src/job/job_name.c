/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of one job share and others do not, as far as launchers tell: a name, and an address.
 */
#include "base/clock.h"
#include "base/params.h"
#include "base/process.h"
#include "job/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORTS      4 /* so that the socket of one communicator may still be closing when the next is made */
#define PORT_FIRST 21000
#define PORT_COUNT 10000

/* ---- name ---- */

static bool has_variable(int pid, const char *name)
{
    char path[40], *entry = NULL;
    size_t bytes = 0, n = strlen(name);
    bool has = false;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    while (!has && getdelim(&entry, &bytes, '\0', f) > 0) has = strncmp(entry, name, n) == 0 && entry[n] == '=';
    free(entry);
    fclose(f);
    return has;
}

/* Finds the nearest process above that is no rank itself: mpiexec tells no name of the job, but on one host all
 * ranks come from one process, by scripts or directly. */
static kolo_status_t launching_process(const kolo_job_place_t *place, const char *variable, char *text,
                                       size_t bytes)
{
    int pid = getpid(), parent;
    uint64_t start;
    if (place->local_size != place->nranks)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "job: %s gives ranks on several hosts no name of their job: set KOLO_JOB_NAME, the same "
                         "on all ranks, or use kolorun",
                         place->launcher);
    do {
        if (!kolo_process_origin(pid, &parent, &start) || parent < 1)
            return kolo_fail(KOLO_ERR_SYSTEM,
                             "job: the process that started the ranks is not to be found (/proc/%d/stat): set "
                             "KOLO_JOB_NAME, the same on all ranks",
                             pid);
        pid = parent;
    } while (has_variable(pid, variable));
    if (!kolo_process_origin(pid, &parent, &start)) start = 0;
    snprintf(text, bytes, "%d %" PRIu64, pid, start);
    return KOLO_OK;
}

kolo_status_t kolo_job_name(const kolo_job_values_t *v, const kolo_job_place_t *place,
                            char name[KOLO_JOB_NAME_BYTES])
{
    /* Open MPI's is enough: what else is in the environment may differ between the hosts. */
    const char *const torch[] = {v->torch_address, v->torch_port, v->torch_run, v->torch_restart};
    const char *const slurm[] = {v->slurm_cluster, v->slurm_job, v->slurm_step, v->slurm_restart};
    const char *const ompi[] = {v->ompi_job, v->ompi_key, NULL, NULL};
    const char *const none[] = {NULL, NULL, NULL, NULL};
    const bool is_mpich = strcmp(place->launcher, "mpich") == 0, is_ompi = strcmp(place->launcher, "openmpi") == 0;
    const char *const *parts = none;
    char process[64] = "";
    if (strcmp(place->launcher, "torchrun") == 0) parts = torch;
    if (strcmp(place->launcher, "slurm") == 0) parts = slurm;
    if (is_ompi) parts = ompi;
    if (!kolo_job_is_set(v->name) && (is_mpich || (is_ompi && !kolo_job_is_set(v->ompi_job))))
        KOLO_TRY(launching_process(place, is_mpich ? "PMI_RANK" : "OMPI_COMM_WORLD_RANK", process, sizeof process));
    uint64_t hash = KOLO_HASH_INIT;
    const char *const all[] = {place->launcher, parts[0], parts[1], parts[2], parts[3], process, v->name};
    for (size_t i = 0; i < KOLO_COUNTOF(all); i++) {
        const char *part = all[i] ? all[i] : "";
        hash = kolo_hash_bytes(hash, part, strlen(part) + 1);
    }
    snprintf(name, KOLO_JOB_NAME_BYTES, "%s-%016" PRIx64, place->launcher, hash);
    return KOLO_OK;
}

/* ---- address ---- */

/* Makes "n[03-07,9],m2" "n03". */
static bool first_host(const char *list, char *host, size_t bytes)
{
    size_t prefix = strcspn(list, "[,");
    const char *number = list[prefix] == '[' ? list + prefix + 1 : "";
    size_t digits = strspn(number, "0123456789");
    if (prefix + digits == 0 || prefix + digits >= bytes || (list[prefix] == '[' && digits == 0)) return false;
    memcpy(host, list, prefix);
    memcpy(host + prefix, number, digits);
    host[prefix + digits] = '\0';
    return true;
}

static bool torch_address(const kolo_job_values_t *v, unsigned number, char *text, size_t bytes)
{
    int port = 0;
    if (!kolo_job_is_set(v->torch_address) || !kolo_job_is_set(v->torch_port)) return false;
    if (kolo_job_number("MASTER_PORT", v->torch_port, 1, &port) != KOLO_OK || port > 65535 - PORTS) return false;
    const bool six = strchr(v->torch_address, ':') != NULL;
    int n = snprintf(text, bytes, "%s%s%s:%d", six ? "[" : "", v->torch_address, six ? "]" : "",
                     port + 1 + (int)(number % PORTS));
    return n > 0 && (size_t)n < bytes;
}

static bool slurm_address(const kolo_job_values_t *v, unsigned number, char *text, size_t bytes)
{
    char host[256];
    if (!kolo_job_is_set(v->slurm_hosts) || !kolo_job_is_set(v->slurm_job) || !kolo_job_is_set(v->slurm_step) ||
        !first_host(v->slurm_hosts, host, sizeof host))
        return false;
    uint64_t hash = kolo_hash_bytes(KOLO_HASH_INIT, v->slurm_job, strlen(v->slurm_job) + 1);
    hash = kolo_hash_bytes(hash, v->slurm_step, strlen(v->slurm_step));
    int n = snprintf(text, bytes, "%s:%d", host,
                     PORT_FIRST + (int)(hash % (PORT_COUNT / PORTS)) * PORTS + (int)(number % PORTS));
    return n > 0 && (size_t)n < bytes;
}

bool kolo_job_address(const kolo_job_values_t *v, const kolo_job_place_t *place, unsigned number, char *text,
                      size_t bytes)
{
    if (strcmp(place->launcher, "torchrun") == 0) return torch_address(v, number, text, bytes);
    return strcmp(place->launcher, "slurm") == 0 && slurm_address(v, number, text, bytes);
}
