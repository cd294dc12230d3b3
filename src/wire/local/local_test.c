/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit on wire "local".
 */
#include "wire/conformance.h"

int main(int argc, char **argv)
{
    return kolo_conformance_main(KOLO_WIRE_LOCAL, KOLO_CONFORM_THREADS, argc, argv);
}
