/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit of one-sided transfers: what every kind must do, run for each of them. Two ends of one
 * process are driven by one thread, so that each test decides who moves when; the last tests have processes and
 * threads.
 */
#include "base/bytes.h"
#include "progress/test_fork.h"
#include "remote/onesided/test_ends.h"

#include <signal.h>
#include <sys/wait.h>

static void a_notice_comes_after_the_bytes_of_its_write(void **state)
{
    static const uint64_t sizes[] = {0, 1, 63, 64, 4096, 65537, 5u << 20, (17u << 20) + 3};
    pair_t *p = *state;
    char *data = malloc(20u << 20);
    for (size_t i = 0; i < 20u << 20; i++) data[i] = (char)(i * 7 + i / 251);
    for (size_t i = 0; i < KOLO_COUNTOF(sizes); i++) {
        kolo_onesided_event_t event;
        memset(p->memory.base, 0, 20u << 20);
        write_at(p, data, sizes[i], 5 * i, KOLO_ONESIDED_NOTIFY, (uint32_t)(0xfffffff0u + i), i + 1);
        expect(p, 1, 1, &event);
        assert_int_equal(event.number, 0xfffffff0u + i);
        assert_int_equal(event.bytes, sizes[i]);
        assert_memory_equal((char *)p->memory.base + 5 * i, data, sizes[i]);
        assert_int_equal(((char *)p->memory.base)[5 * i + sizes[i]], 0);
    }
    free(data);
}

static void writes_without_a_notice_are_there_before_the_next_one(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    uint32_t words[1000];
    for (uint32_t i = 0; i < 1000; i++) {
        words[i] = i + 1;
        write_at(p, &words[i], 4, 4 * (uint64_t)i, 0, 0, i % 2 ? i : 0);
    }
    write_at(p, NULL, 0, 0, KOLO_ONESIDED_NOTIFY, 77, 0);
    expect(p, 500, 1, &event);
    assert_int_equal(event.number, 77);
    assert_memory_equal(p->memory.base, words, sizeof words);
}

static void notices_wait_for_a_reader_and_keep_their_order(void **state)
{
    enum { MANY = 3000 }; /* more than any ring or socket takes */
    pair_t *p = *state;
    kolo_onesided_event_t *events = calloc(MANY, sizeof *events), none;
    char bytes[400] = {0};
    int n;
    for (uint32_t i = 0; i < MANY; i++) write_at(p, bytes, sizeof bytes, 0, KOLO_ONESIDED_NOTIFY, i, 0);
    for (int i = 0; i < 100; i++) { /* nobody reads: nothing is lost, nothing goes wrong */
        assert_int_equal(kolo_onesided_step(p->end[0], &none, 1, &n), KOLO_OK);
        assert_int_equal(n, 0);
    }
    expect(p, 0, MANY, events);
    for (uint32_t i = 0; i < MANY; i++) assert_int_equal(events[i].number, i);
    free(events);
}

static void both_directions_are_independent(void **state)
{
    pair_t *p = *state;
    kolo_onesided_memory_t memory;
    kolo_onesided_window_t window, again;
    kolo_onesided_event_t event;
    uint8_t travels[KOLO_WINDOW_BYTES];
    assert_int_equal(kolo_onesided_alloc(p->end[0], 100, &memory), KOLO_OK);
    assert_int_equal(kolo_onesided_expose(p->end[0], memory.base, 100, &window), KOLO_OK);
    kolo_onesided_window_encode(&window, travels);
    kolo_onesided_window_decode(travels, &again);
    kolo_onesided_write_t w = {"back", 5, &again, 50, KOLO_ONESIDED_NOTIFY, 9, 0};
    assert_int_equal(kolo_onesided_write(p->end[1], &w), KOLO_OK);
    write_at(p, "there", 6, 0, KOLO_ONESIDED_NOTIFY, 8, 0);
    int heard[2] = {0, 0}, n;
    uint64_t deadline = kolo_deadline_ms(20000);
    while (heard[0] + heard[1] < 2) {
        assert_true(kolo_now_ns() < deadline);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(kolo_onesided_step(p->end[i], &event, 1, &n), KOLO_OK);
            if (n) assert_int_equal(event.number, i ? 8 : 9);
            heard[i] += n;
        }
    }
    assert_string_equal((char *)p->memory.base, "there");
    assert_string_equal((char *)memory.base + 50, "back");
    kolo_onesided_free(&memory);
}

