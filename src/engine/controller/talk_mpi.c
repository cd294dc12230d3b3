/* SPDX-License-Identifier: Apache-2.0
 *
 * The controller on MPI: see talk.h. What ranks do not say in the order of cycles stays with Kolo: waking each
 * other, noticing that one is lost, ending.
 */
#include "engine/backends/use_mpi.h"
#include "engine/controller/talk.h"

#include <stdlib.h>

static kolo_mpi_t *mpi_of(const kolo_set_t *s)
{
    return atomic_load_explicit(&s->talk_here, memory_order_relaxed);
}

static kolo_status_t meet(kolo_set_t *s, void **here)
{
    kolo_mpi_t *m = NULL;
    KOLO_TRY(kolo_mpi_meet(s, KOLO_MPI_TALK, &m));
    *here = m;
    return KOLO_OK;
}

static kolo_status_t and_bits(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words)
{
    return kolo_mpi_all_reduce(mpi_of(s), mine, all, words, KOLO_UINT64, KOLO_MPI_BAND);
}

static kolo_status_t or_bits(kolo_set_t *s, const uint64_t *mine, uint64_t *all, size_t words)
{
    return kolo_mpi_all_reduce(mpi_of(s), mine, all, words, KOLO_UINT64, KOLO_MPI_BOR);
}

/* Has all learn all lengths: together they may be more than MPI counts, and then all have to know. */
static kolo_status_t gather_all(kolo_set_t *s, const kolo_bytes_t *mine, kolo_bytes_t *all, uint64_t *lengths)
{
    kolo_mpi_t *m = mpi_of(s);
    const uint64_t length = mine->length;
    size_t total = 0, *ones = malloc(2 * (size_t)s->size * sizeof *ones);
    if (!ones) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", s->size);
    for (int r = 0; r < s->size; r++) {
        ones[r] = 1;
        ones[s->size + r] = (size_t)r;
    }
    kolo_status_t status = kolo_mpi_all_gather(m, &length, lengths, ones, ones + s->size, KOLO_UINT64);
    free(ones);
    if (status == KOLO_OK) status = kolo_talk_sum(s, lengths, &total);
    if (status == KOLO_OK && s->rank == 0) status = kolo_message_room(all, total);
    return status == KOLO_OK ? kolo_mpi_gather(m, mine->bytes, all ? all->bytes : NULL, lengths) : status;
}

static kolo_status_t gather(kolo_set_t *s, const kolo_bytes_t *mine, kolo_bytes_t *all, uint64_t *lengths)
{
    uint64_t *own = lengths ? NULL : malloc((size_t)s->size * sizeof *own);
    if (!lengths && !own) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", s->size);
    kolo_status_t status = gather_all(s, mine, all, lengths ? lengths : own);
    free(own);
    return status;
}

static kolo_status_t send(kolo_set_t *s, int to, const kolo_bytes_t *mine)
{
    uint64_t length = mine->length;
    KOLO_TRY(kolo_mpi_send(mpi_of(s), &length, sizeof length, to));
    return length > 0 ? kolo_mpi_send(mpi_of(s), mine->bytes, length, to) : KOLO_OK;
}

/* Receives one after the other: what comes early from a later one MPI keeps, or lets wait. */
static kolo_status_t receive(kolo_set_t *s, const int *from, const uint64_t *limits, int count, kolo_bytes_t *all,
                             uint64_t *lengths)
{
    kolo_mpi_t *m = mpi_of(s);
    size_t at = 0;
    for (int i = 0; i < count; at += lengths[i++]) {
        KOLO_TRY(kolo_mpi_receive(m, &lengths[i], sizeof lengths[i], from[i]));
        KOLO_TRY(kolo_talk_check(from[i], lengths[i], limits[i]));
        KOLO_TRY(kolo_message_room(all, at + lengths[i]));
        if (lengths[i] > 0) KOLO_TRY(kolo_mpi_receive(m, all->bytes + at, lengths[i], from[i]));
    }
    return KOLO_OK;
}

static kolo_status_t broadcast(kolo_set_t *s, kolo_bytes_t *bytes)
{
    kolo_mpi_t *m = mpi_of(s);
    uint64_t length = bytes->length;
    KOLO_TRY(kolo_mpi_broadcast(m, &length, 1, KOLO_UINT64, 0));
    KOLO_TRY(kolo_talk_room(bytes, length));
    return kolo_mpi_broadcast(m, bytes->bytes, length, KOLO_UINT8, 0);
}

const kolo_talk_t kolo_talk_mpi = {.name = "mpi",
                                   .open = kolo_mpi_open,
                                   .meet = meet,
                                   .leave = kolo_mpi_leave,
                                   .free = kolo_mpi_free,
                                   .close = kolo_mpi_close,
                                   .and_bits = and_bits,
                                   .or_bits = or_bits,
                                   .gather = gather,
                                   .send = send,
                                   .receive = receive,
                                   .broadcast = broadcast};
