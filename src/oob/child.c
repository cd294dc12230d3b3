/* SPDX-License-Identifier: Apache-2.0
 *
 * Children: an oob for some of the ranks of another one, or for ranks of two. Each rank prepares its child, which
 * listens then, the caller exchanges the addresses over the parents, and the child opens with the list of them: no
 * root is needed.
 */
#include "base/failpoint.h"
#include "oob/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kolo_oob_child {
    kolo_oob_t *oob;
};
_Static_assert(KOLO_OOB_ADDRESS_BYTES == sizeof(kolo_address_t), "an address as others carry it");

/* Prepares a child. strangers: it is of ranks from elsewhere, too, who cannot call a loopback address. */
static kolo_status_t prepare(kolo_oob_t *near, const kolo_key_t *key, bool strangers, kolo_oob_child_t **child,
                             uint8_t *address)
{
    kolo_oob_child_t *made = calloc(1, sizeof(*made));
    if (made == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a child communicator");
    kolo_status_t status = kolo_oob_new(near->name, near->abort, near->timeout_ms, &made->oob);
    if (status == KOLO_OK) {
        kolo_address_t local = near->table[near->rank];
        kolo_address_set_port(&local, 0);
        made->oob->key = *key;
        made->oob->near_rank = near->rank;
        made->oob->near_nranks = near->nranks;
        if (strangers && kolo_address_is_loopback(&local)) status = kolo_address_choose_local(NULL, &local);
        if (status == KOLO_OK) status = kolo_oob_listen(made->oob, &local, NULL);
    }
    if (status != KOLO_OK) {
        kolo_oob_discard_child(made);
        return status;
    }
    kolo_address_t mine = kolo_listener_address(made->oob->peer_listener);
    memcpy(address, mine.bytes, sizeof(mine.bytes));
    *child = made;
    return KOLO_OK;
}

kolo_status_t kolo_oob_prepare_child(kolo_oob_t *parent, kolo_oob_child_t **child,
                                     uint8_t address[KOLO_OOB_ADDRESS_BYTES])
{
    kolo_key_t key;
    if (parent == NULL || child == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "parent or child is NULL");
    /* The final key depends on who the members are; to be called we need one now. The socket's cookie sees to it
     * that nobody who means another child gets in. */
    kolo_auth_derive(&parent->epoch_key, "child", NULL, 0, &key);
    kolo_status_t status = prepare(parent, &key, false, child, address);
    kolo_auth_wipe(&key, sizeof(key));
    return status;
}

kolo_status_t kolo_oob_prepare_joined(kolo_oob_t *near, const uint8_t key[32], kolo_oob_child_t **child,
                                      uint8_t address[KOLO_OOB_ADDRESS_BYTES])
{
    kolo_key_t own;
    memcpy(own.bytes, key, sizeof(own.bytes));
    kolo_status_t status = prepare(near, &own, true, child, address);
    kolo_auth_wipe(&own, sizeof(own));
    return status;
}

void kolo_oob_discard_child(kolo_oob_child_t *child)
{
    if (child == NULL) return;
    kolo_oob_fini(child->oob);
    free(child);
}

static kolo_status_t open_child(kolo_oob_t *oob, const kolo_oob_config_t *c, uint64_t label,
                                const uint8_t *addresses)
{
    kolo_address_t mine = kolo_listener_address(oob->peer_listener);
    kolo_address_t *table = calloc((size_t)c->nranks, sizeof(*table));
    if (table == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %d addresses", c->nranks);
    memcpy(table, addresses, (size_t)c->nranks * sizeof(*table));
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < c->nranks && status == KOLO_OK; i++) {
        const char *wrong = kolo_address_check(&table[i]);
        if (wrong == NULL && i == c->rank && memcmp(&mine, &table[i], sizeof(mine)) != 0)
            wrong = "it is not the one that kolo_oob_prepare_child() gave";
        if (wrong != NULL)
            status = kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the address of child rank %d: %s", i, wrong);
    }
    if (status != KOLO_OK) {
        free(table);
        return status;
    }
    pthread_mutex_lock(&oob->lock);
    oob->rank = c->rank;
    oob->nranks = c->nranks;
    oob->table = table;
    oob->abort = c->abort;
    oob->timeout_ms = c->timeout_ms;
    if (c->name != NULL) snprintf(oob->name, sizeof(oob->name), "%s", c->name);
    kolo_key_t root_key = oob->key;
    kolo_auth_derive(&root_key, "epoch", &table[0], sizeof(table[0]), &oob->epoch_key);
    kolo_auth_derive(&oob->epoch_key, "label", &label, sizeof(label), &oob->epoch_key);
    kolo_auth_derive(&oob->epoch_key, "job number", NULL, 0, &root_key);
    memcpy(&oob->job, root_key.bytes, sizeof(oob->job));
    kolo_auth_wipe(&root_key, sizeof(root_key));
    oob->open = true;
    pthread_mutex_unlock(&oob->lock);
    return KOLO_OK;
}

kolo_status_t kolo_oob_open_child(kolo_oob_child_t *child, const kolo_oob_config_t *config, uint64_t label,
                                  const uint8_t *addresses, kolo_oob_t **out)
{
    if (child == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "child is NULL");
    kolo_status_t status = kolo_oob_check_config(config, out);
    KOLO_FAIL_POINT("oob.child.open");
    if (status == KOLO_OK && addresses == NULL) status = kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "addresses is NULL");
    if (status == KOLO_OK) status = open_child(child->oob, config, label, addresses);
    if (status != KOLO_OK) {
        kolo_oob_discard_child(child);
        return status;
    }
    *out = child->oob;
    free(child);
    return KOLO_OK;
}
