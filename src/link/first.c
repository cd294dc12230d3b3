/* SPDX-License-Identifier: Apache-2.0
 *
 * See first.h.
 */
#include "link/first.h"

#include <errno.h>
#include <sys/socket.h>

int kolo_link_read_up_to(int fd, void *at, uint32_t *got, uint32_t want)
{
    while (*got < want) {
        ssize_t n = recv(fd, (char *)at + *got, want - *got, MSG_DONTWAIT);
        if (n == 0) errno = ECONNRESET;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) return -1;
        *got += (uint32_t)n;
    }
    return 1;
}

bool kolo_link_say(int fd, const void *bytes, size_t n)
{
    ssize_t sent;
    do sent = send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0 && (size_t)sent < n) errno = EAGAIN;
    return sent == (ssize_t)n;
}
