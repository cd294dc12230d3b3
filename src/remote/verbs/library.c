/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs, loaded when devices are first asked for. It stays: drivers leave threads and handlers behind.
 */
#include "remote/verbs/verbs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define FILE_NAME "libibverbs.so.1"

kolo_verbs_library_t kolo_verbs;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char reason[256];
static bool loaded;

static bool find(void *library, const char *name, void *where)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        snprintf(reason, sizeof reason, "%s has no %s: it is older than rdma-core 33", FILE_NAME, name);
        return false;
    }
    *(void **)where = symbol;
    return true;
}

static void load(void)
{
    kolo_verbs_library_t *v = &kolo_verbs;
    const struct {
        const char *name;
        void *where;
    } symbols[] = {
        {"ibv_get_device_list", (void *)&v->get_device_list},
        {"ibv_free_device_list", (void *)&v->free_device_list},
        {"ibv_get_device_name", (void *)&v->get_device_name},
        {"ibv_open_device", (void *)&v->open_device},
        {"ibv_close_device", (void *)&v->close_device},
        {"ibv_query_port", (void *)&v->query_port},
        {"ibv_query_device", (void *)&v->query_device},
        {"_ibv_query_gid_ex", (void *)&v->query_gid_ex},
        {"ibv_alloc_pd", (void *)&v->alloc_pd},
        {"ibv_dealloc_pd", (void *)&v->dealloc_pd},
        {"ibv_reg_mr", (void *)&v->reg_mr},
        {"ibv_dereg_mr", (void *)&v->dereg_mr},
        {"ibv_create_comp_channel", (void *)&v->create_comp_channel},
        {"ibv_destroy_comp_channel", (void *)&v->destroy_comp_channel},
        {"ibv_create_cq", (void *)&v->create_cq},
        {"ibv_destroy_cq", (void *)&v->destroy_cq},
        {"ibv_get_cq_event", (void *)&v->get_cq_event},
        {"ibv_ack_cq_events", (void *)&v->ack_cq_events},
        {"ibv_create_qp", (void *)&v->create_qp},
        {"ibv_modify_qp", (void *)&v->modify_qp},
        {"ibv_destroy_qp", (void *)&v->destroy_qp},
        {"ibv_get_async_event", (void *)&v->get_async_event},
        {"ibv_ack_async_event", (void *)&v->ack_async_event},
        {"ibv_event_type_str", (void *)&v->event_type_str},
        {"ibv_wc_status_str", (void *)&v->wc_status_str},
    };
    void *library = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        snprintf(reason, sizeof reason, "cannot load %s (Debian: libibverbs1, ibverbs-providers): %s", FILE_NAME,
                 why ? why : "no reason given");
        return;
    }
    void *symbol;
    for (size_t i = 0; i < KOLO_COUNTOF(symbols); i++)
        if (!find(library, symbols[i].name, symbols[i].where)) return;
    symbol = dlsym(library, "ibv_reg_dmabuf_mr"); /* older libraries have none */
    *(void **)(void *)&v->reg_dmabuf_mr = symbol;
    enum ibv_fork_status (*forks)(void) = NULL; /* older libraries do not ask the kernel */
    symbol = dlsym(library, "ibv_is_fork_initialized");
    *(void **)&forks = symbol;
    v->fork_safe = forks && forks() == IBV_FORK_UNNEEDED;
    loaded = true;
}

bool kolo_verbs_load(const char **why)
{
    pthread_once(&once, load);
    *why = reason;
    return loaded;
}
