#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own DistributedTest (it is in the wheel) on a backend, all cases in one process per rank.

    torch_cases_test.py [--backend kolo|gloo] [--ranks N] [--out FILE] [PATTERN...]

Prints each case's end, the worst of all ranks; --out writes it as a table. Exit status 1 if a case fails that is not in KNOWN.
"""
import argparse
import contextlib
import datetime
import fnmatch
import importlib.util
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types

LIMIT_S = 60  # of one case
TIMEOUT_S = 20  # of a group's operations: who waits for a rank that has failed
# Cases of other machines, other backends, or minutes of a single case.
LEFT_OUT = {"test_ddp_has_finalized": "ends its process on purpose"}
# Fails, with the reason.
KNOWN = {
    "test_SyncBatchNorm_process_group": "wants torchvision",
    "test_all_to_all_cuda": "wants GPUs",
    "test_all_to_all_cuda_complex": "wants GPUs",
    "test_all_to_all_full_group_cuda": "wants GPUs",
    "test_barrier_timeout_full_group": "wants a time-out where Kolo says at once that the other ranks have left without the barrier",
    "test_barrier_timeout_global": "the same",
    "test_batch_isend_irecv_mixed_backend_err": "wants GPUs",
    "test_batch_isend_irecv_op_err": "wants GPUs",
    "test_ddp_logging_data_cpu": "DDP's log calls every backend \"custom\" that is not one of torch's own",
    "test_new_subgroups_with_group_param": "wants three ranks",
}


class Name(str):
    """The name of a backend that is to be tried as Gloo is: cases ask BACKEND == "gloo" before they run on CPUs."""

    def __eq__(self, other):
        return str.__eq__(self, other) or str.__eq__("gloo", other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")


def load(backend):
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    with open(spec.origin, encoding="utf-8") as f:
        text = f.read().replace('BACKEND = os.environ["BACKEND"]', "BACKEND = _BACKEND", 1)
    module = types.ModuleType(name)
    module.__file__, module._BACKEND = spec.origin, Name(backend)
    sys.modules[name] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module


class StoreBarrier:
    """As DistributedTest's, whose files of the case before would be taken for those of this one."""

    def __init__(self, store, name, ranks):
        self.store, self.name, self.ranks, self.number = store, name, ranks, 0

    def sync(self, wait_for=None, timeout=10):
        self.number += 1
        key, end = f"barrier/{self.name}/{self.number}", time.monotonic() + timeout
        self.store.add(key, 1)
        while self.store.add(key, 0) < (wait_for or self.ranks):
            if time.monotonic() > end:
                raise RuntimeError("barrier timeout")
            time.sleep(0.005)


def late(*_):
    raise TimeoutError(f"more than {LIMIT_S} s")


def run_case(module, cls, name, rank, ranks, backend, folder):
    """The end of one case on this rank, and why."""
    import torch.distributed as dist
    import torch.testing._internal.common_utils as common
    case = cls(name)
    case.rank, case.file_name = rank, os.path.join(folder, name)
    out, env = io.StringIO(), dict(os.environ)  # some leave TORCH_NCCL_BLOCKING_WAIT=1 behind, which lets go of tensors in use
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        dist.init_process_group(backend, init_method=f"file://{case.file_name}", world_size=ranks, rank=rank,
                                timeout=datetime.timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, TIMEOUT_S)))
        module.Barrier.sync()  # all have begun, before one skips the case and leaves
        with contextlib.redirect_stdout(out):
            common.set_rng_seed(1234)
            getattr(case, name)()
        return "pass", ""
    except SystemExit as e:
        return ("skip", f"exit {e.code}")
    except module.unittest.SkipTest as e:
        return "skip", str(e)
    except BaseException as e:
        if "-v" in os.environ.get("CASES", ""):
            traceback.print_exc()
        return "FAIL", f"{type(e).__name__}: {str(e).strip()}"
    finally:
        signal.alarm(0)
        try:
            dist.destroy_process_group()
        except Exception:  # a group that had failed says so: the next case must not find it
            with contextlib.suppress(Exception):
                dist.distributed_c10d._abort_process_group()
        os.environ.clear()
        os.environ.update(env)


