/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose path is it? A rank whose data to another one is not acknowledged sends a few long packets to one rank of
 * each other host, as a frame of its own connection, which nothing else waits for. If they arrive, the path to that
 * one rank is at fault, and it is given up; if none does, this rank's own link is, and it goes: it would call a
 * healthy rank lost else. On the progress thread only.
 */
#include "base/log.h"
#include "member/life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST       8
#define AT_HOST    8 /* of an address (link/address.h) */
#define HOST_BYTES 16

typedef struct {
    kolo_dial_t *dial;
    int rank;
    bool arrived;
} probe_t;

struct kolo_probes {
    kolo_oob_t *oob;
    int n;
    probe_t each[MOST];
    uint8_t frame[KOLO_PROBE_BYTES];
};

static void probe_ended(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    probe_t *probe = arg;
    (void)text;
    kolo_socket_leave(&socket);
    probe->arrived = status == KOLO_OK;
}

static bool same_host(const kolo_oob_t *oob, int a, int b)
{
    return memcmp(oob->table[a].bytes + AT_HOST, oob->table[b].bytes + AT_HOST, HOST_BYTES) == 0;
}

static bool is_another_host(const struct kolo_probes *p, int rank, int suspect)
{
    const kolo_oob_t *oob = p->oob;
    const kolo_peer_t *peer = kolo_peer_find((kolo_oob_t *)(uintptr_t)oob, rank);
    if (peer != NULL && (kolo_peer_is_lost(peer) || peer->farewell || peer->gone)) return false;
    bool other = !same_host(oob, rank, suspect) && !same_host(oob, rank, oob->rank);
    for (int i = 0; i < p->n; i++) other = other && !same_host(oob, rank, p->each[i].rank);
    return other;
}

static void send_probe(struct kolo_probes *p, int rank, uint64_t deadline_ns)
{
    kolo_oob_t *oob = p->oob;
    probe_t *probe = &p->each[p->n];
    *probe = (probe_t){.rank = rank};
    kolo_dial_config_t config = {.address = oob->table[rank],
                                 .key = oob->key,
                                 .claim = {.purpose = KOLO_PURPOSE_PROBE, .from = oob->rank, .to = rank},
                                 .deadline_ns = deadline_ns,
                                 .done = probe_ended,
                                 .arg = probe,
                                 .frame = p->frame,
                                 .frame_bytes = sizeof(p->frame)};
    snprintf(config.who, sizeof(config.who), "rank %d", rank);
    if (kolo_dial_start(oob->progress, &config, &probe->dial) == KOLO_OK) p->n++;
}

void kolo_probes_start(kolo_oob_t *oob, int suspect, const bool *remote, uint64_t deadline_ns)
{
    if (kolo_life(oob)->probes != NULL) return;
    struct kolo_probes *p = calloc(1, sizeof(*p));
    if (p == NULL) return;
    p->oob = oob;
    kolo_life(oob)->probes = p;
    kolo_info("oob", "%s: rank %d: data to rank %d is not acknowledged; are long packets to other hosts?",
              oob->name, oob->rank, suspect);
    for (int r = 0; r < oob->nranks && p->n < MOST; r++)
        if (remote[r] && r != suspect && is_another_host(p, r, suspect)) send_probe(p, r, deadline_ns);
}

bool kolo_probes_blame_us(const kolo_oob_t *oob)
{
    const struct kolo_probes *p = kolo_life(oob)->probes;
    bool none = p != NULL && p->n > 0;
    for (int i = 0; none && i < p->n; i++) none = !p->each[i].arrived;
    return none;
}

void kolo_probes_stop(kolo_oob_t *oob)
{
    struct kolo_probes *p = kolo_life(oob)->probes;
    kolo_life(oob)->probes = NULL;
    for (int i = 0; p != NULL && i < p->n; i++) kolo_dial_cancel(oob->progress, &p->each[i].dial);
    free(p);
}
