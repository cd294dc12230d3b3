# SPDX-License-Identifier: Apache-2.0
#
# For the tests of the package: a job's cases, run by all ranks in the same order, and jobs that a test starts.
import contextlib
import inspect
import os
import subprocess
import sys
import textwrap
import time
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
    cmd = [KOLORUN, *([] if "--min" in launcher else ["-n", str(ranks)]), *launcher, sys.executable, "-c", code]
    out = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s,
                         env={**os.environ, **(env or {})})
    return out.returncode, out.stdout


MISTAKES = {}
HEAD = """
import gc, os, signal, sys, threading, time
import numpy as np
import kolocomm
from kolocomm import errors

def told(call):  # what the call raises: its kind, and its words
    try:
        call()
    except BaseException as e:
        print(f"{type(e).__name__}: {' '.join(str(e).split())}", flush=True)
    else:
        print("nothing was raised", flush=True)

def both(one, other):  # two ranks of this process
    t = threading.Thread(target=other)
    t.start()
    try:
        return one()
    finally:
        t.join()
"""


def mistake(ranks, status, *words, limit_s=20, **env):
    """A job of so many ranks that runs the function's body: its status is 0 or another (1), its output has the words."""
    def add(fn):
        body = inspect.getsource(fn).split("\n", 1)[1]
        while body.lstrip().startswith(("@", "def ", '"')):
            body = body.split("\n", 1)[1]
        MISTAKES[fn.__name__] = (ranks, status, words, limit_s, env, textwrap.dedent(body))
        return fn
    return add


def run_mistakes(names=(), failed=()):
    """Runs them, or those that are named; failed: what has failed before. The exit status of the test."""
    failed = list(failed)
    for name in names or MISTAKES:
        ranks, want, words, limit_s, env, body = MISTAKES[name]
        began = time.monotonic()
        try:
            status, out = job(ranks, HEAD + body, limit_s, env)
        except subprocess.TimeoutExpired as e:
            status, out = 124, f"hangs after {limit_s} s: {(e.stdout or b'').decode()}"
        right = (status != 0) == (want != 0) and 0 <= status < 124 and all(any(w in out for w in word.split("|")) for word in words)
        print(f"{'right ' if right else 'FAILED'} {name} ({time.monotonic() - began:.1f} s)", flush=True)
        if not right:
            failed.append(name)
            print(f"status {status}, wanted {want} and {words}:\n{out}", flush=True)
    print(f"{len(names or MISTAKES) - len(failed)} right, {len(failed)} wrong")
    return 1 if failed else 0
