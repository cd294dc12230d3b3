/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "net" with its provider "sockets", which every machine has: one interface or all that
 * there are, loopback included, and two sockets for data in each connection.
 */
#include "wire/conformance.h"
#include "wire/net/conn.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    setenv("KOLO_NET_PROVIDER", "sockets", 0);
    setenv("KOLO_NET_SOCKETS", "2", 0);
    return kolo_conformance_main(&kolo_wire_net, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
