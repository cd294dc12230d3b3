/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of this room. The values stand here with their defaults, so that code which runs before the tables
 * are parsed (tests, tools) finds them.
 */
#include "link/link.h"

kolo_link_values_t kolo_link_values = {
    .pending_max = 1024,
    .handshake_ms = 10000,
};

static const kolo_param_t rows[] = {
    {.key = "KOLO_SOCKET_IFNAME",
     .kind = KOLO_PARAM_STR,
     .help = "network interfaces to use: prefixes (eth,ib), exact names (=eth0) or all but some (^docker,lo)",
     .value = &kolo_link_values.socket_ifname},
    {.key = "KOLO_SOCKET_FAMILY",
     .kind = KOLO_PARAM_ENUM,
     .def = "auto",
     .choices = "auto|ipv4|ipv6",
     .help = "address family of listening sockets; auto: IPv4 where there is a choice",
     .value = &kolo_link_values.socket_family},
    {.key = "KOLO_TCP_SECURITY",
     .kind = KOLO_PARAM_ENUM,
     .def = "none",
     .choices = "none|mac|encrypt",
     .must_agree = true,
     .help =
         "what protects the bytes of all TCP connections behind their handshake: nothing, a tag that notices "
         "changes, or the same and a cipher; all ranks need the same value, and RDMA is not used with the last two",
     .value = &kolo_link_values.security},
    {.key = "KOLO_OOB_PENDING_MAX",
     .kind = KOLO_PARAM_INT,
     .def = "1024",
     .min = 1,
     .max = 1 << 20,
     .help = "connections per process that may be unproven at a time; never more than a quarter of its descriptors "
             "(ulimit -n)",
     .value = &kolo_link_values.pending_max},
    {.key = "KOLO_OOB_HANDSHAKE_MS",
     .kind = KOLO_PARAM_INT,
     .def = "10000",
     .min = 10,
     .max = 600000,
     .help = "milliseconds that a caller has to prove itself",
     .value = &kolo_link_values.handshake_ms},
};

const kolo_param_table_t kolo_link_params = {.module = "link", .rows = rows, .count = KOLO_COUNTOF(rows)};
