/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator comes to be: bootstrap, peers' cards, topology, sizes, agreement, wires. Connections are made
 * on first use (connect.c).
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/life/life.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kolo_comm_config_copy(kolo_config_t *to, const kolo_config_t *from)
{
    static const kolo_config_t defaults = KOLO_CONFIG_INITIALIZER;
    *to = defaults;
    if (from) memcpy(to, from, KOLO_MIN(from->size, sizeof *to));
}

static bool is_one_of(int value, int a, int b)
{
    return value == KOLO_UNDEFINED_INT || value == a || value == b;
}

/* Checks those that the caller has set. */
static kolo_status_t check_fields(const kolo_config_t *config, const char *what)
{
    kolo_config_t c;
    kolo_comm_config_copy(&c, config);
    if (!is_one_of(c.blocking, 0, 1))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: config.blocking is %d, expected 0 or 1", what, c.blocking);
    if (!is_one_of(c.split_share, 0, 1))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: config.split_share is %d, expected 0 or 1", what,
                         c.split_share);
    if (c.init_timeout_ms != KOLO_UNDEFINED_INT && c.init_timeout_ms < 1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: config.init_timeout_ms is %d, expected milliseconds, 1 or more", what,
                         c.init_timeout_ms);
    if (c.op_timeout_ms != KOLO_UNDEFINED_INT && c.op_timeout_ms < 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: config.op_timeout_ms is %d, expected milliseconds, or 0 for no limit", what,
                         c.op_timeout_ms);
    if (c.device != KOLO_UNDEFINED_INT && c.device < -1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: config.device is %d, expected a GPU's number or -1", what,
                         c.device);
    if (!is_one_of(c.gpu_profile, KOLO_GPU_LATENCY, KOLO_GPU_COMPUTE) &&
        !is_one_of(c.gpu_profile, KOLO_GPU_BALANCED, KOLO_GPU_QUARTER))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: config.gpu_profile is %d, expected KOLO_GPU_LATENCY (%d), KOLO_GPU_COMPUTE (%d) or "
                         "KOLO_GPU_BALANCED (%d)",
                         what, c.gpu_profile, KOLO_GPU_LATENCY, KOLO_GPU_COMPUTE, KOLO_GPU_BALANCED);
    if (!is_one_of(c.order, KOLO_ORDER_FREE, KOLO_ORDER_RANKS))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: config.order is %d, expected KOLO_ORDER_FREE (%d) or KOLO_ORDER_RANKS (%d)", what,
                         c.order, KOLO_ORDER_FREE, KOLO_ORDER_RANKS);
    return KOLO_OK;
}

kolo_status_t kolo_comm_config_check(const kolo_config_t *config, const char *what)
{
    if (!config) return KOLO_OK;
    if (config->magic != KOLO_CONFIG_MAGIC || config->size < 2 * sizeof(uint32_t) || config->size > 4096)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: config has magic 0x%x and size %u; start from KOLO_CONFIG_INITIALIZER", what,
                         config->magic, config->size);
    return check_fields(config, what);
}

static int pick(int value, int fallback)
{
    return value == KOLO_UNDEFINED_INT ? fallback : value;
}

kolo_status_t kolo_body_new(int rank, int nranks, const kolo_config_t *config, const kolo_body_t *parent,
                            const char *what, kolo_body_t **out)
{
    kolo_config_t c;
    kolo_comm_config_copy(&c, config);
    int blocking = pick(c.blocking, parent ? parent->life.blocking : kolo_comm_options.blocking);
    int init_ms =
        pick(c.init_timeout_ms, parent ? parent->init_timeout_ms : (int)kolo_comm_options.init_timeout_ms);
    int share = pick(c.split_share, parent ? parent->life.split_share : 0);
    int device = pick(c.device, parent ? parent->gpu.device : -1);
    int profile = pick(c.gpu_profile, parent ? parent->gpu.profile : (int)kolo_gpus_profile);
    int order = pick(c.order, parent ? parent->choice.order : (int)kolo_comm_options.order);
    int op_ms = pick(c.op_timeout_ms, parent ? parent->op_timeout_ms : (int)kolo_comm_options.op_timeout_ms);
    kolo_body_t *body = calloc(1, sizeof *body);
    if (!body) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory for a communicator", what);
    body->rank = rank;
    body->nranks = nranks;
    body->life.blocking = blocking;
    body->life.split_share = share;
    body->init_timeout_ms = init_ms;
    body->op_timeout_ms = op_ms;
    body->gpu.device = device;
    body->gpu.profile = profile;
    body->choice.order = order;
    body->track.operation = (uint64_t)kolo_comm_options.counter_start;
    kolo_comm_t handle;
    kolo_status_t status = kolo_handle_new(body, &handle);
    if (status != KOLO_OK) {
        free(body);
        return status;
    }
    snprintf(handle->name, sizeof handle->name, "%s", c.name ? c.name : parent ? parent->name : "comm");
    handle->on_device = device >= 0;
    *out = body;
    return KOLO_OK;
}