def work(args):
    import torch
    import torch.distributed as dist
    import torch.testing._internal.common_utils as common
    torch.set_num_threads(1)
    common.SKIP_PASS = False
    if args.backend == "kolo":
        import kolocomm.torch  # noqa: F401
    rank, ranks = int(os.environ["RANK"]), args.ranks
    control = dist.TCPStore("127.0.0.1", int(os.environ["CONTROL_PORT"]), ranks, rank == 0, timeout=datetime.timedelta(seconds=3 * LIMIT_S))
    module = load(args.backend)
    module.default_pg_timeout = TIMEOUT_S

    class Cases(module.DistributedTest._DistTestBase, common.TestCase):
        world_size = property(lambda self: os.environ["WORLD_SIZE"])

    names = [n for n in sorted(dir(Cases)) if n.startswith("test_") and n not in LEFT_OUT]
    names = [n for n in names if not args.patterns or any(fnmatch.fnmatch(n, p) for p in args.patterns)]
    with open(os.path.join(args.folder, f"results-{rank}"), "w", encoding="utf-8", buffering=1) as results:
        for name in names:
            module.Barrier = StoreBarrier(control, name, ranks)
            began = time.monotonic()
            end, why = run_case(module, Cases, name, rank, ranks, args.backend, args.folder)
            results.write(f"{name}\t{end}\t{time.monotonic() - began:.1f}\t{' '.join(why.split())[:300]}\n")
            control.set(f"{name}/{rank}", end)
            control.wait([f"{name}/{r}" for r in range(ranks)])


def start(args):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(folder, name))
        with socket.socket() as s, socket.socket() as t:
            s.bind(("127.0.0.1", 0)), t.bind(("127.0.0.1", 0))
            port, control = s.getsockname()[1], t.getsockname()[1]  # the first is for cases that make a store themselves
        env = {**os.environ, "WORLD_SIZE": str(args.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CONTROL_PORT": str(control), "TEMP_DIR": folder, "BACKEND": args.backend, "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
               "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        cmd = [sys.executable, __file__, "--backend", args.backend, "--ranks", str(args.ranks), "--folder", folder, *args.patterns]
        log = open(args.log, "w", encoding="utf-8") if args.log else subprocess.DEVNULL
        all_ranks = [subprocess.Popen(cmd, env={**env, "RANK": str(r)}, stdout=log, stderr=log) for r in range(args.ranks)]
        statuses = [p.wait() for p in all_ranks]
        rows = {}
        for r in range(args.ranks):
            with open(os.path.join(folder, f"results-{r}"), encoding="utf-8") as f:
                for line in f:
                    name, end, seconds, why = line.rstrip("\n").split("\t")
                    worst = rows.setdefault(name, [end, seconds, why])
                    if ("skip", "pass", "FAIL").index(end) > ("skip", "pass", "FAIL").index(worst[0]):
                        rows[name] = [end, seconds, why]
    return rows, statuses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="kolo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--log")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("patterns", nargs="*")
    args = parser.parse_args()
    if args.folder:
        return work(args)
    rows, statuses = start(args)
    counts = {end: sum(1 for row in rows.values() if row[0] == end) for end in ("pass", "FAIL", "skip")}
    lines = [f"{end} {name} {seconds} s {why}" for name, (end, seconds, why) in rows.items() if end != "skip"]
    text = "\n".join([*lines, f"{args.backend}, {args.ranks} ranks: {counts['pass']} passed, {counts['FAIL']} failed, {counts['skip']} skipped"])
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text + "\n")
    print(text)
    bad = [n for n, row in rows.items() if row[0] == "FAIL" and n not in KNOWN]
    return 1 if bad or any(statuses) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
