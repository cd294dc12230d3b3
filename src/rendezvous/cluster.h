/* SPDX-License-Identifier: Apache-2.0
 *
 * The tasks of a job and where they are, read from `ps=host:port,host:port;worker=host:port`, or how many there
 * are, `ps=2;worker=1`; and the table of protocols.
 */
#ifndef KOLO_RENDEZVOUS_CLUSTER_H
#define KOLO_RENDEZVOUS_CLUSTER_H

#include "rendezvous/remote/channel.h"

#define KOLO_CLUSTER_TASKS_MAX 65536
typedef struct {
    kolo_cluster_task_t *tasks; /* in the order of the text */
    int ntasks, room;
    int *by_name; /* indices of tasks in the order of their names */
    bool meets;   /* only their numbers were given: they have no addresses */
} kolo_cluster_t;
/* Checks names, resolves addresses. Of a task that comes twice, and so on, the message says where. */
kolo_status_t kolo_cluster_parse(const char *text, kolo_cluster_t *cluster);
int kolo_cluster_find(const kolo_cluster_t *cluster, const char *task); /* -1: there is none */
void kolo_cluster_free(kolo_cluster_t *cluster);

typedef struct {
    char name[32];
    unsigned kinds; /* of one-sided transfers */
    kolo_rendezvous_mode_t mode;
} kolo_protocol_t;
kolo_status_t kolo_cluster_protocol(const char *name, kolo_protocol_t *protocol);

#endif
