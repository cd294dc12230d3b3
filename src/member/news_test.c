/* SPDX-License-Identifier: Apache-2.0
 *
 * News reach every rank: also past dead neighbours, on a ring and on the logarithmic pattern; who is lost is told
 * so itself; a revoke ends waits everywhere, but not those of an agreement.
 */
#include "member/member.h"
#include "oob/oob_test_util.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 30000

static bool in_time(uint64_t since)
{
    poll(NULL, 0, 2);
    return kolo_now_ns() - since < LIMIT_MS * KOLO_NS_PER_MS;
}

/* ---- deaths ---- */

typedef struct {
    int nranks, nvictims, victims[5];
} death_t;

static bool is_victim(const death_t *d, int rank)
{
    for (int i = 0; i < d->nvictims; i++)
        if (d->victims[i] == rank) return true;
    return false;
}

static void survive(const death_t *d, int rank, int id_pipe, int ready)
{
    kolo_unique_id_t id;
    kolo_oob_config_t config = {rank, d->nranks, 1, &id, LIMIT_MS, NULL, "test"};
    kolo_oob_t *oob;
    uint8_t bits[8] = {0};
    alarm(60);
    if (read(id_pipe, &id, sizeof(id)) != sizeof(id)) _exit(9);
    if (kolo_oob_open(&config, &oob) != KOLO_OK || kolo_oob_barrier(oob) != KOLO_OK) _exit(10);
    if (write(ready, "r", 1) != 1) _exit(11);
    uint64_t start = kolo_now_ns();
    while (kolo_news_get_lost(oob, bits) < d->nvictims && in_time(start)) continue;
    int bad = kolo_news_get_lost(oob, bits) != d->nvictims;
    for (int r = 0; r < d->nranks; r++) bad += (bits[r / 8] >> (r % 8) & 1) != is_victim(d, r);
    if (bad) fprintf(stderr, "rank %d knows of %d\n", rank, kolo_news_get_lost(oob, bits));
    if (write(ready, "d", 1) != 1) _exit(12);
    pause(); /* until the parent has seen all: leaving is news too */
    _exit(13);
}

static void await_letters(int fd, int count)
{
    char c;
    for (int i = 0; i < count; i++) test_equal(read(fd, &c, 1), 1);
}

static void all_survivors_know_all_the_dead(void **state)
{
    static const death_t deaths[] = {{8, 3, {2, 3, 6}}, {5, 1, {0}}, {20, 5, {1, 2, 3, 5, 9}}};
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan has no threads after a fork of a process that has some */
#endif
    for (size_t k = 0; k < KOLO_COUNTOF(deaths); k++) {
        const death_t *d = &deaths[k];
        kolo_unique_id_t id;
        pid_t children[20];
        int id_pipe[2], ready[2], survivors = d->nranks - d->nvictims;
        test_true(pipe(id_pipe) == 0 && pipe(ready) == 0);
        for (int r = 0; r < d->nranks; r++)
            if ((children[r] = fork()) == 0) survive(d, r, id_pipe[0], ready[1]);
        test_ok(kolo_id_create(&id));
        for (int r = 0; r < d->nranks; r++) test_equal(write(id_pipe[1], &id, sizeof(id)), sizeof(id));
        await_letters(ready[0], d->nranks);
        uint64_t start = kolo_now_ns();
        for (int i = 0; i < d->nvictims; i++) kill(children[d->victims[i]], SIGKILL);
        await_letters(ready[0], survivors);
        uint64_t took = (kolo_now_ns() - start) / KOLO_NS_PER_MS;
        print_message("%d of %d ranks die: all know after %llu ms\n", d->nvictims, d->nranks,
                      (unsigned long long)took);
        test_true(IN_TIME(took < LIMIT_MS));
        for (int r = 0; r < d->nranks; r++) kill(children[r], SIGKILL);
        for (int r = 0; r < d->nranks; r++) waitpid(children[r], NULL, 0);
        for (int i = 0; i < 2; i++) close(id_pipe[i]), close(ready[i]);
        kolo_root_stop_all();
    }
}

/* ---- ranks as threads ---- */

static _Atomic int heard[3], arrived;

static void count_news(void *arg, kolo_news_kind_t kind, int rank, const char *why)
{
    (void)arg, (void)rank, (void)why;
    atomic_fetch_add(&heard[kind], 1);
}

/* Nobody leaves before all are here: leaving is news too. */
static void meet(int n)
{
    atomic_fetch_add(&arrived, 1);
    for (uint64_t start = kolo_now_ns(); atomic_load(&arrived) < n && in_time(start);) continue;
    test_true(atomic_load(&arrived) >= n);
}

