/* SPDX-License-Identifier: Apache-2.0
 *
 * The controller on Kolo's own communicators, and which controller it is. See talk.h.
 */
#include "engine/controller/talk.h"

int64_t kolo_talk_which;
static const kolo_talk_t *const known[] = {&kolo_talk_kolo, &kolo_talk_mpi};

/* ---- life ---- */

kolo_status_t kolo_talk_open(struct kolo_tensor_engine *e)
{
    const kolo_talk_t *talk = known[kolo_talk_which];
    kolo_status_t status = talk->open ? talk->open(e) : KOLO_OK;
    if (status != KOLO_OK) return kolo_fail_prefix(status, "engine_init: controller %s: ", talk->name);
    e->talk = talk;
    return kolo_talk_meet(e->all);
}

void kolo_talk_close(struct kolo_tensor_engine *e)
{
    if (e->talk && e->talk->close) e->talk->close(e);
}

kolo_status_t kolo_talk_meet(kolo_set_t *s)
{
    const kolo_talk_t *talk = s->engine->talk;
    void *here = NULL;
    if (!talk || !talk->meet) return KOLO_OK; /* set 0 is made before the engine has one */
    KOLO_TRY(talk->meet(s, &here));
    atomic_store(&s->talk_here, here);
    return KOLO_OK;
}

void kolo_talk_leave(kolo_set_t *s, bool abort)
{
    void *here = atomic_load(&s->talk_here);
    if (here && s->engine->talk->leave && !atomic_exchange(&s->talk_left, true))
        s->engine->talk->leave(here, abort);
}

void kolo_talk_free(kolo_set_t *s)
{
    void *here = atomic_exchange(&s->talk_here, NULL);
    if (here && s->engine->talk->free) s->engine->talk->free(here);
}

/* ---- the steps ---- */

kolo_status_t kolo_talk_check(int rank, uint64_t length, uint64_t limit)
{
    if (length <= limit) return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %d sends requests of %llu bytes", rank,
                     (unsigned long long)length);
}

kolo_status_t kolo_talk_sum(const kolo_set_t *s, const uint64_t *lengths, size_t *total)
{
    size_t sum = 0;
    for (int r = 1; r < s->size; r++) {
        KOLO_TRY(kolo_talk_check(r, lengths[r], KOLO_ENGINE_MESSAGE_MAX));
        sum += lengths[r];
    }
    *total = sum;
    return KOLO_OK;
}

kolo_status_t kolo_talk_room(kolo_bytes_t *bytes, uint64_t length)
{
    if (length > KOLO_ENGINE_MESSAGE_MAX)
        return kolo_fail(KOLO_ERR_PROTOCOL, "engine: the coordinator sends answers of %llu bytes",
                         (unsigned long long)length);
    KOLO_TRY(kolo_message_room(bytes, length));
    bytes->length = length;
    return KOLO_OK;
}

static kolo_status_t and_bits(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words)
{
    return kolo_all_reduce(mine, all, words, KOLO_UINT64, s->and_op, s->comm, NULL);
}

static kolo_status_t or_bits(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words)
{
    return kolo_all_reduce(mine, all, words, KOLO_UINT64, s->or_op, s->comm, NULL);
}

/* Receives messages of known lengths, `total` bytes in all, one behind the other; from NULL: of ranks 1, 2 and so
 * on. */
static kolo_status_t receive_all(kolo_set_t *s, const int *from, const uint64_t *lengths, int count,
                                 kolo_bytes_t *all, size_t total)
{
    kolo_status_t status = KOLO_OK;
    KOLO_TRY(kolo_message_room(all, total));
    KOLO_TRY(kolo_group_start());
    char *at = (char *)all->bytes;
    for (int i = 0; i < count && status == KOLO_OK; at += lengths[i++])
        if (lengths[i] > 0) status = kolo_recv(at, lengths[i], KOLO_UINT8, from ? from[i] : i + 1, s->comm, NULL);
    kolo_status_t ended = kolo_group_end();
    return status == KOLO_OK ? ended : status;
}

static kolo_status_t gather(kolo_set_t *s, const kolo_bytes_t *mine, kolo_bytes_t *all, uint64_t *lengths)
{
    uint64_t length = mine->length;
    size_t total = 0;
    KOLO_TRY(kolo_gather(&length, lengths, 1, KOLO_UINT64, 0, s->comm, NULL));
    if (s->rank > 0) return length ? kolo_send(mine->bytes, length, KOLO_UINT8, 0, s->comm, NULL) : KOLO_OK;
    KOLO_TRY(kolo_talk_sum(s, lengths, &total));
    return receive_all(s, NULL, lengths + 1, s->size - 1, all, total);
}

static kolo_status_t send(kolo_set_t *s, int to, const kolo_bytes_t *mine)
{
    uint64_t length = mine->length;
    KOLO_TRY(kolo_send(&length, 1, KOLO_UINT64, to, s->comm, NULL));
    return length > 0 ? kolo_send(mine->bytes, length, KOLO_UINT8, to, s->comm, NULL) : KOLO_OK;
}

static kolo_status_t receive(kolo_set_t *s, const int *from, const uint64_t *limits, int count, kolo_bytes_t *all,
                             uint64_t *lengths)
{
    kolo_status_t status = KOLO_OK;
    size_t total = 0;
    KOLO_TRY(kolo_group_start());
    for (int i = 0; i < count && status == KOLO_OK; i++)
        status = kolo_recv(&lengths[i], 1, KOLO_UINT64, from[i], s->comm, NULL);
    kolo_status_t ended = kolo_group_end();
    KOLO_TRY(status == KOLO_OK ? ended : status);
    for (int i = 0; i < count; i++) {
        KOLO_TRY(kolo_talk_check(from[i], lengths[i], limits[i]));
        total += lengths[i];
    }
    return receive_all(s, from, lengths, count, all, total);
}

static kolo_status_t broadcast(kolo_set_t *s, kolo_bytes_t *bytes)
{
    uint64_t length = bytes->length;
    KOLO_TRY(kolo_broadcast(&length, &length, 1, KOLO_UINT64, 0, s->comm, NULL));
    KOLO_TRY(kolo_talk_room(bytes, length));
    return kolo_broadcast(bytes->bytes, bytes->bytes, length, KOLO_UINT8, 0, s->comm, NULL);
}

const kolo_talk_t kolo_talk_kolo = {.name = "kolo",
                                    .and_bits = and_bits,
                                    .or_bits = or_bits,
                                    .gather = gather,
                                    .send = send,
                                    .receive = receive,
                                    .broadcast = broadcast};
