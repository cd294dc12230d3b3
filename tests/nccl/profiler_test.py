#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Profiler plug-ins of NCCL's interface, versions 4 to 7, are told of communicators, groups, calls and operations:
# profiler_test.py LIBRARY FOLDER-OF-PLUG-INS. Jobs of one process, on host memory; the plug-in writes what it is told into a file.
import ctypes
import os
import re
import subprocess
import sys
import tempfile

FLOAT, SUM = 7, 0
GROUP, COLL, P2P, GROUP_API, COLL_API, P2P_API = 1, 2, 4, 256, 512, 1024


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class CallConfig(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("ext", ctypes.c_void_p),
                ("ctas", ctypes.c_int * 4), ("algorithms", ctypes.c_char_p), ("force", ctypes.c_int), ("policy", ctypes.c_int),
                ("tag", ctypes.c_uint64), ("event", ctypes.c_void_p)]


def program(library):
    """A communicator of one rank, with a call outside of groups; then two ranks of this thread, with groups and a group that is wrong."""
    nccl = ctypes.CDLL(library)
    zu = ctypes.c_size_t
    a, b = (ctypes.c_float * 5)(1, 2, 3, 4, 5), (ctypes.c_float * 5)()

    def ok(r):
        assert r == 0, r

    ident, one, pair = Id(), ctypes.c_void_p(), (ctypes.c_void_p * 2)()
    ok(nccl.ncclGetUniqueId(ctypes.byref(ident)))
    ok(nccl.ncclCommInitRank(ctypes.byref(one), 1, ident, 0))
    config = CallConfig(ctypes.sizeof(CallConfig), 0xcafebeef, 23203, None, (ctypes.c_int * 4)(*[-2**31] * 4), None, 1, -2**31, 77, None)
    ok(nccl.ncclAllReduceConfig(a, b, zu(5), FLOAT, SUM, one, None, ctypes.byref(config)))
    ok(nccl.ncclAllReduce(a, b, zu(4), FLOAT, SUM, one, None))
    ok(nccl.ncclCommInitAll(pair, 2, None))
    ok(nccl.ncclGroupStart())
    for c in pair:
        ok(nccl.ncclReduce(a, b, zu(3), FLOAT, SUM, 1, ctypes.c_void_p(c), None))
    ok(nccl.ncclGroupEnd())
    ok(nccl.ncclGroupStart())
    ok(nccl.ncclSend(a, zu(5), FLOAT, 1, ctypes.c_void_p(pair[0]), None))
    ok(nccl.ncclRecv(b, zu(5), FLOAT, 0, ctypes.c_void_p(pair[1]), None))
    ok(nccl.ncclGroupEnd())
    assert list(b) == [1, 2, 3, 4, 5]
    ok(nccl.ncclGroupStart())
    ok(nccl.ncclAllReduce(a, b, zu(5), FLOAT, SUM, ctypes.c_void_p(pair[0]), None))
    assert nccl.ncclAllReduce(a, b, zu(5), 99, SUM, ctypes.c_void_p(pair[1]), None) == 4
    assert nccl.ncclGroupEnd() == 4
    ok(nccl.ncclGroupStart())
    for c in pair:
        ok(nccl.ncclCommDestroy(ctypes.c_void_p(c)))
    ok(nccl.ncclGroupEnd())
    ok(nccl.ncclCommDestroy(one))
    print("right")


def run(plugin, **env):
    """What the plug-in was told, and what the log says."""
    with tempfile.TemporaryDirectory() as folder:
        full = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | {
            "KOLO_NCCL_CPU": "1", "PROFILER_OUT": os.path.join(folder, "out"), "NCCL_DEBUG": "INFO"} | env
        if plugin is not None:
            full["NCCL_PROFILER_PLUGIN"] = plugin
        done = subprocess.run([sys.executable, __file__, LIBRARY], env=full, text=True, capture_output=True, check=False)
        check("the program is right, whatever the plug-in", done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr)
        files = os.listdir(folder)
        told = open(os.path.join(folder, files[0]), encoding="utf-8").read().splitlines() if files else []
        return told, done.stderr


def check(what, fact, seen):
    if not fact:
        print(f"{what}: not so:\n{seen if isinstance(seen, str) else chr(10).join(map(str, seen))}")
        sys.exit(1)


def events(told):
    """By number, what each was started with; each is stopped once."""
    found = {}
    for line in told:
        if m := re.match(r"start (\d+) (.*)", line):
            found[int(m[1])] = dict(x.split("=", 1) for x in m[2].split()) | {"number": int(m[1])}
        elif m := re.match(r"stop (\d+)$", line):
            check(f"event {m[1]} is stopped once", not found[int(m[1])].get("over"), told)
            found[int(m[1])]["over"] = True
        elif m := re.match(r"state (\d+) (\d+)$", line):
            found[int(m[1])].setdefault("states", []).append(int(m[2]))
    check("each event is stopped", all(e.get("over") for e in found.values()), told)
    return found


