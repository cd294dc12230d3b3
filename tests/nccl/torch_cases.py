#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own DistributedTest (it is in the wheel) with the backend nccl on GPUs, in slices: one process per rank runs case after
case, and is replaced when a case ends or hangs it. A results file has what has run; the next slice goes on behind it.

    tests/nccl/torch_cases.py RESULTS.json [--library libnccl.so.2] [--ranks N] [--seconds S] [--suite FOLDER LIST] [--backwards]
        [--alone] [--limit S] [PATTERN...]
    tests/nccl/torch_cases.py --compare KOLO.json NCCL.json

With --suite it is the cases that LIST names, of PyTorch's test files in FOLDER (torch_suite.py). Without --library it is the libnccl
that PyTorch brings. --compare prints what passes with one and not with the other.
"""
import argparse
import fnmatch
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 40  # of one case, on all ranks
ALONE_S = 6  # once a rank has failed, the others may wait for it in vain
LEFT_OUT = {"test_barrier_timeout_full_group": "Gloo's: hangs with NCCL", "test_barrier_timeout_global": "makes a store at this program's port"}
CPU = "associated with device type cpu"  # NCCL has no CPU tensors
BACKEND = os.environ.get("TORCH_CASES_BACKEND", "nccl")  # gloo: a try of this program itself
LIST = "from torch.testing._internal.distributed import distributed_test as m; print(*dir(m.DistributedTest._DistTestBase))"


def harness(limit=LIMIT_S):
    """The cases' ways are those of the backend of our own."""
    for at in (os.path.join(HERE, "torch_cases_test.py"), os.path.join(HERE, "../../python/tests/torch_cases_test.py")):
        if os.path.exists(at):
            spec = importlib.util.spec_from_file_location("cases", at)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.TIMEOUT_S = 15
            module.LIMIT_S = int(0.75 * limit)
            return module
    raise SystemExit("torch_cases_test.py is not there")


