/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel that has one end of each of two queues of the host. See queue_end.cu.
 */
#ifndef KOLO_TESTS_SEAMS_QUEUE_END_H
#define KOLO_TESTS_SEAMS_QUEUE_END_H

#include "wire/end.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    kolo_rx_end_t rx;
    kolo_tx_end_t tx;
    uint64_t slots;               /* how many to pass on */
    KOLO_END_WORD(uint64_t) stop; /* not 0: end at once */
} echo_t;

/* `memory` holds both queues and `echo`. start: puts the addresses in for whoever runs the kernel, and starts it.
 * Both return NULL, or what failed. */
const char *echo_start(void *memory, size_t bytes, echo_t *echo);
const char *echo_join(void);

#ifdef __cplusplus
}
#endif
#endif
