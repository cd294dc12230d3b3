/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the reader of flight records. The input overwrites a sound dump of two records here and there, so that
 * it comes past the checks; first it is also read as it is. What is handed out is in range and printable.
 */
#include "base/recorder.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SLOTS 2
static kolo_record_op_t ops[KOLO_RECORD_ENTRIES];

static void require(bool condition)
{
    if (!condition) abort();
}

static void require_text(const char *text, size_t bytes)
{
    require(memchr(text, '\0', bytes) != NULL);
    for (const char *c = text; *c; c++) require((unsigned char)*c >= 32 && *c != 127);
}

static void read_all(const void *bytes, size_t size)
{
    kolo_recorder_info_t info;
    kolo_record_view_t view;
    if (kolo_recorder_check(bytes, size, &info) != NULL) return;
    require_text(info.host, sizeof info.host);
    for (uint32_t slot = 0; slot < info.slots + 1; slot++) {
        if (kolo_recorder_view(bytes, &info, slot, &view)) {
            require(view.rank >= 0 && view.rank < view.nranks && view.npeers <= KOLO_RECORD_PEERS);
            require_text(view.name, sizeof view.name);
            require_text(view.host, sizeof view.host);
            require_text(view.error, sizeof view.error);
        }
        size_t n = kolo_recorder_ops(bytes, &info, slot, ops, KOLO_RECORD_ENTRIES);
        require(n <= KOLO_RECORD_ENTRIES);
        for (size_t i = 0; i < n; i++) {
            require(ops[i].kind < KOLO_RECORD_KINDS && ops[i].state > KOLO_RECORD_NONE &&
                    ops[i].state <= KOLO_RECORD_FAILED && ops[i].status <= KOLO_ERR_REVOKED);
            require(i == 0 || ops[i].index > ops[i - 1].index);
        }
    }
}

/* Pieces of the input (two bytes of place, one of length, the bytes) go over a sound dump. */
static void damage(uint8_t *bytes, size_t size, const uint8_t *data, size_t n)
{
    while (n > 3) {
        size_t where = (size_t)(data[0] | data[1] << 8), length = data[2] % 64;
        if (where >= 4 * KOLO_RECORD_HEAD) where = where * 8 % size;
        data += 3;
        n -= 3;
        if (length > n) length = n;
        if (where + length <= size) memcpy(bytes + where, data, length);
        data += length;
        n -= length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t bytes = kolo_recorder_bytes(SLOTS);
    kolo_recorder_t *all = calloc(1, bytes > size ? bytes : size);
    if (!all) return 0;
    if (size) memcpy(all, data, size);
    read_all(all, size);
    memset(all, 0, bytes);
    all->info = (kolo_recorder_info_t){.magic = KOLO_RECORDER_MAGIC,
                                       .version = KOLO_RECORDER_VERSION,
                                       .slots = SLOTS,
                                       .slot_bytes = sizeof(kolo_record_t),
                                       .entry_bytes = sizeof(kolo_record_entry_t)};
    for (int slot = 0; slot < SLOTS; slot++) {
        all->records[slot].head.nranks = 2;
        all->records[slot].head.rank = slot;
        all->records[slot].head.live = 1;
        all->records[slot].head.seq = 2;
        for (uint64_t i = 0; i < 4; i++) {
            kolo_record_entry_t *e = kolo_record_entry_begin(&all->records[slot], i);
            atomic_store(&e->state, KOLO_RECORD_DONE);
            kolo_record_entry_end(e, i);
        }
    }
    damage((uint8_t *)all, bytes, data, size);
    read_all(all, bytes);
    free(all);
    return 0;
}
