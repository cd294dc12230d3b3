/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of tensors: the one place where they are made and taken apart, and the names of tasks and devices in them.
 * All functions are pure; what they read may come from another process.
 */
#ifndef KOLO_RENDEZVOUS_KEY_H
#define KOLO_RENDEZVOUS_KEY_H

#include "base/status.h"

#include <kolo/rendezvous.h>
#include <stdbool.h>
#include <string.h>

#define KOLO_TASK_NAME_MAX 95 /* bytes */

/* Hashes a key or a part of one, eight bytes at a time, since each value is looked up several times. For tables of
 * this process alone. */
static inline uint64_t kolo_key_hash(const char *text)
{
    size_t n = strlen(text);
    uint64_t hash = n, word;
    for (; n >= sizeof word; text += sizeof word, n -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, n);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

/* Returns NULL when fine, else what is wrong. `text` need not be terminated. */
const char *kolo_rendezvous_key_decode(const char *text, size_t length, kolo_tensor_key_t *key);
/* Returns NULL for a task, `/job:NAME[/replica:N]/task:N`, else what is wrong. */
const char *kolo_task_name_check(const char *name);
/* Tells whether the device is one of this task. Both were checked. */
bool kolo_device_is_of(const char *device, const char *task);
/* Finds the task of a device that was checked. */
void kolo_device_task(const char *device, char task[KOLO_TASK_NAME_MAX + 1]);

#endif
