/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoders and decoders of checkin.h. A decoder accepts exactly what an encoder can have written.
 */
#include "meet/checkin.h"

#include "base/bytes.h"
#include "base/text/plain.h"

#include <string.h>

#define CHECKIN_MAGIC   0x31636b6bu /* "kkc1" */
#define CHECKIN_VERSION 4u
#define REPLY_MAGIC     0x31726b6bu /* "kkr1" */

static bool all_zero(const uint8_t *bytes, size_t length)
{
    uint8_t any = 0;
    for (size_t i = 0; i < length; i++) any |= bytes[i];
    return any == 0;
}

void kolo_meet_checkin_encode(const kolo_checkin_t *checkin, uint8_t bytes[KOLO_CHECKIN_BYTES])
{
    memset(bytes, 0, KOLO_CHECKIN_BYTES);
    kolo_put32(bytes, CHECKIN_MAGIC);
    kolo_put16(bytes + 4, CHECKIN_VERSION);
    kolo_put16(bytes + 6, checkin->neighbour ? 1 : 0);
    kolo_put32(bytes + 8, (uint32_t)checkin->rank);
    kolo_put32(bytes + 12, (uint32_t)checkin->nranks);
    kolo_put32(bytes + 16, (uint32_t)checkin->nids);
    kolo_put32(bytes + 20, (uint32_t)checkin->id_index);
    kolo_put32(bytes + 24, (uint32_t)checkin->timeout_ms);
    memcpy(bytes + 32, checkin->peer.bytes, 32);
    memcpy(bytes + 64, checkin->root_only.bytes, 32);
}

const char *kolo_meet_checkin_decode(const uint8_t *bytes, size_t length, kolo_checkin_t *checkin)
{
    if (length != KOLO_CHECKIN_BYTES) return "a check-in of the wrong length";
    if (kolo_get32(bytes) != CHECKIN_MAGIC) return "not a check-in";
    if (kolo_get16(bytes + 4) != CHECKIN_VERSION) return "a check-in of another version";
    if (kolo_get16(bytes + 6) > 1 || !all_zero(bytes + 28, 4) || !all_zero(bytes + 96, 32))
        return "a check-in with unknown flags";
    kolo_checkin_t c = {.neighbour = kolo_get16(bytes + 6) != 0};
    c.rank = (int)kolo_get32(bytes + 8);
    c.nranks = (int)kolo_get32(bytes + 12);
    c.nids = (int)kolo_get32(bytes + 16);
    c.id_index = (int)kolo_get32(bytes + 20);
    c.timeout_ms = (int)kolo_get32(bytes + 24);
    memcpy(c.peer.bytes, bytes + 32, 32);
    memcpy(c.root_only.bytes, bytes + 64, 32);
    if (c.nranks < 1 || c.nranks > KOLO_NRANKS_MAX) return "a rank count out of range";
    if (c.rank < 0 || c.rank >= c.nranks) return "a rank out of range";
    if (c.nids < 1 || c.nids > c.nranks) return "an id count out of range";
    if (c.id_index < 0 || c.id_index >= c.nids) return "an id index out of range";
    if (c.timeout_ms < 0) return "a negative time-out";
    if (kolo_address_check(&c.peer) != NULL || kolo_address_check(&c.root_only) != NULL)
        return "an address that is none";
    *checkin = c;
    return NULL;
}

void kolo_meet_reply_encode(const kolo_reply_t *reply, uint8_t bytes[KOLO_REPLY_BYTES])
{
    size_t length = strnlen(reply->text, KOLO_REPLY_TEXT_BYTES);
    memset(bytes, 0, KOLO_REPLY_BYTES);
    kolo_put32(bytes, REPLY_MAGIC);
    kolo_put32(bytes + 4, (uint32_t)reply->status);
    kolo_put32(bytes + 8, (uint32_t)reply->next_rank);
    kolo_put32(bytes + 12, (uint32_t)length);
    memcpy(bytes + 32, reply->next.bytes, 32);
    memcpy(bytes + 64, reply->text, length);
}

const char *kolo_meet_reply_decode(const uint8_t *bytes, size_t length, kolo_reply_t *reply)
{
    if (length != KOLO_REPLY_BYTES) return "a reply of the wrong length";
    if (kolo_get32(bytes) != REPLY_MAGIC) return "not a reply";
    if (!all_zero(bytes + 16, 16)) return "a reply with unknown fields";
    uint32_t status = kolo_get32(bytes + 4), text_bytes = kolo_get32(bytes + 12);
    if (status > KOLO_ERR_REVOKED) return "a reply with an unknown status";
    if (text_bytes > KOLO_REPLY_TEXT_BYTES) return "a reply with an oversized text";
    memset(reply, 0, sizeof(*reply));
    reply->status = (kolo_status_t)status;
    reply->next_rank = (int)kolo_get32(bytes + 8);
    memcpy(reply->next.bytes, bytes + 32, 32);
    kolo_plain_copy(reply->text, sizeof(reply->text), bytes + 64, text_bytes);
    if (status == KOLO_OK) {
        if (reply->next_rank < 0 || reply->next_rank >= KOLO_NRANKS_MAX) return "a reply with a rank out of range";
        if (kolo_address_check(&reply->next) != NULL) return "a reply with an address that is none";
    }
    return NULL;
}

void kolo_root_share(int nranks, int nids, int index, int *first, int *count)
{
    int base = nranks / nids, extra = nranks % nids;
    *first = index * base + (index < extra ? index : extra);
    *count = base + (index < extra ? 1 : 0);
}

int kolo_root_of_rank(int nranks, int nids, int rank)
{
    int base = nranks / nids, extra = nranks % nids;
    int in_large = extra * (base + 1);
    return rank < in_large ? rank / (base + 1) : extra + (rank - in_large) / base;
}
