/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of providers.
 */
#include "wire/net/net.h"

#include "oob/oob.h"

#include <stdio.h>

const kolo_net_ops_t *const kolo_net_providers[] = {
#if defined(KOLO_HAVE_VERBS)
    &kolo_net_verbs,
#endif
    NULL,
};

const kolo_net_ops_t *kolo_net_provider(const char **why)
{
    *why = "KOLO_TCP_SECURITY does not protect RDMA";
    if (kolo_seal_offer() != KOLO_SECURITY_NONE) return NULL;
    *why = "no provider was built in";
    for (int i = 0; kolo_net_providers[i]; i++)
        if (kolo_net_providers[i]->count(why) > 0) return kolo_net_providers[i];
    return NULL;
}
