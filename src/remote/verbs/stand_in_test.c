/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs provider on a library that is a table of functions here: what it asks a card for, and what it makes of
 * a card that changes. Cards that move bytes are in live_test.c and tests/vm.
 */
#include "base/test.h"
#include "remote/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct {
    struct ibv_context context;
    struct ibv_pd pd;
    struct ibv_comp_channel channel;
    struct ibv_cq cq;
    struct ibv_qp qp[2];
    int nqps, entries;    /* queue pairs made, places of the completion queue */
    uint32_t completions; /* that the queue pairs can bring at once */
    uint32_t nreads, key[8];
    uint64_t address[8], until[8];
    struct ibv_port_attr port;
    int silences, asked; /* of the network on the way to RTR: questions without an answer, and all */
} card;

/* ---- the library ---- */

static struct ibv_device **no_devices(int *count)
{
    static struct ibv_device *none[1];
    if (count) *count = 0;
    errno = EINTR; /* of a call within that was made again */
    return none;
}
static void free_list(struct ibv_device **list)
{
    (void)list;
}
static int query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    (void)context, (void)port;
    memcpy(attr, &card.port, sizeof card.port);
    return 0;
}
static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *memory, size_t bytes, int access)
{
    static uint32_t keys = 100;
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    (void)pd, (void)memory, (void)bytes, (void)access;
    assert_non_null(mr);
    mr->lkey = mr->rkey = keys++;
    return mr;
}
static int dereg_mr(struct ibv_mr *mr)
{
    free(mr);
    return 0;
}
static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *arg,
                                struct ibv_comp_channel *channel, int vector)
{
    (void)arg, (void)channel, (void)vector;
    card.cq.context = context;
    card.entries = entries;
    return &card.cq;
}
static int destroy_cq(struct ibv_cq *cq)
{
    (void)cq;
    return 0;
}
static int no_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **arg)
{
    (void)channel, (void)cq, (void)arg;
    return -1;
}
static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    (void)pd;
    bool reads_back = card.nqps == 1; /* it posts no receives */
    struct ibv_qp *qp = &card.qp[card.nqps++];
    card.completions += attr->cap.max_send_wr + (reads_back ? 0 : attr->cap.max_recv_wr);
    *qp = (struct ibv_qp){.context = &card.context, .qp_num = 17};
    return qp;
}
static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    (void)qp, (void)mask;
    if (attr->qp_state != IBV_QPS_RTR) return 0;
    return card.asked++ < card.silences ? ETIMEDOUT : 0;
}
static int destroy_qp(struct ibv_qp *qp)
{
    (void)qp;
    return 0;
}
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    (void)qp, (void)bad;
    assert_true(wr->opcode == IBV_WR_RDMA_READ && card.nreads < KOLO_COUNTOF(card.key));
    card.key[card.nreads] = wr->wr.rdma.rkey;
    card.address[card.nreads] = wr->wr.rdma.remote_addr;
    card.until[card.nreads++] = wr->wr_id & ~KOLO_VERBS_FLUSH_MARK;
    return 0;
}

static int begin(void **state)
{
    (void)state;
    memset(&card, 0, sizeof card);
    card.context.ops.post_send = post_send;
    card.context.async_fd = -1;
    kolo_verbs = (kolo_verbs_library_t){.get_device_list = no_devices,
                                        .free_device_list = free_list,
                                        .query_port = query_port,
                                        .reg_mr = reg_mr,
                                        .dereg_mr = dereg_mr,
                                        .create_cq = create_cq,
                                        .destroy_cq = destroy_cq,
                                        .get_cq_event = no_event,
                                        .create_qp = create_qp,
                                        .modify_qp = modify_qp,
                                        .destroy_qp = destroy_qp};
    return 0;
}

static kolo_net_open_t opened(void)
{
    return (kolo_net_open_t){.context = &card.context,
                             .pd = &card.pd,
                             .channel = &card.channel,
                             .name = "card:1",
                             .port = 1,
                             .link = IBV_LINK_LAYER_INFINIBAND,
                             .lid = 3,
                             .mtu = IBV_MTU_4096,
                             .usable = true};
}

static kolo_net_end_t *make_reader(kolo_net_open_t *open, uint32_t depth)
{
    static const uint8_t key[32];
    const kolo_net_end_config_t config = {.depth = depth, .message_bytes = 256, .key = key, .label = "a test"};
    kolo_net_hello_t hello;
    kolo_net_end_t *end;
    assert_int_equal(kolo_verbs_listen(open, &config, &hello, &end), KOLO_OK);
    return end;
}

/* ---- tests ---- */

