/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses calls that would hang: a call that waits, on a thread that has to do what it waits for; and a call in a
 * child of fork(), which has a server's memory but none of its threads.
 */
#include "base/process.h"
#include "rendezvous/internal.h"

static _Thread_local kolo_thread_of_t thread_of;

kolo_thread_of_t kolo_rendezvous_enter(kolo_thread_of_t what)
{
    kolo_thread_of_t before = thread_of;
    thread_of = what;
    return before;
}

kolo_status_t kolo_rendezvous_check_wait(const char *call, kolo_thread_of_t most)
{
    static const char *const names[] = {
        [KOLO_THREAD_OF_PROGRAM] = "", /* it may always wait */
        [KOLO_THREAD_OF_CALLBACKS] = "a thread for callbacks",
        [KOLO_THREAD_OF_CHANNELS] = "the thread that moves a server's channels, or stops them",
    };
    if (thread_of <= most) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_USAGE,
                     "%s: not from a callback or a release() on %s: it would wait for that thread itself", call,
                     names[thread_of]);
}

kolo_status_t kolo_rendezvous_check_given(const char *call, const char *what, const void *argument)
{
    return argument ? KOLO_OK : kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the %s is NULL", call, what);
}

kolo_status_t kolo_rendezvous_check_handle(const char *call, const char *what, const void *handle)
{
    KOLO_TRY(kolo_rendezvous_check_given(call, what, handle));
    if (KOLO_LIKELY(kolo_slot_lives(handle))) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a %s, or one whose life has ended", call, handle,
                     what);
}

kolo_status_t kolo_rendezvous_check_timeout(const char *call, int timeout_ms)
{
    if (timeout_ms >= 0) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the time-out is %d ms; 0 is for ever", call, timeout_ms);
}

kolo_status_t kolo_rendezvous_check_process(const kolo_rendezvous_manager_t manager)
{
    if (manager->remote == NULL || kolo_process_forks() == manager->forks) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_USAGE,
                     "the server of %s belongs to the process that this one was forked from; only there can it be "
                     "used, stopped and destroyed",
                     atomic_load(&manager->named) ? manager->task : "a task");
}
