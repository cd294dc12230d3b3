/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: their types, and whether type, shape, bytes and (for strings) contents fit together. Values of senders
 * and values from other processes pass the same checks.
 */
#include "base/type.h"
#include "rendezvous/internal.h"

#include <string.h>

size_t kolo_element_size(int element)
{
    switch (element) {
    case KOLO_ELEMENT_BOOL:
        return 1;
    case KOLO_ELEMENT_INT16:
    case KOLO_ELEMENT_UINT16:
        return 2;
    case KOLO_ELEMENT_COMPLEX64:
    case KOLO_ELEMENT_STRING:
        return 8;
    case KOLO_ELEMENT_COMPLEX128:
        return 16;
    default:
        return kolo_type_bytes((kolo_type_t)element);
    }
}

bool kolo_rendezvous_value_size(int element, int ndims, const int64_t *dims, uint64_t *bytes)
{
    uint64_t n = kolo_element_size(element);
    if (n == 0 || ndims < 0 || ndims > KOLO_VALUE_DIMS_MAX) return false;
    for (int i = 0; i < ndims; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(n, (uint64_t)dims[i], &n)) return false;
    *bytes = n;
    return n <= INT64_MAX;
}

static const char *check_strings(const kolo_value_t *value, uint64_t numbers)
{
    uint64_t text = value->bytes - numbers, last = 0;
    for (uint64_t i = 0; i < numbers; i += 8) {
        uint64_t end;
        memcpy(&end, (const char *)value->data + i, 8);
        if (end < last || end > text) return "a string ends before it begins, or behind the value";
        last = end;
    }
    return last == text ? NULL : "there are bytes behind the last string";
}

const char *kolo_rendezvous_value_check(const kolo_value_t *value)
{
    uint64_t bytes;
    if (kolo_element_size(value->element) == 0) return "there is no such type of elements";
    if (value->ndims < 0 || value->ndims > KOLO_VALUE_DIMS_MAX) return "its number of dimensions is out of range";
    if (!kolo_rendezvous_value_size(value->element, value->ndims, value->dims, &bytes))
        return "a dimension is out of range";
    if (value->dead != 0 && value->dead != 1) return "dead is neither 0 nor 1";
    if (value->dead && value->bytes == 0) return NULL;
    if (value->bytes > 0 && value->data == NULL) return "its data is NULL";
    if (value->element == KOLO_ELEMENT_STRING)
        return value->bytes < bytes ? "it is shorter than its strings' numbers" : check_strings(value, bytes);
    return value->bytes == bytes ? NULL : "its bytes are not what its type and shape make";
}

kolo_status_t kolo_value_release(kolo_value_t *value)
{
    if (value == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "value_release: the value is NULL");
    void (*release)(void *) = value->release;
    value->release = NULL;
    if (release) release(value->arg);
    value->data = NULL;
    value->bytes = 0;
    return KOLO_OK;
}
