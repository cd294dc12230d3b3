#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Where users run: containers (namespaces as docker makes them, a /dev/shm of 64 KB, system calls that its filter refuses), and a
# file system that nobody may write to. The ranks (rank.py) know only NCCL's functions, and have to find each other.
# places_test.py LIBRARY HOSTS [DRIVER]; DRIVER: the fake one, for GPUs.
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import run_case

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 60
# Namespaces for what a container has its own of, with a network that it shares or not; "init" is its first process.
BOX = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--cgroup", "--mount-proc", "--kill-child", "sh", "-c",
       'mount -t tmpfs -o size=64k tmpfs /dev/shm; hostname "$0"; exec "$@"']
# System calls that a filter of containers or of a service manager refuses: of those that Kolo may use. By number, on x86-64.
REFUSED = {"process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "memfd_create": 319, "membarrier": 324, "pidfd_send_signal": 424,
           "io_uring_setup": 425, "pidfd_open": 434, "pidfd_getfd": 438, "process_madvise": 440}
NO_MEMFD = r"memfd_create\(2\) is refused here"
FILTERED = """
import ctypes, os, struct, sys
numbers = [int(n) for n in sys.argv[1].split(",") if n != "319" or "KOLO_CUDA_LIBRARY" not in os.environ]  # the driver's memory
code = struct.pack("HBBI", 0x20, 0, 0, 0)  # the number of the call
for i, n in enumerate(numbers):
    code += struct.pack("HBBI", 0x15, len(numbers) - i, 0, n)
code += struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000) + struct.pack("HBBI", 0x06, 0, 0, 0x00050001)  # allow; EPERM
program = ctypes.create_string_buffer(code)
class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
p = Fprog(len(code) // 8, ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(p), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[2], sys.argv[2:])
"""


def clean(**env):
    return {k: v for k, v in os.environ.items() if not re.match("NCCL_|KOLO_|FAKE_|LD_PRELOAD|SLURM_|OMPI_|PMI", k)} | env


def memories():
    """On host memory, and on GPUs if there is a driver."""
    yield {"KOLO_NCCL_CPU": "1"}
    if DRIVER:
        yield {"KOLO_CUDA_LIBRARY": DRIVER, "FAKE_CUDA_DEVICES": "4", "FAKE_CUDA_SMS": "4"}


def job(befores, allowed="^$"):
    """Runs a rank for each of `befores`, the commands that it is started by; nothing else than `allowed` is warned of."""
    for memory in memories():
        ident = TMP / "id"
        ident.unlink(missing_ok=True)
        n = len(befores)
        ranks = [subprocess.Popen([*before, sys.executable, str(HERE / "rank.py"), LIBRARY, str(ident), str(r), str(n)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=clean(**memory)) for r, before in enumerate(befores)]
        try:
            said = [r.communicate(timeout=LIMIT_S) for r in ranks]
        finally:
            for r in ranks:
                r.kill()
        for r, (out, err) in enumerate(said):
            warnings = [line for line in err.splitlines() if "WARN" in line and not re.search(f"ranks share .* cores|{allowed}", line)]
            assert out == f"rank {r} of {n}: right\n" and not warnings, f"rank {r}, {memory}: {said}"


def test_a_container_for_each_rank():
    job([[*BOX, f"box{r}"] for r in range(3)])


def test_two_ranks_in_each_container():
    shared = [*BOX, "box"]
    holders, befores = [], []
    for c in range(2):
        holders.append(subprocess.Popen([*shared[:-1], f"box{c}", "sleep", "1000"]))
    try:
        for h in holders:
            inner = first_child(h.pid)
            befores += [["nsenter", "-t", str(inner), "-m", "-p", "-i", "-u", "-C"]] * 2
        job(befores)
    finally:
        for h in holders:
            h.kill()
            h.wait()


def first_child(pid):
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    while True:
        children = path.read_text().split()
        if children and "sleep" in pathlib.Path(f"/proc/{children[0]}/cmdline").read_text():
            return int(children[0])


def test_containers_with_networks_of_their_own():
    """As docker's bridge."""
    for memory in memories():
        ident = TMP / "id"
        ident.unlink(missing_ok=True)
        command = [HOSTS, "-t", str(LIMIT_S), "2", "2", *BOX, "box", sys.executable, str(HERE / "rank.py"), LIBRARY, str(ident)]
        done = subprocess.run(command, text=True, capture_output=True, env=clean(**memory), timeout=2 * LIMIT_S, check=False)
        assert sorted(done.stdout.splitlines()) == [f"rank {r} of 4: right" for r in range(4)], f"{memory}: {done}"


def test_system_calls_that_are_refused():
    every = ",".join(str(n) for n in REFUSED.values())
    job([[sys.executable, "-c", FILTERED, every]] * 3, NO_MEMFD)
    for kind in ("process_vm", "memfd", "pidfd"):  # alone: what is tried instead is not refused
        some = ",".join(str(number) for name, number in REFUSED.items() if kind in name)
        job([[sys.executable, "-c", FILTERED, some]] * 2, NO_MEMFD)


def test_nothing_can_be_written():
    """No home, a root that is read only, no place for temporary files; only the folder of the id is a shared one."""
    quiet = ["unshare", "--mount", "--propagation", "slave", "sh", "-c",
             'mount --bind "$0" "$0" && mount -o remount,ro,bind / && mount -o remount,ro,bind /dev/shm; for d in /tmp /var/tmp /run; do '
             '[ "$d" = "${0%/*}" ] || mount -t tmpfs -o ro tmpfs $d; done; unset HOME TMPDIR USER; cd /; exec "$@"', str(TMP)]
    job([quiet] * 2)


def main():
    if os.geteuid() != 0 or subprocess.run([*BOX, "box", "true"], capture_output=True, check=False).returncode:
        print("skipped: no namespaces here (not root?)")
        sys.exit(77)
    if b"san.so" in subprocess.run(["ldd", LIBRARY], capture_output=True, check=False).stdout:
        print("built with a sanitizer")
        sys.exit(77)
    for case in [n for n in globals() if n.startswith("test_")]:
        run_case(globals(), case[len("test_"):])
        print(f"{case}: right", flush=True)


LIBRARY, HOSTS = (os.path.abspath(a) for a in sys.argv[1:3])
DRIVER = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
main()
