/* SPDX-License-Identifier: Apache-2.0
 *
 * What the errors of a rank say of another one: "rank 2 (host a, process 71) was lost", or "rank 2 was lost". The
 * words are those of src/comm/lost.c and src/member/, wherever the program prints them on its stderr.
 */
#include "job.h"

#include <stdlib.h>
#include <string.h>

static const char lost[] = " was lost";

/* Reads the words behind "rank ". */
static bool is_named(const char *at, int *rank, int *pid)
{
    char *end;
    const long number = strtol(at, &end, 10);
    if (end == at || number < 0 || number > INT32_MAX) return false;
    *rank = (int)number;
    *pid = 0;
    if (strncmp(end, " of ", 4) == 0) end += 4 + strcspn(end + 4, " "); /* a communicator */
    if (strncmp(end, " (host ", 7) == 0) {
        const char *close = strchr(end, ')'), *process = strstr(end, ", process ");
        if (close == NULL || process == NULL || process > close) return false;
        *pid = atoi(process + 10);
        end = (char *)(uintptr_t)close + 1;
    }
    return strncmp(end, lost, sizeof lost - 1) == 0;
}

static void look(job_cause_t *c)
{
    c->line[c->used] = '\0';
    for (const char *at = c->line; !c->named && (at = strstr(at, "rank ")) != NULL;) {
        at += 5;
        c->named = is_named(at, &c->rank, &c->pid);
    }
}

void job_cause_feed(job_cause_t *c, const void *data, size_t bytes)
{
    const char *text = data;
    for (size_t i = 0; i < bytes && !c->named; i++) {
        if (text[i] != '\n') c->line[c->used++] = text[i] != '\0' ? text[i] : ' ';
        if (text[i] != '\n' && c->used < sizeof c->line - 1) continue;
        look(c);
        if (text[i] == '\n') {
            c->used = 0;
        } else { /* a long line: the words may lie across */
            c->used = JOB_CAUSE_WORDS;
            memmove(c->line, c->line + sizeof c->line - 1 - JOB_CAUSE_WORDS, JOB_CAUSE_WORDS);
        }
    }
}

void job_cause_end(job_cause_t *c)
{
    if (!c->named) look(c); /* a last line without its end */
}

/* The process that p's errors name; NULL: none. The rank is one of the communicator, which may be a part of the
 * job: the number of the process says more, where it is one of ours. */
static const process_t *named_by(const job_t *job, const process_t *p)
{
    const process_t *by_rank = NULL, *by_pid = NULL;
    if (!p->cause.named) return NULL;
    for (int i = 0; i < job->nprocesses; i++) {
        const process_t *q = job->processes[i];
        if (q->id == p->cause.rank) by_rank = q;
        if (p->cause.pid > 0 && q->pid == p->cause.pid && (by_pid == NULL || q->id == p->cause.rank)) by_pid = q;
    }
    const process_t *found = by_pid != NULL ? by_pid : by_rank;
    return found != p ? found : NULL;
}

const process_t *job_cause_of(const job_t *job, const process_t *p, bool *may_come)
{
    const process_t *at = p;
    *may_come = false;
    for (int i = 0; i < job->nprocesses; i++) {
        const process_t *named = named_by(job, at);
        if (named != NULL && !named->ended) *may_come = true;
        if (named == NULL || !named->ended || named->status == 0) return at;
        at = named;
    }
    return p; /* they name each other */
}
