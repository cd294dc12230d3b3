/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at this machine. hwloc finds out, its XML goes through the same reader as a file's, so there is one way
 * from description to tree. hwloc's GPU plugins stay off: they open driver contexts, which costs a second and does
 * not survive fork(); GPUs are seen on the PCI bus.
 */
#include "base/clock.h"
#include "base/file/limit.h"
#include "base/file/output.h"
#include "base/params.h"
#include "base/process.h"
#include "base/wait.h"
#include "topo/nvml.h"
#include "topo/params.h"
#include "topo/raw.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef KOLO_HAVE_HWLOC
#include "base/log.h"

#include <errno.h>
#include <hwloc.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <unistd.h>
#endif

/* Makes one machine with as many cores as this process may use. Which CPU is which core is not known. */
static kolo_status_t make_flat(kolo_topo_t *topo, const char *source)
{
    int cores = kolo_cores();
    kolo_topo_node_t *nodes = calloc((size_t)cores + 1, sizeof *nodes);
    if (!nodes) return kolo_fail(KOLO_ERR_NO_MEMORY, "topology: no memory for %d cores", cores);
    for (int i = 0; i <= cores; i++) {
        kolo_topo_kind_t kind = i ? KOLO_TOPO_CORE : KOLO_TOPO_MACHINE;
        int index = i ? i - 1 : 0;
        nodes[i] = (kolo_topo_node_t){
            .kind = kind, .parent = i ? 0 : -1, .index = index, .os_index = -1, .numa = -1, .socket = -1};
        snprintf(nodes[i].name, sizeof nodes[i].name, "%s %d", kolo_topo_kind_name(kind), index);
    }
    *topo = (kolo_topo_t){.nodes = nodes, .count = cores + 1};
    snprintf(topo->source, sizeof topo->source, "%s", source);
    return KOLO_OK;
}

#ifdef KOLO_HAVE_HWLOC

/* Writes beside `path` and renames, so that a reader sees the old file or the whole new one. */
static kolo_status_t write_file(const char *path, const char *data, size_t bytes)
{
    char temp[4200];
    if (snprintf(temp, sizeof temp, "%s.%d.tmp", path, (int)getpid()) >= (int)sizeof temp)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "topology: the path %.64s... is too long", path);
    char why[sizeof temp + 100];
    FILE *file = kolo_output_fopen(temp, why, sizeof why);
    if (!file) return kolo_fail(KOLO_ERR_SYSTEM, "topology cannot be written to %s", why);
    kolo_file_quiet_t quiet;
    kolo_file_quiet(&quiet);
    bool good = fwrite(data, 1, bytes, file) == bytes;
    int err = errno;
    if (fclose(file) != 0 && good) {
        good = false;
        err = errno;
    }
    kolo_file_loud(&quiet);
    if (good && rename(temp, path) != 0) {
        good = false;
        err = errno;
    }
    if (good) return KOLO_OK;
    unlink(temp);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "topology cannot be written to %s", path);
}

/* Reads a decimal number from the start of a small file; 0 when there is none. */
static int64_t read_number(const char *path)
{
    long long value = 0;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    if (fscanf(file, "%lld", &value) != 1) value = 0;
    fclose(file);
    return value > 0 ? value : 0;
}

/* Adds how fast NICs are, which the kernel says and hwloc does not. The figure travels in the XML. */
static void note_nic_speeds(hwloc_topology_t hw)
{
    char path[256], text[32];
    for (hwloc_obj_t os = NULL; (os = hwloc_get_next_osdev(hw, os));) {
        int64_t mbps = 0;
        if (!os->name || strchr(os->name, '/')) continue;
        if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
            snprintf(path, sizeof path, "/sys/class/net/%.64s/speed", os->name);
            mbps = read_number(path);
        } else if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
            snprintf(path, sizeof path, "/sys/class/infiniband/%.64s/ports/1/rate", os->name);
            mbps = read_number(path) * 1000; /* "400 Gb/sec (4X NDR)" */
        }
        if (mbps <= 0 || mbps > INT32_MAX) continue;
        snprintf(text, sizeof text, "%lld", (long long)mbps);
        hwloc_obj_add_info(os, KOLO_TOPO_INFO_SPEED, text);
    }
}

static kolo_status_t discover(hwloc_topology_t hw)
{
    static const char *const off[] = {"cuda", "nvml", "rsmi", "levelzero", "opencl", "gl", "pci", "x86"};
    for (size_t i = 0; i < KOLO_COUNTOF(off); i++)
        hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, off[i]);
    hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(hw) != 0)
        return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "topology: hwloc cannot look at this machine");
    note_nic_speeds(hw);
    return KOLO_OK;
}

