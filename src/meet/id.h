/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands in a unique id, and the parameters of this room.
 */
#ifndef KOLO_MEET_ID_H
#define KOLO_MEET_ID_H

#include "link/link.h"
#include "meet/checkin.h"
#include "meet/meet.h"

typedef struct {
    const char *comm_id, *secret_file;
    int64_t secret_fd;
    int64_t stagger_above, stagger_rate;
    int64_t root_idle_ms;
} kolo_meet_values_t;
extern kolo_meet_values_t kolo_meet_values;

/* Prepares crypto and the limit of descriptors, once per process. */
void kolo_meet_process_init(void);

typedef struct {
    kolo_address_t address;
    kolo_key_t secret;
    bool fixed;     /* made from KOLO_COMM_ID: the root may come up later than its callers */
    bool wide;      /* its root is called at several addresses (not part of the id's bytes) */
    bool computed;  /* its port follows from a launcher's variables: another job may have it */
    int first_rank; /* to grow a communicator of so many ranks; 0: an ordinary id */
} kolo_id_t;
void kolo_id_encode(const kolo_id_t *id, kolo_unique_id_t *out);
/* Returns NULL when fine, else what is wrong. Pure; fuzzed. */
const char *kolo_id_decode(const kolo_unique_id_t *in, kolo_id_t *id);
kolo_status_t kolo_secret_read(const char *scope, kolo_key_t *secret); /* secret.c */
/* Makes *key from a secret that a person may have thought of, so that guessing it is costly. Any thread. */
kolo_status_t kolo_secret_stretch(const void *data, size_t bytes, kolo_key_t *key);

/* The addresses at which a computed id's root may be, from 0 on: its own, then ports that follow from the job's
 * secret, so that all ranks know them and another job has others. */
#define KOLO_ID_ADDRESSES 4
void kolo_id_address(const kolo_id_t *id, unsigned number, kolo_address_t *address);

/* Starts a root on id->address (port 0: any; the port is filled in). KOLO_ERR_INVALID_USAGE with *taken set, and
 * errno, when the address is somebody else's. */
kolo_status_t kolo_root_start(kolo_id_t *id, bool *taken);

#endif
