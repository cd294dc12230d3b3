#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A DDP job in which the last rank is killed, calls something else, is stopped or late: when the others know, and which rank they name.
One process per GPU; a line a case.

    tests/nccl/torch_faults.py [--library libnccl.so.2] [--ranks N] [--limit S] [CASE...]

Without --library it is the libnccl that PyTorch brings. --dry tries the program itself on CPUs, with Gloo.
"""
import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

STOP_S, LATE_S = 4.0, 60.0  # how long a rank is stopped, and is late
# Name: the environment of all ranks, and whether the job has to go on.
CASES = {
    "killed": ({}, False),
    "another collective": ({}, False),
    "another shape": ({}, False),
    "stopped, goes on": ({}, True),
    "stopped, with a limit": ({"KOLO_NCCL_WAIT_MS": "1500"}, False),
    "late by a minute": ({}, True),
}


def say(folder, rank, what, text=""):
    with open(os.path.join(folder, f"says-{rank}"), "a", encoding="utf-8") as f:
        f.write(json.dumps([what, time.monotonic(), text]) + "\n")


def spoil(torch, dist, case, dev, ranks):
    """What the last rank does instead of the next step."""
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case.startswith("stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif case.startswith("late"):
        time.sleep(LATE_S)
    elif case == "another shape":
        dist.all_reduce(torch.ones(77, device=dev))
    else:
        dist.all_gather_into_tensor(torch.ones(64 * ranks, device=dev), torch.ones(64, device=dev))


def work(o):
    import datetime
    import torch
    import torch.distributed as dist
    rank, case, folder = int(os.environ["RANK"]), o.cases[0], os.environ["FOLDER"]
    dev = torch.device("cpu") if o.dry else torch.device("cuda", rank)
    if not o.dry:
        torch.cuda.set_device(rank)
    limit = o.limit - 8 + (LATE_S if case.startswith("late") else 0)
    dist.init_process_group("gloo" if o.dry else "nccl", rank=rank, world_size=o.ranks, timeout=datetime.timedelta(seconds=limit))
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).to(dev))
    x = torch.full((8, 256), rank + 1.0, device=dev)
    last = rank == o.ranks - 1
    try:
        for step in range(40):
            if step == 20:
                say(folder, rank, "spoils" if last else "goes on")
                if last:
                    spoil(torch, dist, case, dev, o.ranks)
            model.zero_grad()
            model(x).square().mean().backward()
            total = torch.ones(1, device=dev)
            dist.all_reduce(total)
            if case.startswith("another"):
                continue  # they do not fit from here on: without waiting, as long as calls are taken
            value = total.item()  # waits for the stream, as loss.item() does
            if value != o.ranks:
                say(folder, rank, "wrong", f"reads {value} in step {step}")
        for _ in range(2 if case.startswith("another") else 0):
            if not o.dry:
                torch.cuda.synchronize()
            dist.all_reduce(total)
        say(folder, rank, "through")
    except BaseException as e:
        say(folder, rank, "error", " ".join(str(e).split())[-400:])
    os._exit(0)


def said(folder, rank):
    try:
        with open(os.path.join(folder, f"says-{rank}"), encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except OSError:
        return []


def first(rows, *words):
    return next((row for row in rows if row[0] in words), None)


def named_in_log(folder, rank, last):
    with open(os.path.join(folder, f"log-{rank}"), errors="replace", encoding="utf-8") as f:
        return any(re.search(rf"wait.*rank {last}\b", line) for line in f)


def last_error(folder, rank):
    with open(os.path.join(folder, f"log-{rank}"), errors="replace", encoding="utf-8") as f:
        lines = [line.strip() for line in f if "rror" in line or " lost" in line]
    return " | ".join(lines[-3:])[-400:]


def watch(o, case, folder, processes):
    """Until all others know, or the time is over: when each process ended, and when a log named the last rank."""
    limit = o.limit + (LATE_S if case.startswith("late") else 0)
    last, end, woken, ended, named = o.ranks - 1, time.monotonic() + limit + 30, False, {}, None
    while time.monotonic() < end and any(r not in ended for r in range(last)):
        for r, p in enumerate(processes):
            if p.poll() is not None:
                ended.setdefault(r, time.monotonic())
        spoilt = first(said(folder, last), "spoils")
        if spoilt and not named and named_in_log(folder, 0, last):
            named = time.monotonic() - spoilt[1]
        if spoilt and not woken and time.monotonic() > spoilt[1] + STOP_S:
            woken = True
            if processes[last].poll() is None:
                processes[last].send_signal(signal.SIGCONT)
        if spoilt:
            end = min(end, spoilt[1] + limit)
        time.sleep(0.02)
    for p in processes:
        if p.poll() is None:
            p.kill()
        p.wait()
    return ended, named


def tell(o, case, folder, ended, named):
    last, texts = o.ranks - 1, []
    spoilt = first(said(folder, last), "spoils")
    for r in range(last):
        row = first(said(folder, r), "error", "through")
        wrong = first(said(folder, r), "wrong")
        if not spoilt or not row and r not in ended:
            texts.append(f"rank {r}: knows nothing after {o.limit} s")
            continue
        what, at, text = row or ("its process ended", ended[r], last_error(folder, r))
        texts.append(f"rank {r}: " + (f"{wrong[2]} after {wrong[1] - spoilt[1]:.3f} s, then " if wrong else "") + f"{what} after {at - spoilt[1]:.3f} s")
        if what != "through":
            texts[-1] += f", {'names' if re.search(rf'rank {last}[^0-9]', text) else 'does not name'} rank {last}: {text}"
    print(f"{case}: " + "; ".join(texts) + (f"; the log names it after {named:.2f} s" if named else ""), flush=True)


def run(o, case):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **CASES[case][0], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "FOLDER": folder, "NCCL_DEBUG": "WARN",
               "OMP_NUM_THREADS": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
        if o.library:
            env["LD_PRELOAD"] = os.path.abspath(o.library)
        command = [sys.executable, os.path.abspath(__file__), "--ranks", str(o.ranks), "--limit", str(o.limit), "--rank", case] + ["--dry"] * o.dry
        processes = []
        for r in range(o.ranks):
            with open(os.path.join(folder, f"log-{r}"), "w", encoding="utf-8") as log:
                processes.append(subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=log, stderr=log))
        tell(o, case, folder, *watch(o, case, folder, processes))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=20, help="seconds after the fault")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*")
    o = parser.parse_intermixed_args()
    if o.rank:
        return work(o)
    for case in o.cases or CASES:
        run(o, case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
