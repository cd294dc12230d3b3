/* SPDX-License-Identifier: Apache-2.0
 *
 * A server and peers that speak its protocol by hand: what is forged, truncated, doubled or oversized is refused
 * with a sentence that says which, the channel ends, and the server serves on. And a thousand peers at once, each
 * with a channel that is set up when it first has something to say: what they hold, and that the quiet ones cost
 * little.
 */
#include "base/log.h"
#include "base/test.h"
#include "link/link.h"
#include "rendezvous/remote/channel.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PS    "/job:ps/task:0"
#define PEERS 1000

static char *cluster, log_name[64];
static const char secret[] = "a secret of these tests alone";
static kolo_server_t server;
static kolo_progress_t *progress;
static kolo_key_t key;
static kolo_address_t address;

typedef struct {
    kolo_onesided_domain_t *domain;
    kolo_onesided_t *end;
    kolo_dial_t *dial;
    kolo_gate_t gate;
    _Atomic bool called;
    kolo_status_t status;
    kolo_socket_t socket;
    uint64_t sequence, at;
} peer_t;

/* The peer may be gone as soon as the lock is free. */
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;

static void called(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    peer_t *p = arg;
    (void)text;
    pthread_mutex_lock(&calls);
    p->status = status;
    p->socket = socket;
    atomic_store(&p->called, true);
    kolo_gate_open(&p->gate);
    pthread_mutex_unlock(&calls);
}

/* Moves the peer's end until it has an event, or has ended. */
static kolo_status_t next_event(peer_t *p, kolo_onesided_event_t *event)
{
    kolo_wait_t wait;
    kolo_status_t status;
    int n = 0;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(30000), NULL, NULL, 8);
    wait.wakers[wait.nwakers++] = kolo_onesided_domain_waker(p->domain);
    while ((status = kolo_onesided_step(p->end, event, 1, &n)) == KOLO_OK && n == 0)
        if ((status = kolo_wait_pause(&wait)) != KOLO_OK) break;
    kolo_wait_end(&wait);
    return status;
}

static void open_peer(peer_t *p, kolo_onesided_domain_t *domain, int worker, unsigned kinds)
{
    kolo_onesided_event_t event;
    kolo_wait_t wait;
    memset(p, 0, sizeof *p);
    p->domain = domain;
    kolo_dial_config_t dial = {.address = address,
                               .key = key,
                               .claim = {.purpose = KOLO_PURPOSE_STREAM, .from = 1 + worker, .to = 0},
                               .deadline_ns = kolo_deadline_ms(30000),
                               .done = called,
                               .arg = p,
                               .who = "the server"};
    assert_int_equal(kolo_dial_start(progress, &dial, &p->dial), KOLO_OK);
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(30000), NULL, NULL, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&p->gate);
        if (atomic_load(&p->called)) break;
        assert_int_equal(kolo_gate_wait(&p->gate, ticket, &wait), KOLO_OK);
    }
    pthread_mutex_lock(&calls);
    pthread_mutex_unlock(&calls);
    assert_int_equal(p->status, KOLO_OK);
    kolo_onesided_config_t config = {
        .socket = p->socket, .kinds = kinds, .mailbox = KOLO_CHANNEL_MAILBOX, .who = PS};
    assert_int_equal(kolo_onesided_open(domain, &config, &p->end), KOLO_OK);
    assert_int_equal(next_event(p, &event), KOLO_OK);
    assert_int_equal(event.kind, KOLO_ONESIDED_OPENED);
}

static void post_bytes(peer_t *p, const uint8_t *bytes, size_t length)
{
    static uint8_t kept[64][KOLO_MESSAGE_BYTES];
    static int next;
    uint8_t *copy = kept[next++ % 64];
    memcpy(copy, bytes, length);
    kolo_onesided_write_t write = {.data = copy,
                                   .bytes = length,
                                   .to = kolo_onesided_peer_mailbox(p->end),
                                   .offset = p->at,
                                   .flags = KOLO_ONESIDED_NOTIFY,
                                   .number = KOLO_NOTICE_MESSAGE};
    p->at += KOLO_ROUND_UP(length, 64u);
    assert_int_equal(kolo_onesided_write(p->end, &write), KOLO_OK);
}

static size_t encode(peer_t *p, kolo_message_t *m, uint8_t bytes[KOLO_MESSAGE_BYTES])
{
    m->sequence = p->sequence++;
    memset(bytes, 0, KOLO_MESSAGE_BYTES);
    return kolo_message_encode(m, bytes);
}

