/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which things happen, read from the log: a server is set up from the adapter to its channels, and a
 * value in buffered mode takes its request, the growing of both buffers, the write, and the news that the buffers
 * are idle, each message acknowledged before the next one of the same direction. Three threads write the log, so a
 * list below has only lines of which each is the cause of the next, or is written by the same thread before it.
 */
#include "base/test.h"
#include "rendezvous/remote/channel.h"
#include "rendezvous/watch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PS     "/job:ps/task:0"
#define WORKER "/job:worker/task:0"

static char log_name[64], cluster[200];
static const char *wire = "shm,tcp";

static kolo_server_t start_server(const char *task)
{
    static const char secret[] = "a secret of this test alone";
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_server_t server;
    config.cluster = cluster;
    config.task = task;
    config.protocol = "test+buffered";
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    if (kolo_server_create(&server, &config) != KOLO_OK) fail_msg("%s", kolo_error_text());
    if (kolo_server_start(server) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return server;
}

static kolo_rendezvous_t open_step(kolo_server_t server)
{
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    assert_int_equal(kolo_server_manager(server, &manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, 1, &step), KOLO_OK);
    return step;
}

static void cross(kolo_rendezvous_t from, kolo_rendezvous_t to, const char *key, size_t bytes)
{
    kolo_value_t value = {.element = KOLO_UINT8, .ndims = 1, .dims = {(int64_t)bytes}, .bytes = bytes}, got;
    value.data = value.arg = calloc(1, bytes);
    value.release = free;
    assert_int_equal(kolo_rendezvous_send(from, key, &value, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(to, key, NULL, 30000, &got), KOLO_OK);
    assert_int_equal(got.bytes, bytes);
    kolo_value_release(&got);
}

static char *read_log(void)
{
    static char text[1 << 20];
    int fd = open(log_name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

/* All words are there, each behind the one before it; returns the end of the last. */
static const char *expect(const char *text, const char *const *words)
{
    for (; *words; words++) {
        const char *found = strstr(text, *words);
        if (found == NULL) fail_msg("\"%s\" is not there, or too early", *words);
        text = found + strlen(*words);
    }
    return text;
}

static void set_up_and_transfer_come_in_order(void **state)
{
    static const char *const set_up[] = {"set-up: adapter of " PS, "set-up: thread of " PS,
                                         "set-up: channel with " WORKER, "to " WORKER ": HELLO", NULL};
    /* With a network card: its device, then for each channel a completion queue, a queue pair, receives, memory;
     * the queue pair goes on when the other end is known. */
    static const char *const card[] = {"set-up: thread of " PS,
                                       "protection domain and completion channel",
                                       "set-up: completion queue for " WORKER,
                                       "for " WORKER " is in INIT",
                                       "receives for " WORKER,
                                       "set-up: channel with " WORKER,
                                       "for " WORKER " is in RTR, then RTS",
                                       "to " WORKER ": HELLO",
                                       NULL};
    static const char *const first[] = {/* as who receives sees it, and the two ends in between */
                                        "to " PS ": TENSOR_REQUEST",
                                        "from " WORKER ": TENSOR_REQUEST",
                                        "grows to",
                                        "to " WORKER ": BUFFER_REQUEST",
                                        "from " PS ": BUFFER_REQUEST",
                                        "to " PS ": BUFFER_RESPONSE",
                                        "from " WORKER ": BUFFER_RESPONSE",
                                        "to " WORKER ": TENSOR_WRITE",
                                        "from " PS ": TENSOR_WRITE",
                                        "to " PS ": BUFFER_IDLE",
                                        NULL};
    static const char *const second[] = {/* the buffer is there, and large enough */
                                         "to " PS ": TENSOR_REQUEST",   "from " WORKER ": TENSOR_REQUEST",
                                         "to " WORKER ": TENSOR_WRITE", "from " PS ": TENSOR_WRITE",
                                         "to " PS ": BUFFER_IDLE",      NULL};
    /* Who sends knows that the other buffer is idle before it is asked again, and so before it writes again. */
    static const char *const idle[] = {"from " WORKER ": BUFFER_IDLE", "from " WORKER ": TENSOR_REQUEST",
                                       "to " WORKER ": TENSOR_WRITE", NULL};
    /* The greeting is message 1. */
    static const char *const acks[] = {"from " WORKER ": TENSOR_REQUEST",
                                       "to " WORKER ": ACK 2",
                                       "from " PS ": ACK 2",
                                       "from " WORKER ": BUFFER_RESPONSE",
                                       "to " WORKER ": ACK 3",
                                       "from " PS ": ACK 3",
                                       "from " WORKER ": BUFFER_IDLE",
                                       NULL};
    kolo_tensor_key_t key = {
        .src_device = PS "/device:cpu:0", .dst_device = WORKER "/device:cpu:0", .edge_name = "w"};
    char text[KOLO_TENSOR_KEY_MAX + 1];
    (void)state;
    kolo_server_t ps = start_server(PS), worker = start_server(WORKER);
    kolo_rendezvous_t at_ps = open_step(ps), at_worker = open_step(worker);
    assert_int_equal(kolo_server_incarnation(worker, PS, 20000, &key.src_incarnation), KOLO_OK);
    assert_int_equal(kolo_tensor_key_make(&key, text, sizeof text), KOLO_OK);
    cross(at_ps, at_worker, text, 5000);
    cross(at_ps, at_worker, text, 4000);
    kolo_rendezvous_close(at_ps);
    kolo_rendezvous_close(at_worker);
    kolo_server_destroy(worker);
    kolo_server_destroy(ps);
    const char *log = read_log();
    (void)expect(log, set_up);
    if (strcmp(wire, "verbs") == 0) (void)expect(log, card);
    (void)expect(log, acks);
    const char *rest = expect(log, first), *growth = strstr(rest, "grows to");
    (void)expect(rest, second);
    (void)expect(rest, idle);
    assert_null(growth);
    unlink(log_name);
}

/* What the sender has sent last is asked of him, so that it can be told where his memory cannot be read. */
static void who_waits_for_long_knows_how_far_the_sender_is(void **state)
{
    static kolo_watch_view_t view;
    kolo_tensor_key_t key = {
        .src_device = PS "/device:cpu:0", .dst_device = WORKER "/device:cpu:0", .edge_name = "grad"};
    char text[KOLO_TENSOR_KEY_MAX + 1], words[500] = "";
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t next;
    kolo_receive_t receive;
    uint64_t deadline = kolo_deadline_ms(30000);
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* other processes look at a watch, and throw away what they saw while it was written; here a thread
               does */
#endif
    kolo_server_t ps = start_server(PS), worker = start_server(WORKER);
    kolo_rendezvous_t at_ps = open_step(ps), at_worker = open_step(worker);
    assert_int_equal(kolo_server_incarnation(worker, PS, 20000, &key.src_incarnation), KOLO_OK);
    assert_int_equal(kolo_tensor_key_make(&key, text, sizeof text), KOLO_OK);
    cross(at_ps, at_worker, text, 100);
    assert_int_equal(kolo_server_manager(worker, &manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, 2, &next), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_begin(next, text, NULL, &receive), KOLO_OK);
    while (strstr(words, "for edge grad of ps:0, which has sent steps up to 1") == NULL) {
        if (kolo_now_ns() > deadline) fail_msg("the last words: %s", words);
        if (!kolo_watch_view(manager->watch, sizeof(kolo_rendezvous_watch_t), &view) || view.nwaits == 0) continue;
        kolo_watch_words(&view, &view.waits[0], kolo_now_ns(), NULL, words, sizeof words);
    }
    kolo_receive_discard(receive);
    kolo_rendezvous_close(next);
    kolo_rendezvous_close(at_ps);
    kolo_rendezvous_close(at_worker);
    kolo_server_destroy(worker);
    kolo_server_destroy(ps);
}

/* The number of a buffer follows from the key; of 200,000 keys two have the same (this is searched for). */
enum { KEYS = 200000, NUMBERS = KOLO_NOTICE_ACK - KOLO_NOTICE_BUFFER };
typedef struct {
    uint32_t number;
    int edge;
} numbered_t;

static int by_number(const void *a, const void *b)
{
    const numbered_t *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void make_text(kolo_tensor_key_t *key, int edge, char text[KOLO_TENSOR_KEY_MAX + 1])
{
    /* long and mixed: the numbers of short names in a row hardly meet */
    snprintf(key->edge_name, sizeof key->edge_name, "%016" PRIx64, (uint64_t)(edge + 1) * 0x9e3779b97f4a7c15u);
    assert_int_equal(kolo_tensor_key_make(key, text, KOLO_TENSOR_KEY_MAX + 1), KOLO_OK);
}

static void keys_of_one_number_have_buffers_of_their_own(void **state)
{
    static numbered_t all[KEYS];
    kolo_tensor_key_t key = {.src_device = PS "/device:cpu:0", .dst_device = WORKER "/device:cpu:0"};
    char text[2][KOLO_TENSOR_KEY_MAX + 1];
    int same = 1;
    (void)state;
    kolo_server_t ps = start_server(PS), worker = start_server(WORKER);
    kolo_rendezvous_t at_ps = open_step(ps), at_worker = open_step(worker);
    assert_int_equal(kolo_server_incarnation(worker, PS, 20000, &key.src_incarnation), KOLO_OK);
    for (int i = 0; i < KEYS; i++) {
        make_text(&key, i, text[0]);
        uint64_t hash = kolo_hash_bytes(KOLO_HASH_INIT, text[0], strlen(text[0]));
        all[i] = (numbered_t){(uint32_t)hash & (NUMBERS - 1), i};
    }
    qsort(all, KEYS, sizeof all[0], by_number);
    while (same < KEYS && all[same].number != all[same - 1].number) same++;
    assert_true(same < KEYS); /* one in a hundred million times there are none */
    for (int i = 0; i < 2; i++) make_text(&key, all[same - i].edge, text[i]);
    for (int i = 0; i < 6; i++) cross(at_ps, at_worker, text[i % 2], 100 + 3000 * (size_t)i);
    kolo_rendezvous_close(at_ps);
    kolo_rendezvous_close(at_worker);
    kolo_server_destroy(worker);
    kolo_server_destroy(ps);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(set_up_and_transfer_come_in_order),
                                       cmocka_unit_test(who_waits_for_long_knows_how_far_the_sender_is),
                                       cmocka_unit_test(keys_of_one_number_have_buffers_of_their_own)};
    int pid = (int)getpid();
    snprintf(log_name, sizeof log_name, "/tmp/kolo-order-%d.log", pid);
    snprintf(cluster, sizeof cluster, "ps=127.%d.%d.1:7314;worker=127.%d.%d.2:7314", 1 + pid % 200, pid / 200 % 250,
             1 + pid % 200, pid / 200 % 250);
    if (argc > 1) wire = argv[1];
    setenv("KOLO_LOG", "trace", 1);
    setenv("KOLO_LOG_FILE", log_name, 1);
    if (kolo_server_register_protocol("test+buffered", wire, 1) != KOLO_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
