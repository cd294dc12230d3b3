/* SPDX-License-Identifier: Apache-2.0
 *
 * KOLO_CHECK=deep: each mistake that it looks for is an error that names rank, argument and address range, or both
 * ranks and what each passed; what is right goes through.
 */
#include "kit/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N 1024 /* elements; the buffers span two pages */

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Three pages; the N elements go from the middle of the first to the middle of the second. */
static int32_t *pages(void)
{
    char *p = mmap(NULL, 3 * page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return (int32_t *)(void *)(p + page() / 2);
}

static char *second(const int32_t *data)
{
    return (char *)(uintptr_t)data - page() / 2 + page();
}

static void drop(int32_t *data)
{
    munmap((char *)data - page() / 2, 3 * page());
}

/* ---- memory ---- */

static void expect_bad(kolo_comm_t comm, const int32_t *src, int32_t *dst, const char *name, const int32_t *bad,
                       const char *why)
{
    char range[80], at[40], who[40];
    int rank = 0;
    EXPECT_OK(kolo_comm_user_rank(comm, &rank));
    snprintf(range, sizeof range, "0x%" PRIxPTR " to 0x%" PRIxPTR, (uintptr_t)bad, (uintptr_t)(bad + N));
    snprintf(at, sizeof at, "0x%" PRIxPTR " on", (uintptr_t)second(bad));
    snprintf(who, sizeof who, "rank %d", rank);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_reduce(src, dst, N, KOLO_INT32, KOLO_SUM, comm, NULL),
                 "all_reduce", name, who, range, at, why);
}

static void pass_bad_memory(rank_t *r)
{
    int32_t *src = pages(), *dst = pages(), *file;
    FILE *f = tmpfile();
    works(r->comm);
    if (mprotect(second(src), page(), PROT_NONE)) abort();
    expect_bad(r->comm, src, dst, "the source", src, "protected");
    if (mprotect(second(src), page(), PROT_READ)) abort();
    expect_bad(r->comm, dst, src, "the destination", src, "only be read");
    if (munmap(second(src), page())) abort();
    expect_bad(r->comm, src, dst, "the source", src, "nothing is mapped");
    drop(src);
    if (!f || ftruncate(fileno(f), (off_t)page())) abort();
    char *m = mmap(NULL, 3 * page(), PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    if (m == MAP_FAILED) abort();
    file = (int32_t *)(void *)(m + page() / 2);
    expect_bad(r->comm, file, dst, "the source", file, "end of a file");
    drop(file);
    fclose(f);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_recv((void *)16, 1, KOLO_INT8, 1 - r->rank, r->comm, NULL), "recv",
                 "the destination", "0x10 to 0x11");
    works(r->comm); /* nothing was begun */
    drop(dst);
}

static void memory_that_cannot_be_used_is_named(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, pass_bad_memory, NULL), 0);
}

static void pass_bad_parts(rank_t *r)
{
    int32_t *src = pages(), *dst = pages();
    size_t counts[2] = {10, N}, displs[2] = {0, 10}, fine[2] = {10, 10};
    if (mprotect(second(dst), page(), PROT_READ)) abort();
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_gatherv(src, dst, counts, displs, KOLO_INT32, r->comm, NULL),
                 "all_gatherv", "part 1 of the destination", "only be read");
    if (mprotect(second(src), page(), PROT_NONE)) abort();
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                 kolo_reduce_scatterv(src, dst, counts, NULL, KOLO_INT32, KOLO_SUM, r->comm, NULL),
                 "reduce_scatterv", "part 1 of the source", "protected");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                 kolo_all_to_allv(src, counts, displs, dst, counts, displs, KOLO_INT32, r->comm, NULL),
                 "all_to_allv", "part 1 of the source");
    EXPECT_OK(kolo_all_gatherv(src, dst, fine, displs, KOLO_INT32, r->comm, NULL));
    EXPECT_OK(kolo_all_to_allv(src, fine, displs, dst, fine, displs, KOLO_INT32, r->comm, NULL));
    drop(src);
    drop(dst);
}

