/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight record of keyed tensors: what waits for long is written down and told in one sentence, and whatever
 * the bytes are, they are read without harm.
 */
#include "base/file/fds.h"
#include "base/test.h"
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PS     "/job:ps/task:0"
#define WORKER "/job:worker/task:1"

typedef struct {
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    int fd;
} task_t;

static void open_task(task_t *t, const char *name, uint64_t step)
{
    assert_int_equal(kolo_rendezvous_manager_create(&t->manager), KOLO_OK);
    t->manager->watch = kolo_watch_create(name, 1, &t->fd);
    assert_non_null(t->manager->watch);
    assert_int_equal(kolo_rendezvous_manager_initialize(t->manager, name, 1), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(t->manager, step, &t->step), KOLO_OK);
}

static void close_task(task_t *t)
{
    kolo_rendezvous_close(t->step);
    kolo_rendezvous_manager_end(t->manager);
    kolo_fd_close(t->fd);
}

static kolo_status_t never(void *arg, kolo_receive_t receive)
{
    (void)arg;
    kolo_receive_ref(receive);
    return KOLO_OK;
}

static void forget(void *arg, kolo_receive_t receive)
{
    (void)arg;
    kolo_receive_unref(receive); /* that of never() */
}

#define KEY(edge) PS "/device:cpu:0;0000000000000001;" WORKER "/device:cpu:0;" edge ";0:0"

