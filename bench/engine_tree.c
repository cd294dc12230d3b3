/* SPDX-License-Identifier: Apache-2.0
 *
 * The first step of a large job, in which nothing is cached: what it costs rank 0 to hear of every tensor from
 * every rank, flat and by the tree of requests, and what the tree costs the busiest other rank. The ranks are
 * simulated in one process by the engine's own messages, merge and coordinator (tests/engine/kit/simulated.h); only
 * the network is missing. Every rank sends its tensors in an order of its own.
 *
 *     bench-engine-tree [RANKS [TENSORS [FAN-IN]]]
 *
 * In the first row of each pair all is well; in the second one rank means a tensor otherwise, one rank lacks a
 * tensor, and a tenth of the tensors are gathered, with another number of rows on each rank. Both ways must give
 * the same answer. The last line is for machines.
 */
#include "engine/kit/simulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int nranks, ntensors, fan_in;
    kolo_tensor_request_t *usual, odd, *gathered;
    char (*names)[24];
    const kolo_tensor_request_t **order;
    sim_list_t *lists;
} step_t;

static void must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "bench-engine-tree: %s: %s\n", what, kolo_error_text());
    exit(1);
}

static void *room(size_t count, size_t bytes)
{
    void *p = calloc(count, bytes);
    must(p != NULL, "out of memory");
    return p;
}

/* ---- what ranks send ---- */

static kolo_tensor_request_t make_request(const char *name)
{
    kolo_tensor_request_t q = {
        .type = KOLO_FLOAT32, .prescale = 1, .postscale = 1, .ndims = 2, .shape = {512, 1024}};
    kolo_name_init(&q.name, name, (uint32_t)strlen(name));
    return q;
}

static void make_step(step_t *s, int nranks, int ntensors, int fan_in)
{
    *s = (step_t){.nranks = nranks, .ntensors = ntensors, .fan_in = fan_in};
    s->usual = room((size_t)ntensors, sizeof *s->usual);
    s->names = room((size_t)ntensors, sizeof *s->names);
    s->gathered = room((size_t)nranks * (size_t)KOLO_DIV_UP(ntensors, 10), sizeof *s->gathered);
    s->order = room((size_t)nranks * (size_t)ntensors, sizeof(kolo_tensor_request_t *));
    s->lists = room((size_t)nranks, sizeof *s->lists);
    for (int t = 0; t < ntensors; t++) {
        snprintf(s->names[t], sizeof s->names[t], "layer%d.weight", t);
        s->usual[t] = make_request(s->names[t]);
    }
    s->odd = s->usual[1];
    s->odd.type = KOLO_FLOAT16;
}

static void free_step(step_t *s)
{
    free(s->usual);
    free(s->names);
    free(s->gathered);
    free(s->order);
    free(s->lists);
}

static const kolo_tensor_request_t *pick(step_t *s, int rank, int t)
{
    if (t == 1 && rank == s->nranks / 3) return &s->odd;
    if (t % 10 != 0) return &s->usual[t];
    kolo_tensor_request_t *g = &s->gathered[(size_t)rank * (size_t)KOLO_DIV_UP(s->ntensors, 10) + (size_t)t / 10];
    *g = s->usual[t];
    g->work = KOLO_WORK_ALL_GATHER;
    g->shape[0] = 1 + (rank * 7 + t) % 500;
    return g;
}

static void shuffle(step_t *s, bool plain)
{
    uint64_t seed = 7;
    for (int r = 0; r < s->nranks; r++) {
        sim_list_t *list = &s->lists[r];
        *list = (sim_list_t){s->order + (size_t)r * (size_t)s->ntensors, 0};
        for (int t = 0; t < s->ntensors; t++) {
            if (!plain && t == 2 && r == s->nranks / 2) continue;
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            size_t at = (size_t)(seed >> 33) % (list->count + 1);
            list->requests[list->count++] = list->requests[at];
            list->requests[at] = plain ? &s->usual[t] : pick(s, r, t);
        }
    }
}

/* ---- the table ---- */

static void print_row(const step_t *s, const char *way, bool plain, const sim_cost_t *cost)
{
    printf("%6d  %-5s %-6s %8llu %9llu %11.1f %10.2f   %6llu %9.1f %8.2f %6d\n", s->nranks, way,
           plain ? "equal" : "mixed", (unsigned long long)cost->first.messages,
           (unsigned long long)cost->first.records, (double)cost->first.bytes / 1e3,
           (double)cost->first.cpu_ns / 1e6, (unsigned long long)cost->busiest.messages,
           (double)cost->busiest.bytes / 1e3, (double)cost->busiest.cpu_ns / 1e6, cost->depth);
}

static void measure(step_t *s, bool plain, sim_cost_t *flat, sim_cost_t *tree)
{
    kolo_controller_t one, other;
    kolo_bytes_t a = {NULL, 0, 0}, b = {NULL, 0, 0};
    shuffle(s, plain);
    must(kolo_controller_init(&one, s->nranks) == KOLO_OK, "flat");
    must(kolo_controller_init(&other, s->nranks) == KOLO_OK, "tree");
    must(sim_flat(&one, s->lists, &a, flat) == KOLO_OK, "flat");
    must(sim_tree(&other, s->fan_in, s->lists, &b, tree) == KOLO_OK, "tree");
    must(a.length == b.length && memcmp(a.bytes, b.bytes, a.length) == 0, "the answers are not the same");
    must(one.rows.count == (plain ? 0 : 1) && other.rows.count == one.rows.count, "something is missing");
    print_row(s, "flat", plain, flat);
    print_row(s, "tree", plain, tree);
    kolo_controller_fini(&one);
    kolo_controller_fini(&other);
    free(a.bytes);
    free(b.bytes);
}

static int number(int argc, char **argv, int at, int usual, int least)
{
    if (at >= argc) return usual;
    int n = atoi(argv[at]);
    if (n >= least) return n;
    fprintf(stderr, "usage: bench-engine-tree [RANKS [TENSORS [FAN-IN]]], at least 10, 3 and 2\n");
    exit(1);
}

int main(int argc, char **argv)
{
    int most = number(argc, argv, 1, 10000, 10), ntensors = number(argc, argv, 2, 100, 3);
    int fan_in = number(argc, argv, 3, 16, 2);
    sim_cost_t flat = {0}, tree = {0}, mixed;
    printf("%d tensors that nobody knows yet, fan-in %d; KB and ms of CPU time\n\n", ntensors, fan_in);
    printf("                       rank 0                                        busiest other rank\n");
    printf(" ranks  way   step   messages   records          KB     CPU ms   messages       KB   CPU ms  depth\n");
    for (int n = most; n >= 10; n /= 10) {
        step_t s;
        sim_cost_t ignored;
        make_step(&s, n, ntensors, fan_in);
        measure(&s, true, n == most ? &flat : &ignored, n == most ? &tree : &mixed);
        measure(&s, false, &ignored, &mixed);
        free_step(&s);
    }
    printf("\nengine-tree ranks=%d flat_records=%llu tree_records=%llu flat_kb=%.0f tree_kb=%.0f flat_cpu_ms=%.2f "
           "tree_cpu_ms=%.2f inner_cpu_ms=%.2f\n",
           most, (unsigned long long)flat.first.records, (unsigned long long)tree.first.records,
           (double)flat.first.bytes / 1e3, (double)tree.first.bytes / 1e3, (double)flat.first.cpu_ns / 1e6,
           (double)tree.first.cpu_ns / 1e6, (double)tree.busiest.cpu_ns / 1e6);
    return 0;
}
