/* SPDX-License-Identifier: Apache-2.0
 *
 * A wire is a folder and a row of a list: one that the library does not know (procfd.c) passes what every wire has
 * to.
 */
#include "procfd.h"

#include "wire/conformance.h"

int main(int argc, char **argv)
{
    return kolo_conformance_main(&seam_wire_procfd, KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES, argc, argv);
}
