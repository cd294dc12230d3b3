/* SPDX-License-Identifier: Apache-2.0
 *
 * Status and error text. The function that decides that something is an error calls kolo_fail() with a sentence for
 * the person at 3 a.m. (which rank, where, what was awaited, what to do); its callers pass the status on with
 * KOLO_TRY.
 */
#ifndef KOLO_BASE_STATUS_H
#define KOLO_BASE_STATUS_H

#include <kolo/kolo.h>

#define KOLO_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define KOLO_ERROR_TEXT_BYTES  1024

/* Stores the text as the calling thread's last error, logs it at level info, returns `status`. */
kolo_status_t kolo_fail(kolo_status_t status, const char *fmt, ...) KOLO_PRINTF(2, 3);
/* Does the same, with ": <strerror(err)>" appended. */
kolo_status_t kolo_fail_errno(kolo_status_t status, int err, const char *fmt, ...) KOLO_PRINTF(3, 4);
/* Puts a sentence in front of the thread's last error ("comm train rank 3: ..."); returns `status`. */
kolo_status_t kolo_fail_prefix(kolo_status_t status, const char *fmt, ...) KOLO_PRINTF(2, 3);

/* Returns the calling thread's last error text ("" if none); valid until its next failure. */
const char *kolo_error_text(void);
void kolo_error_clear(void);

/* Returns from the calling function when `expr` is not KOLO_OK. */
#define KOLO_TRY(expr)                                                                                             \
    do {                                                                                                           \
        kolo_status_t kolo_try_status = (expr);                                                                    \
        if (kolo_try_status != KOLO_OK) return kolo_try_status;                                                    \
    } while (0)

#define KOLO_LIKELY(x)   __builtin_expect(!!(x), 1)
#define KOLO_UNLIKELY(x) __builtin_expect(!!(x), 0)

#endif
