/* SPDX-License-Identifier: Apache-2.0
 *
 * What must be this user's alone. Memory that holds keys; and files: they hold a secret, or an id, which brings a
 * process into the job of whoever wrote it.
 */
#ifndef KOLO_BASE_FILE_PRIVATE_H
#define KOLO_BASE_FILE_PRIVATE_H

#include <stddef.h>

/* Opens such a file for reading. It has to be a regular file, not behind a symbolic link, that belongs to this
 * process's user and that nobody else may touch; or to root, whose files others may not write and only its group
 * may read (a secret that was mounted into a container). Returns the descriptor; -1: errno says why (EPERM: it is
 * somebody else's, or open to others), and `why` in words. Never waits. Any thread. */
int kolo_private_open(const char *path, char *why, size_t bytes);

/* Allocates zeroed memory for keys, which core files leave out; or NULL. free: wipes it; NULL is fine. */
void *kolo_private_alloc(size_t bytes);
void kolo_private_free(void *memory, size_t bytes);

#endif
