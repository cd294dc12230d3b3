/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines: where short messages are found without their completions. The reader has one for each request, which
 * nothing but such messages is written to. A message ends at the line's last word, which says how long it is, for
 * which request, and holds a sum of it all. So a message counts when it is there as a whole, in whatever order the
 * card has written it, and what an earlier one has left is never taken for it. The completion comes as well: it
 * wakes who sleeps, and is what a reader goes by that does not look here.
 */
#include "remote/verbs/verbs.h"

#include <endian.h>
#include <string.h>

#define WORDS       (KOLO_VERBS_LINE_MOST / 8)
#define NUMBER_MASK 0xffffffull

/* Packs 32 bits of sum, 24 of the request's number plus one, and 8 of size. */
static uint64_t sum_up(uint64_t request, const uint64_t *words, uint32_t n)
{
    uint64_t label = ((request + 1) & NUMBER_MASK) << 8 | n * 8, sum = (request + label) * 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < n; i++) {
        sum = (sum ^ le64toh(words[i])) * 0xff51afd7ed558ccdull;
        sum ^= sum >> 32;
    }
    return (sum & 0xffffffffull) << 32 | label;
}

uint64_t kolo_verbs_line_last(uint64_t request, const void *data, uint32_t bytes)
{
    uint64_t words[WORDS];
    memcpy(words, data, bytes);
    return htole64(sum_up(request, words, bytes / 8));
}

bool kolo_verbs_line_get(const kolo_verbs_line_t *lines, uint32_t depth, uint64_t request, void *data,
                         uint32_t most, uint32_t *bytes)
{
    const kolo_verbs_line_t *line = &lines[request & (depth - 1)];
    uint64_t last = le64toh(atomic_load_explicit(&line->last, memory_order_acquire)), words[WORDS];
    if ((last >> 8 & NUMBER_MASK) != ((request + 1) & NUMBER_MASK)) return false;
    uint32_t length = last & 0xff;
    if (!kolo_verbs_line_takes(length) || length > most) return false;
    for (uint32_t i = 0; i < length / 8; i++)
        words[i] = atomic_load_explicit(&line->words[WORDS - length / 8 + i], memory_order_relaxed);
    if (sum_up(request, words, length / 8) != last) return false;
    memcpy(data, words, length);
    *bytes = length;
    return true;
}