static void properties_are_filled_in_as_a_whole(void **state)
{
    (void)state;
    kolo_net_device_t device;
    memset(&device, 'x', sizeof device);
    kolo_verbs_properties(0, &device);
    assert_string_equal(device.bus_id, "");
    assert_true(device.gbps == 0);
}

static void a_device_that_was_taken_out_is_named_so(void **state)
{
    (void)state;
    kolo_net_open_t *open = NULL;
    assert_int_equal(kolo_verbs_open(0, &open), KOLO_ERR_SYSTEM);
    if (!strstr(kolo_error_text(), strerror(ENODEV))) fail_msg("%s", kolo_error_text());
}

/* A subnet manager may give a port another LID when it comes back; connections made anew must say that one. */
static void a_port_that_comes_back_is_found_by_what_it_has_now(void **state)
{
    (void)state;
    kolo_net_open_t open = opened();
    card.port = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE, .lid = 9, .active_mtu = IBV_MTU_2048};
    assert_true(kolo_verbs_works(&open));
    assert_int_equal(open.lid, 9);
    assert_int_equal(open.mtu, IBV_MTU_2048);
    card.port.state = IBV_PORT_DOWN;
    assert_false(kolo_verbs_works(&open));
}

static void each_memory_that_messages_came_into_is_read_back(void **state)
{
    (void)state;
    kolo_net_open_t open = opened();
    kolo_net_end_t *end = make_reader(&open, 8);
    struct ibv_mr mr[2] = {{.rkey = 1}, {.rkey = 2}};
    const kolo_net_region_t region[2] = {{.mr = &mr[0], .flushed = true}, {.mr = &mr[1], .flushed = true}};
    static const int where[] = {0, 0, 1, 0};
    static char memory[4][256];
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(kolo_verbs_irecv(end, memory[i], 256, &region[where[i]], i, i), KOLO_OK);
    end->came = 4;
    assert_int_equal(kolo_verbs_flush_step(end), KOLO_OK);
    static const uint32_t keys[] = {1, 2, 1};
    static const uint64_t until[] = {2, 3, 4};
    assert_int_equal(card.nreads, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(card.key[i], keys[i]);
        assert_int_equal(card.until[i], until[i]);
        assert_int_equal(card.address[i], (uintptr_t)memory[until[i] - 1]);
    }
    assert_int_equal(end->safe, 0);
    for (size_t i = 0; i < 3; i++) {
        kolo_verbs_flush_done(end, until[i]);
        assert_int_equal(end->safe, until[i]);
    }
    assert_int_equal(kolo_verbs_flush_step(end), KOLO_OK);
    assert_int_equal(card.nreads, 3);
    kolo_verbs_shut(end);
}

/* When a queue pair fails all its requests end at once. */
static void completions_of_all_queue_pairs_have_room(void **state)
{
    (void)state;
    kolo_net_open_t open = opened();
    kolo_net_end_t *end = make_reader(&open, 1);
    struct ibv_mr mr = {.rkey = 1};
    const kolo_net_region_t region = {.mr = &mr, .flushed = true};
    char memory[256];
    assert_int_equal(kolo_verbs_irecv(end, memory, sizeof memory, &region, 0, 0), KOLO_OK);
    assert_int_equal(card.nqps, 2);
    assert_true(card.entries >= (int)card.completions);
    kolo_verbs_shut(end);
}

/* RoCE: the system asks for the peer's Ethernet address as a queue pair goes to RTR, and a packet may be lost. */
static void a_lost_question_for_the_peer_is_asked_again(void **state)
{
    (void)state;
    kolo_net_open_t open = opened();
    kolo_net_end_t *end = make_reader(&open, 1);
    card.silences = 3;
    assert_int_equal(kolo_verbs_qp_ready(end, end->qp, &end->mine, &end->mine), KOLO_OK);
    assert_int_equal(card.asked, 4);
    card.silences = 100; /* it is not there */
    assert_int_equal(kolo_verbs_qp_ready(end, end->qp, &end->mine, &end->mine), KOLO_ERR_SYSTEM);
    if (!strstr(kolo_error_text(), strerror(ETIMEDOUT))) fail_msg("%s", kolo_error_text());
    assert_int_equal(card.asked, 8);
    kolo_verbs_shut(end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(properties_are_filled_in_as_a_whole, begin),
        cmocka_unit_test_setup(a_device_that_was_taken_out_is_named_so, begin),
        cmocka_unit_test_setup(a_port_that_comes_back_is_found_by_what_it_has_now, begin),
        cmocka_unit_test_setup(each_memory_that_messages_came_into_is_read_back, begin),
        cmocka_unit_test_setup(completions_of_all_queue_pairs_have_room, begin),
        cmocka_unit_test_setup(a_lost_question_for_the_peer_is_asked_again, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
