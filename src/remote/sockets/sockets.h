/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the sockets provider: the net wire over TCP, one device for each network interface. A connection has
 * one socket for the reader's offers and one or several for data, all dialled by the writer. Data sockets carry
 * nothing towards the writer, so that closing them never resets what is still under way.
 *
 * Both ends make themselves known by their hellos, and none of the calls waits: dialling and the proof that the
 * other end knows the job's secret (link/auth.h) go on with every later call (meet.c). Until then there are no
 * offers.
 */
#ifndef KOLO_REMOTE_SOCKETS_SOCKETS_H
#define KOLO_REMOTE_SOCKETS_SOCKETS_H

#include "link/link.h"
#include "remote/net.h"

#include "link/address.h"

#define KOLO_SOCKETS_MAX     8u     /* of data, in one connection */
#define KOLO_SOCKETS_PENDING 64u    /* callers of one device whose proof is not there yet */
#define KOLO_SOCKETS_SPLIT   65536u /* a message of that size or more goes over all data sockets */
#define KOLO_SOCKETS_RECORD  16u    /* bytes of an offer, and of what goes before each part of a message */

typedef struct {
    int64_t sockets, timeout_ms;
} kolo_sockets_options_t;
extern kolo_sockets_options_t kolo_sockets_options;

/* ---- hello.c: what travels; fuzzed ---- */
typedef struct {
    kolo_address_t address; /* reader's */
    uint64_t token;         /* reader's: which of its ends is meant */
    uint32_t sockets, depth;
    char device[16];
} kolo_sockets_hello_t;
void kolo_sockets_hello_encode(const kolo_sockets_hello_t *hello, bool reads, kolo_net_hello_t *out);
/* Decodes a hello. reads: it is to be a reader's. */
kolo_status_t kolo_sockets_hello_decode(const kolo_net_hello_t *in, bool reads, kolo_sockets_hello_t *out);

typedef struct { /* before each part of a message */
    uint64_t request;
    uint32_t total, part;
} kolo_sockets_part_t;
void kolo_sockets_part_encode(const kolo_sockets_part_t *part, uint8_t out[KOLO_SOCKETS_RECORD]);
kolo_sockets_part_t kolo_sockets_part_decode(const uint8_t in[KOLO_SOCKETS_RECORD]);
typedef struct {
    uint64_t tag;
    uint32_t bytes, check; /* low half of the request's number */
} kolo_sockets_offer_t;
void kolo_sockets_offer_encode(const kolo_sockets_offer_t *offer, uint8_t out[KOLO_SOCKETS_RECORD]);
kolo_sockets_offer_t kolo_sockets_offer_decode(const uint8_t in[KOLO_SOCKETS_RECORD]);
/* Says how a message of `total` bytes is cut for `sockets` data sockets: into how many parts, and which bytes part
 * i is. Part i of request r takes data socket (r + i) % sockets. */
uint32_t kolo_sockets_parts(uint32_t total, uint32_t sockets);
uint32_t kolo_sockets_part_at(uint32_t total, uint32_t parts, uint32_t i);

/* ---- one socket ---- */
typedef enum {
    KOLO_SOCKET_NONE,
    KOLO_SOCKET_DIALLED,  /* writer: until the kernel has connected it */
    KOLO_SOCKET_GREETING, /* writer: awaits it */
    KOLO_SOCKET_VERDICT,  /* writer: awaits it */
    KOLO_SOCKET_UP,
    KOLO_SOCKET_ENDED /* the peer has closed it */
} kolo_sockets_state_t;

typedef struct {
    int fd;
    kolo_sockets_state_t state;
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES], verdict[KOLO_VERDICT_BYTES];
    uint32_t got; /* bytes of what is awaited, or of the record that is being read */
    /* data */
    uint64_t at;   /* request that is being sent, or whose part is being received */
    uint32_t done; /* bytes of its record and part */
    uint64_t sent; /* bytes in all */
    uint8_t record[KOLO_SOCKETS_RECORD];
    bool within; /* reader: the record is there, its part is not yet */
    uint32_t part_from, part_bytes;
    uint64_t acknowledged; /* writer: bytes, as far as it is known */
} kolo_sockets_sock_t;

