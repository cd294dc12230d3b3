/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of a queue in shared memory. See queue.h.
 */
#include "wire/queue.h"

#include "wire/ll.h"

kolo_status_t kolo_conn_check_spec(const kolo_conn_spec_t *spec)
{
    const char *wrong = NULL;
    if (spec->kind != KOLO_CONN_PAIR && spec->kind != KOLO_CONN_NODE)
        wrong = "kind";
    else if (spec->proto != KOLO_PROTO_SIMPLE && spec->proto != KOLO_PROTO_LL)
        wrong = "protocol";
    else if (spec->depth == 0 || (spec->depth & (spec->depth - 1)) || spec->depth > KOLO_QUEUE_MAX_DEPTH)
        wrong = "depth (a power of two)";
    else if (spec->slot_bytes == 0 || spec->slot_bytes % 64 || spec->slot_bytes > KOLO_QUEUE_MAX_SLOT)
        wrong = "slot size (a multiple of 64)";
    else if (kolo_queue_stride(spec) * (uint64_t)spec->depth > KOLO_QUEUE_MAX_BYTES)
        wrong = "depth times slot size";
    else if (spec->writer < 0 ||
             (spec->kind == KOLO_CONN_PAIR && (spec->reader < 0 || spec->reader == spec->writer)))
        wrong = "pair of ranks";
    if (!wrong) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "connection from rank %d to rank %d, lane %u: its %s is out of range "
                     "(kind %d, protocol %d, depth %u, slots of %u bytes)",
                     spec->writer, spec->reader, spec->lane, wrong, (int)spec->kind, (int)spec->proto, spec->depth,
                     spec->slot_bytes);
}

static size_t slots_offset(uint32_t nreaders)
{
    return sizeof(kolo_queue_header_t) + nreaders * sizeof(kolo_head_line_t);
}

size_t kolo_queue_bytes(const kolo_conn_spec_t *spec, uint32_t nreaders)
{
    return slots_offset(nreaders) + spec->depth * kolo_queue_stride(spec);
}

void kolo_queue_prepare(const kolo_conn_spec_t *spec, char *slots)
{
    /* The slot whose number + 1 wraps to 0 in the first lap would look full while it is fresh. */
    uint64_t last = UINT64_MAX;
    if (last - spec->start < spec->depth) {
        char *slot = slots + (last & (spec->depth - 1)) * kolo_queue_stride(spec);
        kolo_slot_header_t *header = (kolo_slot_header_t *)(void *)slot;
        atomic_store_explicit(&header->seq, last + 1 - spec->depth, memory_order_relaxed);
    }
    /* The same for lines, whose numbers have 32 bits and which are first swept KOLO_LL_SWEEP messages from now. */
    if (spec->proto != KOLO_PROTO_LL) return;
    uint64_t until_wrap = (1ull << 32) - (uint32_t)spec->start;
    if (until_wrap > KOLO_LL_SWEEP + spec->depth + 1) return;
    for (uint32_t i = 0; i < spec->depth; i++)
        kolo_ll_sweep(slots + i * kolo_queue_stride(spec) + sizeof(kolo_slot_header_t), spec->slot_bytes,
                      spec->start);
}

void kolo_queue_format(void *memory, const kolo_conn_spec_t *spec, uint32_t nreaders, uint64_t job)
{
    kolo_queue_header_t *header = (kolo_queue_header_t *)memory;
    kolo_head_line_t *heads = (kolo_head_line_t *)(header + 1);
    header->magic = KOLO_QUEUE_MAGIC;
    header->version = KOLO_QUEUE_VERSION;
    header->job = job;
    header->bytes = kolo_queue_bytes(spec, nreaders);
    header->start = spec->start;
    header->kind = (uint32_t)spec->kind;
    header->proto = (uint32_t)spec->proto;
    header->writer = spec->writer;
    header->reader = spec->reader;
    header->lane = spec->lane;
    header->depth = spec->depth;
    header->slot_bytes = spec->slot_bytes;
    header->nreaders = nreaders;
    for (uint32_t i = 0; i < nreaders; i++)
        atomic_store_explicit(&heads[i].consumed, spec->start, memory_order_relaxed);
    kolo_queue_prepare(spec, (char *)memory + slots_offset(nreaders));
}

kolo_status_t kolo_queue_check(const void *memory, const kolo_conn_spec_t *spec, uint32_t nreaders, uint64_t job)
{
    const kolo_queue_header_t *header = (const kolo_queue_header_t *)memory;
    const struct {
        const char *name;
        uint64_t found, expected;
    } fields[] = {
        {"magic", header->magic, KOLO_QUEUE_MAGIC},
        {"version", header->version, KOLO_QUEUE_VERSION},
        {"job", header->job, job},
        {"kind", header->kind, (uint64_t)spec->kind},
        {"protocol", header->proto, (uint64_t)spec->proto},
        {"writer", (uint32_t)header->writer, (uint32_t)spec->writer},
        {"reader", (uint32_t)header->reader, (uint32_t)spec->reader},
        {"lane", header->lane, spec->lane},
        {"depth", header->depth, spec->depth},
        {"slot size", header->slot_bytes, spec->slot_bytes},
        {"number of readers", header->nreaders, nreaders},
        {"start", header->start, spec->start},
        {"bytes", header->bytes, kolo_queue_bytes(spec, nreaders)},
    };
    for (size_t i = 0; i < KOLO_COUNTOF(fields); i++)
        if (fields[i].found != fields[i].expected)
            return kolo_fail(KOLO_ERR_PROTOCOL,
                             "queue from rank %d to rank %d, lane %u: its header says %s %llu, expected %llu",
                             spec->writer, spec->reader, spec->lane, fields[i].name,
                             (unsigned long long)fields[i].found, (unsigned long long)fields[i].expected);
    return KOLO_OK;
}

void kolo_queue_bind_tx(void *memory, kolo_tx_t *tx)
{
    tx->end.heads = (const kolo_head_line_t *)((kolo_queue_header_t *)memory + 1);
    tx->end.slots = (char *)memory + slots_offset(tx->end.nreaders);
}

void kolo_queue_bind_rx(void *memory, kolo_rx_t *rx, uint32_t nreaders, uint32_t index)
{
    rx->end.head = (kolo_head_line_t *)((kolo_queue_header_t *)memory + 1) + index;
    rx->end.slots = (char *)memory + slots_offset(nreaders);
}
