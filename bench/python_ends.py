#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed on Kolo does when things end: times and words, as issue texts ask for them.

    python_ends.py [--backend kolo|gloo] [killed|stopped|late|groups|changed ...]

killed: one of 3 ranks is killed while the others are in an all_reduce. stopped: the same with SIGSTOP and a limit of 2 s. late:
destroy_process_group() while the other rank computes for a second. groups: 100 groups of 2 ranks. changed: 3 ranks reconfigured
20 times, on Kolo and on Gloo by turns (torch 2.15).
"""
import argparse
import contextlib
import datetime
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def begin(args, limit_s=30, backend=None):
    import torch
    import torch.distributed as dist
    import kolocomm.torch  # noqa: F401
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend or args.backend, init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=limit_s))
    x = torch.ones(1000)
    dist.all_reduce(x)
    dist.barrier()
    return torch, dist, rank


def told_after(dist, torch, folder):
    """Milliseconds from the moment that the victim wrote down, and the error's first words."""
    try:
        while True:
            dist.all_reduce(torch.ones(1000))
    except RuntimeError as e:
        now = time.monotonic()
        with open(os.path.join(folder, "when"), encoding="utf-8") as f:
            return (now - float(f.read())) * 1e3, " ".join(str(e).split("Exception raised")[0].split())
    raise AssertionError


def signalled(args, number, limit_s):
    torch, dist, rank = begin(args, limit_s)
    if rank == 2:
        time.sleep(0.3)
        with open(os.path.join(args.folder, "when"), "w", encoding="utf-8") as f:
            f.write(str(time.monotonic()))
        os.kill(os.getpid(), number)
    ms, words = told_after(dist, torch, args.folder)
    print(f"{args.case} (limit {limit_s} s): rank {rank} was told after {ms:7.1f} ms, {'named' if 'rank 2' in words else 'NOT named'}: {words[:110]}", flush=True)
    if number == signal.SIGSTOP and rank == 0:
        time.sleep(0.5)
        with open(os.path.join(args.folder, "pid2"), encoding="utf-8") as f:
            os.kill(int(f.read()), signal.SIGKILL)
    os._exit(0)


def killed(args):
    signalled(args, signal.SIGKILL, 30)


def stopped(args):
    signalled(args, signal.SIGSTOP, 2)


def late(args):
    _, dist, rank = begin(args)
    if rank == 1:
        time.sleep(1)
    began = time.monotonic()
    dist.destroy_process_group()
    print(f"late: destroy_process_group() of rank {rank} took {(time.monotonic() - began) * 1e3:6.1f} ms{' (the other one came a second later)' if rank == 0 else ''}", flush=True)


def groups(args):
    torch, dist, rank = begin(args)

    def held():
        with open("/proc/self/status", encoding="utf-8") as f:
            threads = next(int(line.split()[1]) for line in f if line.startswith("Threads"))
        return threads, len(os.listdir("/proc/self/fd"))

    before, began = held(), time.monotonic()
    made = [dist.new_group(backend=args.backend) for _ in range(100)]
    for g in made:
        dist.all_reduce(torch.ones(10), group=g)
    after = held()
    if os.environ.get("KINDS"):  # which descriptors they are
        kinds = {}
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kind = os.readlink(f"/proc/self/fd/{fd}").split(":[")[0].split("(deleted)")[0]
                kinds[kind] = kinds.get(kind, 0) + 1
        print(sorted(kinds.items(), key=lambda k: -k[1])[:8], flush=True)
    print(f"groups: 100 groups of {args.backend}, each used once, after {time.monotonic() - began:.1f} s: rank {rank} has {after[0] - before[0]} threads and {after[1] - before[1]} descriptors more", flush=True)
    dist.barrier()
    os._exit(0)


def changed(args):
    import torch
    import torch.distributed as dist
    import kolocomm.torch  # noqa: F401
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not hasattr(dist, "_reconfigure"):
        if rank == 0:
            print(f"changed: torch {torch.__version__} has no groups that are reconfigured (2.15 has)", flush=True)
        return
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), ranks, rank == 0)
    times = {"kolo": [], "gloo": []}
    for turn in range(4):
        for name, mine in times.items():
            key = f"{name}/{turn}"
            dist.init_process_group(name, world_size=ranks, rank=rank, store=dist.PrefixStore(key, store), timeout=datetime.timedelta(seconds=30), enable_reconfigure=True)
            for i in range(6):
                store.set(f"{key}/{i}/{rank}", dist._get_reconfigure_handle())
                handles = [store.get(f"{key}/{i}/{r}").decode() for r in range(ranks)]
                began = time.monotonic()
                dist._reconfigure(i + 1, handles, timeout=datetime.timedelta(seconds=30)).wait()
                dist.all_reduce(torch.ones(4))
                if i:
                    mine.append((time.monotonic() - began) * 1e3)
            dist.destroy_process_group()
    if rank == 0:
        print("changed: 3 ranks reconfigured and one all_reduce: " + ", ".join(f"{n} {statistics.median(t):.1f} ms (least {min(t):.1f})" for n, t in times.items()), flush=True)
    os._exit(0)


CASES = {"killed": (killed, 3), "stopped": (stopped, 3), "late": (late, 2), "groups": (groups, 2), "changed": (changed, 3)}


def start(args, case):
    ranks = CASES[case][1]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        env = {**os.environ, "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "KOLO_LOG": "error"}
        cmd = [sys.executable, __file__, "--backend", args.backend, "--folder", folder, case]
        all_ranks = [subprocess.Popen(cmd, env={**env, "RANK": str(r)}) for r in range(ranks)]
        with open(os.path.join(folder, "pid2"), "w", encoding="utf-8") as f:
            f.write(str(all_ranks[-1].pid))
        for p in all_ranks:
            p.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="kolo")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", default=[])
    args = parser.parse_args()
    if args.folder:
        args.case = args.cases[0]
        return CASES[args.case][0](args)
    for case in args.cases or CASES:
        start(args, case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
