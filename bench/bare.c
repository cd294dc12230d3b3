/* SPDX-License-Identifier: Apache-2.0
 *
 * What two processes of one host can move at most, without any protocol: the bound beside the figures of
 * bench/run_rendezvous. The sender's bytes always come from the same place, the receiver's go to `depth` places in
 * turn, as with kolo-perf rendezvous.
 *
 *     bench-bare tcp BYTES VALUES DEPTH N     N connections over loopback, a thread at each end; a part of each
 * value bench-bare copy BYTES VALUES DEPTH N    N threads copy, past the caches from 16 MB on Prints us per value.
 */
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define MOST       16
#define AT_ONCE    (8u << 20)
#define PAST_CACHE (16u << 20)

typedef struct {
    int fd;
    char *to, *from; /* of this part */
    size_t bytes, stride;
    long values;
    int depth;
} part_t;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static char *memory(size_t bytes)
{
    char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) die("bench-bare: mmap");
    (void)madvise(m, bytes, MADV_HUGEPAGE);
    memset(m, 1, bytes);
    return m;
}

static char *place_of(const part_t *p, long value)
{
    return p->to + (size_t)(value % p->depth) * p->stride;
}

static void *send_part(void *arg)
{
    const part_t *p = arg;
    for (long v = 0; v < p->values; v++)
        for (size_t at = 0; at < p->bytes;) {
            size_t left = p->bytes - at;
            ssize_t n = send(p->fd, p->from + at, left < AT_ONCE ? left : AT_ONCE, 0);
            if (n <= 0) die("bench-bare: send");
            at += (size_t)n;
        }
    return NULL;
}

static void *receive_part(void *arg)
{
    const part_t *p = arg;
    for (long v = 0; v < p->values; v++)
        for (size_t at = 0; at < p->bytes;) {
            size_t left = p->bytes - at;
            ssize_t n = recv(p->fd, place_of(p, v) + at, left < AT_ONCE ? left : AT_ONCE, 0);
            if (n <= 0) die("bench-bare: recv");
            at += (size_t)n;
        }
    return NULL;
}

static void copy_past_cache(char *to, const char *from, size_t bytes)
{
#ifdef __SSE2__
    for (size_t at = 0; at + 16 <= bytes; at += 16)
        _mm_stream_si128((__m128i *)(void *)(to + at), _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

static void *copy_part(void *arg)
{
    const part_t *p = arg;
    for (long v = 0; v < p->values; v++) {
        if (p->stride >= PAST_CACHE)
            copy_past_cache(place_of(p, v), p->from, p->bytes);
        else
            memcpy(place_of(p, v), p->from, p->bytes);
    }
    return NULL;
}

static void run_parts(void *(*run)(void *), part_t *parts, int n)
{
    pthread_t threads[MOST];
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, run, &parts[i]) != 0) die("bench-bare: a thread");
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}

/* Connected pairs: [0] sends, [1] receives. */
static void connect_all(int (*fds)[2], int n)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, MOST) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        die("bench-bare: listen");
    for (int i = 0; i < n; i++) {
        fds[i][0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fds[i][0] < 0 || connect(fds[i][0], (struct sockaddr *)&address, length) != 0)
            die("bench-bare: connect");
        fds[i][1] = accept(listener, NULL, NULL);
        if (fds[i][1] < 0) die("bench-bare: accept");
        for (int k = 0; k < 2; k++) (void)setsockopt(fds[i][k], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    close(listener);
}

static double over_tcp(size_t bytes, long values, int depth, int n)
{
    int fds[MOST][2], status = 0;
    part_t parts[MOST];
    char word = 'g';
    connect_all(fds, n);
    pid_t child = fork();
    if (child < 0) die("bench-bare: fork");
    if (child == 0) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *room = memory(child ? bytes * (size_t)depth : bytes);
    for (int i = 0; i < n; i++) {
        size_t first = bytes / (size_t)n * (size_t)i,
               last = i + 1 < n ? bytes / (size_t)n * (size_t)(i + 1) : bytes;
        parts[i] = (part_t){fds[i][child != 0], room + first, room + first, last - first, bytes, values, depth};
    }
    if (child == 0) { /* begins when it is told to: its memory is there by then */
        if (read(fds[0][0], &word, 1) != 1) _exit(1);
        run_parts(send_part, parts, n);
        _exit(0);
    }
    double start = now_us();
    if (write(fds[0][1], &word, 1) != 1) die("bench-bare: write");
    run_parts(receive_part, parts, n);
    double us = (now_us() - start) / (double)values;
    if (waitpid(child, &status, 0) != child || status != 0) die("bench-bare: the other process");
    return us;
}

static double by_copies(size_t bytes, long values, int depth, int n)
{
    part_t parts[MOST];
    char *from = memory(bytes), *to = memory(bytes * (size_t)depth);
    size_t each = bytes / (size_t)n / 64 * 64;
    for (int i = 0; i < n; i++) {
        size_t first = each * (size_t)i, last = i + 1 < n ? first + each : bytes;
        parts[i] = (part_t){-1, to + first, from + first, last - first, bytes, values, depth};
    }
    double start = now_us();
    run_parts(copy_part, parts, n);
    return (now_us() - start) / (double)values;
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 6 ? strtoull(argv[2], NULL, 10) : 0;
    long values = argc == 6 ? strtol(argv[3], NULL, 10) : 0;
    int depth = argc == 6 ? (int)strtol(argv[4], NULL, 10) : 0, n = argc == 6 ? (int)strtol(argv[5], NULL, 10) : 0;
    bool tcp = argc == 6 && strcmp(argv[1], "tcp") == 0, copy = argc == 6 && strcmp(argv[1], "copy") == 0;
    if ((!tcp && !copy) || bytes < MOST || values < 1 || depth < 1 || n < 1 || n > MOST) {
        fprintf(stderr, "usage: bench-bare tcp|copy BYTES VALUES DEPTH N\n");
        return 2;
    }
    printf("%.3f\n", (tcp ? over_tcp : by_copies)(bytes, values, depth, n));
    return 0;
}
