/* SPDX-License-Identifier: Apache-2.0
 *
 * All ranks of a communicator in one process: one call makes them, or none.
 */
#include "comm/life/life.h"

#include <stdlib.h>
#include <string.h>

/* Makes a communicator whose ranks are all in this process. devices: by rank; NULL: what `config` says. */
static kolo_status_t init_all(kolo_comm_t *comms, int nranks, const int *devices, const kolo_config_t *config)
{
    kolo_config_t each = KOLO_CONFIG_INITIALIZER;
    kolo_unique_id_t id;
    if (!comms) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init_all: the handle array is NULL");
    KOLO_TRY(kolo_comm_config_check(config, "init_all"));
    kolo_comm_config_copy(&each, config);
    each.size = sizeof each; /* the device's place may be behind what the caller's has */
    if (nranks < 1 || nranks > 4096)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init_all: nranks is %d, expected 1 to 4096", nranks);
    kolo_comm_t *made = calloc((size_t)nranks, sizeof *made);
    if (!made) return kolo_fail(KOLO_ERR_NO_MEMORY, "init_all: out of memory for %d handles", nranks);
    kolo_status_t status = kolo_get_unique_id(&id);
    if (status == KOLO_OK) status = kolo_group_start();
    if (status == KOLO_OK) {
        int r = 0;
        for (; r < nranks; r++) {
            if (devices) each.device = devices[r];
            status = kolo_comm_init_rank(&made[r], nranks, id, r, devices ? &each : config);
            if (status != KOLO_OK) break;
        }
        for (int i = 0; status != KOLO_OK && i < r; i++) atomic_store(&made[i]->body->stop.abort, 1);
        kolo_status_t ended = kolo_group_end();
        if (status == KOLO_OK) status = ended;
    }
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS) {
        memcpy(comms, made, (size_t)nranks * sizeof *made);
    } else {
        for (int r = 0; r < nranks; r++)
            if (made[r]) kolo_comm_abort(made[r]);
    }
    free(made);
    return status;
}

kolo_status_t kolo_comm_init_all(kolo_comm_t *comms, int nranks, const kolo_config_t *config)
{
    return init_all(comms, nranks, NULL, config);
}

kolo_status_t kolo_comm_init_devices(kolo_comm_t *comms, int nranks, const int *devices,
                                     const kolo_config_t *config)
{
    if (!devices) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "init_devices: the list of devices is NULL");
    return init_all(comms, nranks, devices, config);
}