typedef struct { /* a request */
    char *data;
    uint32_t bytes;       /* writer: of the message; reader: that it has room for */
    uint32_t total;       /* reader: of the message */
    uint32_t parts, left; /* that are not done */
    uint32_t came;        /* reader: parts that have begun, a bit each */
    uint64_t cookie;
    uint64_t until[KOLO_SOCKETS_MAX]; /* writer: bytes that a data socket has sent when this is away */
} kolo_sockets_request_t;

struct kolo_net_end {
    kolo_net_open_t *open;
    kolo_net_end_t *prev, *next_end;
    bool reads, revoked, named; /* the peer's hello is there */
    bool acknowledged;          /* writer: done is what the other side's kernel has */
    uint32_t depth, message_bytes, nsockets, nup;
    kolo_sockets_hello_t mine, peer;
    kolo_sockets_sock_t offers, data[KOLO_SOCKETS_MAX];
    kolo_sockets_request_t *requests;
    uint64_t next, completed; /* requests: number of the next one; of those that test() has given out */
    uint64_t offered;         /* writer: offers that have come; reader: those that have gone */
    uint8_t *ring;            /* of offers, by request */
    kolo_net_counts_t counts;
    kolo_status_t status; /* of its sockets, and why */
    char label[80], error[400];
};

typedef struct { /* a caller whose proof is not there yet */
    int fd;
    uint32_t got;
    uint64_t since_ns, until_ns;
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES];
} kolo_sockets_caller_t;

struct kolo_net_open {
    int device, listener, epoll_fd;
    kolo_address_t address;
    kolo_key_t key;
    kolo_net_end_t *first;
    kolo_sockets_caller_t callers[KOLO_SOCKETS_PENDING];
    uint32_t ncallers;
    bool starved; /* a caller waits for a descriptor, and the log says so */
    uint64_t look_ns, down_since;
};
struct kolo_net_region {
    int nothing;
};

/* ---- device.c ---- */
const char *kolo_sockets_device_name(int device);
kolo_status_t kolo_sockets_watch(kolo_net_open_t *open, int fd);
/* ---- end.c ---- */
kolo_status_t kolo_sockets_listen(kolo_net_open_t *open, const kolo_net_end_config_t *config,
                                  kolo_net_hello_t *hello, kolo_net_end_t **end);
kolo_status_t kolo_sockets_start(kolo_net_open_t *open, const kolo_net_end_config_t *config,
                                 kolo_net_hello_t *hello, kolo_net_end_t **end);
kolo_status_t kolo_sockets_connect(kolo_net_end_t *end, const kolo_net_hello_t *peer);
kolo_status_t kolo_sockets_accept(kolo_net_end_t *end, const kolo_net_hello_t *peer);
void kolo_sockets_revoke(kolo_net_end_t *end);
void kolo_sockets_shut(kolo_net_end_t *end);
/* ---- meet.c ---- */
kolo_status_t kolo_sockets_dial(kolo_net_end_t *end, kolo_sockets_sock_t *sock);
/* Brings an end's sockets up as far as that goes now. */
kolo_status_t kolo_sockets_meet(kolo_net_end_t *end);
/* ---- stream.c ---- */
bool kolo_sockets_offered(const kolo_net_end_t *end, uint64_t *tag);
kolo_status_t kolo_sockets_isend(kolo_net_end_t *end, const void *data, uint32_t bytes,
                                 const kolo_net_region_t *region, uint64_t cookie);
kolo_status_t kolo_sockets_irecv(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                                 uint64_t cookie, uint64_t tag);
kolo_status_t kolo_sockets_push(kolo_net_end_t *end);
kolo_status_t kolo_sockets_test(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n);
kolo_status_t kolo_sockets_receive(kolo_net_end_t *end);
/* Looks, as the writer, how far the other side has what was sent. */
void kolo_sockets_ask(kolo_net_end_t *end);
kolo_status_t kolo_sockets_fail(const kolo_net_end_t *end, int err, const char *what);

#endif
