/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gathers with a deadline of the caller's, and by a second thread of the rank.
 */
#ifndef KOLO_OOB_GATHER_H
#define KOLO_OOB_GATHER_H

#include "oob/oob.h"

/* Does kolo_oob_all_gather() until then; 0: the job's time limit. */
kolo_status_t kolo_oob_all_gather_until(kolo_oob_t *oob, void *table, size_t bytes, uint64_t deadline_ns);
/* Does that of this number in a series of its own: for a thread that may be at it beside another's all-gathers. */
kolo_status_t kolo_oob_all_gather_beside(kolo_oob_t *oob, uint64_t number, void *table, size_t bytes);

#endif