static void fill_emit(kolo_body_t *body)
{
    const kolo_member_t *m = &body->member;
    int largest = 1, smallest = body->nranks;
    for (int i = 0; i < m->nnodes; i++) {
        largest = KOLO_MAX(largest, m->node_size[i]);
        smallest = KOLO_MIN(smallest, m->node_size[i]);
    }
    bool fanout = largest > 1, refs = body->nranks > 1, ll = fanout;
    uint32_t cores = UINT32_MAX;
    for (int a = 0; a < body->nranks; a++) {
        kolo_conn_spec_t pair = {.kind = KOLO_CONN_PAIR, .writer = a, .reader = (a + 1) % body->nranks};
        const kolo_wire_ops_t *wire = body->nranks > 1 ? kolo_wire_choose(&body->ctx, &pair) : NULL;
        refs = refs && wire && (wire->caps & KOLO_CAP_REF);
    }
    for (int i = 0; i < m->nnodes; i++) cores = KOLO_MIN(cores, kolo_cores_of_node(m, i));
    /* NODE connections need one wire for a whole host, on every host: ask for each host's first rank. */
    for (int i = 0; i < m->nnodes && fanout; i++) {
        if (m->node_size[i] < 2) continue;
        int writer = m->node_ranks[m->node_first[i]];
        kolo_conn_spec_t node = {.kind = KOLO_CONN_NODE, .writer = writer, .reader = -1};
        const kolo_wire_ops_t *wire = kolo_wire_choose(&body->ctx, &node);
        fanout = wire && (wire->caps & KOLO_CAP_FANOUT);
        node.proto = KOLO_PROTO_LL;
        wire = kolo_wire_choose(&body->ctx, &node);
        ll = ll && wire && (wire->caps & KOLO_CAP_FANOUT);
    }
    body->choice.emit = (kolo_emit_env_t){.nranks = (uint32_t)body->nranks,
                                          .rank = (uint32_t)body->rank,
                                          .nnodes = (uint32_t)m->nnodes,
                                          .node_of = m->node_of,
                                          .node_first = m->node_first,
                                          .node_size = m->node_size,
                                          .node_ranks = m->node_ranks,
                                          .fanout = fanout,
                                          .refs = refs && m->nnodes == 1,
                                          .one_fold = body->choice.order == KOLO_ORDER_RANKS,
                                          .lanes = 1};
    body->choice.tune = (kolo_tune_env_t){.nranks = (uint32_t)body->nranks,
                                          .nnodes = (uint32_t)m->nnodes,
                                          .max_node_size = (uint32_t)largest,
                                          .min_node_size = (uint32_t)smallest,
                                          .cores = cores,
                                          .fanout = fanout,
                                          .refs = body->choice.emit.refs,
                                          .ll = ll && m->nnodes == 1};
}

