/* SPDX-License-Identifier: Apache-2.0
 *
 * First messages between ranks that come to each other late: one of a group's peers calls only after another one
 * has had its message, along chains and rings, over several communicators, on streams or not; or it calls after the
 * time limit of making connections. No connection is there before, and no message waits for another one's peer.
 */
#include "kit/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { LONG = 70000 }; /* elements: more than a queue has room for */

typedef enum { HERE, ON_A_STREAM, ON_STREAMS, WAYS } way_t;
static const size_t lengths[] = {1, 300, LONG};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

typedef struct {
    way_t way;
    size_t n;
} manner_t;

typedef struct {
    rank_t *r;
    const manner_t *mode;
    kolo_comm_t comms[2];
    kolo_stream_t streams[2];
    int calls;
    int32_t *out, *in[2][MAX_RANKS];
} run_t;

static void *next_stream(run_t *run)
{
    if (run->mode->way == HERE) return NULL;
    return run->streams[run->mode->way == ON_STREAMS ? run->calls++ % 2 : 0];
}

static void give(run_t *run, int comm, int to)
{
    EXPECT_OK(kolo_send(run->out, run->mode->n, KOLO_INT32, to, run->comms[comm], next_stream(run)));
}

static void take(run_t *run, int comm, int from)
{
    EXPECT_OK(kolo_recv(run->in[comm][from], run->mode->n, KOLO_INT32, from, run->comms[comm], next_stream(run)));
}

static void begin(run_t *run, rank_t *r)
{
    *run = (run_t){.r = r, .mode = r->arg, .comms = {r->comm}};
    EXPECT_OK(kolo_comm_split(r->comm, 0, 0, &run->comms[1], NULL));
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_create(&run->streams[i]));
    run->out = malloc(run->mode->n * sizeof *run->out);
    fill_ints(run->out, run->mode->n, r->rank + 1);
    for (int c = 0; c < 2; c++)
        for (int p = 0; p < r->nranks; p++) run->in[c][p] = calloc(run->mode->n, sizeof *run->out);
}

/* from: a bit for each rank whose message must have come. */
static void end(run_t *run, unsigned from0, unsigned from1)
{
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_synchronize(run->streams[i]));
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_destroy(run->streams[i]));
    for (int c = 0; c < 2; c++) {
        unsigned from = c ? from1 : from0;
        for (int p = 0; p < run->r->nranks; p++) {
            if (from >> p & 1) EXPECT(ints_are(run->in[c][p], run->mode->n, p + 1));
            free(run->in[c][p]);
        }
    }
    free(run->out);
    end_comm(&run->comms[1]);
}

static void each_way(int nranks, void (*fn)(rank_t *))
{
    for (way_t way = HERE; way < WAYS; way++) {
        for (size_t l = 0; l < LENGTHS; l++) {
            manner_t mode = {way, lengths[l]};
            assert_int_equal(run_ranks(nranks, fn, &mode), 0);
        }
    }
}

/* Rank 0 sends to all in one group; each passes what it got on to the next, which takes that one first. */
static void spread_to_a_chain(rank_t *r)
{
    run_t run;
    begin(&run, r);
    int last = r->nranks - 1;
    if (r->rank == 0) {
        EXPECT_OK(kolo_group_start());
        for (int p = last; p > 0; p--) give(&run, 0, p);
        EXPECT_OK(kolo_group_end());
    } else {
        if (r->rank > 1) take(&run, 0, r->rank - 1);
        take(&run, 0, 0);
        if (r->rank < last) give(&run, 0, r->rank + 1);
    }
    end(&run, r->rank == 0 ? 0 : 1u | 1u << (r->rank - 1), 0);
}

static void a_group_of_sends_to_ranks_that_wait_for_each_other(void **state)
{
    (void)state;
    each_way(3, spread_to_a_chain);
    each_way(6, spread_to_a_chain);
}

/* The other way round: rank 0 takes from all in one group, and a rank sends to it when the one after it has. */
static void gather_from_a_chain(rank_t *r)
{
    run_t run;
    begin(&run, r);
    int last = r->nranks - 1;
    if (r->rank == 0) {
        EXPECT_OK(kolo_group_start());
        for (int p = 1; p <= last; p++) take(&run, 0, p);
        EXPECT_OK(kolo_group_end());
    } else {
        if (r->rank < last) take(&run, 0, r->rank + 1);
        give(&run, 0, 0);
        if (r->rank > 1) give(&run, 0, r->rank - 1);
    }
    end(&run, r->rank == 0 ? (1u << r->nranks) - 2 : r->rank < last ? 1u << (r->rank + 1) : 0, 0);
}

static void a_group_of_receives_from_ranks_that_wait_for_each_other(void **state)
{
    (void)state;
    each_way(3, gather_from_a_chain);
    each_way(6, gather_from_a_chain);
}

