/* SPDX-License-Identifier: Apache-2.0
 *
 * The hierarchical backend against the flat one, on ranks that take themselves for several hosts: whole numbers
 * must be equal, floats within what two orders of summing may differ by; all ranks have the same bits; and each
 * operation ran where it was to run. With process sets that come and go, and after a loss.
 */
#include "kit/procs.h"

#include <kolo/engine.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define WAIT_MS 60000
#define LARGEST 70001

typedef struct {
    kolo_tensor_engine_t levels, flat;
    int rank, size, set; /* rank and size of the set */
} pair_t;

static uint64_t ran(kolo_tensor_engine_t e, const char *name)
{
    kolo_backend_info_t info;
    for (int i = 0; kolo_engine_get_backend(e, i, &info) == KOLO_OK; i++)
        if (strcmp(info.name, name) == 0) return info.operations;
    return UINT64_MAX;
}

static bool open_pair(pair_t *p, kolo_comm_t comm, int rank, int size)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    *p = (pair_t){.rank = rank, .size = size};
    config.backends = "hierarchical";
    if (!EXPECT_OK(kolo_engine_init(&p->levels, comm, &config))) return false;
    config.backends = "kolo";
    return EXPECT_OK(kolo_engine_init(&p->flat, comm, &config));
}

static void close_pair(const pair_t *p)
{
    EXPECT_OK(kolo_engine_shutdown(p->levels));
    EXPECT_OK(kolo_engine_shutdown(p->flat));
}

/* ---- all_reduce ---- */

static kolo_status_t reduce(const pair_t *p, kolo_tensor_engine_t e, const char *name, kolo_type_t type,
                            int64_t count, const void *in, void *out, kolo_op_t op)
{
    kolo_tensor_t t = {name, type, 1, &count, in, out};
    kolo_submission_t how = {.set = p->set};
    int64_t handle;
    kolo_status_t status = kolo_engine_all_reduce(e, &t, op, 1, 1, &how, &handle);
    return status == KOLO_OK ? kolo_engine_wait(e, handle, WAIT_MS, NULL) : status;
}

/* A number that depends on rank and place alone: all can compute the sum of the amounts. */
static int number(int rank, int64_t i)
{
    return (int)((uint32_t)(rank * 7919 + i * 104729 + rank * i % 31) % 201) - 100;
}

static void compare_whole(const pair_t *p, int64_t count, kolo_op_t op, bool in_place)
{
    int32_t *in = malloc((size_t)(count + 1) * 4), *a = malloc((size_t)(count + 1) * 4);
    int32_t *b = malloc((size_t)(count + 1) * 4);
    char name[40];
    for (int64_t i = 0; i <= count; i++) in[i] = a[i] = b[i] = number(p->rank, i);
    snprintf(name, sizeof name, "whole.%lld.%d.%d", (long long)count, op, p->set);
    EXPECT_OK(reduce(p, p->levels, name, KOLO_INT32, count, in_place ? a : in, a, op));
    EXPECT_OK(reduce(p, p->flat, name, KOLO_INT32, count, in, b, op));
    if (memcmp(a, b, (size_t)(count + 1) * 4) != 0) {
        int64_t i = 0;
        while (a[i] == b[i]) i++;
        fprintf(stderr, "%s: at %lld %d instead of %d\n", name, (long long)i, a[i], b[i]);
        EXPECT(!"equal");
    }
    free(in);
    free(a);
    free(b);
}

static void compare_floats(const pair_t *p, int64_t count, kolo_op_t op)
{
    float *in = malloc((size_t)count * 4), *a = malloc((size_t)count * 4), *b = malloc((size_t)count * 4);
    uint32_t hash = 1, hashes[2] = {0, 0};
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) in[i] = (float)number(p->rank, i) / 7;
    EXPECT_OK(reduce(p, p->levels, "float", KOLO_FLOAT32, count, in, a, op));
    EXPECT_OK(reduce(p, p->flat, "float", KOLO_FLOAT32, count, in, b, op));
    for (int64_t i = 0; i < count; i++) {
        double amount = 0;
        for (int r = 0; r < p->size; r++) amount += fabs(number(r, i) / 7.0);
        if (op == KOLO_AVG) amount = amount / p->size * 3; /* scaling rounds, too */
        double bound = 2 * (p->size - 1) * 0x1p-24 * amount;
        if (op == KOLO_MAX) bound = 0;
        wrong += !(fabs((double)a[i] - (double)b[i]) <= bound);
    }
    EXPECT(wrong == 0);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &a[i], 4);
        hash = (hash ^ bits) * 16777619u;
    }
    EXPECT_OK(reduce(p, p->flat, "lowest", KOLO_UINT32, 1, &hash, &hashes[0], KOLO_MIN));
    EXPECT_OK(reduce(p, p->flat, "highest", KOLO_UINT32, 1, &hash, &hashes[1], KOLO_MAX));
    EXPECT(hashes[0] == hashes[1]);
    free(in);
    free(a);
    free(b);
}

