#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# One of four processes is killed, or stopped, in an all_reduce: what the three others are told and after how long, and when
# they have done an all_reduce without it. Kolo and torch's Gloo take turns, so that both meet the same machine.
# usage: gloo_loss.py LIBKOLO [RUNS]   (with a python3 that has torch)
import ctypes
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RANKS, VICTIM, COUNT = 4, 2, 1 << 20
STOP_LIMIT_S = 5  # the time limit that both get, since a stopped process closes no connection


def note(folder, rank, **words):
    with open(f"{folder}/{rank}.tmp", "w") as f:
        json.dump(words, f)
    os.rename(f"{folder}/{rank}.tmp", f"{folder}/{rank}.json")


def gloo(rank, folder, port):
    import datetime
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=STOP_LIMIT_S))
    data = torch.zeros(COUNT)
    dist.all_reduce(data)
    open(f"{folder}/{rank}.pid", "w").write(str(os.getpid()))
    try:
        while True:
            dist.all_reduce(data)
    except RuntimeError as e:
        told, text = time.monotonic(), str(e)
    dist.destroy_process_group()  # closes its connections: those that are no neighbours of the dead rank are told, too
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{int(port) + 1}", rank=rank - (rank > VICTIM), world_size=RANKS - 1)
    data.fill_(1)
    dist.all_reduce(data)
    assert data[0] == RANKS - 1
    note(folder, rank, told=told, on=time.monotonic(), text=text)
    time.sleep(60)


def kolo(folder, library):
    lib = ctypes.CDLL(library)
    lib.kolo_get_last_error.restype = ctypes.c_char_p
    comm, rest, rank = ctypes.c_void_p(), ctypes.c_void_p(), int(os.environ["KOLO_RANK"])
    data = (ctypes.c_float * COUNT)()

    def call(name, *args):
        return getattr(lib, name)(*args)

    def all_reduce(over):
        return lib.kolo_all_reduce(data, data, ctypes.c_size_t(COUNT), 8, 0, over, None)

    assert call("kolo_job_connect", ctypes.byref(comm), None) == 0
    assert all_reduce(comm) == 0
    open(f"{folder}/{rank}.pid", "w").write(str(os.getpid()))
    while all_reduce(comm) == 0:
        pass
    told, text = time.monotonic(), lib.kolo_get_last_error(comm).decode()
    excluded = (ctypes.c_int * 1)(VICTIM) if "time-out" in text else None  # a stopped one is not lost: it is left out by name
    assert call("kolo_comm_shrink", comm, excluded, 1 if excluded else 0, 1, ctypes.byref(rest), None) == 0
    ctypes.memset(data, 0, ctypes.sizeof(data))
    data[0] = 1
    assert all_reduce(rest) == 0 and data[0] == RANKS - 1
    note(folder, rank, told=told, on=time.monotonic(), text=text)
    time.sleep(60)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(paths, limit_s):
    end = time.monotonic() + limit_s
    while not all(map(os.path.exists, paths)):
        assert time.monotonic() < end, f"waited {limit_s} s for {paths}"
        time.sleep(0.002)


def one(which, how, library):
    with tempfile.TemporaryDirectory() as folder:
        me = [sys.executable, os.path.abspath(__file__), which, folder]
        env = dict(os.environ, OMP_NUM_THREADS="1")
        if which == "gloo":
            port = free_port()
            started = [subprocess.Popen([*me, str(r), str(port)], env=env, stderr=subprocess.DEVNULL) for r in range(RANKS)]
        else:
            env = {k: v for k, v in env.items() if not k.startswith("KOLO_")} | {"KOLO_ID_FILE": f"{folder}/id"}
            limit = {"KOLO_OP_TIMEOUT_MS": str(1000 * STOP_LIMIT_S)} if how == signal.SIGSTOP else {}
            started = [subprocess.Popen([*me, library], env={**env, **limit, "KOLO_RANK": str(r), "KOLO_NRANKS": str(RANKS)},
                                        stderr=subprocess.DEVNULL) for r in range(RANKS)]
        try:
            wait_for([f"{folder}/{r}.pid" for r in range(RANKS)], 120)
            time.sleep(0.5)
            at = time.monotonic()
            started[VICTIM].send_signal(how)
            others = [r for r in range(RANKS) if r != VICTIM]
            wait_for([f"{folder}/{r}.json" for r in others], 60)
            found = [json.load(open(f"{folder}/{r}.json")) for r in others]
            return [1000 * (f["told"] - at) for f in found], [1000 * (max(f["on"] for f in found) - at)], [f["text"] for f in found]
        finally:
            for p in started:
                p.kill()
                p.wait()


def main():
    library = sys.argv[1]
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    for how, word in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")):
        results = {"kolo": ([], [], []), "gloo": ([], [], [])}
        for _ in range(runs if how == signal.SIGKILL else 2):
            for which in results:
                try:
                    for all_of, new in zip(results[which], one(which, how, library)):
                        all_of.extend(new)
                except AssertionError as e:
                    results[which][2].append(f"does not go on: {e}")
        for which, (told, on, texts) in results.items():
            named = sum(bool(re.search(rf"\brank {VICTIM}\b", t)) for t in texts)
            if on:
                print(f"{word:8} {which:5} told after {statistics.median(told):8.1f} ms ({min(told):.1f} to {max(told):.1f}), "
                      f"all go on after {statistics.median(on):8.1f} ms ({min(on):.1f} to {max(on):.1f}), "
                      f"{named} of {len(texts)} texts name rank {VICTIM}")
            print(f"         {which:5} says: {texts[0][:230] if texts else '-'}", flush=True)


if sys.argv[1] == "gloo":
    gloo(int(sys.argv[3]), sys.argv[2], sys.argv[4])
elif sys.argv[1] == "kolo":
    kolo(sys.argv[2], sys.argv[3])
else:
    main()
