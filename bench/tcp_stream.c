/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of the tcp wire beside iperf3 and beside a bare ping-pong, interleaved, between two network
 * namespaces joined by a veth pair (or on loopback). Needs root, ip(8), iperf3(1). The namespaces belong to the two
 * child processes and vanish with them.
 *
 *     tcp_stream [--rounds 5] [--seconds 1] [--slot 262144] [--depth 8] [--buffer 67108864] [--loopback] [--staged]
 * [--many]
 *
 * --staged sends from and receives into the slots instead of the user's memory; --many adds iperf3 with 2 and 4
 * streams. Environment: KOLO_TCP_*.
 */
#include "link/link.h"
#include "meet/id.h"
#include "wire/queue.h"
#include "wire/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT       5990
#define IPERF_PORT 5991
#define MAX_ROUNDS 64
#define PINGS      20000

static int rounds = 5, seconds = 1, loopback, staged, many;
static uint32_t slot_bytes = 262144, depth = 8;
static size_t buffer_bytes = 64 << 20;
static int control; /* to the other process: one byte per step keeps the two together */

static void die(const char *what)
{
    fprintf(stderr, "tcp_stream: %s: %s\n", what, errno ? strerror(errno) : kolo_error_text());
    exit(1);
}
static void need(kolo_status_t st)
{
    if (st == KOLO_OK) return;
    errno = 0;
    die(kolo_status_string(st));
}

static double exchange(double mine)
{
    double other = 0;
    if (write(control, &mine, sizeof mine) != (ssize_t)sizeof mine ||
        recv(control, &other, sizeof other, MSG_WAITALL) != (ssize_t)sizeof other)
        die("the other process has gone");
    return other;
}

/* ---- sockets ---- */

static const char *address(int rank)
{
    return loopback ? "127.0.0.1" : rank == 0 ? "10.77.0.1" : "10.77.0.2";
}

static void open_sockets(int rank, int *fds, int n)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, listener = -1;
    inet_pton(AF_INET, address(1), &a.sin_addr);
    if (rank == 1) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (void *)&a, sizeof a) != 0 || listen(listener, 64) != 0) die("listen");
    }
    exchange(0);
    for (int i = 0; i < n; i++) {
        if (rank == 1) {
            fds[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        } else {
            fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (connect(fds[i], (void *)&a, sizeof a) != 0) die("connect");
        }
        if (fds[i] < 0 || fcntl(fds[i], F_SETFL, O_NONBLOCK) != 0) die("socket");
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    if (listener >= 0) close(listener);
}

/* ---- two connections, one each way ---- */

typedef struct {
    kolo_wire_ctx_t ctx;
    kolo_tx_t tx;
    kolo_rx_t rx;
} link_t;

/* With KOLO_TCP_SECURITY, as after a handshake whose nonces are zeros. */
static void seal_sockets(kolo_socket_t *sockets, const int *fds, int n, bool dialled)
{
    const kolo_key_t key = {{1}};
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES];
    kolo_claim_t claim = {.purpose = KOLO_PURPOSE_STREAM};
    kolo_meet_process_init();
    if (!kolo_seal_answer(kolo_seal_offer(), &claim.security)) die("seal");
    memset(greeting, 0, sizeof greeting);
    need(kolo_auth_hello(&(kolo_shake_t){&key, 0, greeting, hello}, &claim));
    memset(hello + 24, 0, sizeof hello - 24); /* the nonce and the proof, which differ at the other end */
    for (int i = 0; i < n; i++) {
        sockets[i].fd = fds[i];
        need(kolo_seal_create(&key, greeting, hello, dialled, &sockets[i].seal));
    }
}

static void link_open(link_t *l, int rank)
{
    int n = 1 << kolo_tcp_param_sockets, fds[2][KOLO_TCP_MAX_SOCKETS];
    kolo_wire_card_t card;
    memset(l, 0, sizeof *l);
    need(kolo_waker_init(&l->ctx.waker, NULL));
    for (int d = 0; d < 2; d++) open_sockets(rank, fds[d], n);
    kolo_conn_spec_t out = {.kind = KOLO_CONN_PAIR,
                            .proto = KOLO_PROTO_SIMPLE,
                            .writer = rank,
                            .reader = 1 - rank,
                            .depth = depth,
                            .slot_bytes = slot_bytes},
                     in = out;
    in.writer = 1 - rank;
    in.reader = rank;
    l->tx = kolo_queue_tx(&out, 1, &kolo_wire_tcp);
    l->rx = kolo_queue_rx(&in, &kolo_wire_tcp);
    need(kolo_wire_tcp.rx_setup(&l->ctx, &l->rx, &card));
    need(kolo_wire_tcp.tx_setup(&l->ctx, &l->tx, &card));
    kolo_socket_t sockets[KOLO_TCP_MAX_SOCKETS];
    seal_sockets(sockets, fds[rank], n, true);
    need(kolo_tcp_conn_attach(l->tx.priv, &l->ctx, sockets, (uint32_t)n));
    seal_sockets(sockets, fds[1 - rank], n, false);
    need(kolo_tcp_conn_attach(l->rx.priv, &l->ctx, sockets, (uint32_t)n));
}
static void link_close(link_t *l)
{
    kolo_wire_tcp.tx_fini(&l->tx);
    kolo_wire_tcp.rx_fini(&l->rx);
    kolo_waker_fini(&l->ctx.waker);
}