/* One group over two communicators; the peers use the second one first, and then, by what they got, the first. */
static void spread_over_two(rank_t *r)
{
    run_t run;
    begin(&run, r);
    if (r->rank == 0) {
        EXPECT_OK(kolo_group_start());
        for (int p = 1; p < r->nranks; p++) give(&run, 0, p);
        for (int p = 1; p < r->nranks; p++) take(&run, 1, p);
        EXPECT_OK(kolo_group_end());
    } else {
        if (r->rank > 1) take(&run, 1, r->rank - 1);
        give(&run, 1, 0);
        take(&run, 0, 0);
        if (r->rank + 1 < r->nranks) give(&run, 1, r->rank + 1);
    }
    unsigned all = (1u << r->nranks) - 2;
    end(&run, r->rank == 0 ? 0 : 1, r->rank == 0 ? all : r->rank > 1 ? 1u << (r->rank - 1) : 0);
}

static void a_group_over_two_communicators(void **state)
{
    (void)state;
    each_way(3, spread_over_two);
    each_way(5, spread_over_two);
}

/* ---- later than the time limit of making connections ---- */

enum { LIMIT_MS = 1500 };
typedef enum { SMALL, LARGE, EXCHANGE, FAN, SINGLE, KINDS } kind_t;

typedef struct {
    kolo_unique_id_t id;
    kind_t kind;
    bool blocking, on_a_stream;
} late_t;

/* Of three ranks. The last one comes late to its part. */
static kolo_status_t call(const rank_t *r, kind_t kind, int32_t *data, void *stream)
{
    size_t n = kind == SMALL ? 2 : LONG;
    int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    if (kind == SMALL || kind == LARGE)
        return kolo_all_reduce(data, data + LONG, n, KOLO_INT32, KOLO_SUM, r->comm, stream);
    if (kind == SINGLE && r->rank == 1) return KOLO_OK;
    if (kind == SINGLE)
        return r->rank == 0 ? kolo_recv(data + LONG, n, KOLO_INT32, 2, r->comm, stream)
                            : kolo_send(data, n, KOLO_INT32, 0, r->comm, stream);
    EXPECT_OK(kolo_group_start());
    if (kind == EXCHANGE || r->rank == 0) EXPECT_OK(kolo_send(data, n, KOLO_INT32, next, r->comm, stream));
    if (kind == FAN && r->rank == 0) EXPECT_OK(kolo_send(data, n, KOLO_INT32, before, r->comm, stream));
    if (kind == EXCHANGE || r->rank > 0)
        EXPECT_OK(kolo_recv(data + LONG, n, KOLO_INT32, kind == FAN ? 0 : before, r->comm, stream));
    return kolo_group_end();
}

static bool came(const rank_t *r, kind_t kind, const int32_t *data)
{
    int before = (r->rank + r->nranks - 1) % r->nranks;
    if (kind == SMALL) return data[LONG] == 6 && data[LONG + 1] == 6;
    if (kind == LARGE) return data[LONG] == 6 && data[2 * LONG - 1] == 6;
    if (kind == FAN && r->rank == 0) return true;
    if (kind == SINGLE && r->rank > 0) return true;
    int from = kind == FAN ? 0 : kind == SINGLE ? 2 : before;
    return data[LONG] == from + 1 && data[2 * LONG - 1] == from + 1;
}

static void use_with_a_late_rank(rank_t *r)
{
    const late_t *l = r->arg;
    int32_t *data = calloc(2 * LONG, sizeof *data);
    kolo_stream_t stream = NULL;
    kolo_config_t c = KOLO_CONFIG_INITIALIZER;
    c.blocking = l->blocking;
    c.init_timeout_ms = LIMIT_MS;
    c.name = "patient";
    for (int i = 0; i < LONG; i++) data[i] = r->rank + 1;
    kolo_status_t status = kolo_comm_init_rank(&r->comm, r->nranks, l->id, r->rank, &c);
    if (!EXPECT_OK(settled(r->comm, status))) abort();
    if (l->on_a_stream) EXPECT_OK(kolo_stream_create(&stream));
    meet();
    if (r->rank == 2) nap_ms(LIMIT_MS + LIMIT_MS / 2);
    EXPECT_OK(settled(r->comm, call(r, l->kind, data, stream)));
    if (stream) EXPECT_OK(kolo_stream_destroy(stream));
    EXPECT(came(r, l->kind, data));
    meet();
    EXPECT_OK(settled(r->comm, kolo_comm_finalize(r->comm)));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    free(data);
}

static void a_rank_may_come_after_the_limit_of_connecting(void **state)
{
    (void)state;
    for (int kind = SMALL; kind < KINDS; kind++) {
        for (int how = 0; how < (kind == FAN ? 3 : 1); how++) {
            late_t l = {.kind = (kind_t)kind, .blocking = how != 1, .on_a_stream = how == 2};
            assert_int_equal(kolo_get_unique_id(&l.id), KOLO_OK);
            int failures = run_threads(3, use_with_a_late_rank, &l);
            if (failures) print_message("kind %d, %d: %d failures\n", kind, how, failures);
            assert_int_equal(failures, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_of_sends_to_ranks_that_wait_for_each_other),
        cmocka_unit_test(a_group_of_receives_from_ranks_that_wait_for_each_other),
        cmocka_unit_test(a_group_over_two_communicators),
        cmocka_unit_test(a_rank_may_come_after_the_limit_of_connecting),
    };
    limit_s(200);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
