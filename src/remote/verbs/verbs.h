/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the verbs provider: RDMA over InfiniBand and RoCE by libibverbs, which is loaded when a job first asks
 * for devices and never linked. An end is one reliable connected queue pair with a completion queue of its own; all
 * ends of an opened device share its completion channel.
 *
 * Offers go in a ring (the FIFO) in the writer's memory, one entry per request, written by the reader; the payload
 * goes by RDMA write with immediate data, which carries the size. An entry counts when its last word, the number of
 * the request plus one, is there. Short messages are written into lines of the reader's (line.c), where it finds
 * them before their completion.
 */
#ifndef KOLO_REMOTE_VERBS_VERBS_H
#define KOLO_REMOTE_VERBS_VERBS_H

#include "remote/net.h"
#include "remote/verbs/options.h"

#include <infiniband/verbs.h>
#include <stdatomic.h>

#define KOLO_VERBS_BATCH 16 /* requests of one post */

/* ---- library.c: functions called by name; the rest of verbs.h are inline calls into the driver ---- */
typedef struct {
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                        uint32_t flags, size_t bytes);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *memory, size_t bytes, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *arg,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **arg);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned count);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
    const char *(*event_type_str)(enum ibv_event_type event);
    const char *(*wc_status_str)(enum ibv_wc_status status);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                                    int access); /* NULL: the library is older than rdma-core 34 */
    bool fork_safe; /* pages that a device knows stay this process's when it forks: the kernel sees to it */
} kolo_verbs_library_t;
extern kolo_verbs_library_t kolo_verbs;
/* Loads it once. false: *why says why not. */
bool kolo_verbs_load(const char **why);

/* ---- select.c: choices, free of any device ---- */
/* Does a list in the syntax of NCCL_IB_HCA admit the port of the device? [^][=]name[:port],... ; "^" turns the
 * list round, "=" compares whole names instead of their beginnings. NULL or "": all. */
bool kolo_verbs_admits(const char *list, const char *device, int port);
/* Returns how well a GID of that type serves; the highest is taken. 0: not at all. */
int kolo_verbs_gid_rank(const uint8_t gid[16], uint32_t type);
void kolo_verbs_gid_text(const uint8_t gid[16], char *text, size_t bytes);

/* ---- hello.c ---- */
#define KOLO_VERBS_HELLO_BYTES 64u /* of a hello, from its beginning; the rest is zeros */
typedef struct {
    uint32_t qpn, psn;
    uint16_t lid;
    uint8_t mtu, port, link; /* enum ibv_mtu; IBV_LINK_LAYER_ */
    uint8_t gid[16];
    uint64_t fifo; /* writer's: address and key of its ring; reader's: of its lines, 0: it has none */
    uint32_t fifo_key, depth;
    char device[16];
} kolo_verbs_hello_t;
void kolo_verbs_hello_encode(const kolo_verbs_hello_t *hello, kolo_net_hello_t *out);
kolo_status_t kolo_verbs_hello_decode(const kolo_net_hello_t *in, kolo_verbs_hello_t *out);

/* ---- fifo.c: the ring of offers ---- */
typedef struct { /* little endian; written by a card, so the number is last */
    uint64_t address;
    uint32_t key, bytes;
    uint64_t tag;            /* the reader's own word for it */
    _Atomic uint64_t number; /* of the request, plus one */
} kolo_verbs_offer_t;
_Static_assert(sizeof(kolo_verbs_offer_t) == 32, "travels");
typedef struct { /* what an offer says */
    uint64_t address;
    uint32_t key, bytes;
    uint64_t tag;
} kolo_verbs_place_t;
void kolo_verbs_offer_put(kolo_verbs_offer_t *ring, uint32_t depth, uint64_t request,
                          const kolo_verbs_place_t *place);
/* Tells whether the offer for `request` is there, and then what it says. */
bool kolo_verbs_offer_get(const kolo_verbs_offer_t *ring, uint32_t depth, uint64_t request,
                          kolo_verbs_place_t *place);
