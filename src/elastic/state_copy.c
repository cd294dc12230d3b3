/* SPDX-License-Identifier: Apache-2.0
 *
 * The two copies of a state: what is in them, and how one goes to other ranks. Buffers have the same size in each
 * commit; values do not, so the sizes belong to the copy. See state.h.
 */
#include "elastic/state.h"

#include "base/params.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (SIZE_MAX / 4) /* of all parts */

static kolo_status_t reserve(kolo_state_copy_t *copy, size_t bytes)
{
    if (bytes <= copy->room && copy->data) return KOLO_OK;
    unsigned char *data = malloc(bytes ? bytes : 1);
    if (!data) return kolo_fail(KOLO_ERR_NO_MEMORY, "state: out of memory for a copy of %zu bytes", bytes);
    free(copy->data); /* what was in it is not needed: it is filled as a whole */
    copy->data = data;
    copy->room = bytes;
    return KOLO_OK;
}

static kolo_status_t open_one(const kolo_state_t s, kolo_state_copy_t *copy)
{
    copy->sizes = calloc(s->nparts ? s->nparts : 1, sizeof *copy->sizes);
    if (!copy->sizes || reserve(copy, s->bytes) != KOLO_OK)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "state: out of memory for two copies of %zu bytes", s->bytes);
    return KOLO_OK;
}

kolo_status_t kolo_state_copies_open(kolo_state_t s)
{
    KOLO_TRY(open_one(s, &s->now));
    return open_one(s, &s->next);
}

static void close_one(kolo_state_copy_t *copy)
{
    free(copy->data);
    free(copy->sizes);
    *copy = (kolo_state_copy_t){0};
}

void kolo_state_copies_close(kolo_state_t s)
{
    close_one(&s->now);
    close_one(&s->next);
}

/* Counts the bytes of a copy, whose sizes may be another rank's; false: they cannot be. */
static bool fits(const kolo_state_t s, const uint64_t *sizes, size_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < s->nparts; i++) {
        const kolo_state_part_t *p = &s->parts[i];
        if (!p->is_value && sizes[i] != p->bytes) return false;
        if (sizes[i] > BYTES_MAX - *bytes) return false;
        *bytes += sizes[i];
    }
    return true;
}

kolo_status_t kolo_state_copy_out(kolo_state_t s, kolo_state_copy_t *copy)
{
    size_t bytes;
    for (size_t i = 0; i < s->nparts; i++) copy->sizes[i] = s->parts[i].bytes;
    if (!fits(s, copy->sizes, &bytes))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "state: the values are larger than memory can be");
    KOLO_TRY(reserve(copy, bytes));
    unsigned char *to = copy->data;
    for (size_t i = 0; i < s->nparts; to += s->parts[i++].bytes)
        if (s->parts[i].bytes > 0) memcpy(to, s->parts[i].buffer, s->parts[i].bytes);
    return KOLO_OK;
}

/* Replaces all values, or none. */
kolo_status_t kolo_state_copy_in(kolo_state_t s, const kolo_state_copy_t *copy)
{
    const unsigned char *from = copy->data;
    unsigned char **fresh = calloc(s->nparts ? s->nparts : 1, sizeof(unsigned char *));
    bool good = fresh != NULL;
    for (size_t i = 0; good && i < s->nparts; i++)
        if (s->parts[i].is_value && copy->sizes[i] > 0) good = (fresh[i] = malloc(copy->sizes[i])) != NULL;
    for (size_t i = 0; good && i < s->nparts; from += copy->sizes[i++]) {
        kolo_state_part_t *p = &s->parts[i];
        if (p->is_value) {
            free(p->buffer);
            p->buffer = fresh[i];
            p->bytes = copy->sizes[i];
        }
        if (p->bytes > 0) memcpy(p->buffer, from, p->bytes);
    }
    for (size_t i = 0; fresh && !good && i < s->nparts; i++) free(fresh[i]);
    free(fresh);
    return good ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "state: out of memory for the values of the last commit");
}

kolo_status_t kolo_state_copy_send(kolo_state_t s, kolo_state_copy_t *copy, int source)
{
    size_t bytes;
    if (s->nvalues > 0)
        KOLO_TRY(kolo_broadcast(copy->sizes, copy->sizes, s->nparts, KOLO_UINT64, source, s->comm, NULL));
    else
        for (size_t i = 0; i < s->nparts; i++) copy->sizes[i] = s->parts[i].bytes;
    if (!fits(s, copy->sizes, &bytes))
        return kolo_fail(KOLO_ERR_PROTOCOL, "state: rank %d sends a commit of sizes that cannot be", source);
    if (bytes == 0) return KOLO_OK;
    if (s->rank != source) KOLO_TRY(reserve(copy, bytes));
    KOLO_TRY(kolo_broadcast(copy->data, copy->data, bytes, KOLO_UINT8, source, s->comm, NULL));
    s->synced += bytes; /* the caller knows whether this rank lacked it */
    return KOLO_OK;
}

void kolo_state_promote(kolo_state_t s)
{
    kolo_state_copy_t old = s->now;
    s->now = s->next;
    s->next = old;
    s->has_next = false;
}