#define WAIT_UNTIL(link, condition)                                                                                \
    do {                                                                                                           \
        kolo_wait_t w;                                                                                             \
        kolo_wait_init(&w, NULL, 0, NULL, NULL, 2);                                                                \
        w.wakers[0] = &(link)->ctx.waker;                                                                          \
        w.nwakers = 1;                                                                                             \
        while (!(condition)) {                                                                                     \
            need(kolo_wire_step(&(link)->ctx));                                                                    \
            if (condition) break;                                                                                  \
            need(kolo_wait_pause(&w));                                                                             \
        }                                                                                                          \
        kolo_wait_end(&w);                                                                                         \
    } while (0)

static void send_slot(link_t *l, const char *from, uint32_t bytes, uint64_t operation)
{
    WAIT_UNTIL(l, kolo_tx_ready(&l->tx));
    if (staged) {
        memcpy(kolo_tx_payload(&l->tx), from, bytes);
        kolo_tx_post(&l->tx, bytes, 0, 0, operation);
    } else {
        need(kolo_wire_tcp.tx_post_from(&l->tx, from, bytes, 0, operation));
    }
    need(kolo_wire_step(&l->ctx));
}

/* Gigabits per second as the reader counts them. */
static double run_stream(link_t *l, int rank, char *buffer)
{
    size_t at = 0;
    uint64_t start = kolo_now_ns(), end = start + (uint64_t)seconds * KOLO_NS_PER_S, bytes = 0;
    bool last = false;
    while (!last) {
        if (rank == 0) {
            last = kolo_now_ns() >= end;
            send_slot(l, buffer + at, slot_bytes, last);
        } else {
            if (!staged) kolo_wire_tcp.rx_expect(&l->rx, 0, buffer + at, slot_bytes);
            WAIT_UNTIL(l, kolo_rx_ready(&l->rx));
            if (kolo_rx_payload(&l->rx) != buffer + at) memcpy(buffer + at, kolo_rx_payload(&l->rx), slot_bytes);
            last = kolo_rx_header(&l->rx)->operation == 1;
            bytes += slot_bytes;
            kolo_rx_release(&l->rx);
        }
        at = at + 2 * slot_bytes <= buffer_bytes ? at + slot_bytes : 0;
    }
    if (rank == 0) WAIT_UNTIL(l, kolo_tx_sent(&l->tx));
    return exchange((double)bytes * 8 / (double)(kolo_now_ns() - start));
}

/* Half a round trip in microseconds. */
static double run_pings(link_t *l, int rank)
{
    uint64_t start = kolo_now_ns();
    for (int i = 0; i < PINGS; i++) {
        for (int half = 0; half < 2; half++) {
            if (half == rank) {
                WAIT_UNTIL(l, kolo_tx_ready(&l->tx));
                memset(kolo_tx_payload(&l->tx), i, 8);
                kolo_tx_post(&l->tx, 8, 0, 0, 0);
            } else {
                WAIT_UNTIL(l, kolo_rx_ready(&l->rx));
                kolo_rx_release(&l->rx);
            }
        }
    }
    if (rank == 1) WAIT_UNTIL(l, kolo_tx_sent(&l->tx));
    return (double)(kolo_now_ns() - start) / 2e3 / PINGS;
}

/* The same with nothing around: the frame's 40 bytes, one send, and a receive that never sleeps. One
 * socket for both ways carries acknowledgements for free; kolo has one each way. */
