/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the unique id's decoder, with and without a checksum that fits (or nothing behind it would be reached).
 */
#include "base/bytes.h"
#include "meet/id.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const kolo_unique_id_t *in)
{
    kolo_id_t id;
    kolo_unique_id_t again;
    if (kolo_id_decode(in, &id) != NULL) return;
    kolo_id_encode(&id, &again);
    if (memcmp(in, &again, sizeof(again)) != 0) abort();
    if (kolo_id_check(in) != KOLO_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_unique_id_t id;
    memset(&id, 0, sizeof(id));
    memcpy(id.bytes, data, KOLO_MIN(size, sizeof(id.bytes)));
    decode(&id);
    memcpy(id.bytes, "kolo-id\n", 8);
    kolo_put64((uint8_t *)id.bytes + 120, kolo_hash_bytes(KOLO_HASH_INIT, id.bytes, 120));
    decode(&id);
    return 0;
}
