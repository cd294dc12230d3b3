/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends of connections by a plug-in: one communicator of the plug-in each, and its requests in order.
 */
#include "remote/plugin/plugin.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_plugin_t kolo_plugin;

/* Returns a number for the plug-in: a hello is that, and the handle of its listener. */
static uint64_t mark(void)
{
    return kolo_hash_bytes(KOLO_HASH_INIT, kolo_plugin.name, strlen(kolo_plugin.name));
}
_Static_assert(8 + KOLO_NCCL_HANDLE_BYTES <= KOLO_NET_HELLO_BYTES, "a hello travels on the wire's card");

static kolo_status_t begin(kolo_net_open_t *open, const kolo_net_end_config_t *config, bool reads,
                           kolo_net_hello_t *hello, kolo_net_end_t **result)
{
    kolo_net_end_t *end = aligned_alloc(64, KOLO_ROUND_UP(sizeof *end, 64));
    if (!end) return kolo_fail(KOLO_ERR_NO_MEMORY, "plug-in: no memory for a connection");
    memset(end, 0, sizeof *end);
    end->open = open;
    end->reads = reads;
    end->depth = KOLO_MIN(config->depth, KOLO_NCCL_REQUESTS);
    end->message_bytes = config->message_bytes;
    snprintf(end->label, sizeof end->label, "%s", config->label);
    end->requests = calloc(end->depth, sizeof *end->requests);
    kolo_status_t status = KOLO_OK;
    int n = KOLO_NCCL_SUCCESS;
    if (!end->requests) status = kolo_fail(KOLO_ERR_NO_MEMORY, "plug-in: no memory for %u requests", end->depth);
    if (status == KOLO_OK && reads)
        n = kolo_plugin.abi->listen(&kolo_plugin, open->device, end->handle, &end->listener);
    if (n != KOLO_NCCL_SUCCESS) status = kolo_plugin_fail(&kolo_plugin, n, "listen", end->label);
    if (status == KOLO_OK && reads && !end->listener)
        status = kolo_fail(KOLO_ERR_PROTOCOL, "plug-in %s (%s): %s: its listen() gave no listener",
                           kolo_plugin.name, kolo_plugin.file, end->label);
    if (status != KOLO_OK) {
        kolo_plugin_shut(end);
        return status;
    }
    memset(hello, 0, sizeof *hello);
    kolo_put64(hello->bytes, mark());
    memcpy(hello->bytes + 8, end->handle, sizeof end->handle);
    *result = end;
    return KOLO_OK;
}

kolo_status_t kolo_plugin_listen(kolo_net_open_t *open, const kolo_net_end_config_t *config,
                                 kolo_net_hello_t *hello, kolo_net_end_t **end)
{
    return begin(open, config, true, hello, end);
}

kolo_status_t kolo_plugin_start(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                                kolo_net_end_t **end)
{
    return begin(open, config, false, hello, end);
}

/* Asks again for what is not there yet: it is, or it is not (KOLO_IN_PROGRESS). */
static kolo_status_t come_up(kolo_net_end_t *end)
{
    void *offload = NULL;
    int result;
    if (end->comm) return KOLO_OK;
    if (!end->named || end->revoked) return KOLO_IN_PROGRESS;
    KOLO_FAIL_POINT_TRY("wire.plugin.connect");
    if (end->reads)
        result = kolo_plugin.accept(end->listener, &end->comm, &offload);
    else
        result = kolo_plugin.abi->connect(&kolo_plugin, end->open->device, end->handle, &end->comm);
    if (result != KOLO_NCCL_SUCCESS)
        return kolo_plugin_fail(&kolo_plugin, result, end->reads ? "accept" : "connect", end->label);
    if (end->comm) {
        kolo_info("plugin", "connection %s: device %s of %s", end->label,
                  kolo_plugin.device[end->open->device].name, kolo_plugin.name);
        return KOLO_OK;
    }
    if (kolo_now_ns() < end->limit_ns) return KOLO_IN_PROGRESS;
    return kolo_fail(KOLO_ERR_TIMEOUT,
                     "plug-in %s (%s): %s: its %s() has not made a connection within %lld ms "
                     "(KOLO_NET_PLUGIN_TIMEOUT_MS): it hangs, or the peer does not wait for anything",
                     kolo_plugin.name, kolo_plugin.file, end->label, end->reads ? "accept" : "connect",
                     (long long)kolo_plugin_options.timeout_ms);
}

kolo_status_t kolo_plugin_connect(kolo_net_end_t *end, const kolo_net_hello_t *peer)
{
    if (kolo_get64(peer->bytes) != mark())
        return kolo_fail(KOLO_ERR_MISMATCH, "plug-in %s (%s): %s: the peer has another plug-in", kolo_plugin.name,
                         kolo_plugin.file, end->label);
    if (!end->reads) memcpy(end->handle, peer->bytes + 8, sizeof end->handle);
    end->named = true;
    end->limit_ns = kolo_deadline_ms(kolo_plugin_options.timeout_ms);
    kolo_status_t status = come_up(end);
    return status == KOLO_IN_PROGRESS ? KOLO_OK : status;
}

