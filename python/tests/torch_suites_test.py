#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that others have written for groups whose members change, on the backend kolo, where their files are found.

    torch_suites_test.py faults FILE [--backend kolo|gloo]     PyTorch's test_c10d_fault_tolerance.py, one process per rank
    torch_suites_test.py torchft FILE [--backend kolo|gloo]    TorchFT's process_group_test.py, its ranks are threads

FILE: from a source tree of PyTorch, or of the package torchft; nothing of them is here. Prints each case's end; exit status 1 if one
fails. --out writes the same into a file.
"""
import argparse
import datetime
import fnmatch
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest

RANKS = 3
LIMIT_S = 60  # of one case
# Where TorchFT's tests want to read Gloo's words, Kolo's do: a lost rank's name; what a time limit ended.
OWN_WORDS = {"Connection closed by peer": r"|\brank \d+\b", "timeout after 10ms": "|Timed out"}
# Fails, with the reason.
KNOWN = {"test_reconfigure_after_abort": "newer than torch 2.15; wants Gloo's answer of an aborted group, no error, where Kolo says COMM_ERROR as nccl2 does; "
                                         "that it goes on afterwards is tested by torch_reconfigure_test.py"}


def load(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def late(*_):
    raise TimeoutError(f"more than {LIMIT_S} s")


def cases_of(cls):
    return [cls(n) for n in sorted(dir(cls)) if n.startswith("test_") and callable(getattr(cls, n))]


def run_one(case):
    """The end of a case, and why."""
    result = unittest.TestResult()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        case.run(result)
    except BaseException as e:
        return "FAIL", f"{type(e).__name__}: {e}"
    finally:
        signal.alarm(0)
    for _, why in result.skipped:
        return "skip", why
    for _, trace in result.errors + result.failures:
        return "FAIL", trace.strip().splitlines()[-1] if "-v" not in sys.argv else trace
    return "pass", ""


# ---- PyTorch's test_c10d_fault_tolerance.py ----


def fault_cases(module, backend, rank, folder):
    from torch.testing._internal.common_utils import TestCase
    import torch.distributed as dist

    class Faults(module.AbstractFaultToleranceTest, TestCase):
        backend_name, device_type, device, supports_work_result = backend, "cpu", "cpu", False

        def setUp(self):  # not a process for each case
            TestCase.setUp(self)
            self.rank, self.file_name = rank, os.path.join(folder, self._testMethodName)

        def tearDown(self):
            if dist.is_initialized():
                dist.destroy_process_group()
            TestCase.tearDown(self)

    return cases_of(Faults) + cases_of(module.ReconfigureContractTest)


def work_on_faults(args):
    import torch.distributed as dist
    if args.backend == "kolo":
        import kolocomm.torch  # noqa: F401
    rank = int(os.environ["RANK"])
    store = dist.FileStore(os.path.join(args.folder, "control"), RANKS)
    store.set_timeout(datetime.timedelta(seconds=3 * LIMIT_S))
    with open(os.path.join(args.folder, f"results-{rank}"), "w", encoding="utf-8", buffering=1) as out:
        for case in fault_cases(load(args.file), args.backend, rank, args.folder):
            end, why = run_one(case)
            out.write(f"{case._testMethodName}\t{end}\t{' '.join(why.split())[:400]}\n")
            store.set(f"{case._testMethodName}/{rank}", end)
            store.wait([f"{case._testMethodName}/{r}" for r in range(RANKS)])  # no rank is in the next case alone


def faults(args):
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        cmd = [sys.executable, __file__, "faults", args.file, "--backend", args.backend, "--folder", folder]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        ranks = [subprocess.Popen(cmd, env={**env, "RANK": str(r)}, stdout=subprocess.DEVNULL) for r in range(RANKS)]
        statuses = [p.wait() for p in ranks]
        for r in range(RANKS):
            with open(os.path.join(folder, f"results-{r}"), encoding="utf-8") as f:
                for line in f:
                    name, end, why = line.rstrip("\n").split("\t")
                    if name not in rows or end == "FAIL":
                        rows[name] = (end, f"rank {r}: {why}" if why else "")
    if any(statuses):
        rows["the processes"] = ("FAIL", f"ended with {statuses}")
    return rows


# ---- TorchFT's process_group_test.py ----


def in_words_of_kolo(cls):
    before = cls.assertRaisesRegex

    def assert_raises(self, kind, pattern, *more, **named):
        pattern += "".join(own for gloo, own in OWN_WORDS.items() if gloo in pattern)
        return before(self, kind, pattern, *more, **named)

    cls.assertRaisesRegex = assert_raises


def patient(kind):
    """TorchFT gives a process ten seconds to start and import torch: on a busy machine it is a minute. Short limits stay."""
    def made(timeout=datetime.timedelta(seconds=60), **more):
        return kind(timeout if timeout < datetime.timedelta(seconds=5) else datetime.timedelta(seconds=60), **more)

    return made


def not_set_up(cls):
    try:
        return cls.setUpClass()
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def torchft(args):
    module = load(args.file)
    groups = [module.ProcessGroupTest]
    if args.backend == "kolo":
        import kolocomm.torchft as own
        module.ProcessGroupGloo, module.ProcessGroupBabyGloo = own.ProcessGroupKolo, own.ProcessGroupBabyKolo
    module.ProcessGroupBabyGloo = patient(module.ProcessGroupBabyGloo)

    class InThreads(module.MultiPgBaseTest):
        BACKEND, WORLD_SIZE = "gloo", RANKS

    class InProcesses(InThreads):
        BACKEND = "baby_gloo"

    left_out = module.NormalGlooMultiPgTest.SKIP if args.backend == "gloo" else []
    for cls in (InThreads, InProcesses):  # as the file's own for Gloo: first all collectives, then all with a rank that leaves
        for name in module._ALL_COLLECTIVES:
            if name in left_out:
                continue
            plain = re.sub(r"\W", "_", name)
            setattr(cls, f"test_1_{plain}", lambda self, name=name: self._run_parallel(name))
            setattr(cls, f"test_2_{plain}_with_resiliency", lambda self, name=name: self._run_with_resiliency(name))
        groups.append(cls)
    rows = {}
    for cls in groups:
        in_words_of_kolo(cls)
        cases = [c for c in cases_of(cls) if fnmatch.fnmatch(f"{cls.__name__}.{c._testMethodName}", args.only)]
        if not cases:
            continue
        if why := not_set_up(cls):
            rows[f"{cls.__name__}.setUpClass"] = ("FAIL", why)
            continue
        for case in cases:
            rows[f"{cls.__name__}.{case._testMethodName}"] = run_one(case)
            print(f"{cls.__name__}.{case._testMethodName}: {rows[f'{cls.__name__}.{case._testMethodName}'][0]}", file=sys.stderr, flush=True)
        try:
            cls.tearDownClass()
        except Exception:
            traceback.print_exc()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=["faults", "torchft"])
    parser.add_argument("file")
    parser.add_argument("--backend", default="kolo")
    parser.add_argument("--out")
    parser.add_argument("--only", default="*", help="cases whose names fit this pattern")
    parser.add_argument("-v", action="store_true")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        return work_on_faults(args)
    rows = {"faults": faults, "torchft": torchft}[args.suite](args)
    rows = {name: ("known", KNOWN[name]) if end == "FAIL" and name in KNOWN and args.backend == "kolo" else (end, why) for name, (end, why) in rows.items()}
    count = {end: sum(1 for e, _ in rows.values() if e == end) for end in ("pass", "FAIL", "skip")}
    text = "\n".join([*(f"{end} {name} {why}".rstrip() for name, (end, why) in rows.items()),
                      f"{args.suite} on {args.backend}: {count['pass']} passed, {count['FAIL']} failed, {count['skip']} skipped"])
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text + "\n")
    print(text, flush=True)
    return 1 if count["FAIL"] or not rows else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status or 0)  # what a failed case has left waiting is not waited for
