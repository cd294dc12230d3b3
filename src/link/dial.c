/* SPDX-License-Identifier: Apache-2.0
 *
 * Calling an address and proving ourselves: connect, read the greeting, answer with a hello, read the verdict. A
 * non-blocking state machine on the progress thread, so a rank's thread sleeps once per call and the root can call
 * many ranks at a time. What may pass by itself (busy, an evicted caller, a root that is not up yet) is tried again
 * with growing pauses until the deadline.
 */
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "link/link.h"
#include "link/route.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define RETRY_FIRST_MS 2
#define RETRY_MAX_MS   300
#define GREETING_MS    1000 /* then we look elsewhere, if we can: a listener of another kind may wait for our word */

struct kolo_dial {
    kolo_progress_t *progress;
    kolo_dial_config_t config;
    kolo_dial_t **slot; /* the owner's pointer to us */
    int fd;
    kolo_seal_t *seal; /* of this attempt, from the hello on */
    kolo_watch_t *watch;
    kolo_timer_t *timer;
    int first_err;       /* of the attempt that start() made */
    uint64_t starved_ns; /* since when this process has had no descriptor for it; 0: it has */
    int64_t retry_ms;
    enum { WAITS_GREETING, WAITS_VERDICT, WAITS_ACK } stage;
    uint8_t ack;
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES], verdict[KOLO_VERDICT_BYTES];
    size_t got;
};

static void dial_readable(void *arg, int fd, uint32_t events);

static void dial_hang_up(kolo_dial_t *dial)
{
    kolo_watch_del(dial->watch);
    dial->watch = NULL;
    if (dial->fd >= 0) kolo_socket_hang_up(dial->fd);
    dial->fd = -1;
    kolo_seal_destroy(dial->seal);
    dial->seal = NULL;
}

static void dial_free(kolo_dial_t *dial)
{
    dial_hang_up(dial);
    kolo_timer_cancel(dial->timer);
    kolo_auth_wipe(&dial->config.key, sizeof(dial->config.key));
    free(dial);
}

/* Ends the call: the owner forgets it before it hears of it. */
static void dial_finish(kolo_dial_t *dial, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    kolo_dial_done_t done = dial->config.done;
    void *arg = dial->config.arg;
    *dial->slot = NULL;
    dial_free(dial);
    done(arg, status, socket, text);
}

static const kolo_socket_t no_socket = {.fd = -1};

static void dial_fail(kolo_dial_t *dial, kolo_status_t status, const char *fmt, ...) KOLO_PRINTF(3, 4);
static void dial_fail(kolo_dial_t *dial, kolo_status_t status, const char *fmt, ...)
{
    char text[512], buf[KOLO_ADDRESS_TEXT_BYTES];
    int at = snprintf(text, sizeof(text), "%s at %s: ", dial->config.who,
                      kolo_address_print(&dial->config.address, buf));
    va_list args;
    va_start(args, fmt);
    if (at > 0 && (size_t)at < sizeof(text)) vsnprintf(text + at, sizeof(text) - (size_t)at, fmt, args);
    va_end(args);
    dial_finish(dial, status, no_socket, text);
}

/* Finds a socket that connected to itself: nothing listened, and the system chose the dialled port as our own. */
static bool is_self_connected(int fd, const kolo_address_t *address)
{
    struct sockaddr_storage sa = {0};
    socklen_t bytes = sizeof(sa);
    kolo_address_t own;
    if (getsockname(fd, (struct sockaddr *)&sa, &bytes) != 0) return false;
    kolo_address_from_sockaddr(&own, (const struct sockaddr *)&sa);
    return kolo_address_port(&own) == kolo_address_port(address) &&
           memcmp(own.bytes + 8, address->bytes + 8, 16) == 0;
}

