/* SPDX-License-Identifier: Apache-2.0
 *
 * The variants: Kolo beside itself with other parameters. See peers_gpu.h and again.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "peers_gpu.h"

#include "../again.h"

kolo_functions_t kolos[MOST_LIBRARIES] = {
    [KOLO] = {kolo_get_last_error, kolo_get_unique_id, kolo_comm_init_rank, kolo_comm_finalize, kolo_comm_destroy,
              kolo_group_start, kolo_group_end, kolo_all_reduce, kolo_all_gather, kolo_reduce_scatter,
              kolo_broadcast, kolo_reduce, kolo_all_to_all, kolo_gather, kolo_scatter, kolo_send, kolo_recv}};

void kolos_must(library_t library, kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    die("%s%s%s: %s", library < VARIANT ? "" : "a variant's ", library < VARIANT ? "kolo_" : "", what,
        kolos[library].get_last_error(NULL));
}

static void find_all(void *library, kolo_functions_t *f)
{
    static const char *const names[] = {"kolo_get_last_error", "kolo_get_unique_id", "kolo_comm_init_rank",
                                        "kolo_comm_finalize",  "kolo_comm_destroy",  "kolo_group_start",
                                        "kolo_group_end",      "kolo_all_reduce",    "kolo_all_gather",
                                        "kolo_reduce_scatter", "kolo_broadcast",     "kolo_reduce",
                                        "kolo_all_to_all",     "kolo_gather",        "kolo_scatter",
                                        "kolo_send",           "kolo_recv"};
    _Static_assert(sizeof names / sizeof names[0] == sizeof *f / sizeof(void *), "a name for each");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *found = dlsym(library, names[i]);
        if (!found) die("%s", dlerror());
        memcpy((char *)f + i * sizeof found, &found, sizeof found);
    }
}

/* The first call, which reads the parameters. */
static void first_call(library_t library)
{
    kolos_must(library, kolos[library].group_start(), "group_start()");
    kolos_must(library, kolos[library].group_end(), "group_end()");
}

/* Takes "library=FILE" off the front of a variant's settings: FILE, or the one that runs. */
static const char *library_of(const char **settings, const char *running, char *file, size_t room)
{
    static const char key[] = "library=";
    if (strncmp(*settings, key, sizeof key - 1) != 0) return running;
    const char *name = *settings + sizeof key - 1;
    size_t length = strcspn(name, ",");
    if (length >= room) die("--variant %s: its file has too long a name", *settings);
    memcpy(file, name, length);
    file[length] = 0;
    *settings = name + length + (name[length] == ',');
    return file;
}

void variants_open(const options_t *o)
{
    Dl_info info;
    again_t again;
    char name[512];
    first_call(KOLO);
    if (!dladdr(*(void **)&kolos[KOLO].get_last_error, &info)) die("no file of libkolo.so");
    for (int i = 0; i < o->nvariants; i++) {
        library_t library = (library_t)(VARIANT + i);
        const char *settings = o->variants[i], *file = library_of(&settings, info.dli_fname, name, sizeof name);
        void *loaded = again_load(file);
        if (!loaded) die("%s cannot be loaded beside it", file);
        find_all(loaded, &kolos[library]);
        if (!again_enter(&again, settings)) die("--variant %s: want [library=FILE,]KEY=VALUE,...", o->variants[i]);
        first_call(library);
        again_leave(&again);
    }
}
