/* SPDX-License-Identifier: Apache-2.0
 *
 * Where libnccl.so.2 is.
 */
#ifndef KOLO_TOOLS_KOLORUN_NCCL_H
#define KOLO_TOOLS_KOLORUN_NCCL_H

#include <stdbool.h>
#include <stddef.h>

/* The path of the library that stands in for NCCL; false: `why` says where it was looked for. */
bool kolorun_nccl_find(char *path, size_t bytes, char *why, size_t why_bytes);

#endif
