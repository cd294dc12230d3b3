/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that all ranks must share after topology search: gathered, and reduced by each rank in the same way. The
 * keys travel as one hash, so that ranks which would compare different things notice.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "member/member.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_keys(const kolo_agree_row_t *rows, size_t count)
{
    uint64_t hash = KOLO_HASH_INIT;
    for (size_t i = 0; i < count; i++) {
        uint8_t kind = (uint8_t)rows[i].kind;
        hash = kolo_hash_bytes(hash, rows[i].key, strlen(rows[i].key) + 1);
        hash = kolo_hash_bytes(hash, &kind, 1);
    }
    return hash;
}

static kolo_status_t adopt_row(const kolo_agree_row_t *row, const uint64_t *column, size_t stride, int nranks,
                               uint64_t *common)
{
    uint64_t value = column[0];
    for (int r = 1; r < nranks; r++) {
        uint64_t other = column[(size_t)r * stride];
        if (row->kind == KOLO_AGREE_EQUAL && other != value)
            return kolo_fail(KOLO_ERR_MISMATCH,
                             "rank %d has %s = %llu (%#llx), rank 0 has %llu (%#llx): all ranks "
                             "need the same",
                             r, row->key, (unsigned long long)other, (unsigned long long)other,
                             (unsigned long long)value, (unsigned long long)value);
        if (row->kind == KOLO_AGREE_MIN) value = KOLO_MIN(value, other);
        if (row->kind == KOLO_AGREE_MAX) value = KOLO_MAX(value, other);
    }
    *common = value;
    return KOLO_OK;
}

static kolo_status_t adopt_all(const kolo_agree_row_t *rows, size_t count, const uint64_t *table, int nranks)
{
    size_t stride = count + 1;
    uint64_t common;
    for (int r = 1; r < nranks; r++)
        if (table[(size_t)r * stride] != table[0])
            return kolo_fail(KOLO_ERR_MISMATCH,
                             "rank %d and rank 0 compare different lists of values: their builds or "
                             "call orders differ",
                             r);
    for (size_t i = 0; i < count; i++) /* all are checked before one is adopted */
        KOLO_TRY(adopt_row(&rows[i], table + 1 + i, stride, nranks, &common));
    for (size_t i = 0; i < count; i++) KOLO_TRY(adopt_row(&rows[i], table + 1 + i, stride, nranks, rows[i].value));
    return KOLO_OK;
}

kolo_status_t kolo_member_agree(kolo_oob_t *oob, const kolo_agree_row_t *rows, size_t count)
{
    if (oob == NULL || rows == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "oob or rows is NULL");
    int nranks = kolo_oob_nranks(oob);
    size_t stride = count + 1;
    KOLO_FAIL_POINT_TRY("member.agree");
    uint64_t *table = malloc((size_t)nranks * stride * sizeof(*table));
    if (table == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to agree on %zu values", count);
    uint64_t *mine = table + (size_t)kolo_oob_rank(oob) * stride;
    mine[0] = hash_keys(rows, count);
    for (size_t i = 0; i < count; i++) mine[1 + i] = *rows[i].value;
    kolo_status_t status = kolo_oob_all_gather(oob, table, stride * sizeof(*table));
    if (status == KOLO_OK) status = adopt_all(rows, count, table, nranks);
    free(table);
    return status;
}
