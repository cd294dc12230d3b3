/* SPDX-License-Identifier: Apache-2.0
 *
 * What an inner rank of the tree makes of its children's requests and its own. See tree.h.
 */
#include "engine/controller/tree.h"

#include <stdlib.h>
#include <string.h>

void kolo_merge_fini(kolo_merge_t *m)
{
    for (kolo_shared_t *s = m->first, *next; s; s = next) {
        next = s->behind;
        kolo_ranks_fini(&s->ranks);
        free(s);
    }
    free(m->buckets);
    memset(m, 0, sizeof *m);
}

static kolo_status_t out_of_memory(const kolo_tensor_request_t *request)
{
    return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory to merge the requests for tensor %s",
                     request->name.text);
}

/* ---- the table ---- */

static kolo_status_t grow(kolo_merge_t *m, const kolo_tensor_request_t *request)
{
    size_t n = m->nbuckets ? 2 * m->nbuckets : 64;
    kolo_shared_t **buckets = calloc(n, sizeof *buckets);
    if (!buckets) return out_of_memory(request);
    for (kolo_shared_t *s = m->first; s; s = s->behind) {
        s->next_in_bucket = buckets[s->hash & (n - 1)];
        buckets[s->hash & (n - 1)] = s;
    }
    free(m->buckets);
    m->buckets = buckets;
    m->nbuckets = n;
    return KOLO_OK;
}

static kolo_shared_t *find(const kolo_merge_t *m, const kolo_tensor_request_t *request, uint64_t hash)
{
    kolo_shared_t *s = m->nbuckets ? m->buckets[hash & (m->nbuckets - 1)] : NULL;
    while (s && (s->hash != hash || s->request.name.length != request->name.length ||
                 memcmp(s->request.name.text, request->name.text, request->name.length) != 0 ||
                 !kolo_tensor_request_alike(&s->request, request)))
        s = s->next_in_bucket;
    return s;
}

/* ---- the list ---- */

static void append(kolo_merge_t *m, kolo_shared_t *s)
{
    s->before = m->last;
    s->behind = NULL;
    if (m->last)
        m->last->behind = s;
    else
        m->first = s;
    m->last = s;
}

static void move_to_end(kolo_merge_t *m, kolo_shared_t *s)
{
    if (m->last == s) return;
    s->behind->before = s->before;
    if (s->before)
        s->before->behind = s->behind;
    else
        m->first = s->behind;
    append(m, s);
}

static kolo_status_t add_new(kolo_merge_t *m, const kolo_tensor_request_t *request, uint64_t hash,
                             kolo_shared_t **out)
{
    if (m->count >= m->nbuckets) KOLO_TRY(grow(m, request));
    kolo_shared_t *s = calloc(1, sizeof *s + request->name.length + 1);
    if (!s) return out_of_memory(request);
    s->hash = hash;
    kolo_tensor_request_copy(&s->request, request, (char *)(s + 1));
    s->next_in_bucket = m->buckets[hash & (m->nbuckets - 1)];
    m->buckets[hash & (m->nbuckets - 1)] = s;
    append(m, s);
    m->count++;
    *out = s;
    return KOLO_OK;
}

kolo_status_t kolo_merge_add(kolo_merge_t *m, const kolo_tensor_request_t *request, const kolo_ranks_t *ranks)
{
    uint64_t hash = kolo_tensor_request_hash(request);
    kolo_shared_t *s = find(m, request, hash);
    if (!s)
        KOLO_TRY(add_new(m, request, hash, &s));
    else if (ranks->runs[0].first < s->ranks.runs[s->ranks.count - 1].end)
        return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %d has sent tensor %s twice", ranks->runs[0].first,
                         request->name.text);
    else
        move_to_end(m, s);
    s->request.waited_ms = KOLO_MAX(s->request.waited_ms, request->waited_ms);
    for (int i = 0; i < ranks->count; i++) KOLO_TRY(kolo_ranks_add(&s->ranks, ranks->runs[i]));
    return KOLO_OK;
}

kolo_status_t kolo_merge_own(kolo_merge_t *m, int rank, const kolo_tensor_request_t *const *requests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kolo_ranks_run_t me = {rank, rank + 1, kolo_tensor_request_rows(requests[i])};
        kolo_ranks_t alone = {&me, 1, 1, 1};
        KOLO_TRY(kolo_merge_add(m, requests[i], &alone));
    }
    return KOLO_OK;
}

static kolo_status_t add(void *arg, const kolo_tensor_request_t *request, const kolo_ranks_t *ranks)
{
    return kolo_merge_add(arg, request, ranks);
}

kolo_status_t kolo_merge_child(kolo_merge_t *m, const kolo_tree_place_t *child, int nranks, const uint8_t *bytes,
                               size_t length)
{
    return kolo_requests_decode(bytes, length, child, nranks, add, m);
}
