/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that has forked a child, which sleeps and never calls exec, dies: run by `hosts`, one rank a host, so that
 * only connections can tell of it. The child has copies of all sockets, and must not keep them alive.
 *
 *     hosts -q 2 1 fork_net HOW [CHILDREN]     HOW: kill (SIGKILL), exit (_exit(0)), daemon, or meet (nobody dies),
 * or hole (the uplink of the last rank loses long packets: it is the one to go)
 *
 * With `daemon` the parent ends and the child goes on with the communicator: it is told that it must not.
 */
#include "net.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT     1000
#define CHILD_S   20
#define TOLD_MS   4000 /* by silence it takes ten seconds */
#define VICTIM    1
#define TEXT_MAX  512
#define OPERATION 50

static bool own_address; /* the one that the other host has, too, is all there is */
static char note_file[420];

static int start(kolo_comm_t *comm)
{
    kolo_unique_id_t id;
    const char *me = getenv("KOLO_RANK"), *all = getenv("KOLO_NRANKS"), *file = getenv("KOLO_ID_FILE");
    CHECK(me && all && file);
    rank = atoi(me);
    nranks = atoi(all);
    snprintf(id_file, sizeof id_file, "%s", file);
    snprintf(note_file, sizeof note_file, "%s.note", file);
    CHECK(share_id(&id) == 0);
    kolo_status_t status = kolo_comm_init_rank(comm, nranks, id, rank, NULL);
    if (own_address) {
        CHECK(status != KOLO_OK);
        CHECK(rank == 0 || strstr(kolo_get_last_error(NULL), "also an address of this host (interface zz9)"));
        exit(0);
    }
    CHECK(status == KOLO_OK);
    return 0;
}

/* Appears whole, or not at all. */
static void note(const char *text)
{
    char temp[440];
    snprintf(temp, sizeof temp, "%s.%d", note_file, (int)getpid());
    FILE *f = fopen(temp, "w");
    if (!f || fprintf(f, "%s\n", text) < 0 || fclose(f) != 0 || rename(temp, note_file) != 0) abort();
}

static bool read_note(char text[TEXT_MAX])
{
    FILE *f = fopen(note_file, "r");
    bool read = f && fgets(text, TEXT_MAX, f);
    if (f) fclose(f);
    return read;
}

static void child_of_daemon(kolo_comm_t comm, int32_t *data)
{
    char text[TEXT_MAX];
    kolo_status_t status = kolo_all_reduce(data, data, COUNT, KOLO_INT32, KOLO_SUM, comm, NULL);
    snprintf(text, sizeof text, "%d %.400s", (int)status, kolo_get_last_error(NULL));
    note(text);
    _exit(0);
}

static void die(const char *how, int children, kolo_comm_t comm, int32_t *data)
{
    char text[32];
    for (int i = 0; i < children; i++) {
        const bool raw = strcmp(how, "clone") == 0; /* no handler of fork() runs */
        if ((raw ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork()) != 0) continue;
        setsid(); /* who started the rank ends its process group with it */
        alarm(CHILD_S);
        for (int fd = 0; fd < 3; fd++) close(fd); /* who reads the test's output waits for their end */
        if (strcmp(how, "daemon") == 0) child_of_daemon(comm, data);
        for (;;) pause();
    }
    snprintf(text, sizeof text, "%.3f", now_ms());
    if (strcmp(how, "daemon") != 0) note(text);
    if (strcmp(how, "kill") == 0 || strcmp(how, "clone") == 0) kill(getpid(), SIGKILL);
    _exit(0);
}

static int leave(kolo_comm_t comm)
{
    CHECK(kolo_comm_finalize(comm) == KOLO_OK);
    CHECK(kolo_comm_destroy(comm) == KOLO_OK);
    return 0;
}

/* From now on packets of over 600 bytes that leave this host are lost in the bridge, and nobody is told. The
 * interface has to cut its packets by itself, for the bridge lets long ones pass that are still to be cut. */
static int dig_hole(void)
{
    static const uint32_t off[] = {ETHTOOL_STSO, ETHTOOL_SGSO};
    char command[200];
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0 && getenv("HOSTS_BRIDGE_PID"));
    for (int i = 0; i < 2; i++) {
        struct ethtool_value value = {.cmd = off[i], .data = 0};
        struct ifreq request = {.ifr_data = (void *)&value};
        snprintf(request.ifr_name, sizeof request.ifr_name, "eth0");
        CHECK(ioctl(fd, SIOCETHTOOL, &request) == 0);
    }
    close(fd);
    snprintf(command, sizeof command, "nsenter -t %s -n ip link set host%d mtu 600", getenv("HOSTS_BRIDGE_PID"),
             rank);
    CHECK(system(command) == 0);
    return 0;
}

static int judge_hole(kolo_comm_t comm, kolo_status_t status)
{
    const char *why = kolo_get_last_error(comm);
    printf("rank %d: %s\n", rank, why);
    if (rank == nranks - 1) {
        CHECK(status == KOLO_ERR_PARTITION);
    } else {
        char who[32];
        snprintf(who, sizeof who, "rank %d (", nranks - 1);
        CHECK(status == KOLO_ERR_REMOTE && strstr(why, who) && strstr(why, "was lost"));
    }
    CHECK(kolo_comm_abort(comm) == KOLO_OK);
    return 0;
}

/* The loss itself, before the words on the connection that showed it: those may well say to look at the network. */
static bool blames_network(const char *why)
{
    const char *what = strstr(why, "network"), *end = strstr(why, "was under way");
    return what && (!end || what < end);
}

int main(int argc, char **argv)
{
    kolo_comm_t comm;
    static int32_t data[COUNT];
    char text[TEXT_MAX] = "";
    kolo_status_t status = KOLO_OK;
    const char *how = argc > 1 ? argv[1] : "kill";
    own_address = strcmp(how, "own_address") == 0;
    int children = argc > 2 ? atoi(argv[2]) : 1;
    if (start(&comm)) return 1;
    for (int i = 0; status == KOLO_OK; i++) {
        status = kolo_all_reduce(data, data, COUNT, KOLO_INT32, KOLO_SUM, comm, NULL);
        if (strcmp(how, "meet") == 0 && i == OPERATION) return leave(comm);
        if (strcmp(how, "hole") == 0) {
            if (rank == nranks - 1 && i == OPERATION && dig_hole()) return 1;
            continue;
        }
        if (rank == VICTIM && i == OPERATION) die(how, children, comm, data);
    }
    if (strcmp(how, "hole") == 0) return judge_hole(comm, status);
    double told = now_ms();
    const char *why = kolo_get_last_error(comm);
    printf("rank %d: %s\n", rank, why);
    CHECK(status == KOLO_ERR_REMOTE);
    CHECK(strstr(why, "rank 1") && !strstr(why, "silent") && !blames_network(why));
    CHECK(kolo_comm_abort(comm) == KOLO_OK);
    for (double end = told + 10000; !read_note(text) && now_ms() < end;) continue;
    if (strcmp(how, "daemon") == 0) {
        printf("rank %d: the child was told: %s", rank, text);
        CHECK(atoi(text) == KOLO_ERR_INVALID_USAGE && strstr(text, "forked from"));
        return 0;
    }
    printf("rank %d: %.1f ms after the death\n", rank, told - atof(text));
    CHECK(atof(text) > 0 && told - atof(text) < TOLD_MS);
    return 0;
}
