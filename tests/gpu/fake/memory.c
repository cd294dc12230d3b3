/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's memory: physical allocations are memory files, so that a descriptor of one is a handle for
 * other processes; addresses are reserved, mapped and opened to devices one by one, as the driver demands
 * (plain memory: plain.c).
 */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)
#define FILE_NAME   "kolo-fake-gpu-"

static range_t *ranges;
static physical_t *physicals[4096];
static uint64_t next_id = 1, last_range;

/* ---- books ---- */

range_t *fake_find_locked(uintptr_t p, bool with_reservations)
{
    range_t *reserved = NULL;
    for (range_t *r = ranges; r; r = r->next) {
        if (p < r->start || p >= r->start + r->bytes) continue;
        if (r->kind != RESERVED) return r;
        reserved = r;
    }
    return with_reservations ? reserved : NULL;
}

range_t *fake_add_locked(kind_t kind, uintptr_t start, size_t bytes)
{
    range_t *r = calloc(1, sizeof *r);
    if (!r) abort();
    *r = (range_t){.next = ranges,
                   .id = ++last_range,
                   .kind = kind,
                   .start = start,
                   .bytes = bytes,
                   .room = bytes,
                   .device = -1};
    ranges = r;
    return r;
}

range_t *fake_exact_locked(kind_t kind, uintptr_t start)
{
    for (range_t *r = ranges; r; r = r->next)
        if (r->kind == kind && r->start == start) return r;
    return NULL;
}

void fake_remove_locked(range_t *gone)
{
    for (range_t **r = &ranges; *r; r = &(*r)->next) {
        if (*r != gone) continue;
        *r = gone->next;
        free(gone);
        return;
    }
}

static physical_t *physical_locked(uint64_t id)
{
    for (size_t i = 0; i < sizeof physicals / sizeof physicals[0]; i++)
        if (physicals[i] && physicals[i]->id == id && physicals[i]->held) return physicals[i];
    return NULL;
}

static void drop_locked(physical_t *p)
{
    if (--p->refs) return;
    for (size_t i = 0; i < sizeof physicals / sizeof physicals[0]; i++)
        if (physicals[i] == p) physicals[i] = NULL;
    close(p->fd);
    free(p);
}

static bool is_shared(int fd)
{
    char path[64], name[128] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, name, sizeof name - 1) > 0 && !strstr(name, "-private");
}

static kolo_cu_result_t keep_locked(int fd, int device, size_t bytes, kolo_cu_mem_t *mem)
{
    for (size_t i = 0; i < sizeof physicals / sizeof physicals[0]; i++) {
        if (physicals[i]) continue;
        physicals[i] = malloc(sizeof *physicals[i]);
        if (!physicals[i]) abort();
        *physicals[i] = (physical_t){.id = next_id++,
                                     .fd = fd,
                                     .device = device,
                                     .bytes = bytes,
                                     .refs = 1,
                                     .held = true,
                                     .shared = is_shared(fd)};
        *mem = physicals[i]->id;
        return KOLO_CU_SUCCESS;
    }
    close(fd);
    return fake_wrong(FAKE_NO_MEMORY, "thousands of allocations are held");
}

bool fake_usable_locked(uintptr_t p, size_t bytes, int device, bool *pageable, const char *what)
{
    range_t *r = fake_find_locked(p, true);
    if (pageable) *pageable = false;
    if (!bytes) return true;
    if (!r) {
        if (pageable) *pageable = true;
        if (!pageable) fake_wrong(0, "%s at %#zx, which is no device memory", what, (size_t)p);
        return pageable != NULL;
    }
    if (r->kind == RESERVED) return fake_wrong(0, "%s at %#zx, where nothing is mapped", what, (size_t)p), false;
    for (; r->kind == MAPPED && bytes > r->start + r->bytes - p;
         r = fake_find_locked(p, false)) { /* pieces side by side */
        range_t *next = fake_find_locked(r->start + r->bytes, false);
        if (!next || next->kind != MAPPED || !(r->open_to >> device & 1)) break;
        bytes -= r->start + r->bytes - p;
        p = next->start;
    }
    if (bytes > r->start + r->bytes - p)
        return fake_wrong(0, "%s of %zu bytes at %#zx, %zu before the end of the allocation", what, bytes,
                          (size_t)p, (size_t)(r->start + r->bytes - p)),
               false;
    if (r->kind == MAPPED && !(r->open_to >> device & 1))
        return fake_wrong(0, "%s by device %d at %#zx, to which it was given no access", what, device, (size_t)p),
               false;
    if ((r->kind == POOL || r->kind == OF_GRAPH) && r->device != device)
        return fake_wrong(0, "%s by device %d at %#zx, in a pool of device %d", what, device, (size_t)p, r->device),
               false;
    return true;
}

