/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo against Gloo (its TCP transport; it has none for shared memory). Started by kolorun; Gloo's ranks find each
 * other through files in KOLO_BENCH_STORE.
 */
#include "loop.h"

#include <kolo/job.h>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

static std::shared_ptr<gloo::rendezvous::Context> context;

static void sum(void *c, const void *a, const void *b, size_t n)
{
    float *out = static_cast<float *>(c);
    const float *x = static_cast<const float *>(a), *y = static_cast<const float *>(b);
    for (size_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

static int pingpong(const float *src, float *dst, size_t n, int rank)
{
    if (rank > 1) return 0;
    auto out = context->createUnboundBuffer(const_cast<float *>(src), n * sizeof(float));
    auto in = context->createUnboundBuffer(dst, n * sizeof(float));
    for (int k = 0; k < 2; k++) {
        if (k == rank) {
            out->send(1 - rank, 7);
            out->waitSend();
        } else {
            in->recv(1 - rank, 7);
            in->waitRecv();
        }
    }
    return 0;
}

static int call(int op, const float *src, float *dst, size_t n, int rank, int nranks, void *)
{
    float *in = const_cast<float *>(src);
    size_t all = n * static_cast<size_t>(nranks);
    switch (op) {
    case OP_ALL_REDUCE: {
        gloo::AllreduceOptions o(context);
        o.setInput(in, n);
        o.setOutput(dst, n);
        o.setReduceFunction(sum);
        gloo::allreduce(o);
        return 0;
    }
    case OP_REDUCE: {
        gloo::ReduceOptions o(context);
        o.setInput(in, n);
        o.setOutput(dst, n);
        o.setRoot(0);
        o.setReduceFunction(sum);
        gloo::reduce(o);
        return 0;
    }
    case OP_BROADCAST: {
        gloo::BroadcastOptions o(context);
        o.setOutput(dst, n);
        o.setRoot(0);
        gloo::broadcast(o);
        return 0;
    }
    case OP_ALL_GATHER: {
        gloo::AllgatherOptions o(context);
        o.setInput(in, n);
        o.setOutput(dst, all);
        gloo::allgather(o);
        return 0;
    }
    case OP_ALL_TO_ALL: {
        gloo::AlltoallOptions o(context);
        o.setInput(in, all);
        o.setOutput(dst, all);
        gloo::alltoall(o);
        return 0;
    }
    case OP_PINGPONG:
        return pingpong(src, dst, n, rank);
    default:
        return -1; /* no reduce_scatter in its current interface */
    }
}

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    const char *store_path = std::getenv("KOLO_BENCH_STORE"), *interface = std::getenv("KOLO_BENCH_INTERFACE");
    const peer_t peer = {"gloo", call, nullptr};
    if (!store_path || kolo_job_get_place(&job) != KOLO_OK || kolo_job_connect(&comm, nullptr) != KOLO_OK) {
        std::fprintf(stderr, "init: %s\n", kolo_get_last_error(nullptr));
        return 1;
    }
    gloo::transport::tcp::attr attr;
    if (interface)
        attr.iface = interface;
    else
        attr.hostname = "127.0.0.1";
    gloo::rendezvous::FileStore store(store_path);
    context = std::make_shared<gloo::rendezvous::Context>(job.rank, job.nranks);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    context->connectFullMesh(store, device);
    int status = peers_run(&peer, comm, job.rank, job.nranks, argc, argv);
    if (kolo_comm_finalize(comm) != KOLO_OK || kolo_comm_destroy(comm) != KOLO_OK) {
        std::fprintf(stderr, "end: %s\n", kolo_get_last_error(nullptr));
        return 1;
    }
    return status;
}