/* Makes the offers for `n` requests from `from` on out of those of `depth` before, with tags that are higher by
 * `depth`. Returns false, and leaves the ring as it was, unless all of them have been used, that is, are for
 * requests below `used`. */
bool kolo_verbs_offer_repeat(kolo_verbs_offer_t *ring, uint32_t depth, uint64_t used, uint64_t from, uint32_t n);
/* Requests [from, to) as pieces of a ring: how many lie in a row from `from` on. */
uint32_t kolo_verbs_fifo_run(uint64_t from, uint64_t to, uint32_t depth);

/* ---- line.c: short messages that are found in memory ---- */
#define KOLO_VERBS_LINE                                                                                            \
    (1u << 31) /* of an offer's bytes: a short message goes into its line; of immediate data: it did */
#define KOLO_VERBS_LINE_MOST 120u /* bytes of such a message */
typedef struct { /* right before its last word the message; little endian; written by a card, in one write */
    _Atomic uint64_t words[KOLO_VERBS_LINE_MOST / 8];
    _Atomic uint64_t last; /* bytes, number of the request, a sum of all: what is there only in part is not there */
} kolo_verbs_line_t;
_Static_assert(sizeof(kolo_verbs_line_t) == 128, "travels");
static inline bool kolo_verbs_line_takes(uint32_t bytes)
{
    return bytes <= KOLO_VERBS_LINE_MOST && bytes % 8 == 0;
}
uint64_t kolo_verbs_line_last(uint64_t request, const void *data, uint32_t bytes);
/* Has the message of a request come into its line? Then takes it from there, and says how long it is. */
bool kolo_verbs_line_get(const kolo_verbs_line_t *lines, uint32_t depth, uint64_t request, void *data,
                         uint32_t most, uint32_t *bytes);

/* ---- device.c ---- */
typedef struct { /* one port of one device, found once */
    char device[IBV_SYSFS_NAME_MAX], name[KOLO_NET_NAME_BYTES];
    uint8_t port;
    double gbps;
} kolo_verbs_port_t;

struct kolo_net_open {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    kolo_net_end_t *first; /* ends that want completions announced */
    char name[KOLO_NET_NAME_BYTES];
    uint8_t port, link; /* IBV_LINK_LAYER_ */
    uint8_t gid_index, mtu;
    uint16_t lid;
    uint8_t gid[16];
    uint64_t down_since; /* the port is down; 0: it is not */
    bool fatal;          /* the device will not come back */
    bool usable;         /* new connections may be made */
    uint32_t losses;     /* times that all its ends were lost; ends made since are not meant */
    char lost[192];      /* why, the last time */
    const char *cause;
};
int kolo_verbs_count(const char **why);
void kolo_verbs_properties(int device, kolo_net_device_t *out);
kolo_status_t kolo_verbs_open(int device, kolo_net_open_t **open);
void kolo_verbs_close(kolo_net_open_t *open);

/* ---- event.c ---- */
int kolo_verbs_wake_fds(const kolo_net_open_t *open, int fds[2]);
void kolo_verbs_arm(kolo_net_open_t *open);
void kolo_verbs_drop_events(kolo_net_open_t *open);
kolo_status_t kolo_verbs_look(kolo_net_open_t *open);
bool kolo_verbs_works(kolo_net_open_t *open);
bool kolo_verbs_port_is_active(kolo_net_open_t *open); /* device.c */
/* Tells whether the address that connections use is still there. */
bool kolo_verbs_gid_is_there(kolo_net_open_t *open);
/* Reads, for new connections, how the port is found now: its LID and MTU, and a GID if the one that was used is
 * gone. false: it is not active, or has none. */
bool kolo_verbs_address_again(kolo_net_open_t *open);

/* ---- memory.c ---- */
struct kolo_net_region {
    struct ibv_mr *mr;
    bool flushed; /* what comes into it is read back before it counts */
    bool here;    /* memory of this host */
};
/* Makes the error of a registration of `bytes` that failed with `err`. */
kolo_status_t kolo_verbs_fail_register(const kolo_net_open_t *open, const char *what, size_t bytes, int err);