def rank_main(rank, o, names, folder, port):
    import datetime
    import torch
    import torch.distributed as dist
    import torch.testing._internal.common_utils as common
    out = os.open(os.path.join(folder, f"err-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    common.SKIP_PASS = False
    control = dist.TCPStore("127.0.0.1", port, o.ranks, rank == 0, timeout=datetime.timedelta(seconds=3 * o.limit))
    run = of_suite(rank, o, folder) if o.suite else of_distributed_test(rank, o, folder, control, common)
    with open(os.path.join(folder, f"results-{rank}"), "a", encoding="utf-8", buffering=1) as results:
        for name in names:
            control.set(f"begin {name}/{rank}", "")
            control.wait([f"begin {name}/{r}" for r in range(o.ranks)])
            began = time.monotonic()
            with open(os.path.join(folder, f"begun-{rank}"), "w", encoding="utf-8") as f:
                f.write(name)
            end, why = run(name)
            results.write(json.dumps([name, end, round(time.monotonic() - began, 1), " ".join(why.split())[:400]]) + "\n")
            control.set(f"{name}/{rank}", end)
            control.wait([f"{name}/{r}" for r in range(o.ranks)])


def of_distributed_test(rank, o, folder, control, common):
    import torch
    from torch.testing._internal.distributed import distributed_test as module
    tests = harness(o.limit)

    class Cases(module.DistributedTest._DistTestBase, common.TestCase):
        world_size = property(lambda self: os.environ["WORLD_SIZE"])

    def run(name):
        module.Barrier = tests.StoreBarrier(control, name, o.ranks)
        if BACKEND == "nccl":
            torch.cuda.set_device(rank)
        return tests.run_case(module, Cases, name, rank, o.ranks, BACKEND, folder)
    return run


def of_suite(rank, o, folder):
    import torch_suite
    where = os.path.abspath(o.suite[0])
    return lambda name: torch_suite.run_case(where, name, rank, o.ranks, os.path.join(folder, name.replace("/", "_")))


def read(folder, ranks):
    rows = []
    for r in range(ranks):
        try:
            with open(os.path.join(folder, f"results-{r}"), encoding="utf-8") as f:
                rows.append({x[0]: x for x in (json.loads(line) for line in f if line.endswith("\n"))})
        except OSError:
            rows.append({})
    return rows


def spawn(o, names, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.environ.update(WORLD_SIZE=str(o.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TEMP_DIR=folder, BACKEND=BACKEND,
                      PYTORCH_PRINT_REPRO_ON_FAILURE="0", OMP_NUM_THREADS="1")
    pids = []
    for r in range(o.ranks):
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                rank_main(r, o, names, folder, port)
                status = 0
            except BaseException as e:
                print("rank", r, type(e).__name__, e, file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        pids.append(pid)
    return pids


def tail_of(folder, ranks):
    text = ""
    for r in range(ranks):
        try:
            with open(os.path.join(folder, f"err-{r}"), errors="replace", encoding="utf-8") as f:
                lines = [l for l in f.read().splitlines()[-60:] if "rror" in l or "WARN" in l or "imeout" in l or "rank " in l]
                text += f"rank {r}: {' | '.join(lines[-2:])[-300:]} " if lines else ""
        except OSError:
            pass
    return text


def begun(o, folder, name):
    """How many ranks have begun it."""
    count = 0
    for r in range(o.ranks):
        try:
            with open(os.path.join(folder, f"begun-{r}"), encoding="utf-8") as f:
                count += f.read() == name
        except OSError:
            pass
    return count


def tell_where(o, folder, name, began):
    """What was under way when the time was over: else it looks as if nothing had been tried."""
    print(f"the time was over in {name}, {time.time() - began:.0f} s after the one before it or the start: {begun(o, folder, name)} of {o.ranks} ranks had begun it."
          f" {tail_of(folder, o.ranks)}", flush=True)


def slice_of(o, names, done, end):
    """Cases until one ends or hangs the processes, or there is no more time. The names that are left."""
    with tempfile.TemporaryDirectory() as folder:
        pids = spawn(o, names, folder)
        alive, k, began, failed = set(pids), 0, time.time(), None
        while k < len(names) and time.time() < end:
            for p in list(alive):
                if os.waitpid(p, os.WNOHANG)[0]:
                    alive.discard(p)
            rows = read(folder, o.ranks)
            broken = False
            while not broken and k < len(names) and all(names[k] in row for row in rows):
                worst = max((row[names[k]] for row in rows), key=lambda x: ("skip", "pass", "FAIL").index(x[1]))
                done[names[k]] = worst[1:]
                save(o, done)
                broken = any("CUDA error" in row[names[k]][3] for row in rows)  # the context is of no use any more
                k, began, failed = k + 1, time.time(), None
                broken = broken or o.alone
            if broken:
                break
            if k < len(names) and any(names[k] in row and row[names[k]][1] == "FAIL" for row in rows):
                failed = failed or time.time()
            late = time.time() - began > o.limit or failed and time.time() - failed > ALONE_S
            if k < len(names) and (len(alive) < o.ranks or late):
                time.sleep(0.3)
                if k == 0 and len(alive) < o.ranks and not begun(o, folder, names[0]) and o.starts > 0:
                    o.starts -= 1  # another process has taken the port meanwhile, say: it is not the case's
                    print(f"a rank ended before {names[0]}, it is started again: {tail_of(folder, o.ranks)}", flush=True)
                    break
                got = [row[names[k]][3] for row in rows if names[k] in row and row[names[k]][1] == "FAIL"]
                done[names[k]] = ["FAIL", round(time.time() - began, 1), ("a process ended: " if len(alive) < o.ranks else "the others wait: " if failed else "hangs: ") + "; ".join(got)[:300] + " " + tail_of(folder, o.ranks)]
                k += 1
                break
            time.sleep(0.02)
        else:
            if k < len(names):
                tell_where(o, folder, names[k], began)
        for p in alive:
            os.kill(p, signal.SIGKILL)
        for p in alive:
            os.waitpid(p, 0)
    return names[k:]


def save(o, done):
    with open(o.results + ".new", "w", encoding="utf-8") as f:
        json.dump(done, f, indent=0)
    os.replace(o.results + ".new", o.results)


def list_of(o):
    if o.suite:
        with open(o.suite[1], encoding="utf-8") as f:
            return [line.split()[0] for line in f if line.strip() and not line.startswith("#")]
    env = {**os.environ, "BACKEND": BACKEND, "WORLD_SIZE": str(o.ranks), "TEMP_DIR": tempfile.gettempdir(), "LD_PRELOAD": ""}
    out = subprocess.run([sys.executable, "-c", LIST], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [n for n in out.split() if n.startswith("test_") and n not in LEFT_OUT and n not in harness().LEFT_OUT]


def compare(ours, theirs):
    with open(ours, encoding="utf-8") as f, open(theirs, encoding="utf-8") as g:
        a, b = json.load(f), json.load(g)
    both = [n for n in a if n in b]
    cpu = [n for n in a if a[n][0] == "FAIL" and CPU in a[n][2]]
    both = [n for n in both if n not in cpu]
    count = {}
    for n in both:
        count[a[n][0], b[n][0]] = count.get((a[n][0], b[n][0]), 0) + 1
    alone = [n for n in a if n not in b and n not in cpu]
    print(f"{len(cpu)} cases want CPU tensors, which neither has; {len(alone)} ran with Kolo alone:",
          ", ".join(f"{sum(1 for n in alone if a[n][0] == e)} {e}" for e in ("pass", "skip", "FAIL")))
    print(f"{len(both)} others ran with both:", ", ".join(f"{k[0]}/{k[1]} {v}" for k, v in sorted(count.items())), "(Kolo/NCCL)")
    for n in both:
        if a[n][0] != b[n][0]:
            print(f"{n}: Kolo {a[n][0]} {a[n][2][:300]}; NCCL {b[n][0]} {b[n][2][:160]}")
    for n in both:
        if a[n][0] == b[n][0] == "FAIL":
            print(f"both fail {n}: {a[n][2][:120]}; NCCL {b[n][2][:120]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("--library")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--failed-in", metavar="RESULTS", help="only cases that failed there, and not for want of a CPU backend")
    parser.add_argument("--suite", nargs=2, metavar=("FOLDER", "LIST"))
    parser.add_argument("--backwards", action="store_true", help="the last case first")
    parser.add_argument("--alone", action="store_true", help="new processes for each case")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of a case")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("patterns", nargs="*")
    o = parser.parse_intermixed_args()
    if o.compare:
        return compare(o.results, o.patterns[0])
    if o.library and os.environ.get("LD_PRELOAD") != os.path.abspath(o.library):
        return subprocess.call([sys.executable, *sys.argv], env={**os.environ, "LD_PRELOAD": os.path.abspath(o.library)})
    end, o.starts = time.time() + o.seconds, 5
    listed = list_of(o)
    import torch.distributed  # noqa: F401  the ranks are forks, and need not import it; nothing here may start the driver
    done = {}
    if os.path.exists(o.results):
        with open(o.results, encoding="utf-8") as f:
            done = json.load(f)
    names = [n for n in (reversed(listed) if o.backwards else listed) if n not in done]
    if o.failed_in:
        with open(o.failed_in, encoding="utf-8") as f:
            names = [n for n, row in json.load(f).items() if n in names and row[0] == "FAIL" and CPU not in row[2]]
    names = [n for n in names if not o.patterns or any(fnmatch.fnmatch(n, p) for p in o.patterns)]
    before = len(done)
    while names and time.time() < end:
        names = slice_of(o, names, done, end)
        if len(done) == before + 5 and all(why[2].startswith("a process ended") for why in list(done.values())[before:]):
            raise SystemExit(f"five cases, and each ended its process: {list(done.values())[-1][2]}")
        save(o, done)
    counts = {e: sum(1 for row in done.values() if row[0] == e) for e in ("pass", "FAIL", "skip")}
    print(f"{o.library or 'NCCL'}, {o.ranks} ranks: {counts['pass']} passed, {counts['FAIL']} failed, {counts['skip']} skipped, {len(names)} not run yet")
    return 0


if __name__ == "__main__":
    sys.exit(main())
