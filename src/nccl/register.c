/* SPDX-License-Identifier: Apache-2.0
 *
 * How a window is made. All ranks meet for it: in a group it waits for the end, as what makes communicators does.
 * Where Kolo has none (GPUs that do not reach each other, several hosts, memory that cannot be shared) the client
 * gets a NULL window and success, as from NCCL without symmetric memory.
 */
#include "nccl/layer.h"

#include "base/log.h"
#include "comm/params.h"

#include <stdlib.h>

ncclResult_t kolo_nccl_run_window(kolo_nccl_job_t *job)
{
    ncclComm_t comm = job->comm;
    const char *call = job->name;
    void *buf = job->buf;
    size_t bytes = job->bytes;
    kolo_window_t made = NULL;
    ncclResult_t r = kolo_nccl_settle(comm);
    if (r != ncclSuccess) return r;
    kolo_nccl_window_t *w = calloc(1, sizeof *w);
    if (!w) return kolo_nccl_fail(ncclSystemError, "%s: out of memory", call);
    kolo_status_t status = kolo_window_register(comm->kolo, buf, bytes, &made);
    if (status == KOLO_ERR_UNSUPPORTED || status == KOLO_ERR_INVALID_ARGUMENT) {
        kolo_info("nccl", "%s makes no window: %s", call, kolo_error_text());
        free(w);
        return ncclSuccess;
    }
    r = status == KOLO_IN_PROGRESS ? kolo_nccl_settle(comm) : kolo_nccl_result(status);
    if (r != ncclSuccess) {
        free(w);
        return r;
    }
    *w = (kolo_nccl_window_t){.live = true, .kolo = made, .buf = buf, .bytes = bytes};
    pthread_mutex_lock(&comm->lock);
    w->next = comm->windows;
    comm->windows = w;
    pthread_mutex_unlock(&comm->lock);
    *job->window = (ncclWindow_t)(void *)w;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buf, size_t bytes, ncclWindow_t *window, int flags)
{
    static const char call[] = "ncclCommWindowRegister";
    const kolo_nccl_job_t job = {
        .kind = KOLO_NCCL_WINDOW, .name = call, .comm = comm, .buf = buf, .bytes = bytes, .window = window};
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    (void)flags; /* they choose among NCCL's ways */
    if (r == ncclSuccess && !window) r = kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    *window = NULL;
    if (!kolo_nccl_options.windows) return ncclSuccess;
    if (buf || !bytes) return kolo_nccl_job_submit(&job);
    return kolo_nccl_noted(kolo_nccl_fail(ncclInvalidArgument, "%s: the buffer is NULL", call));
}
KOLO_NCCL_TWIN(ncclCommWindowRegister, pncclCommWindowRegister);
