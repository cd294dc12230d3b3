#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolorun and the process that started it. usage: starter_test.py KOLORUN CASE
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import alive, descendants, hear_signals, matches, pids_of, run_case, same, until

KOLORUN = os.path.abspath(sys.argv[1])
TMP = None  # a directory of this test's own
LIMIT_S = 30
os.environ.pop("KOLORUN_BIND_TO", None)
hear_signals()


def test_kill_9_of_the_shell_above_leaves_nothing():
    program = f"sleep 300 & echo $! > {TMP}/pid.helper.$KOLO_RANK; echo $$ > {TMP}/pid.$KOLO_RANK; exec sleep 300"
    shell = subprocess.Popen(["sh", "-c", f"'{KOLORUN}' -n 2 sh -c '{program}'; echo after"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(TMP)})
    pids = pids_of(TMP, 4) + [pid for pid, _ in descendants(shell.pid)]
    shell.kill()
    _, err = shell.communicate(timeout=LIMIT_S)  # whoever held these has ended
    matches("the process that started kolorun has ended", err.decode())
    until(lambda: not any(alive(pid) for pid in pids), f"{pids} to be gone")
    until(lambda: not list(TMP.glob("kolorun-*")), "the directory to be gone")


def test_a_job_in_the_background_of_a_script_outlives_it():
    subprocess.run(["sh", "-c", f"'{KOLORUN}' -n 1 sh -c 'until [ -e {TMP}/go ]; do sleep 0.02; done; touch {TMP}/done' & exit"],
                   env={**os.environ, "TMPDIR": str(TMP)}, timeout=LIMIT_S, check=True)
    (TMP / "go").touch()
    until((TMP / "done").exists, "the program to go on")
    until(lambda: not list(TMP.glob("kolorun-*")), "the job to end")


run_case(globals(), sys.argv[2])
