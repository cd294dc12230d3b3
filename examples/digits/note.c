/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes between monitor and workers; see digits.h.
 */
#include "digits.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

#define NOTE_MAGIC 0x64696769u

bool note_send(int fd, note_t *note)
{
    ssize_t n;
    note->magic = NOTE_MAGIC;
    do n = send(fd, note, sizeof *note, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *note;
}

int note_receive(int fd, note_t *note, bool wait)
{
    ssize_t n;
    do n = recv(fd, note, sizeof *note, MSG_TRUNC | (wait ? 0 : MSG_DONTWAIT));
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n != (ssize_t)sizeof *note || note->magic != NOTE_MAGIC) return -1;
    note->text[sizeof note->text - 1] = '\0';
    return 1;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
