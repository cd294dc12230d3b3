/* SPDX-License-Identifier: Apache-2.0
 *
 * Clusters as text, and the table of protocols. See cluster.h.
 */
#include "rendezvous/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_status_t read_address(kolo_cluster_task_t *task)
{
    kolo_status_t status = kolo_address_parse(task->host, &task->address);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "cluster: %s: ", task->name);
}

static int compare_names(const void *a, const void *b, void *tasks)
{
    const kolo_cluster_task_t *t = tasks;
    int x = *(const int *)a, y = *(const int *)b, order = strcmp(t[x].name, t[y].name);
    return order ? order : (x > y) - (x < y);
}

static int compare_addresses(const void *a, const void *b, void *tasks)
{
    const kolo_cluster_task_t *t = tasks;
    int x = *(const int *)a, y = *(const int *)b;
    int order = memcmp(&t[x].address, &t[y].address, sizeof t[x].address);
    return order ? order : (x > y) - (x < y);
}

/* Tasks are found by their names from now on, and none comes twice, nor its address. */
static kolo_status_t sort_tasks(kolo_cluster_t *cluster)
{
    size_t n = (size_t)cluster->ntasks;
    const kolo_cluster_task_t *t = cluster->tasks;
    int *by = malloc(n * sizeof *by);
    cluster->by_name = by;
    if (by == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "cluster: no memory for %zu tasks", n);
    for (size_t i = 0; i < n; i++) by[i] = (int)i;
    qsort_r(by, cluster->meets ? 0 : n, sizeof *by, compare_addresses, cluster->tasks);
    for (size_t i = 1; i < n && !cluster->meets; i++)
        if (memcmp(&t[by[i - 1]].address, &t[by[i]].address, sizeof t->address) == 0)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: %s and %s have the same address, %s",
                             t[by[i - 1]].name, t[by[i]].name, t[by[i]].host);
    qsort_r(by, n, sizeof *by, compare_names, cluster->tasks);
    for (size_t i = 1; i < n; i++)
        if (strcmp(t[by[i - 1]].name, t[by[i]].name) == 0)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: %s comes twice", t[by[i]].name);
    return KOLO_OK;
}

/* Adds a task; host NULL: the tasks meet. */
static kolo_status_t add_task(kolo_cluster_t *cluster, const char *job, int index, const char *host, size_t length)
{
    if (cluster->ntasks == KOLO_CLUSTER_TASKS_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: more than %d tasks", KOLO_CLUSTER_TASKS_MAX);
    if (cluster->ntasks == cluster->room) {
        int room = cluster->room ? 2 * cluster->room : 16;
        kolo_cluster_task_t *more = realloc(cluster->tasks, (size_t)room * sizeof *more);
        if (more == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "cluster: no memory for %d tasks", room);
        cluster->tasks = more;
        cluster->room = room;
    }
    kolo_cluster_task_t *task = &cluster->tasks[cluster->ntasks];
    memset(task, 0, sizeof *task);
    if (host && (length == 0 || length >= sizeof task->host))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: /job:%.64s/task:%d has no address, or a long one",
                         job, index);
    if (host) memcpy(task->host, host, length);
    int n = snprintf(task->name, sizeof task->name, "/job:%s/task:%d", job, index);
    if (n < 0 || (size_t)n >= sizeof task->name || kolo_task_name_check(task->name) != NULL)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: \"%.100s\" cannot be the name of a job", job);
    if (host) KOLO_TRY(read_address(task));
    cluster->ntasks++;
    return KOLO_OK;
}

/* Returns a number of tasks instead of their addresses; 0: it is none. */
static int read_number(const char *text, size_t length)
{
    int n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || n > KOLO_CLUSTER_TASKS_MAX) return 0;
        n = 10 * n + (text[i] - '0');
    }
    return n;
}

static kolo_status_t add_job(kolo_cluster_t *cluster, const char *text, size_t length)
{
    char job[KOLO_TASK_NAME_MAX + 1];
    const char *equals = memchr(text, '=', length), *end = text + length;
    if (equals == NULL || (size_t)(equals - text) >= sizeof job)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: \"%.*s\" is not job=address,...",
                         (int)KOLO_MIN(length, (size_t)100), text);
    memcpy(job, text, (size_t)(equals - text));
    job[equals - text] = '\0';
    const char *at = equals + 1;
    int number = read_number(at, (size_t)(end - at));
    if (cluster->ntasks == 0) cluster->meets = number > 0;
    if (cluster->meets != (number > 0))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "cluster: some jobs have addresses, and others numbers of tasks");
    if (number > KOLO_CLUSTER_TASKS_MAX - cluster->ntasks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "cluster: more than %d tasks", KOLO_CLUSTER_TASKS_MAX);
    for (int index = 0; index < number; index++) KOLO_TRY(add_task(cluster, job, index, NULL, 0));
    if (number > 0) return KOLO_OK;
    for (int index = 0;; index++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        KOLO_TRY(add_task(cluster, job, index, at, (size_t)((comma ? comma : end) - at)));
        if (comma == NULL) return KOLO_OK;
        at = comma + 1;
    }
}

