/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor's books: which steps were committed, by how many ranks, with which samples, and whether all workers
 * say the same of a step.
 */
#include "job.h"

#include "shards.h"

#include <stdio.h>

void books_take(job_t *job, int index, const told_t *n)
{
    process_t *p = &job->process[index];
    if (n->step == 0 || n->step > job->steps || n->step <= p->reported) {
        job_fail(job, "worker %d reports step %llu after step %llu: it was made twice", index,
                 (unsigned long long)n->step, (unsigned long long)p->reported);
        return;
    }
    if (p->reported && n->step != p->reported + 1)
        job_fail(job, "worker %d has left out the steps before %llu", index, (unsigned long long)n->step);
    p->reported = n->step;
    step_t *s = &job->step[n->step - 1];
    if (s->reports && s->hash != n->hash)
        job_fail(job, "step %llu: worker %d has other weights than the others", (unsigned long long)n->step, index);
    s->reports++;
    s->hash = n->hash;
    if (n->samples) { /* 0: from one that took the step over from another, which reports it */
        if (s->samples && s->samples != n->samples)
            job_fail(job, "step %llu: the workers disagree about its samples", (unsigned long long)n->step);
        if (!s->samples) s->at_ns = now_ns() - job->start_ns;
        s->samples = n->samples;
        s->loss = n->loss;
        if (!s->nranks) s->nranks = n->nranks;
    }
    if (n->step > job->known) job->known = n->step;
}

uint64_t job_lost_steps(const job_t *job)
{
    uint64_t lost = 0;
    int per_epoch = shards_steps(job->images);
    for (uint64_t i = 0; i < job->steps; i++) {
        span_t span = shards_step(job->images, (int)(i % (uint64_t)per_epoch));
        lost += !job->step[i].reports || job->step[i].samples != span.end - span.first;
    }
    return lost;
}

int job_ranks(const job_t *job, char *text, size_t room)
{
    int before = job->options->workers;
    size_t at = (size_t)snprintf(text, room, "%d", before);
    for (uint64_t i = 0; i <= job->steps && at < room; i++) {
        int now = i < job->steps ? job->step[i].nranks : job->ranks_now; /* behind the last step is the test */
        if (now == before || now == 0) continue;
        at += (size_t)snprintf(text + at, room - at, "->%d", now);
        before = now;
    }
    return before;
}
