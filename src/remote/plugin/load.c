/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading a plug-in, and not believing it: what it exports must be a table of functions of loaded objects, what it
 * says of itself must make sense, and its calls at loading run on a thread of their own, so that one that hangs is
 * left behind with an error that names it.
 */
#include "remote/plugin/plugin.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 1024 /* that a plug-in is believed to have */

static const kolo_plugin_abi_t *const versions[] = {&kolo_plugin_v11, &kolo_plugin_v10, &kolo_plugin_v9,
                                                    &kolo_plugin_v8, NULL}; /* newest first */

kolo_status_t kolo_plugin_fail(const kolo_plugin_t *plugin, int result, const char *call, const char *label)
{
    static const char *const words[] = {"success",
                                        "an error of CUDA",
                                        "an error of the system",
                                        "an internal error",
                                        "an invalid argument",
                                        "an invalid use",
                                        "an error of the peer"};
    return kolo_fail(KOLO_ERR_REMOTE, "plug-in %s (%s): %s: its %s() returned %d (%s)", plugin->name, plugin->file,
                     label, call, result,
                     result >= 0 && result < (int)KOLO_COUNTOF(words) ? words[result] : "no known error");
}

/* ---- calls that may hang ---- */

typedef struct { /* freed by who comes last: the caller, or the thread that it gave up */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int parties;
    bool done;
    kolo_status_t status;
    char error[KOLO_ERROR_TEXT_BYTES];
    kolo_plugin_t plugin;
    const char *doing;
} attempt_t;

