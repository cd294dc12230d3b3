# SPDX-License-Identifier: Apache-2.0
#
# For tests of the examples: which processes a monitor has started, and whether they are gone.
import os
import pathlib
import select
import sys
import time


def children(pid):
    try:
        return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def descendants(pid, first=""):
    """With theirs, those whose first argument this is (or all)."""
    found = []
    for child in children(pid):
        try:
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has ended meanwhile
        found += [child] * (not first or words[1:2] == [first]) + descendants(child, first)
    return found


def wait_for_ends(pids, what, limit_s):
    """Until none of these processes runs any more. Ends the test after limit_s."""
    end = time.monotonic() + limit_s
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if not select.select([fd], [], [], max(end - time.monotonic(), 0))[0]:
            sys.exit(f"after {limit_s} s: {what}: {pid}")
        os.close(fd)
