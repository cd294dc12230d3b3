/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "net". Where no provider has a device it says so and is skipped; tests/vm has some.
 */
#include "remote/net.h"
#include "wire/conformance.h"
#include "wire/net/conn.h"

int main(int argc, char **argv)
{
    const char *why = "";
    bool demanded;
    if (kolo_conformance_force(&kolo_wire_net) != KOLO_OK || !kolo_net_provider(&why, &demanded)) {
        fprintf(stderr, "skipped: no network card that the net wire can use: %s (make test-vm has some)\n", why);
        return 77;
    }
    return kolo_conformance_main(&kolo_wire_net, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