static void what_does_not_fit_is_refused_at_once(void **state)
{
    pair_t *p = *state;
    kolo_onesided_write_t w = {"data", 5, &p->window, p->window.bytes - 4, 0, 0, 0};
    assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_ERR_INVALID_ARGUMENT);
    w.offset = UINT64_MAX - 1;
    assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_ERR_INVALID_ARGUMENT);
    w.offset = 0;
    w.to = NULL;
    assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_ERR_INVALID_ARGUMENT);
}

static void a_window_that_lies_outside_is_refused(void **state)
{
    pair_t *p = *state;
    kolo_onesided_window_t window = p->window;
    window.address = UINT64_C(1) << 45;
    forge(p, window);
}

static void a_window_beyond_its_end_is_refused(void **state)
{
    pair_t *p = *state;
    kolo_onesided_window_t window = p->window;
    window.address += (uint64_t)kolo_onesided_param_arena;
    forge(p, window);
}

static void a_forged_key_and_a_hidden_window_are_refused(void **state)
{
    pair_t *p = *state;
    kolo_onesided_window_t window = p->window;
    if (kind == KOLO_ONESIDED_SHM) return; /* the writer maps the memory, and who maps it may write there */
    window.key ^= UINT64_C(1) << 40;
    forge(p, window);
    if (kind == KOLO_ONESIDED_VERBS) return; /* the arena stays registered, for the next tensor */
    tear_down(state);
    set_up(state);
    p = *state;
    window = p->window;
    kolo_onesided_hide(p->end[1], &p->window);
    forge(p, window);
    tear_down(state);
    set_up(state);
    p = *state;
    window = p->window;
    window.key++;
    forge(p, window);
}

static void what_came_before_the_end_is_seen_before_it(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    int n;
    write_at(p, "last", 5, 0, KOLO_ONESIDED_NOTIFY, 5, 1);
    do {
        assert_int_equal(kolo_onesided_step(p->end[0], &event, 1, &n), KOLO_OK);
    } while (n == 0);
    kolo_onesided_close(p->end[0]);
    p->end[0] = NULL;
    assert_int_equal(wait_event(p->domain[1], p->end[1], &event), KOLO_OK);
    assert_int_equal(event.number, 5);
    assert_string_equal(p->memory.base, "last");
    assert_int_equal(wait_event(p->domain[1], p->end[1], &event), KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "end 0"));
    assert_int_equal(kolo_onesided_step(p->end[1], &event, 1, &n), KOLO_ERR_REMOTE);
    kolo_onesided_write_t w = {.flags = KOLO_ONESIDED_NOTIFY};
    assert_int_equal(kolo_onesided_write(p->end[1], &w), KOLO_ERR_REMOTE);
}

static void a_mailbox_is_there_from_the_start(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    const char *mailbox = kolo_onesided_mailbox(p->end[1]);
    const kolo_onesided_window_t *window = kolo_onesided_peer_mailbox(p->end[0]);
    assert_int_equal(window->bytes, 300);
    for (int i = 0; i < 300; i++) assert_int_equal(mailbox[i], 0);
    kolo_onesided_write_t w = {"letter", 7, window, 293, KOLO_ONESIDED_NOTIFY, 4, 0};
    assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_OK);
    expect(p, 0, 1, &event);
    assert_int_equal(event.number, 4);
    assert_string_equal(mailbox + 293, "letter");
}

