/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast reductions are: bytes read and written per second by type, operator and instruction set, beside memcpy
 * of the same bytes (the copy bound). bench-reduce [bytes per operand] [operands]      defaults 262144 2
 */
#include "base/clock.h"
#include "exec/host/reduce_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_NS (20 * KOLO_NS_PER_MS)

static const char *const type_names[KOLO_TYPE_COUNT] = {"int8",   "uint8",   "int32",    "uint32",  "int64",
                                                        "uint64", "float16", "bfloat16", "float32", "float64",
                                                        "e4m3",   "e5m2",    "int16",    "uint16",  "bool"};
static const char *const op_names[KOLO_REDUCE_OPS] = {"sum", "prod", "min",  "max", "avg", "band",
                                                      "bor", "bxor", "land", "lor", "lxor"};

static int nsrcs = 2;
static size_t bytes = 262144;
static char *srcs[KOLO_REDUCE_MAX + 1]; /* the last one is dst */

static double gbps_of(uint64_t calls, uint64_t ns, int streams)
{
    return (double)calls * (double)bytes * streams / (double)ns;
}

/* Best of three rounds. */
static double measure(const kolo_reducer_t *r)
{
    double best = 0;
    const void *in[KOLO_REDUCE_MAX];
    for (int k = 0; k < nsrcs; k++) in[k] = srcs[k];
    kolo_reduce_many_t what = {.dst = srcs[nsrcs], .srcs = in, .nsrcs = nsrcs, .raw = -1};
    for (int round = 0; round < 3; round++) {
        uint64_t start = kolo_now_ns(), calls = 0, now;
        do {
            if (r)
                kolo_reduce_many(r, &what, bytes / r->elem);
            else
                memcpy(srcs[nsrcs], srcs[0], bytes);
            calls++;
        } while ((now = kolo_now_ns()) - start < ROUND_NS);
        double gbps = gbps_of(calls, now - start, r ? nsrcs + 1 : 2);
        if (gbps > best) best = gbps;
    }
    return best;
}

int main(int argc, char **argv)
{
    if (argc > 1) bytes = strtoul(argv[1], NULL, 0) & ~(size_t)63;
    if (argc > 2) nsrcs = atoi(argv[2]);
    if (!bytes || nsrcs < 2 || nsrcs > 64) {
        fprintf(stderr, "usage: %s [bytes per operand] [operands, 2 to 64]\n", argv[0]);
        return 2;
    }
    for (int k = 0; k <= nsrcs; k++) {
        srcs[k] = aligned_alloc(4096, KOLO_ROUND_UP(bytes, (size_t)4096));
        if (!srcs[k]) return 1;
        memset(srcs[k], k + 1, bytes);
    }
    printf("# %zu bytes per operand, %d operands; GB/s read and written; memcpy %.1f\n", bytes, nsrcs,
           measure(NULL));
    printf("%-9s %-5s", "type", "op");
    const kolo_reduce_table_t *table;
    for (int t = 0; (table = kolo_reduce_table(t)) != NULL; t++) printf(" %9s", table->name);
    printf("\n");
    for (int type = 0; type < KOLO_TYPE_COUNT; type++)
        for (int op = 0; op < KOLO_REDUCE_OPS; op++) {
            kolo_reducer_t r;
            if (!kolo_reduce_table(0)->fold[type][op]) continue;
            if (kolo_reducer_init(&r, (kolo_type_t)type, (kolo_op_t)op, 1) != KOLO_OK) return 1;
            printf("%-9s %-5s", type_names[type], op_names[op]);
            for (int t = 0; (table = kolo_reduce_table(t)) != NULL; t++) {
                kolo_reduce_use(table);
                printf(" %9.1f", measure(&r));
            }
            printf("\n");
            fflush(stdout);
        }
    for (int k = 0; k <= nsrcs; k++) free(srcs[k]);
    return 0;
}