static void forget(void)
{
    for (int i = 0; i < 3; i++) atomic_store(&heard[i], 0);
    atomic_store(&arrived, 0);
}

static void revoke_in_the_middle(test_rank_t *me)
{
    test_ok(kolo_oob_barrier(me->oob));
    kolo_news_set_handler(me->oob, count_news, NULL);
    meet(me->nranks); /* none is in the barrier above any more */
    if (me->rank == 3) {
        poll(NULL, 0, 30);
        kolo_news_revoke(me->oob);
    }
    test_equal(me->rank == 3 ? KOLO_ERR_REVOKED : kolo_oob_barrier(me->oob), KOLO_ERR_REVOKED);
    if (me->rank != 3) test_says(kolo_error_text(), "rank 3 revoked");
    meet(2 * me->nranks);
    uint8_t out[8] = {0}; /* they can still agree */
    kolo_agreement_t a = {.key = 1, .flags = 3, .out = out, .what = "what comes after"};
    test_ok(kolo_agree_survivors(me->oob, &a));
    test_equal(a.flags, 3);
    kolo_news_set_handler(me->oob, NULL, NULL);
    meet(3 * me->nranks);
}

static void a_revoke_ends_waits_everywhere(void **state)
{
    (void)state;
    for (int n = 5; n < 16; n += 9) {
        forget();
        test_run(n, revoke_in_the_middle);
        assert_int_equal(atomic_load(&heard[KOLO_NEWS_REVOKED]), n);
        assert_int_equal(atomic_load(&heard[KOLO_NEWS_LOST]), 0);
    }
}

static void one_is_reported(test_rank_t *me)
{
    uint64_t word = 0;
    char why[128];
    test_ok(kolo_oob_barrier(me->oob));
    kolo_news_set_handler(me->oob, count_news, NULL);
    meet(me->nranks);
    if (me->rank == 0) kolo_news_report_lost(me->oob, 2, KOLO_LOSS_PROCESS);
    kolo_status_t status = kolo_oob_recv(me->oob, (me->rank + 1) % me->nranks, 9, &word, sizeof(word), 0);
    test_equal(status, me->rank == 2 ? KOLO_ERR_PARTITION : KOLO_ERR_REMOTE);
    if (me->rank == 2) {
        test_says(kolo_error_text(), "this rank was given up");
    } else {
        test_says(kolo_error_text(), "rank 2 was lost");
        test_true(kolo_news_rank_lost(me->oob, 2, why, sizeof(why)));
        test_says(why, "its process ended");
    }
    meet(2 * me->nranks);
}

static void who_is_given_up_is_told_so(void **state)
{
    (void)state;
    forget();
    test_run(6, one_is_reported);
    assert_int_equal(atomic_load(&heard[KOLO_NEWS_PARTITION]), 1);
}

static void one_gives_up(test_rank_t *me)
{
    uint64_t word = 0;
    test_ok(kolo_oob_barrier(me->oob));
    meet(me->nranks);
    if (me->rank == 3) {
        kolo_oob_give_reason(me->oob, "its disk is full");
        kolo_oob_give_notice(me->oob);
        return;
    }
    test_equal(kolo_oob_recv(me->oob, (me->rank + 1) % me->nranks, 9, &word, sizeof(word), 0), KOLO_ERR_REMOTE);
    test_says(kolo_error_text(), "rank 3 was lost: it gave up: its disk is full");
    meet(2 * me->nranks - 1); /* leaving is news too */
}

static void why_a_rank_gave_up_travels_with_the_news(void **state)
{
    (void)state;
    forget();
    test_run(20, one_gives_up);
}

static void late_listener(test_rank_t *me)
{
    meet(me->nranks); /* joining would fail by it */
    if (me->rank == 0) kolo_news_report_lost(me->oob, 1, KOLO_LOSS_PROCESS);
    for (uint64_t start = kolo_now_ns(); me->rank != 1 && kolo_news_get_lost(me->oob, NULL) == 0 && in_time(start);)
        continue;
    if (me->rank != 1) kolo_news_set_handler(me->oob, count_news, NULL);
    meet(2 * me->nranks);
    kolo_news_set_handler(me->oob, NULL, NULL);
}

static void who_asks_late_hears_what_came_before(void **state)
{
    (void)state;
    forget();
    test_run(3, late_listener);
    assert_int_equal(atomic_load(&heard[KOLO_NEWS_LOST]), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_survivors_know_all_the_dead, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_revoke_ends_waits_everywhere, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_is_given_up_is_told_so, test_before, test_after),
        cmocka_unit_test_setup_teardown(why_a_rank_gave_up_travels_with_the_news, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_asks_late_hears_what_came_before, test_before, test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
