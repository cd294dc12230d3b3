/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the plug-in: an opened device of the provider with one end on it, so that connections have
 * nothing in common; a lock of its own serves callers that register memory while another thread moves data. comm.c
 * sets it up, requests.c moves data.
 */
#ifndef KOLO_NCCL_NET_COMM_H
#define KOLO_NCCL_NET_COMM_H

#include "link/auth.h"
#include "nccl_net/export.h"

#include <pthread.h>

#define DEPTH KOLO_NCCL_REQUESTS

typedef struct comm comm_t;
typedef struct {
    kolo_net_hello_t hello;
    kolo_key_t proof;
} introduction_t;

typedef struct {
    comm_t *comm;
    bool used, done;
    uint32_t bytes;
} request_t;

typedef enum { DIALLED, SENT, MET, UP } stage_t;
struct comm {
    pthread_mutex_t lock;
    const kolo_net_ops_t *ops;
    kolo_net_open_t *open;
    kolo_net_end_t *end;
    bool reads;
    stage_t stage;
    int socket;
    uint32_t got; /* of what is read from it */
    introduction_t theirs;
    kolo_net_hello_t mine;
    uint8_t key[32];
    request_t requests[DEPTH];
    uint64_t next, completed; /* by request */
    uint32_t in_vain;
};

#endif
