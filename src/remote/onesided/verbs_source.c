/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's memory that writes read from. It must be registered with the network card, which costs more than
 * writing 1 MB; so memory that was sent once stays registered, as a range of mem (range.h): the kernel reports when
 * its pages go away, and then the range is not used any more. Memory that the program has registered
 * (kolo_comm_register) is found in the same way. Where the kernel does not report, memory is registered for each
 * write.
 */
#include "remote/onesided/verbs.h"

#include <errno.h>
#include <stdlib.h>

#define KEPT    64
#define REFUSED 16 /* times that the kernel did not watch memory; then it is not asked any more */

struct kolo_verbs_sources {
    kolo_mem_pinner_t pinner;
    kolo_net_open_t *device;
    kolo_mem_range_t *kept[KEPT]; /* the last one was used first */
    uint64_t bytes[KEPT], all_bytes;
    uint32_t n, refused;
};

static kolo_status_t pin(void *arg, void *memory, size_t bytes, void **handle)
{
    const struct kolo_verbs_sources *s = arg;
    struct ibv_mr *mr = kolo_verbs.reg_mr(s->device->pd, memory, bytes, 0);
    if (mr == NULL) return kolo_verbs_fail_register(s->device, "one-sided", bytes, errno);
    kolo_onesided_count_card(0, 0, 1);
    *handle = mr;
    return KOLO_OK;
}

static void unpin(void *arg, void *handle)
{
    (void)arg;
    kolo_verbs.dereg_mr(handle);
}

kolo_status_t kolo_verbs_sources_open(kolo_onesided_domain_t *domain)
{
    struct kolo_verbs_sources *s = calloc(1, sizeof *s);
    if (s == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for a device");
    s->device = domain->device;
    s->pinner = (kolo_mem_pinner_t){.pin = pin, .unpin = unpin, .arg = s};
    domain->sources = s;
    return KOLO_OK;
}

static void drop(struct kolo_verbs_sources *s, uint32_t i)
{
    kolo_mem_range_deregister(s->kept[i]);
    s->all_bytes -= s->bytes[i];
    for (s->n--; i < s->n; i++) {
        s->kept[i] = s->kept[i + 1];
        s->bytes[i] = s->bytes[i + 1];
    }
}

void kolo_verbs_sources_close(kolo_onesided_domain_t *domain)
{
    struct kolo_verbs_sources *s = domain->sources;
    if (s == NULL) return;
    while (s->n > 0) drop(s, s->n - 1);
    kolo_mem_pinner_leave(&s->pinner);
    free(s);
    domain->sources = NULL;
}

/* Makes room for `bytes` more: drops what has gone, then what was kept first. */
static void make_room(struct kolo_verbs_sources *s, uint64_t bytes)
{
    for (uint32_t i = s->n; i-- > 0;)
        if (!kolo_mem_range_works(s->kept[i])) drop(s, i);
    while (s->n > 0 && (s->n == KEPT || s->all_bytes + bytes > (uint64_t)kolo_onesided_param_sources)) drop(s, 0);
}

/* Returns a range around it, in use; NULL: there is none, and none is to be had. */
static kolo_mem_range_t *find_range(struct kolo_verbs_sources *s, const void *data, uint64_t bytes)
{
    kolo_mem_range_t *range = kolo_mem_range_find(data, (size_t)bytes);
    if (range || bytes > (uint64_t)kolo_onesided_param_sources || s->refused >= REFUSED) return range;
    make_room(s, bytes);
    if (kolo_mem_range_keep((void *)(uintptr_t)data, (size_t)bytes, &s->kept[s->n]) != KOLO_OK) return NULL;
    s->bytes[s->n] = bytes;
    s->all_bytes += bytes;
    range = kolo_mem_range_works(s->kept[s->n++]) ? kolo_mem_range_find(data, (size_t)bytes) : NULL;
    if (range) return range;
    s->refused++;
    drop(s, s->n - 1);
    return NULL;
}

static kolo_status_t enter_range(kolo_onesided_domain_t *domain, kolo_verbs_source_t *source)
{
    void *handle;
    source->range = find_range(domain->sources, source->base, source->bytes);
    if (source->range == NULL) return KOLO_ERR_UNSUPPORTED;
    if (kolo_mem_range_pin(source->range, &domain->sources->pinner, &handle) == KOLO_OK) {
        source->mr = handle;
        return KOLO_OK;
    }
    kolo_mem_range_put(source->range); /* it may have gone this moment, or there are too many of them */
    source->range = NULL;
    return KOLO_ERR_UNSUPPORTED;
}

kolo_status_t kolo_verbs_source_enter(kolo_onesided_t *end, const void *data, uint64_t bytes,
                                      kolo_verbs_source_t **out)
{
    kolo_onesided_verbs_t *v = end->state[KOLO_ONESIDED_VERBS];
    const char *base = data;
    for (kolo_verbs_source_t *s = v->sources; s; s = s->next)
        if (base >= s->base && bytes <= s->bytes && (uint64_t)(base - s->base) <= s->bytes - bytes) {
            s->writes++;
            *out = s;
            return KOLO_OK;
        }
    kolo_verbs_source_t *source = malloc(sizeof *source);
    if (source == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for a write to %s", end->who);
    *source = (kolo_verbs_source_t){.base = base, .bytes = bytes, .writes = 1};
    kolo_status_t status = enter_range(end->domain, source);
    if (status != KOLO_OK) {
        void *handle = NULL;
        status = pin(end->domain->sources, (void *)(uintptr_t)base, (size_t)bytes, &handle);
        source->mr = handle;
    }
    if (status != KOLO_OK) {
        free(source);
        return status;
    }
    source->next = v->sources;
    v->sources = source;
    *out = source;
    return KOLO_OK;
}

void kolo_verbs_source_leave(kolo_onesided_verbs_t *v, kolo_verbs_source_t *source)
{
    if (source == NULL || --source->writes > 0) return;
    kolo_verbs_source_t **at = &v->sources;
    while (*at != source) at = &(*at)->next;
    *at = source->next;
    if (source->range)
        kolo_mem_range_put(source->range);
    else
        unpin(NULL, source->mr);
    free(source);
}
