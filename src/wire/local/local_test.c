/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "local".
 */
#include "wire/conformance.h"
#include "wire/local/local.h"

int main(int argc, char **argv)
{
    return kolo_conformance_main(&kolo_wire_local, KOLO_CONFORM_THREADS, argc, argv);
}
