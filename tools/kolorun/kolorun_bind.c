/* SPDX-License-Identifier: Apache-2.0
 *
 * See kolorun_bind.h. hwloc knows cores, hardware threads and NUMA nodes; built without it, kolorun binds nothing.
 */
#include "kolorun_bind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef KOLO_HAVE_HWLOC
#include <hwloc.h>
#endif

static const char *const words[] = {"auto", "core", "numa", "none"};

bool kolorun_bind_parse(const char *text, kolorun_bind_t *how)
{
    for (int i = KOLORUN_BIND_CORE; i <= KOLORUN_BIND_NONE; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *how = (kolorun_bind_t)i;
        return true;
    }
    return false;
}

void kolorun_bind_variable(kolorun_bind_t how, bool report, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s=%s%s", KOLORUN_BIND_VARIABLE, words[how], report ? ",report" : "");
}

/* What is asked of one process. */
typedef struct {
    kolorun_bind_t how;
    bool report;
    int local_rank, local_size;
} wish_t;

static bool read_wish(const char *text, const char *rank, const char *size, wish_t *wish)
{
    if (text == NULL) return false;
    size_t word = strcspn(text, ",");
    *wish = (wish_t){.how = KOLORUN_BIND_NONE, .report = text[word] == ','};
    for (int i = 0; i <= KOLORUN_BIND_NONE; i++)
        if (strlen(words[i]) == word && memcmp(words[i], text, word) == 0) wish->how = (kolorun_bind_t)i;
    wish->local_rank = rank != NULL ? atoi(rank) : 0;
    wish->local_size = size != NULL ? atoi(size) : 1;
    return wish->local_rank >= 0 && wish->local_rank < wish->local_size;
}

static void say(int fd, const char *what)
{
    char host[256] = "?", who[64] = "a process";
    const char *rank = getenv("KOLO_RANK"), *worker = getenv("KOLO_ELASTIC_WORKER");
    gethostname(host, sizeof host - 1);
    if (rank != NULL)
        snprintf(who, sizeof who, "rank %.12s", rank);
    else if (worker != NULL)
        snprintf(who, sizeof who, "process %.12s", worker);
    dprintf(fd, "kolorun: %s on %s is %s\n", who, host, what);
}

#ifdef KOLO_HAVE_HWLOC

struct kolorun_places {
    hwloc_topology_t topology;
    hwloc_obj_t *cores; /* those with a hardware thread that may be used */
    hwloc_bitmap_t allowed;
    int ncores;
};

void kolorun_places_free(kolorun_places_t *places)
{
    if (places == NULL) return;
    free(places->cores);
    hwloc_bitmap_free(places->allowed);
    hwloc_topology_destroy(places->topology);
    free(places);
}