bool fake_is_host_locked(uintptr_t p)
{
    const range_t *r = fake_find_locked(p, false);
    return !r || r->kind == PINNED || r->kind == REGISTERED;
}

bool fake_is_mapped_locked(uintptr_t p)
{
    const range_t *r = fake_find_locked(p, false);
    return r && r->kind == MAPPED;
}

static const range_t *reserved_locked(uintptr_t p)
{
    for (const range_t *r = ranges; r; r = r->next)
        if (r->kind == RESERVED && p >= r->start && p < r->start + r->bytes) return r;
    fake_abort("a mapping at %#zx, where nothing is reserved", (size_t)p);
}

/* ---- exported: what a pointer is ---- */

kolo_cu_result_t cuMemGetAddressRange_v2(kolo_cu_ptr_t *base, size_t *bytes, kolo_cu_ptr_t p)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    const range_t *r = fake_find_locked((uintptr_t)p, false);
    if (r) {
        *base = r->start;
        *bytes = r->bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    return r ? KOLO_CU_SUCCESS : FAKE_NOT_FOUND;
}

kolo_cu_result_t cuPointerGetAttributes(unsigned n, int *attributes, void **data, kolo_cu_ptr_t p)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    const range_t *r = fake_find_locked((uintptr_t)p, false);
    range_t none = {.device = -2};
    if (r && r->kind == OF_GRAPH) r = NULL; /* as the real one tells */
    bool known = r != NULL, fine = true;
    if (!r) r = &none;
    const range_t *around = r->kind == MAPPED ? reserved_locked((uintptr_t)p) : r; /* as the real one tells */
    unsigned type = !known ? 0 : r->kind >= PINNED ? KOLO_CU_MEMORY_HOST : KOLO_CU_MEMORY_DEVICE;
    for (unsigned i = 0; i < n && fine; i++) {
        switch (attributes[i]) {
        case KOLO_CU_POINTER_MEMORY_TYPE:
            memcpy(data[i], &type, sizeof type);
            break;
        case KOLO_CU_POINTER_DEVICE:
            memcpy(data[i], &r->device, sizeof r->device);
            break;
        case KOLO_CU_POINTER_BUFFER_ID:
            memcpy(data[i], &r->id, sizeof r->id);
            break;
        case KOLO_CU_POINTER_RANGE_START:
            memcpy(data[i], &(kolo_cu_ptr_t){around->start}, sizeof(kolo_cu_ptr_t));
            break;
        case KOLO_CU_POINTER_RANGE_SIZE:
            memcpy(data[i], &around->bytes, sizeof around->bytes);
            break;
        case KOLO_CU_POINTER_LEGACY_IPC:
            memcpy(data[i], &(int){r->kind == PLAIN}, sizeof(int));
            break;
        case KOLO_CU_POINTER_DEVICE_POINTER:
            memcpy(data[i], &p, sizeof p);
            break;
        case KOLO_CU_POINTER_MANAGED:
            memcpy(data[i], &(unsigned){r->kind == MANAGED}, sizeof(unsigned));
            break;
        case KOLO_CU_POINTER_HANDLE_TYPES:
            memcpy(data[i], &(uint64_t){r->kind == MAPPED && r->physical->shared ? KOLO_CU_HANDLE_FD : 0}, 8);
            break;
        default:
            fake_wrong(0, "pointer attribute %d is not known here", attributes[i]);
            fine = false;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return fine ? KOLO_CU_SUCCESS : FAKE_INVALID_VALUE;
}

/* ---- exported: virtual memory management ---- */

static bool good_prop(const kolo_cu_mem_prop_t *prop)
{
    return prop->type == KOLO_CU_PINNED && prop->location.type == KOLO_CU_LOCATION_DEVICE &&
           prop->location.id >= 0 && prop->location.id < fake_devices() &&
           (prop->handles == 0 || prop->handles == KOLO_CU_HANDLE_FD);
}

kolo_cu_result_t cuMemGetAllocationGranularity(size_t *bytes, const kolo_cu_mem_prop_t *prop, int option)
{
    FAKE_READY();
    if (!good_prop(prop) || option < 0 || option > KOLO_CU_GRANULARITY_RECOMMENDED)
        return fake_wrong(FAKE_INVALID_VALUE, "granularity of memory that cannot be made");
    *bytes = GRANULARITY;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuMemCreate(kolo_cu_mem_t *mem, size_t bytes, const kolo_cu_mem_prop_t *prop,
                             unsigned long long flags)
{
    char name[64];
    FAKE_READY();
    if (!good_prop(prop) || flags) return fake_wrong(FAKE_INVALID_VALUE, "cuMemCreate: properties make no sense");
    if (!bytes || bytes % GRANULARITY)
        return fake_wrong(FAKE_INVALID_VALUE, "cuMemCreate: %zu bytes are no multiple of %zu", bytes, GRANULARITY);
    int device = fake_device_of_machine(prop->location.id);
    snprintf(name, sizeof name, FILE_NAME "%d%s", device, prop->handles ? "" : "-private");
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        if (fd >= 0) close(fd);
        return fake_wrong(FAKE_NO_MEMORY, "no memory file of %zu bytes: %s", bytes, strerror(errno));
    }
    pthread_mutex_lock(&fake_lock);
    kolo_cu_result_t r = keep_locked(fd, device, bytes, mem);
    pthread_mutex_unlock(&fake_lock);
    return r;
}

kolo_cu_result_t cuMemRelease(kolo_cu_mem_t mem)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    physical_t *p = physical_locked(mem);
    if (p) {
        p->held = false;
        drop_locked(p);
    }
    pthread_mutex_unlock(&fake_lock);
    return p ? KOLO_CU_SUCCESS
             : fake_wrong(FAKE_INVALID_VALUE, "cuMemRelease: %llu is no allocation that is held", mem);
}

