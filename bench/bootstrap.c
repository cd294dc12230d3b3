/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a job takes to come together: ranks as threads of a few processes on loopback, each doing
 * kolo_oob_open() and one kolo_member_gather(), while strangers knock on every listening socket and one rank comes
 * late. Prints a row per rank count, each the median of a few runs, with its ratio to the row before. The
 * straggler's delay is a constant that flatters ratios, so they are taken from the time without it.
 */
#include "base/clock.h"
#include "base/log.h"
#include "member/member.h"
#include "oob/internal.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PROCESSES 16
#define STACK_BYTES   (96u << 10)

typedef struct {
    uint64_t last_ns, rss_bytes, oob_bytes;
    int failed;
    char text[512];
} process_t;

typedef struct {
    kolo_unique_id_t id;
    process_t process[MAX_PROCESSES];
} shared_t;

typedef struct {
    int rank, nranks, straggler_ms;
    shared_t *shared;
    kolo_oob_t *oob;
    kolo_member_t member;
    kolo_status_t status;
    uint64_t done_ns;
    char text[512];
    pthread_t thread;
} rank_t;

static int processes = 4, straggler_ms = 300, knocks_per_s = 500, repeats = 3;

/* ---- ranks ---- */

static void *rank_main(void *arg)
{
    rank_t *me = arg;
    kolo_peer_card_t card;
    if (me->straggler_ms > 0) poll(NULL, 0, me->straggler_ms);
    kolo_oob_config_t config = {me->rank, me->nranks, 1, &me->shared->id, 120000, NULL, "bench"};
    me->status = kolo_oob_open(&config, &me->oob);
    if (me->status == KOLO_OK) me->status = kolo_member_fill_card(&card, me->rank, -1);
    if (me->status == KOLO_OK) me->status = kolo_member_gather(me->oob, &card, &me->member);
    if (me->status != KOLO_OK) snprintf(me->text, sizeof(me->text), "%s", kolo_error_text());
    me->done_ns = kolo_now_ns();
    return NULL;
}

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0, total;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%lu %lu", &total, &pages) != 2) pages = 0;
    if (file != NULL) fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void start_ranks(rank_t *ranks, int index, int count, int nranks, shared_t *shared)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (int i = 0; i < count; i++) {
        int rank = index * count + i;
        ranks[i] = (rank_t){.rank = rank, .nranks = nranks, .shared = shared};
        if (rank == nranks / 2 + 1) ranks[i].straggler_ms = straggler_ms;
        if (pthread_create(&ranks[i].thread, &attr, rank_main, &ranks[i]) != 0) {
            fprintf(stderr, "cannot start the thread of rank %d\n", rank);
            _exit(1);
        }
    }
    pthread_attr_destroy(&attr);
}

/* One process with its share of the ranks; go: starts them, out: the process may end. */
static void process_main(int index, int nranks, shared_t *shared, int go, int out)
{
    char byte;
    int count = nranks / processes;
    process_t *result = &shared->process[index];
    rank_t *ranks = calloc((size_t)count, sizeof(*ranks));
    uint64_t before = resident_bytes();
    if (ranks == NULL || read(go, &byte, 1) != 1) _exit(1);
    start_ranks(ranks, index, count, nranks, shared);
    for (int i = 0; i < count; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].done_ns > result->last_ns) result->last_ns = ranks[i].done_ns;
        if (ranks[i].status != KOLO_OK && result->failed++ == 0)
            memcpy(result->text, ranks[i].text, sizeof(result->text));
        if (ranks[i].oob != NULL) result->oob_bytes += kolo_oob_memory(ranks[i].oob);
    }
    result->rss_bytes = resident_bytes() - before;
    if (write(out, "d", 1) != 1 || read(go, &byte, 1) != 1) _exit(1); /* all are done before one leaves */
    for (int i = 0; i < count; i++) {
        kolo_oob_fini(ranks[i].oob);
        kolo_member_fini(&ranks[i].member);
    }
    free(ranks);
    _exit(0);
}

/* ---- strangers ---- */

