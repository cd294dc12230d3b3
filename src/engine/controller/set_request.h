/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests about process sets, in words and checked (set_request.c).
 */
#ifndef KOLO_ENGINE_CONTROLLER_SET_REQUEST_H
#define KOLO_ENGINE_CONTROLLER_SET_REQUEST_H

#include "engine/request.h"

/* Prints "0, 4, 5 and 7 more". */
void kolo_sets_list(const int *ranks, int shown, int count, char *buf, size_t bytes);
void kolo_sets_show(const kolo_tensor_request_t *request, char *buf, size_t bytes); /* "ranks 0, 4, 5", "set 3" */
bool kolo_sets_request_is_good(const kolo_tensor_request_t *request, int nranks);
/* Tells whether its rank has tensors outstanding in the set that is to be removed. */
bool kolo_sets_is_busy(const kolo_tensor_request_t *request);

#endif