/* One more holder; the mapping keeps the memory as it is. */
kolo_cu_result_t cuMemRetainAllocationHandle(kolo_cu_mem_t *mem, void *at)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    const range_t *r = fake_find_locked((uintptr_t)at, false);
    bool mapped = r && r->kind == MAPPED;
    kolo_cu_result_t why = FAKE_INVALID_VALUE;
    if (mapped) {
        int fd = fcntl(r->physical->fd, F_DUPFD_CLOEXEC, 3);
        why = fd < 0 ? FAKE_NO_MEMORY : keep_locked(fd, r->physical->device, r->physical->bytes, mem);
    }
    pthread_mutex_unlock(&fake_lock);
    return mapped ? why : fake_wrong(FAKE_INVALID_VALUE, "cuMemRetainAllocationHandle: %p is no mapping", at);
}

kolo_cu_result_t cuMemAddressReserve(kolo_cu_ptr_t *p, size_t bytes, size_t align, kolo_cu_ptr_t at,
                                     unsigned long long flags)
{
    FAKE_READY();
    if (!align) align = GRANULARITY;
    if (!bytes || bytes % GRANULARITY || align & (align - 1) || flags)
        return fake_wrong(FAKE_INVALID_VALUE, "cuMemAddressReserve(%zu, align %zu)", bytes, align);
    (void)at; /* a wish */
    if (align < GRANULARITY) align = GRANULARITY;
    char *all = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return fake_wrong(FAKE_NO_MEMORY, "no addresses: %s", strerror(errno));
    size_t head = (align - (uintptr_t)all % align) % align;
    if (head) munmap(all, head);
    if (align - head) munmap(all + head + bytes, align - head);
    pthread_mutex_lock(&fake_lock);
    fake_add_locked(RESERVED, (uintptr_t)all + head, bytes);
    pthread_mutex_unlock(&fake_lock);
    *p = (uintptr_t)all + head;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuMemAddressFree(kolo_cu_ptr_t p, size_t bytes)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_exact_locked(RESERVED, (uintptr_t)p);
    bool used = false, good = r && r->bytes == bytes;
    for (range_t *m = ranges; m && good; m = m->next)
        used = used || (m->kind == MAPPED && m->start >= r->start && m->start < r->start + r->bytes);
    if (good && !used) {
        munmap((void *)(uintptr_t)p, bytes); /* NOLINT: a driver's address */
        fake_remove_locked(r);
    }
    pthread_mutex_unlock(&fake_lock);
    if (!good) return fake_wrong(FAKE_INVALID_VALUE, "cuMemAddressFree: %#llx is no reservation of %zu", p, bytes);
    return used ? fake_wrong(FAKE_INVALID_VALUE, "cuMemAddressFree: memory is still mapped at %#llx", p)
                : KOLO_CU_SUCCESS;
}

