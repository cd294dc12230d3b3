/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the program that writes come from, by RDMA: it is registered once, not again for each write, and never
 * used any more once its pages have gone.
 */
#include "remote/onesided/test_ends.h"

#include "mem/range.h"

#include <sys/mman.h>

enum { BYTES = 1 << 20 };

static char *map_pages(void *at)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    char *pages = mmap(at, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    return pages;
}

static uint64_t registrations(void)
{
    kolo_onesided_counters_t c;
    kolo_onesided_get_counters(&c);
    return c.registrations;
}

/* Writes it all, complete when it returns; what has arrived is what lies there now. */
static void write_all(pair_t *p, char *from, int seed)
{
    kolo_onesided_event_t event;
    for (size_t i = 0; i < BYTES; i++) from[i] = (char)(i * 7 + i / 251 + (size_t)seed);
    write_at(p, from, BYTES, 0, KOLO_ONESIDED_NOTIFY, 1, 1);
    expect(p, 1, 1, &event);
    assert_memory_equal(p->memory.base, from, BYTES);
}

static void memory_that_is_sent_again_is_registered_once(void **state)
{
    pair_t *p = *state;
    char *pages = map_pages(NULL);
    uint64_t before = registrations();
    for (int i = 0; i < 20; i++) write_all(p, pages, i);
    uint64_t done = registrations() - before;
    printf("count onesided wire=verbs sends=20 registrations=%llu\n", (unsigned long long)done);
    assert_int_equal(done, 1);
    munmap(pages, BYTES);
}

/* The same address, other pages: what the card knew is not what lies there. */
static void pages_that_were_freed_are_registered_anew(void **state)
{
    pair_t *p = *state;
    char *pages = map_pages(NULL);
    uint64_t before = registrations();
    for (int i = 0; i < 5; i++) {
        write_all(p, pages, i);
        assert_int_equal(munmap(pages, BYTES), 0);
        assert_ptr_equal(map_pages(pages), pages);
    }
    write_all(p, pages, 9);
    assert_int_equal(madvise(pages, BYTES, MADV_DONTNEED), 0);
    write_all(p, pages, 10);
    assert_int_equal(registrations() - before, 7);
    munmap(pages, BYTES);
}

/* Not more than KOLO_ONESIDED_SOURCES stays registered, and with 0 nothing does. */
static void what_is_kept_has_a_limit(void **state)
{
    enum { MANY = 6 };
    pair_t *p = *state;
    kolo_mem_range_counts_t counts;
    int64_t from = kolo_onesided_param_sources;
    char *pages[MANY];
    for (int i = 0; i < MANY; i++) pages[i] = map_pages(NULL);
    kolo_onesided_param_sources = 3 * BYTES;
    for (int i = 0; i < MANY; i++) {
        write_all(p, pages[i], i);
        kolo_mem_range_count(&counts);
        assert_in_range(counts.pinned_bytes, BYTES, 3 * BYTES);
    }
    kolo_onesided_param_sources = 0;
    uint64_t before = registrations();
    for (int i = 0; i < 3; i++) write_all(p, pages[0], i);
    assert_int_equal(registrations() - before, 3);
    kolo_onesided_param_sources = from;
    for (int i = 0; i < MANY; i++) munmap(pages[i], BYTES);
}

static int nothing_stays(void **state)
{
    kolo_mem_range_counts_t counts;
    tear_down(state);
    kolo_mem_range_count(&counts);
    assert_int_equal(counts.pins, 0);
    assert_int_equal(counts.ranges, 0);
    return 0;
}

#define KEPT_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, nothing_stays)

int main(int argc, char **argv)
{
    char *only[] = {argv[0], "verbs"};
    const struct CMUnitTest tests[] = {
        KEPT_TEST(memory_that_is_sent_again_is_registered_once),
        KEPT_TEST(pages_that_were_freed_are_registered_anew),
        KEPT_TEST(what_is_kept_has_a_limit),
    };
    (void)argc;
    return run_kinds(2, only, tests, KOLO_COUNTOF(tests));
}
