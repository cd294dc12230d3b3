/* SPDX-License-Identifier: Apache-2.0
 *
 * See agree_frame.h.
 */
#include "member/agree_frame.h"

#include "base/bytes.h"

#include <string.h>

size_t kolo_ballot_value_bytes(int nranks, size_t row_bytes)
{
    return KOLO_BALLOT_VALUE_BYTES + kolo_map_bytes(nranks) + (size_t)nranks * row_bytes;
}

size_t kolo_ballot_bytes(const kolo_ballot_t *b, int nranks)
{
    return KOLO_BALLOT_HEAD_BYTES + kolo_map_bytes(nranks) + (b->row != NULL ? b->row_bytes : 0) +
           (b->value != NULL ? kolo_ballot_value_bytes(nranks, b->row_bytes) : 0);
}

void kolo_ballot_encode(const kolo_ballot_t *b, int nranks, uint8_t *bytes)
{
    uint8_t *at = bytes + KOLO_BALLOT_HEAD_BYTES;
    kolo_put32(bytes, (uint32_t)b->type);
    kolo_put32(bytes + 4, (uint32_t)b->ballot);
    kolo_put64(bytes + 8, b->key);
    kolo_put32(bytes + 16, b->flags);
    kolo_put32(bytes + 20, b->row_bytes);
    kolo_put32(bytes + 24, (uint32_t)(b->accepted + 1));
    kolo_put32(bytes + 28, (uint32_t)b->about);
    memcpy(at, b->out, kolo_map_bytes(nranks));
    at += kolo_map_bytes(nranks);
    if (b->row != NULL) {
        memcpy(at, b->row, b->row_bytes);
        at += b->row_bytes;
    }
    if (b->value != NULL) memcpy(at, b->value, kolo_ballot_value_bytes(nranks, b->row_bytes));
}

static bool is_map(const uint8_t *map, int nranks)
{
    for (size_t r = (size_t)nranks; r < kolo_map_bytes(nranks) * 8; r++)
        if (kolo_map_has(map, (int)r)) return false;
    return true;
}

static const char *check_value(const uint8_t *value, int nranks)
{
    if (kolo_get32(value) > KOLO_ERR_REVOKED || kolo_get32(value) == KOLO_IN_PROGRESS)
        return "a value with an unknown status";
    if (kolo_get32(value + 4) >= (uint32_t)nranks) return "a value about a rank out of range";
    if (kolo_get32(value + 12) != 0) return "a value with unknown fields";
    if (!is_map(value + KOLO_BALLOT_VALUE_BYTES, nranks)) return "a value with ranks out of range";
    return NULL;
}

const char *kolo_ballot_decode(const uint8_t *bytes, size_t length, int nranks, kolo_ballot_t *out)
{
    size_t map = kolo_map_bytes(nranks);
    if (length < KOLO_BALLOT_HEAD_BYTES + map) return "a ballot that is cut short";
    uint32_t type = kolo_get32(bytes), ballot = kolo_get32(bytes + 4), row = kolo_get32(bytes + 20),
             accepted = kolo_get32(bytes + 24), about = kolo_get32(bytes + 28);
    if (type < KOLO_BALLOT_REPORT || type > KOLO_BALLOT_REFUSE) return "a ballot of an unknown type";
    if (ballot >= (uint32_t)nranks || accepted > (uint32_t)nranks || about >= (uint32_t)nranks)
        return "a ballot with a rank out of range";
    if (row > KOLO_BALLOT_ROW_MAX) return "a ballot with an oversized row";
    kolo_ballot_t b = {.type = (kolo_ballot_type_t)type,
                       .ballot = (int)ballot,
                       .key = kolo_get64(bytes + 8),
                       .flags = kolo_get32(bytes + 16),
                       .row_bytes = row,
                       .accepted = (int)accepted - 1,
                       .about = (int)about,
                       .out = bytes + KOLO_BALLOT_HEAD_BYTES};
    const uint8_t *at = b.out + map;
    bool has_value = type == KOLO_BALLOT_PROPOSE || type == KOLO_BALLOT_DECIDE;
    if (type == KOLO_BALLOT_REPORT) {
        b.row = at;
        at += row;
        has_value = accepted > 0;
    } else if (accepted > 0) {
        return "a ballot with an accepted value that is no report";
    }
    if (has_value) b.value = at;
    if (length != kolo_ballot_bytes(&b, nranks)) return "a ballot of the wrong length";
    if (!is_map(b.out, nranks)) return "a ballot with ranks out of range";
    if (type == KOLO_BALLOT_REFUSE && (b.flags <= KOLO_IN_PROGRESS || b.flags > KOLO_ERR_REVOKED))
        return "a refusal with an unknown status";
    const char *wrong = has_value ? check_value(b.value, nranks) : NULL;
    if (wrong == NULL) *out = b;
    return wrong;
}
