/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the sockets provider.
 */
#include "remote/sockets/sockets.h"

kolo_sockets_options_t kolo_sockets_options = {.sockets = 1, .timeout_ms = 20000};

static const kolo_param_t rows[] = {
    {"KOLO_NET_SOCKETS", KOLO_PARAM_INT, "1", 1, KOLO_SOCKETS_MAX, NULL, false,
     "KOLO_NET_PROVIDER=sockets: sockets for data that one connection has on each of its network interfaces; more "
     "than one where a single TCP stream does not fill the link (the smaller value of the two ends counts)",
     &kolo_sockets_options.sockets},
    {"KOLO_NET_SOCKET_TIMEOUT_MS", KOLO_PARAM_INT, "20000", 100, 3600000, NULL, false,
     "KOLO_NET_PROVIDER=sockets: what the peer does not acknowledge for that many milliseconds fails its rail, and "
     "so does an interface that is down for KOLO_IB_PORT_DOWN_MS",
     &kolo_sockets_options.timeout_ms},
};
const kolo_param_table_t kolo_sockets_params = {"net sockets", rows, KOLO_COUNTOF(rows), NULL};