__attribute__((visibility("default"))) _Atomic int fake_imports_mapped; /* for tests */
kolo_cu_result_t cuMemMap(kolo_cu_ptr_t p, size_t bytes, size_t offset, kolo_cu_mem_t mem, unsigned long long flags)
{
    FAKE_READY();
    kolo_cu_result_t result = FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    range_t *space = fake_find_locked((uintptr_t)p, true);
    physical_t *physical = physical_locked(mem);
    if (!physical || offset || flags || bytes != physical->bytes) {
        fake_wrong(0, "cuMemMap: handle, offset or length (%zu) are wrong", bytes);
    } else if (!space || space->kind != RESERVED || p % GRANULARITY || bytes > space->start + space->bytes - p) {
        fake_wrong(0, "cuMemMap: %#llx is not reserved or in use", p);
    } else if (mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0) ==
               MAP_FAILED) { /* NOLINT */
        result = fake_wrong(FAKE_NO_MEMORY, "cuMemMap: %s", strerror(errno));
    } else {
        range_t *r = fake_add_locked(MAPPED, (uintptr_t)p, bytes);
        r->physical = physical;
        r->device = fake_device_here(physical->device);
        physical->refs++;
        fake_imports_mapped += physical->foreign;
        result = KOLO_CU_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

kolo_cu_result_t cuMemUnmap(kolo_cu_ptr_t p, size_t bytes)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    range_t *r = fake_exact_locked(MAPPED, (uintptr_t)p);
    bool good = r && r->bytes == bytes;
    if (good) {
        void *at = (void *)(uintptr_t)p; /* NOLINT */
        if (mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            fake_abort("cannot unmap: %s", strerror(errno));
        fake_imports_mapped -= r->physical->foreign;
        drop_locked(r->physical);
        fake_remove_locked(r);
    }
    pthread_mutex_unlock(&fake_lock);
    return good ? KOLO_CU_SUCCESS
                : fake_wrong(FAKE_INVALID_VALUE, "cuMemUnmap: %zu bytes at %#llx are no mapping", bytes, p);
}

static void open_locked(range_t *r, const kolo_cu_access_t *who, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bit = 1u << who[i].location.id;
        r->open_to = who[i].flags ? r->open_to | bit : r->open_to & ~bit;
    }
    void *at = (void *)r->start; /* NOLINT: a driver's address */
    if (r->open_to ? fake_protect(at, r->bytes) : mprotect(at, r->bytes, PROT_NONE))
        fake_abort("cannot change the protection: %s", strerror(errno));
}

/* Whole mappings, side by side, from p to the end. */
static bool mappings_locked(uintptr_t p, uintptr_t end)
{
    while (p < end) {
        const range_t *r = fake_exact_locked(MAPPED, p);
        if (!r || r->bytes > end - p) return false;
        p += r->bytes;
    }
    return true;
}

