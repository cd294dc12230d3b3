#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Who the others wait for, in a job that knows only NCCL's functions: late_test.py LIBRARY KOLO_TOP. Three processes on host memory;
# rank 1 is stopped before a call, found, and goes on (after so many seconds more, if a third argument says so); then it is killed in one.
import ctypes
import os
import re
import signal
import subprocess
import sys
import time

SOON_S = 2.0  # in which a rank that is late has to be named
FLOAT, SUM, REMOTE = 7, 0, 6


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def rank_main(library, rank, ranks, id_path):
    """Says what it does on stdout, one word a line, and begins each call when it reads a line."""
    nccl = ctypes.CDLL(library)
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    ident, comm = Id(), ctypes.c_void_p()
    if rank == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(ident)) == 0
        with open(id_path + ".new", "wb") as f:
            f.write(bytes(ident))
        os.rename(id_path + ".new", id_path)
    while not os.path.exists(id_path):
        time.sleep(0.01)
    with open(id_path, "rb") as f:
        ctypes.memmove(ctypes.byref(ident), f.read(), 128)
    assert nccl.ncclCommInitRank(ctypes.byref(comm), ranks, ident, rank) == 0
    n = 1000
    data = (ctypes.c_float * n)()
    print("ready", flush=True)
    for _ in sys.stdin:
        for i in range(n):
            data[i] = rank + 1
        print("calls", flush=True)
        r = nccl.ncclAllReduce(data, data, ctypes.c_size_t(n), FLOAT, SUM, comm, None)
        print("done", r, data[n - 1], time.time(), nccl.ncclGetLastError(None).decode() if r else "", flush=True)
        if r:
            break
    os._exit(0)


def check(what, fact, seen):
    if not fact:
        print(f"{what}: not so:\n{seen}")
        os._exit(1)


class Rank:
    def __init__(self, library, rank, ranks, id_path):
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | {"KOLO_NCCL_CPU": "1"}
        self.log = f"late-{os.getpid()}-{rank}.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, __file__, library, "rank", str(rank), str(ranks), id_path], env=env, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def says(self, word):
        line = self.process.stdout.readline()
        check(f"a rank says {word}", line.startswith(word), line + self.logged())
        return line.split(maxsplit=4)[1:]

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def logged(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()


def until(what, look, wanted):
    """Seconds until look() gives a text in which the pattern is found."""
    began = time.monotonic()
    while True:
        text = look()
        if re.search(wanted, text, re.S):
            return time.monotonic() - began
        check(what, time.monotonic() - began < 30, text)
        time.sleep(0.05)


def main():
    library, kolo_top = (os.path.abspath(a) for a in sys.argv[1:3])
    late_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0
    if b"san.so" in subprocess.run(["ldd", library], capture_output=True, check=False).stdout:
        print("built with a sanitizer")
        sys.exit(77)
    id_path = os.path.abspath(f"late-{os.getpid()}.id")
    ranks = [Rank(library, r, 3, id_path) for r in range(3)]
    for r in ranks:
        r.says("ready")
    for r in ranks:
        r.go()
    for r in ranks:
        r.says("calls")
        check("the first sum is right", r.says("done")[:2] == ["0", "6.0"], r.logged())
    late = ranks[1].process
    late.send_signal(signal.SIGSTOP)
    for r in (ranks[0], ranks[2]):
        r.go()
        r.says("calls")
    took = until("kolo-top names the rank that is stopped", lambda: subprocess.run(
        [kolo_top, "--once", *[a for r in ranks for a in ("--pid", str(r.process.pid))]], capture_output=True, text=True, check=False).stdout,
        r"rank 1 \(process[^\n]*all_reduce")
    print(f"kolo-top named it after {took:.2f} s")
    check("soon", took < SOON_S or os.getloadavg()[0] > os.cpu_count(), took)
    took += until("the log names the rank that is stopped", ranks[0].logged,
                  r"NCCL WARN Kolo \[wait\] still waiting: rank 0, in [^\n]*all_reduce 1000 float32[^\n]* rank 1; "
                  r"rank 1 \(process \d+ on [^)\n]*\) (is stopped|did not enter)")
    print(f"the log named it after {took:.2f} s")
    check("soon", took < SOON_S or os.getloadavg()[0] > os.cpu_count(), took)
    time.sleep(late_s)
    check("a rank that is late is no error", all(r.process.poll() is None for r in ranks), "")
    late.send_signal(signal.SIGCONT)
    ranks[1].go()
    ranks[1].says("calls")
    for r in ranks:
        check("a rank that comes late finishes right", r.says("done")[:2] == ["0", "6.0"], r.logged())
    for r in (ranks[0], ranks[2]):
        r.go()
        r.says("calls")
    killed = time.time()
    late.kill()
    for r in (ranks[0], ranks[2]):
        code, _, at, text = r.says("done")
        check("the others get ncclRemoteError", int(code) == REMOTE, text)
        check("which names the one that was killed", "rank 1" in text, text)
        print(f"an error after {1e3 * (float(at) - killed):.1f} ms")
        check("soon", float(at) - killed < 0.05 or os.getloadavg()[0] > os.cpu_count(), at)
    for r in ranks:
        r.process.stdin.close()
        r.process.wait()
        os.unlink(r.log)
    os.unlink(id_path)


if sys.argv[2] == "rank":
    rank_main(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
else:
    main()
