/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives that meet within one task: order, values that are received once, time-outs, aborts, clean-ups,
 * receives before the task has a name, and threads that do all of it at once.
 */
#include "base/test.h"
#include "rendezvous/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TASK        "/job:ps/task:0"
#define INCARNATION 0x1234ull
#define KEY(edge)   TASK "/device:cpu:0;0000000000001234;" TASK "/device:cpu:1;" edge ";0:0"
#define OTHER_KEY   "/job:ps/task:1/device:cpu:0;0000000000009999;" TASK "/device:cpu:1;x;0:0"

static _Atomic int made, released;

static void release(void *arg)
{
    free(arg);
    atomic_fetch_add(&released, 1);
}

static kolo_value_t make_value(int32_t number)
{
    int32_t *data = malloc(sizeof *data);
    assert_non_null(data);
    *data = number;
    atomic_fetch_add(&made, 1);
    return (kolo_value_t){
        .element = KOLO_INT32, .ndims = 1, .dims = {1}, .data = data, .bytes = 4, .release = release, .arg = data};
}

static int32_t take_value(kolo_value_t *value)
{
    int32_t number;
    memcpy(&number, value->data, sizeof number);
    kolo_value_release(value);
    return number;
}

typedef struct {
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
} fixture_t;

static int set_up(void **state)
{
    static fixture_t f;
    atomic_store(&made, 0);
    atomic_store(&released, 0);
    *state = &f;
    return kolo_rendezvous_manager_create(&f.manager) ||
           kolo_rendezvous_manager_initialize(f.manager, TASK, INCARNATION) ||
           kolo_rendezvous_open(f.manager, 7, &f.step);
}

/* Whatever a test did: no value is left, none was released twice. */
static int tear_down(void **state)
{
    fixture_t *f = *state;
    int failed = kolo_rendezvous_close(f->step) || kolo_rendezvous_manager_destroy(f->manager);
    if (atomic_load(&made) != atomic_load(&released)) {
        printf("%d values made, %d released\n", atomic_load(&made), atomic_load(&released));
        failed = 1;
    }
    return failed;
}

static void send_number(kolo_rendezvous_t step, const char *key, int32_t number)
{
    kolo_value_t value = make_value(number);
    assert_int_equal(kolo_rendezvous_send(step, key, &value, NULL), KOLO_OK);
}

static void a_value_that_was_sent_is_received_where_it_lies(void **state)
{
    fixture_t *f = *state;
    kolo_value_t sent = make_value(5), got;
    assert_int_equal(kolo_rendezvous_send(f->step, KEY("e"), &sent, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 30000, &got), KOLO_OK);
    assert_ptr_equal(got.data, sent.data);
    assert_int_equal(take_value(&got), 5);
}

static void a_destination_gets_the_value_and_the_senders_memory_is_released(void **state)
{
    fixture_t *f = *state;
    int32_t mine[2] = {0, 77};
    kolo_transfer_args_t args = {.into = mine, .into_bytes = 4};
    kolo_receive_t receive;
    kolo_value_t got;
    send_number(f->step, KEY("e"), 5);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), &args, 30000, &got), KOLO_OK);
    assert_ptr_equal(got.data, mine);
    assert_null(got.release);
    assert_int_equal(mine[0], 5);
    assert_int_equal(atomic_load(&released), 1);
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), &args, &receive), KOLO_OK);
    send_number(f->step, KEY("e"), 6); /* the receive is there first */
    assert_int_equal(mine[0], 6);
    assert_int_equal(kolo_receive_wait(receive, 30000, &got), KOLO_OK);
    assert_int_equal(mine[1], 77);
}

