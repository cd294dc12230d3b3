/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract between the net wire and what moves its bytes. A provider knows devices (network cards), opens them,
 * and makes connections of two ends, a writer's and a reader's; bytes go one way. The wire (wire.h in this folder)
 * turns each slot into one request at either end. A provider knows nothing of slots, ranks or operations.
 *
 * The reader drives: irecv() offers memory, and the provider takes its address and key to the writer; isend() uses
 * the oldest offer that is left. Messages arrive whole, in the order they were sent, each in the memory that was
 * offered for it. isend() and irecv() queue, push() hands what is queued to the device, test() returns what is
 * done.
 *
 * All calls of one opened device and its ends come from one thread at a time. None blocks; those that set up take a
 * few system calls.
 */
#ifndef KOLO_REMOTE_NET_H
#define KOLO_REMOTE_NET_H

#include "base/params.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KOLO_NET_HELLO_BYTES 160 /* what one end sends the other, out of band and authenticated */
#define KOLO_NET_MAX_DEVICES 16
#define KOLO_NET_NAME_BYTES  32

/* A provider's own; the wire only hands them back. */
typedef struct kolo_net_open kolo_net_open_t;     /* a device opened for one communicator */
typedef struct kolo_net_end kolo_net_end_t;       /* one end of a connection */
typedef struct kolo_net_region kolo_net_region_t; /* registered memory */

typedef struct {
    char name[KOLO_NET_NAME_BYTES]; /* as the system calls it, with the port: rxe0:1 */
    double gbps;                    /* gigabytes per second of the link; 0: unknown */
    char bus_id[16];                /* where it is plugged in; "": not known */
} kolo_net_device_t;

typedef struct {
    uint8_t bytes[KOLO_NET_HELLO_BYTES]; /* untrusted */
} kolo_net_hello_t;

typedef struct {
    uint32_t depth;         /* most requests under way, a power of two */
    uint32_t message_bytes; /* longest message */
    bool acknowledged;      /* writer: a send is done when the other side has it, whatever becomes of this end */
    const uint8_t *key;     /* 32 bytes that only the job's ranks know; copied */
    const char *label;      /* for log and errors: "rank 0 -> rank 1, lane 2"; copied */
} kolo_net_end_config_t;

typedef struct { /* a request that is done */
    uint64_t cookie;
    uint32_t bytes; /* that came (reader) */
} kolo_net_done_t;

typedef struct { /* what an end or a device has done so far */
    uint64_t requests, completions, doorbells, invitations;
    uint64_t trips; /* reader: times that invitations went out; the writer waits for each */
} kolo_net_counts_t;

typedef struct { /* memory of this process */
    const void *data;
    uint32_t bytes;
    const kolo_net_region_t *region;
} kolo_net_piece_t;

typedef enum { /* what a reader has said of the payload of a message */
               KOLO_NET_NOT_YET,
               KOLO_NET_WITH_THE_REST, /* it comes with the rest of the message */
               KOLO_NET_IN_PLACE       /* where it belongs */
} kolo_net_invitation_t;

