/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue from both sides: names are outstanding once, all or none of a group, handles, many submitters at once.
 */
#include "base/test.h"
#include "engine/batch/perform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_entry_t *entry(const char *name)
{
    kolo_entry_t *e = NULL;
    assert_int_equal(kolo_entry_new(name, (uint32_t)strlen(name), NULL, 0, &e), KOLO_OK);
    return e;
}

static void all_of_a_group_or_none(void **state)
{
    kolo_queue_t q;
    kolo_tensors_t l;
    int64_t handles[3];
    (void)state;
    assert_int_equal(kolo_queue_init(&q), KOLO_OK);
    kolo_tensors_init(&l, &q, 0);
    kolo_entry_t *first = entry("b"), *group[3] = {entry("a"), entry("c"), entry("b")};
    assert_int_equal(kolo_tensors_push(&l, &first, 1, NULL), KOLO_OK);
    assert_int_equal(kolo_tensors_push(&l, group, 3, handles), KOLO_ERR_INVALID_USAGE);
    assert_non_null(strstr(kolo_error_text(), "tensor b is outstanding"));
    assert_ptr_equal(kolo_tensors_take(&l), first);
    assert_null(first->next);
    assert_null(kolo_tensors_take(&l));
    kolo_tensors_finish(&l, &first, 1);
    assert_int_equal(kolo_tensors_push(&l, group, 3, handles), KOLO_OK); /* the name is free again */
    kolo_entry_t *taken = kolo_tensors_take(&l);
    for (int i = 0; i < 3; i++, taken = taken->next) assert_ptr_equal(taken, group[i]);
    assert_ptr_equal(kolo_tensors_find(&l, &group[1]->request.name), group[1]);
    kolo_tensors_finish(&l, group, 3);
    kolo_tensors_fini(&l);
    kolo_queue_fini(&q); /* handles that nobody waits for go with it */
}

static void handles_are_good_for_one_wait(void **state)
{
    kolo_queue_t q;
    kolo_tensors_t l;
    int64_t handles[200];
    int complete;
    (void)state;
    assert_int_equal(kolo_queue_init(&q), KOLO_OK);
    kolo_tensors_init(&l, &q, 0);
    for (int round = 0; round < 3; round++) {
        kolo_entry_t *all[200];
        for (int i = 0; i < 200; i++) {
            char name[16];
            snprintf(name, sizeof name, "n%d", i);
            all[i] = entry(name);
            assert_int_equal(kolo_tensors_push(&l, &all[i], 1, &handles[i]), KOLO_OK);
        }
        kolo_tensors_take(&l);
        assert_int_equal(kolo_queue_poll(&q, handles[7], &complete), KOLO_OK);
        assert_int_equal(complete, 0);
        assert_int_equal(kolo_queue_wait(&q, handles[7], 5, NULL), KOLO_ERR_TIMEOUT);
        kolo_entry_fail(all[3], KOLO_ERR_MISMATCH, "they differ");
        kolo_tensors_finish(&l, all, 200);
        assert_int_equal(kolo_queue_poll(&q, handles[7], &complete), KOLO_OK);
        assert_int_equal(complete, 1);
        for (int i = 0; i < 200; i++) {
            kolo_completion_t c;
            assert_int_equal(kolo_queue_wait(&q, handles[i], 5, &c), i == 3 ? KOLO_ERR_MISMATCH : KOLO_OK);
            assert_int_equal(atoi(c.name + 1), i);
            if (i == 3) assert_string_equal(c.text, "they differ");
            assert_int_equal(kolo_queue_wait(&q, handles[i], 5, &c), KOLO_ERR_INVALID_ARGUMENT);
        }
    }
    kolo_tensors_fini(&l);
    kolo_queue_fini(&q);
}