def of_kind(found, kind, **fields):
    return [e for e in found.values() if int(e["kind"]) == kind and all(e.get(k) == str(v) for k, v in fields.items())]


def version(v):
    told, log = run(os.path.join(FOLDER, f"libnccl-profiler-lines{v}.so"))
    check("the log names the plug-in", f"the plug-in lines (" in log and f"version {v})" in log, log)
    check("its own lines are in the log", "[profiler] the plug-in's own line: rank 0 of 1" in log, log)
    inits = [line for line in told if line.startswith("init")]
    check("a context for each communicator", len(inits) == 3 and inits[0].startswith("init rank=0 nranks=1 nodes=1 name=-"), told)
    ids = [re.search(r"id=(\w+)", line)[1] for line in inits]
    check("ranks of a communicator have its id", ids[1] == ids[2] != ids[0] and "0" not in ids, told)
    check("each context ends", sorted(line for line in told if line.startswith("final")) == ["finalize rank=0", "finalize rank=0", "finalize rank=1"], told)
    check("a context begins before a call", told.index(inits[0]) == 0, told)
    found = events(told)
    calls = of_kind(found, COLL, func="AllReduce", type="ncclFloat32")
    check("calls are numbered by name", [(e["count"], e["seq"]) for e in calls] == [("5", "0"), ("4", "1")], told)
    check("roots", [e["root"] for e in of_kind(found, COLL, func="Reduce", count=3)] == ["1", "1"], told)
    check("each rank in its context", [(e["rank"], e["context"]) for e in of_kind(found, COLL, func="Reduce")] == [("0", "0"), ("1", "1")], told)
    check("messages", [(e["func"], e["peer"]) for e in of_kind(found, P2P, count=5)] == [("Send", "1"), ("Recv", "0")], told)
    groups = of_kind(found, GROUP)
    check("a group for each communicator of a call", len(groups) == 6, told)
    if v == 4:
        check("operations are in groups", all(found[int(e["parent"])]["kind"] == str(GROUP) for e in of_kind(found, COLL)), told)
        check("nothing that version 4 has no place for", all(int(e["kind"]) < 256 for e in found.values()), told)
        return
    check("operations are in calls", all(int(found[int(e["parent"])]["kind"]) == COLL_API for e in of_kind(found, COLL)), told)
    check("and in groups", all(found[int(e["group"])]["kind"] == str(GROUP) for e in of_kind(found, COLL)), told)
    check("calls are in groups of the program", all(found[int(e["parent"])]["kind"] == str(GROUP_API) for e in of_kind(found, COLL_API) + of_kind(found, P2P_API)), told)
    api = of_kind(found, GROUP_API)
    check("their depth, and the states of those that are the program's",
          [(e["depth"], e.get("states")) for e in api] == [("1", None), ("1", None), ("2", [23, 24]), ("2", [23, 24]), ("2", [23])], told)
    if v >= 7:
        check("the tag of a call", [e["tag"] for e in calls] == ["77", "0"] and of_kind(found, COLL_API, tag=77), told)


def main():
    for v in (4, 5, 6, 7):
        version(v)
    told, _ = run(os.path.join(FOLDER, "libnccl-profiler-lines7.so"), PROFILER_MASK=str(COLL))
    check("only what the plug-in wants", {e["kind"] for e in events(told).values()} == {str(COLL)}, told)
    told, log = run("lines6", LD_LIBRARY_PATH=FOLDER)
    check("a plug-in by its name", told and "libnccl" not in log.split("version 6)")[1][:1] and "(lines6, version 6)" in log, log)
    told, log = run("none", LD_LIBRARY_PATH=FOLDER)
    check("none is none", not told and "[profiler]" not in log, log)
    told, log = run(None)
    check("without a word there is none", not told and "[profiler]" not in log, log)
    told, log = run(os.path.join(FOLDER, "libnccl-profiler-lines3.so"))
    check("one that is too old is told of once", not told and log.count("it has no profiler of version 4 to 7, but v3") == 1, log)
    told, log = run("/no/such/plugin.so")
    check("one that is not there is told of once", not told and log.count("/no/such/plugin.so (NCCL_PROFILER_PLUGIN) is not used") == 1, log)
    told, log = run(os.path.join(FOLDER, "libnccl-profiler-lines7.so"), PROFILER_FAILS="1")
    check("one that fails is told of once", not told and log.count("is not used any more: its init() gives 3") == 1, log)
    _, log = run(None, NCCL_TUNER_PLUGIN="my-tuner")
    check("a tuner plug-in is told to have no effect", log.count("NCCL_TUNER_PLUGIN has no effect") == 1, log)
    print("all versions are told")


LIBRARY = os.path.abspath(sys.argv[1])
if len(sys.argv) == 2:
    program(LIBRARY)
else:
    FOLDER = os.path.abspath(sys.argv[2])
    if b"san.so" in subprocess.run(["ldd", LIBRARY], capture_output=True, check=False).stdout:
        print("built with a sanitizer")
        sys.exit(77)
    main()