static void post(peer_t *p, kolo_message_t m)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    size_t n = encode(p, &m, bytes);
    post_bytes(p, bytes, n);
}

static void greet(peer_t *p, int worker)
{
    kolo_message_t hello = {.kind = KOLO_MESSAGE_HELLO, .index = 8};
    hello.shape.bytes = 77;
    snprintf(hello.name, sizeof hello.name, "/job:worker/task:%d", worker);
    post(p, hello);
}

static kolo_message_t request(uint32_t index, int worker)
{
    kolo_message_t m = {.kind = KOLO_MESSAGE_TENSOR_REQUEST, .index = index, .step = 5};
    uint64_t incarnation;
    assert_int_equal(kolo_server_incarnation(server, PS, 0, &incarnation), KOLO_OK);
    snprintf(m.name, sizeof m.name, PS "/device:cpu:0;%016llx;/job:worker/task:%d/device:cpu:0;w;0:0",
             (unsigned long long)incarnation, worker);
    return m;
}

/* ---- what is refused ---- */

static void truncated(peer_t *p)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    kolo_message_t m = request(1, 0);
    (void)encode(p, &m, bytes);
    post_bytes(p, bytes, 100);
}

static void truncated_name(peer_t *p)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    kolo_message_t m = request(1, 0);
    size_t n = encode(p, &m, bytes);
    post_bytes(p, bytes, n - 10);
}

static void with_a_tail(peer_t *p)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    kolo_message_t m = request(1, 0);
    size_t n = encode(p, &m, bytes);
    post_bytes(p, bytes, n + 8);
}

static void doubled(peer_t *p)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    kolo_message_t m = request(1, 0);
    size_t n = encode(p, &m, bytes);
    post_bytes(p, bytes, n);
    post_bytes(p, bytes, n);
}

static void same_index(peer_t *p)
{
    post(p, request(1, 0));
    post(p, request(1, 0));
}

static void oversized_name(peer_t *p)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    kolo_message_t m = request(1, 0);
    (void)encode(p, &m, bytes);
    bytes[204] = 0x58; /* 600 */
    bytes[205] = 0x02;
    memset(bytes + KOLO_MESSAGE_HEAD_BYTES, 'x', 600);
    post_bytes(p, bytes, KOLO_MESSAGE_HEAD_BYTES + 600);
}

static void no_key(peer_t *p)
{
    kolo_message_t m = request(1, 0);
    snprintf(m.name, sizeof m.name, "give me all");
    post(p, m);
}

static void other_version(peer_t *p)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    kolo_message_t m = request(1, 0);
    size_t n = encode(p, &m, bytes);
    bytes[3] = '9';
    post_bytes(p, bytes, n);
}

static void small_memory(peer_t *p)
{
    kolo_message_t m = request(1, 0);
    m.flags = KOLO_MESSAGE_KNOWN;
    m.shape = (kolo_shape_t){.element = KOLO_UINT8, .ndims = 1, .dims = {100}, .bytes = 100};
    m.window = (kolo_onesided_window_t){.address = 0, .bytes = 99, .key = 1};
    post(p, m);
}

static void wrong_way(peer_t *p)
{
    kolo_message_t m = {.kind = KOLO_MESSAGE_TENSOR_META, .flags = KOLO_MESSAGE_KNOWN};
    m.shape = (kolo_shape_t){.element = KOLO_UINT8, .ndims = 1, .dims = {100}, .bytes = 100};
    post(p, m);
}

static void not_asked(peer_t *p)
{
    kolo_message_t m = {.kind = KOLO_MESSAGE_TENSOR_REREQUEST, .index = 9, .window = {0, 100, 1}};
    post(p, m);
}

static void notice(peer_t *p, uint32_t number)
{
    kolo_onesided_write_t write = {.flags = KOLO_ONESIDED_NOTIFY, .number = number};
    assert_int_equal(kolo_onesided_write(p->end, &write), KOLO_OK);
}

static void value_for_nobody(peer_t *p)
{
    notice(p, 5);
}

static void too_many_acks(peer_t *p)
{
    notice(p, KOLO_NOTICE_ACK + 100);
}

static void wrong_key_of_memory(peer_t *p)
{
    static const uint8_t bytes[64];
    kolo_onesided_window_t window = *kolo_onesided_peer_mailbox(p->end);
    window.key ^= UINT64_C(1) << 40;
    kolo_onesided_write_t write = {.data = bytes, .bytes = sizeof bytes, .to = &window};
    assert_int_equal(kolo_onesided_write(p->end, &write), KOLO_OK);
}

