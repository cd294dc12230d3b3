/* SPDX-License-Identifier: Apache-2.0
 *
 * The first bytes of a socket, before it is known who is at its other end: read and sent without waiting. For those
 * who make connections step by step (the sockets provider, the plug-in for NCCL).
 */
#ifndef KOLO_LINK_FIRST_H
#define KOLO_LINK_FIRST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns 1: all of `want` is there; 0: not yet; -1: the other end has gone (errno). */
int kolo_link_read_up_to(int fd, void *at, uint32_t *got, uint32_t want);
/* Sends bytes that find room in any socket that has sent nothing yet. false: they did not go (errno). */
bool kolo_link_say(int fd, const void *bytes, size_t n);

#endif
