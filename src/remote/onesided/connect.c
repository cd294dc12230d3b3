/* SPDX-License-Identifier: Apache-2.0
 *
 * How two ends come together: each sends a card with the kinds that it offers, both choose the first kind that both
 * have, and, where the kind needs it, each says that it is ready.
 */
#include "remote/onesided/internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const kolo_onesided_ops_t *const kolo_onesided_kinds[KOLO_ONESIDED_KINDS] = {
    [KOLO_ONESIDED_SHM] = &kolo_onesided_shm,
#if defined(KOLO_HAVE_VERBS)
    [KOLO_ONESIDED_VERBS] = &kolo_onesided_verbs,
#endif
    [KOLO_ONESIDED_TCP] = &kolo_onesided_tcp,
};

/* Gives the peer memory to write to from the start, as window 0; the arena's first, so it is zeroed. */
static kolo_status_t offer_mailbox(kolo_onesided_t *end, size_t bytes, kolo_onesided_card_t *card)
{
    if (bytes == 0) return KOLO_OK;
    KOLO_TRY(kolo_onesided_alloc(end, bytes, &end->mailbox));
    card->mailbox_bytes = bytes;
    card->mailbox_at = (uint64_t)((char *)end->mailbox.base - kolo_arena_base(end->arena));
    kolo_onesided_exposed_t exposed = {.base = end->mailbox.base, .bytes = bytes};
    KOLO_TRY(kolo_onesided_add_window(end, &exposed, &card->mailbox_key));
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++)
        if ((end->kinds & 1u << i) && kolo_onesided_kinds[i]->offer_mailbox)
            KOLO_TRY(kolo_onesided_kinds[i]->offer_mailbox(end, card));
    return KOLO_OK;
}

kolo_status_t kolo_onesided_offer(kolo_onesided_t *end, size_t mailbox)
{
    kolo_onesided_card_t card = {.uid = (uint32_t)getuid(), .pid = (int32_t)getpid()};
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++) {
        if (!(end->kinds & 1u << i) || kolo_onesided_kinds[i] == NULL) continue;
        /* What neighbours use costs less than pages that a network card holds. */
        if (i == KOLO_ONESIDED_VERBS && (card.kinds & 1u << KOLO_ONESIDED_SHM) && kolo_onesided_is_near(end))
            continue;
        kolo_status_t status = kolo_onesided_kinds[i]->offer(end, &card);
        if (status != KOLO_OK && status != KOLO_ERR_UNSUPPORTED) return status;
        if (status == KOLO_OK) card.kinds |= 1u << i;
    }
    end->kinds = card.kinds;
    KOLO_TRY(offer_mailbox(end, mailbox, &card));
    if (card.kinds == 0)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "onesided: no kind that may be used with %s works here", end->who);
    kolo_onesided_card_encode(&card, end->card_out);
    return KOLO_OK;
}

kolo_status_t kolo_onesided_broken(const kolo_onesided_t *end, int err)
{
    if (err == 0 || err == ECONNRESET || err == EPIPE)
        return kolo_fail(KOLO_ERR_REMOTE, "%s has closed the connection, or has died", end->who);
    if (err == EBADMSG) return kolo_fail(KOLO_ERR_PROTOCOL, "connection with %s: %s", end->who, KOLO_SEAL_ALTERED);
    return kolo_fail_errno(KOLO_ERR_REMOTE, err, "the connection with %s is broken", end->who);
}

static kolo_status_t choose(kolo_onesided_t *end)
{
    kolo_onesided_card_t card;
    const char *wrong = kolo_onesided_card_decode(end->card_in, sizeof end->card_in, &card);
    if (wrong) return kolo_fail(KOLO_ERR_PROTOCOL, "the card of %s: %s", end->who, wrong);
    bool same_host = card.shm_hash == end->domain->shm_hash && card.uid == (uint32_t)getuid();
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++) {
        if (!(end->kinds & card.kinds & 1u << i) || (i == KOLO_ONESIDED_SHM && !same_host)) continue;
        KOLO_TRY(kolo_onesided_kinds[i]->connect(end, &card));
        end->ops = kolo_onesided_kinds[i];
        end->peer_mailbox = (kolo_onesided_window_t){.bytes = card.mailbox_bytes};
        kolo_onesided_kinds[i]->find_mailbox(&card, &end->peer_mailbox);
        return KOLO_OK;
    }
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "%s and this process have no kind of one-sided transfers in common",
                     end->who);
}

/* Sends a byte each way: before the other end is ready, what is written to it may be lost. */
static kolo_status_t shake_hands(kolo_onesided_t *end)
{
    static const uint8_t word = 'r';
    uint8_t theirs = 0;
    if (!end->said_ready) {
        ssize_t n = kolo_socket_send_bytes(&end->socket, &word, 1);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return KOLO_IN_PROGRESS;
        if (n < 0) return kolo_onesided_broken(end, errno);
        end->said_ready = true;
    }
    if (!end->heard_ready) {
        ssize_t n = kolo_socket_recv_bytes(&end->socket, &theirs, 1);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return KOLO_IN_PROGRESS;
        if (n <= 0) return kolo_onesided_broken(end, n < 0 ? errno : 0);
        if (theirs != word)
            return kolo_fail(KOLO_ERR_PROTOCOL, "%s did not say that it is ready, but 0x%02x", end->who, theirs);
        end->heard_ready = true;
    }
    return KOLO_OK;
}

/* Exchanges the cards; KOLO_IN_PROGRESS until both have passed. */
kolo_status_t kolo_onesided_exchange(kolo_onesided_t *end)
{
    if (end->ops) return end->ops->shakes ? shake_hands(end) : KOLO_OK;
    while (end->card_sent < sizeof end->card_out) {
        ssize_t n = kolo_socket_send_bytes(&end->socket, end->card_out + end->card_sent,
                                           sizeof end->card_out - end->card_sent);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n < 0) return kolo_onesided_broken(end, errno);
        end->card_sent += (size_t)n;
    }
    while (end->card_got < sizeof end->card_in) {
        ssize_t n =
            kolo_socket_recv_bytes(&end->socket, end->card_in + end->card_got, sizeof end->card_in - end->card_got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return KOLO_IN_PROGRESS;
        if (n <= 0) return kolo_onesided_broken(end, n < 0 ? errno : 0);
        end->card_got += (size_t)n;
    }
    KOLO_TRY(choose(end));
    return end->ops->shakes ? shake_hands(end) : KOLO_OK;
}

bool kolo_onesided_hung_up(const kolo_onesided_t *end)
{
    char byte;
    ssize_t n = recv(end->socket.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

bool kolo_onesided_is_near(const kolo_onesided_t *end)
{
    struct sockaddr_storage mine = {0}, theirs = {0};
    socklen_t n = sizeof mine, m = sizeof theirs;
    if (getsockname(end->socket.fd, (struct sockaddr *)&mine, &n) != 0 ||
        getpeername(end->socket.fd, (struct sockaddr *)&theirs, &m) != 0 || mine.ss_family != theirs.ss_family)
        return false;
    if (mine.ss_family == AF_UNIX) return true;
    const struct sockaddr_in *a = (const void *)&mine, *b = (const void *)&theirs;
    const struct sockaddr_in6 *a6 = (const void *)&mine, *b6 = (const void *)&theirs;
    if (mine.ss_family == AF_INET6) return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
    return mine.ss_family == AF_INET &&
           (a->sin_addr.s_addr == b->sin_addr.s_addr || ntohl(b->sin_addr.s_addr) >> 24 == 127);
}
