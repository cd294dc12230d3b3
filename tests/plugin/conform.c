/* SPDX-License-Identifier: Apache-2.0
 *
 * The wires' conformance kit on wire "net" with the plug-in that KOLO_NET_PLUGIN names.
 */
#include "wire/conformance.h"
#include "wire/net/conn.h"

int main(int argc, char **argv)
{
    return kolo_conformance_main(&kolo_wire_net, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