/* ---- flush.c: after a receive into a device's memory ---- */
typedef struct {
    struct ibv_qp *qp; /* its peer is itself */
    struct ibv_mr *mr;
    uint32_t word;  /* what is read goes here; nobody looks at it */
    uint32_t out;   /* reads under way */
    uint64_t asked; /* requests below are read back, or need not be; or will be by what is under way */
    uint64_t reads; /* so far */
    struct kolo_verbs_flush_at {
        uint64_t address;
        uint32_t key;
        bool wanted;
    } * at; /* by request */
} kolo_verbs_flush_t;

/* ---- end.c, queue.c ---- */
struct kolo_net_end {
    kolo_net_open_t *open;
    kolo_net_end_t *prev, *next;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    bool reads;
    uint32_t depth, message_bytes, inline_bytes;
    kolo_verbs_hello_t mine, peer;
    kolo_verbs_offer_t *ring; /* writer: what it is offered; reader: what it writes into the writer's. Two rings in
                                 a row: offers, invitations */
    struct ibv_mr *ring_mr;
    kolo_verbs_line_t *lines; /* reader: where short messages come; NULL: nowhere */
    struct ibv_mr *lines_mr;
    uint64_t *lasts;           /* writer: last words of lines that are queued, by request */
    uint64_t requests;         /* isend or irecv: queued so far, the number of the next one */
    uint64_t offered;          /* reader: of those in the writer's ring */
    uint64_t confirmed;        /* reader: of those, reported by a completion */
    uint64_t came;             /* of those, reported by a completion, or found in their lines */
    uint64_t safe;             /* of those, readable by whoever they are for */
    uint64_t completed;        /* of those, returned by test() */
    uint32_t *sizes;           /* reader: of what came, by request */
    kolo_verbs_flush_t *flush; /* NULL: nothing needs it */
    uint32_t losses;           /* of the device, when this end was made */
    const char *event;         /* what the device has reported of this end; NULL: nothing */
    const char *event_cause;
    bool failed;                     /* no good completions will come any more */
    struct ibv_wc bad;               /* the first bad one */
    uint64_t failed_ns;              /* when it came */
    uint32_t queued;                 /* work requests in send_wr (writer) or recv_wr (reader) */
    uint64_t invite_from, invite_to; /* reader: invitations that are in the ring but not sent */
    uint32_t send_room;              /* places of the send queue */
    uint32_t sends_out,
        sends_unsignalled; /* reader: places that offers have, or will have until one is signalled */
    uint64_t *cookies;     /* by request */
    struct ibv_send_wr *send_wr;
    struct ibv_recv_wr *recv_wr;
    struct ibv_sge *sge;
    kolo_net_counts_t counts;
    struct ibv_wc *late; /* what had come when the end was revoked, in order */
    uint32_t nlate, late_at;
    char label[64];
};
kolo_status_t kolo_verbs_listen(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                                kolo_net_end_t **end);
kolo_status_t kolo_verbs_start(kolo_net_open_t *open, const kolo_net_end_config_t *config, kolo_net_hello_t *hello,
                               kolo_net_end_t **end);
kolo_status_t kolo_verbs_connect(kolo_net_end_t *end, const kolo_net_hello_t *peer);
void kolo_verbs_shut(kolo_net_end_t *end);

/* ---- end.c: what an end of queues and one of one-sided transfers have in common ---- */
/* Makes an end, in the device's list until kolo_verbs_shut(). NULL: no memory, with its message. */
kolo_net_end_t *kolo_verbs_end_new(kolo_net_open_t *open, const char *label);
typedef struct {
    uint32_t sends, receives, completions, pieces; /* requests, completions, parts of a send */
} kolo_verbs_room_t;
/* Makes its completion queue and its queue pair, which is in INIT then. */
kolo_status_t kolo_verbs_end_make_queues(kolo_net_end_t *end, const kolo_verbs_room_t *room);
/* Fills in what it says of itself; the caller has set depth and fifo. */
kolo_status_t kolo_verbs_end_introduce(kolo_net_end_t *end, kolo_net_hello_t *hello);
/* Takes what the other end says, which must be of the same kind of network. */
kolo_status_t kolo_verbs_end_meet(kolo_net_end_t *end, const kolo_net_hello_t *peer);

