#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# A rank of a job that knows nothing of Kolo but NCCL's functions, as programs under Slurm and in containers are: its number comes from
# its launcher's variables, the id from a file that all see. rank.py LIBRARY FILE [RANK RANKS]. On host memory (KOLO_NCCL_CPU=1), or on
# the GPU of its number with the driver that KOLO_CUDA_LIBRARY names. Prints "rank R of N: right".
import ctypes
import os
import sys
import time

FLOAT32, SUM = 7, 0
VARIABLES = (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
             ("KOLO_RANK", "KOLO_NRANKS"))
SIZES = (1, 300, 100000)


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Gpu:
    def __init__(self, rank):
        self.cu = ctypes.CDLL(os.environ["KOLO_CUDA_LIBRARY"])
        count, ctx, self.stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGetCount", ctypes.byref(count))
        self("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), rank % count.value)
        self("cuCtxSetCurrent", ctx)
        self("cuStreamCreate", ctypes.byref(self.stream), 1)

    def __call__(self, name, *args):
        r = getattr(self.cu, name)(*args)
        assert r == 0, f"{name} gives {r}"

    def floats(self, values):
        p, host = ctypes.c_void_p(), (ctypes.c_float * len(values))(*values)
        self("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(4 * len(values)))
        self("cuMemcpyAsync", p, host, ctypes.c_size_t(4 * len(values)), self.stream)
        self("cuStreamSynchronize", self.stream)
        return p

    def read(self, p, n):
        host = (ctypes.c_float * n)()
        self("cuMemcpyAsync", host, p, ctypes.c_size_t(4 * n), self.stream)
        self("cuStreamSynchronize", self.stream)
        return host


class Host:
    stream = None

    def floats(self, values):
        return (ctypes.c_float * len(values))(*values)

    def read(self, p, n):
        return p[:n]


def shared_id(path, rank, make):
    ident = Id()
    if rank == 0:
        make("GetUniqueId", ctypes.byref(ident))
        with open(path + ".part", "wb") as f:
            f.write(bytes(ident))
        os.rename(path + ".part", path)
        return ident
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as f:
        ctypes.memmove(ctypes.byref(ident), f.read(), 128)
    return ident


def main():
    library, path = sys.argv[1:3]
    names = next((pair for pair in VARIABLES if pair[0] in os.environ), None)
    rank, ranks = (int(a) for a in (sys.argv[3:5] if len(sys.argv) > 4 else (os.environ[n] for n in names)))
    memory = Host() if os.environ.get("KOLO_NCCL_CPU") == "1" else Gpu(rank)
    nccl, comm = ctypes.CDLL(library), ctypes.c_void_p()
    nccl.ncclGetLastError.restype = ctypes.c_char_p

    def call(name, *args):
        r = getattr(nccl, "nccl" + name)(*args)
        assert r == 0, f"nccl{name} gives {r}: {nccl.ncclGetLastError(None).decode()}"

    ident = shared_id(path, rank, call)
    call("CommInitRank", ctypes.byref(comm), ranks, ident, rank)
    for n in SIZES:
        a, b = memory.floats([rank + 1] * n), memory.floats([0] * n)
        call("AllReduce", a, b, ctypes.c_size_t(n), FLOAT32, SUM, comm, memory.stream)
        want = ranks * (ranks + 1) / 2
        assert all(v == want for v in memory.read(b, n)), f"all_reduce of {n}"
        call("GroupStart")
        call("Send", a, ctypes.c_size_t(n), FLOAT32, (rank + 1) % ranks, comm, memory.stream)
        call("Recv", b, ctypes.c_size_t(n), FLOAT32, (rank - 1) % ranks, comm, memory.stream)
        call("GroupEnd")
        assert all(v == (rank - 1) % ranks + 1 for v in memory.read(b, n)), f"messages of {n}"
    call("CommDestroy", comm)
    print(f"rank {rank} of {ranks}: right", flush=True)


main()
