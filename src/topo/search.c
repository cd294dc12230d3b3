/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings and trees over ranks. A pure function of the places, so that all ranks find the same without asking each
 * other. Inside a host the distance is an ultrametric (classes nest), and there the order "by distance from the
 * entering rank, then by socket, NUMA node, switch and cache" visits each group in one go: the path crosses each
 * border as few times as a closed walk can. The rank next closest to the NIC is kept for the end of the path, so
 * that both ends of the host's part of the ring sit at the NIC.
 */
#include "base/clock.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LANES 4096

typedef struct {
    const kolo_topo_place_t *places, *nics;
    int nhosts;
    int *first;     /* nhosts + 1: a host's part of `ranks` */
    int *ranks;     /* grouped by host */
    int *nic_first; /* nhosts + 1 */
    int *nic_list;  /* NICs grouped by host, in the order of their slots */
    int *parents;   /* 2 x nhosts: the pair of trees between hosts */
} search_t;

/* What the comparison needs besides the two ranks; qsort_r hands it on. */
typedef struct {
    const kolo_topo_place_t *places;
    const kolo_topo_place_t *from; /* closest to this first; NULL: by place only */
} order_t;

static int compare(int a, int b)
{
    return (a > b) - (a < b);
}

static int compare_ranks(const void *pa, const void *pb, void *arg)
{
    const order_t *order = arg;
    int ra = *(const int *)pa, rb = *(const int *)pb, c = 0;
    const kolo_topo_place_t *a = &order->places[ra], *b = &order->places[rb];
    if (order->from)
        c = compare((int)kolo_topo_place_distance(order->from, a), (int)kolo_topo_place_distance(order->from, b));
    if (!c) c = compare(a->socket, b->socket);
    if (!c) c = compare(a->numa, b->numa);
    if (!c) c = compare(a->pci, b->pci);
    if (!c) c = compare(a->l3, b->l3);
    if (!c) c = compare(a->slot, b->slot);
    return c ? c : compare(ra, rb);
}

static int compare_slots(const void *pa, const void *pb, void *arg)
{
    const order_t *order = arg;
    int a = *(const int *)pa, b = *(const int *)pb, c = compare(order->places[a].slot, order->places[b].slot);
    return c ? c : compare(a, b);
}

/* Sorts `n` places by host, by counting: list[first[h] .. first[h+1]) are those of host h, in order. */
static void group_by_host(const kolo_topo_place_t *places, int n, int nhosts, int *first, int *list)
{
    memset(first, 0, ((size_t)nhosts + 1) * sizeof *first);
    for (int i = 0; i < n; i++) first[places[i].node + 1]++;
    for (int h = 0; h < nhosts; h++) first[h + 1] += first[h];
    for (int i = 0; i < n; i++) list[first[places[i].node]++] = i;
    for (int h = nhosts; h > 0; h--) first[h] = first[h - 1]; /* filling moved each start to its end */
    first[0] = 0;
}

static kolo_status_t check(const kolo_topo_place_t *places, int nranks, int nlanes, const kolo_topo_place_t *nics,
                           int nnics, int *nhosts)
{
    if (!places || nranks < 1 || nlanes < 1 || nlanes > MAX_LANES || nnics < 0 || (nnics && !nics))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "topology search: %d ranks, %d lanes (1 to %d), %d NICs",
                         nranks, nlanes, MAX_LANES, nnics);
    int hosts = 0;
    for (int r = 0; r < nranks; r++) {
        if (places[r].node < 0 || places[r].node >= nranks)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "topology search: rank %d is on host %d of at most %d", r,
                             places[r].node, nranks);
        hosts = KOLO_MAX(hosts, places[r].node + 1);
    }
    for (int i = 0; i < nnics; i++)
        if (nics[i].node < 0 || nics[i].node >= hosts)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "topology search: NIC %d is on host %d of %d", i,
                             nics[i].node, hosts);
    *nhosts = hosts;
    return KOLO_OK;
}

/* Returns the lane's NIC on a host, NULL if the host has none. Equal lanes use equal places in the hosts' lists
 * (rails). */
static const kolo_topo_place_t *lane_nic(const search_t *s, int host, int lane)
{
    int n = s->nic_first[host + 1] - s->nic_first[host];
    return n ? &s->nics[s->nic_list[s->nic_first[host] + lane % n]] : NULL;
}

static void swap(int *a, int *b)
{
    int t = *a;
    *a = *b;
    *b = t;
}

