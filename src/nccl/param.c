/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's functions that read its parameters, over the table of variables; and the switch for encryption.
 */
#include "nccl/env.h"
#include "nccl/layer.h"

#include "link/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ncclResult_t ncclParamBind(ncclParamHandle_t *handle, const char *key)
{
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!handle || !key) return kolo_nccl_fail(ncclInvalidArgument, "ncclParamBind: the output or the key is NULL");
    const kolo_nccl_env_t *row = kolo_nccl_env_find(key, strlen(key));
    if (!row) return kolo_nccl_fail(ncclInvalidArgument, "ncclParamBind: there is no parameter %.64s", key);
    *handle = row;
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclParamBind, pncclParamBind);

static bool is_row(ncclParamHandle_t handle)
{
    return handle >= kolo_nccl_env_table && handle < kolo_nccl_env_table + kolo_nccl_env_count;
}

/* Reads a number as its bits: from -below, or 0, to max. A variable that is not set, or is no number in the range,
 * is none: Kolo's defaults are Kolo's. */
static ncclResult_t number(ncclParamHandle_t handle, const void *out, uint64_t below, uint64_t max, uint64_t *bits)
{
    char *end;
    if (!out || !is_row(handle))
        return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGet: the output is NULL, or the handle is none");
    const char *text = kolo_nccl_env(handle->key);
    errno = 0;
    *bits = text ? strtoull(text, &end, 0) : 0; /* its bits are negated behind a minus */
    bool minus = text && text[strspn(text, " \t\n\v\f\r")] == '-';
    if (!text || errno || end == text || *end || (minus ? -*bits > below : *bits > max))
        return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGet: %s is %.64s, no number of that type", handle->key,
                              text ? text : "not set");
    return ncclSuccess;
}

/* A getter of each type of number. */
#define GETTER(name, type, below, max)                                                                             \
    ncclResult_t name(ncclParamHandle_t handle, type *value)                                                       \
    {                                                                                                              \
        uint64_t bits = 0;                                                                                         \
        ncclResult_t r = number(handle, value, below, max, &bits);                                                 \
        if (r == ncclSuccess) *value = (type)bits;                                                                 \
        return r;                                                                                                  \
    }                                                                                                              \
    KOLO_NCCL_TWIN(name, p##name)
GETTER(ncclParamGetI8, int8_t, UINT64_C(1) << 7, INT8_MAX);
GETTER(ncclParamGetI16, int16_t, UINT64_C(1) << 15, INT16_MAX);
GETTER(ncclParamGetI32, int32_t, UINT64_C(1) << 31, INT32_MAX);
GETTER(ncclParamGetI64, int64_t, UINT64_C(1) << 63, INT64_MAX);
GETTER(ncclParamGetU8, uint8_t, 0, UINT8_MAX);
GETTER(ncclParamGetU16, uint16_t, 0, UINT16_MAX);
GETTER(ncclParamGetU32, uint32_t, 0, UINT32_MAX);
GETTER(ncclParamGetU64, uint64_t, 0, UINT64_MAX);

ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char **value)
{
    if (!value || !is_row(handle))
        return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGetStr: the output is NULL, or the handle is none");
    const char *text = kolo_nccl_env(handle->key);
    *value = text ? text : "";
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclParamGetStr, pncclParamGetStr);

ncclResult_t ncclParamGet(ncclParamHandle_t handle, void *out, int room, int *bytes)
{
    const char *text;
    if (!out || !bytes || room < 0)
        return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGet: an output is NULL, or its room is %d", room);
    ncclResult_t r = pncclParamGetStr(handle, &text);
    if (r != ncclSuccess) return r;
    size_t n = strlen(text) + 1;
    if (n > (size_t)room)
        return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGet: %s has %zu bytes, the room is %d", handle->key, n,
                              room);
    memcpy(out, text, n);
    *bytes = (int)n;
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclParamGet, pncclParamGet);

ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *length)
{
    ncclParamHandle_t handle;
    if (!value || !length) return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGetParameter: an output is NULL");
    *value = NULL;
    *length = 0;
    ncclResult_t r = pncclParamBind(&handle, key);
    if (r == ncclSuccess) r = pncclParamGetStr(handle, value);
    if (r == ncclSuccess) *length = (int)strlen(*value);
    return r;
}
KOLO_NCCL_TWIN(ncclParamGetParameter, pncclParamGetParameter);

static const char *keys[512];
static pthread_once_t listed = PTHREAD_ONCE_INIT;

static void list_keys(void)
{
    for (size_t i = 0; i < kolo_nccl_env_count && i < KOLO_COUNTOF(keys); i++) keys[i] = kolo_nccl_env_table[i].key;
}

ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *count)
{
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!table || !count)
        return kolo_nccl_fail(ncclInvalidArgument, "ncclParamGetAllParameterKeys: an output is NULL");
    pthread_once(&listed, list_keys);
    *table = keys;
    *count = (int)(kolo_nccl_env_count < KOLO_COUNTOF(keys) ? kolo_nccl_env_count : KOLO_COUNTOF(keys));
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclParamGetAllParameterKeys, pncclParamGetAllParameterKeys);

void ncclParamDumpAll(void)
{
    if (kolo_nccl_start() != ncclSuccess) return;
    printf("Kolo's table of NCCL's variables: name, value, what it is here\n");
    for (size_t i = 0; i < kolo_nccl_env_count; i++) {
        const kolo_nccl_env_t *row = &kolo_nccl_env_table[i];
        const char *text = kolo_nccl_env(row->key);
        printf("%s=%s  %s%s%s\n", row->key, text ? text : "", row->kolo ? row->kolo : "", row->kolo ? ": " : "",
               row->help);
    }
}
KOLO_NCCL_TWIN(ncclParamDumpAll, pncclParamDumpAll);

/* Encrypts bytes with the secret in the id, by which connections are proved anyway. A key that the client brings is
 * not needed for that. */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config)
{
    static const char call[] = "ncclSetEncryption";
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!config || config->head.magic != NCCL_API_MAGIC ||
        config->head.size < offsetof(ncclEncryptionConfig_t, mode) + sizeof config->mode)
        return kolo_nccl_fail(
            ncclInvalidArgument,
            "%s: the configuration was not initialised: begin with NCCL_ENCRYPTION_CONFIG_INITIALIZER", call);
    if (config->mode != 0 && config->mode != 1)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: there is no mode %d", call, config->mode);
    if (config->mode == 1 && kolo_link_values.security != KOLO_SECURITY_ENCRYPT)
        return kolo_nccl_fail(ncclInvalidUsage, "%s: set KOLO_TCP_SECURITY=encrypt in the environment of all ranks",
                              call);
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclSetEncryption, pncclSetEncryption);