kolo_status_t kolo_cluster_parse(const char *text, kolo_cluster_t *out)
{
    kolo_cluster_t cluster = {0};
    kolo_status_t status = KOLO_OK;
    while (status == KOLO_OK) {
        size_t n = strcspn(text, ";");
        status = add_job(&cluster, text, n);
        if (text[n] == '\0') break;
        text += n + 1;
    }
    if (status == KOLO_OK) status = sort_tasks(&cluster);
    if (status == KOLO_OK)
        *out = cluster;
    else
        kolo_cluster_free(&cluster);
    return status;
}

int kolo_task_find(const kolo_cluster_task_t *tasks, const int *by_name, int ntasks, const char *name)
{
    int first = 0, last = ntasks;
    while (first < last) { /* it is not before first, nor at last or behind it */
        int middle = first + (last - first) / 2, order = strcmp(tasks[by_name[middle]].name, name);
        if (order == 0) return by_name[middle];
        if (order < 0)
            first = middle + 1;
        else
            last = middle;
    }
    return -1;
}

int kolo_cluster_find(const kolo_cluster_t *cluster, const char *task)
{
    return kolo_task_find(cluster->tasks, cluster->by_name, cluster->ntasks, task);
}

void kolo_cluster_free(kolo_cluster_t *cluster)
{
    free(cluster->tasks);
    free(cluster->by_name);
    *cluster = (kolo_cluster_t){0};
}

/* ---- protocols ---- */

#define MOST_PROTOCOLS 32
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_protocol_t protocols[MOST_PROTOCOLS] = {
    {"kolo", ~0u, KOLO_MODE_DIRECT},
    {"kolo+shm", 1u << KOLO_ONESIDED_SHM, KOLO_MODE_DIRECT},
    {"kolo+verbs", 1u << KOLO_ONESIDED_VERBS, KOLO_MODE_DIRECT},
    {"kolo+tcp", 1u << KOLO_ONESIDED_TCP, KOLO_MODE_DIRECT},
    {"kolo+buffered", ~0u, KOLO_MODE_BUFFERED},
};
static int nprotocols = 5;

static int find(const char *name) /* with the lock held */
{
    for (int i = 0; i < nprotocols; i++)
        if (strcmp(protocols[i].name, name) == 0) return i;
    return -1;
}

kolo_status_t kolo_cluster_protocol(const char *name, kolo_protocol_t *protocol)
{
    char names[300] = "";
    pthread_mutex_lock(&lock);
    int i = find(name);
    if (i >= 0) *protocol = protocols[i];
    for (int k = 0; i < 0 && k < nprotocols; k++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%.31s", k ? ", " : "", protocols[k].name);
    }
    pthread_mutex_unlock(&lock);
    if (i >= 0) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "unknown protocol \"%.60s\": there are %s", name, names);
}

static kolo_status_t read_wires(const char *wires, unsigned *kinds)
{
    *kinds = 0;
    while (*wires) {
        size_t n = strcspn(wires, ",");
        int kind = 0;
        for (; kind < KOLO_ONESIDED_KINDS; kind++) {
            const char *name = kolo_onesided_kind_name((kolo_onesided_kind_t)kind);
            if (strlen(name) == n && memcmp(name, wires, n) == 0) break;
        }
        if (kind == KOLO_ONESIDED_KINDS)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "protocol: unknown wire \"%.*s\"",
                             (int)KOLO_MIN(n, (size_t)40), wires);
        *kinds |= 1u << kind;
        wires += n + (wires[n] == ',');
    }
    return *kinds ? KOLO_OK : kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "protocol: no wires");
}

kolo_status_t kolo_server_register_protocol(const char *name, const char *wires, int buffered)
{
    kolo_protocol_t protocol = {.mode = buffered ? KOLO_MODE_BUFFERED : KOLO_MODE_DIRECT};
    if (name == NULL || wires == NULL || name[0] == '\0' || strlen(name) >= sizeof protocol.name)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "protocol: a name has 1 to %zu bytes, and there are wires",
                         sizeof protocol.name - 1);
    KOLO_TRY(read_wires(wires, &protocol.kinds));
    memcpy(protocol.name, name, strlen(name) + 1);
    kolo_status_t status = KOLO_OK;
    pthread_mutex_lock(&lock);
    if (find(name) >= 0)
        status = kolo_fail(KOLO_ERR_INVALID_USAGE, "protocol \"%s\" exists already", name);
    else if (nprotocols == MOST_PROTOCOLS)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "there are %d protocols already", MOST_PROTOCOLS);
    else
        protocols[nprotocols++] = protocol;
    pthread_mutex_unlock(&lock);
    return status;
}
