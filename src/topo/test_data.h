/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the sample machines of the tests are (tests/data/topo of the source tree). The build fills it in.
 */
#ifndef KOLO_TOPO_TEST_DATA_H
#define KOLO_TOPO_TEST_DATA_H

extern const char kolo_topo_test_data[];

#endif