/* Orders the `n` ranks at `out`, which hold the host's part of the ring of this lane. */
static void order_host(const search_t *s, int host, int lane, int *out, int n)
{
    const kolo_topo_place_t *nic = lane_nic(s, host, lane);
    int nnics = s->nic_first[host + 1] - s->nic_first[host], close = n, middle = n - 1;
    order_t order = {s->places, nic};
    qsort_r(out, (size_t)n, sizeof *out, compare_ranks, &order);
    if (nic) { /* the first `close` are all as close to it as one can be */
        kolo_distance_t best = kolo_topo_place_distance(nic, &s->places[out[0]]);
        for (close = 1; close < n; close++)
            if (kolo_topo_place_distance(nic, &s->places[out[close]]) != best) break;
    }
    /* enter at out[0]: lanes that share a NIC begin at different ones of its closest ranks */
    swap(&out[0], &out[(nic ? lane / nnics : lane) % close]);
    if (nic && n > 2) { /* leave from the closest that remains, which is out[1] now */
        swap(&out[1], &out[n - 1]);
        middle = n - 2;
    }
    order.from = &s->places[out[0]];
    if (middle > 1) qsort_r(out + 1, (size_t)middle, sizeof *out, compare_ranks, &order);
}

static void search_lane(const search_t *s, int lane, int nranks, kolo_topo_search_t *result)
{
    int *ring = result->ring + (size_t)lane * (size_t)nranks;
    int *parent = result->tree_parent + (size_t)lane * (size_t)nranks;
    memcpy(ring, s->ranks, (size_t)nranks * sizeof *ring);
    for (int h = 0; h < s->nhosts; h++) {
        const kolo_topo_place_t *nic = lane_nic(s, h, lane);
        result->nic[(size_t)lane * (size_t)s->nhosts + (size_t)h] = nic ? nic->slot : -1;
        order_host(s, h, lane, ring + s->first[h], s->first[h + 1] - s->first[h]);
        for (int i = s->first[h] + 1; i < s->first[h + 1]; i++) parent[ring[i]] = ring[i - 1];
    }
    for (int h = 0; h < s->nhosts; h++) { /* heads of all hosts are known now */
        int up = s->parents[(lane & 1) * s->nhosts + h];
        parent[ring[s->first[h]]] = up < 0 ? -1 : ring[s->first[up]];
    }
}

static kolo_status_t search_all(search_t *s, int nranks, int nlanes, int nnics, kolo_topo_search_t *result)
{
    size_t cells = (size_t)nranks * (size_t)nlanes, hosts = (size_t)s->nhosts;
    s->first = malloc((hosts + 1) * sizeof(int));
    s->nic_first = malloc((hosts + 1) * sizeof(int));
    s->ranks = malloc((size_t)nranks * sizeof(int));
    s->nic_list = malloc((size_t)(nnics + 1) * sizeof(int));
    s->parents = malloc(2 * hosts * sizeof(int));
    result->ring = malloc(cells * sizeof(int));
    result->tree_parent = malloc(cells * sizeof(int));
    result->nic = malloc((size_t)nlanes * hosts * sizeof(int));
    if (!s->first || !s->nic_first || !s->ranks || !s->nic_list || !s->parents || !result->ring ||
        !result->tree_parent || !result->nic)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "topology search: no memory for %d ranks and %d lanes", nranks,
                         nlanes);
    group_by_host(s->places, nranks, s->nhosts, s->first, s->ranks);
    for (int h = 0; h < s->nhosts; h++)
        if (s->first[h] == s->first[h + 1])
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "topology search: no rank is on host %d of %d", h,
                             s->nhosts);
    group_by_host(s->nics, nnics, s->nhosts, s->nic_first, s->nic_list);
    for (int h = 0; h < s->nhosts; h++)
        qsort_r(s->nic_list + s->nic_first[h], (size_t)(s->nic_first[h + 1] - s->nic_first[h]), sizeof(int),
                compare_slots, &(order_t){s->nics, NULL});
    for (int which = 0; which < 2; which++) kolo_topo_tree_pair(s->nhosts, which, s->parents + which * s->nhosts);
    for (int lane = 0; lane < nlanes; lane++) search_lane(s, lane, nranks, result);
    return KOLO_OK;
}

kolo_status_t kolo_topo_search(const kolo_topo_place_t *places, int nranks, int nlanes,
                               const kolo_topo_place_t *nics, int nnics, kolo_topo_search_t *result)
{
    search_t s = {.places = places, .nics = nics};
    KOLO_TRY(check(places, nranks, nlanes, nics, nnics, &s.nhosts));
    kolo_topo_search_t made = {.nranks = nranks, .nlanes = nlanes, .nhosts = s.nhosts};
    kolo_status_t status = search_all(&s, nranks, nlanes, nnics, &made);
    free(s.first);
    free(s.nic_first);
    free(s.ranks);
    free(s.nic_list);
    free(s.parents);
    if (status == KOLO_OK)
        *result = made;
    else
        kolo_topo_search_fini(&made);
    return status;
}

void kolo_topo_search_fini(kolo_topo_search_t *result)
{
    free(result->ring);
    free(result->tree_parent);
    free(result->nic);
    memset(result, 0, sizeof *result);
}
