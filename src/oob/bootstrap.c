/* SPDX-License-Identifier: Apache-2.0
 *
 * The check-in: a rank sends its address to its root and waits for the root's call with the address of the next
 * rank. With several roots the first rank of each share also checks in with the previous root, whose last rank has
 * it as its next one. With very many ranks per root they spread their calls over time. The connection of the
 * check-in stays until the ring is closed (lifeline.c): a rank or root that dies or gives up meanwhile is noticed
 * at once, and all ranks of the root get the name of the first that failed.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "oob/internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROOT_MOMENT_MS 700

typedef struct kolo_bootstrap kolo_bootstrap_t;

typedef struct {
    kolo_bootstrap_t *boot;
    kolo_dial_t *dial;
    kolo_id_t id;
    uint8_t frame[KOLO_CHECKIN_BYTES];
    bool tried_root;
    bool sent;
    unsigned tries;            /* of a computed id's addresses */
    atomic_bool met_strangers; /* at one of them */
} checkin_t;

struct kolo_bootstrap {
    kolo_oob_t *oob;
    uint64_t deadline_ns;
    kolo_address_t root_only; /* where the root is to call us */
    int ncalls;
    checkin_t calls[2];
    bool replied;
    kolo_reply_t reply;
    kolo_status_t status; /* of a call that failed */
    char text[400];
};

static void read_reply(const uint8_t *frame, kolo_reply_t *reply)
{
    const char *wrong = kolo_meet_reply_decode(frame, KOLO_REPLY_BYTES, reply);
    if (wrong == NULL && reply->status == KOLO_IN_PROGRESS) wrong = "news instead of a reply";
    if (wrong == NULL) return;
    kolo_link_count(KOLO_COUNT_FRAME);
    reply->status = KOLO_ERR_PROTOCOL;
    snprintf(reply->text, sizeof(reply->text), "the root sent %s", wrong);
}

void kolo_oob_explain_join(void *arg, char *buf, size_t bytes)
{
    kolo_oob_t *oob = arg;
    pthread_mutex_lock(&oob->lock);
    snprintf(buf, bytes, "%s", oob->root_waits);
    pthread_mutex_unlock(&oob->lock);
}

void kolo_oob_take_reply(kolo_oob_t *oob, const uint8_t *frame)
{
    kolo_reply_t reply, *failure = NULL;
    KOLO_FAIL_POINT("oob.checkin.answered");
    read_reply(frame, &reply);
    if (reply.status != KOLO_OK && (failure = malloc(sizeof(*failure))) != NULL) *failure = reply;
    pthread_mutex_lock(&oob->lock);
    if (oob->boot != NULL && !oob->boot->replied) {
        oob->boot->reply = reply;
        oob->boot->replied = true;
    }
    if (failure != NULL && oob->setup_failure == NULL) { /* also when the ring is being closed already */
        oob->setup_failure = failure;
        failure = NULL;
    }
    kolo_oob_wake(oob);
    pthread_mutex_unlock(&oob->lock);
    free(failure);
}

static bool start_failed(kolo_oob_t *oob, void *arg)
{
    (void)arg;
    return oob->setup_failure != NULL;
}

kolo_status_t kolo_oob_hear_root(kolo_oob_t *oob, kolo_status_t status, uint64_t deadline_ns)
{
    uint64_t soon = kolo_deadline_ms(ROOT_MOMENT_MS);
    char text[KOLO_ERROR_TEXT_BYTES];
    if (status != KOLO_ERR_REMOTE) return status;
    snprintf(text, sizeof(text), "%s", kolo_error_text());
    if (deadline_ns != 0) soon = KOLO_MIN(soon, deadline_ns);
    pthread_mutex_lock(&oob->lock);
    kolo_status_t heard = kolo_oob_await(oob, start_failed, NULL, soon, NULL, NULL);
    kolo_status_t word = heard == KOLO_OK ? kolo_oob_lost(oob, "joining") : KOLO_OK;
    pthread_mutex_unlock(&oob->lock);
    if (heard == KOLO_OK) return word;
    return kolo_fail(heard == KOLO_ERR_ABORTED ? heard : status, "%s", text);
}