static void memory_outlives_its_end(void **state)
{
    pair_t *p = *state;
    kolo_onesided_memory_t one, two;
    assert_int_equal(kolo_onesided_alloc(p->end[1], 1000, &one), KOLO_OK);
    memset(one.base, 3, 1000);
    kolo_onesided_free(&one);
    kolo_onesided_free(&one); /* nothing is there any more */
    assert_int_equal(kolo_onesided_alloc(p->end[1], 1000, &one), KOLO_OK);
    assert_int_equal(kolo_onesided_alloc(p->end[1], 8 << 20, &two), KOLO_OK);
    assert_true((char *)two.base >= (char *)one.base + 1000 || (char *)one.base >= (char *)two.base + (8 << 20));
    kolo_onesided_close(p->end[1]);
    p->end[1] = NULL;
    memset(one.base, 1, 1000);
    memset(two.base, 2, 8 << 20);
    kolo_onesided_free(&two);
    assert_int_equal(((char *)one.base)[999], 1);
    kolo_onesided_free(&one);
}

static void free_memory_goes_back_to_the_system(void **state)
{
    pair_t *p = *state;
    kolo_onesided_memory_t memory[3];
    int64_t keep = kolo_onesided_param_keep;
    size_t before = kolo_onesided_memory(p->end[1]);
    kolo_onesided_param_keep = 4 << 20;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kolo_onesided_alloc(p->end[1], 4 << 20, &memory[i]), KOLO_OK);
        memset(memory[i].base, i + 1, 4 << 20);
    }
    assert_true(kolo_onesided_memory(p->end[1]) - before >= 12u << 20);
    for (int i = 0; i < 3; i++) kolo_onesided_free(&memory[i]);
    assert_true(kolo_onesided_memory(p->end[1]) - before <= 4u << 20);
    assert_int_equal(kolo_onesided_alloc(p->end[1], 12 << 20, &memory[0]), KOLO_OK); /* the three are one again */
    assert_int_equal(((char *)memory[0].base)[9 << 20], 0);                          /* a fresh page */
    kolo_onesided_free(&memory[0]);
    kolo_onesided_param_keep = keep;
}

static void a_write_is_one_request(void **state)
{
    enum { MANY = 200 };
    pair_t *p = *state;
    kolo_onesided_counters_t before, after;
    static kolo_onesided_event_t events[MANY];
    static char data[MANY][1000], mine[100000];
    if (kind != KOLO_ONESIDED_VERBS) return;
    assert_int_equal(kolo_onesided_keep(p->end[0], data, sizeof data), KOLO_OK);
    kolo_onesided_get_counters(&before);
    for (uint32_t i = 0; i < MANY; i++) write_at(p, data[i], 1000, 1000 * i, KOLO_ONESIDED_NOTIFY, i, i + 1);
    expect(p, MANY, MANY, events);
    kolo_onesided_get_counters(&after);
    uint64_t requests = after.requests - before.requests, completions = after.completions - before.completions;
    printf("count onesided wire=verbs writes=%d requests=%llu completions=%llu registrations=%llu\n", MANY,
           (unsigned long long)requests, (unsigned long long)completions,
           (unsigned long long)(after.registrations - before.registrations));
    /* A request and a receive for each; and one of each for news of receives, a quarter of them at a time. */
    assert_in_range(requests, 2 * MANY, 2 * MANY + 2 * (MANY / 32 + 1));
    assert_in_range(completions, 2 * MANY, 2 * MANY + 2 * (MANY / 32 + 1));
    assert_int_equal(after.registrations, before.registrations);
    before = after; /* memory that nobody has told of: once, as long as writes from there are under way */
    for (uint32_t i = 0; i < MANY; i++) write_at(p, mine, sizeof mine, 0, KOLO_ONESIDED_NOTIFY, i, i + 1);
    expect(p, MANY, MANY, events);
    kolo_onesided_get_counters(&after);
    assert_in_range(after.registrations - before.registrations, 1, 20);
}

