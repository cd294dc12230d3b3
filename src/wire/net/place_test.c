/* SPDX-License-Identifier: Apache-2.0
 *
 * A peer that can write into the slots changes a header after it was checked.
 */
#include "base/test.h"
#include "wire/net/conn.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void a_header_that_changes_after_its_check_does_not_say_how_much_is_copied(void **state)
{
    enum { BYTES = 64 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    kolo_net_place_t none[1] = {{0}};
    kolo_net_conn_t *conn = calloc(1, sizeof *conn);
    kolo_rx_t rx = {.priv = conn};
    (void)state;
    /* The slot, with no memory behind its page. */
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(mprotect(memory + page, page, PROT_NONE), 0);
    rx.end.slots = (void *)memory;
    rx.end.stride = (uint32_t)page;
    rx.end.depth = 1;
    char *payload = malloc(2 * page);
    memset(payload, 7, 2 * page);
    conn->rx = &rx;
    conn->places = none;
    conn->closed = true;
    conn->direct_bytes = BYTES; /* as it was checked */
    rx.direct = payload;
    kolo_rx_header(&rx)->bytes = (uint32_t)(2 * page); /* as the peer has it now */
    kolo_net_rx_unexpect(&rx);
    assert_null(rx.direct);
    const char *slot = (const char *)(kolo_rx_header(&rx) + 1);
    assert_memory_equal(slot, payload, BYTES);
    assert_int_equal(slot[BYTES], 0);
    munmap(memory, 2 * page);
    free(payload);
    free(conn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_that_changes_after_its_check_does_not_say_how_much_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