static bool log_has(const char *words)
{
    static char text[4 << 20];
    int fd = open(log_name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    assert_true(n >= 0);
    text[n] = '\0';
    return strstr(text, words) != NULL;
}

static void what_is_forged_is_refused_by_name(void **state)
{
    static const struct {
        void (*forge)(peer_t *p);
        const char *words;
        bool before_greeting;
    } cases[] = {
        {truncated, "a message of /job:worker/task:0: its length is out of range", false},
        {truncated_name, "a message of /job:worker/task:0: its name is too long", false},
        {with_a_tail, "it is truncated, or something follows it", false},
        {doubled, "it is not the one that is due", false},
        {same_index, "TENSOR_REQUEST of /job:worker/task:0: its index is in use", false},
        {oversized_name, "a message of /job:worker/task:0: its name is too long", false},
        {no_key, "it has not five parts", false},
        {other_version, "it is no message of this version", false},
        {small_memory, "its memory is smaller than the value", false},
        {wrong_way, "TENSOR_META of /job:worker/task:0: it goes the wrong way", false},
        {not_asked, "there is no such request, or it is not due", false},
        {value_for_nobody, "a value of /job:worker/task:0: nobody has asked for it", false},
        {too_many_acks, "it is of messages that were not sent", false},
        {wrong_key_of_memory, "it writes where there is no window for it", false},
        {same_index, "it comes before the greeting", true},
    };
    kolo_onesided_domain_t *domain;
    (void)state;
    assert_int_equal(kolo_onesided_domain_create(key.bytes, &domain), KOLO_OK);
    for (size_t i = 0; i < KOLO_COUNTOF(cases); i++) {
        kolo_onesided_event_t event;
        peer_t p;
        kolo_status_t status;
        assert_int_equal(truncate(log_name, 0), 0);
        open_peer(&p, domain, 0, 1u << KOLO_ONESIDED_TCP);
        if (!cases[i].before_greeting) greet(&p, 0);
        cases[i].forge(&p);
        while ((status = next_event(&p, &event)) == KOLO_OK) {
        }
        assert_int_equal(status, KOLO_ERR_REMOTE); /* the server has hung up */
        if (!log_has(cases[i].words)) fail_msg("case %zu: the log lacks \"%s\"", i, cases[i].words);
        kolo_onesided_close(p.end);
    }
    kolo_onesided_domain_destroy(domain);
}

static void wait_greeting(peer_t *p)
{
    kolo_onesided_event_t event;
    do {
        assert_int_equal(next_event(p, &event), KOLO_OK);
    } while (event.kind != KOLO_ONESIDED_NOTIFIED || event.number != KOLO_NOTICE_MESSAGE);
}

/* Waits for the second message and takes it. */
static void take_answer(peer_t *p, kolo_message_t *m)
{
    kolo_onesided_event_t event;
    do {
        assert_int_equal(next_event(p, &event), KOLO_OK);
    } while (event.kind != KOLO_ONESIDED_NOTIFIED || event.number != KOLO_NOTICE_MESSAGE);
    /* the greeting lies before it, and takes up steps of 64 bytes */
    static const size_t hello = KOLO_ROUND_UP(KOLO_MESSAGE_HEAD_BYTES + sizeof PS - 1, 64u);
    const uint8_t *box = kolo_onesided_mailbox(p->end);
    kolo_tensor_key_t none;
    const char *wrong = kolo_message_decode(box + hello, KOLO_MESSAGE_TEXT_BYTES, m, &none);
    if (wrong) fail_msg("%s", wrong);
}

static void a_key_of_somebody_else_is_an_error_of_that_request(void **state)
{
    kolo_onesided_domain_t *domain;
    kolo_message_t m;
    peer_t p;
    (void)state;
    assert_int_equal(kolo_onesided_domain_create(key.bytes, &domain), KOLO_OK);
    open_peer(&p, domain, 0, 1u << KOLO_ONESIDED_TCP);
    greet(&p, 0);
    wait_greeting(&p);
    post(&p, request(1, 7)); /* what it sends to worker 7 */
    take_answer(&p, &m);
    assert_int_equal(m.kind, KOLO_MESSAGE_ERROR_STATUS);
    assert_int_equal(m.index, 1);
    assert_non_null(strstr(m.name, "the key's destination is another task"));
    kolo_onesided_close(p.end);
    kolo_onesided_domain_destroy(domain);
}

/* ---- a thousand peers ---- */

static long resident_kb(void)
{
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1) break;
    fclose(f);
    return kb;
}