static double run_bare_pings(int out, int in, int rank)
{
    char frame[40] = {0};
    uint64_t start = kolo_now_ns();
    for (int i = 0; i < PINGS; i++) {
        for (int half = 0; half < 2; half++) {
            if (half == rank) {
                if (send(out, frame, sizeof frame, 0) != (ssize_t)sizeof frame) die("send");
                continue;
            }
            for (size_t have = 0; have < sizeof frame;) {
                ssize_t n = recv(in, frame + have, sizeof frame - have, 0);
                if (n == 0 || (n < 0 && errno != EAGAIN)) die("recv");
                if (n > 0) have += (size_t)n;
            }
        }
    }
    return (double)(kolo_now_ns() - start) / 2e3 / PINGS;
}

/* Returns when it listens, as it says itself. The pipe of its output holds what it says of all rounds. */
static pid_t start_iperf(void)
{
    char port[16], said[4096] = "";
    int ends[2];
    size_t have = 0;
    if (pipe(ends) || fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) < 0) die("pipe");
    pid_t server = fork();
    if (server == 0) {
        snprintf(port, sizeof port, "%d", IPERF_PORT);
        if (dup2(ends[1], 1) < 0 || dup2(ends[1], 2) < 0) exit(1);
        execlp("iperf3", "iperf3", "-s", "-i", "0", "--forceflush", "-p", port, (char *)NULL);
        exit(127);
    }
    close(ends[1]);
    while (!strstr(said, "Server listening")) {
        ssize_t n = read(ends[0], said + have, sizeof said - 1 - have);
        if (n <= 0) die("iperf3 -s does not start");
        have += (size_t)n;
    }
    return server;
}

/* Blocking send and recv of the same memory in the same pieces: iperf3 sends one small piece of memory again and
 * again, which stays in the cache, so this is the limit for a message as large as `buffer_bytes`. */
static double run_bare_stream(int fd, int rank, char *buffer)
{
    size_t at = 0;
    uint64_t start = kolo_now_ns(), end = start + (uint64_t)seconds * KOLO_NS_PER_S, bytes = 0;
    if (fcntl(fd, F_SETFL, 0) != 0) die("fcntl");
    for (;;) {
        if (rank == 0 && kolo_now_ns() >= end) break;
        ssize_t n = rank == 0 ? send(fd, buffer + at, slot_bytes, MSG_NOSIGNAL)
                              : recv(fd, buffer + at, slot_bytes, MSG_WAITALL);
        if (n < 0) die("bare stream");
        bytes += (uint64_t)n;
        if (n < (ssize_t)slot_bytes) break;
        at = at + 2 * slot_bytes <= buffer_bytes ? at + slot_bytes : 0;
    }
    if (rank == 0) shutdown(fd, SHUT_WR);
    return exchange((double)bytes * 8 / (double)(kolo_now_ns() - start));
}

/* Runs iperf3's client here against the server in the other process. */
static double run_iperf(int rank, int streams)
{
    double gbits = 0;
    if (rank == 0) {
        char command[256], line[512];
        const char *cc = kolo_tcp_param_congestion;
        snprintf(command, sizeof command, "iperf3 -c %s -p %d -t %d -P %d -f g %s %s 2>&1", address(1), IPERF_PORT,
                 seconds, streams, cc ? "-C" : "", cc ? cc : "");
        FILE *f = popen(command, "r");
        if (!f) die("popen");
        while (fgets(line, sizeof line, f)) {
            char *unit = strstr(line, " Gbits/sec");
            if (!unit || !strstr(line, "receiver") || (streams > 1 && !strstr(line, "SUM"))) continue;
            while (unit > line && unit[-1] != ' ') unit--;
            gbits = atof(unit);
        }
        pclose(f);
    }
    exchange(0);
    return gbits;
}

/* ---- the run ---- */

