#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's all_reduce on Kolo and on Gloo by turns, and what a call costs before it reaches the library.

    python_turns.py [--ranks N] [--cores N] [--rounds N]

Both backends have a group in the same processes; a round times one of them, then the other. Prints the median of the rounds
(the time of rank 0) and the ratio of the medians. With --ranks 1 it prints the cost of one call of one rank instead.
Wants torch with Gloo, numpy and kolocomm.
"""
import argparse
import datetime
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = ((4 << 10, 300), (256 << 10, 100), (16 << 20, 6))  # bytes, calls of a round


def blocking(dist, tensor, group, calls):
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)


def asynchronous(dist, tensor, group, calls):
    for _ in range(calls):
        dist.all_reduce(tensor, group=group, async_op=True).wait()


def timed(way, dist, tensor, group, calls):
    dist.barrier(group)
    began = time.perf_counter()
    way(dist, tensor, group, calls)
    return (time.perf_counter() - began) / calls * 1e6


def begin(ranks):
    import torch
    import torch.distributed as dist
    import kolocomm.torch  # noqa: F401
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    return torch, dist, rank


def turns(args):
    torch, dist, rank = begin(args.ranks)
    groups = {"gloo": None, "kolo": dist.new_group(backend="kolo")}
    for size, calls in SIZES:
        calls = max(2, calls * 2 // args.ranks)
        for way in (blocking, asynchronous):
            times = {name: [] for name in groups}
            tensor = torch.zeros(size // 4)
            for round_ in range(args.rounds + 1):
                for name, group in groups.items():
                    us = timed(way, dist, tensor, group, calls)
                    if round_:  # the first warms up
                        times[name].append(us)
            kolo, gloo = (statistics.median(times[name]) for name in ("kolo", "gloo"))
            if rank == 0:
                print(f"{args.ranks} ranks on {args.cores} cores  {way.__name__:12} {size:9} B  kolo {kolo:9.1f} us (least {min(times['kolo']):9.1f})  "
                      f"gloo {gloo:9.1f} us (least {min(times['gloo']):9.1f})  {gloo / kolo:5.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def alone(args):
    """One rank: nothing is sent, so what is left is the way through Python and torch."""
    torch, dist, _ = begin(1)
    import kolocomm
    import numpy
    group, gloo = dist.new_group(backend="kolo"), None
    tensor, array = torch.zeros(1024), numpy.zeros(1024, numpy.float32)
    comm = kolocomm.Comm(kolocomm.get_unique_id(), 0, 1)

    def numpy_calls(_dist, x, _group, calls):
        for _ in range(calls):
            comm.all_reduce(x)

    for name, way, x, g in (("torch, kolo, blocking", blocking, tensor, group), ("torch, kolo, asynchronous", asynchronous, tensor, group),
                            ("torch, gloo, blocking", blocking, tensor, gloo), ("torch, gloo, asynchronous", asynchronous, tensor, gloo), ("numpy, kolo", numpy_calls, array, group)):
        times = [timed(way, dist, x, g, 2000) for _ in range(args.rounds + 1)][1:]
        print(f"one rank, 4 KB: {name:26} {statistics.median(times):6.2f} us (least {min(times):6.2f})", flush=True)
    comm.destroy()
    dist.destroy_process_group()


def start(args):
    cores = sorted(os.sched_getaffinity(0))[:args.cores]
    os.sched_setaffinity(0, cores)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    cmd = [sys.executable, *sys.argv, "--inside"]
    ranks = [subprocess.Popen(cmd, env={**env, "RANK": str(r)}) for r in range(args.ranks)]
    return max(p.wait() for p in ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        return start(args)
    return alone(args) if args.ranks == 1 else turns(args)


if __name__ == "__main__":
    sys.exit(main())