static void leave(attempt_t *a)
{
    bool last = --a->parties == 0;
    pthread_mutex_unlock(&a->lock);
    if (!last) return;
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static void now_in(attempt_t *a, const char *call)
{
    pthread_mutex_lock(&a->lock);
    a->doing = call;
    pthread_mutex_unlock(&a->lock);
}

/* ---- what it says ---- */

static void take_log(int level, unsigned long parts, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void take_log(int level, unsigned long parts, const char *file, int line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    (void)parts;
    (void)file;
    (void)line;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (level == KOLO_NCCL_LOG_WARN)
        kolo_warn("plugin", "%s", text);
    else if (level == KOLO_NCCL_LOG_INFO || level == KOLO_NCCL_LOG_VERSION)
        kolo_info("plugin", "%s", text);
    else
        kolo_debug("plugin", "%s", text);
}

/* Copies a name that can be shown: printable and of a sensible length. */
static bool copy_name(const char *from, char *to, size_t bytes)
{
    size_t n = from ? strnlen(from, 256) : 256;
    if (n == 0 || n == 256) return false;
    for (size_t i = 0; i < n; i++)
        if (!isprint((unsigned char)from[i])) return false;
    snprintf(to, bytes, "%s", from);
    return true;
}

static kolo_status_t nonsense(const kolo_plugin_t *plugin, const char *fmt, ...) KOLO_PRINTF(2, 3);
static kolo_status_t nonsense(const kolo_plugin_t *plugin, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return kolo_fail(KOLO_ERR_PROTOCOL, "plug-in %s (%s, version %d): %s; it cannot be used",
                     plugin->name[0] ? plugin->name : "?", plugin->file, plugin->abi->version, what);
}

typedef struct {
    uintptr_t address;
    bool found;
} code_t;

static int look_for_code(struct dl_phdr_info *object, size_t bytes, void *arg)
{
    code_t *c = arg;
    (void)bytes;
    for (int i = 0; i < object->dlpi_phnum && !c->found; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        uintptr_t from = (uintptr_t)object->dlpi_addr + p->p_vaddr;
        c->found = p->p_type == PT_LOAD && (p->p_flags & PF_X) && c->address - from < p->p_memsz;
    }
    return c->found;
}

static bool is_code(void *address)
{
    code_t c = {.address = (uintptr_t)address};
    dl_iterate_phdr(look_for_code, &c);
    return c.found;
}

#define ALIKE_IN(table)                                                                                            \
    _Static_assert(offsetof(table, devices) == offsetof(kolo_nccl_net_v8_t, devices) &&                            \
                       offsetof(table, consumed) == offsetof(kolo_nccl_net_v8_t, consumed),                        \
                   "from one to the other all tables have the same calls at the same places")
ALIKE_IN(kolo_nccl_net_v9_t);
ALIKE_IN(kolo_nccl_net_v10_t);
ALIKE_IN(kolo_nccl_net_v11_t);

void kolo_plugin_take(kolo_plugin_t *plugin)
{
    const kolo_nccl_net_v8_t *t = plugin->table;
    plugin->own_name = t->name;
    plugin->devices = t->devices;
    plugin->accept = t->accept;
    plugin->register_memory = t->register_memory;
    plugin->deregister = t->deregister;
    plugin->test = t->test;
    plugin->close_send = t->close_send;
    plugin->close_receive = t->close_receive;
    plugin->close_listen = t->close_listen;
}

/* Refuses a table of another version than its symbol says: it is too short, or has no functions where they should
 * be. Not all plug-ins have all of them: device memory, joined devices and attributes are not used. */
static kolo_status_t check_table(const kolo_plugin_t *plugin)
{
    void *const *words = plugin->table;
    size_t n = plugin->abi->table_bytes / sizeof *words;
    for (size_t i = 1; i < n; i++) {
        /* Not: registering by descriptor, flush. The newest has an end. */
        bool needed = (i <= 16 && i != 8 && i != 12) || (plugin->abi->version == 11 && i == 20);
        if (!words[i] && needed) return nonsense(plugin, "function %zu of its table is missing", i);
        if (words[i] && !is_code(words[i]))
            return nonsense(plugin, "entry %zu of its table is no function: is it a table of another version?", i);
    }
    return KOLO_OK;
}

static kolo_status_t ask_device(kolo_plugin_t *plugin, int device)
{
    kolo_plugin_properties_t p;
    kolo_net_device_t *out = &plugin->device[device];
    int result = plugin->abi->properties(plugin, device, &p);
    if (result != KOLO_NCCL_SUCCESS) return kolo_plugin_fail(plugin, result, "getProperties", "loading");
    if (!copy_name(p.name, out->name, sizeof out->name)) return nonsense(plugin, "device %d has no name", device);
    if (!(p.pointers & KOLO_NCCL_PTR_HOST))
        return nonsense(plugin, "device %d (%s) does not take memory of the host", device, out->name);
    if (p.mbps < 0 || p.max_comms < 1 || p.max_receives < 1)
        return nonsense(plugin, "device %d (%s) says %d Mb/s, %d connections and %d buffers a receive", device,
                        out->name, p.mbps, p.max_comms, p.max_receives);
    out->gbps = p.mbps / 8000.0;
    char path[256];
    if (copy_name(p.pci_path, path, sizeof path)) kolo_net_bus_of_path(out, path);
    return KOLO_OK;
}

static kolo_status_t ask(attempt_t *a)
{
    kolo_plugin_t *plugin = &a->plugin;
    now_in(a, "init");
    int result = plugin->abi->init(plugin, take_log), n = 0;
    if (result != KOLO_NCCL_SUCCESS) return kolo_plugin_fail(plugin, result, "init", "loading");
    now_in(a, "devices");
    result = plugin->devices(&n);
    if (result != KOLO_NCCL_SUCCESS) return kolo_plugin_fail(plugin, result, "devices", "loading");
    if (n < 0 || n > MOST_DEVICES) return nonsense(plugin, "it says that it has %d devices", n);
    plugin->ndevices = KOLO_MIN(n, KOLO_NET_MAX_DEVICES);
    now_in(a, "getProperties");
    for (int i = 0; i < plugin->ndevices; i++) KOLO_TRY(ask_device(plugin, i));
    return KOLO_OK;
}

static void *ask_in_thread(void *arg)
{
    attempt_t *a = arg;
    kolo_status_t status = ask(a);
    pthread_mutex_lock(&a->lock);
    a->status = status;
    if (status != KOLO_OK) snprintf(a->error, sizeof a->error, "%s", kolo_error_text());
    a->done = true;
    pthread_cond_signal(&a->changed);
    leave(a);
    return NULL;
}

static kolo_status_t ask_within(kolo_plugin_t *plugin, int64_t timeout_ms)
{
    attempt_t *a = calloc(1, sizeof *a);
    pthread_condattr_t monotonic;
    pthread_t thread;
    if (!a) return kolo_fail(KOLO_ERR_NO_MEMORY, "plug-in %s: no memory", plugin->file);
    a->plugin = *plugin;
    a->parties = 2;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    uint64_t until = kolo_deadline_ms(timeout_ms);
    const struct timespec limit = {.tv_sec = (time_t)(until / KOLO_NS_PER_S),
                                   .tv_nsec = (long)(until % KOLO_NS_PER_S)};
    int err = kolo_thread_start(&thread, 0, ask_in_thread, a);
    pthread_mutex_lock(&a->lock);
    if (err) {
        a->parties = 1;
        leave(a);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "plug-in %s: no thread", plugin->file);
    }
    while (!a->done && pthread_cond_timedwait(&a->changed, &a->lock, &limit) != ETIMEDOUT)
        ;
    kolo_status_t status = a->status;
    if (!a->done) {
        pthread_detach(thread);
        status = kolo_fail(KOLO_ERR_TIMEOUT,
                           "plug-in %s (%s): its %s() has not returned within %lld ms "
                           "(KOLO_NET_PLUGIN_TIMEOUT_MS); it hangs and cannot be used",
                           plugin->name, plugin->file, a->doing ? a->doing : "init", (long long)timeout_ms);
        leave(a);
        return status;
    }
    *plugin = a->plugin;
    if (status != KOLO_OK) (void)kolo_fail(status, "%s", a->error);
    leave(a);
    pthread_join(thread, NULL);
    return status;
}

/* ---- finding it ---- */

/* Versions that it has instead, for the message. */
static void list_versions(void *library, char *text, size_t bytes)
{
    size_t at = 0;
    char symbol[32];
    text[0] = '\0';
    for (int v = 1; v < 32 && at < bytes; v++) {
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", v);
        if (dlsym(library, symbol)) at += (size_t)snprintf(text + at, bytes - at, "%sv%d", at ? ", " : "", v);
    }
}

static kolo_status_t find_table(kolo_plugin_t *plugin)
{
    char text[128], symbol[32];
    for (int i = 0; versions[i] && !plugin->table; i++) {
        plugin->table = dlsym(plugin->library, versions[i]->symbol);
        plugin->abi = versions[i];
    }
    if (!plugin->table) {
        list_versions(plugin->library, text, sizeof text);
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "plug-in %s: it has no network of version %d to %d (it has: %s)",
                         plugin->file, KOLO_NCCL_OLDEST, KOLO_NCCL_NEWEST, text[0] ? text : "none at all");
    }
    kolo_plugin_take(plugin);
    KOLO_TRY(check_table(plugin));
    if (!copy_name(plugin->own_name, plugin->name, sizeof plugin->name)) return nonsense(plugin, "it has no name");
    snprintf(symbol, sizeof symbol, "ncclCollNetPlugin_v%d", plugin->abi->version);
    if (dlsym(plugin->library, symbol))
        kolo_info("plugin", "%s: its collectives (%s) are not used; messages go by %s", plugin->name, symbol,
                  plugin->abi->symbol);
    return KOLO_OK;
}

