/* SPDX-License-Identifier: Apache-2.0
 *
 * What makes or ends communicators, and windows. Inside a group it is kept until the end, and then done side by
 * side: one thread may hold several ranks of a communicator, which wait for each other. Initialisations start
 * together as one group of Kolo's; each of the others has a thread.
 */
#include "nccl/layer.h"

#include "base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_nccl_job_t *kolo_nccl_job_copy(const kolo_nccl_job_t *job)
{
    kolo_nccl_job_t *copy = malloc(sizeof *copy);
    if (!copy) goto none;
    *copy = *job;
    copy->excluded = NULL;
    copy->ids = NULL;
    if (job->config.commName) {
        snprintf(copy->comm_name, sizeof copy->comm_name, "%s", job->config.commName);
        copy->config.commName = copy->comm_name;
    }
    if (job->count > 0) {
        copy->excluded = malloc((size_t)job->count * sizeof(int));
        if (!copy->excluded) goto none;
        memcpy(copy->excluded, job->excluded, (size_t)job->count * sizeof(int));
    }
    if (job->nids > 0) {
        copy->ids = malloc((size_t)job->nids * sizeof(ncclUniqueId));
        if (!copy->ids) goto none;
        memcpy(copy->ids, job->ids, (size_t)job->nids * sizeof(ncclUniqueId));
    }
    return copy;
none:
    kolo_nccl_job_free(copy);
    kolo_nccl_fail(ncclSystemError, "%s: out of memory", job->name);
    return NULL;
}

void kolo_nccl_job_free(kolo_nccl_job_t *job)
{
    if (!job) return;
    free(job->excluded);
    free(job->ids);
    free(job);
}

ncclResult_t kolo_nccl_job_run(kolo_nccl_job_t *job)
{
    switch (job->kind) {
    case KOLO_NCCL_INIT:
        return kolo_nccl_run_init(job);
    case KOLO_NCCL_SPLIT:
    case KOLO_NCCL_SHRINK:
    case KOLO_NCCL_GROW:
        return kolo_nccl_run_child(job);
    case KOLO_NCCL_WINDOW:
        return kolo_nccl_run_window(job);
    case KOLO_NCCL_FINALIZE:
        return kolo_nccl_run_finalize(job);
    case KOLO_NCCL_DESTROY:
        return kolo_nccl_run_destroy(job);
    }
    return kolo_nccl_fail(ncclInternalError, "there is no job of kind %d", (int)job->kind);
}

static void *run_beside(void *arg)
{
    for (kolo_nccl_job_t *job = arg; job; job = job->after) job->result = kolo_nccl_job_run(job);
    return NULL;
}

/* Orders those of one communicator, on each rank alike: the others wait for them in that order. Returns how many
 * have a thread. */
static size_t put_in_order(kolo_nccl_job_t *list)
{
    size_t threads = 0;
    for (kolo_nccl_job_t *job = list; job; job = job->next) {
        if (job->kind == KOLO_NCCL_INIT) continue;
        kolo_nccl_job_t *before = NULL;
        for (kolo_nccl_job_t *k = list; k != job; k = k->next)
            if (k->kind != KOLO_NCCL_INIT && k->comm && k->comm == job->comm) before = k;
        job->follows = before != NULL;
        if (before) before->after = job;
        threads += !before;
    }
    return threads;
}

static ncclResult_t worse(ncclResult_t a, ncclResult_t b)
{
    if (a == ncclSuccess) return b;
    return a == ncclInProgress && b != ncclSuccess ? b : a;
}

/* Runs initialisations in Kolo's own group, which starts all and then waits for all. */
static ncclResult_t run_inits(kolo_nccl_job_t *list)
{
    ncclResult_t r = ncclSuccess;
    size_t n = 0;
    for (kolo_nccl_job_t *job = list; job; job = job->next) n += job->kind == KOLO_NCCL_INIT;
    if (n == 0) return ncclSuccess;
    kolo_status_t status = kolo_group_start();
    if (status != KOLO_OK) return kolo_nccl_result(status);
    for (kolo_nccl_job_t *job = list; job; job = job->next)
        if (job->kind == KOLO_NCCL_INIT) r = worse(r, kolo_nccl_job_run(job));
    ncclResult_t end = kolo_nccl_result(kolo_group_end());
    return r != ncclSuccess && r != ncclInProgress ? r : end;
}

ncclResult_t kolo_nccl_jobs_run(kolo_nccl_job_t *list)
{
    ncclResult_t r = run_inits(list);
    kolo_nccl_job_t *next;
    size_t n = put_in_order(list);
    for (kolo_nccl_job_t *job = list; job; job = job->next) {
        if (job->kind == KOLO_NCCL_INIT || job->follows) continue;
        if (n > 1) job->started = kolo_thread_start(&job->thread, 0, run_beside, job) == 0;
        if (!job->started) run_beside(job); /* no thread is to be had: one after the other */
    }
    for (kolo_nccl_job_t *job = list; job; job = job->next)
        if (job->started) pthread_join(job->thread, NULL);
    for (kolo_nccl_job_t *job = list; job; job = next) {
        next = job->next;
        if (job->kind != KOLO_NCCL_INIT) r = worse(r, job->result);
        kolo_nccl_job_free(job);
    }
    return r;
}

void kolo_nccl_jobs_drop(kolo_nccl_job_t *list)
{
    for (kolo_nccl_job_t *job = list, *next; job; job = next) {
        next = job->next;
        if (job->kind == KOLO_NCCL_INIT) atomic_store(&job->comm->failed, ncclInvalidUsage);
        kolo_nccl_job_free(job);
    }
}
