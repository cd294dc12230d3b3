/* SPDX-License-Identifier: Apache-2.0 */
#include "base/test.h"
#include "mem/range.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE  4096
#define BYTES ((size_t)64 * PAGE)

static int live; /* pins of the device below */

static kolo_status_t pin(void *arg, void *memory, size_t bytes, void **handle)
{
    (void)arg;
    assert_true((uintptr_t)memory % PAGE == 0 && bytes % PAGE == 0);
    live++;
    *handle = memory;
    return KOLO_OK;
}
static void unpin(void *arg, void *handle)
{
    (void)arg;
    (void)handle;
    live--;
}
static const kolo_mem_pinner_t device = {pin, unpin, NULL}, other = {pin, unpin, NULL};

static char *map(void)
{
    char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    memset(p, 1, BYTES);
    return p;
}

static bool is_found(const void *p, size_t bytes)
{
    kolo_mem_range_t *r = kolo_mem_range_find(p, bytes);
    kolo_mem_range_put(r);
    return r != NULL;
}

/* Some kernels and containers have no userfaultfd: there nothing is ever found, which is a test as well. */
static void need_watch(void)
{
    kolo_mem_range_t *r;
    char *p = map();
    assert_int_equal(kolo_mem_range_register(p, BYTES, &r), KOLO_OK);
    bool found = is_found(p, BYTES);
    kolo_mem_range_deregister(r);
    munmap(p, BYTES);
    if (!found) {
        print_message("the kernel does not tell of memory that goes away\n");
        skip();
    }
}

static void nothing_is_left(void)
{
    kolo_mem_range_counts_t n;
    kolo_mem_range_count(&n);
    assert_int_equal(n.ranges, 0);
    assert_int_equal(n.pins, 0);
    assert_int_equal(n.pinned_bytes, 0);
    assert_int_equal(live, 0);
    assert_false(kolo_mem_ranges_exist());
}

static void what_lies_in_whole_pages_of_a_range_is_found(void **state)
{
    (void)state;
    need_watch();
    kolo_mem_range_t *r, *again;
    char *p = map();
    assert_false(is_found(p, 1));
    assert_int_equal(kolo_mem_range_register(p + PAGE + 100, 3 * PAGE, &r), KOLO_OK);
    assert_true(is_found(p + PAGE, 4 * PAGE)); /* whole pages */
    assert_true(is_found(p + PAGE + 5, 10));
    assert_false(is_found(p + PAGE - 1, 10));
    assert_false(is_found(p + 5 * PAGE - 1, 2));
    assert_false(is_found(p + PAGE, SIZE_MAX - 10)); /* past the end of memory */
    assert_int_equal(kolo_mem_range_register(p + PAGE, 4 * PAGE, &again), KOLO_OK);
    assert_ptr_equal(r, again);
    kolo_mem_range_deregister(r);
    assert_true(is_found(p + PAGE, 1));
    kolo_mem_range_deregister(again);
    assert_false(is_found(p + PAGE, 1));
    munmap(p, BYTES);
    nothing_is_left();
    assert_int_equal(kolo_mem_range_register(p, SIZE_MAX - 10, &r), KOLO_ERR_INVALID_ARGUMENT);
}

static void each_device_pins_a_range_once_and_as_long_as_it_is_used(void **state)
{
    (void)state;
    need_watch();
    kolo_mem_range_t *r, *used;
    void *a, *b;
    char *p = map();
    assert_int_equal(kolo_mem_range_register(p, BYTES, &r), KOLO_OK);
    assert_int_equal(live, 0); /* not before it is used */
    used = kolo_mem_range_find(p + 10, 100);
    assert_int_equal(kolo_mem_range_pin(used, &device, &a), KOLO_OK);
    assert_int_equal(kolo_mem_range_pin(used, &device, &b), KOLO_OK);
    assert_ptr_equal(a, b);
    assert_int_equal(live, 1);
    assert_int_equal(kolo_mem_range_pin(used, &other, &b), KOLO_OK);
    assert_int_equal(live, 2);
    kolo_mem_pinner_leave(&other);
    assert_int_equal(live, 1);
    kolo_mem_range_deregister(r);
    assert_false(is_found(p, 1)); /* for nobody who comes now */
    assert_int_equal(live, 1);    /* but a message is under way */
    kolo_mem_range_put(used);
    nothing_is_left();
    munmap(p, BYTES);
}

