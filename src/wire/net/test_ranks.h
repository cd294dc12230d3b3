/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the net wire between two ranks share: the first provider that has a device (verbs in tests/vm),
 * else sockets.
 */
#ifndef KOLO_WIRE_NET_TEST_RANKS_H
#define KOLO_WIRE_NET_TEST_RANKS_H

#include "wire/conformance.h"
#include "wire/net/conn.h"

#include <stdlib.h>

static inline bool kolo_net_test_find(const char **why)
{
    bool demanded = false;
    return kolo_conformance_force(&kolo_wire_net) == KOLO_OK && kolo_net_provider(why, &demanded);
}

/* Returns false, with a line that says why, where there is no provider. */
static inline bool kolo_net_test_begin(void)
{
    const char *why = "";
    if (kolo_net_test_find(&why)) return true;
    setenv("KOLO_NET_PROVIDER", "sockets", 1);
    if (kolo_net_test_find(&why)) return true;
    fprintf(stderr, "the net wire has nothing to work by: %s\n", why);
    return false;
}

/* Runs it on two ranks, with job->arg. */
static inline bool kolo_net_test_fails(const char *name, int (*run)(kolo_kit_t *kit), const void *arg)
{
    const kolo_kit_job_t job = {
        .name = name, .nranks = 2, .limit_s = 40, .run = run, .arg = (void *)(uintptr_t)arg, .dies = -1};
    bool bad = kolo_kit_run(&job) != 0;
    printf("%s %s\n", bad ? "FAILED" : "ok    ", name);
    return bad;
}

#endif
