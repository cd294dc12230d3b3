# SPDX-License-Identifier: Apache-2.0
#
# What tests of the tools share: comparisons that say what they saw, waits with an end, and a program of many cases.
import os
import pathlib
import re
import shutil
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
