# SPDX-License-Identifier: Apache-2.0
#
# For the tests of the package: a job's cases, run by all ranks in the same order, and jobs that a test starts.
import contextlib
import inspect
import os
import subprocess
import sys
import traceback

import kolocomm

KOLORUN = os.environ.get("KOLORUN", "kolorun")


def run(names, **options):
    """Calls each function test_*(c) of a module on one communicator of the job, in the order of their lines."""
    cases = [f for n, f in names.items() if n.startswith("test_") and inspect.isfunction(f)]
    cases.sort(key=lambda f: f.__code__.co_firstlineno)
    failed = 0
    with kolocomm.connect(op_timeout_ms=60000, **options) as c:
        for case in cases:
            try:
                case(c)
            except Exception:
                failed += 1
                print(f"FAILED {case.__name__} on rank {c.rank}", flush=True)
                traceback.print_exc()
                break  # the other ranks may be elsewhere now
        if not failed and c.rank == 0:
            print(f"{len(cases)} cases right: " + " ".join(f.__name__ for f in cases), flush=True)
        if failed:
            c.abort()
    sys.exit(1 if failed else 0)


@contextlib.contextmanager
def raises(kind, *words):
    """The block raises this kind of exception, and its message has these words."""
    try:
        yield
    except kind as e:
        for word in words:
            assert word in str(e), f"{word!r} is not in: {e}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def job(ranks, code, limit_s=60, env=None, launcher=()):
    """Runs a program given as text under kolorun; returns (status, stdout and stderr)."""
    cmd = [KOLORUN, "-n", str(ranks), *launcher, sys.executable, "-c", code]
    out = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s,
                         env={**os.environ, **(env or {})})
    return out.returncode, out.stdout
