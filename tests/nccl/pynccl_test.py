#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# What vLLM's pynccl does, by ctypes, on libnccl.so.2: pynccl_test.py LIBRARY. The functions with their argument types, the structs as
# it lays them out (versions 2.28 and 2.30), and its order of calls: an id that goes to the others as bytes, a first all_reduce of one
# element, collectives, variable ones as groups of broadcasts and reduces, messages in a group, windows, destroy or abort. Three
# processes, on host memory; torch and vLLM are not needed.
import ctypes
import os
import subprocess
import sys

RANKS = 3
FLOAT32, BFLOAT16, SUM, MAX = 7, 9, 0, 2
UNDEFINED = -2**31
RESULT = COMM_INT = ctypes.c_int
COMM = STREAM = BUFFER = WINDOW = ctypes.c_void_p
SIZE = ctypes.c_size_t


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    _fields_ = [("size", SIZE), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int), ("cga", ctypes.c_int),
                ("minCTAs", ctypes.c_int), ("maxCTAs", ctypes.c_int), ("netName", ctypes.c_char_p), ("splitShare", ctypes.c_int),
                ("trafficClass", ctypes.c_int), ("commName", ctypes.c_char_p), ("collnetEnable", ctypes.c_int), ("CTAPolicy", ctypes.c_int),
                ("shrinkShare", ctypes.c_int), ("nvlsCTAs", ctypes.c_int), ("nChannelsPerNetPeer", ctypes.c_int), ("nvlink", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("size", SIZE), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("rank", ctypes.c_int), ("nRanks", ctypes.c_int),
                ("cudaDev", ctypes.c_int), ("nvmlDev", ctypes.c_int), ("deviceApi", ctypes.c_bool), ("multimem", ctypes.c_bool),
                ("ginType", ctypes.c_int), ("nLsaTeams", ctypes.c_int), ("hostRma", ctypes.c_bool), ("railedGinType", ctypes.c_int)]


POINTER = ctypes.POINTER
REDUCES = [BUFFER, BUFFER, SIZE, ctypes.c_int, ctypes.c_int]
FUNCTIONS = {
    "ncclGetVersion": [POINTER(ctypes.c_int)], "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(COMM), ctypes.c_int, UniqueId, ctypes.c_int],
    "ncclCommInitRankConfig": [POINTER(COMM), ctypes.c_int, UniqueId, ctypes.c_int, POINTER(Config)],
    "ncclAllReduce": [*REDUCES, COMM, STREAM], "ncclReduce": [*REDUCES, ctypes.c_int, COMM, STREAM],
    "ncclAllGather": [BUFFER, BUFFER, SIZE, ctypes.c_int, COMM, STREAM], "ncclReduceScatter": [*REDUCES, COMM, STREAM],
    "ncclBroadcast": [BUFFER, BUFFER, SIZE, ctypes.c_int, ctypes.c_int, COMM, STREAM],
    "ncclSend": [BUFFER, SIZE, ctypes.c_int, ctypes.c_int, COMM, STREAM], "ncclRecv": [BUFFER, SIZE, ctypes.c_int, ctypes.c_int, COMM, STREAM],
    "ncclCommDestroy": [COMM], "ncclCommAbort": [COMM], "ncclGroupStart": [], "ncclGroupEnd": [],
    "ncclCommWindowRegister": [COMM, BUFFER, SIZE, POINTER(WINDOW), ctypes.c_int], "ncclCommWindowDeregister": [COMM, WINDOW],
    "ncclCommQueryProperties": [COMM, POINTER(Properties)], "ncclMemAlloc": [POINTER(BUFFER), SIZE], "ncclMemFree": [BUFFER],
}


def load(path):
    lib = ctypes.CDLL(path)
    lib.ncclGetErrorString.restype, lib.ncclGetErrorString.argtypes = ctypes.c_char_p, [RESULT]
    lib.ncclGetLastError.restype = ctypes.c_char_p
    for name, types in FUNCTIONS.items():
        getattr(lib, name).restype, getattr(lib, name).argtypes = RESULT, types

    def call(name, *args):
        r = getattr(lib, "nccl" + name)(*args)
        if r:
            raise RuntimeError(f"NCCL error: {lib.ncclGetErrorString(r).decode()}: {lib.ncclGetLastError(None).decode()}")
    return call


def floats(*values):
    return (ctypes.c_float * len(values))(*values)


def is_right(what, got, want):
    assert list(got) == list(want), f"{what}: {list(got)}, not {list(want)}"


def collectives(call, comm, rank):
    mine, all_of, part = floats(*[rank + 1] * 6), floats(*[0] * 18), floats(0, 0)
    out = floats(*[0] * 6)
    call("AllReduce", mine, out, 6, FLOAT32, SUM, comm, None)
    is_right("all_reduce", out, [6] * 6)
    call("AllGather", mine, all_of, 6, FLOAT32, comm, None)
    is_right("all_gather", all_of, [1] * 6 + [2] * 6 + [3] * 6)
    call("ReduceScatter", mine, part, 2, FLOAT32, MAX, comm, None)
    is_right("reduce_scatter", part, [3, 3])
    call("Broadcast", mine, out, 6, FLOAT32, 2, comm, None)
    is_right("broadcast", out, [3] * 6)
    call("Reduce", mine, out, 6, FLOAT32, SUM, 0, comm, None)
    halves = (ctypes.c_uint16 * 4)(*[0x3f80] * 4)  # bfloat16 1.0
    call("AllReduce", halves, halves, 4, BFLOAT16, SUM, comm, None)
    is_right("bfloat16", halves, [0x4040] * 4)  # 3.0


