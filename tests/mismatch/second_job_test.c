/* SPDX-License-Identifier: Apache-2.0
 *
 * Two jobs with one KOLO_COMM_ID: both processes are rank 0, and both are told so at once, also the one that has
 * called the root of the other, which leaves as soon as it knows.
 */
#include <kolo/kolo.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS   10
#define LIMIT_S  60     /* of a rank here: it ends at once or not before its own limit */
#define LIMIT_MS 600000 /* of the library */

static int free_port(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, bytes) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &bytes) != 0) {
        perror("a free port");
        exit(1);
    }
    close(fd);
    return ntohs(sa.sin_port);
}

static void set_up(const char *secret_file)
{
    unsigned char secret[32];
    char at[40];
    FILE *f = fopen(secret_file, "we");
    if (!f || getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret) exit(1);
    for (size_t i = 0; i < sizeof secret; i++) fprintf(f, "%02x", secret[i]);
    fclose(f);
    snprintf(at, sizeof at, "127.0.0.1:%d", free_port());
    setenv("KOLO_COMM_ID", at, 1);
    setenv("KOLO_COMM_SECRET_FILE", secret_file, 1);
}

/* Ends with the process, as the program of a user that fails does. */
static void rank_zero(void)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_unique_id_t id;
    kolo_comm_t comm;
    alarm(LIMIT_S);
    config.init_timeout_ms = LIMIT_MS;
    kolo_status_t status = kolo_get_unique_id(&id);
    if (status == KOLO_OK) status = kolo_comm_init_rank(&comm, 2, id, 0, &config);
    const char *text = kolo_get_last_error(NULL);
    if (status == KOLO_ERR_MISMATCH && strstr(text, "checked in twice")) exit(0);
    fprintf(stderr, "status %d: %s\n", (int)status, text);
    exit(1);
}

int main(void)
{
    char secret_file[] = "/tmp/kolo-second-job.XXXXXX";
    int fd = mkstemp(secret_file), wrong = 0;
    if (fd < 0) return 1;
    close(fd);
    for (int round = 0; round < ROUNDS && !wrong; round++) {
        pid_t pids[2];
        set_up(secret_file);
        for (int i = 0; i < 2; i++)
            if ((pids[i] = fork()) == 0) rank_zero();
        for (int i = 0, status; i < 2; i++)
            if (waitpid(pids[i], &status, 0) != pids[i] || status != 0) wrong++;
    }
    if (wrong) fprintf(stderr, "%d of two ranks 0 were not told that there are two of them\n", wrong);
    unlink(secret_file);
    return wrong ? 1 : 0;
}
