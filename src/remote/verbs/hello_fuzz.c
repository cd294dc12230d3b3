/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the peer's hello, any text as a list of devices.
 */
#include "remote/verbs/verbs.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool condition)
{
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_net_hello_t wire = {{0}}, again;
    kolo_verbs_hello_t hello;
    memcpy(wire.bytes, data, size < sizeof wire ? size : sizeof wire);
    if (kolo_verbs_hello_decode(&wire, &hello) == KOLO_OK) {
        need(hello.qpn > 0 && hello.qpn < 1u << 24 && hello.depth > 0 && (hello.depth & (hello.depth - 1)) == 0);
        need(memchr(hello.device, '\0', sizeof hello.device) != NULL);
        kolo_verbs_hello_encode(&hello, &again);
        need(kolo_verbs_hello_decode(&again, &hello) == KOLO_OK);
    }
    char *list = malloc(size + 2); /* "^" turns what follows round */
    if (!list) return 0;
    list[0] = '^';
    if (size) memcpy(list + 1, data, size);
    list[size + 1] = '\0';
    if (list[1] && list[1] != '^')
        need(kolo_verbs_admits(list, "mlx5_0", 1) != kolo_verbs_admits(list + 1, "mlx5_0", 1));
    else
        (void)kolo_verbs_admits(list, "mlx5_0", 1);
    free(list);
    return 0;
}
