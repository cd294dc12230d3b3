/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "tcp".
 */
#include "wire/conformance.h"
#include "wire/tcp/tcp.h"

int main(int argc, char **argv)
{
    return kolo_conformance_main(&kolo_wire_tcp, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
