#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Log lines of a job: what they begin with (KOLO_LOG_FORMAT), and of which rooms they come (KOLO_LOG).
# usage: log_test.py KOLORUN PROGRAM, which two ranks run
import json
import os
import re
import subprocess
import sys
import tempfile

KOLORUN, PROGRAM = sys.argv[1:3]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def lines(status=0, **env):
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run([KOLORUN, "-n", "2", "--no-tag", PROGRAM, folder], env={**CLEAN, **env}, stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=60)
        assert p.returncode == status, (env, p.stderr)
        return p.stderr.splitlines()


def rooms(**env):
    return {re.search(r"\[(\w+)\]", line)[1] for line in lines(**env)}


found = [json.loads(line) for line in lines(KOLO_LOG="info", KOLO_LOG_FORMAT="json")]
known = [line for line in found if "rank" in line]
assert {line["rank"] for line in known} == {0, 1} and len({line["job"] for line in known} - {""}) == 1, found
assert all(re.fullmatch(TIME, line["time"]) and line["version"] and line["host"] and line["pid"] > 0 and line["room"] and line["text"]
           and line["level"] in ("error", "warn", "info") for line in found), found

head = rf"{TIME} kolo \d+\.\d+\.\d+ (error|warn|info) \S+:\d+( rank [01]( of \w+)?)? \[\w+\] \S"
found = lines(KOLO_LOG="info", KOLO_LOG_FORMAT="long")
assert all(re.match(head, line) for line in found) and any(" rank 1 of " in line for line in found), found
assert all(re.match(r"kolo (warn|info) \S+:\d+ \[\w+\] \S", line) for line in lines(KOLO_LOG="info")), lines(KOLO_LOG="info")

some = rooms(KOLO_LOG="none,comm=debug")
assert some == {"comm"}, some
assert "comm" not in rooms(KOLO_LOG="debug,comm=none") and len(rooms(KOLO_LOG="debug,comm=none")) > 1
# what this machine lacks is no error of the program
assert not [line for line in lines(KOLO_LOG="info") if "[error] unsupported" in line], lines(KOLO_LOG="info")
for wrong in ("loud", "info,wire", "info,=debug", "info,wire=loud"):
    found = "\n".join(lines(status=1, KOLO_LOG=wrong))
    assert "KOLO_LOG" in found and "info,wire=debug" in found, found