enum { IPERF1, KOLO, BARE_STREAM, IPERF2, IPERF4, BARE1, BARE, PING, ROWS };
static const char *const names[ROWS] = {
    "iperf3, 1 stream               Gbit/s",  "kolo, 1 connection             Gbit/s",
    "bare send and recv, same memory Gbit/s", "iperf3, 2 streams              Gbit/s",
    "iperf3, 4 streams              Gbit/s",  "bare ping-pong, one socket     us    ",
    "bare ping-pong, one each way   us    ",  "kolo ping-pong                 us    "};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void run_rank(int rank)
{
    static double results[ROWS][MAX_ROUNDS];
    const kolo_param_table_t *tables[] = {&kolo_base_params, &kolo_link_params, &kolo_tcp_params};
    need(kolo_params_load(tables, 3, NULL, NULL));
    char *buffer = mmap(NULL, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) die("mmap");
    memset(buffer, rank + 1, buffer_bytes);
    pid_t server = rank == 1 ? start_iperf() : -1;
    exchange(0);
    for (int r = 0; r < rounds; r++) {
        link_t l;
        int fds[2];
        results[IPERF1][r] = run_iperf(rank, 1);
        link_open(&l, rank);
        results[KOLO][r] = run_stream(&l, rank, buffer);
        results[PING][r] = run_pings(&l, rank);
        exchange(0);
        link_close(&l);
        open_sockets(rank, fds, 2);
        results[BARE1][r] = run_bare_pings(fds[0], fds[0], rank);
        results[BARE][r] = run_bare_pings(fds[rank], fds[1 - rank], rank);
        results[BARE_STREAM][r] = run_bare_stream(fds[0], rank, buffer);
        close(fds[0]);
        close(fds[1]);
        if (!many) continue;
        results[IPERF2][r] = run_iperf(rank, 2);
        results[IPERF4][r] = run_iperf(rank, 4);
    }
    if (rank == 1) {
        kill(server, SIGTERM);
        waitpid(server, NULL, 0);
        exit(0);
    }
    for (int k = 0; k < ROWS; k++) {
        if (!many && (k == IPERF2 || k == IPERF4)) continue;
        qsort(results[k], (size_t)rounds, sizeof(double), compare);
        printf("%s  median %7.2f  min %7.2f  max %7.2f\n", names[k], results[k][rounds / 2], results[k][0],
               results[k][rounds - 1]);
    }
    printf("KOLO_TCP_SECURITY=%s: stream %.2f Gbit/s, 8 bytes one way %.2f us\n",
           kolo_seal_mode_name(kolo_seal_offer()), results[KOLO][rounds / 2], results[PING][rounds / 2]);
    printf("ratio kolo / iperf3 %.2f   kolo / bare stream %.2f   ratio kolo / bare latency %.2f   (%d rounds, "
           "slots %u x %u, %s, %s)\n",
           results[KOLO][rounds / 2] / results[IPERF1][rounds / 2],
           results[KOLO][rounds / 2] / results[BARE_STREAM][rounds / 2],
           results[PING][rounds / 2] / results[BARE][rounds / 2], rounds, depth, slot_bytes,
           staged ? "staged" : "direct", loopback ? "loopback" : "veth");
    exit(0);
}

static void join_namespaces(int rank, pid_t other)
{
    char command[256];
    if (rank == 0) {
        snprintf(command, sizeof command,
                 "ip link set lo up && ip link add kolo0 type veth peer name kolo0 netns %d && "
                 "ip addr add 10.77.0.1/24 dev kolo0 && ip link set kolo0 up",
                 (int)other);
        if (system(command) != 0) die("cannot make a veth pair");
        exchange(0);
        exchange(0);
    } else {
        exchange(0);
        if (system("ip link set lo up && ip addr add 10.77.0.2/24 dev kolo0 && ip link set kolo0 up") != 0)
            die("cannot set up the veth pair");
        exchange(0);
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"rounds", 1, NULL, 'r'}, {"seconds", 1, NULL, 's'}, {"slot", 1, NULL, 'b'},
        {"depth", 1, NULL, 'd'},  {"buffer", 1, NULL, 'B'},  {"loopback", 0, NULL, 'l'},
        {"staged", 0, NULL, 'S'}, {"many", 0, NULL, 'm'},    {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'r') rounds = KOLO_MIN(KOLO_MAX(atoi(optarg), 1), MAX_ROUNDS);
        if (c == 's') seconds = atoi(optarg);
        if (c == 'b') slot_bytes = (uint32_t)atoi(optarg);
        if (c == 'd') depth = (uint32_t)atoi(optarg);
        if (c == 'B') buffer_bytes = (size_t)atoll(optarg);
        if (c == 'l') loopback = 1;
        if (c == 'S') staged = 1;
        if (c == 'm') many = 1;
        if (c == '?') return 2;
    }
    int pair[2];
    pid_t pids[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) die("socketpair");
    for (int rank = 0; rank < 2; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) die("fork");
        if (pids[rank] != 0) continue;
        control = pair[rank];
        close(pair[1 - rank]);
        if (!loopback && unshare(CLONE_NEWNET) != 0) {
            fprintf(stderr, "tcp_stream: no network namespaces here (root?)\n");
            exit(77);
        }
        pid_t other = (pid_t)exchange((double)getpid());
        if (!loopback) join_namespaces(rank, other);
        run_rank(rank);
    }
    close(pair[0]);
    close(pair[1]);
    int status, worst = 0;
    for (int i = 0; i < 2; i++)
        if (wait(&status) > 0) worst = KOLO_MAX(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    return worst;
}
