/* SPDX-License-Identifier: Apache-2.0
 *
 * What NVIDIA's management library tells of the GPUs of this machine, which the PCI bus does not: how many NVLinks
 * lead where, and how far two GPUs are apart. The library is loaded when it is first needed, and runs only while it
 * is asked: what it holds open (descriptors of every GPU) is closed again. Without it no links are known.
 */
#ifndef KOLO_TOPO_NVML_H
#define KOLO_TOPO_NVML_H

#include "topo/topo.h"

/* Puts names, NVLinks and switches into the GPUs of a tree, by their bus ids. Any thread. */
void kolo_topo_nvml_fill(kolo_topo_t *topo);
/* Tells whether the GPU with the first bus id may load from and store to the memory of the other one. 0: no; 1:
 * yes; -1: NVML does not say. Also of GPUs that this process does not see. Any thread. */
int kolo_topo_nvml_reaches(const char *a, const char *b);

#endif
