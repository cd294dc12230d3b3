/* SPDX-License-Identifier: Apache-2.0
 *
 * A kind of memory is a folder and a row of a list: one that the library does not know (guarded.c) is found,
 * copied, shared and reduced as the library's own are. Whoever touches it ends the test by a fault.
 */
#include "guarded.h"

#include "engine/kit/engines.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 65536, COUNT = 1000, LARGE = 200000 };

static void addresses_are_found_by_their_row(void **state)
{
    kolo_mem_t mem;
    kolo_mem_place_t place;
    const kolo_mem_ops_t *row;
    (void)state;
    assert_int_equal(seam_mem_guarded.make(0, BYTES, &mem), KOLO_OK);
    kolo_mem_find((char *)mem.address + BYTES - 1, &place);
    assert_ptr_equal(place.ops, &seam_mem_guarded);
    assert_int_equal(place.device, 0);
    assert_int_equal(place.bytes, BYTES);
    kolo_mem_find(&mem, &place);
    assert_ptr_equal(place.ops, &kolo_mem_host);
    assert_true(kolo_mem_has_devices());
    assert_int_equal(kolo_mem_row(0, &row), KOLO_OK);
    assert_ptr_equal(row, &seam_mem_guarded);
    assert_int_not_equal(kolo_mem_row(1, &row), KOLO_OK);
    void *address = mem.address;
    kolo_mem_free(&mem);
    kolo_mem_find(address, &place);
    assert_ptr_equal(place.ops, &kolo_mem_host);
}

static void another_process_maps_it_by_a_descriptor(void **state)
{
    static const char mine[] = "from the parent", theirs[] = "from the child";
    char text[sizeof mine];
    kolo_mem_t mem, mapped;
    int fd, how;
    (void)state;
    assert_int_equal(seam_mem_guarded.make(0, BYTES, &mem), KOLO_OK);
    assert_int_equal(seam_mem_guarded.write(0, mem.address, mine, sizeof mine), KOLO_OK);
    assert_int_equal(seam_mem_guarded.share(&mem, &fd), KOLO_OK);
    pid_t child = fork();
    if (child == 0) {
        bool good = seam_mem_guarded.map(fd, BYTES, 0, &mapped) == KOLO_OK &&
                    seam_mem_guarded.read(0, text, mapped.address, sizeof text) == KOLO_OK &&
                    strcmp(text, mine) == 0 &&
                    seam_mem_guarded.write(0, mapped.address, theirs, sizeof theirs) == KOLO_OK;
        _exit(!good);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_int_equal(seam_mem_guarded.read(0, text, mem.address, sizeof theirs), KOLO_OK);
    assert_string_equal(text, theirs);
    close(fd);
    kolo_mem_free(&mem);
}

/* ---- tensors of an engine ---- */

static void fill(const kolo_mem_t *mem, float *host, int count, int rank)
{
    for (int k = 0; k < count; k++) host[k] = (float)(k % 7 + rank);
    EXPECT_OK(seam_mem_guarded.write(0, mem->address, host, (size_t)count * sizeof *host));
}

/* Some that are packed together, and one that is too long for that. */
static void reduce(erank_t *r)
{
    static const char *const names[] = {"a", "b", "c", "long"};
    kolo_mem_t mem[4];
    float *host = malloc(LARGE * sizeof *host);
    int64_t handles[4], counts[4] = {COUNT, COUNT + 1, 1, LARGE};
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(seam_mem_guarded.make(0, (size_t)counts[i] * sizeof *host, &mem[i]));
        fill(&mem[i], host, (int)counts[i], r->rank);
        kolo_tensor_t t = float_tensor(names[i], mem[i].address, &counts[i]);
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, i % 2 ? 2.0 : 1.0, 1.0, NULL, &handles[i]));
    }
    for (int i = 0; i < 4; i++) {
        float n = (float)r->size, times = i % 2 ? 2.0f : 1.0f;
        bool good = true;
        EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
        EXPECT_OK(seam_mem_guarded.read(0, host, mem[i].address, (size_t)counts[i] * sizeof *host));
        for (int k = 0; k < counts[i]; k++)
            good = good && host[k] == times * (n * (float)(k % 7) + n * (n - 1) / 2);
        EXPECT(good);
    }
    meet(); /* no other rank's engine looks at them any more */
    for (int i = 0; i < 4; i++) kolo_mem_free(&mem[i]);
    free(host);
}

static void tensors_in_it_are_reduced(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) assert_int_equal(run_engines(n, NULL, reduce, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_found_by_their_row),
        cmocka_unit_test(another_process_maps_it_by_a_descriptor),
        cmocka_unit_test(tensors_in_it_are_reduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
