/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the verifier: expression trees, hash-consed, so that equal trees are equal numbers. Every tree knows
 * which ranks' inputs it holds; an operation that would count an input twice, or mix chunks or tiles, has no value.
 */
#include "prove/model.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_LEAF = 1, KIND_OP, KIND_LIST, KIND_MANY, KIND_FINAL };

static const char no_memory[] = "no memory for the verifier's values";

kolo_status_t kolo_values_init(kolo_values_t *v, uint32_t nranks)
{
    *v = (kolo_values_t){.count = 2, .cap = 256, .nranks = nranks, .words = (nranks + 63) / 64, .mask = 511};
    v->at = calloc(v->cap, sizeof(*v->at));
    v->bits = calloc((size_t)v->cap * v->words, sizeof(*v->bits));
    v->table = calloc(v->mask + 1, sizeof(*v->table));
    if (!v->at || !v->bits || !v->table) {
        kolo_values_fini(v);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "%s", no_memory);
    }
    return KOLO_OK;
}

void kolo_values_fini(kolo_values_t *v)
{
    free(v->at);
    free(v->bits);
    free(v->table);
    *v = (kolo_values_t){0};
}

static uint32_t hash_of(uint8_t kind, uint32_t a, uint32_t b, uint32_t when)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    h ^= ((uint64_t)when << 8 | kind) * 0xc2b2ae3d27d4eb4fu;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

static bool grow(kolo_values_t *v)
{
    uint32_t cap = v->cap * 2, mask = v->mask * 2 + 1;
    kolo_value_t *at = realloc(v->at, cap * sizeof(*at));
    if (at) v->at = at;
    uint64_t *bits = realloc(v->bits, (size_t)cap * v->words * sizeof(*bits));
    if (bits) v->bits = bits;
    uint32_t *table = calloc((size_t)mask + 1, sizeof(*table));
    if (!at || !bits || !table) {
        free(table);
        return false;
    }
    free(v->table);
    v->table = table;
    v->mask = mask;
    v->cap = cap;
    for (uint32_t i = 2; i < v->count; i++) {
        kolo_value_t *x = &v->at[i];
        uint32_t h = hash_of(x->kind, x->a, x->b, x->when) & mask;
        x->next = table[h];
        table[h] = i;
    }
    return true;
}

static uint32_t find(const kolo_values_t *v, uint8_t kind, uint32_t a, uint32_t b, uint32_t when)
{
    uint32_t i = v->table[hash_of(kind, a, b, when) & v->mask];
    for (; i; i = v->at[i].next) {
        const kolo_value_t *x = &v->at[i];
        if (x->kind == kind && x->a == a && x->b == b && x->when == when) break;
    }
    return i;
}

/* Makes room for one more; its bits are zero. */
static kolo_value_t *add(kolo_values_t *v, uint8_t kind, uint32_t a, uint32_t b, uint32_t when)
{
    if (v->count == v->cap && !grow(v)) return NULL;
    uint32_t h = hash_of(kind, a, b, when) & v->mask;
    kolo_value_t *x = &v->at[v->count];
    *x = (kolo_value_t){.kind = kind, .a = a, .b = b, .when = when, .next = v->table[h]};
    memset(v->bits + (size_t)v->count * v->words, 0, v->words * sizeof(*v->bits));
    v->table[h] = v->count++;
    return x;
}

uint32_t kolo_values_leaf(kolo_values_t *v, uint32_t rank, uint32_t chunk, uint32_t when, const char **why)
{
    uint32_t i = find(v, KIND_LEAF, rank, chunk, when);
    if (i) return i;
    kolo_value_t *x = add(v, KIND_LEAF, rank, chunk, when);
    if (!x) {
        *why = no_memory;
        return 0;
    }
    x->key = chunk;
    x->leaves = 1;
    x->low = x->high = rank;
    x->ordered = true;
    i = v->count - 1;
    v->bits[(size_t)i * v->words + rank / 64] |= (uint64_t)1 << rank % 64;
    return i;
}