/* Pages that went back to the system must be none that a card still writes to. */
static void pages_that_went_back_are_written_anew(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    kolo_onesided_memory_t memory;
    kolo_onesided_window_t window = p->window;
    int64_t keep = kolo_onesided_param_keep;
    char *data = malloc(1 << 20);
    kolo_onesided_param_keep = 0;
    for (int round = 0; round < 4; round++) {
        assert_int_equal(kolo_onesided_alloc(p->end[1], 1 << 20, &memory), KOLO_OK);
        assert_int_equal(kolo_onesided_expose(p->end[1], memory.base, 1 << 20, &p->window), KOLO_OK);
        memset(data, 1 + round, 1 << 20);
        write_at(p, data, 1 << 20, 0, KOLO_ONESIDED_NOTIFY, 1, 1);
        expect(p, 1, 1, &event);
        assert_memory_equal(memory.base, data, 1 << 20);
        kolo_onesided_hide(p->end[1], &p->window);
        kolo_onesided_free(&memory);
    }
    kolo_onesided_param_keep = keep;
    p->window = window;
    free(data);
}

static void cards_that_make_no_sense_are_refused(void **state)
{
    kolo_onesided_card_t card = {.kinds = 1u << KOLO_ONESIDED_TCP};
    uint8_t bytes[KOLO_ONESIDED_CARD_BYTES];
    kolo_onesided_domain_t *domain;
    kolo_onesided_event_t event;
    (void)state;
    assert_int_equal(kolo_onesided_domain_create(key, &domain), KOLO_OK);
    for (int broken = 0; broken < 3; broken++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        kolo_onesided_t *end = open_end(domain, fds[0], "a liar");
        kolo_onesided_card_encode(&card, bytes);
        bytes[broken * 4]++;
        if (broken == 2) kolo_put64(bytes + 248, 0);
        assert_int_equal(write(fds[1], bytes, sizeof bytes), (ssize_t)sizeof bytes);
        assert_int_equal(wait_event(domain, end, &event), KOLO_ERR_PROTOCOL);
        assert_non_null(strstr(kolo_error_text(), "a liar"));
        kolo_onesided_close(end);
        close(fds[1]);
    }
    kolo_onesided_domain_destroy(domain);
}

/* ---- processes ---- */

/* Writes until it is killed. */
static void child_writes(int fd)
{
    kolo_onesided_domain_t *domain;
    kolo_onesided_event_t event;
    kolo_onesided_window_t window;
    uint8_t travels[KOLO_WINDOW_BYTES];
    if (kolo_onesided_domain_create(key, &domain) != KOLO_OK) _exit(2);
    kolo_onesided_t *end = open_end(domain, fd, "the parent");
    kolo_onesided_memory_t memory;
    if (wait_event(domain, end, &event) != KOLO_OK || event.kind != KOLO_ONESIDED_OPENED) _exit(3);
    /* The parent learns where to write by a notice of 0 bytes each for the parts of the window's text. */
    if (kolo_onesided_alloc(end, 1 << 20, &memory) != KOLO_OK) _exit(4);
    if (kolo_onesided_expose(end, memory.base, 1 << 20, &window) != KOLO_OK) _exit(5);
    kolo_onesided_window_encode(&window, travels);
    for (int i = 0; i < KOLO_WINDOW_BYTES; i += 4) {
        kolo_onesided_write_t w = {.flags = KOLO_ONESIDED_NOTIFY, .number = kolo_get32(travels + i)};
        if (kolo_onesided_write(end, &w) != KOLO_OK) _exit(6);
    }
    for (;;) { /* answers each notice, until it is killed */
        if (wait_event(domain, end, &event) != KOLO_OK) _exit(7);
        if (event.kind != KOLO_ONESIDED_NOTIFIED) continue;
        uint32_t sum = 0;
        for (uint64_t i = 0; i < event.bytes; i++) sum += ((unsigned char *)memory.base)[i];
        kolo_onesided_write_t w = {.flags = KOLO_ONESIDED_NOTIFY, .number = sum};
        if (kolo_onesided_write(end, &w) != KOLO_OK) _exit(8);
    }
}

