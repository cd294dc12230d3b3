/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs provider on a real device: both ends of a connection in this process. What a wire does with it is
 * tested by the conformance kit; here are things that a wire cannot do on purpose: queue pairs that fail, keys that
 * are wrong, hellos that are damaged, memory that cannot be locked, memory of devices. Skipped where there is no
 * device (tests/vm has some).
 */
#include "base/clock.h"
#include "base/test.h"
#include "mem/mem.h"
#include "remote/verbs/verbs.h"

#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 8u
#define BYTES 4096u
#define LIMIT 20000 /* ms; a test that comes near it has failed */
#define SHORT 300   /* for what may be silent for ever */

typedef struct {
    kolo_net_open_t *open;
    kolo_net_end_t *writer, *reader;
    kolo_net_region_t *from, *to;
    kolo_net_hello_t of_writer, of_reader;
    char *memory; /* BYTES of the writer, DEPTH * BYTES of the reader */
} pair_t;

static const kolo_net_ops_t *const ops = &kolo_net_verbs;

static char value(uint32_t message, size_t i)
{
    return (char)(message * 31 + i * 7 + (i >> 8));
}

/* Both ends, not yet connected. */
static void make(pair_t *p)
{
    const kolo_net_end_config_t config = {.depth = DEPTH, .message_bytes = BYTES, .label = "test"};
    *p = (pair_t){0};
    p->memory = mmap(NULL, (DEPTH + 1) * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p->memory != MAP_FAILED);
    assert_int_equal(ops->open(0, &p->open), KOLO_OK);
    assert_int_equal(ops->enroll(p->open, p->memory, BYTES, false, &p->from), KOLO_OK);
    assert_int_equal(ops->enroll(p->open, p->memory + BYTES, DEPTH * BYTES, true, &p->to), KOLO_OK);
    assert_int_equal(ops->listen(p->open, &config, &p->of_reader, &p->reader), KOLO_OK);
    assert_int_equal(ops->start(p->open, &config, &p->of_writer, &p->writer), KOLO_OK);
}

static void connect_both(pair_t *p)
{
    make(p);
    assert_int_equal(ops->connect(p->writer, &p->of_reader), KOLO_OK);
    assert_int_equal(ops->accept(p->reader, &p->of_writer), KOLO_OK);
}

static void drop(pair_t *p)
{
    ops->shut(p->writer);
    ops->shut(p->reader);
    ops->withdraw(p->from);
    ops->withdraw(p->to);
    ops->close(p->open);
    munmap(p->memory, (DEPTH + 1) * BYTES);
}

static char *place_of(const pair_t *p, uint64_t request)
{
    return p->memory + BYTES + (request & (DEPTH - 1)) * BYTES;
}

static kolo_status_t offer(pair_t *p)
{
    uint64_t request = p->reader->requests;
    memset(place_of(p, request), 0, BYTES);
    KOLO_TRY(ops->irecv(p->reader, place_of(p, request), BYTES, p->to, request, request));
    return ops->push(p->reader);
}

/* One step of the reader: *n messages have come. */
static kolo_status_t look_at_reader(pair_t *p, int *n)
{
    kolo_net_done_t done[DEPTH];
    KOLO_TRY(ops->test(p->reader, done, DEPTH, n));
    return KOLO_OK;
}

static kolo_status_t look_at_writer(pair_t *p)
{
    kolo_net_done_t done[DEPTH];
    int n;
    return ops->test(p->writer, done, DEPTH, &n);
}

/* Offers, sends and receives message `number`; the first failure of either end ends it. */
static kolo_status_t carry_within(pair_t *p, uint32_t number, int64_t limit_ms)
{
    uint64_t request = p->reader->requests, deadline = kolo_deadline_ms(limit_ms);
    kolo_status_t sent = KOLO_IN_PROGRESS;
    int came = 0;
    for (size_t i = 0; i < BYTES; i++) p->memory[i] = value(number, i);
    KOLO_TRY(offer(p));
    while (came == 0) {
        if (kolo_now_ns() > deadline) return kolo_fail(KOLO_ERR_TIMEOUT, "nothing happens");
        if (sent == KOLO_IN_PROGRESS) {
            sent = ops->isend(p->writer, p->memory, BYTES, p->from, number);
            if (sent == KOLO_OK) sent = ops->push(p->writer);
            if (sent != KOLO_OK && sent != KOLO_IN_PROGRESS) return sent;
        }
        KOLO_TRY(look_at_writer(p));
        KOLO_TRY(look_at_reader(p, &came));
        sched_yield();
    }
    assert_int_equal(came, 1);
    for (size_t i = 0; i < BYTES; i++) /* right, or not at all */
        if (place_of(p, request)[i] != value(number, i)) fail_msg("message %u is wrong at byte %zu", number, i);
    return KOLO_OK;
}

