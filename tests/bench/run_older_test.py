#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# bench/run_older: a build against itself gives a row, a ratio and a mean for each wire; an older build that is not there
# is told, with exit status 1. usage: run_older_test.py RUN-OLDER BUILD
import re
import subprocess
import sys

run_older, build = sys.argv[1:]


def run(older):
    p = subprocess.run([run_older, older, "--build", build, "--ranks", "2", "--sizes", "8", "--ops", "all_reduce", "--budget",
                        "0.001", "--turns", "2", "--seconds", "5", "--no-programs"], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=100)
    return p.returncode, p.stdout


code, out = run(build)
assert code == 0, out
for wire in ("tcp", "shm"):
    assert re.search(rf"^all_reduce +2 {wire} +8 +[0-9.]+ +[0-9.]+ ", out, re.M), out
    assert f"ratio all_reduce ranks=2 wire={wire} geomean=" in out and f"mean all_reduce wire={wire} ratio=" in out, out
code, out = run("/nowhere")
assert code == 1 and "problem:" in out and "/nowhere/libkolo.so.0" in out and "mean" not in out, (code, out)
