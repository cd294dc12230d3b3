#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# A tool whose output cannot be written says so and fails. usage: full_disk_test.py FOLDER-OF-TOOLS
import pathlib
import subprocess
import sys

TOOLS = pathlib.Path(sys.argv[1])
CALLS = [[tool, option] for tool in ("kolorun", "kolo-perf", "kolo-info", "kolo-top", "kolo-trace", "kolo-tune")
         for option in ("--help", "--version")]
CALLS += [["kolorun", "--check-build"], ["kolo-info"], ["kolo-info", "--params"], ["kolo-top", "--once"]]

for call in CALLS:
    with open("/dev/full", "w") as full:
        p = subprocess.run([TOOLS / call[0], *call[1:]], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
                           timeout=30)
    assert p.returncode == 1 and f"{call[0]}: standard output: " in p.stderr, (call, p.returncode, p.stderr)
    p = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", TOOLS / call[0], *call[1:]], stdin=subprocess.DEVNULL,
                       stderr=subprocess.PIPE, text=True, timeout=30)
    assert p.returncode == 1 and f"{call[0]}: standard output: " in p.stderr, (call, p.returncode, p.stderr)
