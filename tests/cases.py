# SPDX-License-Identifier: Apache-2.0
#
# What tests of the tools share: comparisons that say what they saw, waits with an end, and a program of many cases.
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time


def same(got, want):
    assert got == want, f"got {got!r}, wanted {want!r}"


def matches(pattern, text):
    assert re.search(pattern, text, re.M), f"no {pattern!r} in {text!r}"


def until(condition, what, limit_s=40):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s} s for {what}"
        time.sleep(0.01)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_of(directory, count):
    """Returns the pids that `count` processes wrote into files of their own (complete once the line ends)."""
    def texts():
        return [t for t in (f.read_text() for f in directory.glob("pid.*")) if t.endswith("\n")]
    until(lambda: len(texts()) == count, f"{count} processes to start")
    return [int(t) for t in texts()]


def kill_if(is_it, pid):
    """Kills a process, unless somebody else has its number by now: it is looked at once it is held."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_it(pid):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(held)


def has_word(pid, word):
    """Is this one of the words that it was started with?"""
    try:
        return word.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def descendants(pid):
    """Lists pids by name: the agent and what it started, of a kolorun that lives."""
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found += [(int(child), pathlib.Path(f"/proc/{child}/comm").read_text().strip()), *descendants(int(child))]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found


def hear_signals():
    """A shell cannot trap what it was started ignoring, as below nohup or in the background of a script."""
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(ignored) == signal.SIG_IGN:
            signal.signal(ignored, signal.SIG_DFL)


def run_case(test, name, prepare=None, clean_up=None):
    """Runs test_NAME of the globals of a test, with a folder of its own as TMP and TMPDIR, between prepare and
    clean_up; or lists the cases, for which nothing is needed."""
    cases = {n[len("test_"):]: f for n, f in test.items() if n.startswith("test_")}
    if name == "--list":
        print("\n".join(cases))
        return
    if prepare:
        prepare()
    test["TMP"] = pathlib.Path(tempfile.mkdtemp(prefix="kolo-test-"))
    os.environ["TMPDIR"] = str(test["TMP"])
    try:
        cases[name]()
    finally:
        if clean_up:
            clean_up()
        shutil.rmtree(test["TMP"], ignore_errors=True)