static void parts_are_looked_at_one_by_one(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, pass_bad_parts, NULL), 0);
}

static void overlap(rank_t *r)
{
    int32_t data[64] = {0};
    int peer = 1 - r->rank;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_reduce(data, data + 4, 8, KOLO_INT32, KOLO_SUM, r->comm, NULL),
                 "all_reduce", "overlap", r->rank ? "rank 1" : "rank 0", "0x");
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_send(data, 8, KOLO_INT32, peer, r->comm, NULL));
    EXPECT_OK(kolo_recv(data + 7, 8, KOLO_INT32, peer, r->comm, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_group_end(), "group_end", "the receive from rank",
                 "overlaps the send");
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_send(data, 8, KOLO_INT32, peer, r->comm, NULL));
    EXPECT_OK(kolo_recv(data + 8, 8, KOLO_INT32, peer, r->comm, NULL));
    EXPECT_OK(kolo_group_end());
}

static void overlapping_buffers_are_named(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, overlap, NULL), 0);
}

/* ---- all ranks alike ---- */

typedef enum { TYPE, OP, ROOT, COUNT, COLL, TABLES, PAIRS, CASES } case_t;
static const char *const named[CASES] = {"type 4 (reduce 8 int64 sum root 0), rank 0 2 (reduce 8 int32 sum root 0)",
                                         "operator 3 (reduce 8 int32 max root 0), rank 0 0 (",
                                         "root 1 (reduce 8 int32 sum root 1), rank 0 0 (",
                                         "count 9 (reduce 9 int32 sum root 0), rank 0 8 (",
                                         "collective",
                                         "tables of counts others",
                                         "rank 2 sends rank 0 4 elements (send_counts[0]), which expects 3"};

static kolo_status_t call(const rank_t *r, case_t c, int32_t *data)
{
    bool odd = r->rank == 2;
    size_t counts[3] = {3, 3, 3}, displs[3] = {0, 8, 16}, others[3] = {4, 2, 3};
    if (c == COLL && odd) return kolo_barrier(r->comm, NULL);
    if (c == TABLES)
        return kolo_all_gatherv(data, data + 100, odd ? others : counts, displs, KOLO_INT32, r->comm, NULL);
    if (c == PAIRS)
        return kolo_all_to_allv(data, odd ? others : counts, displs, data + 100, counts, displs, KOLO_INT32,
                                r->comm, NULL);
    return kolo_reduce(data, data + 100, odd && c == COUNT ? 9 : 8, odd && c == TYPE ? KOLO_INT64 : KOLO_INT32,
                       odd && c == OP ? KOLO_MAX : KOLO_SUM, odd && c == ROOT ? 1 : 0, r->comm, NULL);
}

static void differ(rank_t *r)
{
    case_t c = *(case_t *)r->arg;
    int32_t data[400] = {0};
    works(r->comm);
    kolo_status_t status = call(r, c, data);
    EXPECT_ERROR(KOLO_ERR_MISMATCH, status, c == PAIRS ? "all_to_allv" : "operation 1: rank 2 passes", named[c]);
    meet();
}

static void what_ranks_pass_differently_is_named_by_all(void **state)
{
    (void)state;
    for (case_t c = TYPE; c < CASES; c++) {
        int failures = run_ranks(3, differ, &c);
        if (failures) print_message("case %d: %d failures\n", (int)c, failures);
        assert_int_equal(failures, 0);
    }
}

int main(void)
{
    limit_s(110);
    setenv("KOLO_CHECK", "deep", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_cannot_be_used_is_named),
        cmocka_unit_test(parts_are_looked_at_one_by_one),
        cmocka_unit_test(overlapping_buffers_are_named),
        cmocka_unit_test(what_ranks_pass_differently_is_named_by_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
