/* SPDX-License-Identifier: Apache-2.0
 *
 * Several keyed tensors at once: the inputs and outputs of a step.
 */
#include "rendezvous/internal.h"

#include <stdlib.h>

static kolo_status_t check_set(const char *call, kolo_rendezvous_t rendezvous, const char *const *keys,
                               const kolo_value_t *values, int count)
{
    KOLO_TRY(kolo_rendezvous_check_handle(call, "rendezvous", rendezvous));
    if (count < 0) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %d tensors make no set", call, count);
    if (count == 0) return KOLO_OK;
    KOLO_TRY(kolo_rendezvous_check_given(call, "list of keys", keys));
    return kolo_rendezvous_check_given(call, "list of values", values);
}

kolo_status_t kolo_rendezvous_send_set(kolo_rendezvous_t rendezvous, const char *const *keys,
                                       const kolo_value_t *values, int count, int *sent)
{
    static const char call[] = "rendezvous_send_set";
    KOLO_TRY(check_set(call, rendezvous, keys, values, count));
    KOLO_TRY(kolo_rendezvous_check_given(call, "number of those sent", sent));
    for (*sent = 0; *sent < count; ++*sent)
        KOLO_TRY(kolo_rendezvous_send(rendezvous, keys[*sent], &values[*sent], NULL));
    return KOLO_OK;
}

static kolo_status_t wait_one(kolo_receive_t *receive, uint64_t deadline_ns, kolo_value_t *value)
{
    uint64_t now = kolo_now_ns();
    int left = 0;
    if (deadline_ns) left = now < deadline_ns ? (int)((deadline_ns - now) / KOLO_NS_PER_MS) + 1 : 1;
    bool ended;
    kolo_status_t status = kolo_receive_await(*receive, left, value, &ended);
    if (ended) *receive = NULL;
    return status;
}

kolo_status_t kolo_rendezvous_receive_set(kolo_rendezvous_t rendezvous, const char *const *keys,
                                          kolo_value_t *values, int count, int timeout_ms)
{
    static const char call[] = "rendezvous_receive_set";
    KOLO_TRY(check_set(call, rendezvous, keys, values, count));
    KOLO_TRY(kolo_rendezvous_check_timeout(call, timeout_ms));
    KOLO_TRY(kolo_rendezvous_check_wait(call, KOLO_THREAD_OF_PROGRAM));
    kolo_receive_t *receives = calloc((size_t)count + 1, sizeof *receives);
    kolo_value_t *got = calloc((size_t)count + 1, sizeof *got);
    kolo_status_t status = receives && got ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no memory", call);
    uint64_t deadline = kolo_deadline_ms(timeout_ms);
    int begun = 0;
    for (; status == KOLO_OK && begun < count; begun++)
        status = kolo_receive_begin(call, rendezvous, keys[begun], NULL, &receives[begun]);
    for (int i = 0; status == KOLO_OK && i < count; i++) status = wait_one(&receives[i], deadline, &got[i]);
    for (int i = 0; i < begun && receives; i++) (void)kolo_receive_discard(receives[i]);
    for (int i = 0; i < count && got; i++) {
        if (status == KOLO_OK)
            values[i] = got[i];
        else
            (void)kolo_value_release(&got[i]);
    }
    free(receives);
    free(got);
    return status;
}
