#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy's own comm_runner.py, unmodified: each function of cupyx.distributed for each type, each function in a process of its own.

    tests/nccl/clients/cupy_cases.py FOLDER [--library build/libnccl.so.2] [--seconds S] [FUNCTION...]

FOLDER is CuPy's source tree, of the release that is installed. Two GPUs. Without --library it is NCCL's own. sparse_gather and
sparse_all_gather of f and F fail with either: CuPy reads memory there that it has not written. Last line: N passed, N failed.
"""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

ALL, FEW, NONE = "bhilqBHILQefdFD", "fdFD", "-"
NAMES = ("broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "send_and_recv", "send_recv", "scatter", "gather", "all_to_all")
WORK = {**{n: ALL for n in NAMES}, **{"sparse_" + n: FEW for n in NAMES}, "barrier": NONE, "init": NONE}
AT_ONCE = 11


def one(folder, name, port):
    """In a process of its own: the function for each of its types, by a port of its own."""
    import multiprocessing
    multiprocessing.set_start_method("fork", force=True)
    sys.path.insert(0, os.path.join(folder, "tests/cupyx_tests/distributed_tests"))
    os.environ["CUPYX_DISTRIBUTED_PORT"] = str(port)
    from cupyx.distributed import _nccl_comm, _store
    init = _nccl_comm.NCCLBackend.__init__
    init.__defaults__ = tuple(port if d == _store._DEFAULT_PORT else d for d in init.__defaults__)
    import comm_runner
    for t in WORK[name]:
        try:
            f = getattr(comm_runner, name)
            f() if t == NONE else f(t)
            print("right", name, t, flush=True)
        except BaseException as e:  # noqa: BLE001: assertions of its processes are among them
            print("WRONG", name, t, type(e).__name__, " ".join(str(e).split())[:300], flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder")
    args.add_argument("functions", nargs="*", default=[], metavar="FUNCTION")
    args.add_argument("--library")
    args.add_argument("--seconds", type=float, default=300)
    args.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    o = args.parse_intermixed_args()
    if o.port:
        return one(o.folder, o.functions[0], o.port)
    env = {**os.environ, **({"LD_PRELOAD": os.path.abspath(o.library)} if o.library else {})}
    end, running = time.monotonic() + o.seconds, {}
    names = o.functions or list(WORK)
    with tempfile.TemporaryDirectory() as out:
        for k, name in enumerate(names):
            while sum(p.poll() is None for p in running.values()) >= AT_ONCE and time.monotonic() < end:
                time.sleep(0.2)
            with open(os.path.join(out, name), "w", encoding="utf-8") as f:
                command = [sys.executable, os.path.abspath(__file__), o.folder, name, "--port", str(14000 + 40 * k)]
                running[name] = subprocess.Popen(command, stdout=f, stderr=f, env=env, start_new_session=True)
        while any(p.poll() is None for p in running.values()) and time.monotonic() < end:
            time.sleep(0.2)
        lines = []
        for name, p in running.items():
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            with open(os.path.join(out, name), encoding="utf-8", errors="replace") as f:
                lines += f.read().splitlines()
    right, wrong = (sum(line.startswith(w) for line in lines) for w in ("right ", "WRONG "))
    print(*[line for line in lines if not line.startswith("right ")][-40:], sep="\n")
    print(f"{sum(len(WORK[n]) for n in names) - right - wrong} were not through after {o.seconds:.0f} s")
    print(f"{right} passed, {wrong} failed")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
