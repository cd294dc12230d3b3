/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffers of a state and their copies. See state.h.
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

kolo_status_t kolo_state_register(kolo_state_t s, const char *name, void *buffer, size_t bytes)
{
    KOLO_TRY(kolo_state_check(s, "state_register"));
    if (s->now)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_register: buffers are registered before kolo_state_run()");
    size_t length = name ? strnlen(name, KOLO_STATE_NAME_MAX + 1) : 0;
    if (length == 0 || length > KOLO_STATE_NAME_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_register: a name has 1 to %d bytes",
                         KOLO_STATE_NAME_MAX);
    if (!buffer || bytes == 0 || bytes > SIZE_MAX / 4 - s->bytes)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_register: \"%s\" is at %p and has %zu bytes", name,
                         buffer, bytes);
    for (size_t i = 0; i < s->nparts; i++)
        if (strcmp(s->parts[i].name, name) == 0)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_register: there is a \"%s\" already", name);
    kolo_state_part_t *parts = realloc(s->parts, (s->nparts + 1) * sizeof *parts);
    if (!parts) return kolo_fail(KOLO_ERR_NO_MEMORY, "state_register: out of memory");
    s->parts = parts;
    parts[s->nparts] = (kolo_state_part_t){.buffer = buffer, .bytes = bytes};
    memcpy(parts[s->nparts++].name, name, length + 1);
    s->bytes += bytes;
    return KOLO_OK;
}

kolo_status_t kolo_state_destroy(kolo_state_t s)
{
    if (!s) return KOLO_OK;
    KOLO_TRY(kolo_state_check(s, "state_destroy"));
    if (s->running)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "state_destroy: not from the function of kolo_state_run(); return from it first");
    if (s->comm) kolo_comm_abort(s->comm);
    kolo_state_link_close(&s->link);
    (void)kolo_slot_end(s);
    free(s->parts);
    free(s->now);
    free(s->next);
    free(s->workers);
    kolo_slots_give(&states, s);
    return KOLO_OK;
}

/* ---- copies ---- */

void kolo_state_copy_out(kolo_state_t s, unsigned char *copy)
{
    for (size_t i = 0; i < s->nparts; copy += s->parts[i++].bytes)
        memcpy(copy, s->parts[i].buffer, s->parts[i].bytes);
}

void kolo_state_promote(kolo_state_t s)
{
    unsigned char *old = s->now;
    s->now = s->next;
    s->next = old;
    s->has_next = false;
}

kolo_status_t kolo_state_restore(kolo_state_t s)
{
    KOLO_TRY(kolo_state_check(s, "state_restore"));
    if (s->number == 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_restore: nothing has been committed yet");
    const unsigned char *from = s->now;
    for (size_t i = 0; i < s->nparts; from += s->parts[i++].bytes)
        memcpy(s->parts[i].buffer, from, s->parts[i].bytes);
    return KOLO_OK;
}

/* ---- queries ---- */

kolo_status_t kolo_state_comm(kolo_state_t s, kolo_comm_t *comm)
{
    KOLO_TRY(kolo_state_check(s, "state_comm"));
    if (!comm || !s->comm)
        return kolo_fail(comm ? KOLO_ERR_INVALID_USAGE : KOLO_ERR_INVALID_ARGUMENT, "state_comm: %s",
                         comm ? "there is a communicator only inside kolo_state_run()" : "comm is NULL");
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
