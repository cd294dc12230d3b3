#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nccl-tests, unmodified, on libnccl.so.2: wrong values of each program, type and operator, of settings in pairs, of all lengths.

    tests/nccl/clients/nccl_tests.py FOLDER --library build/libnccl.so.2 [--gpus N] [--seconds S] [PART...]

FOLDER has all_reduce_perf and the others. Parts: programs (each at four lengths), types (all types, of reductions all operators),
pairs (each value of a setting beside each value of every other one, for all programs: 48 runs at most), lengths (1 B to 8 GB).
--mpi FOLDER: programs that were built with MPI=1, for the setting of one process for each GPU. --list prints the commands.
Without --library it is the libnccl that the programs find by themselves. Last line: N passed, N failed.
"""
import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import time

PROGRAMS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reduce", "alltoall", "alltoallv", "scatter", "gather", "sendrecv", "hypercube")
REDUCE = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PARTS = ("programs", "types", "pairs", "lengths")
SMALL = "-b 8 -e 4M -f 64 -n 3 -w 1"


def settings(gpus, mpi):
    """Values of each setting: how ranks are started, how buffers are registered, graphs, operations in a group, blocking or not."""
    hows = [f"-t {gpus} -g 1", f"-t 1 -g {gpus}"] + ([f"-t {gpus // 2} -g 2"] if gpus >= 4 else []) + (["mpi"] if mpi else [])
    return {"program": PROGRAMS, "how": hows, "register": ["-R 0", "-R 1", "-R 2"], "graph": ["-G 0", "-G 1"], "group": ["-m 1", "-m 8"],
            "blocking": ["", "-z 1"]}


def can_be(run):
    return not (run.get("graph") == "-G 1" and run.get("blocking") == "-z 1")  # a capture cannot wait


def pairs_of(run):
    return {frozenset(p) for p in itertools.combinations(run.items(), 2)}


def pairwise(values):
    """Runs that have each pair of values, of different settings, in one of them. Greedy: the next run has the most that are missing."""
    runs = [dict(zip(values, v)) for v in itertools.product(*values.values())]
    runs = [r for r in runs if can_be(r)]
    missing = set().union(*map(pairs_of, runs))
    chosen = []
    while missing:
        best = max(runs, key=lambda r: len(pairs_of(r) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def commands(part, gpus, mpi):
    """Yields names and arguments; the first argument is the program."""
    one = f"-g {gpus}"
    if part == "programs":
        yield from ((p, f"{p} {one} -b 1K -e 32M -f 32 -n 3 -w 1") for p in PROGRAMS)
    elif part == "types":
        yield from ((f"{p}, all types", f"{p} {one} -b 64 -e 2M -f 32 -n 1 -w 1 -d all{' -o all' if p in REDUCE else ''}") for p in PROGRAMS)
    elif part == "lengths":
        yield "1 B to 8 GB", f"all_reduce {one} -b 1 -e 8G -f 2 -n 1 -w 0 -d float"
    else:
        for k, run in enumerate(pairwise(settings(gpus, mpi))):
            root = f" -r {k % gpus}" if run["program"] in ROOTED else ""
            yield " ".join(v for v in run.values() if v), " ".join(f"{' '.join(v for v in run.values() if v)} {SMALL}{root}".split())


def command(o, text):
    program, *rest = text.split()
    at = os.path.join(o.mpi if "mpi" in rest else o.folder, program + "_perf")
    start = ["mpirun", "-n", str(o.gpus), "--oversubscribe"] if "mpi" in rest else []
    if start and o.library:
        start += ["-x", "LD_PRELOAD"]
    return start + [at] + [a for a in rest if a != "mpi"] + ["-c", "1"]


def verdict(output, rc):
    """Returns "" if each value was looked at and right, else what is wrong."""
    found = re.findall(r"Out of bounds values : (\d+) (\w+)", output)
    if rc:
        said = [line for line in output.splitlines() if re.search("error|fail", line, re.I)]
        return f"ended with {rc}: {said[0][:200] if said else output[-200:]}"
    if not found:
        return "no value was looked at"
    return "" if all(n == "0" for n, _ in found) else f"{found[0][0]} wrong values"


def run(o, text, left):
    env = dict(os.environ)
    if o.library:
        env["LD_PRELOAD"] = os.path.abspath(o.library)
    p = subprocess.Popen(command(o, text), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = p.communicate(timeout=left)
        return verdict(output, p.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        return f"not through after {left:.0f} s"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder")
    args.add_argument("parts", nargs="*", metavar="PART", default=[])
    args.add_argument("--library")
    args.add_argument("--gpus", type=int, default=2)
    args.add_argument("--mpi", help="the folder of programs with MPI")
    args.add_argument("--limit", type=float, default=60, help="seconds of one run")
    args.add_argument("--seconds", type=float, default=1e6, help="of all")
    args.add_argument("--list", action="store_true")
    o = args.parse_intermixed_args()
    end, counts = time.monotonic() + o.seconds, [0, 0]
    for part in o.parts or PARTS:
        for name, text in commands(part, o.gpus, o.mpi):
            if o.list:
                print(" ".join(command(o, text)))
                continue
            left = end - time.monotonic()
            if left < 1:
                print(f"no time     {part}: {name}")
                continue
            why = run(o, text, min(left, o.limit if part != "lengths" else 3 * o.limit))
            counts[why != ""] += 1
            print(f"{'WRONG' if why else 'right'}       {part}: {name}{': ' + why if why else ''}", flush=True)
    if not o.list:
        print(f"{counts[0]} passed, {counts[1]} failed")
    sys.exit(counts[1] != 0)


if __name__ == "__main__":
    main()