static void who_waits_for_what_is_told_in_a_sentence(void **state)
{
    static const kolo_remote_ops_t nowhere = {never, forget};
    static kolo_watch_view_t worker, ps;
    task_t at_worker, at_ps;
    kolo_receive_t receives[2];
    kolo_value_t value = {.element = KOLO_UINT8, .ndims = 1, .dims = {0}};
    char words[500];
    (void)state;
    open_task(&at_worker, WORKER, 42);
    open_task(&at_ps, PS, 41);
    kolo_rendezvous_manager_set_remote(at_worker.manager, &nowhere, NULL);
    assert_int_equal(kolo_rendezvous_send(at_ps.step, KEY("grad_3"), &value, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_begin(at_worker.step, KEY("grad_3"), NULL, &receives[0]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_begin(at_worker.step, KEY("bias"), NULL, &receives[1]), KOLO_OK);
    kolo_watch_look(at_worker.manager->watch, at_worker.manager);
    assert_true(kolo_watch_view(at_worker.manager->watch, sizeof(kolo_rendezvous_watch_t), &worker));
    assert_int_equal(worker.nwaits, 0); /* not for long yet */
    uint64_t now = kolo_now_ns();
    receives[0]->since_ns = receives[1]->since_ns = now - 31 * KOLO_NS_PER_S;
    kolo_watch_look(at_worker.manager->watch, at_worker.manager);
    assert_true(kolo_watch_view(at_worker.manager->watch, sizeof(kolo_rendezvous_watch_t), &worker));
    assert_true(kolo_watch_view(at_ps.manager->watch, sizeof(kolo_rendezvous_watch_t), &ps));
    assert_int_equal(worker.nwaits, 2);
    bool first = strcmp(worker.waits[0].edge, "grad_3") == 0;
    kolo_watch_words(&worker, &worker.waits[!first], now, &ps, words, sizeof words);
    assert_string_equal(words, "task worker:1 waits 31 s for edge grad_3 of ps:0, which has sent steps up to 41");
    kolo_watch_words(&worker, &worker.waits[first], now, &ps, words, sizeof words);
    assert_string_equal(words, "task worker:1 waits 31 s for edge bias of ps:0, step 42, which has never sent it");
    kolo_watch_words(&worker, &worker.waits[first], now, NULL, words, sizeof words);
    assert_non_null(strstr(words, "has not said what it has sent; no process of this host is that task"));
    worker.waits[first].sent = KOLO_SENT_UP_TO; /* as the sender says, on another host */
    worker.waits[first].sent_step = 40;
    kolo_watch_words(&worker, &worker.waits[first], now, NULL, words, sizeof words);
    assert_string_equal(words, "task worker:1 waits 31 s for edge bias of ps:0, which has sent steps up to 40");
    for (int i = 0; i < 2; i++) kolo_receive_discard(receives[i]);
    kolo_watch_look(at_worker.manager->watch, at_worker.manager);
    assert_true(kolo_watch_view(at_worker.manager->watch, sizeof(kolo_rendezvous_watch_t), &worker));
    assert_int_equal(worker.nwaits, 0); /* given up */
    close_task(&at_worker);
    close_task(&at_ps);
}

/* There are places for so many edges; of others nobody may say that they were never sent. */
static void an_edge_without_a_place_is_not_said_to_be_never_sent(void **state)
{
    static kolo_watch_view_t ps, worker = {.task = WORKER};
    kolo_watch_wait_t wait = {.since_ns = 1, .step = 41, .from = PS};
    task_t t;
    char words[500];
    int known = 0;
    (void)state;
    open_task(&t, PS, 41);
    for (int i = 0; i < KOLO_WATCH_EDGES + 100; i++) {
        kolo_tensor_key_t key = {.src_device = PS "/device:cpu:0", .dst_device = WORKER "/device:cpu:0"};
        snprintf(key.edge_name, sizeof key.edge_name, "grad_%d", i);
        kolo_watch_sent(t.manager->watch, &key, 41);
    }
    assert_true(kolo_watch_view(t.manager->watch, sizeof(kolo_rendezvous_watch_t), &ps));
    for (int i = 0; i < KOLO_WATCH_EDGES + 100; i++) {
        kolo_tensor_key_t key = {.src_device = PS "/device:cpu:0", .dst_device = WORKER "/device:cpu:0"};
        uint64_t step = 0;
        snprintf(key.edge_name, sizeof key.edge_name, "grad_%d", i);
        snprintf(wait.edge, sizeof wait.edge, "grad_%d", i);
        kolo_sent_t sent = kolo_watch_last_sent(t.manager->watch, &key, &step);
        assert_int_not_equal(sent, KOLO_SENT_NEVER);
        known += sent == KOLO_SENT_UP_TO;
        kolo_watch_words(&worker, &wait, 2, &ps, words, sizeof words);
        if (strstr(words, "never")) fail_msg("%s", words);
    }
    assert_in_range(known, KOLO_WATCH_EDGES / 2, KOLO_WATCH_EDGES);
    close_task(&t);
}

static void how_slow_receives_ended_is_kept(void **state)
{
    static kolo_watch_view_t view;
    task_t t;
    kolo_receive_t receive;
    kolo_value_t value = {.element = KOLO_UINT8, .ndims = 1, .dims = {0}}, got;
    char words[500], key[KOLO_TENSOR_KEY_MAX + 1];
    (void)state;
    open_task(&t, WORKER, 7);
    snprintf(key, sizeof key, WORKER "/device:cpu:0;%016x;" WORKER "/device:cpu:0;own;0:0", 1);
    for (int i = 0; i < 3 + KOLO_WATCH_ENDED; i++) {
        assert_int_equal(kolo_rendezvous_receive_begin(t.step, key, NULL, &receive), KOLO_OK);
        /* The first one is quick, whatever else this machine does; the others began a second ago, since the machine
         * may not be up for much longer. */
        receive->since_ns += 1000 * KOLO_NS_PER_S;
        if (i > 0) receive->since_ns -= 1001 * KOLO_NS_PER_S + (uint64_t)i * KOLO_NS_PER_MS;
        assert_int_equal(kolo_rendezvous_send(t.step, key, &value, NULL), KOLO_OK);
        assert_int_equal(kolo_receive_wait(receive, 30000, &got), KOLO_OK);
        if (i > 0) continue;
        assert_true(kolo_watch_view(t.manager->watch, sizeof(kolo_rendezvous_watch_t), &view));
        assert_int_equal(view.nended, 0);
    }
    assert_int_equal(kolo_rendezvous_receive_begin(t.step, key, NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(t.step, KOLO_ERR_SYSTEM, "enough"), KOLO_OK);
    assert_int_equal(kolo_receive_wait(receive, 30000, &got), KOLO_ERR_SYSTEM);
    assert_true(kolo_watch_view(t.manager->watch, sizeof(kolo_rendezvous_watch_t), &view));
    assert_int_equal(view.nended, KOLO_WATCH_ENDED); /* the last ones */
    assert_int_equal(view.ended[0].status, KOLO_ERR_SYSTEM);
    assert_int_equal(view.ended[1].status, KOLO_OK);
    assert_true(view.ended[1].end_ns - view.ended[1].since_ns >=
                KOLO_NS_PER_S + (2 + KOLO_WATCH_ENDED) * KOLO_NS_PER_MS);
    view.ended[1].since_ns = view.ended[1].end_ns - 31 * KOLO_NS_PER_S;
    kolo_watch_ended_words(&view, 1, view.ended[1].end_ns + 2 * KOLO_NS_PER_S, words, sizeof words);
    assert_string_equal(words, "task worker:1 got edge own of worker:1, step 7, 2.0 s ago, after 31.0 s");
    kolo_watch_ended_words(&view, 0, 0, words, sizeof words);
    assert_non_null(strstr(words, "did not get"));
    close_task(&t);
}

static void bytes_of_strangers_do_no_harm(void **state)
{
    static kolo_watch_view_t view;
    kolo_rendezvous_watch_t *watch = aligned_alloc(64, KOLO_ROUND_UP(sizeof *watch, (size_t)64));
    char words[300];
    (void)state;
    assert_non_null(watch);
    srand(1);
    for (int i = 0; i < 50; i++) {
        for (size_t k = 0; k < sizeof *watch; k++) ((uint8_t *)watch)[k] = (uint8_t)rand();
        assert_false(kolo_watch_view(watch, sizeof *watch, &view));
        watch->magic = KOLO_WATCH_MAGIC;
        atomic_store(&watch->seq, 2);
        assert_false(kolo_watch_view(watch, sizeof *watch - 1, &view));
        assert_true(kolo_watch_view(watch, sizeof *watch, &view));
        assert_true(view.nwaits <= KOLO_WATCH_WAITS && view.nsent <= KOLO_WATCH_EDGES);
        assert_true(view.nended <= KOLO_WATCH_ENDED);
        for (size_t w = 0; w < view.nwaits; w++)
            kolo_watch_words(&view, &view.waits[w], 5, i % 2 ? &view : NULL, words, sizeof words);
        for (size_t e = 0; e < view.nended; e++) kolo_watch_ended_words(&view, e, 5, words, sizeof words);
        atomic_store(&watch->seq, 3);
        assert_false(kolo_watch_view(watch, sizeof *watch, &view));
    }
    free(watch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_what_is_told_in_a_sentence),
        cmocka_unit_test(an_edge_without_a_place_is_not_said_to_be_never_sent),
        cmocka_unit_test(how_slow_receives_ended_is_kept),
        cmocka_unit_test(bytes_of_strangers_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