static void a_value_that_its_destination_cannot_take_stays(void **state)
{
    fixture_t *f = *state;
    int16_t mine = 7;
    kolo_transfer_args_t args = {.into = &mine, .into_bytes = 2};
    kolo_receive_t receive;
    kolo_value_t got;
    send_number(f->step, KEY("e"), 5);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), &args, 30000, &got), KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "its value has 4 bytes, its destination 2"));
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 30000, &got), KOLO_OK);
    assert_int_equal(take_value(&got), 5);
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), &args, &receive), KOLO_OK);
    send_number(f->step, KEY("e"), 6);
    assert_int_equal(kolo_receive_wait(receive, 30000, &got), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 30000, &got), KOLO_OK);
    assert_int_equal(take_value(&got), 6);
    assert_int_equal(mine, 7);
}

static void a_receive_waits_for_its_value(void **state)
{
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t got;
    int ended = 1;
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_receive_poll(receive, &ended), KOLO_OK);
    assert_int_equal(ended, 0);
    send_number(f->step, KEY("other"), 1);
    assert_int_equal(kolo_receive_poll(receive, &ended), KOLO_OK);
    assert_int_equal(ended, 0);
    send_number(f->step, KEY("e"), 2);
    assert_int_equal(kolo_receive_poll(receive, &ended), KOLO_OK);
    assert_int_equal(ended, 1);
    assert_int_equal(kolo_receive_wait(receive, 1, &got), KOLO_OK);
    assert_int_equal(take_value(&got), 2);
}

static void values_of_a_key_come_in_order_and_once(void **state)
{
    fixture_t *f = *state;
    kolo_value_t got;
    for (int i = 0; i < 100; i++) send_number(f->step, i % 2 ? KEY("odd") : KEY("even"), i);
    for (int i = 0; i < 100; i += 2) {
        assert_int_equal(kolo_rendezvous_receive(f->step, KEY("even"), NULL, 30000, &got), KOLO_OK);
        assert_int_equal(take_value(&got), i);
        assert_int_equal(kolo_rendezvous_receive(f->step, KEY("odd"), NULL, 30000, &got), KOLO_OK);
        assert_int_equal(take_value(&got), i + 1);
    }
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("odd"), NULL, 1, &got), KOLO_ERR_TIMEOUT);
}

static void steps_do_not_meet(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_t other, again;
    kolo_value_t got;
    assert_int_equal(kolo_rendezvous_open(f->manager, 8, &other), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(f->manager, 7, &again), KOLO_OK);
    assert_ptr_equal(again, f->step);
    send_number(f->step, KEY("e"), 1);
    assert_int_equal(kolo_rendezvous_receive(other, KEY("e"), NULL, 1, &got), KOLO_ERR_TIMEOUT);
    assert_int_equal(kolo_rendezvous_receive(again, KEY("e"), NULL, 1, &got), KOLO_OK);
    kolo_value_release(&got);
    kolo_rendezvous_close(other);
    kolo_rendezvous_close(again);
}

typedef struct {
    int calls;
    kolo_status_t status;
    char why[200];
    kolo_transfer_args_t sender, receiver;
    int32_t number;
    int dead;
} heard_t;

static void hear(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                 const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    heard_t *heard = arg;
    heard->calls++;
    heard->status = status;
    snprintf(heard->why, sizeof heard->why, "%s", why ? why : "");
    heard->sender = *sender;
    heard->receiver = *receiver;
    if (value == NULL) return;
    heard->dead = value->dead;
    if (value->bytes) heard->number = take_value(value);
}