def variable_sizes(call, comm, rank):
    """all_gatherv and reduce_scatterv: rank r has r + 1 elements."""
    at, mine, out = [0, 1, 3], floats(*[10 + rank] * (rank + 1)), floats(*[0] * 6)
    call("GroupStart")
    for root in range(RANKS):
        to = ctypes.addressof(out) + 4 * at[root]
        call("Broadcast", mine if root == rank else to, to, root + 1, FLOAT32, root, comm, None)
    call("GroupEnd")
    is_right("all_gatherv", out, [10, 11, 11, 12, 12, 12])
    every, own = floats(1, 2, 3, 4, 5, 6), floats(*[0] * (rank + 1))
    call("GroupStart")
    for root in range(RANKS):
        call("Reduce", ctypes.addressof(every) + 4 * at[root], own if root == rank else ctypes.addressof(every) + 4 * at[root], root + 1, FLOAT32, SUM,
             root, comm, None)
    call("GroupEnd")
    is_right("reduce_scatterv", own, [3 * x for x in ([1], [2, 3], [4, 5, 6])[rank]])


def messages(call, comm, rank):
    mine, got = floats(rank, rank), floats(-1, -1)
    call("GroupStart")
    call("Send", mine, 2, FLOAT32, (rank + 1) % RANKS, comm, None)
    call("Recv", got, 2, FLOAT32, (rank - 1) % RANKS, comm, None)
    call("GroupEnd")
    is_right("a message in a group", got, [(rank - 1) % RANKS] * 2)
    if rank == 0:
        call("Send", mine, 2, FLOAT32, 2, comm, None)
    if rank == 2:
        call("Recv", got, 2, FLOAT32, 0, comm, None)
        is_right("a message", got, [0, 0])


def symmetric_memory(call, comm, rank):
    """As its memory pool does: memory of ncclMemAlloc(), a window over it, collectives in it."""
    p, window = BUFFER(), WINDOW()
    call("MemAlloc", ctypes.byref(p), 1 << 20)
    call("CommWindowRegister", comm, p, 1 << 20, ctypes.byref(window), 1)
    data = (ctypes.c_float * 1000).from_address(p.value)
    data[:] = [rank] * 1000
    call("AllReduce", p, p, 1000, FLOAT32, SUM, comm, None)
    is_right("all_reduce in a window", data, [3] * 1000)
    if window:
        call("CommWindowDeregister", comm, window)


def first_call(call, comm):
    data = floats(0)
    call("AllReduce", data, data, 1, FLOAT32, SUM, comm, None)


def rank_main(library, rank, ids):
    call, version, comm, other = load(library), ctypes.c_int(), COMM(), COMM()
    call("GetVersion", ctypes.byref(version))
    text = str(version.value)
    assert text[0] == "2" and int(text[1:3]) >= 27, text  # else it goes without windows
    unique = [UniqueId(), UniqueId()]
    for u, data in zip(unique, ids):
        ctypes.memmove(ctypes.addressof(u.internal), data, 128)
    call("CommInitRank", ctypes.byref(comm), RANKS, unique[0], rank)
    first_call(call, comm)
    properties = Properties(ctypes.sizeof(Properties), 0xcafebeef, version.value)
    call("CommQueryProperties", comm, ctypes.byref(properties))
    assert (properties.rank, properties.nRanks, properties.deviceApi, properties.ginType) == (rank, RANKS, False, 0)
    for part in (collectives, variable_sizes, messages, symmetric_memory):
        part(call, comm, rank)
    undefined = {name: UNDEFINED for name, kind in Config._fields_[3:] if kind is ctypes.c_int}
    config = Config(size=ctypes.sizeof(Config), magic=0xcafebeef, version=version.value, netName=b"IB", **undefined)
    call("CommInitRankConfig", ctypes.byref(other), RANKS, unique[1], rank, ctypes.byref(config))
    first_call(call, other)
    call("CommDestroy", other)
    collectives(call, comm, rank)
    call("CommAbort", comm)  # at its end, in no order
    print("right")


def main():
    library = os.path.abspath(sys.argv[1])
    if b"san.so" in subprocess.run(["ldd", library], capture_output=True, check=False).stdout:
        print("built with a sanitizer")
        sys.exit(77)
    os.environ["KOLO_NCCL_CPU"] = "1"
    ids = [UniqueId(), UniqueId()]
    call = load(library)
    for u in ids:  # rank 0's, in a process of its own here: an id is as good as its maker's life, which outlasts the ranks
        call("GetUniqueId", ctypes.byref(u))
    args = [bytes(u).hex() for u in ids]
    ranks = [subprocess.Popen([sys.executable, __file__, library, str(r), *args], stdout=subprocess.PIPE, text=True) for r in range(RANKS)]
    said = [r.communicate(timeout=60)[0] for r in ranks]
    print(said)
    sys.exit(0 if said == ["right\n"] * RANKS else 1)


if len(sys.argv) > 3:
    rank_main(sys.argv[1], int(sys.argv[2]), [bytes.fromhex(a) for a in sys.argv[3:]])
else:
    main()
