/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker processes: starting them, telling them, noticing their end. Each has two sockets to here and dies with
 * this process, however that ends.
 */
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child, between fork and exec. */
static void become_worker(const monitor_t *m, const peer_t *p, pid_t parent, const int *fds)
{
    char index[16], batch[16], init[16], beat[16], suspect[16], verdict[16];
    sigset_t none;
    snprintf(index, sizeof index, "%d", p->index);
    snprintf(batch, sizeof batch, "%d", m->batch_ms);
    snprintf(init, sizeof init, "%d", m->init_ms);
    snprintf(beat, sizeof beat, "%d", m->beat_ms);
    snprintf(suspect, sizeof suspect, "%d", m->silent_ms / 3);
    snprintf(verdict, sizeof verdict, "%d", m->silent_ms);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *const argv[] = {(char *)"elastic", (char *)"--worker", index, batch, init, beat, NULL};
    if (getppid() != parent || !hosts_enter(p->host)) _exit(1);
    /* to numbers above both first: fds may hold 3 and 4 in the other order */
    int control = fcntl(fds[0], F_DUPFD, FRONT_FD + 1), front = fcntl(fds[1], F_DUPFD, FRONT_FD + 1);
    if (control < 0 || front < 0 || dup2(control, CONTROL_FD) < 0 || dup2(front, FRONT_FD) < 0) _exit(1);
    close(control);
    close(front);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (p->host >= 0) { /* hosts that vanish are found before a batch times out; what the user has set stays */
        setenv("KOLO_SUSPECT_MS", suspect, 0);
        setenv("KOLO_VERDICT_MS", verdict, 0);
    }
    setpgid(0, 0); /* Ctrl-C is for the monitor */
    execv("/proc/self/exe", argv);
    _exit(127);
}

peer_t *fleet_spawn(monitor_t *m)
{
    peer_t *p = NULL;
    int control[2], front[2];
    for (int i = 0; i < MOST_PEERS && !p; i++)
        if (m->peers[i].state == PEER_NONE) p = &m->peers[i];
    if (!p || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control)) return NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, front)) {
        close(control[0]);
        close(control[1]);
        return NULL;
    }
    *p = (peer_t){.state = PEER_STARTING, .index = m->made_peers, .rank = -1, .next_rank = -1};
    p->host = m->linked ? p->index % 2 : -1;
    p->control = control[0];
    p->front = front[0];
    p->started_ns = p->heard_ns = now_ns();
    const int fds[] = {control[1], front[1]};
    pid_t parent = getpid();
    fflush(NULL);
    p->pid = fork();
    if (p->pid == 0) become_worker(m, p, parent, fds);
    close(control[1]);
    close(front[1]);
    if (p->pid < 0) {
        close(control[0]);
        close(front[0]);
        *p = (peer_t){.state = PEER_NONE, .rank = -1, .next_rank = -1};
        return NULL;
    }
    m->made_peers++;
    if (p->host < 0)
        say(m, "worker %d started (process %d)", p->index, (int)p->pid);
    else
        say(m, "worker %d started (process %d, host %c)", p->index, (int)p->pid, 'A' + p->host);
    return p;
}

static void note_end(monitor_t *m, peer_t *p, int status)
{
    bool by_signal = WIFSIGNALED(status), fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    p->pid = 0;
    if (by_signal)
        say(m, "worker %d ended by signal %d", p->index, WTERMSIG(status));
    else
        say(m, "worker %d has left%s", p->index, fine ? "" : " with an error");
    bool was_killed = by_signal && WTERMSIG(status) == SIGKILL && p->expected;
    if (!fine && !was_killed) m->bad_ends++;
    if (p->state == PEER_MEMBER) {
        p->dead = true; /* rules.c sees it */
        return;
    }
    if (p->next_rank >= 0) { /* a newcomer, in the middle of a move */
        p->dead = true;
        return;
    }
    if (p->state == PEER_STARTING) m->retry_ns = now_ns() + 2 * (uint64_t)m->settle_ms * MS; /* not at once again */
    p->state = PEER_FENCED;
}

/* Frees the slot. It may be one of a move that is under way: nobody there any more. */
static void forget(peer_t *p)
{
    close(p->control);
    close(p->front);
    *p = (peer_t){.state = PEER_NONE, .rank = -1, .next_rank = -1};
}

void fleet_reap(monitor_t *m)
{
    int status;
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        if (p->state == PEER_NONE) continue;
        if (p->pid > 0 && waitpid(p->pid, &status, WNOHANG) == p->pid) note_end(m, p, status);
        if (p->pid || p->state != PEER_FENCED) continue;
        forget(p);
    }
}

bool fleet_tell(peer_t *p, note_t *note)
{
    return p->pid > 0 && frame_send(p->control, note, sizeof *note);
}

void fleet_tell_kind(peer_t *p, note_kind_t kind, epoch_t epoch)
{
    note_t note = {.kind = kind, .epoch = epoch};
    fleet_tell(p, &note);
}

void fleet_fence(monitor_t *m, peer_t *p, const char *why)
{
    if (p->pid && why) say(m, "worker %d is fenced: %s", p->index, why);
    fleet_tell_kind(p, NOTE_LEAVE, m->last_epoch);
    p->state = PEER_FENCED;
    p->rank = p->next_rank = -1;
}

int fleet_count(const monitor_t *m, peer_state_t state)
{
    int n = 0;
    for (int i = 0; i < MOST_PEERS; i++) n += m->peers[i].state == state;
    return n;
}

/* In the order of ranks. */
int fleet_members(monitor_t *m, peer_t **list)
{
    int n = 0;
    for (int rank = 0; rank < MOST_WORKERS; rank++)
        for (int i = 0; i < MOST_PEERS; i++)
            if (m->peers[i].state == PEER_MEMBER && m->peers[i].rank == rank && n < MOST_WORKERS)
                list[n++] = &m->peers[i];
    return n;
}

bool fleet_all_ended(const monitor_t *m)
{
    for (int i = 0; i < MOST_PEERS; i++)
        if (m->peers[i].state != PEER_NONE && m->peers[i].pid > 0) return false;
    return true;
}

/* Whoever has not left by now is ended. */
void fleet_end(monitor_t *m)
{
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        if (p->state == PEER_NONE) continue;
        if (p->pid > 0) {
            if (!m->interrupted) {
                say(m, "worker %d did not leave and is ended", p->index);
                m->bad_ends++;
            }
            kill(p->pid, SIGKILL);
            waitpid(p->pid, NULL, 0);
        }
        forget(p);
    }
}
