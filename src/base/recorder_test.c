/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of the flight recorder: another process finds and reads it, torn entries are left out, a forked child
 * does not write into it, and it goes with its last record.
 */
#include "base/recorder.h"

#include "base/clock.h"
#include "base/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(kolo_record_t *record, uint64_t index, uint64_t number, kolo_record_state_t state)
{
    kolo_record_entry_t *e = kolo_record_entry_begin(record, index);
    atomic_store(&e->number, number);
    atomic_store(&e->word, number * 3);
    atomic_store(&e->count, number * 5);
    atomic_store(&e->state, (uint32_t)state);
    kolo_record_entry_end(e, index);
}

static void name(kolo_record_t *record, int rank, int nranks)
{
    kolo_record_head_begin(record);
    record->head.job = 77;
    record->head.rank = rank;
    record->head.nranks = nranks;
    snprintf(record->head.name, sizeof record->head.name, "train\n");
    kolo_record_head_end(record);
}

/* The file of a process, as kolo-top finds it; -1: it has none. */
static int find_file(pid_t pid)
{
    char path[300], link[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    int fd = -1;
    if (!dir) return -1;
    for (struct dirent *d; fd < 0 && (d = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, d->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        if (n < 0) continue;
        link[n] = '\0';
        if (strncmp(link, "/memfd:" KOLO_RECORDER_NAME, strlen("/memfd:" KOLO_RECORDER_NAME)) == 0)
            fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    closedir(dir);
    return fd;
}

static bool has_file(void)
{
    int fd = find_file(getpid());
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static const void *map_file(int fd, size_t *size)
{
    assert_true(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
    *size = kolo_recorder_bytes(KOLO_RECORDER_SLOTS);
    void *at = mmap(NULL, *size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    return at;
}

static void a_parent_reads_what_its_child_writes(void **state)
{
    (void)state;
    int there[2], go[2];
    char c = 0;
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(go), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        kolo_record_t *r = kolo_recorder_take();
        if (!r) _exit(1);
        name(r, 1, 4);
        for (uint64_t i = 0; i < 3000; i++) put(r, i, i, KOLO_RECORD_DONE);
        put(r, 3000, 3000, KOLO_RECORD_RUNNING);
        if (write(there[1], &c, 1) != 1 || read(go[0], &c, 1) != 1) _exit(2);
        kolo_recorder_release(r);
        _exit(has_file() ? 3 : 0);
    }
    assert_int_equal(read(there[0], &c, 1), 1);
    static kolo_record_op_t ops[2 * KOLO_RECORD_ENTRIES];
    kolo_recorder_info_t info;
    kolo_record_view_t view;
    size_t size;
    int fd = find_file(pid), status = 0;
    assert_true(fd >= 0);
    const void *bytes = map_file(fd, &size);
    assert_null(kolo_recorder_check(bytes, size, &info));
    assert_int_equal(info.pid, pid);
    assert_true(kolo_recorder_view(bytes, &info, 0, &view));
    assert_false(kolo_recorder_view(bytes, &info, 1, &view));
    assert_int_equal(view.rank, 1);
    assert_string_equal(view.name, "train?"); /* it will be printed */
    assert_int_equal(kolo_recorder_ops(bytes, &info, 0, ops, 2 * KOLO_RECORD_ENTRIES), KOLO_RECORD_ENTRIES);
    for (uint64_t i = 0; i < KOLO_RECORD_ENTRIES; i++) {
        assert_int_equal(ops[i].number, 3000 - KOLO_RECORD_ENTRIES + 1 + i);
        assert_int_equal(ops[i].count, ops[i].number * 5);
    }
    assert_int_equal(ops[KOLO_RECORD_ENTRIES - 1].state, KOLO_RECORD_RUNNING);
    assert_int_equal(kolo_recorder_ops(bytes, &info, 0, ops, 3), 3);
    assert_int_equal(ops[2].number, 3000);
    assert_int_equal(write(go[1], &c, 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    munmap((void *)(uintptr_t)bytes, size);
    close(fd);
    for (int i = 0; i < 2; i++) {
        close(there[i]);
        close(go[i]);
    }
}

static _Atomic bool enough;

/* The writer never stops; whatever a reader gets must belong together. */
static void *write_for_ever(void *arg)
{
    for (uint64_t i = 0; !atomic_load(&enough); i++) put(arg, i, i, KOLO_RECORD_RUNNING);
    return NULL;
}

static void torn_entries_are_left_out(void **state)
{
    (void)state;
    kolo_record_t *r = kolo_recorder_take();
    static kolo_record_op_t ops[KOLO_RECORD_ENTRIES];
    pthread_t thread;
    assert_non_null(r);
    name(r, 0, 1);
    assert_int_equal(pthread_create(&thread, NULL, write_for_ever, r), 0);
    size_t seen = 0;
    for (uint64_t end = kolo_now_ns() + 5 * KOLO_NS_PER_S; seen < 1000000 && kolo_now_ns() < end;) {
        size_t n = kolo_record_ops(r, ops, KOLO_RECORD_ENTRIES);
        seen += n;
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(ops[i].number, ops[i].index);
            assert_int_equal(ops[i].word, ops[i].index * 3);
            assert_int_equal(ops[i].count, ops[i].index * 5);
        }
    }
    assert_true(seen > 0);
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    kolo_recorder_release(r);
}

static void a_half_written_entry_and_head_are_not_there(void **state)
{
    (void)state;
    kolo_record_t *r = kolo_recorder_take();
    kolo_record_op_t ops[4];
    assert_non_null(r);
    put(r, 0, 10, KOLO_RECORD_DONE);
    kolo_record_entry_t *e = kolo_record_entry_begin(r, 1);
    atomic_store(&e->state, KOLO_RECORD_DONE);
    assert_int_equal(kolo_record_ops(r, ops, 4), 1);
    kolo_record_entry_end(e, 1);
    assert_int_equal(kolo_record_ops(r, ops, 4), 2);
    int fd = find_file(getpid());
    size_t size;
    const void *bytes = map_file(fd, &size);
    kolo_recorder_info_t info;
    kolo_record_view_t view;
    assert_null(kolo_recorder_check(bytes, size, &info));
    assert_false(kolo_recorder_view(bytes, &info, 0, &view)); /* nothing written yet */
    name(r, 0, 1);
    assert_true(kolo_recorder_view(bytes, &info, 0, &view));
    kolo_record_head_begin(r);
    assert_false(kolo_recorder_view(bytes, &info, 0, &view));
    munmap((void *)(uintptr_t)bytes, size);
    close(fd);
    kolo_recorder_release(r);
    assert_false(has_file());
}

static void a_forked_child_writes_into_nothing_of_its_parents(void **state)
{
    (void)state;
    kolo_record_t *r = kolo_recorder_take();
    kolo_record_op_t ops[4];
    int status = 0;
    assert_non_null(r);
    put(r, 0, 10, KOLO_RECORD_DONE);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        put(r, 1, 11, KOLO_RECORD_DONE);
        if (has_file()) _exit(1);
        kolo_record_t *mine = kolo_recorder_take();
        if (!mine || mine == r || !has_file()) _exit(2);
        kolo_recorder_release(r); /* not its own: nothing happens */
        kolo_recorder_release(mine);
        _exit(has_file() ? 3 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(kolo_record_ops(r, ops, 4), 1);
    kolo_recorder_release(r);
}

static void slots_run_out_and_come_back_empty(void **state)
{
    (void)state;
    static kolo_record_t *taken[KOLO_RECORDER_SLOTS];
    kolo_record_op_t ops[1];
    for (int i = 0; i < KOLO_RECORDER_SLOTS; i++) assert_non_null(taken[i] = kolo_recorder_take());
    assert_null(kolo_recorder_take());
    put(taken[7], 0, 1, KOLO_RECORD_DONE);
    kolo_recorder_release(taken[7]);
    assert_ptr_equal(kolo_recorder_take(), taken[7]);
    assert_int_equal(kolo_record_ops(taken[7], ops, 1), 0);
    for (int i = 0; i < KOLO_RECORDER_SLOTS; i++) kolo_recorder_release(taken[i]);
    assert_false(has_file());
}

static void what_a_device_waits_for_settles_what_it_was_given(void **state)
{
    (void)state;
    kolo_record_op_t ops[8];
    kolo_record_waits_t waits;
    kolo_record_t *r = kolo_recorder_take();
    assert_non_null(r);
    name(r, 0, 4);
    for (uint64_t i = 0; i < 6; i++) put(r, i, i, KOLO_RECORD_LAUNCHED);
    assert_int_equal(kolo_record_ops(r, ops, 8), 6);
    for (int i = 0; i < 6; i++) assert_int_equal(ops[i].state, KOLO_RECORD_LAUNCHED);
    kolo_record_head_begin(r);
    r->head.waits = (kolo_record_waits_t){.number = 3, .word = 9, .since_ns = 55, .count = 1};
    r->head.waits.on[0].rank = 2;
    kolo_record_waits_read(r, &waits);
    assert_int_equal(waits.count, 0); /* half written */
    kolo_record_head_end(r);
    assert_int_equal(kolo_record_ops(r, ops, 8), 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(ops[i].state, i < 3    ? KOLO_RECORD_DONE
                                       : i == 3 ? KOLO_RECORD_RUNNING
                                                : KOLO_RECORD_LAUNCHED);
    assert_int_equal(ops[3].begun_ns, 55);
    r->head.waits.on[0].rank = 4; /* of four */
    kolo_record_waits_read(r, &waits);
    assert_int_equal(waits.count, 0);
    kolo_recorder_release(r);
}

int main(void)
{
    alarm(100);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parent_reads_what_its_child_writes),
        cmocka_unit_test(torn_entries_are_left_out),
        cmocka_unit_test(a_half_written_entry_and_head_are_not_there),
        cmocka_unit_test(a_forked_child_writes_into_nothing_of_its_parents),
        cmocka_unit_test(slots_run_out_and_come_back_empty),
        cmocka_unit_test(what_a_device_waits_for_settles_what_it_was_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
