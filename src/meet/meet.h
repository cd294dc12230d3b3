/* SPDX-License-Identifier: Apache-2.0
 *
 * How ranks find each other: the unique id and the root that it names. Roots live on the progress thread.
 */
#ifndef KOLO_MEET_MEET_H
#define KOLO_MEET_MEET_H

#include "base/params.h"

extern const kolo_param_table_t kolo_meet_params;

/* Starts a root on the progress thread (see kolo_get_unique_id in kolo.h). */
kolo_status_t kolo_id_create(kolo_unique_id_t *id);
/* Makes an id like that for a job whose ranks are all on this host: it and its ranks listen on loopback, if that is
 * up and permitted; on Unix sockets if no interface is up. KOLO_COMM_ID comes first. */
kolo_status_t kolo_id_create_local(kolo_unique_id_t *id);
/* Tells whether ranks could meet without a file: KOLO_COMM_ID names an address, and a secret was given to this
 * process. */
bool kolo_id_has_address(void);
bool kolo_id_has_secret(void);
/* Makes an id that all make alike, at an address that all know, by the secret that was given to this process.
 * `scope`: a secret of its own is derived for each, so ranks of another scope are refused. Whoever is first there
 * and owns the address starts the root. */
kolo_status_t kolo_id_create_at(const char *address, const char *scope, kolo_unique_id_t *id);
/* Checks that there is a network interface which the parameters permit, so that a rank that will need one can say
 * so before it waits. */
kolo_status_t kolo_id_check_interfaces(void);
/* Notes an address (host:port) that the other ranks know: where nothing better is known, this process listens on
 * the interface that has it or reaches it. Returns false if it is an address of another host. */
bool kolo_id_hint(const char *address);
/* Does it lead to this host alone, or is it none? */
bool kolo_id_is_loopback(const char *address);
/* Does the same for an address whose port was computed and which another job may hold: then the root, which rank 0
 * alone becomes (is_root), goes to another port that all ranks compute. */
kolo_status_t kolo_id_create_computed(const char *address, const char *scope, bool is_root, bool one_host,
                                      kolo_unique_id_t *id);
/* Makes a fresh id to grow a communicator of `nranks` ranks: messages of its root count new ranks from there. */
kolo_status_t kolo_id_create_grow(int nranks, kolo_unique_id_t *id);
/* Returns the nranks of the above; 0: an ordinary id. */
int kolo_id_grows_from(const kolo_unique_id_t *id);
/* Ends the root of `id`, if this process serves it and it is not done: whoever has called it, or calls soon, is
 * told why. */
void kolo_root_dismiss(const kolo_unique_id_t *id, kolo_status_t status, const char *text);
/* Which processes of the job have ended, in a file that its launcher keeps (ended.c). */
typedef struct {
    const char *path;           /* NULL: there is none */
    uint64_t look_ns, since_ns; /* zero at first */
} kolo_ended_t;
#define KOLO_ENDED_WORDS                                                                                           \
    "the process of rank %d has ended (with status 0) and had not called kolo_comm_init_rank() or "                \
    "kolo_job_connect(): does its program come there"
/* Has it had the rank for some seconds? To be asked often; it rarely looks. */
bool kolo_ended_wait(kolo_ended_t *ended, int rank);
/* Has the root of `id`, if this process serves it, fail when a rank that it misses has ended. ranks: of the job, by
 * rank of the communicator; NULL: the same. */
void kolo_root_watch_ended(const kolo_unique_id_t *id, const char *path, const int *ranks, int count);
/* Checks magic, version, address family and ranges; the message names what is wrong. Fuzzed. */
kolo_status_t kolo_id_check(const kolo_unique_id_t *id);
/* Saves an id in one step, with mode 0600 (save); waits for the file until timeout_ms (load). */
kolo_status_t kolo_id_save(const kolo_unique_id_t *id, const char *path);
kolo_status_t kolo_id_load(kolo_unique_id_t *id, const char *path, int timeout_ms);
/* Does the same, unless the process of `rank`, which is to save it, has ended. */
kolo_status_t kolo_id_await(kolo_unique_id_t *id, const char *path, int timeout_ms, kolo_ended_t *ended, int rank);
/* Stops every root of this process and frees what they hold (library unload, tests). */
void kolo_root_stop_all(void);

#endif