static kolo_status_t find_topology(kolo_body_t *body)
{
    kolo_topo_t topo = {0};
    KOLO_TRY(kolo_topo_load(&topo));
    for (int i = 0; i < topo.count; i++)
        if (topo.nodes[i].kind == KOLO_TOPO_L3)
            body->choice.tune.l3_bytes = KOLO_MAX(body->choice.tune.l3_bytes, (uint64_t)topo.nodes[i].cache_bytes);
    kolo_topo_fini(&topo);
    /* CPU ranks are not bound to places: the ring follows hosts, inside a host ranks. */
    kolo_topo_place_t *places = calloc((size_t)body->nranks, sizeof *places);
    kolo_topo_search_t search = {0};
    if (!places)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the topology search over %d ranks", body->nranks);
    for (int r = 0; r < body->nranks; r++)
        places[r] = (kolo_topo_place_t){body->member.node_of[r], -1, -1, body->member.local_of[r], -1, -1};
    kolo_status_t status = kolo_topo_search(places, body->nranks, 1, NULL, 0, &search);
    if (status == KOLO_OK) {
        body->choice.ring = search.ring;
        search.ring = NULL;
    }
    kolo_topo_search_fini(&search);
    free(places);
    return status;
}

/* Gives long log lines the number of the job that kolo-top shows. */
static void identify(const kolo_body_t *body)
{
    char job[20];
    if (body->nranks == 1) return;
    snprintf(job, sizeof job, "%016llx", (unsigned long long)kolo_oob_job(body->oob));
    kolo_log_identify(body->rank, job);
}

kolo_status_t kolo_body_setup(kolo_body_t *body)
{
    size_t n = (size_t)body->nranks;
    kolo_mismatch_open(body);
    KOLO_FAIL_POINT_TRY("comm.setup.card");
    KOLO_TRY(kolo_body_meet(body));
    KOLO_FAIL_POINT_TRY("comm.setup.wires");
    KOLO_TRY(kolo_wire_ctx_init(&body->ctx, body->oob, &body->member, &body->stop.reason));
    body->life.ctx_open = true;
    fill_emit(body);
    KOLO_FAIL_POINT_TRY("comm.setup.topology");
    KOLO_TRY(find_topology(body));
    body->choice.emit.rings = body->choice.ring;
    body->choice.emit.nrings = 1;
    kolo_tune_sizes(&body->choice.tune, &body->choice.sizes);
    KOLO_TRY(kolo_body_agree(body));
    KOLO_FAIL_POINT_TRY("comm.setup.agreed");
    body->conns.ll_rx = calloc(n, sizeof(kolo_rx_t *));
    body->conns.by_peer = calloc(n + 1, sizeof(kolo_comm_conn_t *));
    if (!body->conns.ll_rx || !body->conns.by_peer)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the connection tables of %d ranks", body->nranks);
    KOLO_TRY(kolo_device_open(body));
    KOLO_TRY(kolo_lost_watch(body));
    kolo_record_open(body);
    identify(body);
    kolo_cores_warn(body);
    kolo_info("comm", "%s rank %d of %d is ready: %d host(s), fan-out %s, references %s, slots of %u bytes",
              body->name, body->rank, body->nranks, body->member.nnodes, body->choice.emit.fanout ? "yes" : "no",
              body->choice.emit.refs ? "yes" : "no", body->choice.sizes.local_slot_bytes);
    return KOLO_OK;
}

static void start(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    kolo_oob_config_t config = {.rank = body->rank,
                                .nranks = body->nranks,
                                .nids = body->life.nids,
                                .ids = body->life.ids,
                                .timeout_ms = body->init_timeout_ms,
                                .abort = &body->stop.abort,
                                .name = body->name};
    kolo_status_t status = kolo_oob_open(&config, &body->oob);
    if (status == KOLO_OK) status = kolo_body_setup(body);
    kolo_body_started(body, status, "init", NULL);
    free(body->life.ids);
    body->life.ids = NULL;
    kolo_gate_open(&h->gate);
}

