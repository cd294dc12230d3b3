/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of a timeline between two threads: what is taken is what was put, in order, and what found no room is
 * counted; it never waits.
 */
#include "base/test.h"
#include "engine/timeline/timeline.h"

#include <sched.h>

#define MANY 200000

static void put(kolo_trace_ring_t *ring, uint64_t value)
{
    if (!kolo_trace_reserve(ring, 1)) return;
    uint64_t head = atomic_load(&ring->head);
    *kolo_trace_slot(ring, head) = (kolo_trace_record_t){.ns = value, .value = ~value};
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

static void a_full_ring_counts_what_it_loses(void **state)
{
    kolo_trace_ring_t ring;
    (void)state;
    assert_int_equal(kolo_trace_ring_init(&ring, 100), KOLO_OK);
    assert_int_equal(ring.capacity, 128);
    for (uint64_t i = 0; i < 130; i++) put(&ring, i);
    assert_int_equal(atomic_load(&ring.lost), 2);
    assert_int_equal(atomic_load(&ring.head), 128);
    assert_false(kolo_trace_reserve(&ring, 1));
    atomic_store(&ring.tail, 3);
    assert_true(kolo_trace_reserve(&ring, 3));
    assert_false(kolo_trace_reserve(&ring, 4));
    assert_false(kolo_trace_has_room(&ring)); /* three quarters are for what has begun */
    assert_true(kolo_trace_is_filling(&ring));
    atomic_store(&ring.tail, 128);
    assert_true(kolo_trace_has_room(&ring));
    assert_false(kolo_trace_is_filling(&ring));
    kolo_trace_ring_fini(&ring);
}

static void *put_many(void *arg)
{
    for (uint64_t i = 0; i < MANY; i++) {
        put(arg, i);
        if (i % 1024 == 0) sched_yield();
    }
    return NULL;
}

static void order_is_kept_between_threads(void **state)
{
    kolo_trace_ring_t ring;
    pthread_t thread;
    uint64_t taken = 0, next = 0;
    (void)state;
    assert_int_equal(kolo_trace_ring_init(&ring, 1024), KOLO_OK);
    assert_int_equal(pthread_create(&thread, NULL, put_many, &ring), 0);
    while (taken + atomic_load(&ring.lost) < MANY) {
        uint64_t head = atomic_load_explicit(&ring.head, memory_order_acquire);
        if (head == taken) sched_yield();
        for (; taken < head; taken++) {
            const kolo_trace_record_t *r = kolo_trace_slot(&ring, taken);
            assert_true(r->ns >= next && r->value == ~r->ns);
            next = r->ns + 1;
            atomic_store_explicit(&ring.tail, taken + 1, memory_order_release);
        }
    }
    pthread_join(thread, NULL);
    assert_int_equal(taken + atomic_load(&ring.lost), MANY);
    assert_true(taken >= ring.capacity);
    kolo_trace_ring_fini(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_ring_counts_what_it_loses),
        cmocka_unit_test(order_is_kept_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