/* Ports of this machine on which somebody listens, as the kernel lists them. */
static int listening_ports(uint16_t *ports, int max)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/net/tcp", "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        unsigned port, state;
        if (sscanf(line, "%*d: %*x:%x %*x:%*x %x", &port, &state) == 2 && state == 0x0a && count < max)
            ports[count++] = (uint16_t)port;
    }
    if (file != NULL) fclose(file);
    return count;
}

static void knock(const kolo_address_t *root, uint16_t port, unsigned kind, int *open_fds, unsigned *at)
{
    uint8_t garbage[200];
    kolo_address_t address = *root;
    struct sockaddr_storage sa;
    if (port != 0) kolo_address_set_port(&address, port);
    socklen_t bytes = kolo_address_to_sockaddr(&address, &sa);
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    int rc = connect(fd, (struct sockaddr *)&sa, bytes);
    (void)rc;
    for (size_t i = 0; i < sizeof(garbage); i++) garbage[i] = (uint8_t)rand();
    if (kind % 3 == 0) send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (kind % 3 == 1) { /* half open: says nothing for a while */
        int *slot = &open_fds[(*at)++ % 64];
        if (*slot >= 0) close(*slot);
        *slot = fd;
        return;
    }
    close(fd);
}

static void strangers_main(const kolo_unique_id_t *unique_id)
{
    enum { MAX_PORTS = 8192 };
    static uint16_t ports[MAX_PORTS];
    kolo_id_t id;
    int open_fds[64], nports = 0;
    unsigned at = 0;
    memset(open_fds, 0xff, sizeof(open_fds));
    if (knocks_per_s <= 0 || kolo_id_decode(unique_id, &id) != NULL) _exit(0);
    for (unsigned i = 0;; i++) {
        if (i % 1024 == 64) nports = listening_ports(ports, MAX_PORTS);
        knock(&id.address, i % 2 != 0 && nports > 0 ? ports[rand() % nports] : 0, i, open_fds, &at);
        poll(NULL, 0, KOLO_MAX(1000 / knocks_per_s, 1));
    }
}

/* ---- one run ---- */

/* A run leaves ten closed connections per rank in TIME_WAIT, each of them a local port less for the next
 * minute: a few runs of 2,048 ranks use them up. So each gets a network of its own, where that is allowed,
 * with all ports from 1024 on: in the default range the last of 25,000 connections from one address would
 * search long for theirs. */
static void new_network(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    static bool told;
    if (unshare(CLONE_NEWNET) == 0) {
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0) {
            close(fd);
            FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "we");
            if (range != NULL) {
                fputs("1024 65535", range);
                fclose(range);
            }
            return;
        }
        fprintf(stderr, "cannot bring up the loopback of a new network\n");
        exit(1);
    }
    if (!told) printf("# all runs share one network: not allowed to make others\n");
    told = true;
}

typedef struct {
    double seconds, cpu_seconds, rss_per_rank, oob_per_rank;
} result_t;

static double children_cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static bool collect(const shared_t *shared, int nranks, uint64_t start_ns, result_t *result)
{
    uint64_t last = 0, rss = 0, oob = 0;
    bool good = true;
    for (int i = 0; i < processes; i++) {
        const process_t *p = &shared->process[i];
        last = KOLO_MAX(last, p->last_ns);
        rss += p->rss_bytes;
        oob += p->oob_bytes;
        if (p->failed > 0) fprintf(stderr, "process %d: %d ranks failed, one: %s\n", i, p->failed, p->text);
        good = good && p->failed == 0;
    }
    result->seconds = (double)(last - start_ns) * 1e-9;
    result->rss_per_rank = (double)rss / nranks;
    result->oob_per_rank = (double)oob / nranks;
    return good;
}

static void write_all(int fd, int count)
{
    for (int i = 0; i < count; i++)
        if (write(fd, "g", 1) != 1) exit(1);
}