/* Hears the root's end of the lifeline, on the progress thread. */
static void root_spoke(void *arg, int tag, kolo_status_t status, const char *text)
{
    kolo_oob_t *oob = arg;
    char at[KOLO_ADDRESS_TEXT_BYTES];
    (void)tag;
    if (status == KOLO_OK) return; /* it has told all ranks */
    if (status == KOLO_IN_PROGRESS) {
        pthread_mutex_lock(&oob->lock);
        snprintf(oob->root_waits, sizeof(oob->root_waits), "%s", text);
        pthread_mutex_unlock(&oob->lock);
        return;
    }
    kolo_reply_t *failure = calloc(1, sizeof(*failure));
    if (failure == NULL) return;
    failure->status = status;
    pthread_mutex_lock(&oob->lock);
    if (text[0] != '\0')
        snprintf(failure->text, sizeof(failure->text), "%s", text);
    else
        snprintf(failure->text, sizeof(failure->text),
                 "rank %d of %d has checked in, but the root at %s is gone: the process that made the id died, or "
                 "ended, before all ranks had come. Look at its log, and start all ranks again with a new id",
                 oob->rank, oob->nranks, kolo_address_print(&oob->root_at, at));
    if (oob->setup_failure == NULL) {
        oob->setup_failure = failure;
        failure = NULL;
    }
    kolo_oob_wake(oob);
    pthread_mutex_unlock(&oob->lock);
    free(failure);
}

void kolo_oob_leave_root(kolo_oob_t *oob, kolo_status_t status)
{
    pthread_mutex_lock(&oob->lock);
    kolo_lifeline_t *line = oob->line;
    oob->line = NULL;
    pthread_mutex_unlock(&oob->lock);
    kolo_lifeline_close(line, status, status == KOLO_OK ? "" : kolo_error_text());
    if (status != KOLO_OK) return;
    pthread_mutex_lock(&oob->lock); /* what it said when all knew all there was to know comes too late */
    free(oob->setup_failure);
    oob->setup_failure = NULL;
    pthread_mutex_unlock(&oob->lock);
}

static void checked_in(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    checkin_t *call = arg;
    kolo_bootstrap_t *boot = call->boot;
    kolo_oob_t *oob = boot->oob;
    KOLO_FAIL_POINT("oob.checkin.sent");
    pthread_mutex_lock(&oob->lock);
    if (socket.fd >= 0 && kolo_lifeline_open(oob->progress, socket, 0, root_spoke, oob, &oob->line) != KOLO_OK)
        kolo_warn("oob", "%s: rank %d: %s", oob->name, oob->rank, kolo_error_text());
    call->sent = status == KOLO_OK;
    if (status != KOLO_OK && boot->status == KOLO_OK) {
        boot->status = status;
        snprintf(boot->text, sizeof(boot->text), "%s%s", text,
                 status == KOLO_ERR_REMOTE ? " (or the id was used before: an id is good for one job)" : "");
    }
    kolo_oob_wake(oob);
    pthread_mutex_unlock(&oob->lock); /* boot may be gone from here on */
}

/* Binds a KOLO_COMM_ID that nobody serves yet: if its address is of this machine, whoever is first to bind it is
 * the root. */
static void become_root(void *arg)
{
    checkin_t *call = arg;
    bool taken;
    if (call->tried_root) return;
    kolo_id_t id = call->id;
    if (kolo_root_start(&id, &taken) == KOLO_OK)
        kolo_info("oob", "%s: rank %d became the root of KOLO_COMM_ID", call->boot->oob->name,
                  call->boot->oob->rank);
    else if (!taken)
        call->tried_root = true; /* it will not work next time either */
}

/* Tries the first one every other time: there it mostly is. */
static void try_elsewhere(void *arg, bool strangers, kolo_address_t *address)
{
    checkin_t *call = arg;
    const kolo_oob_t *oob = call->boot->oob;
    char at[KOLO_ADDRESS_TEXT_BYTES];
    if (strangers && !atomic_exchange(&call->met_strangers, true))
        kolo_warn(
            "oob",
            "%s: rank %d: who listens at %s does not know this job's secret: another job with this MASTER_PORT or "
            "KOLO_JOB_NAME, another program, or the secrets differ. The root is looked for at other ports",
            oob->name, oob->rank, kolo_address_print(address, at));
    unsigned n = ++call->tries;
    kolo_id_address(&call->id, n % 2 == 0 ? 0 : 1 + n / 2 % (KOLO_ID_ADDRESSES - 1), address);
}

