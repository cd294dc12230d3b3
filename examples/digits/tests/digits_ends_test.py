#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# How a run ends: whatever ends the monitor (Ctrl-C, SIGTERM, kill -9), its workers end with it; the loss of a worker
# that nobody was to kill, wrong options and files are told. usage: digits_ends_test.py PROGRAM ends | refusals
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from processes import descendants, wait_for_ends

PROGRAM = sys.argv[1]
LIMIT_S = 60


def expect(condition, what):
    if not condition:
        sys.exit(what)


def run(*options):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True, timeout=3 * LIMIT_S)


def refused(what, *options):
    done = run(*options)
    expect(done.returncode != 0 and what in done.stderr, f"{options}: status {done.returncode}, {done.stderr!r}")


def until_all_train(monitor, name):
    for line in monitor.stdout:
        if line.startswith(name) and "epoch" in line:
            return
    sys.exit(f"{name}: never ran")


def ended_by(number, folder):
    command = [PROGRAM, "--epochs", "10000", "--out", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as monitor:
        until_all_train(monitor, "undisturbed")
        started = descendants(monitor.pid)  # kolorun, its agent and a guard, and the workers
        workers = descendants(monitor.pid, "--worker")
        expect((len(started), len(workers)) == (7, 4), f"{len(started)} processes, {len(workers)} workers")
        monitor.send_signal(number)
        monitor.stdout.read()
        status = monitor.wait(LIMIT_S)
    expect(status == (-signal.SIGKILL if number == signal.SIGKILL else 130), f"{number.name}: status {status}")
    wait_for_ends(started, f"{number.name}: processes are left", LIMIT_S)


def killed_by_somebody(folder):
    """Losses that were not planned: the undisturbed run is not what it was to be, the other one goes on."""
    for name, status in (("undisturbed", 1), ("disturbed", 0)):
        command = [PROGRAM, "--epochs", "20", "--no-timeline", "--kill", "2@200", "--out", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as monitor:
            until_all_train(monitor, name)
            started = descendants(monitor.pid)
            os.kill(descendants(monitor.pid, "--worker")[1], signal.SIGKILL)
            output, errors = monitor.communicate(timeout=LIMIT_S)
        expect(monitor.returncode == status, f"kill in {name}: status {monitor.returncode}\n{output}{errors}")
        expect(status == 0 or "worker 1 ended before its work was done" in errors, errors)
        expect(status == 1 or "ranks 4->3->4->3->4 lost_steps=0" in output, output)
        wait_for_ends(started, "processes are left", LIMIT_S)


def ends(folder):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        ended_by(number, folder)
    killed_by_somebody(folder)


def refusals(folder):
    nonsense = pathlib.Path(folder, "nonsense.csv")
    nonsense.write_text("1,2,3\n")
    refused("line 1", "--data", str(nonsense))
    refused("cannot be opened", "--data", f"{folder}/none.csv")
    refused("cannot be written", "--epochs", "3", "--no-timeline", "--least", "0", "--out", "/proc/digits")
    refused("try 'digits --help'", "--workers", "1")
    refused("try 'digits --help'", "--kill", "x")
    refused("try 'digits --help'", "--kill", "1@")
    refused("try 'digits --help'", "--epochs", "many")
    refused("accuracy is lower", "--epochs", "6", "--least", "1000", "--no-timeline", "--out", folder)


with tempfile.TemporaryDirectory() as out:
    {"ends": ends, "refusals": refusals}[sys.argv[2]](out)