/* ---- all_gather ---- */

static void compare_gather(const pair_t *p, int scale)
{
    int64_t shape[2] = {(int64_t)(number(p->rank, scale) & 3) * scale, 3}, rows = 0;
    for (int r = 0; r < p->size; r++) rows += (number(r, scale) & 3) * scale;
    size_t bytes = (size_t)rows * 3 * 2, mine = (size_t)shape[0] * 3 * 2;
    int16_t *in = malloc(mine + 1), *a = calloc(1, bytes + 1), *b = calloc(1, bytes + 1);
    kolo_tensor_engine_t engines[] = {p->levels, p->flat};
    int16_t *outs[] = {a, b};
    char name[32];
    for (size_t i = 0; i < mine / 2; i++) in[i] = (int16_t)number(p->rank, (int64_t)i);
    snprintf(name, sizeof name, "gather.%d", scale);
    for (int k = 0; k < 2; k++) {
        kolo_tensor_t t = {name, KOLO_FLOAT16, 2, shape, in, outs[k]};
        kolo_submission_t how = {.set = p->set};
        int64_t handle;
        EXPECT_OK(kolo_engine_all_gather(engines[k], &t, &how, &handle));
        EXPECT_OK(kolo_engine_wait(engines[k], handle, WAIT_MS, NULL));
    }
    EXPECT(memcmp(a, b, bytes) == 0);
    free(in);
    free(a);
    free(b);
}

/* ---- all of it ---- */

typedef struct {
    bool even, levels; /* hosts have equally many ranks; there are several hosts, not all of one rank */
} layout_t;

static void compare(const pair_t *p, layout_t layout)
{
    static const int64_t counts[] = {0, 1, 2, 3, 5, 64, 1001, LARGEST};
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_PROD, KOLO_MIN, KOLO_MAX};
    uint64_t before = ran(p->levels, "hierarchical"), moved = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, moved++)
        compare_whole(p, counts[i], ops[i % 4], i % 2);
    for (int round = 0; round < 3; round++, moved += 2 + layout.even) { /* cached from the second on */
        compare_floats(p, LARGEST, KOLO_SUM);
        compare_floats(p, 333, KOLO_MAX);
        compare_floats(p, 12345, KOLO_AVG);
    }
    compare_whole(p, 77, KOLO_AVG, false); /* flat: truncated once */
    for (int scale = 0; scale < 3; scale++) {
        compare_gather(p, scale * scale * 100);
        moved += layout.even;
    }
    EXPECT(ran(p->levels, "hierarchical") - before == (layout.levels ? moved : 0));
    EXPECT(ran(p->flat, "hierarchical") == 0);
}

static void compare_world(proc_t *p)
{
    pair_t pair;
    if (!open_pair(&pair, p->r.comm, p->r.rank, p->r.nranks)) return;
    compare(&pair, *(const layout_t *)p->r.arg);
    proc_meet(p, 0);
    close_pair(&pair);
}

static void run(int n, const char *const *env, layout_t layout)
{
    job_t job;
    job_start(&job, n, env, compare_world, &layout);
    assert_int_equal(job_finish(&job, -1), 0);
}

static void two_hosts_give_what_one_gives(void **state)
{
    (void)state;
    run(4, (const char *const[]){"HOSTS=2", NULL}, (layout_t){true, true});
    run(6, (const char *const[]){"HOSTS=2", NULL}, (layout_t){true, true});
}

static void hosts_of_different_sizes_share_their_pieces(void **state)
{
    (void)state;
    run(5, (const char *const[]){"HOSTS=2", NULL}, (layout_t){false, true});
    run(4, (const char *const[]){"HOSTS=3", NULL}, (layout_t){false, true});
}

static void ranks_may_lie_anyhow_on_the_hosts(void **state)
{
    static const char *const env[] = {"KOLO_HOST_ID=a", "@1:KOLO_HOST_ID=b", "@2:KOLO_HOST_ID=b",
                                      "@5:KOLO_HOST_ID=b", NULL};
    (void)state;
    run(6, env, (layout_t){true, true});
}

