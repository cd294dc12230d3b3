/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors that belong to the library. A child of fork() gets copies of all of them, and a copy of a socket
 * keeps a connection alive when this process has died: its peers would learn of that from silence only. So the
 * library's descriptors are known here, and a child lets go of them as its first act, whether it ever calls the
 * library or not.
 *
 * None has a number from 0 to 2: in a program that was started without a standard output, what it prints must not
 * go into a socket.
 */
#ifndef KOLO_BASE_FILE_FDS_H
#define KOLO_BASE_FILE_FDS_H

#include <sys/socket.h>

/* Moves fd to a number above 2, with close-on-exec; a higher one stays what it is. Returns the number, or -1 and an
 * errno; fd -1: -1, and errno stays. Any thread, like all below. */
int kolo_fd_above(int fd);
/* Does the same, and fd belongs to the library until kolo_fd_close(): in a child of fork() its number leads nowhere
 * (a socket that is not connected). For log files and the like, which a child goes on using, kolo_fd_above() is
 * enough. */
int kolo_fd_own(int fd);
/* Calls socket(2) or accept4(2), close-on-exec and without waiting; no fork() comes between making and owning. */
int kolo_fd_socket(int domain, int type);
int kolo_fd_accept(int listener, struct sockaddr *from, socklen_t *bytes);
/* Returns another number for an owned descriptor, or -1 and an errno. */
int kolo_fd_copy(int fd);
/* Marks descriptors that another library opened and closes: the number stays. */
void kolo_fd_mark(int fd);
void kolo_fd_unmark(int fd);
/* Closes any descriptor, owned or not. Keeps errno. */
void kolo_fd_close(int fd);
/* Has handlers of fork() registered. The ones of whoever calls this before it registers its own may hold their
 * locks while they call the functions above. */
void kolo_fd_watch_forks(void);

#endif