/* Makes one attempt; returns 0 or an errno. */
static int dial_attempt(kolo_dial_t *dial)
{
    struct sockaddr_storage sa;
    socklen_t bytes = kolo_address_to_sockaddr(&dial->config.address, &sa);
    int one = 1, err = 0;
    dial->stage = WAITS_GREETING;
    dial->got = 0;
    KOLO_FAIL_POINT("oob.dial.attempt");
    if (kolo_route_is_unready((const struct sockaddr *)&sa)) return EADDRNOTAVAIL; /* it would wait for an answer */
    dial->fd = kolo_fd_socket(sa.ss_family, SOCK_STREAM);
    if (dial->fd < 0) return errno;
    setsockopt(dial->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(dial->fd, (struct sockaddr *)&sa, bytes) != 0 && errno != EINPROGRESS) err = errno;
    if (err == 0 && is_self_connected(dial->fd, &dial->config.address)) err = ECONNREFUSED;
    /* The greeting comes unasked: waiting for it covers waiting for the connection. */
    if (err == 0 && kolo_watch_add(dial->progress, dial->fd, EPOLLIN, dial_readable, dial, &dial->watch) != KOLO_OK)
        err = ENOMEM;
    if (err != 0) {
        kolo_fd_close(dial->fd);
        dial->fd = -1;
    }
    return err;
}

static void dial_again(void *arg);

/* Tells what the other side cannot know when it reports us missing. On the progress thread. */
static void tell_of_shortage(const kolo_dial_t *dial, int err)
{
    static uint64_t last_ns;
    uint64_t now = kolo_now_ns();
    char buf[128], unready[256] = "";
    if (err != EADDRNOTAVAIL && err != EMFILE && err != ENFILE && err != ENOBUFS && err != ENOMEM) return;
    uint64_t before = last_ns;
    last_ns = now;
    if (before != 0 && now - before < 60 * KOLO_NS_PER_S) return;
    char me[32] = "the root";
    if (dial->config.claim.from != KOLO_RANK_ROOT) snprintf(me, sizeof(me), "rank %d", dial->config.claim.from);
    const char *how = "";
    buf[0] = '\0';
    struct sockaddr_storage sa;
    kolo_address_to_sockaddr(&dial->config.address, &sa);
    if (err == EADDRNOTAVAIL) kolo_route_unready_words((const struct sockaddr *)&sa, unready, sizeof(unready));
    if (unready[0] != '\0')
        how = unready;
    else if (err == EADDRNOTAVAIL)
        how = ": no local port is free (connections in TIME_WAIT? see ss -s and net.ipv4.ip_local_port_range)";
    if (err == EMFILE) {
        kolo_fd_print_all(buf, sizeof(buf));
        how = "; kolo-info --memory RANKS says how many a communicator needs";
    }
    kolo_warn("oob", "%s cannot call %s yet: %s%s%s%s", me, dial->config.who, strerror(err), buf[0] ? ": " : "",
              buf, how);
}

static void dial_found_nobody(kolo_dial_t *dial)
{
    char name[16];
    if (kolo_address_is_own(&dial->config.address, name))
        dial_fail(dial, KOLO_ERR_REMOTE,
                  "nobody listens there. It is also an address of this host (interface %s). If %s runs on another "
                  "host, both hosts have this address, and it does not join them: KOLO_SOCKET_IFNAME, on all "
                  "ranks, names the interface that does. If it runs here, its process has ended",
                  name, dial->config.who);
    else
        dial_fail(dial, KOLO_ERR_REMOTE, "nobody listens there: the process has ended%s",
                  kolo_address_is_unix(&dial->config.address) ? ", or it is in another network namespace" : "");
}

/* Tells whether there is IPv6, which may be off: then a connection ends as if no port were free. */
static bool has_family(const kolo_address_t *address)
{
    struct sockaddr_storage sa;
    socklen_t bytes = kolo_address_to_sockaddr(address, &sa);
    if (sa.ss_family != AF_INET6) return true;
    ((struct sockaddr_in6 *)&sa)->sin6_port = 0;
    ((struct sockaddr_in6 *)&sa)->sin6_addr = in6addr_any;
    ((struct sockaddr_in6 *)&sa)->sin6_scope_id = 0;
    int fd = kolo_fd_socket(AF_INET6, SOCK_DGRAM);
    struct sockaddr_storage source;
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&sa, bytes) == 0;
    if (fd >= 0) kolo_fd_close(fd);
    ((struct sockaddr_in6 *)&sa)->sin6_addr = in6addr_loopback;
    return has && kolo_route_source((struct sockaddr *)&sa, &source);
}

