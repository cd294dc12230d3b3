/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of all ranks that no plan runs (split, windows, finalize): what they wait for is told in words of the call.
 */
#include "comm/call/call.h"

#include <inttypes.h>
#include <stdio.h>

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_whole_t *w = arg;
    snprintf(buf, bytes, "rank %d, in operation %" PRIu64 " (%s)", w->body->rank, w->number,
             kolo_plan_call_name(w->which));
}

static void explain(void *arg, char *buf, size_t bytes)
{
    kolo_ask_around_stalled(((const kolo_whole_t *)arg)->body, buf, bytes);
}

void kolo_whole_name(kolo_whole_t *whole, kolo_body_t *body, kolo_call_word_t which, uint64_t number)
{
    *whole = (kolo_whole_t){.body = body, .which = which, .number = number};
    snprintf(whole->in, sizeof whole->in, "in %s", kolo_plan_call_name(which));
    whole->before = kolo_wait_set_purpose((kolo_wait_purpose_t){describe, whole, explain, whole->in});
}

uint64_t kolo_whole_begin(kolo_whole_t *whole, kolo_body_t *body, kolo_call_word_t which)
{
    uint64_t number = kolo_mismatch_count(body, which);
    kolo_whole_name(whole, body, which, number);
    return number;
}

void kolo_whole_end(kolo_whole_t *whole, kolo_status_t status)
{
    kolo_wait_set_purpose(whole->before);
    if (status == KOLO_ERR_TIMEOUT) kolo_ask_around_time_out(whole->body);
    const kolo_exec_ops_t *exec = whole->body->gpu.exec;
    if (exec && exec->by_host)
        return; /* the record is that of the operations, which another thread runs meanwhile */
    kolo_record_end(&whole->body->track.record, status);
}
