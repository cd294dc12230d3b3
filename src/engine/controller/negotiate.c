/* SPDX-License-Identifier: Apache-2.0
 *
 * One agreement between all ranks. Each looks its pending tensors up in the cache; one all_reduce (AND) over a
 * small bit vector shows which of them are pending everywhere, and whether any rank has a tensor that is not in the
 * cache (then the coordinator is asked, slow.c), has one that is cached with other arguments (then a second
 * all_reduce, OR, shows which slots all erase), wants to stop, or has a turn of another set waiting. Tensors that
 * are cached and pending everywhere need no coordinator: all ranks read the same bits in the same order.
 */
#include "engine/controller/talk.h"
#include "engine/timeline/timeline.h"
#include "engine/tuner/autotune.h"

#include <stdlib.h>
#include <string.h>

/* The first word of the vector: flags, inverted, so that AND keeps what any rank set; then how many hits a rank
 * has, straight and inverted: AND leaves the two each other's inverse only if all ranks have equally many. */
enum { UNCACHED = 1, INVALID = 2, SHUTDOWN = 4, CLOCKS = 8, YIELD = 16, FAILED = 32, FLAGS = 63 };
#define COUNT_MASK UINT64_C(0xfffffff)
#define COUNT_AT   8
#define INVERSE_AT 36

static uint64_t head_word(uint64_t flags, bool counts, uint64_t hits)
{
    uint64_t word = ~flags;
    if (counts) word &= ~((~hits & COUNT_MASK) << COUNT_AT | (hits & COUNT_MASK) << INVERSE_AT);
    return word;
}

/* Has every rank that counts exactly `hits`, so that nothing is left pending anywhere? */
static bool all_have(uint64_t word, uint64_t hits)
{
    return (word >> COUNT_AT & COUNT_MASK) == hits && (~(word >> INVERSE_AT) & COUNT_MASK) == hits;
}

size_t kolo_controller_vector_words(const kolo_set_t *s)
{
    return 1 + (size_t)KOLO_DIV_UP(s->cache.top, 64);
}

static void set_bit(uint64_t *vector, int slot)
{
    vector[1 + slot / 64] |= UINT64_C(1) << slot % 64;
}

static bool get_bit(const uint64_t *vector, int slot)
{
    return vector[1 + slot / 64] >> slot % 64 & 1;
}

/* Claims, for a rank that has joined, everything that may go on without it, and forgets what may not. */
static uint64_t claim_all(kolo_set_t *s)
{
    uint64_t flags = 0;
    for (int i = 0; i < s->cache.top; i++) {
        if (!s->cache.slots[i].used) continue;
        kolo_work_t work = s->cache.slots[i].request.work;
        if (work == KOLO_WORK_ALL_REDUCE || work == KOLO_WORK_BARRIER) {
            set_bit(s->engine->bits, i);
            continue;
        }
        set_bit(s->engine->invalid, i);
        flags |= INVALID;
    }
    return flags;
}

/* Has it waited so long for what is cached that the coordinator should see who lacks it (stall.c)? */
static bool is_stale(const struct kolo_tensor_engine *e, kolo_entry_t *entry)
{
    uint64_t waited_ns = e->cycle_began_ns - entry->taken_ns;
    if (KOLO_LIKELY(waited_ns < e->patience_ns)) return false;
    entry->request.waited_ms = (uint32_t)KOLO_MIN(waited_ns / KOLO_NS_PER_MS, (uint64_t)UINT32_MAX);
    return true;
}

/* Fills in bits, invalid, hits and requests. */
static uint64_t look_up(kolo_set_t *s, size_t *nrequests)
{
    uint64_t flags = 0;
    for (kolo_entry_t *entry = s->pending; entry; entry = entry->next) {
        int slot = 0;
        kolo_cache_found_t found = kolo_cache_find(&s->cache, &entry->request, &slot);
        if (found == KOLO_CACHE_HIT && is_stale(s->engine, entry)) found = KOLO_CACHE_INVALID;
        if (found == KOLO_CACHE_HIT) {
            set_bit(s->engine->bits, slot);
            s->engine->hits[slot] = entry;
            s->nhits++;
            continue;
        }
        if (found == KOLO_CACHE_INVALID) {
            set_bit(s->engine->invalid, slot);
            flags |= INVALID;
            KOLO_TALLY(s->engine->tally.invalid, 1);
        }
        flags |= UNCACHED;
        if (*nrequests == KOLO_ENGINE_REQUESTS_MAX - 1) continue; /* in the next cycle; one is kept for a join */
        if (found == KOLO_CACHE_MISS) KOLO_TALLY(s->engine->tally.misses, 1);
        entry->reported = true;
        s->engine->requests[(*nrequests)++] = &entry->request;
    }
    return flags;
}

