/* SPDX-License-Identifier: Apache-2.0
 *
 * For the tests of the tcp wire: two contexts in one process (or, after fork, in two) and connections between them
 * over real sockets on loopback, without the bootstrap.
 */
#ifndef KOLO_WIRE_TCP_TESTING_H
#define KOLO_WIRE_TCP_TESTING_H

#include "base/test_time.h"
#include "wire/queue.h"
#include "wire/tcp/tcp.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    kolo_wire_ctx_t ctx;
    kolo_member_t member;
    kolo_peer_card_t cards[2];
    _Atomic uint32_t abort;
} test_side_t;

typedef struct {
    test_side_t w, r; /* rank 0 writes, rank 1 reads */
} test_pair_t;

static inline void side_init(test_side_t *s, int rank)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 2; i++) {
        snprintf(s->cards[i].host_name, sizeof s->cards[i].host_name, "host%d", i);
        s->cards[i].nwires = 1;
        s->cards[i].wires[0] = kolo_wire_id(&kolo_wire_tcp);
    }
    s->member = (kolo_member_t){.rank = rank, .nranks = 2, .peers = s->cards};
    s->ctx.member = &s->member;
    s->ctx.abort = &s->abort;
    assert_int_equal(kolo_waker_init(&s->ctx.waker, NULL), KOLO_OK);
}

static inline void pair_init(test_pair_t *p)
{
    const kolo_param_table_t *tables[] = {&kolo_tcp_params};
    assert_int_equal(kolo_params_load(tables, 1, NULL, NULL), KOLO_OK);
    side_init(&p->w, 0);
    side_init(&p->r, 1);
}

static inline void pair_fini(test_pair_t *p)
{
    assert_null(*kolo_wire_state(&p->w.ctx, &kolo_wire_tcp));
    assert_null(*kolo_wire_state(&p->r.ctx, &kolo_wire_tcp));
    assert_int_equal(p->w.ctx.nsteps + p->r.ctx.nsteps, 0);
    kolo_waker_fini(&p->w.ctx.waker);
    kolo_waker_fini(&p->r.ctx.waker);
}

/* Makes a[i] and b[i] the two ends of a TCP connection over loopback. */
static inline void make_sockets(int *a, int *b, int n)
{
    for (int i = 0; i < n; i++) {
        struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof addr;
        int one = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(l >= 0);
        assert_int_equal(bind(l, (void *)&addr, sizeof addr), 0);
        assert_int_equal(listen(l, 1), 0);
        assert_int_equal(getsockname(l, (void *)&addr, &len), 0);
        a[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(a[i], (void *)&addr, sizeof addr), 0);
        b[i] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        assert_true(b[i] >= 0);
        close(l);
        for (int k = 0; k < 2; k++) {
            int fd = k ? a[i] : b[i];
            assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        }
    }
}

static inline kolo_conn_spec_t test_spec(uint32_t depth, uint32_t slot_bytes, uint64_t start)
{
    return (kolo_conn_spec_t){.kind = KOLO_CONN_PAIR,
                              .proto = KOLO_PROTO_SIMPLE,
                              .writer = 0,
                              .reader = 1,
                              .depth = depth,
                              .slot_bytes = slot_bytes,
                              .start = start};
}

static inline void test_fill_tx(kolo_tx_t *tx, const kolo_conn_spec_t *spec)
{
    *tx = kolo_queue_tx(spec, 1, &kolo_wire_tcp);
}
static inline void test_fill_rx(kolo_rx_t *rx, const kolo_conn_spec_t *spec)
{
    *rx = kolo_queue_rx(spec, &kolo_wire_tcp);
}

/* Makes plain sockets of descriptors. */
static inline void plain(kolo_socket_t *sockets, const int *fds, int n)
{
    for (int i = 0; i < n; i++) sockets[i] = (kolo_socket_t){.fd = fds[i]};
}

static inline void tx_open(test_side_t *side, kolo_tx_t *tx, const kolo_conn_spec_t *spec, const int *fds, int n)
{
    kolo_wire_card_t card;
    kolo_socket_t sockets[KOLO_TCP_MAX_SOCKETS];
    plain(sockets, fds, n);
    test_fill_tx(tx, spec);
    assert_int_equal(kolo_wire_tcp.tx_setup(&side->ctx, tx, &card), KOLO_OK);
    assert_int_equal(kolo_tcp_conn_attach(tx->priv, &side->ctx, sockets, (uint32_t)n), KOLO_OK);
}
static inline void rx_open(test_side_t *side, kolo_rx_t *rx, const kolo_conn_spec_t *spec, const int *fds, int n)
{
    kolo_wire_card_t card;
    kolo_socket_t sockets[KOLO_TCP_MAX_SOCKETS];
    plain(sockets, fds, n);
    test_fill_rx(rx, spec);
    assert_int_equal(kolo_wire_tcp.rx_setup(&side->ctx, rx, &card), KOLO_OK);
    assert_int_equal(kolo_tcp_conn_attach(rx->priv, &side->ctx, sockets, (uint32_t)n), KOLO_OK);
}

static inline int open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Returns a byte of message n at offset i, different for neighbours. */
static inline unsigned char test_byte(uint64_t n, size_t i)
{
    return (unsigned char)(n * 31 + i * 7 + (i >> 8) + 1);
}
static inline void test_put(void *at, uint64_t n, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)at)[i] = test_byte(n, i);
}
static inline void test_verify(const void *at, uint64_t n, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)at)[i] != test_byte(n, i))
            fail_msg("message %llu byte %zu", (unsigned long long)n, i);
}

#endif
