/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue of the host, one end of which a kernel advances (queue_end.cu): every slot comes back once, in order and
 * whole, through queues that are much shorter than the stream and whose numbers wrap around. No test framework:
 * machines with GPUs have none. Status 77: there is no GPU.
 */
#include "base/clock.h"
#include "tests/seams/queue_end.h"
#include "wire/queue.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 3000, WORDS = 128, LIMIT_MS = 60000, SKIPPED = 77 };
#define START (UINT64_MAX - 999) /* so that numbers wrap */

static const kolo_conn_spec_t to_kernel = {.kind = KOLO_CONN_PAIR,
                                           .proto = KOLO_PROTO_SIMPLE,
                                           .writer = 0,
                                           .reader = 1,
                                           .depth = 8,
                                           .slot_bytes = WORDS * sizeof(uint64_t),
                                           .start = START},
                              from_kernel = {.kind = KOLO_CONN_PAIR,
                                             .proto = KOLO_PROTO_SIMPLE,
                                             .writer = 1,
                                             .reader = 0,
                                             .depth = 4,
                                             .slot_bytes = WORDS * sizeof(uint64_t),
                                             .start = START};

static size_t words_of(uint64_t slot)
{
    return (slot * 7) % (WORDS + 1);
}

static void put(kolo_tx_t *tx, uint64_t slot)
{
    uint64_t *data = kolo_tx_payload(tx);
    for (size_t k = 0; k < words_of(slot); k++) data[k] = slot << 20 | k;
    kolo_tx_post(tx, (uint32_t)(words_of(slot) * sizeof *data), 0, slot ^ 5, slot);
}

static bool take(kolo_rx_t *rx, uint64_t slot)
{
    const kolo_slot_header_t *h = kolo_rx_header(rx);
    const uint64_t *data = kolo_rx_payload(rx);
    bool good = h->bytes == words_of(slot) * sizeof *data && h->signature == (slot ^ 5) && h->operation == slot;
    for (size_t k = 0; good && k < words_of(slot); k++) good = data[k] == (slot << 20 | k) + 1;
    if (!good) fprintf(stderr, "queue_end: slot %llu is wrong\n", (unsigned long long)slot);
    kolo_rx_release(rx);
    return good;
}

static bool stream(kolo_tx_t *tx, kolo_rx_t *rx)
{
    uint64_t put_so_far = 0, taken = 0, end = kolo_deadline_ms(LIMIT_MS);
    while (taken < SLOTS && kolo_now_ns() < end) {
        bool moved = false;
        if (put_so_far < SLOTS && kolo_tx_ready(tx)) {
            put(tx, put_so_far++);
            moved = true;
        }
        if (kolo_rx_ready(rx)) {
            if (!take(rx, taken++)) return false;
            moved = true;
        }
        if (!moved) sched_yield();
    }
    if (taken < SLOTS) fprintf(stderr, "queue_end: %llu of %d slots came\n", (unsigned long long)taken, (int)SLOTS);
    return taken == SLOTS;
}

int main(void)
{
    size_t there = KOLO_ROUND_UP(kolo_queue_bytes(&to_kernel, 1), 4096),
           back = KOLO_ROUND_UP(kolo_queue_bytes(&from_kernel, 1), 4096), bytes = there + back + 4096;
    char *memory = aligned_alloc(4096, bytes);
    if (!memory) return 1;
    memset(memory, 0, bytes);
    kolo_queue_format(memory, &to_kernel, 1, 1);
    kolo_queue_format(memory + there, &from_kernel, 1, 1);
    kolo_bell_t silent = {.asleep = NULL, .event_fd = -1};
    kolo_tx_t tx = kolo_queue_tx(&to_kernel, 1, NULL), kernel_tx = kolo_queue_tx(&from_kernel, 1, NULL);
    kolo_rx_t rx = kolo_queue_rx(&from_kernel, NULL), kernel_rx = kolo_queue_rx(&to_kernel, NULL);
    tx.bells = &silent;
    kolo_queue_bind_tx(memory, &tx);
    kolo_queue_bind_rx(memory, &kernel_rx, 1, 0);
    kolo_queue_bind_tx(memory + there, &kernel_tx);
    kolo_queue_bind_rx(memory + there, &rx, 1, 0);
    echo_t *echo = (echo_t *)(void *)(memory + there + back);
    *echo = (echo_t){.rx = kernel_rx.end, .tx = kernel_tx.end, .slots = SLOTS};
    const char *why = echo_start(memory, bytes, echo);
    if (why) {
        fprintf(stderr, "queue_end: %s\n", why);
        return SKIPPED;
    }
    uint64_t began = kolo_now_ns();
    bool good = stream(&tx, &rx);
    double us = (double)(kolo_now_ns() - began) / 1e3 / SLOTS;
    kolo_end_store(&echo->stop, 1);
    why = echo_join();
    if (why) fprintf(stderr, "queue_end: %s\n", why);
    if (good && !kolo_tx_released(&tx)) {
        fprintf(stderr, "queue_end: the kernel has not given all slots back\n");
        good = false;
    }
    if (good && !why) printf("queue_end: %d slots passed through a kernel, %.2f us each\n", (int)SLOTS, us);
    free(memory);
    return good && !why ? 0 : 1;
}
