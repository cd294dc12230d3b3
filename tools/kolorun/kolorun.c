/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun: starts the ranks of a program on one or more hosts, shows their output line by line, and brings the job
 * to an end; or, as its own agent, starts those of one host. The rooms: job/ is the loop and what becomes of a
 * failure, elastic/ the jobs whose ranks come and go, store/ a store of small values for the ranks.
 */
#include "elastic/elastic.h"
#include "kolorun_agent.h"
#include "output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* mpirun -n 2 kolorun -n 2 ...: two jobs, which is hardly meant. Only the first of them says it. */
static void warn_inside(void)
{
    static const struct {
        const char *rank, *size, *name;
    } launchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"},
                     {"PMI_RANK", "PMI_SIZE", "mpiexec"},
                     {"KOLO_RANK", "KOLO_NRANKS", "kolorun"}};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const char *rank = getenv(launchers[i].rank), *size = getenv(launchers[i].size);
        if (!rank || !size || strcmp(rank, "0") != 0 || atoi(size) < 2) continue;
        fprintf(stderr,
                "kolorun: %s has started %s of these, and each starts a job of its own: one launcher is enough\n",
                launchers[i].name, size);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--agent") == 0) return kolorun_agent_main();
    kolorun_options_t options;
    kolo_tool_output("kolorun");
    int status = kolorun_options_parse(argc, argv, &options);
    if (status < 0 && options.check_build) status = kolorun_check_build();
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what loses its agent and its guard comes to us */
    if (status < 0) warn_inside();
    if (status < 0) status = options.elastic.min > 0 ? elastic_run(&options) : job_run_fixed(&options);
    kolorun_options_fini(&options);
    kolorun_end_orphans();
    return status;
}
