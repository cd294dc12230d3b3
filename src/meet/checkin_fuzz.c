/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the decoders of check-ins, replies and addresses. What is accepted must come out of the encoder as it
 * went in.
 */
#include "meet/checkin.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

static void checkin(const uint8_t *data, size_t size)
{
    kolo_checkin_t c;
    uint8_t again[KOLO_CHECKIN_BYTES];
    if (kolo_meet_checkin_decode(data, size, &c) != NULL) return;
    require(c.rank >= 0 && c.rank < c.nranks && c.nranks <= KOLO_NRANKS_MAX && c.nids <= c.nranks);
    kolo_meet_checkin_encode(&c, again);
    require(memcmp(data, again, sizeof(again)) == 0);
    int first, count;
    kolo_root_share(c.nranks, c.nids, c.id_index, &first, &count);
    require(first >= 0 && count >= 1 && first + count <= c.nranks);
    require(kolo_root_of_rank(c.nranks, c.nids, first) == c.id_index);
    require(kolo_root_of_rank(c.nranks, c.nids, first + count - 1) == c.id_index);
}

static void reply(const uint8_t *data, size_t size)
{
    kolo_reply_t r;
    if (kolo_meet_reply_decode(data, size, &r) != NULL) return;
    require(memchr(r.text, '\0', sizeof(r.text)) != NULL);
    for (const char *c = r.text; *c != '\0'; c++) require((unsigned char)*c >= 32 && *c != 127);
    require(r.status != KOLO_OK || kolo_address_check(&r.next) == NULL);
}

static void address(const uint8_t *data, size_t size)
{
    kolo_address_t a, again;
    struct sockaddr_storage sa;
    char text[KOLO_ADDRESS_TEXT_BYTES];
    if (size < sizeof(a)) return;
    memcpy(&a, data, sizeof(a));
    if (kolo_address_check(&a) != NULL) return;
    kolo_address_to_sockaddr(&a, &sa);
    kolo_address_from_sockaddr(&again, (const struct sockaddr *)&sa);
    require(memcmp(a.bytes + 2, again.bytes + 2, 22) == 0);
    require(strlen(kolo_address_print(&a, text)) < sizeof(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    checkin(data, size);
    reply(data, size);
    address(data, size);
    return 0;
}