/* Makes the XML of this machine, to be freed by the caller. */
static kolo_status_t look(char **xml, size_t *bytes)
{
    hwloc_topology_t hw;
    char *theirs = NULL;
    int length = 0;
    if (hwloc_topology_init(&hw) != 0)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "topology: hwloc cannot be initialised");
    kolo_status_t status = discover(hw);
    if (status == KOLO_OK && hwloc_topology_export_xmlbuffer(hw, &theirs, &length, 0) != 0)
        status = kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "topology: hwloc cannot write XML");
    if (status == KOLO_OK) {
        *bytes = strnlen(theirs, (size_t)KOLO_MAX(length, 0)); /* hwloc counts the terminating zero */
        *xml = malloc(*bytes + 1);
        if (*xml)
            memcpy(*xml, theirs, *bytes);
        else
            status = kolo_fail(KOLO_ERR_NO_MEMORY, "topology: no memory for %zu bytes of XML", *bytes);
    }
    if (theirs) hwloc_free_xmlbuffer(hw, theirs);
    hwloc_topology_destroy(hw);
    return status;
}

static atomic_bool named; /* a variable of hwloc */

static void note(const char *key, size_t length)
{
    if (!atomic_exchange(&named, true))
        kolo_warn("topo",
                  "%.*s: hwloc is not asked about this machine, for it loads libraries and reads files that such "
                  "variables name, and this program has other rights than its caller (set-user-id or the like)",
                  (int)length, key);
}

/* Tells whether hwloc would listen to a caller who may do less than this program. */
static bool listens_to_others(void)
{
    if (getauxval(AT_SECURE) != 0) kolo_environment_each("HWLOC_", note);
    return atomic_load(&named);
}

static kolo_status_t load_machine(kolo_topo_t *topo)
{
    char *xml, origin[64];
    if (listens_to_others()) return make_flat(topo, "flat (hwloc's variables are not this program's)");
    size_t bytes;
    unsigned version = hwloc_get_api_version();
    KOLO_TRY(look(&xml, &bytes));
    snprintf(origin, sizeof origin, "hwloc, API %u.%u", version >> 16, (version >> 8) & 255);
    kolo_status_t status = kolo_topo_import(topo, xml, bytes, origin);
    if (status == KOLO_OK && kolo_topo_param_dump) {
        status = write_file(kolo_topo_param_dump, xml, bytes);
        if (status != KOLO_OK) kolo_topo_fini(topo);
    }
    free(xml);
    return status;
}

kolo_status_t kolo_topo_export(const char *path)
{
    char *xml;
    size_t bytes;
    if (listens_to_others())
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "topology cannot be written to %s: hwloc is not asked", path);
    KOLO_TRY(look(&xml, &bytes));
    kolo_status_t status = write_file(path, xml, bytes);
    free(xml);
    return status;
}

#else

static kolo_status_t load_machine(kolo_topo_t *topo)
{
    if (kolo_topo_param_dump) return kolo_topo_export(kolo_topo_param_dump);
    return make_flat(topo, "flat (built without hwloc)");
}

kolo_status_t kolo_topo_export(const char *path)
{
    return kolo_fail(KOLO_ERR_UNSUPPORTED, "topology cannot be written to %s: Kolo was built without hwloc", path);
}

#endif

static kolo_status_t copy_tree(kolo_topo_t *to, const kolo_topo_t *from)
{
    size_t nodes = (size_t)from->count * sizeof *from->nodes, cpus = (size_t)from->ncpus * sizeof(int);
    size_t links = (size_t)from->nlinks * sizeof *from->links;
    kolo_topo_t made = *from;
    made.nodes = malloc(nodes);
    made.core_of_cpu = malloc(KOLO_MAX(cpus, 1));
    made.links = malloc(KOLO_MAX(links, 1));
    if (!made.nodes || !made.core_of_cpu || !made.links) {
        kolo_topo_fini(&made);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "topology: no memory for %d nodes", from->count);
    }
    memcpy(made.nodes, from->nodes, nodes);
    if (cpus) memcpy(made.core_of_cpu, from->core_of_cpu, cpus);
    if (links) memcpy(made.links, from->links, links);
    *to = made;
    return KOLO_OK;
}

static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(looking)

static kolo_status_t load_tree(kolo_topo_t *topo, bool links)
{
    /* Looking takes 10 ms and more, and a process may hold thousands of ranks: it looks once. */
    static kolo_topo_t machine;
    static bool linked;
    if (kolo_topo_param_file) {
        KOLO_TRY(kolo_topo_import_file(topo, kolo_topo_param_file));
        if (links && kolo_topo_nvml_named()) kolo_topo_nvml_fill(topo);
        return KOLO_OK;
    }
    kolo_status_t status = KOLO_OK;
    kolo_topo_t found = {0};
    pthread_mutex_lock(&looking);
    if (!machine.nodes) {
        status = load_machine(&found); /* a child of fork() sees all of it or nothing */
        if (status == KOLO_OK) machine = found;
    }
    if (status == KOLO_OK && links && !linked) {
        kolo_topo_nvml_fill(&machine);
        linked = true;
    }
    if (status == KOLO_OK) status = copy_tree(topo, &machine);
    pthread_mutex_unlock(&looking);
    return status;
}

kolo_status_t kolo_topo_load(kolo_topo_t *topo)
{
    return load_tree(topo, false);
}

kolo_status_t kolo_topo_load_gpus(kolo_topo_t *topo)
{
    return load_tree(topo, true);
}
