#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# nccl_tests.py without a GPU: its pairs are all there, in about forty runs; what it makes of a program's output; how it starts one.
import os
import subprocess
import sys
import tempfile
import types

import nccl_tests

RIGHT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n"

for gpus, mpi, most in ((2, "", 40), (4, "", 40), (4, "m", 48)):
    values = nccl_tests.settings(gpus, mpi)
    runs = nccl_tests.pairwise(values)
    want = {frozenset(((a, x), (b, y))) for a in values for b in values if a < b for x in values[a] for y in values[b]}
    want.discard(frozenset((("graph", "-G 1"), ("blocking", "-z 1"))))
    assert set().union(*map(nccl_tests.pairs_of, runs)) == want, "a pair of settings is in no run"
    assert all(map(nccl_tests.can_be, runs)) and len(runs) <= most, len(runs)

assert nccl_tests.verdict(RIGHT, 0) == ""
assert nccl_tests.verdict(RIGHT.replace("0 OK", "12 FAILED"), 0) == "12 wrong values"
assert nccl_tests.verdict("", 0) == "no value was looked at"
assert "ended with 3: x error" in nccl_tests.verdict(RIGHT + "x error\n", 3)

with tempfile.TemporaryDirectory() as folder:
    for name in nccl_tests.PROGRAMS:
        path = os.path.join(folder, name + "_perf")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n[ \"$LD_PRELOAD\" = /dev/null ] || exit 9\nprintf '{RIGHT if name != 'scatter' else ''}'\n")
        os.chmod(path, 0o755)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_tests.py")
    out = subprocess.run([sys.executable, program, folder, "--library", "/dev/null", "programs"], capture_output=True, text=True, check=False)
    assert out.stdout.endswith("10 passed, 1 failed\n") and out.returncode == 1, out
    assert "WRONG       programs: scatter: no value" in out.stdout, out
    with open(os.path.join(folder, "gather_perf"), "a", encoding="utf-8") as f:
        f.write("sleep 60\n")
    o = types.SimpleNamespace(folder=folder, mpi=None, gpus=2, library="/dev/null")
    assert nccl_tests.run(o, "gather -g 2", 0.2).startswith("not through")
print("right")