/* Loads a plug-in. A table that is too short is read beyond its end: objects are mapped in whole pages, and behind
 * a table that begins in one there is hardly ever nothing. */
kolo_status_t kolo_plugin_load(kolo_plugin_t *plugin, const char *file, int64_t timeout_ms)
{
    char path[PATH_MAX];
    bool as_it_is = strchr(file, '/') || strstr(file, ".so");
    memset(plugin, 0, sizeof *plugin);
    size_t n = (size_t)snprintf(path, sizeof path, as_it_is ? "%s" : "libnccl-net-%s.so", file);
    if (n >= sizeof path)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "plug-in (KOLO_NET_PLUGIN): its path has %zu characters, at most %zu can be", n,
                         sizeof path - 1);
    const size_t room = sizeof plugin->file - 4; /* in messages, where the end of a long path says more */
    snprintf(plugin->file, sizeof plugin->file, "%s%.*s", n > room ? "..." : "", (int)room,
             n > room ? path + n - room : path);
    plugin->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!plugin->library)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "plug-in %s (KOLO_NET_PLUGIN) cannot be loaded: %s", plugin->file,
                         dlerror());
    KOLO_TRY(find_table(plugin));
    KOLO_TRY(ask_within(plugin, timeout_ms));
    kolo_info("plugin", "%s (%s, version %d) has %d devices", plugin->name, plugin->file, plugin->abi->version,
              plugin->ndevices);
    return KOLO_OK;
}