/* Makes another attempt later, or ends. */
static void dial_attempt_failed(kolo_dial_t *dial, int err)
{
    dial_hang_up(dial);
    uint64_t deadline = dial->config.deadline_ns;
    bool refused = err == ECONNREFUSED;
    if (err != EADDRNOTAVAIL || has_family(&dial->config.address)) tell_of_shortage(dial, err);
    if (refused && !dial->config.retry_refused) {
        dial_found_nobody(dial);
        return;
    }
    if (err == EADDRNOTAVAIL && !has_family(&dial->config.address)) {
        dial_fail(dial, KOLO_ERR_SYSTEM,
                  "cannot connect: this host has no IPv6 address, not even [::1] (IPv6 is off): use "
                  "an IPv4 address");
        return;
    }
    if (err != EMFILE) dial->starved_ns = 0;
    if (err == EMFILE && dial->starved_ns == 0) dial->starved_ns = kolo_now_ns();
    if (err == EMFILE && kolo_now_ns() - dial->starved_ns >= KOLO_STARVED_MS * KOLO_NS_PER_MS) {
        char buf[128];
        dial_fail(dial, KOLO_ERR_SYSTEM, "%s: %s", strerror(err), kolo_fd_print_all(buf, sizeof(buf)));
        return;
    }
    if (err == EAFNOSUPPORT || err == EINVAL || err == EACCES || err == EPERM) {
        dial_fail(dial, KOLO_ERR_SYSTEM, "cannot connect: %s", strerror(err));
        return;
    }
    if (dial->config.elsewhere != NULL && (refused || err == EADDRINUSE))
        dial->config.elsewhere(dial->config.arg, err == EADDRINUSE, &dial->config.address);
    uint64_t now = kolo_now_ns();
    if (deadline != 0 && now >= deadline) {
        char unready[300] = "";
        struct sockaddr_storage sa;
        kolo_address_to_sockaddr(&dial->config.address, &sa);
        if (err == EADDRNOTAVAIL) kolo_route_unready_words((const struct sockaddr *)&sa, unready, sizeof(unready));
        dial_fail(dial, KOLO_ERR_TIMEOUT, "cannot connect in time: %s%s", strerror(err), unready);
        return;
    }
    if (refused && dial->config.refused != NULL) dial->config.refused(dial->config.arg);
    kolo_timer_cancel(dial->timer);
    dial->timer = NULL;
    int64_t delay_ms = dial->retry_ms + (int64_t)(now / 1000 % (uint64_t)dial->retry_ms); /* spread */
    dial->retry_ms = KOLO_MIN(dial->retry_ms * 2, RETRY_MAX_MS);
    if (kolo_timer_add(dial->progress, delay_ms, dial_again, dial, &dial->timer) != KOLO_OK)
        dial_fail(dial, KOLO_ERR_NO_MEMORY, "no memory to call again");
}

/* Ends an attempt in which nothing was heard: whoever took the call, if anybody did, speaks another language. */
static void dial_unanswered(void *arg)
{
    kolo_dial_t *dial = arg;
    struct sockaddr_storage sa;
    socklen_t bytes = sizeof(sa);
    if (dial->stage != WAITS_GREETING || dial->fd < 0) return;
    bool taken = getpeername(dial->fd, (struct sockaddr *)&sa, &bytes) == 0;
    dial_attempt_failed(dial, taken ? EADDRINUSE : ETIMEDOUT);
}

static void dial_again(void *arg)
{
    kolo_dial_t *dial = arg;
    int err = dial->first_err != 0 ? dial->first_err : dial_attempt(dial);
    dial->first_err = 0;
    if (err == 0 && dial->config.elsewhere != NULL) {
        kolo_timer_cancel(dial->timer);
        dial->timer = NULL;
        if (kolo_timer_add(dial->progress, GREETING_MS, dial_unanswered, dial, &dial->timer) != KOLO_OK)
            err = ENOMEM;
    }
    if (err != 0) dial_attempt_failed(dial, err);
}