static kolo_status_t call_root(kolo_bootstrap_t *boot, const kolo_id_t *id, int nids, int index, bool neighbour)
{
    kolo_oob_t *oob = boot->oob;
    checkin_t *call = &boot->calls[boot->ncalls++];
    uint64_t now = kolo_now_ns();
    call->boot = boot;
    call->id = *id;
    kolo_checkin_t checkin = {
        .rank = oob->rank, .nranks = oob->nranks, .nids = nids, .id_index = index, .neighbour = neighbour};
    if (boot->deadline_ns > now)
        checkin.timeout_ms = (int)KOLO_MIN((boot->deadline_ns - now) / KOLO_NS_PER_MS, (uint64_t)INT32_MAX);
    if (!neighbour) oob->root_at = id->address;
    checkin.peer = oob->table[oob->rank];
    checkin.root_only = boot->root_only;
    kolo_meet_checkin_encode(&checkin, call->frame);
    kolo_dial_config_t config = {
        .address = id->address,
        .key = id->secret,
        .claim = {.purpose = KOLO_PURPOSE_CHECKIN, .from = oob->rank, .to = KOLO_RANK_ROOT},
        .deadline_ns = boot->deadline_ns,
        .retry_refused = id->fixed,
        .refused = id->fixed && !id->computed ? become_root : NULL,
        .elsewhere = id->computed ? try_elsewhere : NULL,
        .done = checked_in,
        .arg = call,
        .frame = call->frame,
        .frame_bytes = sizeof(call->frame),
        .who = "the root"};
    return kolo_dial_start(oob->progress, &config, &call->dial);
}

static bool my_turn(kolo_oob_t *oob, void *arg)
{
    (void)oob;
    return kolo_now_ns() >= *(const uint64_t *)arg;
}

static void describe_stagger(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "this rank's turn to call the root");
}

static void stagger_over(void *arg)
{
    kolo_gate_open(&((kolo_oob_t *)arg)->gate);
}

/* Has ranks of a large share call one after the other, at a rate that the root can serve. */
static kolo_status_t stagger(kolo_oob_t *oob, int nids, uint64_t deadline_ns)
{
    int first, count;
    kolo_root_share(oob->nranks, nids, kolo_root_of_rank(oob->nranks, nids, oob->rank), &first, &count);
    int64_t delay_ms = (int64_t)(oob->rank - first) * 1000 / kolo_meet_values.stagger_rate;
    if (count <= kolo_meet_values.stagger_above || delay_ms < 1) return KOLO_OK;
    uint64_t turn_ns = kolo_now_ns() + (uint64_t)delay_ms * KOLO_NS_PER_MS;
    kolo_timer_t *timer;
    KOLO_TRY(kolo_timer_add(oob->progress, delay_ms, stagger_over, oob, &timer));
    pthread_mutex_lock(&oob->lock);
    kolo_status_t status = kolo_oob_await(oob, my_turn, &turn_ns, deadline_ns, describe_stagger, NULL);
    pthread_mutex_unlock(&oob->lock);
    kolo_timer_cancel(timer);
    return status;
}

static bool answered(kolo_oob_t *oob, void *arg)
{
    const kolo_bootstrap_t *boot = arg;
    bool sent = true;
    if (oob->setup_failure != NULL) return true;
    for (int i = 0; i < boot->ncalls; i++) sent = sent && boot->calls[i].sent;
    return boot->status != KOLO_OK || (boot->replied && (sent || boot->reply.status != KOLO_OK));
}

