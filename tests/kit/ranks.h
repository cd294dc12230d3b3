/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the public API share: ranks as threads, expectations that any thread may state (cmocka's jump
 * out of the test's own thread only), and a census of what the process holds.
 */
#ifndef KOLO_TESTS_KIT_RANKS_H
#define KOLO_TESTS_KIT_RANKS_H

#include "base/test.h"
#include "base/test_time.h"

#include <kolo/kolo.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_RANKS 16

/* ---- expectations: a failed one is printed with the thread's last error and counted ---- */
bool expect_fact(const char *file, int line, const char *text, bool fact);
bool expect_status(const char *file, int line, const char *text, kolo_status_t want, kolo_status_t got);
/* The status, and every needle stands in the thread's last error. The list ends with NULL. */
bool expect_error(const char *file, int line, const char *text, kolo_status_t want, kolo_status_t got,
                  const char *const *needles);
#define EXPECT(fact)          expect_fact(__FILE__, __LINE__, #fact, (fact))
#define EXPECT_OK(call)       expect_status(__FILE__, __LINE__, #call, KOLO_OK, (call))
#define EXPECT_IS(want, call) expect_status(__FILE__, __LINE__, #call, (want), (call))
#define EXPECT_ERROR(want, call, ...)                                                                              \
    expect_error(__FILE__, __LINE__, #call, (want), (call), (const char *const[]){__VA_ARGS__, NULL})
int expect_failures(void); /* so far */

/* Of functions that work out which values are right: most of the work under sanitizers, and not what those are
 * for. */
#define TEST_PLAIN __attribute__((no_sanitize("thread", "address", "undefined")))

/* ---- ranks as threads ---- */
typedef struct rank {
    int rank, nranks;
    kolo_comm_t comm; /* made before fn; fn may end it and set NULL */
    void *arg;
} rank_t;

/* Runs fn on n threads with a communicator of n ranks; ends the communicators. Returns the number of failures. */
int run_ranks(int n, void (*fn)(rank_t *), void *arg);
/* The same without communicators. */
int run_threads(int n, void (*fn)(rank_t *), void *arg);
/* All threads of the run (a barrier that is not under test). */
void meet(void);
/* What a call on a communicator that does not block comes to: waits while it is in progress. */
kolo_status_t settled(kolo_comm_t comm, kolo_status_t status);
/* Does the communicator still work? An all_reduce with a known sum. */
bool works(kolo_comm_t comm);
/* Finalize and destroy; after an error only destroy. */
void end_comm(kolo_comm_t *comm);

/* ---- census ---- */
typedef struct {
    int fds, threads, segments; /* mappings of memory files */
} census_t;
census_t census_take(void);
/* Threads and sockets may take a moment to go: waits at most five seconds until no more is held than then. */
bool census_no_more_than(census_t then);

uint64_t now_ms(void);
void nap_ms(int ms);
/* Waits until `n` have come to the counter, at most a minute; four under a sanitizer, as every limit of a test. */
bool await_count(_Atomic int *counter, int n);
/* Ends this process if it has not ended by then. */
void limit_s(unsigned seconds);

/* Fills a buffer with numbers that depend on the seed, and tells whether it holds them. */
void fill_ints(int32_t *data, size_t n, int seed);
bool ints_are(const int32_t *data, size_t n, int seed);

#endif
