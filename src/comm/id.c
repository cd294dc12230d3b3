/* SPDX-License-Identifier: Apache-2.0
 *
 * Unique ids, version and types: the public calls that need no communicator.
 */
#include "comm/comm.h"

kolo_status_t kolo_get_version(int *version)
{
    if (!version) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "get_version: the output is NULL");
    *version = KOLO_VERSION;
    return KOLO_OK;
}

int kolo_op_takes(kolo_op_t op, kolo_type_t type)
{
    return kolo_op_fits(op, type);
}

size_t kolo_type_size(kolo_type_t type)
{
    return kolo_type_bytes(type);
}

kolo_status_t kolo_get_unique_id(kolo_unique_id_t *id)
{
    if (!id) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "get_unique_id: the id is NULL");
    KOLO_TRY(kolo_comm_library_init());
    return kolo_id_create(id);
}

kolo_status_t kolo_unique_id_save(const kolo_unique_id_t *id, const char *path)
{
    if (!id || !path) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "unique_id_save: the id or the path is NULL");
    KOLO_TRY(kolo_comm_library_init());
    kolo_status_t status = kolo_id_save(id, path);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "unique_id_save: ");
}

kolo_status_t kolo_unique_id_load(kolo_unique_id_t *id, const char *path, int timeout_ms)
{
    if (!id || !path) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "unique_id_load: the id or the path is NULL");
    if (timeout_ms < 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "unique_id_load: timeout_ms is %d, expected 0 or more",
                         timeout_ms);
    KOLO_TRY(kolo_comm_library_init());
    kolo_status_t status = kolo_id_load(id, path, timeout_ms);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "unique_id_load: ");
}