static bool find_cores(kolorun_places_t *p)
{
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(p->topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int n = hwloc_get_nbobjs_by_type(p->topology, type);
    p->allowed = hwloc_bitmap_alloc();
    p->cores = calloc((size_t)(n > 0 ? n : 1), sizeof *p->cores);
    if (p->allowed == NULL || p->cores == NULL) return false;
    if (hwloc_get_cpubind(p->topology, p->allowed, HWLOC_CPUBIND_PROCESS) != 0)
        hwloc_bitmap_copy(p->allowed, hwloc_topology_get_allowed_cpuset(p->topology));
    for (int i = 0; i < n; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(p->topology, type, (unsigned)i);
        if (hwloc_bitmap_intersects(core->cpuset, p->allowed)) p->cores[p->ncores++] = core;
    }
    return p->ncores > 0;
}

static kolorun_places_t *look(void)
{
    static const char *const off[] = {"cuda", "nvml", "rsmi", "levelzero", "opencl", "gl", "pci", "x86"};
    kolorun_places_t *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    if (hwloc_topology_init(&p->topology) != 0) {
        free(p);
        return NULL;
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) /* nothing that opens drivers */
        hwloc_topology_set_components(p->topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, off[i]);
    if (hwloc_topology_load(p->topology) == 0 && find_cores(p)) return p;
    kolorun_places_free(p);
    return NULL;
}

static const char *value_of(char *const *env, const char *name)
{
    size_t n = strlen(name);
    const char *found = NULL;
    for (; env != NULL && *env != NULL; env++) /* the last one counts, as with putenv() */
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') found = *env + n + 1;
    return found;
}

void kolorun_places_need(kolorun_places_t **places, char *const *env)
{
    wish_t wish;
    if (*places != NULL || !read_wish(value_of(env, KOLORUN_BIND_VARIABLE), value_of(env, "KOLO_LOCAL_RANK"),
                                      value_of(env, "KOLO_LOCAL_SIZE"), &wish))
        return;
    if (wish.how == KOLORUN_BIND_NONE || (wish.local_size == 1 && !wish.report)) return;
    *places = look();
}

/* The share of a rank, and its words: "bound to cores 2-3 (cpus 4-7)". */
static hwloc_bitmap_t share_of(const kolorun_places_t *p, const wish_t *wish, char *text, size_t bytes)
{
    int n = p->ncores / wish->local_size ? p->ncores / wish->local_size : 1;
    int first = (int)((long)wish->local_rank * p->ncores / wish->local_size);
    char places[128], cpus[256];
    hwloc_bitmap_t set = hwloc_bitmap_alloc(), numbers = hwloc_bitmap_alloc();
    if (set == NULL || numbers == NULL) return set;
    for (int i = first; i < first + n; i++) {
        hwloc_obj_t core = p->cores[i];
        if (wish->how != KOLORUN_BIND_NUMA) {
            hwloc_bitmap_or(set, set, core->cpuset);
            hwloc_bitmap_set(numbers, core->logical_index);
            continue;
        }
        for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(p->topology, HWLOC_OBJ_NUMANODE, node));)
            if (hwloc_bitmap_intersects(node->cpuset, core->cpuset)) {
                hwloc_bitmap_or(set, set, node->cpuset);
                hwloc_bitmap_set(numbers, node->logical_index);
            }
    }
    hwloc_bitmap_and(set, set, p->allowed);
    hwloc_bitmap_list_snprintf(places, sizeof places, numbers);
    hwloc_bitmap_list_snprintf(cpus, sizeof cpus, set);
    bool many = hwloc_bitmap_weight(numbers) != 1;
    const char *kind = wish->how == KOLORUN_BIND_NUMA ? many ? "NUMA nodes" : "NUMA node" : many ? "cores" : "core";
    snprintf(text, bytes, "bound to %s %s (%s %s)", kind, places, hwloc_bitmap_weight(set) == 1 ? "cpu" : "cpus",
             cpus);
    hwloc_bitmap_free(numbers);
    return set;
}

/* false: it is not bound, text says why. */
static bool bind_to_share(const kolorun_places_t *p, const wish_t *wish, char *text, size_t bytes)
{
    if (p == NULL) {
        snprintf(text, bytes, "not bound: hwloc cannot list the cores of this host");
        return false;
    }
    if (wish->local_size > p->ncores && wish->how != KOLORUN_BIND_NUMA) {
        snprintf(text, bytes, "not bound: %d ranks of this host may use %d core%s", wish->local_size, p->ncores,
                 p->ncores == 1 ? "" : "s");
        return false;
    }
    hwloc_bitmap_t set = share_of(p, wish, text, bytes);
    bool bound = set != NULL && hwloc_set_cpubind(p->topology, set, HWLOC_CPUBIND_PROCESS) == 0;
    if (!bound) snprintf(text, bytes, "not bound: %s", strerror(errno));
    hwloc_bitmap_free(set);
    return bound;
}

#else

void kolorun_places_free(kolorun_places_t *places)
{
    (void)places;
}

void kolorun_places_need(kolorun_places_t **places, char *const *env)
{
    (void)places;
    (void)env;
}

static bool bind_to_share(const kolorun_places_t *p, const wish_t *wish, char *text, size_t bytes)
{
    (void)p;
    (void)wish;
    snprintf(text, bytes, "not bound: this kolorun was built without hwloc");
    return false;
}

#endif

void kolorun_bind_self(const kolorun_places_t *places, int fd)
{
    char text[512] = "not bound: --bind-to none";
    wish_t wish;
    bool any =
        read_wish(getenv(KOLORUN_BIND_VARIABLE), getenv("KOLO_LOCAL_RANK"), getenv("KOLO_LOCAL_SIZE"), &wish);
    unsetenv(KOLORUN_BIND_VARIABLE);
    if (!any) return;
    bool bound = false, asked = wish.how == KOLORUN_BIND_CORE || wish.how == KOLORUN_BIND_NUMA;
    if (wish.local_size == 1 && !wish.report) return; /* all that there is */
    if (wish.how != KOLORUN_BIND_NONE) bound = bind_to_share(places, &wish, text, sizeof text);
    /* Who asked for it hears once per host that it cannot be. */
    if (wish.report || (asked && !bound && wish.local_rank == 0)) say(fd, text);
}
