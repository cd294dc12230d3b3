/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "shm", once more where /dev/shm is full and cannot be written.
 */
#include "wire/conformance.h"
#include "wire/mapped.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child's own view of the file system, with a /dev/shm of one page that is read-only. */
static bool spoil_dev_shm(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "size=4096") == 0;
}

static int without_dev_shm(void)
{
    static char name[] = "wire_shm_test", only[] = "huge";
    char *args[] = {name, only, NULL};
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!spoil_dev_shm()) {
            printf("skip   a /dev/shm that cannot be used: %s\n", strerror(errno));
            fflush(NULL);
            _exit(0);
        }
        printf("with a /dev/shm that cannot be used, ");
        status = kolo_conformance_main(&kolo_wire_shm, KOLO_CONFORM_PROCESSES, 2, args);
        fflush(NULL);
        _exit(status);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    int failed = without_dev_shm();
    return failed +
           kolo_conformance_main(&kolo_wire_shm, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