void kolo_plugin_revoke(kolo_net_end_t *end)
{
    end->revoked = true;
}

void kolo_plugin_shut(kolo_net_end_t *end)
{
    if (end->memory) kolo_plugin.deregister(end->comm, end->memory);
    if (end->comm) (end->reads ? kolo_plugin.close_receive : kolo_plugin.close_send)(end->comm);
    if (end->listener) kolo_plugin.close_listen(end->listener);
    free(end->requests);
    free(end);
}

/* ---- requests ---- */

/* Registers the region, of which the wire has one for all slots of a connection. */
static kolo_status_t know_memory(kolo_net_end_t *end, const kolo_net_region_t *region)
{
    if (end->region == region) return KOLO_OK;
    if (end->region) return kolo_fail(KOLO_ERR_INTERNAL, "plug-in: %s: a second region of memory", end->label);
    int result =
        kolo_plugin.register_memory(end->comm, region->data, region->bytes, KOLO_NCCL_PTR_HOST, &end->memory);
    if (result != KOLO_NCCL_SUCCESS) return kolo_plugin_fail(&kolo_plugin, result, "regMr", end->label);
    end->region = region;
    return KOLO_OK;
}

static kolo_status_t may_begin(kolo_net_end_t *end, const kolo_net_region_t *region)
{
    if (end->revoked) return kolo_fail(KOLO_ERR_ABORTED, "plug-in: %s: it was given up", end->label);
    kolo_status_t status = come_up(end);
    if (status != KOLO_OK) return status;
    if (end->next - end->completed >= end->depth) return KOLO_IN_PROGRESS;
    return know_memory(end, region);
}

static kolo_status_t has_begun(kolo_net_end_t *end, int result, void *request, uint64_t cookie)
{
    if (result != KOLO_NCCL_SUCCESS)
        return kolo_plugin_fail(&kolo_plugin, result, end->reads ? "irecv" : "isend", end->label);
    if (!request) return KOLO_IN_PROGRESS;
    end->requests[end->next++ % end->depth] = (kolo_plugin_request_t){.request = request, .cookie = cookie};
    end->counts.requests++;
    return KOLO_OK;
}

kolo_status_t kolo_plugin_isend(kolo_net_end_t *end, const void *data, uint32_t bytes,
                                const kolo_net_region_t *region, uint64_t cookie)
{
    void *request = NULL;
    kolo_status_t status = may_begin(end, region);
    if (status != KOLO_OK) return status;
    int result =
        kolo_plugin.abi->isend(&kolo_plugin, end->comm, (void *)(uintptr_t)data, bytes, end->memory, &request);
    return has_begun(end, result, request, cookie);
}

kolo_status_t kolo_plugin_irecv(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                                uint64_t cookie, uint64_t tag)
{
    void *request = NULL;
    (void)tag; /* messages match by order */
    kolo_status_t status = may_begin(end, region);
    if (status != KOLO_OK) return status;
    int result = kolo_plugin.abi->irecv(&kolo_plugin, end->comm, data, bytes, end->memory, &request);
    return has_begun(end, result, request, cookie);
}

/* Asks whether the request is done: a plug-in is asked until it says so, and not again. */
static kolo_status_t ask(kolo_net_end_t *end, kolo_plugin_request_t *r)
{
    int done = 0, bytes = 0;
    if (r->done) return KOLO_OK;
    int result = kolo_plugin.test(r->request, &done, &bytes);
    end->counts.completions++;
    if (result != KOLO_NCCL_SUCCESS) return kolo_plugin_fail(&kolo_plugin, result, "test", end->label);
    if (done && end->reads && (bytes < 0 || (uint32_t)bytes > end->message_bytes))
        return kolo_fail(KOLO_ERR_PROTOCOL,
                         "plug-in %s (%s): %s: its test() says that %d bytes came, at most %u are due",
                         kolo_plugin.name, kolo_plugin.file, end->label, bytes, end->message_bytes);
    r->done = done;
    r->bytes = end->reads ? (uint32_t)bytes : 0;
    return KOLO_OK;
}

/* Asks at once about what is to go: many plug-ins move bytes only when they are asked about them. */
kolo_status_t kolo_plugin_push(kolo_net_end_t *end)
{
    if (end->reads || end->revoked || end->completed == end->next) return KOLO_OK;
    return ask(end, &end->requests[end->completed % end->depth]);
}

kolo_status_t kolo_plugin_test(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n)
{
    *n = 0;
    if (end->revoked) return KOLO_OK;
    kolo_status_t status = come_up(end);
    if (status != KOLO_OK) return status == KOLO_IN_PROGRESS ? KOLO_OK : status;
    while (*n < most && end->completed != end->next) {
        kolo_plugin_request_t *r = &end->requests[end->completed % end->depth];
        KOLO_TRY(ask(end, r));
        if (!r->done) break;
        done[*n] = (kolo_net_done_t){.cookie = r->cookie, .bytes = r->bytes};
        end->completed++;
        end->open->moved++;
        ++*n;
    }
    return KOLO_OK;
}