static kolo_status_t carry(pair_t *p, uint32_t number)
{
    return carry_within(p, number, LIMIT);
}

static void says(const char *what)
{
    if (!strstr(kolo_error_text(), what)) fail_msg("\"%s\" does not say \"%s\"", kolo_error_text(), what);
}

static void says_where(const kolo_net_end_t *end)
{
    char text[64];
    says(end->mine.device);
    says("likely cause");
    snprintf(text, sizeof text, "queue pair %u", end->mine.qpn);
    says(text);
    snprintf(text, sizeof text, "queue pair %u", end->peer.qpn);
    says(text);
    kolo_verbs_gid_text(end->mine.gid, text, sizeof text);
    says(text);
    kolo_verbs_gid_text(end->peer.gid, text, sizeof text);
    says(text);
}

/* ---- failures ---- */

static void messages_arrive(void **state)
{
    (void)state;
    pair_t p;
    connect_both(&p);
    for (uint32_t i = 0; i < 3 * DEPTH; i++) assert_int_equal(carry(&p, i), KOLO_OK);
    assert_null(p.reader->flush); /* host memory needs none */
    drop(&p);
}

static void stop(const kolo_net_end_t *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    assert_int_equal(kolo_verbs.modify_qp(end->qp, &attr, IBV_QP_STATE), 0);
}

static void a_killed_queue_pair_is_named_at_both_ends(void **state)
{
    (void)state;
    pair_t p;
    int n = 0;
    kolo_status_t status = KOLO_OK;
    connect_both(&p);
    assert_int_equal(carry(&p, 1), KOLO_OK);
    assert_int_equal(offer(&p), KOLO_OK);
    uint64_t tag, deadline = kolo_deadline_ms(LIMIT);
    while (!ops->offered(p.writer, &tag) && kolo_now_ns() < deadline) sched_yield();
    stop(p.reader);
    while (status == KOLO_OK && kolo_now_ns() < deadline) status = look_at_reader(&p, &n);
    assert_int_equal(status, KOLO_ERR_REMOTE);
    says_where(p.reader);
    says("status 5");
    assert_int_equal(look_at_reader(&p, &n), KOLO_ERR_REMOTE); /* and again */
    assert_int_equal(ops->isend(p.writer, p.memory, BYTES, p.from, 2), KOLO_OK);
    assert_int_equal(ops->push(p.writer), KOLO_OK);
    for (status = KOLO_OK; status == KOLO_OK && kolo_now_ns() < deadline; sched_yield())
        status = look_at_writer(&p);
    assert_int_equal(status, KOLO_ERR_REMOTE);
    says_where(p.writer);
    says("status 12");
    says("the peer does not answer");
    drop(&p);
}

static void messages_before_a_failure_are_told_first(void **state)
{
    (void)state;
    pair_t p;
    kolo_net_done_t done[DEPTH];
    int n = 0;
    connect_both(&p);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(offer(&p), KOLO_OK);
    uint64_t deadline = kolo_deadline_ms(LIMIT);
    kolo_status_t sent = KOLO_IN_PROGRESS;
    while (sent == KOLO_IN_PROGRESS && kolo_now_ns() < deadline)
        sent = ops->isend(p.writer, p.memory, BYTES, p.from, 0);
    assert_int_equal(sent, KOLO_OK);
    assert_int_equal(ops->push(p.writer), KOLO_OK);
    while (n == 0 && kolo_now_ns() < deadline) assert_int_equal(ops->test(p.writer, done, DEPTH, &n), KOLO_OK);
    stop(p.reader); /* one has come, two are flushed, and all are in the queue */
    assert_int_equal(ops->test(p.reader, done, DEPTH, &n), KOLO_OK);
    assert_int_equal(n, 1);
    assert_int_equal(ops->test(p.reader, done, DEPTH, &n), KOLO_ERR_REMOTE);
    drop(&p);
}

