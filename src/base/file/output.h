/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that the user names for what is written: logs, timelines, tables, saved records.
 */
#ifndef KOLO_BASE_FILE_OUTPUT_H
#define KOLO_BASE_FILE_OUTPUT_H

#include <stddef.h>
#include <stdio.h>

/* Opens a file for writing, made if it is not there; `flags`: O_TRUNC or O_APPEND. A symbolic link in its place is
 * followed if it is this user's or root's (/dev/stderr): where others may make files, theirs would lead what is
 * written to any file of this user. Never waits: a pipe has a reader, or is refused. Returns the descriptor, above
 * 2; -1: errno says why, and `why` in words. Any thread. */
int kolo_output_open(const char *path, int flags, char *why, size_t bytes);
/* The same as a stream, emptied. NULL: as -1 above. */
FILE *kolo_output_fopen(const char *path, char *why, size_t bytes);

#endif
