/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffers and values of a state. See state.h.
 */
#include "elastic/state.h"

#include "base/params.h"
#include "comm/params.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static kolo_slots_t states = KOLO_SLOTS_OF(struct kolo_state);

kolo_status_t kolo_state_check(kolo_state_t s, const char *what)
{
    if (!s) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the state is NULL", what);
    if (kolo_slot_lives(s)) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not a state, or one that was destroyed", what,
                     (void *)s);
}

/* ---- life ---- */

kolo_status_t kolo_state_create(kolo_state_t *state, const kolo_state_config_t *config)
{
    kolo_state_config_t c = KOLO_STATE_CONFIG_INITIALIZER;
    KOLO_TRY(kolo_comm_library_init());
    if (!state) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_create: state is NULL");
    if (config &&
        (config->magic != KOLO_STATE_CONFIG_MAGIC ||
         config->size < offsetof(kolo_state_config_t, change_timeout_ms) + sizeof(int) || config->size > 4096))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "state_create: the config was not made from KOLO_STATE_CONFIG_INITIALIZER");
    if (config) memcpy(&c, config, config->size < sizeof c ? config->size : sizeof c);
    if (c.min_ranks == KOLO_UNDEFINED_INT) c.min_ranks = 1;
    if (c.change_timeout_ms == KOLO_UNDEFINED_INT) c.change_timeout_ms = (int)kolo_state_change_ms;
    if (c.min_ranks < 1 || c.change_timeout_ms < 1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "state_create: min_ranks is %d and change_timeout_ms %d, expected at least 1", c.min_ranks,
                         c.change_timeout_ms);
    kolo_state_t s = kolo_slots_take(&states);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "state_create: out of memory");
    s->config = c;
    s->min = c.min_ranks;
    s->plan_source = s->link.watch = -1;
    *state = s;
    return KOLO_OK;
}

/* Finds a part by its name, which is checked. NULL: there is none. */
static kolo_status_t find(kolo_state_t s, const char *what, const char *name, kolo_state_part_t **part)
{
    size_t length = name ? strnlen(name, KOLO_STATE_NAME_MAX + 1) : 0;
    *part = NULL;
    if (length == 0 || length > KOLO_STATE_NAME_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: a name has 1 to %d bytes", what, KOLO_STATE_NAME_MAX);
    for (size_t i = 0; i < s->nparts && !*part; i++)
        if (strcmp(s->parts[i].name, name) == 0) *part = &s->parts[i];
    return KOLO_OK;
}

static kolo_status_t add(kolo_state_t s, const char *what, const char *name, kolo_state_part_t **part)
{
    if (s->entered)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "%s: there is no \"%s\", and new names come before kolo_state_run() or kolo_state_enter()",
                         what, name);
    kolo_state_part_t *parts = realloc(s->parts, (s->nparts + 1) * sizeof *parts);
    if (!parts) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory", what);
    s->parts = parts;
    *part = &parts[s->nparts++];
    **part = (kolo_state_part_t){0};
    memcpy((*part)->name, name, strlen(name) + 1);
    return KOLO_OK;
}

kolo_status_t kolo_state_register(kolo_state_t s, const char *name, void *buffer, size_t bytes)
{
    kolo_state_part_t *part = NULL;
    KOLO_TRY(kolo_state_check(s, "state_register"));
    if (s->entered)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_register: buffers are registered before kolo_state_run()");
    KOLO_TRY(find(s, "state_register", name, &part));
    if (!buffer || bytes == 0 || bytes > SIZE_MAX / 4 - s->bytes)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_register: \"%s\" %s", name,
                         !buffer      ? "is at NULL"
                         : bytes == 0 ? "has 0 bytes"
                                      : "has too many bytes (a negative number?)");
    if (part) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_register: there is a \"%s\" already", name);
    KOLO_TRY(add(s, "state_register", name, &part));
    part->buffer = buffer;
    part->bytes = bytes;
    s->bytes += bytes;
    return KOLO_OK;
}

