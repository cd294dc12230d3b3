/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of this room, for the list of all (comm/params.c).
 */
#ifndef KOLO_RENDEZVOUS_PARAMS_H
#define KOLO_RENDEZVOUS_PARAMS_H

#include "base/params.h"

extern const kolo_param_table_t kolo_rendezvous_params;

#endif
