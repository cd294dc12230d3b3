/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators that are aborted while they are being made, at any moment: init, dup, shrink that do not block, a
 * shrink that begins again because a rank goes. For sanitizers above all: the thread that makes one takes back what
 * it has made while another one tells it to end. Ranks are threads.
 */
#include "kit/ranks.h"

#define RANKS  4
#define ROUNDS 40

typedef struct {
    int round;
    kolo_unique_id_t id;
} case_t;

static kolo_config_t not_blocking(void)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

/* From none to milliseconds, another one for each rank and round. */
static void wait_a_little(int rank, int round)
{
    unsigned drawn = (unsigned)rank * 2654435761u ^ (unsigned)round * 40503u * 7919u;
    unsigned spins = drawn % (drawn & 1024 ? 2000000 : 50000);
    for (unsigned i = 0; i < spins; i++) __asm__ volatile("" ::: "memory");
}

static void end_a_start(const rank_t *r, kolo_comm_t comm, int round)
{
    kolo_status_t status = KOLO_OK;
    if (!comm) return;
    wait_a_little(r->rank, round);
    EXPECT_OK(kolo_comm_abort(comm));
    EXPECT_OK(kolo_comm_get_async_error(comm, &status));
    EXPECT_IS(KOLO_ERR_ABORTED, status);
}

static void abort_inits(rank_t *r)
{
    case_t *c = r->arg;
    kolo_config_t config = not_blocking();
    kolo_comm_t comm = NULL;
    EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_init_rank(&comm, r->nranks, c->id, r->rank, &config));
    end_a_start(r, comm, c->round);
}

static void starts_of_all_ranks_are_aborted(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        case_t c = {.round = i};
        assert_int_equal(kolo_get_unique_id(&c.id), KOLO_OK);
        assert_int_equal(run_threads(RANKS, abort_inits, &c), 0);
    }
}

static void abort_children(rank_t *r)
{
    const case_t *c = r->arg;
    kolo_config_t config = not_blocking();
    kolo_comm_t child = NULL;
    meet();
    if (c->round % 2)
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_dup(r->comm, &child, &config));
    else
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_comm_shrink(r->comm, NULL, 0, 0, &child, &config));
    end_a_start(r, child, c->round);
    meet();
    EXPECT_OK(kolo_comm_abort(r->comm));
    r->comm = NULL;
}

static void children_are_aborted(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        case_t c = {.round = i};
        assert_int_equal(run_ranks(RANKS, abort_children, &c), 0);
    }
}

int main(void)
{
    limit_s(100);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_of_all_ranks_are_aborted),
        cmocka_unit_test(children_are_aborted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