/* Returns flags by which the engine ends, by an agreement of all ranks. */
static uint64_t flags_of_engine(const kolo_set_t *s)
{
    struct kolo_tensor_engine *e = s->engine;
    uint64_t flags = e->nlive > 1 && atomic_load(&e->order.waiting) > 0 ? YIELD : 0;
    return s->id == 0 && (atomic_load(&e->stop) || e->stalled[0]) ? flags | SHUTDOWN : flags;
}

static uint64_t fill_vectors(kolo_set_t *s, size_t *nrequests)
{
    size_t words = kolo_controller_vector_words(s);
    memset(s->engine->bits, 0, words * sizeof *s->engine->bits);
    memset(s->engine->invalid, 0, words * sizeof *s->engine->invalid);
    if (s->cache.top > 0) memset(s->engine->hits, 0, (size_t)s->cache.top * sizeof(kolo_entry_t *));
    s->nhits = 0;
    uint64_t flags = s->joined ? claim_all(s) : look_up(s, nrequests);
    s->join_sent = s->all_here && kolo_set_may_join(s);
    if (s->join_sent) {
        s->engine->requests[(*nrequests)++] = &s->join->request;
        flags |= UNCACHED;
    }
    if (kolo_autotune_has_news(s)) flags |= UNCACHED; /* the coordinator has to speak */
    return flags | flags_of_engine(s);
}

/* Entries that the coordinator will hear of, or that the cache has answered, are no longer pending. */
static void sweep(kolo_set_t *s)
{
    s->pending_tail = &s->pending;
    s->npending = 0;
    for (kolo_entry_t *entry = s->pending, *next; entry; entry = next) {
        next = entry->next;
        if (entry->reported) continue;
        *s->pending_tail = entry;
        s->pending_tail = &entry->next;
        s->npending++;
    }
    *s->pending_tail = NULL;
}

/* Erases what is invalid. Who finds a slot invalid does not hit it, so none of these is agreed on. */
static void erase_invalid(kolo_set_t *s)
{
    for (int i = 0; i < s->cache.top; i++) {
        if (get_bit(s->engine->erased, i)) kolo_cache_erase(&s->cache, i);
    }
}

static size_t take_hits(kolo_set_t *s)
{
    size_t n = 0;
    int words = KOLO_DIV_UP(s->cache.top, 64);
    kolo_cache_keep_whole(&s->cache, s->engine->agreed + 1);
    for (int w = 0; w < words; w++) {
        for (uint64_t left = s->engine->agreed[1 + w]; left; left &= left - 1) {
            int slot = w * 64 + __builtin_ctzll(left);
            const kolo_cache_slot_t *cached = &s->cache.slots[slot];
            kolo_response_t *r = &s->engine->from_cache[slot];
            r->request = cached->request;
            r->rows = cached->rows;
            r->slot = slot;
            r->last_joined = -1;
            r->device = cached->device;
            r->entry = s->engine->hits[slot];
            if (r->entry) r->entry->reported = true;
            kolo_cache_touch(&s->cache, slot);
            s->engine->ordered[n++] = r;
        }
    }
    KOLO_TALLY(s->engine->tally.hits, n);
    return n;
}

static kolo_status_t room_for(kolo_set_t *s, size_t count)
{
    if (count <= s->engine->ordered_room) return KOLO_OK;
    count = KOLO_MAX(count, 2 * s->engine->ordered_room);
    kolo_response_t **p = realloc(s->engine->ordered, count * sizeof(kolo_response_t *));
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu responses", count);
    s->engine->ordered = p;
    s->engine->ordered_room = count;
    return KOLO_OK;
}

