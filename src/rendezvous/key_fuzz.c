/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of keys: what is taken for one is exactly what would be made of its parts.
 */
#include "rendezvous/key.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_tensor_key_t key;
    char again[KOLO_TENSOR_KEY_MAX + 1], task[KOLO_TASK_NAME_MAX + 1];
    if (kolo_rendezvous_key_decode((const char *)data, size, &key) != NULL) return 0;
    if (kolo_tensor_key_make(&key, again, sizeof again) != KOLO_OK) abort();
    if (strlen(again) != size || memcmp(again, data, size) != 0) abort();
    kolo_device_task(key.src_device, task);
    if (kolo_task_name_check(task) != NULL || !kolo_device_is_of(key.src_device, task)) abort();
    return 0;
}