/* Goes elsewhere if it may, since somebody else listens there; else the call fails. */
static void dial_met_stranger(kolo_dial_t *dial, kolo_status_t status, const char *text)
{
    if (dial->config.elsewhere != NULL)
        dial_attempt_failed(dial, EADDRINUSE);
    else
        dial_fail(dial, status, "%s", text);
}

static kolo_shake_t shake_of(kolo_dial_t *dial)
{
    return (kolo_shake_t){&dial->config.key, kolo_address_cookie(&dial->config.address), dial->greeting,
                          dial->hello};
}

static void dial_got_greeting(kolo_dial_t *dial)
{
    unsigned version;
    KOLO_FAIL_POINT("oob.dial.greeted");
    if (!kolo_auth_greeting_fits(dial->greeting, &version)) {
        if (version != 0)
            dial_fail(dial, KOLO_ERR_PROTOCOL, "it speaks version %u of the protocol, we speak %d", version,
                      KOLO_PROTOCOL_VERSION);
        else
            dial_met_stranger(dial, KOLO_ERR_PROTOCOL, "somebody else listens there");
        return;
    }
    const kolo_shake_t shake = shake_of(dial);
    uint8_t offer = kolo_auth_greeting_security(dial->greeting);
    bool agrees = kolo_seal_answer(offer, &dial->config.claim.security);
    if (kolo_auth_hello(&shake, &dial->config.claim) != KOLO_OK) {
        dial_fail(dial, KOLO_ERR_SYSTEM, "no random bytes for a nonce");
        return;
    }
    if (!agrees) {
        /* It may tell the others which rank is the odd one, so it hears from us all the same. */
        ssize_t n = send(dial->fd, dial->hello, KOLO_HELLO_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n;
        dial_fail(dial, KOLO_ERR_MISMATCH,
                  "KOLO_TCP_SECURITY is %s there and %s here; all ranks need the same value",
                  kolo_seal_mode_name(offer), kolo_seal_mode_name(dial->config.claim.security));
        return;
    }
    if (kolo_seal_create(&dial->config.key, dial->greeting, dial->hello, true, &dial->seal) != KOLO_OK) {
        dial_fail(dial, KOLO_ERR_NO_MEMORY, "no memory for the connection");
        return;
    }
    dial->stage = WAITS_VERDICT;
    dial->got = 0;
    if (send(dial->fd, dial->hello, KOLO_HELLO_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != KOLO_HELLO_BYTES)
        dial_attempt_failed(dial, ECONNRESET);
}

static void dial_hand_over(kolo_dial_t *dial)
{
    kolo_socket_t socket = {dial->fd, dial->seal};
    dial->fd = -1;
    dial->seal = NULL;
    kolo_watch_del(dial->watch);
    dial->watch = NULL;
    dial_finish(dial, KOLO_OK, socket, NULL);
}

static void dial_got_verdict(kolo_dial_t *dial)
{
    kolo_auth_verdict_t code;
    const kolo_shake_t shake = shake_of(dial);
    bool proven = kolo_auth_check_verdict(&shake, dial->verdict, &code);
    KOLO_FAIL_POINT("oob.dial.proven");
    if (!proven) {
        dial_met_stranger(
            dial, KOLO_ERR_AUTH,
            code == KOLO_VERDICT_REFUSED
                ? "it refused our proof: the secrets differ (another job's id, or another secret file)"
                : "it did not prove that it knows the job's secret");
    } else if (code == KOLO_VERDICT_BUSY) {
        dial_attempt_failed(dial, EBUSY);
    } else if (code == KOLO_VERDICT_GONE) {
        dial_fail(dial, KOLO_ERR_REMOTE,
                  "it has left: its program has ended the communicator, or is just doing so");
    } else if (code != KOLO_VERDICT_OK) {
        dial_fail(dial, KOLO_ERR_PROTOCOL, "it refused us: it has another rank, or another number of ranks");
    } else if (dial->config.frame_bytes > 0) {
        size_t bytes = dial->config.frame_bytes;
        dial->stage = WAITS_ACK;
        dial->got = 0;
        kolo_socket_t socket = {dial->fd, dial->seal};
        if (kolo_socket_send_bytes(&socket, dial->config.frame, bytes) != (ssize_t)bytes)
            dial_attempt_failed(dial, ECONNRESET);
    } else {
        dial_hand_over(dial);
    }
}

static void dial_readable(void *arg, int fd, uint32_t events)
{
    kolo_dial_t *dial = arg;
    (void)events;
    uint8_t *const places[] = {dial->greeting, dial->verdict, &dial->ack};
    static const size_t sizes[] = {KOLO_GREETING_BYTES, KOLO_VERDICT_BYTES, 1};
    uint8_t *at = places[dial->stage];
    size_t need = sizes[dial->stage];
    ssize_t n = recv(fd, at + dial->got, need - dial->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { /* refused, reset, or turned away for want of room */
        dial_attempt_failed(dial, n < 0 ? errno : ECONNRESET);
        return;
    }
    dial->got += (size_t)n;
    if (dial->got < need) return;
    if (dial->stage == WAITS_GREETING)
        dial_got_greeting(dial);
    else if (dial->stage == WAITS_VERDICT)
        dial_got_verdict(dial);
    else if (dial->ack == KOLO_FRAME_ACK)
        dial_finish(dial, KOLO_OK, no_socket, NULL);
    else if (dial->ack == KOLO_FRAME_KEPT)
        dial_hand_over(dial);
    else
        dial_attempt_failed(dial, EPROTO);
}

kolo_status_t kolo_dial_start(kolo_progress_t *progress, const kolo_dial_config_t *config, kolo_dial_t **slot)
{
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    const char *wrong = kolo_address_check(&config->address);
    if (wrong != NULL)
        return kolo_fail(KOLO_ERR_PROTOCOL, "the address of %s cannot be called: %s", config->who, wrong);
    if (!KOLO_AUTH_STRONG && !kolo_address_is_loopback(&config->address))
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "%s is at %s, but Kolo was built without libsodium and stays on loopback", config->who,
                         kolo_address_print(&config->address, buf));
    kolo_dial_t *dial = calloc(1, sizeof(*dial));
    if (dial == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to call %s", config->who);
    dial->progress = progress;
    dial->config = *config;
    dial->slot = slot;
    dial->fd = -1;
    dial->retry_ms = RETRY_FIRST_MS;
    *slot = dial; /* the call may end before we return */
    int err = config->elsewhere == NULL ? dial_attempt(dial) : 0;
    if (err == 0 && config->elsewhere == NULL) return KOLO_OK;
    /* Whatever comes of it is decided on the progress thread, like later attempts. */
    dial->first_err = err;
    kolo_status_t status = kolo_timer_add(progress, 0, dial_again, dial, &dial->timer);
    if (status != KOLO_OK) {
        *slot = NULL;
        dial_free(dial);
    }
    return status;
}

typedef struct {
    kolo_dial_t **slot;
} cancel_t;

static void dial_cancel_here(void *arg)
{
    kolo_dial_t **slot = ((cancel_t *)arg)->slot;
    if (*slot == NULL) return;
    dial_free(*slot);
    *slot = NULL;
}

void kolo_dial_last_word(const kolo_dial_t *dial, const void *bytes, size_t n)
{
    if (dial == NULL || dial->fd < 0 || dial->stage != WAITS_VERDICT) return;
    kolo_socket_t socket = {dial->fd, dial->seal};
    ssize_t sent = kolo_socket_send_bytes(&socket, bytes, n);
    (void)sent;
}

void kolo_dial_cancel(kolo_progress_t *progress, kolo_dial_t **slot)
{
    cancel_t cancel = {slot};
    kolo_progress_call(progress, dial_cancel_here, &cancel);
}