static void arguments_reach_the_callback(void **state)
{
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_transfer_args_t sender = {.attributes = 3, .context = &heard}, receiver = {.attributes = 9};
    kolo_value_t value = make_value(11);
    assert_int_equal(kolo_rendezvous_receive_call(f->step, KEY("e"), &receiver, hear, &heard), KOLO_OK);
    assert_int_equal(heard.calls, 0);
    assert_int_equal(kolo_rendezvous_send(f->step, KEY("e"), &value, &sender), KOLO_OK);
    assert_int_equal(heard.calls, 1);
    assert_int_equal(heard.status, KOLO_OK);
    assert_int_equal(heard.sender.attributes, 3);
    assert_ptr_equal(heard.sender.context, &heard);
    assert_int_equal(heard.receiver.attributes, 9);
    assert_int_equal(heard.number, 11);
    receiver.memory = 4;
    assert_int_equal(kolo_rendezvous_receive_call(f->step, KEY("e"), &receiver, hear, &heard),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(heard.calls, 1);
}

/* Fails at something of its own before it looks at the reason. */
static void fail_and_hear(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                          const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    assert_int_equal(kolo_receive_poll(NULL, NULL), KOLO_ERR_INVALID_ARGUMENT);
    hear(arg, status, why, sender, receiver, value);
}

static void a_callback_that_fails_at_something_still_has_the_reason(void **state)
{
    fixture_t *f = *state;
    int16_t mine;
    kolo_transfer_args_t args = {.into = &mine, .into_bytes = 2};
    heard_t heard[2] = {0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(kolo_rendezvous_receive_call(f->step, KEY("e"), &args, fail_and_hear, &heard[i]), KOLO_OK);
    send_number(f->step, KEY("e"), 5);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(heard[i].calls, 1);
        assert_non_null(strstr(heard[i].why, "its value has 4 bytes, its destination 2"));
    }
    kolo_value_t got;
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 30000, &got), KOLO_OK);
    assert_int_equal(take_value(&got), 5);
}

static void a_dead_value_is_received_like_another(void **state)
{
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_value_t dead = {.element = KOLO_FLOAT32, .ndims = 1, .dims = {100}, .dead = 1};
    assert_int_equal(kolo_rendezvous_send(f->step, KEY("e"), &dead, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(f->step, KEY("e"), NULL, hear, &heard), KOLO_OK);
    assert_int_equal(heard.calls, 1);
    assert_int_equal(heard.status, KOLO_OK);
    assert_int_equal(heard.dead, 1);
}

static void a_time_out_leaves_the_value_to_others(void **state)
{
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t got;
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 1, &got), KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), "edge e from " TASK));
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_receive_wait(receive, 1, &got), KOLO_ERR_TIMEOUT); /* the handle stays */
    assert_int_equal(kolo_receive_discard(receive), KOLO_OK);
    send_number(f->step, KEY("e"), 1);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 1, &got), KOLO_OK);
    assert_int_equal(take_value(&got), 1);
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), NULL, &receive), KOLO_OK);
    send_number(f->step, KEY("e"), 2);
    assert_int_equal(kolo_receive_discard(receive), KOLO_OK); /* with its value */
}

static void the_first_abort_counts_and_stays(void **state)
{
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_receive_t receive;
    kolo_value_t value = make_value(1), got;
    send_number(f->step, KEY("sent"), 1);
    assert_int_equal(kolo_rendezvous_receive_call(f->step, KEY("e"), NULL, hear, &heard), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_ERR_REMOTE, "worker 3 is lost"), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_ERR_TIMEOUT, "too late"), KOLO_OK);
    assert_int_equal(atomic_load(&released), 1);
    assert_int_equal(heard.calls, 1);
    assert_int_equal(heard.status, KOLO_ERR_REMOTE);
    assert_string_equal(heard.why, "step 7: worker 3 is lost");
    assert_int_equal(kolo_receive_wait(receive, 0, &got), KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "worker 3 is lost"));
    assert_int_equal(kolo_rendezvous_send(f->step, KEY("e"), &value, NULL), KOLO_ERR_REMOTE);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 1, &got), KOLO_ERR_REMOTE);
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_OK, "fine"), KOLO_ERR_INVALID_ARGUMENT);
    kolo_value_release(&value); /* a refused send takes nothing */
}