void kolo_body_started(kolo_body_t *body, kolo_status_t status, const char *what, const kolo_origin_t *from)
{
    kolo_comm_t h = body->handle;
    kolo_body_borrow_end(body);
    if (status != KOLO_OK) {
        if (atomic_load(&h->magic) == KOLO_COMM_MAGIC) /* else kolo_comm_abort() gives the reason */
            kolo_oob_give_reason(body->oob, kolo_error_text());
        if (from && !body->oob) /* what it would have been is not known */
            kolo_fail_prefix(status, "%s from %s, rank %d of %d: ", what, from->name, from->rank, from->nranks);
        else
            kolo_fail_prefix(status, "%s of %s, rank %d of %d: ", what, body->name, body->rank, body->nranks);
        kolo_body_fail(body, status);
    }
    bool aborted = atomic_load(&body->stop.abort), failed = status != KOLO_OK || aborted;
    atomic_store(&h->state, aborted ? KOLO_COMM_ABORTED : failed ? KOLO_COMM_FAILED : KOLO_COMM_READY);
    if (!failed) kolo_lost_started(body);
    kolo_gate_open(&h->gate);
}

kolo_status_t kolo_body_made(const kolo_body_t *body, kolo_status_t status)
{
    if (status != KOLO_OK || !atomic_load(&body->stop.abort)) return status;
    kolo_status_t error = kolo_handle_error(body->handle, NULL, 0);
    return error != KOLO_OK ? error : KOLO_ERR_ABORTED;
}

static void *start_in_background(void *arg)
{
    kolo_comm_t h = ((kolo_body_t *)arg)->handle;
    start(arg);
    kolo_handle_leave(h);
    return NULL;
}

static kolo_status_t check_init(int nranks, int rank, int nids, const kolo_unique_id_t *ids,
                                const kolo_config_t *config)
{
    KOLO_TRY(kolo_comm_library_init());
    KOLO_TRY(kolo_comm_config_check(config, "init"));
    if (nranks < 1 || nranks > (1 << 20))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init: nranks is %d, expected 1 to %d", nranks, 1 << 20);
    if (rank < 0 || rank >= nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init: rank is %d, expected 0 to %d", rank, nranks - 1);
    if (nids < 1 || nids > nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init: %d unique ids for %d ranks, expected 1 to %d", nids,
                         nranks, nranks);
    if (!ids) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init: the unique ids are NULL");
    for (int i = 0; i < nids; i++) {
        kolo_status_t status = kolo_id_check(&ids[i]);
        if (status != KOLO_OK) return kolo_fail_prefix(status, "init: ids[%d]: ", i);
        if (kolo_id_grows_from(&ids[i]))
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "init: ids[%d] was made by kolo_comm_get_grow_id(): it is for kolo_comm_grow()", i);
    }
    return KOLO_OK;
}

kolo_status_t kolo_comm_init_rank_scalable(kolo_comm_t *comm, int nranks, int rank, int nids,
                                           const kolo_unique_id_t *ids, const kolo_config_t *config)
{
    kolo_body_t *body;
    if (!comm) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init: the output handle is NULL");
    KOLO_TRY(check_init(nranks, rank, nids, ids, config));
    KOLO_TRY(kolo_group_admit_life("init"));
    KOLO_TRY(kolo_body_new(rank, nranks, config, NULL, "init", &body));
    bool grouped = kolo_group_open();
    kolo_status_t status = KOLO_OK;
    body->life.nids = nids;
    body->life.ids = malloc((size_t)nids * sizeof *body->life.ids);
    if (body->life.ids)
        memcpy(body->life.ids, ids, (size_t)nids * sizeof *body->life.ids);
    else
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "init: out of memory for %d ids", nids);
    if (status == KOLO_OK && body->life.blocking && !grouped) {
        start(body);
        status = kolo_handle_error(body->handle, NULL, 0);
    } else if (status == KOLO_OK) {
        status = kolo_body_background(body, start_in_background, body);
        if (status == KOLO_OK) {
            *comm = body->handle;
            return grouped ? kolo_group_add_life(body->handle, KOLO_GROUP_MAKES, NULL) : KOLO_IN_PROGRESS;
        }
    }
    if (status == KOLO_OK)
        *comm = body->handle;
    else
        kolo_body_free(body);
    return status;
}

kolo_status_t kolo_comm_init_rank(kolo_comm_t *comm, int nranks, kolo_unique_id_t id, int rank,
                                  const kolo_config_t *config)
{
    return kolo_comm_init_rank_scalable(comm, nranks, rank, 1, &id, config);
}
