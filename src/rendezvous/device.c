/* SPDX-License-Identifier: Apache-2.0
 *
 * Values on devices. Between tasks they go through host memory: the task that sends brings them there when
 * another task wants them; the receiving task copies them to their destination.
 */
#include "mem/cuda/cuda.h"
#include "mem/mem.h"
#include "rendezvous/internal.h"

#include <stdlib.h>

kolo_status_t kolo_rendezvous_device_check(const void *memory, const char *what)
{
    kolo_mem_place_t place = {.device = -1};
    kolo_cuda_load_if_used();
    kolo_mem_find(memory, &place);
    if (place.device >= 0) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s is to be memory of a device, but %p is none", what, memory);
}

kolo_status_t kolo_rendezvous_device_copy(void *to, const void *from, size_t bytes)
{
    kolo_mem_place_t here, there;
    kolo_mem_find(from, &here);
    kolo_mem_find(to, &there);
    if (here.device < 0) return there.ops->write(there.device, to, from, bytes);
    if (there.device < 0) return here.ops->read(here.device, to, from, bytes);
    void *between = malloc(bytes);
    if (between == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for %zu bytes", bytes);
    kolo_status_t status = here.ops->read(here.device, between, from, bytes);
    if (status == KOLO_OK) status = there.ops->write(there.device, to, between, bytes);
    free(between);
    return status;
}

kolo_status_t kolo_rendezvous_device_bring(kolo_value_t *value)
{
    kolo_value_t theirs = *value;
    void *memory = malloc(value->bytes);
    if (memory == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for %zu bytes", value->bytes);
    kolo_status_t status = kolo_rendezvous_device_copy(memory, value->data, value->bytes);
    if (status != KOLO_OK) {
        free(memory);
        return status;
    }
    value->data = memory;
    value->release = free;
    value->arg = memory;
    return kolo_value_release(&theirs);
}