static void a_closed_queue_says_why(void **state)
{
    kolo_queue_t q;
    kolo_tensors_t l;
    kolo_entry_t *e = entry("x"), *late = entry("late"), *drained;
    (void)state;
    assert_int_equal(kolo_queue_init(&q), KOLO_OK);
    kolo_tensors_init(&l, &q, 0);
    assert_int_equal(kolo_tensors_push(&l, &e, 1, NULL), KOLO_OK);
    kolo_queue_close(&q, KOLO_ERR_REMOTE, "rank 3 was lost");
    assert_int_equal(kolo_tensors_push(&l, &late, 1, NULL), KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "rank 3 was lost"));
    drained = kolo_tensors_drain(&l);
    assert_ptr_equal(drained, e);
    kolo_tensors_finish(&l, &drained, 1);
    assert_null(kolo_tensors_drain(&l));
    kolo_entry_free(late);
    kolo_tensors_fini(&l);
    kolo_queue_fini(&q);
}

/* ---- many threads ---- */

enum { THREADS = 4, EACH = 2000 };
typedef struct {
    kolo_queue_t *q;
    kolo_tensors_t *l;
    int id;
} submitter_t;

static void *submit_many(void *arg)
{
    const submitter_t *s = arg;
    for (int i = 0; i < EACH; i++) {
        char name[32];
        kolo_entry_t *e = NULL;
        int64_t handle;
        snprintf(name, sizeof name, "t%d.%d", s->id, i % 50);
        if (kolo_entry_new(name, (uint32_t)strlen(name), NULL, 0, &e) != KOLO_OK) abort();
        if (kolo_tensors_push(s->l, &e, 1, &handle) != KOLO_OK) abort();
        if (kolo_queue_wait(s->q, handle, 20000, NULL) != KOLO_OK) abort();
    }
    return NULL;
}

static void many_threads_submit(void **state)
{
    kolo_queue_t q;
    kolo_tensors_t l;
    pthread_t threads[THREADS];
    submitter_t who[THREADS];
    int done = 0;
    (void)state;
    assert_int_equal(kolo_queue_init(&q), KOLO_OK);
    kolo_tensors_init(&l, &q, 0);
    for (int i = 0; i < THREADS; i++) {
        who[i] = (submitter_t){&q, &l, i};
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, &who[i]), 0);
    }
    while (done < THREADS * EACH) {
        for (kolo_entry_t *e = kolo_tensors_take(&l), *next; e; e = next) {
            next = e->next;
            kolo_tensors_finish(&l, &e, 1);
            done++;
        }
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(l.names.count, 0);
    kolo_tensors_fini(&l);
    kolo_queue_fini(&q);
}

static int pick(const char *text, int local_rank)
{
    int core = 7777, listed = kolo_cores_pick(text, local_rank, &core);
    return listed < 0 ? -2 : core;
}

static void each_local_rank_has_its_core(void **state)
{
    int unused;
    static const char *const bad[] = {"",     "-2",     "-1,3", "3,",  ",3",  "4-3",
                                      "1024", "0-1024", "a",    "1 2", "0x1", "1--2"};
    (void)state;
    assert_int_equal(pick("-1", 0), -1);
    assert_int_equal(pick("5", 0), 5);
    assert_int_equal(pick("5", 3), 5); /* one is everybody's */
    static const int wanted[] = {0, 2, 8, 9, 10, 11, -1};
    for (int i = 0; i < 7; i++) assert_int_equal(pick("0,2,8-11", i), wanted[i]);
    assert_int_equal(kolo_cores_pick("0,2,8-11", 0, &unused), 6);
    assert_int_equal(kolo_cores_pick("-1", 0, &unused), 0);
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        if (pick(bad[i], 0) != -2) fail_msg("\"%s\" is taken", bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_a_group_or_none),       cmocka_unit_test(handles_are_good_for_one_wait),
        cmocka_unit_test(a_closed_queue_says_why),      cmocka_unit_test(many_threads_submit),
        cmocka_unit_test(each_local_rank_has_its_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
