/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "cma", and what becomes of it where the kernel permits no copies.
 */
#include "wire/cma/cma.h"
#include "wire/conformance.h"
#include "wire/mapped.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

static int falls_away_to_shm(kolo_kit_t *kit)
{
    kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR, .depth = 2, .slot_bytes = 64};
    kolo_tx_t tx;
    kolo_rx_t rx;
    KIT_CHECK(kolo_wire_choose(&kit->ctx, &(kolo_conn_spec_t){.writer = 0, .reader = 1}) == &kolo_wire_cma);
    KIT_CHECK(kolo_kit_connect_both(kit, spec, &tx, &rx) == KOLO_OK);
    KIT_CHECK(tx.ops == &kolo_wire_shm && rx.ops == &kolo_wire_shm);
    KIT_CHECK(!(tx.caps & KOLO_CAP_REF) && !(rx.caps & KOLO_CAP_REF) && (tx.caps & KOLO_CAP_FANOUT));
    kolo_tx_post(&tx, 0, 0, 1, 2);
    KIT_CHECK(kolo_kit_wait_rx(kit, &rx, 30000) == KOLO_OK && kolo_rx_header(&rx)->operation == 2);
    kolo_rx_release(&rx);
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_tx_fini(&tx);
    kolo_rx_fini(&rx);
    return 0;
}

/* Without privileges, processes that may not be dumped may not be read by others of their user either. */
static int without_permission(void)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        kolo_kit_job_t job = {.name = "falls_away_to_shm",
                              .nranks = 2,
                              .processes = true,
                              .limit_s = 20,
                              .run = falls_away_to_shm,
                              .dies = -1};
        if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(2);
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) _exit(3);
        int failed = kolo_conformance_force(&kolo_wire_cma) != KOLO_OK || kolo_kit_run(&job) != 0;
        printf("%s %-9s %s\n", failed ? "FAILED" : "ok    ", "processes", job.name);
        fflush(NULL);
        _exit(failed);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    int failed = KOLO_KIT_TSAN ? 0 : without_permission();
    return failed +
           kolo_conformance_main(&kolo_wire_cma, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
