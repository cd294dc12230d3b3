/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the tcp wire. docs/tcp.md has the measurements behind the defaults.
 */
#include "base/params.h"
#include "wire/tcp/tcp.h"

int64_t kolo_tcp_param_sockets;
int64_t kolo_tcp_param_sndbuf, kolo_tcp_param_rcvbuf, kolo_tcp_param_busy_poll_us;
const char *kolo_tcp_param_congestion;

static bool disabled;
static const kolo_param_t rows[] = {
    {"KOLO_TCP_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "1: no TCP between ranks once they are connected",
     &disabled},
    {"KOLO_TCP_SOCKETS", KOLO_PARAM_ENUM, "1", 0, 0, "1|2|4|8|16", false,
     "sockets per connection; slots go round them (the smaller value of the two ends counts)",
     &kolo_tcp_param_sockets},
    {"KOLO_TCP_SNDBUF", KOLO_PARAM_SIZE, "0", 0, 1 << 30, NULL, false,
     "SO_SNDBUF of each socket in bytes; 0: the kernel adapts it", &kolo_tcp_param_sndbuf},
    {"KOLO_TCP_RCVBUF", KOLO_PARAM_SIZE, "0", 0, 1 << 30, NULL, false,
     "SO_RCVBUF of each socket in bytes; 0: the kernel adapts it", &kolo_tcp_param_rcvbuf},
    {"KOLO_TCP_BUSY_POLL_US", KOLO_PARAM_INT, "0", 0, 1000000, NULL, false,
     "SO_BUSY_POLL of each socket in microseconds (network cards that support it only); 0: off",
     &kolo_tcp_param_busy_poll_us},
    {"KOLO_TCP_CONGESTION", KOLO_PARAM_STR, NULL, 0, 0, NULL, false,
     "congestion control of each socket (cubic, bbr, ...); unset: the system's", &kolo_tcp_param_congestion},
};
const kolo_param_table_t kolo_tcp_params = {"tcp", rows, KOLO_COUNTOF(rows), NULL};