static void describe_checkin(void *arg, char *buf, size_t bytes)
{
    kolo_bootstrap_t *boot = arg;
    kolo_oob_t *oob = boot->oob;
    char address[KOLO_ADDRESS_TEXT_BYTES];
    pthread_mutex_lock(&oob->lock);
    kolo_address_print(&boot->calls[0].id.address, address);
    if (boot->calls[0].sent)
        snprintf(
            buf, bytes,
            "rank %d to call kolo_comm_init_rank() (the root at %s has no address of it yet; %s, rank %d of %d has "
            "checked in)",
            (oob->rank + 1) % oob->nranks, address, oob->name, oob->rank, oob->nranks);
    else
        snprintf(
            buf, bytes,
            "the root at %s, which has not answered a call yet (%s, rank %d of %d; if rank 0 runs, see whether "
            "another program listens there: ss -ltnp)%s",
            address, oob->name, oob->rank, oob->nranks,
            atomic_load(&boot->calls[0].met_strangers)
                ? "; who did answer refused our proof: another job has this MASTER_PORT or KOLO_JOB_NAME and our "
                  "rank 0 has not come, or the secrets differ"
                : "");
    pthread_mutex_unlock(&oob->lock);
}

static kolo_status_t check_in(kolo_bootstrap_t *boot, int nids, const kolo_id_t *ids)
{
    kolo_oob_t *oob = boot->oob;
    int first, count, root = kolo_root_of_rank(oob->nranks, nids, oob->rank);
    kolo_root_share(oob->nranks, nids, root, &first, &count);
    KOLO_TRY(call_root(boot, &ids[root], nids, root, false));
    KOLO_FAIL_POINT_TRY("oob.checkin.called");
    int before = (root + nids - 1) % nids;
    if (nids > 1 && oob->rank == first) KOLO_TRY(call_root(boot, &ids[before], nids, before, true));

    pthread_mutex_lock(&oob->lock);
    kolo_status_t status = kolo_oob_await(oob, answered, boot, boot->deadline_ns, describe_checkin, boot);
    if (status == KOLO_OK && boot->status != KOLO_OK && (!boot->replied || boot->reply.status == KOLO_OK))
        status = kolo_fail(boot->status, "%s: rank %d of %d cannot check in with %s", oob->name, oob->rank,
                           oob->nranks, boot->text);
    else if (status == KOLO_OK && oob->setup_failure != NULL)
        status = kolo_oob_lost(oob, "checking in");
    else if (status == KOLO_OK && boot->reply.status != KOLO_OK)
        status = kolo_fail(boot->reply.status, "%s: %s", oob->name, boot->reply.text);
    else if (status == KOLO_OK && boot->reply.next_rank != (oob->rank + 1) % oob->nranks)
        status = kolo_fail(KOLO_ERR_PROTOCOL, "%s: the root told rank %d about rank %d", oob->name, oob->rank,
                           boot->reply.next_rank);
    else if (status == KOLO_OK && oob->nranks > 1)
        oob->table[boot->reply.next_rank] = boot->reply.next;
    pthread_mutex_unlock(&oob->lock);
    return status;
}

kolo_status_t kolo_oob_check_in(kolo_oob_t *oob, int nids, const kolo_id_t *ids, uint64_t deadline_ns)
{
    KOLO_FAIL_POINT_TRY("oob.checkin.start");
    KOLO_TRY(stagger(oob, nids, deadline_ns));
    kolo_bootstrap_t *boot = calloc(1, sizeof(*boot));
    if (boot == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to check in");
    boot->oob = oob;
    boot->deadline_ns = deadline_ns;
    boot->root_only = kolo_listener_address(oob->root_listener);
    pthread_mutex_lock(&oob->lock);
    oob->boot = boot;
    pthread_mutex_unlock(&oob->lock);
    kolo_status_t status = check_in(boot, nids, ids);
    pthread_mutex_lock(&oob->lock);
    oob->boot = NULL;
    bool called = true;
    for (int i = 0; i < boot->ncalls; i++) called = called && boot->calls[i].sent;
    pthread_mutex_unlock(&oob->lock);
    if (!called) /* a call still holds on to boot */
        for (int i = 0; i < boot->ncalls; i++) kolo_dial_cancel(oob->progress, &boot->calls[i].dial);
    kolo_auth_wipe(boot, sizeof(*boot));
    free(boot);
    return status;
}
