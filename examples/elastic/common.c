/* SPDX-License-Identifier: Apache-2.0
 *
 * See elastic.h: frames, the clock, and the work that the service does.
 */
#include "elastic.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define FRAME_MAGIC 0x656c6173u /* every frame begins with it */

bool frame_send(int fd, void *frame, size_t bytes)
{
    const uint32_t magic = FRAME_MAGIC;
    ssize_t n;
    memcpy(frame, &magic, sizeof magic);
    do n = send(fd, frame, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes;
}

int frame_receive(int fd, void *frame, size_t bytes)
{
    uint32_t magic;
    ssize_t n;
    do n = recv(fd, frame, bytes, MSG_DONTWAIT | MSG_TRUNC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n != (ssize_t)bytes) return -1;
    memcpy(&magic, frame, sizeof magic);
    return magic == FRAME_MAGIC ? 1 : -1;
}

bool batch_is_sound(const batch_t *b)
{
    return b->magic == FRAME_MAGIC && b->count <= MOST_REQUESTS && b->order <= ORDER_STOP &&
           b->excluded_count <= MOST_WORKERS;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t work_share(uint64_t value, int rank, int nranks)
{
    uint64_t sum = 0;
    for (uint64_t term = (uint64_t)rank; term < WORK_TERMS; term += (uint64_t)nranks) sum += mix(value + term);
    return sum;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