kolo_cu_result_t cuMemSetAccess(kolo_cu_ptr_t p, size_t bytes, const kolo_cu_access_t *who, size_t n)
{
    FAKE_READY();
    for (size_t i = 0; i < n; i++)
        if (who[i].location.type != KOLO_CU_LOCATION_DEVICE || who[i].location.id < 0 ||
            who[i].location.id >= fake_devices() ||
            (who[i].flags != 0 && who[i].flags != KOLO_CU_ACCESS_READ_WRITE))
            return fake_wrong(FAKE_INVALID_VALUE, "cuMemSetAccess: who or what makes no sense");
    pthread_mutex_lock(&fake_lock);
    bool good = bytes && mappings_locked((uintptr_t)p, (uintptr_t)p + bytes);
    for (uintptr_t at = (uintptr_t)p; good && at < (uintptr_t)p + bytes;) {
        range_t *r = fake_exact_locked(MAPPED, at);
        for (size_t i = 0; i < n && fake_apart(); i++)
            good = good && r->physical->device == fake_device_of_machine(who[i].location.id);
        if (!good) break;
        open_locked(r, who, n);
        at += r->bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    return good ? KOLO_CU_SUCCESS
                : fake_wrong(FAKE_INVALID_VALUE,
                             "cuMemSetAccess: %zu bytes at %#llx are no mappings, or of a device apart", bytes, p);
}

kolo_cu_result_t cuMemGetAccess(unsigned long long *flags, const kolo_cu_location_t *who, kolo_cu_ptr_t p)
{
    FAKE_READY();
    if (who->type != KOLO_CU_LOCATION_DEVICE || who->id < 0 || who->id >= fake_devices())
        return fake_wrong(FAKE_INVALID_VALUE, "cuMemGetAccess: who makes no sense");
    pthread_mutex_lock(&fake_lock);
    const range_t *r = fake_find_locked((uintptr_t)p, false);
    bool mapped = r && r->kind == MAPPED, other = r && (r->kind == MANAGED || r->kind == POOL);
    *flags = mapped && (r->open_to & 1u << who->id) ? KOLO_CU_ACCESS_READ_WRITE : 0;
    pthread_mutex_unlock(&fake_lock);
    if (other) return FAKE_INVALID_VALUE; /* asked of any memory: no reason for words */
    return mapped ? KOLO_CU_SUCCESS
                  : fake_wrong(FAKE_INVALID_VALUE, "cuMemGetAccess: %#llx is no mapping", (unsigned long long)p);
}

kolo_cu_result_t cuMemExportToShareableHandle(void *handle, kolo_cu_mem_t mem, int type, unsigned long long flags)
{
    FAKE_READY();
    pthread_mutex_lock(&fake_lock);
    const physical_t *p = physical_locked(mem);
    int fd = -1;
    if (p && type == KOLO_CU_HANDLE_FD && !flags && p->shared) fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 3);
    pthread_mutex_unlock(&fake_lock);
    if (fd < 0) return fake_wrong(FAKE_INVALID_VALUE, "memory %llu cannot be exported", mem);
    memcpy(handle, &fd, sizeof fd);
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuMemImportFromShareableHandle(kolo_cu_mem_t *mem, void *handle, int type)
{
    char path[64], name[128] = "";
    struct stat st;
    int fd = (int)(intptr_t)handle, device = -1;
    FAKE_READY();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (type == KOLO_CU_HANDLE_FD && readlink(path, name, sizeof name - 1) > 0)
        if (sscanf(name, "/memfd:" FILE_NAME "%d", &device) != 1) device = -1;
    if (device < 0 || fstat(fd, &st) != 0)
        return fake_wrong(FAKE_INVALID_VALUE, "descriptor %d (%s) is no exported memory", fd, name);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) return fake_wrong(FAKE_NO_MEMORY, "no descriptor: %s", strerror(errno));
    pthread_mutex_lock(&fake_lock);
    kolo_cu_result_t r = keep_locked(own, device, (size_t)st.st_size, mem);
    if (!r) physical_locked(*mem)->foreign = true;
    pthread_mutex_unlock(&fake_lock);
    return r;
}