/* Brings a queue pair from INIT by RTR to RTS, with what both hellos say. */
kolo_status_t kolo_verbs_qp_init(kolo_net_end_t *end, struct ibv_qp *qp, int access);
kolo_status_t kolo_verbs_qp_ready(kolo_net_end_t *end, struct ibv_qp *qp, const kolo_verbs_hello_t *mine,
                                  const kolo_verbs_hello_t *peer);

kolo_status_t kolo_verbs_isend(kolo_net_end_t *end, const void *data, uint32_t bytes,
                               const kolo_net_region_t *region, uint64_t cookie);
kolo_status_t kolo_verbs_irecv(kolo_net_end_t *end, void *data, uint32_t bytes, const kolo_net_region_t *region,
                               uint64_t cookie, uint64_t tag);
/* ---- trouble.c: errors that say whose connection it is, by which way, and what may be the cause ---- */
#define KOLO_VERBS_WITHOUT    "do without RDMA (KOLO_NET_DISABLE=1, for keyed tensors KOLO_ONESIDED_VERBS=0)"
#define KOLO_VERBS_PORT_CAUSE "a cable, a switch, or `ip link set down`; see `rdma link`"
#define KOLO_VERBS_GID_CAUSE  "an address was taken from its network interface (`ip address`)"
/* Tells whether what a failed end says about its cause is all that can be known. false: ask again, for at most 100
 * ms. */
bool kolo_verbs_failure_is_clear(const kolo_net_end_t *end);
kolo_status_t kolo_verbs_fail_completion(const kolo_net_end_t *end, const struct ibv_wc *wc);
kolo_status_t kolo_verbs_fail_post(const kolo_net_end_t *end, int err);
/* Reads what the device has reported by itself, of this end or of all. */
kolo_status_t kolo_verbs_check_events(const kolo_net_end_t *end);

/* Notes, on the reader, that request `request` has memory of a region that has to be flushed. */
kolo_status_t kolo_verbs_flush_want(kolo_net_end_t *end, uint64_t request, uint64_t address,
                                    const kolo_net_region_t *region);
/* Reads back what has come and is not safe; moves end->safe as far as it can be moved. */
kolo_status_t kolo_verbs_flush_step(kolo_net_end_t *end);
void kolo_verbs_flush_done(kolo_net_end_t *end, uint64_t until);
kolo_status_t kolo_verbs_flush_rest(kolo_net_end_t *end);
void kolo_verbs_flush_fini(kolo_net_end_t *end);
#define KOLO_VERBS_FLUSH_MARK (1ull << 62) /* wr_id of its reads */
#define KOLO_VERBS_FLUSH_MOST 4u           /* of them under way at once */

bool kolo_verbs_offered(const kolo_net_end_t *end, uint64_t *tag);
kolo_status_t kolo_verbs_invite(kolo_net_end_t *end, uint64_t request, void *data, uint32_t bytes,
                                const kolo_net_region_t *region);
kolo_net_invitation_t kolo_verbs_invited(const kolo_net_end_t *end, uint32_t bytes);
kolo_status_t kolo_verbs_isend_from(kolo_net_end_t *end, const kolo_net_piece_t *payload,
                                    const kolo_net_piece_t *rest, bool in_place, uint64_t cookie);
kolo_status_t kolo_verbs_take_offers(kolo_net_end_t *end, uint32_t most, uint64_t *from, uint32_t *n);
bool kolo_verbs_repeat_offers(kolo_net_end_t *end, uint64_t from, uint32_t n);
void kolo_verbs_revoke(kolo_net_end_t *end);
kolo_status_t kolo_verbs_push(kolo_net_end_t *end);
kolo_status_t kolo_verbs_poll(kolo_net_end_t *end, int most); /* takes completions, wakes nobody */
kolo_status_t kolo_verbs_test(kolo_net_end_t *end, kolo_net_done_t *done, int most, int *n);

#endif