static bool run(int nranks, result_t *result)
{
    int go[2], out[2];
    char byte;
    pid_t children[MAX_PROCESSES], strangers;
    shared_t *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(go) != 0 || pipe(out) != 0) return false;
    double cpu = children_cpu();
    new_network();
    for (int i = 0; i < processes; i++)
        if ((children[i] = fork()) == 0) process_main(i, nranks, shared, go[0], out[1]);
    if (kolo_id_create(&shared->id) != KOLO_OK) {
        fprintf(stderr, "%s\n", kolo_error_text());
        exit(1);
    }
    if ((strangers = fork()) == 0) strangers_main(&shared->id);
    uint64_t start = kolo_now_ns();
    write_all(go[1], processes);
    for (int i = 0; i < processes; i++)
        if (read(out[0], &byte, 1) != 1) exit(1);
    kill(strangers, SIGKILL);
    waitpid(strangers, NULL, 0);
    write_all(go[1], processes);
    for (int i = 0; i < processes; i++) waitpid(children[i], NULL, 0);
    kolo_root_stop_all();
    bool good = collect(shared, nranks, start, result);
    result->cpu_seconds = children_cpu() - cpu;
    for (int i = 0; i < 2; i++) {
        close(go[i]);
        close(out[i]);
    }
    munmap(shared, sizeof(*shared));
    return good;
}

/* ---- the table ---- */

static int compare(const void *a, const void *b)
{
    double x = ((const result_t *)a)->seconds, y = ((const result_t *)b)->seconds;
    return x < y ? -1 : x > y;
}

static int table(int from, int to)
{
    double before = 0;
    int failed = 0;
    printf("%7s %9s %14s %7s %9s %13s %13s\n", "ranks", "seconds", "- straggler", "ratio", "cpu s", "oob KB/rank",
           "rss KB/rank");
    for (int nranks = from; nranks <= to; nranks *= 2) {
        result_t all[16], middle;
        for (int i = 0; i < repeats; i++)
            if (!run(nranks, &all[i])) return 1;
        qsort(all, (size_t)repeats, sizeof(all[0]), compare);
        middle = all[repeats / 2];
        double own = middle.seconds - straggler_ms * 1e-3;
        printf("%7d %9.3f %14.3f ", nranks, middle.seconds, own);
        if (before > 0)
            printf("%7.2f ", own / before);
        else
            printf("%7s ", "");
        printf("%9.3f %13.1f %13.1f\n", middle.cpu_seconds, middle.oob_per_rank / 1024, middle.rss_per_rank / 1024);
        fflush(stdout);
        before = own;
    }
    return failed;
}

int main(int argc, char **argv)
{
    int from = 128, to = 2048, c;
    struct utsname system;
    while ((c = getopt(argc, argv, "f:t:p:s:k:r:")) != -1) {
        int value = atoi(optarg != NULL ? optarg : "");
        if (c == 'f')
            from = value;
        else if (c == 't')
            to = value;
        else if (c == 'p')
            processes = KOLO_MIN(KOLO_MAX(value, 1), MAX_PROCESSES);
        else if (c == 's')
            straggler_ms = value;
        else if (c == 'k')
            knocks_per_s = value;
        else if (c == 'r')
            repeats = KOLO_MIN(KOLO_MAX(value, 1), 16);
        else {
            fprintf(stderr, "usage: bench-bootstrap [-f first] [-t last] [-p processes] [-s straggler ms] "
                            "[-k knocks per second] [-r repeats]\n");
            return 2;
        }
    }
    kolo_log_open("error", KOLO_LOG_TEXT, NULL);
    kolo_meet_process_init();
    uname(&system);
    printf("# bench-bootstrap -f %d -t %d -p %d -s %d -k %d -r %d\n", from, to, processes, straggler_ms,
           knocks_per_s, repeats);
    printf("# Kolo %d.%d.%d, %s %s %s, %d cores, loopback, authentication %s\n", KOLO_VERSION_MAJOR,
           KOLO_VERSION_MINOR, KOLO_VERSION_PATCH, system.sysname, system.release, system.machine, kolo_cores(),
           KOLO_AUTH_STRONG ? "by libsodium" : "weak");
    return table(from, to);
}
