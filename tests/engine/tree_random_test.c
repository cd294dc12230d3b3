/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree of requests is the same function as rank 0's asking everybody: random programs of many cycles, in which
 * ranks send tensors of all kinds in any order, mean some otherwise, join, and change process sets. After each
 * cycle the answers of both ways are the same bytes, and both coordinators wait for the same ranks.
 */
#include "base/test.h"
#include "engine/kit/simulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS   14 /* the last two are changes of the sets */
#define RANKS_MAX 300

static uint64_t random_state;

static int below(int n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int)(random_state % (uint64_t)n);
}

typedef struct {
    int nranks, fan_in, odds; /* one request of so many is meant otherwise */
    bool sent[RANKS_MAX][TENSORS], joined[RANKS_MAX];
    kolo_tensor_request_t usual[TENSORS], requests[RANKS_MAX][TENSORS + 1];
    const kolo_tensor_request_t *order[RANKS_MAX][TENSORS + 1];
    char names[TENSORS][48];
    sim_list_t lists[RANKS_MAX];
    kolo_controller_t flat, tree;
} program_t;

/* ---- what is sent ---- */

static void make_tensor(program_t *p, int t)
{
    static const kolo_work_t works[] = {KOLO_WORK_ALL_REDUCE, KOLO_WORK_ALL_GATHER,     KOLO_WORK_BROADCAST,
                                        KOLO_WORK_ALL_TO_ALL, KOLO_WORK_REDUCE_SCATTER, KOLO_WORK_ALL_REDUCE};
    kolo_tensor_request_t *q = &p->usual[t];
    *q = (kolo_tensor_request_t){.type = KOLO_FLOAT32, .prescale = 1, .postscale = 1, .ndims = 2, .shape = {4, 3}};
    snprintf(p->names[t], sizeof p->names[t], "tensor %d", t);
    q->work = works[below(6)];
    if (t < 3) { /* a group */
        q->work = KOLO_WORK_ALL_REDUCE;
        q->group = 77;
        q->group_size = 3;
    }
    if (t == TENSORS - 2) {
        snprintf(p->names[t], sizeof p->names[t], "%s", KOLO_ADD_SET_NAME);
        q->work = KOLO_WORK_ADD_SET;
        q->ndims = 3;
        memcpy(q->shape, (int64_t[]){1, 99, 0}, 3 * sizeof q->shape[0]);
    }
    if (t == TENSORS - 1) {
        snprintf(p->names[t], sizeof p->names[t], "%s", KOLO_REMOVE_SET_NAME);
        q->work = KOLO_WORK_REMOVE_SET;
        memcpy(q->shape, (int64_t[]){2, 0}, 2 * sizeof q->shape[0]);
    }
    kolo_name_init(&q->name, p->names[t], (uint32_t)strlen(p->names[t]));
}

static void mean_otherwise(kolo_tensor_request_t *q, int nranks)
{
    switch (below(9)) {
    case 0:
        q->type = below(2) ? KOLO_INT32 : KOLO_FLOAT16;
        break;
    case 1:
        q->work = (kolo_work_t)below(KOLO_WORK_JOIN);
        break;
    case 2:
        q->shape[1] = below(4);
        break;
    case 3:
        q->prescale = 0.5;
        break;
    case 4:
        q->op = (kolo_op_t)below(4);
        break;
    case 5:
        q->root = below(nranks);
        break;
    case 6:
        q->ndims = below(3);
        break;
    case 7:
        q->shape[0] = below(4);
        break;
    default:
        q->group = below(2) ? 0 : 78;
        q->group_size = q->group ? 2 : 0;
    }
}

static kolo_tensor_request_t make_request(const program_t *p, int t)
{
    kolo_tensor_request_t q = p->usual[t];
    bool plain = q.work < KOLO_WORK_JOIN;
    q.waited_ms = below(4) ? 0 : (uint32_t)below(1000);
    if (plain && kolo_tensor_request_rows(&q) > 0 && below(3)) q.shape[0] = below(7);
    if (plain && below(500) == 0 && q.work == KOLO_WORK_ALL_GATHER) q.shape[0] = INT64_C(1) << 43;
    if (plain && below(p->odds) == 0) mean_otherwise(&q, p->nranks);
    if (q.work == KOLO_WORK_REMOVE_SET && below(p->odds) == 0) q.shape[1] = 1 + below(3);
    if (q.work == KOLO_WORK_REMOVE_SET && below(p->odds) == 0) q.shape[0] = 3;
    if (q.work == KOLO_WORK_ADD_SET && below(p->odds) == 0) q.shape[2] = p->nranks - 1;
    return q;
}

