/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of src/topo. Private to it.
 */
#ifndef KOLO_TOPO_PARAMS_H
#define KOLO_TOPO_PARAMS_H

extern const char *kolo_topo_param_file, *kolo_topo_param_dump;

#endif