static void a_clean_up_ends_a_step_and_its_number_may_come_again(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_t again;
    kolo_receive_t receive;
    kolo_value_t got;
    size_t steps;
    send_number(f->step, KEY("sent"), 1);
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("e"), NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_cleanup(f->manager, 7), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_cleanup(f->manager, 7), KOLO_OK);
    assert_int_equal(kolo_receive_wait(receive, 0, &got), KOLO_ERR_ABORTED);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("e"), NULL, 0, &got), KOLO_ERR_ABORTED);
    assert_int_equal(kolo_rendezvous_manager_count(f->manager, &steps), KOLO_OK);
    assert_int_equal(steps, 0);
    assert_int_equal(kolo_rendezvous_open(f->manager, 7, &again), KOLO_OK);
    assert_ptr_not_equal(again, f->step);
    send_number(again, KEY("e"), 3);
    assert_int_equal(kolo_rendezvous_receive(again, KEY("e"), NULL, 1, &got), KOLO_OK);
    assert_int_equal(take_value(&got), 3);
    assert_int_equal(kolo_rendezvous_close(again), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_cleanup_all(f->manager), KOLO_OK);
}

static void receives_before_the_task_has_a_name_begin_with_it(void **state)
{
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    heard_t heard[4] = {0};
    kolo_value_t value = make_value(1);
    (void)state;
    assert_int_equal(kolo_rendezvous_manager_create(&manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, 1, &step), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(step, KEY("e"), NULL, hear, &heard[0]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(step, KEY("e"), NULL, hear, &heard[1]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(step, OTHER_KEY, NULL, hear, &heard[2]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_send(step, KEY("e"), &value, NULL), KOLO_ERR_INVALID_USAGE);
    assert_int_equal(kolo_rendezvous_manager_initialize(manager, TASK "/device:cpu:0", 1),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(heard[2].calls, 0);
    assert_int_equal(kolo_rendezvous_manager_initialize(manager, TASK, INCARNATION), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_initialize(manager, TASK, INCARNATION), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_initialize(manager, TASK, 5), KOLO_ERR_INVALID_USAGE);
    assert_int_equal(heard[2].calls, 1); /* there is no other task */
    assert_int_equal(heard[2].status, KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_rendezvous_send(step, KEY("e"), &value, NULL), KOLO_OK);
    send_number(step, KEY("e"), 2);
    assert_int_equal(heard[0].number, 1); /* in their order */
    assert_int_equal(heard[1].number, 2);
    kolo_rendezvous_close(step);
    kolo_rendezvous_manager_destroy(manager);
}

static void receives_that_wait_for_a_name_are_aborted_too(void **state)
{
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    heard_t heard[2] = {0};
    (void)state;
    assert_int_equal(kolo_rendezvous_manager_create(&manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, 1, &step), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(step, KEY("e"), NULL, hear, &heard[0]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(step, KOLO_ERR_REMOTE, "gone"), KOLO_OK);
    assert_int_equal(heard[0].status, KOLO_ERR_REMOTE);
    kolo_rendezvous_close(step);
    assert_int_equal(kolo_rendezvous_open(manager, 2, &step), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(step, KEY("e"), NULL, hear, &heard[1]), KOLO_OK);
    kolo_rendezvous_close(step);
    kolo_rendezvous_manager_destroy(manager);
    assert_int_equal(heard[0].calls, 1);
    assert_int_equal(heard[1].calls, 1);
    assert_int_equal(heard[1].status, KOLO_ERR_ABORTED);
}

static void keys_of_other_tasks_and_of_earlier_lives_are_refused(void **state)
{
    fixture_t *f = *state;
    kolo_value_t value = make_value(1), got;
    const char *old = TASK "/device:cpu:0;0000000000000001;" TASK "/device:cpu:1;e;0:0";
    const char *elsewhere = TASK "/device:cpu:0;0000000000001234;/job:ps/task:1/device:cpu:1;e;0:0";
    assert_int_equal(kolo_rendezvous_send(f->step, OTHER_KEY, &value, NULL), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_rendezvous_send(f->step, old, &value, NULL), KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "has been restarted"));
    assert_int_equal(kolo_rendezvous_receive(f->step, old, NULL, 0, &got), KOLO_ERR_REMOTE);
    assert_int_equal(kolo_rendezvous_receive(f->step, elsewhere, NULL, 0, &got), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_rendezvous_receive(f->step, "no key", NULL, 0, &got), KOLO_ERR_INVALID_ARGUMENT);
    kolo_value_release(&value);
}

static void values_that_do_not_fit_are_refused(void **state)
{
    fixture_t *f = *state;
    uint64_t strings[3] = {2, 6, 0};
    memcpy(&strings[2], "abcdef", 6);
    kolo_value_t good = {.element = KOLO_ELEMENT_STRING, .ndims = 1, .dims = {2}, .data = strings, .bytes = 22};
    kolo_value_t bad[8];
    assert_null(kolo_rendezvous_value_check(&good));
    for (size_t i = 0; i < 8; i++) bad[i] = good;
    bad[0].bytes = 21; /* the last string ends behind it */
    bad[1].bytes = 23;
    bad[2].dims[0] = 3;
    bad[3].element = 31;
    bad[4].ndims = KOLO_VALUE_DIMS_MAX + 1;
    bad[5] = (kolo_value_t){.element = KOLO_FLOAT32, .ndims = 2, .dims = {2, -1}, .data = strings, .bytes = 8};
    bad[6] = (kolo_value_t){.element = KOLO_ELEMENT_INT16, .ndims = 2, .dims = {INT64_MAX, INT64_MAX}};
    bad[7] = (kolo_value_t){.element = KOLO_ELEMENT_BOOL, .ndims = 0, .bytes = 1};
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(kolo_rendezvous_send(f->step, KEY("e"), &bad[i], NULL), KOLO_ERR_INVALID_ARGUMENT);
}

static int cancelled;

/* Stands for another task that never answers. */
static kolo_status_t keep_receive(void *arg, kolo_receive_t receive)
{
    kolo_receive_ref(receive);
    *(kolo_receive_t *)arg = receive;
    return KOLO_OK;
}

static void note_cancel(void *arg, kolo_receive_t receive)
{
    assert_ptr_equal(*(kolo_receive_t *)arg, receive);
    cancelled++;
}

static void an_abort_reaches_what_is_under_way_from_other_tasks(void **state)
{
    static const kolo_remote_ops_t never = {keep_receive, note_cancel};
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_receive_t kept = NULL;
    kolo_value_t late = make_value(1);
    kolo_rendezvous_manager_set_remote(f->manager, &never, &kept);
    assert_int_equal(kolo_rendezvous_receive_call(f->step, OTHER_KEY, NULL, hear, &heard), KOLO_OK);
    assert_non_null(kept);
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_ERR_TIMEOUT, "enough"), KOLO_OK);
    assert_int_equal(heard.calls, 1);
    assert_int_equal(heard.status, KOLO_ERR_TIMEOUT);
    assert_int_equal(cancelled, 1);
    kolo_rendezvous_unlist(kept);
    kolo_receive_finish(kept, KOLO_OK, NULL, NULL, &late); /* too late: it is released */
    kolo_receive_unref(kept);
    assert_int_equal(heard.calls, 1);
    assert_int_equal(kolo_rendezvous_manager_destroy(f->manager), KOLO_ERR_INVALID_USAGE); /* a server's */
    kolo_rendezvous_manager_set_remote(f->manager, NULL, NULL);
}

/* ---- threads ---- */

#define STORM_VALUES 4000
#define STORM_PAIRS  3
typedef struct {
    kolo_rendezvous_t step;
    char key[200];
    bool gives_up;
    _Atomic int got, errors;
    int last;
    bool ordered;
} storm_t;

static void *storm_send(void *arg)
{
    storm_t *s = arg;
    for (int i = 0; i < STORM_VALUES; i++) {
        kolo_value_t value = make_value(i);
        if (kolo_rendezvous_send(s->step, s->key, &value, NULL) != KOLO_OK) {
            kolo_value_release(&value);
            atomic_fetch_add(&s->errors, 1);
        }
    }
    return NULL;
}

static void *storm_receive(void *arg)
{
    storm_t *s = arg;
    kolo_value_t value;
    s->ordered = true;
    s->last = -1;
    while (atomic_load(&s->got) < STORM_VALUES) {
        kolo_receive_t receive;
        kolo_status_t status = kolo_rendezvous_receive_begin(s->step, s->key, NULL, &receive);
        if (status != KOLO_OK) break; /* aborted */
        if (s->gives_up && atomic_load(&s->got) % 7 == 3 && kolo_rendezvous_give_up(receive)) {
            s->gives_up = false; /* once a value */
            kolo_receive_unref(receive);
            continue;
        }
        s->gives_up = true;
        if (kolo_receive_wait(receive, 0, &value) != KOLO_OK) break;
        int n = take_value(&value);
        if (n <= s->last) s->ordered = false;
        s->last = n;
        atomic_fetch_add(&s->got, 1);
    }
    return NULL;
}

static void run_storm(fixture_t *f, storm_t *s, bool abort_it)
{
    pthread_t senders[STORM_PAIRS], receivers[STORM_PAIRS];
    for (int i = 0; i < STORM_PAIRS; i++) {
        s[i].step = f->step;
        s[i].gives_up = true;
        snprintf(s[i].key, sizeof s[i].key, TASK "/device:cpu:0;0000000000001234;" TASK "/device:cpu:1;e%d;0:0", i);
        assert_int_equal(pthread_create(&receivers[i], NULL, storm_receive, &s[i]), 0);
        assert_int_equal(pthread_create(&senders[i], NULL, storm_send, &s[i]), 0);
    }
    if (abort_it) {
        while (atomic_load(&s[0].got) < STORM_VALUES / 4) sched_yield();
        assert_int_equal(kolo_rendezvous_manager_cleanup(f->manager, 7), KOLO_OK);
    }
    for (int i = 0; i < STORM_PAIRS; i++) {
        pthread_join(senders[i], NULL);
        pthread_join(receivers[i], NULL);
    }
}

static void threads_lose_no_value_and_keep_the_order(void **state)
{
    static storm_t s[STORM_PAIRS];
    memset(s, 0, sizeof s);
    run_storm(*state, s, false);
    for (int i = 0; i < STORM_PAIRS; i++) {
        assert_int_equal(s[i].got, STORM_VALUES);
        assert_int_equal(s[i].errors, 0);
        assert_true(s[i].ordered);
    }
}

static void a_clean_up_among_threads_ends_them_all(void **state)
{
    static storm_t s[STORM_PAIRS];
    memset(s, 0, sizeof s);
    run_storm(*state, s, true); /* tear_down counts the values */
    for (int i = 0; i < STORM_PAIRS; i++) assert_true(s[i].ordered);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_value_that_was_sent_is_received_where_it_lies),
        TEST(a_destination_gets_the_value_and_the_senders_memory_is_released),
        TEST(a_value_that_its_destination_cannot_take_stays),
        TEST(a_receive_waits_for_its_value),
        TEST(values_of_a_key_come_in_order_and_once),
        TEST(steps_do_not_meet),
        TEST(arguments_reach_the_callback),
        TEST(a_callback_that_fails_at_something_still_has_the_reason),
        TEST(a_dead_value_is_received_like_another),
        TEST(a_time_out_leaves_the_value_to_others),
        TEST(the_first_abort_counts_and_stays),
        TEST(a_clean_up_ends_a_step_and_its_number_may_come_again),
        TEST(receives_before_the_task_has_a_name_begin_with_it),
        TEST(receives_that_wait_for_a_name_are_aborted_too),
        TEST(keys_of_other_tasks_and_of_earlier_lives_are_refused),
        TEST(values_that_do_not_fit_are_refused),
        TEST(an_abort_reaches_what_is_under_way_from_other_tasks),
        TEST(threads_lose_no_value_and_keep_the_order),
        TEST(a_clean_up_among_threads_ends_them_all),
    };
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