static void fill_list(program_t *p, int rank, int eagerness)
{
    sim_list_t *list = &p->lists[rank];
    bool busy = false;
    list->requests = p->order[rank];
    list->count = 0;
    if (p->joined[rank]) return;
    for (int t = 0; t < TENSORS; t++) busy |= p->sent[rank][t];
    if (!busy && below(6) == 0) {
        kolo_tensor_request_t *join = &p->requests[rank][TENSORS];
        *join = (kolo_tensor_request_t){.work = KOLO_WORK_JOIN, .prescale = 1, .postscale = 1};
        kolo_name_init(&join->name, KOLO_JOIN_NAME, (uint32_t)strlen(KOLO_JOIN_NAME));
        list->requests[list->count++] = join;
        p->joined[rank] = true;
        return;
    }
    for (int t = 0; t < TENSORS; t++) {
        if (p->sent[rank][t] || below(10) >= eagerness) continue;
        p->requests[rank][t] = make_request(p, t);
        size_t at = (size_t)below((int)list->count + 1);
        list->requests[list->count++] = list->requests[at];
        list->requests[at] = &p->requests[rank][t];
        p->sent[rank][t] = true;
    }
}

/* ---- what comes of it ---- */

static int tensor_of(const program_t *p, const kolo_tensor_request_t *q)
{
    int t = 0;
    while (t < TENSORS && strcmp(q->name.text, p->names[t]) != 0) t++;
    return t;
}

static int take_answer(program_t *p, const kolo_bytes_t *answer)
{
    kolo_responses_t list;
    int njoined, n = 0;
    kolo_responses_init(&list);
    assert_int_equal(kolo_responses_decode(answer->bytes, answer->length, p->nranks, &list, &njoined), KOLO_OK);
    for (const kolo_response_t *r = list.first; r; r = r->next, n++) {
        int t = tensor_of(p, &r->request);
        for (int rank = 0; rank < p->nranks; rank++) {
            if (t < TENSORS) p->sent[rank][t] = false;
            if (r->request.work == KOLO_WORK_JOIN) p->joined[rank] = false;
        }
    }
    kolo_responses_free(&list);
    return n;
}

static void expect_same_patience(const program_t *p)
{
    assert_int_equal(p->flat.rows.count, p->tree.rows.count);
    assert_int_equal(p->flat.groups.count, p->tree.groups.count);
    for (size_t i = 0; i < p->flat.rows.nbuckets; i++) {
        for (const kolo_name_t *n = p->flat.rows.buckets[i]; n; n = n->next) {
            const kolo_row_t *a = (const kolo_row_t *)n, *b = (kolo_row_t *)kolo_names_find(&p->tree.rows, n);
            assert_non_null(b);
            assert_int_equal(a->sent.total, b->sent.total);
            for (int r = 0; r < p->nranks; r++)
                assert_int_equal(kolo_row_lacks(&p->flat, a, r), kolo_row_lacks(&p->tree, b, r));
        }
    }
}

static int run_program(uint64_t seed, int nranks, int fan_in, int cycles)
{
    program_t *p = calloc(1, sizeof *p);
    kolo_bytes_t flat = {NULL, 0, 0}, tree = {NULL, 0, 0};
    int answers = 0;
    assert_non_null(p);
    random_state = seed * 0x9e3779b97f4a7c15ull + 1;
    p->nranks = nranks;
    p->fan_in = fan_in;
    p->odds = below(3) ? 60 * nranks : 8;
    assert_int_equal(kolo_controller_init(&p->flat, nranks), KOLO_OK);
    assert_int_equal(kolo_controller_init(&p->tree, nranks), KOLO_OK);
    for (int t = 0; t < TENSORS; t++) make_tensor(p, t);
    for (int cycle = 0; cycle < cycles; cycle++) {
        int eagerness = cycle % 3 ? 10 : 1 + below(9);
        for (int r = 0; r < nranks; r++) fill_list(p, r, eagerness);
        assert_int_equal(sim_flat(&p->flat, p->lists, &flat, NULL), KOLO_OK);
        assert_int_equal(sim_tree(&p->tree, fan_in, p->lists, &tree, NULL), KOLO_OK);
        if (flat.length != tree.length || memcmp(flat.bytes, tree.bytes, flat.length) != 0)
            fail_msg("seed %llu, %d ranks, fan-in %d, cycle %d: other answers", (unsigned long long)seed, nranks,
                     fan_in, cycle);
        answers += take_answer(p, &flat);
        expect_same_patience(p);
    }
    kolo_controller_fini(&p->flat);
    kolo_controller_fini(&p->tree);
    free(flat.bytes);
    free(tree.bytes);
    free(p);
    return answers;
}

#ifdef KOLO_SANITIZED
enum { SEEDS = 60 };
#else
enum { SEEDS = 600 };
#endif

static void the_tree_answers_as_rank_0_alone_does(void **state)
{
    int answers = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        answers += run_program(seed, 2 + (int)(seed * 7 % 23), 2 + (int)(seed % 5), 12);
    assert_true(answers > SEEDS * 20); /* or nothing was compared */
    answers = run_program(1001, RANKS_MAX, 16, 9) + run_program(1002, RANKS_MAX, 2, 6);
    assert_true(answers > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_tree_answers_as_rank_0_alone_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
