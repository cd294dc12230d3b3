/* SPDX-License-Identifier: Apache-2.0
 *
 * See elastic.h. An elastic job as a policy of the loop in ../job.
 */
#include "elastic.h"

#include <stdio.h>

#define CLOSE_S 1.0

static bool prepare(job_t *job)
{
    elastic_t *e = (elastic_t *)job;
    discovery_init(&e->discovery, &job->options->elastic, &job->options->way.files, &job->err);
    if (job->options->elastic.discover == NULL) elastic_take_hosts(e, &job->options->hosts);
    return true;
}

static bool begin(job_t *job)
{
    elastic_fill_slots((elastic_t *)job);
    return true;
}

static void turn(job_t *job)
{
    elastic_t *e = (elastic_t *)job;
    if (job->ending || e->finishing)
        discovery_fini(&e->discovery); /* its output and its timer wake nothing any more */
    else if (discovery_progress(&e->discovery))
        elastic_take_hosts(e, &e->discovery.answer);
    job_drop_ended(job);
    job_close_agents(job, false, CLOSE_S);
    if (!job->ending) elastic_fill_slots(e);
    elastic_plan(e);
}

static double next_s(const job_t *job)
{
    const elastic_t *e = (const elastic_t *)job;
    double next = discovery_next_s(&e->discovery);
    if (!job->ending) kolorun_sooner(&next, elastic_next_start_s(e));
    if (!job->ending && !e->finishing) kolorun_sooner(&next, elastic_next_plan_s(e));
    return next;
}

static nfds_t polls(const job_t *job, struct pollfd *p)
{
    discovery_polls(&((const elastic_t *)job)->discovery, p);
    return POLICY_POLLS;
}

static bool expects(const job_t *job)
{
    return !job->ending && !((const elastic_t *)job)->finishing;
}

static void finish(job_t *job)
{
    elastic_t *e = (elastic_t *)job;
    if (!job->ending && e->first_failure != 0 && job->exit_status == 0)
        kolorun_sink_printf(&job->err, "all is done; %d change%s of the ranks, the first failure: %s", e->resets,
                            e->resets == 1 ? "" : "s", e->first_failure_text);
    discovery_fini(&e->discovery);
}

int elastic_run(kolorun_options_t *options)
{
    static const policy_t policy = {.one = "process",
                                    .many = "processes",
                                    .restarts = true,
                                    .prepare = prepare,
                                    .begin = begin,
                                    .ended = elastic_ended,
                                    .lost = elastic_lost,
                                    .file = elastic_file,
                                    .turn = turn,
                                    .next_s = next_s,
                                    .polls = polls,
                                    .expects = expects,
                                    .finish = finish};
    elastic_t e = {.plan = 0};
    return job_run(&e.job, &policy, options);
}