static void a_thousand_channels_are_small_and_quiet_ones_cost_little(void **state)
{
    enum { ROUNDS = 500 };
    static peer_t peers[PEERS];
    struct rlimit files;
    kolo_onesided_domain_t *domain;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 14 * PEERS) skip();
    assert_int_equal(kolo_onesided_domain_create(key.bytes, &domain), KOLO_OK);
    long before = resident_kb();
    for (int i = 0; i < PEERS; i++) {
        open_peer(&peers[i], domain, i, 1u << KOLO_ONESIDED_SHM);
        greet(&peers[i], i);
        wait_greeting(&peers[i]);
    }
    long held = resident_kb() - before;
    printf("memory rendezvous channels=%d kb=%ld kb_per_channel=%.1f\n", PEERS, held, (double)held / PEERS);
    assert_true(held < 200 * 1024); /* both ends of each */
    /* One of them is busy: that the others are there costs some looks in each round, not a thousand. A peer that
     * has greeted is quiet 200 rounds later, and to let one in takes several. */
    kolo_rendezvous_counters_t *c = &kolo_rendezvous_counters;
    uint64_t rounds = atomic_load(&c->rounds), looks = atomic_load(&c->round_looks),
             limit = kolo_deadline_ms(30000);
    while (atomic_load(&c->rounds) < rounds + ROUNDS) {
        kolo_onesided_event_t event;
        int n = 0;
        assert_true(kolo_now_ns() < limit);
        notice(&peers[0], KOLO_NOTICE_ACK + 1); /* the least that can be said */
        assert_int_equal(kolo_onesided_step(peers[0].end, &event, 1, &n), KOLO_OK);
    }
    rounds = atomic_load(&c->rounds) - rounds;
    looks = atomic_load(&c->round_looks) - looks;
    printf("looks rendezvous channels=%d rounds=%llu looks_per_round=%.1f\n", PEERS, (unsigned long long)rounds,
           (double)looks / (double)rounds);
    assert_true(looks < rounds * PEERS / 5);
    for (int i = 0; i < PEERS; i++) kolo_onesided_close(peers[i].end);
    kolo_onesided_domain_destroy(domain);
}

static int open_server(void **state)
{
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    static const kolo_key_t zero;
    int pid = (int)getpid(), n;
    char where[64];
    (void)state;
    cluster = malloc(64 + PEERS * 24);
    assert_non_null(cluster);
    snprintf(where, sizeof where, "127.%d.%d.1", 1 + pid % 200, pid / 200 % 250);
    n = sprintf(cluster, "ps=%s:7313;worker=", where);
    for (int i = 0; i < PEERS; i++) n += sprintf(cluster + n, "%s127.0.0.9:%d", i ? "," : "", 20000 + i);
    config.cluster = cluster;
    config.task = PS;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    if (kolo_server_create(&server, &config) != KOLO_OK) fail_msg("%s", kolo_error_text());
    if (kolo_server_start(server) != KOLO_OK) fail_msg("%s", kolo_error_text());
    kolo_auth_derive(&zero, "rendezvous", secret, sizeof secret, &key);
    snprintf(where, sizeof where, "127.%d.%d.1:7313", 1 + pid % 200, pid / 200 % 250);
    assert_int_equal(kolo_address_parse(where, &address), KOLO_OK);
    return kolo_progress_get(&progress) == KOLO_OK ? 0 : 1;
}

static int close_server(void **state)
{
    (void)state;
    kolo_server_destroy(server);
    kolo_progress_put(progress);
    free(cluster);
    return unlink(log_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_forged_is_refused_by_name),
        cmocka_unit_test(a_key_of_somebody_else_is_an_error_of_that_request),
        cmocka_unit_test(a_thousand_channels_are_small_and_quiet_ones_cost_little),
    };
    snprintf(log_name, sizeof log_name, "/tmp/kolo-forged-%d.log", (int)getpid());
    setenv("KOLO_LOG", "info", 1);
    setenv("KOLO_LOG_FILE", log_name, 1);
    setenv("KOLO_ONESIDED_ARENA", "16M", 1); /* two thousand of them are to fit into the address space */
    return cmocka_run_group_tests(tests, open_server, close_server);
}
