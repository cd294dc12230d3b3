/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of src/topo.
 */
#include "topo/params.h"
#include "topo/topo.h"

const char *kolo_topo_param_file, *kolo_topo_param_dump, *kolo_topo_param_nvml;

static const kolo_param_t rows[] = {
    {.key = "KOLO_TOPO_FILE",
     .kind = KOLO_PARAM_FILE,
     .help = "read the machine's topology from this file (hwloc XML, version 2) instead of looking",
     .value = &kolo_topo_param_file},
    {.key = "KOLO_TOPO_DUMP",
     .kind = KOLO_PARAM_FILE,
     .help = "after looking, write the topology to this file, as XML that KOLO_TOPO_FILE can read",
     .value = &kolo_topo_param_dump},
    {.key = "KOLO_NVML_LIBRARY",
     .kind = KOLO_PARAM_FILE,
     .def = "libnvidia-ml.so.1",
     .help = "NVIDIA's management library, which lists NVLinks; loaded where there are GPUs",
     .value = &kolo_topo_param_nvml},
};

const kolo_param_table_t kolo_topo_params = {"topo", rows, KOLO_COUNTOF(rows), NULL};

bool kolo_topo_nvml_named(void)
{
    return kolo_param_in_environment(&rows[2]);
}
