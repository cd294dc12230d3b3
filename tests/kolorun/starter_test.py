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
from cases import alive, matches, run_case, same, until

KOLORUN = os.path.abspath(sys.argv[1])
TMP = None  # a directory of this test's own
LIMIT_S = 30
os.environ.pop("KOLORUN_BIND_TO", None)
# A shell cannot trap what it was started ignoring, as below nohup or in the background of a script.
for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)


def pids_of(directory, count):
    """Pids that `count` processes wrote into files of their own (complete once the line ends)."""
    def texts():
        return [t for t in (f.read_text() for f in directory.glob("pid.*")) if t.endswith("\n")]
    until(lambda: len(texts()) == count, f"{count} processes to start")
    return [int(t) for t in texts()]


def descendants(pid):
    """Pids by name: the agent and what it started, of a kolorun that lives."""
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found += [(int(child), pathlib.Path(f"/proc/{child}/comm").read_text().strip()), *descendants(int(child))]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found


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