/* Returns a value over the inputs of both a and b, in this order. */
static uint32_t join(kolo_values_t *v, uint8_t kind, uint32_t a, uint32_t b, const char **why)
{
    const kolo_value_t *x = &v->at[a], *y = &v->at[b];
    if (x->final || y->final) *why = "it reduces a value that was FINAL already";
    if (x->when != y->when) *why = "it reduces values of different tiles or calls";
    if (x->key != y->key) *why = "it reduces values of different chunks";
    const uint64_t *xb = v->bits + (size_t)a * v->words, *yb = v->bits + (size_t)b * v->words;
    for (uint32_t w = 0; w < v->words; w++)
        if (xb[w] & yb[w]) *why = "it counts the input of a rank twice";
    if (*why) return 0;
    uint32_t when = x->when;
    uint32_t i = find(v, kind, a, b, when);
    if (i) return i;
    kolo_value_t *z = add(v, kind, a, b, when);
    if (!z) {
        *why = no_memory;
        return 0;
    }
    x = &v->at[a];
    y = &v->at[b];
    z->key = x->key;
    z->leaves = x->leaves + y->leaves;
    z->low = x->low < y->low ? x->low : y->low;
    z->high = x->high > y->high ? x->high : y->high;
    z->ordered = x->ordered && y->ordered && x->high + 1 == y->low;
    i = v->count - 1;
    for (uint32_t w = 0; w < v->words; w++)
        v->bits[(size_t)i * v->words + w] = v->bits[(size_t)a * v->words + w] | v->bits[(size_t)b * v->words + w];
    return i;
}

/* Returns the same inputs as `a`, as another kind of value. */
static uint32_t wrap(kolo_values_t *v, uint8_t kind, uint32_t a, const char **why)
{
    uint32_t when = v->at[a].when;
    uint32_t i = find(v, kind, a, 0, when);
    if (i) return i;
    kolo_value_t *z = add(v, kind, a, 0, when);
    if (!z) {
        *why = no_memory;
        return 0;
    }
    const kolo_value_t *x = &v->at[a];
    z->key = x->key;
    z->leaves = x->leaves;
    z->low = x->low;
    z->high = x->high;
    z->ordered = x->ordered;
    z->final = x->final;
    i = v->count - 1;
    memcpy(v->bits + (size_t)i * v->words, v->bits + (size_t)a * v->words, v->words * sizeof(*v->bits));
    return i;
}

uint32_t kolo_values_op(kolo_values_t *v, uint32_t a, uint32_t b, const char **why)
{
    return join(v, KIND_OP, a, b, why);
}

uint32_t kolo_values_list(kolo_values_t *v, uint32_t list, uint32_t value, const char **why)
{
    return list ? join(v, KIND_LIST, list, value, why) : value;
}

uint32_t kolo_values_many(kolo_values_t *v, uint32_t list, const char **why)
{
    return v->at[list].kind == KIND_LIST ? wrap(v, KIND_MANY, list, why) : list;
}

bool kolo_values_one_fold(const kolo_values_t *v, uint32_t a)
{
    uint32_t left = v->nranks;
    if (v->at[a].kind == KIND_FINAL) a = v->at[a].a;
    if (v->at[a].kind == KIND_MANY) a = v->at[a].a;
    if (left == 2 && v->at[a].kind == KIND_OP) /* of two ranks a step is all there is */
        return v->at[v->at[a].a].kind == KIND_LEAF && v->at[a].ordered;
    for (; left > 1 && v->at[a].kind == KIND_LIST; a = v->at[a].a) {
        const kolo_value_t *last = &v->at[v->at[a].b];
        if (last->kind != KIND_LEAF || last->low != --left) return false;
    }
    return left == 1 && v->at[a].kind == KIND_LEAF && v->at[a].low == 0;
}

uint32_t kolo_values_final(kolo_values_t *v, uint32_t a, const char **why)
{
    if (v->at[a].final) *why = "FINAL is set for a value that was FINAL already";
    if (v->at[a].leaves != v->nranks) *why = "FINAL is set for a value that does not hold the input of every rank";
    if (*why) return 0;
    uint32_t i = wrap(v, KIND_FINAL, a, why);
    if (i) v->at[i].final = true;
    return i;
}