typedef struct kolo_net_ops {
    const char *name; /* at most 7 letters, travels with `version` on the peer card: both ends must have the same */
    const char *card_name; /* what travels instead, where there is more to say; NULL: the name */
    uint8_t version;
    const char *what;   /* for kolo-info */
    bool only_if_named; /* by KOLO_NET_PROVIDER */
    /* ---- devices ---- */
    /* How many devices this process may use; looked up once. 0 is no error: *why says what is missing. -1:
     * somebody has asked for them and cannot have them, *why is the message. */
    int (*count)(const char **why);
    void (*properties)(int device, kolo_net_device_t *out); /* fills in all of it */
    kolo_status_t (*open)(int device, kolo_net_open_t **open);
    void (*close)(kolo_net_open_t *open); /* after its ends and regions */
    /* Descriptors that become readable when something has happened, for a sleeper's epoll; returns how many. */
    int (*wake_fds)(const kolo_net_open_t *open, int fds[2]);
    /* Asks for that: the next completion on any end makes a descriptor readable. */
    void (*arm)(kolo_net_open_t *open);
    /* May new connections be made by it now? */
    bool (*works)(kolo_net_open_t *open);
    /* Reads what the device reports by itself (port lost, address gone). An error is for all its ends. */
    kolo_status_t (*look)(kolo_net_open_t *open);
    /* ---- memory ---- */
    kolo_status_t (*enroll)(kolo_net_open_t *open, void *memory, size_t bytes, bool peer_writes,
                            kolo_net_region_t **region);
    void (*withdraw)(kolo_net_region_t *region);
    /* Do enrolled pages stay this process's when it forks? Else the caller's memory is none to enroll. */
    bool (*fork_safe)(void);
    /* ---- connections ---- */
    /* Both ends first make themselves ready to be found and say how, then each gets the other's hello. After
     * connect the writer can be reached; accept may follow on the reader only then. */
    kolo_status_t (*listen)(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                            kolo_net_end_t **end);
    kolo_status_t (*start)(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                           kolo_net_end_t **end);
    kolo_status_t (*connect)(kolo_net_end_t *writer, const kolo_net_hello_t *reader);
    kolo_status_t (*accept)(kolo_net_end_t *reader, const kolo_net_hello_t *writer);
    /* The end carries nothing any more, and no memory that was named to it is read or written from now on. test()
     * still returns what was done before. */
    void (*revoke)(kolo_net_end_t *end);
    /* Nothing of the end's memory is read or written after this. */
    void (*shut)(kolo_net_end_t *end);
    /* ---- requests ---- */
    /* Writer: is there an offer for the next isend? *tag is what irecv gave it; untrusted. NULL: the provider has
     * no tags; messages go in the order of the irecvs, and a connection is one end at each side. */
    bool (*offered)(const kolo_net_end_t *end, uint64_t *tag);
    /* KOLO_IN_PROGRESS: not now (no offer, or too many under way); nothing was queued. */
    kolo_status_t (*isend)(kolo_net_end_t *end, const void *data, uint32_t bytes, const kolo_net_region_t *region,
                           uint64_t cookie);
    kolo_status_t (*irecv)(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                           uint64_t cookie, uint64_t tag);
    kolo_status_t (*push)(kolo_net_end_t *end);
    /* Fills done[0..*n), in order; a send that is done may mean those before it, too. */
    kolo_status_t (*test)(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n);
    /* ---- payloads in the caller's memory; NULL, all three, where a provider has no such thing ---- */
    /* Reader: it has come to request `request` (counted from 0, as irecv counts), whose payload of exactly `bytes`
     * should be written at `data`; data NULL: with the rest of the message. KOLO_IN_PROGRESS: push first. */
    kolo_status_t (*invite)(kolo_net_end_t *end, uint64_t request, void *data, uint32_t bytes,
                            const kolo_net_region_t *region);
    /* Writer: what the reader says of a payload of that size in the next message. */
    kolo_net_invitation_t (*invited)(const kolo_net_end_t *end, uint32_t bytes);
    /* isend of a message in two pieces; in_place: the first goes where the invitation says, and the message that
     * arrives is the second alone. */
    kolo_status_t (*isend_from)(kolo_net_end_t *end, const kolo_net_piece_t *payload, const kolo_net_piece_t *rest,
                                bool in_place, uint64_t cookie);
    /* ---- offers that the caller takes to the writer; NULL, both, where a provider has no such thing. isend reads
     * what it sends with the next push then, not before ---- */
    /* Reader: the offers that push has yet to send, `most` at most, are not sent but returned: *n requests from
     * *from on. Their receives are posted. *n is 0 for the first `depth` requests. */
    kolo_status_t (*take_offers)(kolo_net_end_t *end, uint32_t most, uint64_t *from, uint32_t *n);
    /* Writer: the offers for `n` requests from `from` on are those of `depth` requests before once more, with tags
     * that are higher by `depth`. false: those were not made or not used, nothing is offered. `from` and `n` are
     * untrusted. */
    bool (*repeat_offers)(kolo_net_end_t *end, uint64_t from, uint32_t n);
    void (*counts)(const kolo_net_end_t *end, kolo_net_counts_t *counts);
} kolo_net_ops_t;

extern const kolo_param_table_t kolo_net_params, kolo_ib_params, kolo_sockets_params, kolo_plugin_params;
extern const kolo_net_ops_t kolo_net_verbs, kolo_net_sockets;
extern kolo_net_ops_t kolo_net_plugin;                   /* what travels is known when it is loaded */
extern const kolo_net_ops_t *const kolo_net_providers[]; /* in order of preference, NULL at the end */

/* Returns the one that KOLO_NET_PROVIDER names, else the first that has a device. NULL: none, and *why says what
 * stood in the way; *demanded: somebody has asked for what cannot be had, and should hear so. */
const kolo_net_ops_t *kolo_net_provider(const char **why, bool *demanded);
/* Has the provider of this name a device? */
bool kolo_net_has(const char *name, const char **why);
const char *kolo_net_provider_name(void); /* KOLO_NET_PROVIDER, or NULL */
const char *kolo_net_card_name(const kolo_net_ops_t *ops);
/* Returns a number for connections, whose ends must agree on the provider. */
uint32_t kolo_net_provider_id(const kolo_net_ops_t *ops);
/* Fills in where a device is plugged in: the last part of a path of the system, or of what a link there points to.
 */
void kolo_net_bus_of_path(kolo_net_device_t *device, const char *path);
void kolo_net_bus_of_link(kolo_net_device_t *device, const char *link);

#endif
