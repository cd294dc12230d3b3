/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever a peer sends as hello is refused or is one that could be dialled; parts of messages stay within them.
 */
#include "remote/sockets/sockets.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool condition)
{
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_net_hello_t in = {{0}}, again;
    kolo_sockets_hello_t hello;
    memcpy(in.bytes, data, size < sizeof in.bytes ? size : sizeof in.bytes);
    for (int reads = 0; reads < 2; reads++) {
        if (kolo_sockets_hello_decode(&in, reads, &hello) != KOLO_OK) continue;
        need(hello.sockets >= 1 && hello.sockets <= KOLO_SOCKETS_MAX && strnlen(hello.device, 16) < 16);
        need(!reads || kolo_address_check(&hello.address) == NULL);
        kolo_sockets_hello_encode(&hello, reads, &again);
        need(kolo_sockets_hello_decode(&again, reads, &hello) == KOLO_OK);
    }
    if (size < KOLO_SOCKETS_RECORD) return 0;
    uint32_t total = kolo_sockets_part_decode(data).total % (1u << 30), sockets = 1 + data[0] % KOLO_SOCKETS_MAX,
             at = 0;
    uint32_t parts = kolo_sockets_parts(total, sockets);
    need(parts >= 1 && parts <= sockets);
    for (uint32_t i = 0; i < parts; i++) { /* in a row, and all of it */
        need(kolo_sockets_part_at(total, parts, i) == at);
        uint32_t end = kolo_sockets_part_at(total, parts, i + 1);
        need(end >= at && end <= total);
        at = end;
    }
    need(at == total);
    return 0;
}