static kolo_status_t fail_unlike(const kolo_set_t *s, const kolo_response_t *r)
{
    const kolo_tensor_request_t *mine = &r->entry->request;
    char told[300], asked[300];
    kolo_shape_print(r->request.shape, r->request.ndims, told, sizeof told);
    kolo_shape_print(mine->shape, mine->ndims, asked, sizeof asked);
    return kolo_fail(KOLO_ERR_PROTOCOL,
                     "engine: the coordinator asks rank %d for %s of %s as %s %s, but it has submitted it as %s "
                     "%s, or with another operator, root, scale or rows",
                     s->rank, kolo_tensor_request_work_name(r->request.work), r->request.name.text,
                     kolo_tensor_request_type_name(r->request.type), told,
                     kolo_tensor_request_type_name(mine->type), asked);
}

/* Finds whose tensors they are. */
static kolo_status_t match_fresh(kolo_set_t *s, const kolo_responses_t *fresh, size_t *count)
{
    KOLO_TRY(room_for(s, *count + fresh->count));
    for (kolo_response_t *r = fresh->first; r; r = r->next) {
        r->entry = kolo_tensors_find(&s->lane, &r->request.name);
        if (!r->entry && !s->joined)
            return kolo_fail(KOLO_ERR_PROTOCOL,
                             "engine: the coordinator asks rank %d for %s, which it has not submitted", s->rank,
                             r->request.name.text);
        if (r->entry && !kolo_response_fits(r, &r->entry->request, s->rank)) return fail_unlike(s, r);
        if (r->entry && r->request.work != KOLO_WORK_JOIN) s->nreported--;
        r->mine_device = r->entry ? r->entry->request.device : r->device;
        s->engine->ordered[(*count)++] = r;
    }
    return KOLO_OK;
}

kolo_status_t kolo_controller_negotiate(kolo_set_t *s, kolo_responses_t *fresh, kolo_outcome_t *outcome)
{
    size_t nrequests = 0, words = kolo_controller_vector_words(s);
    uint64_t flags = fill_vectors(s, &nrequests);
    if (s->id == 0 && atomic_exchange(&s->engine->clocks_wanted, false)) flags |= CLOCKS;
    if (s->failed) flags |= FAILED;
    s->engine->bits[0] = head_word(flags, !s->joined, s->nhits);
    *outcome = (kolo_outcome_t){0};
    KOLO_TRY(s->engine->talk->and_bits(s, s->engine->bits, s->engine->agreed, words));
    if (s->id == 0) kolo_wake_met(s->engine, words);
    flags = ~s->engine->agreed[0] & FLAGS;
    if (KOLO_UNLIKELY(flags & FAILED)) KOLO_TRY(kolo_failed_agree(s));
    if (flags & SHUTDOWN) {
        outcome->stop = true;
        return KOLO_OK;
    }
    if (flags & CLOCKS) KOLO_TRY(kolo_clock_compare(s->engine));
    flags &= ~(uint64_t)(CLOCKS | FAILED);
    if (flags & INVALID) {
        KOLO_TRY(s->engine->talk->or_bits(s, s->engine->invalid, s->engine->erased, words));
        erase_invalid(s);
    }
    KOLO_TRY(room_for(s, (size_t)s->cache.top));
    outcome->count = take_hits(s);
    sweep(s);
    outcome->yield = flags & YIELD;
    bool flagged = (flags & ~(uint64_t)YIELD) != 0, have = all_have(s->engine->agreed[0], outcome->count);
    outcome->left = flagged || !have;
    outcome->news = flagged || (outcome->count > 0 && !have);
    if (!(flags & UNCACHED)) return KOLO_OK;
    s->nreported += nrequests - (s->join_sent ? 1 : 0);
    KOLO_TRY(kolo_controller_negotiate_slow(s, nrequests, fresh));
    if (s->join_sent) s->joined = true;
    KOLO_TALLY(s->engine->tally.slow_cycles, 1);
    return match_fresh(s, fresh, &outcome->count);
}