static void a_process_answers_and_its_death_is_seen(void **state)
{
    kolo_onesided_domain_t *domain;
    kolo_onesided_event_t event;
    kolo_progress_t *progress;
    kolo_onesided_window_t window;
    uint8_t travels[KOLO_WINDOW_BYTES], data[5000];
    int fds[2], status;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it allows no threads in the child of a process that has some */
#endif
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    pid_t child = kolo_test_fork(progress);
    if (child == 0) {
        close(fds[0]);
        child_writes(fds[1]);
    }
    close(fds[1]);
    assert_int_equal(kolo_onesided_domain_create(key, &domain), KOLO_OK);
    kolo_onesided_t *end = open_end(domain, fds[0], "the child");
    assert_int_equal(wait_event(domain, end, &event), KOLO_OK);
    for (int i = 0; i < KOLO_WINDOW_BYTES; i += 4) {
        assert_int_equal(wait_event(domain, end, &event), KOLO_OK);
        kolo_put32(travels + i, event.number);
    }
    kolo_onesided_window_decode(travels, &window);
    for (int round = 0; round < 20; round++) {
        uint32_t sum = 0;
        for (size_t i = 0; i < sizeof data; i++) sum += data[i] = (uint8_t)(i * 3 + (size_t)round);
        kolo_onesided_write_t w = {data, sizeof data, &window, 0, KOLO_ONESIDED_NOTIFY, 1, 0};
        assert_int_equal(kolo_onesided_write(end, &w), KOLO_OK);
        assert_int_equal(wait_event(domain, end, &event), KOLO_OK);
        assert_int_equal(event.number, sum);
    }
    kill(child, SIGKILL);
    assert_int_equal(wait_event(domain, end, &event), KOLO_ERR_REMOTE);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    kolo_onesided_close(end);
    kolo_onesided_domain_destroy(domain);
    kolo_progress_put(progress);
}

/* ---- threads: each end on one of its own, asleep in between ---- */

enum { TURNS = 300 };
static void *ping(void *arg)
{
    pair_t *p = arg;
    kolo_onesided_event_t event;
    for (uint32_t i = 0; i < TURNS; i++) {
        kolo_onesided_write_t w = {.flags = KOLO_ONESIDED_NOTIFY, .number = i};
        if (kolo_onesided_write(p->end[0], &w) != KOLO_OK ||
            wait_event(p->domain[0], p->end[0], &event) != KOLO_OK || event.number != i + 1)
            return p;
    }
    return NULL;
}

static void sleepers_are_woken(void **state)
{
    pair_t *p = *state;
    pthread_t thread;
    kolo_onesided_event_t event;
    void *failed;
    assert_int_equal(pthread_create(&thread, NULL, ping, p), 0);
    for (uint32_t i = 0; i < TURNS; i++) {
        assert_int_equal(wait_event(p->domain[1], p->end[1], &event), KOLO_OK);
        kolo_onesided_write_t w = {.flags = KOLO_ONESIDED_NOTIFY, .number = event.number + 1};
        assert_int_equal(kolo_onesided_write(p->end[1], &w), KOLO_OK);
        int n;
        assert_int_equal(kolo_onesided_step(p->end[1], &event, 0, &n), KOLO_OK);
    }
    pthread_join(thread, &failed);
    assert_null(failed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_answers_and_its_death_is_seen),
        TEST(a_notice_comes_after_the_bytes_of_its_write),
        TEST(writes_without_a_notice_are_there_before_the_next_one),
        TEST(notices_wait_for_a_reader_and_keep_their_order),
        TEST(both_directions_are_independent),
        TEST(what_does_not_fit_is_refused_at_once),
        TEST(a_window_that_lies_outside_is_refused),
        TEST(a_window_beyond_its_end_is_refused),
        TEST(a_forged_key_and_a_hidden_window_are_refused),
        TEST(what_came_before_the_end_is_seen_before_it),
        TEST(a_mailbox_is_there_from_the_start),
        TEST(memory_outlives_its_end),
        TEST(pages_that_went_back_are_written_anew),
        TEST(a_write_is_one_request),
        TEST(free_memory_goes_back_to_the_system),
        cmocka_unit_test(cards_that_make_no_sense_are_refused),
        TEST(sleepers_are_woken),
    };
    return run_kinds(argc, argv, tests, KOLO_COUNTOF(tests));
}