static kolo_status_t check_value(const kolo_state_part_t *part, const char *what)
{
    if (!part || part->is_value) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: \"%s\" is a buffer, which the program reads and writes itself",
                     what, part->name);
}

kolo_status_t kolo_state_put(kolo_state_t s, const char *name, const void *data, size_t bytes)
{
    kolo_state_part_t *part = NULL;
    KOLO_TRY(kolo_state_check(s, "state_put"));
    KOLO_TRY(find(s, "state_put", name, &part));
    KOLO_TRY(check_value(part, "state_put"));
    if ((!data && bytes > 0) || bytes > SIZE_MAX / 4)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_put: \"%s\" %s", name,
                         data ? "has too many bytes (a negative number?)" : "is at NULL");
    unsigned char *copy = bytes > 0 ? malloc(bytes) : NULL;
    if (bytes > 0 && !copy)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "state_put: out of memory for \"%s\", %zu bytes", name, bytes);
    kolo_status_t status = part ? KOLO_OK : add(s, "state_put", name, &part);
    if (status != KOLO_OK) {
        free(copy);
        return status;
    }
    if (!part->is_value) s->nvalues++;
    if (bytes > 0) memcpy(copy, data, bytes); /* which may lie in the old value */
    free(part->buffer);
    part->is_value = true;
    part->buffer = copy;
    part->bytes = bytes;
    return KOLO_OK;
}

kolo_status_t kolo_state_get(kolo_state_t s, const char *name, const void **data, size_t *bytes)
{
    kolo_state_part_t *part = NULL;
    KOLO_TRY(kolo_state_check(s, "state_get"));
    KOLO_TRY(find(s, "state_get", name, &part));
    KOLO_TRY(check_value(part, "state_get"));
    if (!data || !bytes) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_get: the output is NULL");
    if (!part) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_get: there is no \"%s\"", name);
    *data = part->buffer;
    *bytes = part->bytes;
    return KOLO_OK;
}

kolo_status_t kolo_state_destroy(kolo_state_t s)
{
    if (!s) return KOLO_OK;
    KOLO_TRY(kolo_state_check(s, "state_destroy"));
    if (s->calling)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "state_destroy: not from the function of kolo_state_run(); return from it first");
    if (s->comm) kolo_comm_abort(s->comm);
    kolo_state_link_close(&s->link);
    (void)kolo_slot_end(s);
    for (size_t i = 0; i < s->nparts; i++)
        if (s->parts[i].is_value) free(s->parts[i].buffer);
    free(s->parts);
    kolo_state_copies_close(s);
    free(s->workers);
    kolo_slots_give(&states, s);
    return KOLO_OK;
}

/* ---- what is in it ---- */

kolo_status_t kolo_state_restore(kolo_state_t s)
{
    KOLO_TRY(kolo_state_check(s, "state_restore"));
    if (s->number == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_restore: nothing has been committed yet");
    return kolo_state_copy_in(s, &s->now);
}

/* ---- queries ---- */

kolo_status_t kolo_state_comm(kolo_state_t s, kolo_comm_t *comm)
{
    KOLO_TRY(kolo_state_check(s, "state_comm"));
    if (!comm || !s->comm)
        return kolo_fail(comm ? KOLO_ERR_INVALID_USAGE : KOLO_ERR_INVALID_ARGUMENT, "state_comm: %s",
                         comm ? "there is a communicator only inside kolo_state_run(), or after kolo_state_next()"
                              : "comm is NULL");
    *comm = s->comm;
    return KOLO_OK;
}

kolo_status_t kolo_state_get_info(kolo_state_t s, kolo_state_info_t *info)
{
    KOLO_TRY(kolo_state_check(s, "state_get_info"));
    if (!info) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_get_info: info is NULL");
    *info = (kolo_state_info_t){.rank = s->rank,
                                .nranks = s->nranks,
                                .commits = s->number ? s->number - 1 : 0,
                                .changes = s->changes,
                                .losses = s->losses,
                                .plan = s->plan,
                                .synced = s->synced};
    return KOLO_OK;
}
