/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of src/topo. Private to it.
 */
#ifndef KOLO_TOPO_PARAMS_H
#define KOLO_TOPO_PARAMS_H

#include <stdbool.h>

extern const char *kolo_topo_param_file, *kolo_topo_param_dump, *kolo_topo_param_nvml;
/* Was KOLO_NVML_LIBRARY named by the user? Then it is asked about machines in files, too. */
bool kolo_topo_nvml_named(void);

#endif