static void one_host_or_one_rank_each_is_flat(void **state)
{
    (void)state;
    run(3, (const char *const[]){"HOSTS=1", NULL}, (layout_t){true, false});
    run(3, (const char *const[]){"HOSTS=3", NULL}, (layout_t){true, false});
}

/* ---- process sets ---- */

static void use_set(const pair_t *all, const int *ranks, int count, layout_t layout)
{
    pair_t p = *all;
    int sets[2];
    EXPECT_OK(kolo_engine_add_set(p.levels, ranks, count, &sets[0]));
    EXPECT_OK(kolo_engine_add_set(p.flat, ranks, count, &sets[1]));
    EXPECT(sets[0] == sets[1]);
    p.set = sets[0];
    p.rank = -1;
    p.size = count;
    for (int i = 0; i < count; i++)
        if (ranks[i] == all->rank) p.rank = i;
    if (p.rank >= 0) compare(&p, layout);
    EXPECT_OK(kolo_engine_remove_set(p.levels, sets[0]));
    EXPECT_OK(kolo_engine_remove_set(p.flat, sets[1]));
}

static void sets_come_and_go(proc_t *p)
{
    static const int most[] = {0, 1, 2, 3}, across[] = {1, 2, 4, 5}, apart[] = {0, 5}, here[] = {0, 1, 2};
    pair_t pair;
    if (!open_pair(&pair, p->r.comm, p->r.rank, p->r.nranks)) return;
    use_set(&pair, most, 4, (layout_t){false, true}); /* 3 and 1 on the hosts */
    compare(&pair, (layout_t){true, true});
    use_set(&pair, across, 4, (layout_t){true, true});
    use_set(&pair, apart, 2, (layout_t){true, false});
    use_set(&pair, here, 3, (layout_t){true, false});
    proc_meet(p, 0);
    close_pair(&pair);
}

static void each_process_set_has_levels_of_its_own(void **state)
{
    (void)state;
    job_t job;
    job_start(&job, 6, (const char *const[]){"HOSTS=2", NULL}, sets_come_and_go, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- a loss ---- */

#define VICTIM 2

static void go_on(proc_t *p)
{
    const int dead[] = {VICTIM};
    kolo_comm_t smaller;
    pair_t pair;
    if (!EXPECT_OK(kolo_comm_shrink(p->r.comm, dead, 1, KOLO_SHRINK_ABORT, &smaller, NULL))) return;
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = smaller;
    if (!open_pair(&pair, smaller, p->r.rank - (p->r.rank > VICTIM), 4)) return;
    compare(&pair, (layout_t){true, true});
    proc_meet(p, 2);
    close_pair(&pair);
}

static void lose_one(proc_t *p)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e;
    kolo_status_t status = KOLO_OK;
    pair_t pair = {.size = p->r.nranks};
    static float x[LARGEST];
    config.backends = "hierarchical";
    if (!EXPECT_OK(kolo_engine_init(&e, p->r.comm, &config))) return;
    for (uint64_t end = now_ms() + 30000; status == KOLO_OK && now_ms() < end;) {
        status = reduce(&pair, e, "again and again", KOLO_FLOAT32, LARGEST, x, x, KOLO_SUM);
        if (ran(e, "hierarchical") == 20) atomic_fetch_add(&p->shared->arrived[0], 1);
    }
    EXPECT_ERROR(KOLO_ERR_REMOTE, status, "rank 2 (host ");
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_engine_shutdown(e), "rank 2 (host ");
    proc_meet(p, 1);
    go_on(p);
}

static void a_loss_is_told_and_a_new_engine_has_new_levels(void **state)
{
    (void)state;
    job_t job;
    job_start(&job, 5, (const char *const[]){"HOSTS=2", NULL}, lose_one, NULL);
    job_await(&job, 0, 5);
    kill(job.pids[VICTIM], SIGKILL);
    atomic_fetch_add(&job.shared->arrived[1], 1);
    atomic_fetch_add(&job.shared->arrived[2], 1);
    assert_int_equal(job_finish(&job, VICTIM), 0);
    waitpid(job.pids[VICTIM], NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_hosts_give_what_one_gives),
                                       cmocka_unit_test(hosts_of_different_sizes_share_their_pieces),
                                       cmocka_unit_test(ranks_may_lie_anyhow_on_the_hosts),
                                       cmocka_unit_test(one_host_or_one_rank_each_is_flat),
                                       cmocka_unit_test(each_process_set_has_levels_of_its_own),
                                       cmocka_unit_test(a_loss_is_told_and_a_new_engine_has_new_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
