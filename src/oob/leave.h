/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has taken leave (kolo_oob_take_leave()).
 */
#ifndef KOLO_OOB_LEAVE_H
#define KOLO_OOB_LEAVE_H

#include "oob/oob.h"

/* Tells whether this rank has said that it is done: that its connections end, however, is no loss. Any thread. */
bool kolo_oob_has_left(kolo_oob_t *oob, int rank);

#endif
