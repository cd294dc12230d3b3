#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Whatever ends the monitor (Ctrl-C, SIGTERM, kill -9), in the middle of moves and faults: its workers, stopped ones
# too, and the processes that hold its network namespaces end with it.
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from processes import children, wait_for_ends

LIMIT_S = 15


def one(program, number):
    faults = "kill,stop,cut" if os.geteuid() == 0 else "kill,stop"
    command = [program, "--seconds", "60", "--seed", str(int(number)), "--faults", faults, "--pause", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as monitor:
        seen = {"serves": False, "SIGSTOP": False}
        lines = []
        for line in monitor.stdout:
            lines.append(line)
            for word in seen:
                seen[word] = seen[word] or word in line
            if all(seen.values()):
                break
        started = children(monitor.pid)
        if len(started) < 2:
            sys.exit("only " + str(len(started)) + " children:\n" + "".join(lines))
        monitor.send_signal(number)
        monitor.stdout.read()
        status = monitor.wait(LIMIT_S)
    if status != (-signal.SIGKILL if number == signal.SIGKILL else 130):
        sys.exit(f"{number.name}: the monitor ended with {status}")
    wait_for_ends(started, f"{number.name}: processes are left", LIMIT_S)
    print(f"{number.name}: {len(started)} processes ended with the monitor")


for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
    one(sys.argv[1], signal_number)