static void a_wrong_key_is_refused_by_the_card(void **state)
{
    (void)state;
    pair_t p;
    kolo_verbs_hello_t wrong;
    make(&p);
    assert_int_equal(kolo_verbs_hello_decode(&p.of_writer, &wrong), KOLO_OK);
    wrong.fifo_key ^= 0x5a00;
    kolo_verbs_hello_encode(&wrong, &p.of_writer);
    assert_int_equal(ops->connect(p.writer, &p.of_reader), KOLO_OK);
    assert_int_equal(ops->accept(p.reader, &p.of_writer), KOLO_OK);
    assert_int_equal(carry(&p, 1), KOLO_ERR_REMOTE);
    says("memory or key is gone");
    says_where(p.reader);
    for (size_t i = 0; i < 2 * DEPTH; i++) assert_int_equal(p.writer->ring[i].number, 0); /* nothing was written */
    drop(&p);
}

/* Each byte of a hello, two ways: refused, or the connection carries right messages, or it fails. Only who lies
 * about the number of its first packet is as one who sends nothing: its packets are taken for old ones. */
static void a_damaged_hello_is_refused_or_fails(void **state)
{
    (void)state;
    int refused = 0, failed = 0, fine = 0, silent = 0;
    for (size_t i = 0; i < 4 * 72; i++) { /* its fields, and a bit of the rest */
        pair_t p;
        make(&p);
        kolo_net_hello_t *hello = i % 2 ? &p.of_writer : &p.of_reader;
        bool is_psn = i / 4 >= 4 && i / 4 < 7;
        hello->bytes[i / 4] ^= (i / 2) % 2 ? 0x01 : 0xc5;
        kolo_status_t status = ops->connect(p.writer, &p.of_reader);
        if (status == KOLO_OK) status = ops->accept(p.reader, &p.of_writer);
        if (status != KOLO_OK) {
            refused++;
        } else if ((status = carry_within(&p, 1, is_psn ? SHORT : LIMIT)) != KOLO_OK) {
            if (status == KOLO_ERR_TIMEOUT && !is_psn) fail_msg("byte %zu: a hang", i / 4);
            silent += status == KOLO_ERR_TIMEOUT;
            failed += status != KOLO_ERR_TIMEOUT;
        } else {
            fine++; /* names, LIDs and ports are not used on Ethernet */
        }
        drop(&p);
    }
    printf("hellos: %d refused, %d failed later, %d silent, %d make no difference\n", refused, failed, silent,
           fine);
    assert_true(refused > 40 && failed > 20);
}

/* ---- memory ---- */

static int register_too_much(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    const struct rlimit little = {256 << 10, 256 << 10};
    kolo_net_open_t *open;
    kolo_net_region_t *region;
    char *memory = calloc(1, 4 << 20);
    if (!memory || ops->open(0, &open) != KOLO_OK || setrlimit(RLIMIT_MEMLOCK, &little) != 0) return 2;
    if (syscall(SYS_capset, &head, none) != 0) return 3;
    if (ops->enroll(open, memory, 64 << 10, true, &region) != KOLO_OK) return 4; /* what fits is fine */
    ops->withdraw(region);
    if (ops->enroll(open, memory, 4 << 20, true, &region) != KOLO_ERR_SYSTEM) return 5;
    fprintf(stderr, "%s\n", kolo_error_text());
    if (!strstr(kolo_error_text(), "ulimit -l") || !strstr(kolo_error_text(), "256 KB")) return 6;
    ops->close(open);
    free(memory);
    return 0;
}

