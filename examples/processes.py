# SPDX-License-Identifier: Apache-2.0
#
# For tests of the examples: which processes a monitor has started, and whether they are gone.
import pathlib
import sys
import time


def children(pid):
    try:
        return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, what, limit_s):
    """Looks every 10 ms: other people's processes give no sign when they end. Ends the test after limit_s."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"after {limit_s} s: {what}")
        time.sleep(0.01)