/* Each way in which pages leave: after it nothing of the range is found, even where new pages lie there. */
static void pages_that_went_away_are_never_found(void **state)
{
    (void)state;
    need_watch();
    for (int way = 0; way < 5; way++) {
        kolo_mem_range_t *r;
        kolo_mem_range_counts_t before, after;
        void *handle;
        char *p = map(), *elsewhere = map();
        assert_int_equal(kolo_mem_range_register(p, BYTES, &r), KOLO_OK);
        kolo_mem_range_t *used = kolo_mem_range_find(p, BYTES);
        assert_non_null(used);
        assert_int_equal(kolo_mem_range_pin(used, &device, &handle), KOLO_OK);
        kolo_mem_range_put(used);
        kolo_mem_range_count(&before);
        if (way == 0) assert_int_equal(munmap(p + 3 * PAGE, PAGE), 0);
        if (way == 1) assert_int_equal(madvise(p, PAGE, MADV_DONTNEED), 0);
        if (way == 2) /* another mapping takes the place of the last page */
            assert_ptr_equal(mmap(p + BYTES - PAGE, PAGE, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                             p + BYTES - PAGE);
        if (way == 3)
            assert_ptr_equal(mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere), elsewhere);
        if (way == 4) { /* gone, and the address used anew */
            assert_int_equal(munmap(p, BYTES), 0);
            assert_ptr_equal(mmap(p, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                             p);
        }
        assert_false(is_found(p + 10 * PAGE, 1)); /* all of it: the device knows the range as one */
        assert_false(is_found(p, 1));
        kolo_mem_range_count(&after);
        assert_int_equal(after.lost, before.lost + 1);
        kolo_mem_range_t *anew; /* what lies there now can be registered, while the old handle is still out */
        if (way == 4) {
            assert_int_equal(kolo_mem_range_register(p, BYTES, &anew), KOLO_OK);
            assert_ptr_not_equal(anew, r);
            assert_true(is_found(p, BYTES));
            kolo_mem_range_deregister(anew);
        }
        kolo_mem_range_deregister(r);
        munmap(p, BYTES);
        munmap(elsewhere, BYTES);
        nothing_is_left();
    }
}

static void a_freed_block_is_never_found(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* free() keeps the pages there */
#endif
    need_watch();
    kolo_mem_range_t *r;
    char *p = malloc(32u << 20);
    assert_non_null(p);
    memset(p, 1, 32u << 20);
    uintptr_t at = (uintptr_t)p + (1u << 20); /* free() makes the pointer worthless, not the address */
    assert_int_equal(kolo_mem_range_register(p, 32u << 20, &r), KOLO_OK);
    assert_true(is_found(p, 32u << 20));
    free(p);
    assert_false(is_found((const void *)at, 1)); // NOLINT(performance-no-int-to-ptr)
    kolo_mem_range_deregister(r);
    nothing_is_left();
}

static void memory_that_cannot_be_watched_is_not_used(void **state)
{
    (void)state;
    kolo_mem_range_t *r;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    char *p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(kolo_mem_range_register(p, PAGE, &r), KOLO_OK); /* never an error: it is a hint */
    assert_false(is_found(p, 1));
    kolo_mem_range_deregister(r);
    munmap(p, PAGE);
    close(fd);
    nothing_is_left();
}

static void the_oldest_makes_room(void **state)
{
    (void)state;
    need_watch();
    kolo_mem_range_t *r[3], *used[3];
    char *p[3];
    void *handle;
    kolo_mem_range_counts_t n;
    assert_int_equal(kolo_param_parse(&kolo_mem_params.rows[1], "1"), KOLO_OK);
    for (int i = 0; i < 3; i++) {
        p[i] = mmap(NULL, 512u << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(p[i], MAP_FAILED);
        assert_int_equal(kolo_mem_range_register(p[i], 512u << 10, &r[i]), KOLO_OK);
        used[i] = kolo_mem_range_find(p[i], 1);
        if (i == 2) kolo_mem_range_put(used[0]); /* two fill it; this one is not under way any more */
        assert_int_equal(kolo_mem_range_pin(used[i], &device, &handle), KOLO_OK);
        assert_int_equal(live, i < 2 ? i + 1 : 2);
    }
    used[0] = kolo_mem_range_find(p[0], 1);
    assert_int_equal(kolo_mem_range_pin(used[0], &device, &handle), KOLO_ERR_NO_MEMORY); /* both are in use */
    kolo_mem_range_count(&n);
    assert_int_equal(n.pinned_bytes, 1u << 20);
    for (int i = 0; i < 3; i++) {
        kolo_mem_range_put(used[i]);
        kolo_mem_range_deregister(r[i]);
        munmap(p[i], 512u << 10);
    }
    assert_int_equal(kolo_param_parse(&kolo_mem_params.rows[1], "65536"), KOLO_OK);
    nothing_is_left();
}

static void a_child_has_nothing_registered(void **state)
{
    (void)state;
    need_watch();
#ifdef __SANITIZE_THREAD__
    skip(); /* it does not let a child of a process with threads start one */
#endif
    kolo_mem_range_t *r;
    void *handle;
    char *p = map();
    assert_int_equal(kolo_mem_range_register(p, BYTES, &r), KOLO_OK);
    kolo_mem_range_t *used = kolo_mem_range_find(p, 1);
    assert_int_equal(kolo_mem_range_pin(used, &device, &handle), KOLO_OK);
    kolo_mem_range_put(used);
    pid_t child = fork();
    if (child == 0) {
        kolo_mem_range_t *own = NULL;
        bool fine = !is_found(p, 1) && !kolo_mem_ranges_exist();
        p[0] = 7; /* its own page by now */
        fine = fine && munmap(p, PAGE) == 0 && kolo_mem_range_register(p + PAGE, PAGE, &own) == KOLO_OK &&
               is_found(p + PAGE, PAGE);
        if (own) kolo_mem_range_deregister(own);
        _exit(fine && live == 1 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(is_found(p, BYTES)); /* the child's unmapping is not ours */
    assert_int_equal(p[0], 1);
    kolo_mem_range_deregister(r);
    munmap(p, BYTES);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lies_in_whole_pages_of_a_range_is_found),
        cmocka_unit_test(each_device_pins_a_range_once_and_as_long_as_it_is_used),
        cmocka_unit_test(pages_that_went_away_are_never_found),
        cmocka_unit_test(a_freed_block_is_never_found),
        cmocka_unit_test(memory_that_cannot_be_watched_is_not_used),
        cmocka_unit_test(the_oldest_makes_room),
        cmocka_unit_test(a_child_has_nothing_registered),
    };
    assert_int_equal(kolo_param_parse(&kolo_mem_params.rows[1], "65536"), KOLO_OK);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