static void a_limit_of_locked_memory_is_named(void **state)
{
    (void)state;
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(register_too_much());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void received_memory_is_read_back(void **state)
{
    (void)state;
    pair_t p;
    kolo_net_done_t done[DEPTH];
    bool held = false;
    int n = 0;
    kolo_verbs_options.flush = KOLO_VERBS_FLUSH_ALWAYS;
    connect_both(&p);
    for (uint32_t i = 0; i < 2 * DEPTH; i++) assert_int_equal(carry(&p, i), KOLO_OK);
    assert_non_null(p.reader->flush);
    assert_int_equal(p.reader->flush->reads, 2 * DEPTH);
    assert_null(p.writer->flush);
    /* A message that has come is not told before its read has ended. */
    assert_int_equal(offer(&p), KOLO_OK);
    uint64_t deadline = kolo_deadline_ms(LIMIT);
    while (ops->isend(p.writer, p.memory, BYTES, p.from, 0) == KOLO_IN_PROGRESS && kolo_now_ns() < deadline)
        sched_yield();
    assert_int_equal(ops->push(p.writer), KOLO_OK);
    while (n == 0 && kolo_now_ns() < deadline) {
        assert_int_equal(ops->test(p.reader, done, DEPTH, &n), KOLO_OK);
        held |= n == 0 && p.reader->came > p.reader->completed && p.reader->flush->out == 1;
    }
    assert_true(held);
    assert_int_equal(n, 1);
    drop(&p);
    kolo_verbs_options.flush = KOLO_VERBS_FLUSH_NEVER;
    connect_both(&p);
    assert_int_equal(carry(&p, 1), KOLO_OK);
    assert_null(p.reader->flush);
    drop(&p);
    kolo_verbs_options.flush = KOLO_VERBS_FLUSH_DEVICE;
}

/* An end that is given up still tells of what had come, once that is read back. */
static void what_came_before_a_revoke_is_read_back(void **state)
{
    (void)state;
    pair_t p;
    kolo_net_done_t done[DEPTH];
    int n = 0;
    kolo_verbs_options.flush = KOLO_VERBS_FLUSH_ALWAYS;
    connect_both(&p);
    assert_int_equal(offer(&p), KOLO_OK);
    uint64_t deadline = kolo_deadline_ms(LIMIT);
    while (ops->isend(p.writer, p.memory, BYTES, p.from, 0) == KOLO_IN_PROGRESS && kolo_now_ns() < deadline)
        sched_yield();
    assert_int_equal(ops->push(p.writer), KOLO_OK);
    while (n == 0 && kolo_now_ns() < deadline) assert_int_equal(ops->test(p.writer, done, DEPTH, &n), KOLO_OK);
    ops->revoke(p.reader);
    assert_int_equal(ops->test(p.reader, done, DEPTH, &n), KOLO_OK);
    assert_int_equal(n, 1);
    assert_int_equal(p.reader->flush->reads, 1);
    drop(&p);
    kolo_verbs_options.flush = KOLO_VERBS_FLUSH_DEVICE;
}

/* A row for memory that says it is a device's: host memory behind a DMA-BUF descriptor. */
static const char *device_memory;
static int asked_for_dmabuf;

static bool fake_classify(const void *p, kolo_mem_place_t *place);
static kolo_status_t fake_dmabuf(const void *p, size_t bytes, int *fd, size_t *offset)
{
    (void)bytes;
    asked_for_dmabuf++;
    *fd = memfd_create("kolo-test", MFD_CLOEXEC); /* a card that knows DMA-BUF refuses it, others never look */
    *offset = (size_t)((const char *)p - device_memory);
    return *fd < 0 ? kolo_fail(KOLO_ERR_SYSTEM, "no descriptor") : KOLO_OK;
}
static const kolo_mem_ops_t row = {.name = "test", .classify = fake_classify, .dmabuf = fake_dmabuf};
static bool fake_classify(const void *p, kolo_mem_place_t *place)
{
    if ((const char *)p < device_memory || (const char *)p >= device_memory + DEPTH * BYTES) return false;
    *place = (kolo_mem_place_t){.ops = &row, .device = 0};
    return true;
}

static void memory_of_a_device_is_registered_and_read_back(void **state)
{
    (void)state;
    pair_t p;
    connect_both(&p);
    device_memory = p.memory + BYTES;
    kolo_mem_add(&row);
    ops->withdraw(p.to);
    assert_int_equal(ops->enroll(p.open, p.memory + BYTES, DEPTH * BYTES, true, &p.to), KOLO_OK);
    assert_int_equal(asked_for_dmabuf, 1);
    assert_true(p.to->flushed && !p.from->flushed);
    for (uint32_t i = 0; i < DEPTH; i++) assert_int_equal(carry(&p, i), KOLO_OK);
    assert_int_equal(p.reader->flush->reads, DEPTH);
    kolo_mem_add(NULL);
    drop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(a_killed_queue_pair_is_named_at_both_ends),
        cmocka_unit_test(messages_before_a_failure_are_told_first),
        cmocka_unit_test(a_wrong_key_is_refused_by_the_card),
        cmocka_unit_test(a_damaged_hello_is_refused_or_fails),
        cmocka_unit_test(a_limit_of_locked_memory_is_named),
        cmocka_unit_test(received_memory_is_read_back),
        cmocka_unit_test(what_came_before_a_revoke_is_read_back),
        cmocka_unit_test(memory_of_a_device_is_registered_and_read_back),
    };
    const char *why = "";
    if (kolo_comm_library_init() != KOLO_OK || ops->count(&why) == 0) {
        fprintf(stderr, "skipped: no RDMA device: %s (make test-vm has some)\n", why);
        return 77;
    }
    kolo_verbs_options.timeout = 12; /* 16 ms: what is wrong on purpose is found soon */
    kolo_verbs_options.retry_count = 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
