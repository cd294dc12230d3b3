#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Which of several ranks that fail kolorun names. usage: cause_test.py KOLORUN CASE, with ABORT_RANK in the environment
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import alive, descendants, matches, pids_of, run_case, same, until

KOLORUN = os.path.abspath(sys.argv[1])
TMP = None  # a directory of this test's own
LIMIT_S = 40


def start(*args):
    return subprocess.Popen([KOLORUN, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*args):
    """Returns exit status and stderr."""
    p = start(*args)
    _, err = p.communicate(timeout=LIMIT_S)
    return p.returncode, err.decode()


# Rank 1 holds 256 MB and is killed; rank 0 sees that its end is under way and fails before it has come.
CAUSE_AND_VICTIM = """
import os, signal, sys
pid = "TMP/pid.1"
if os.environ["KOLO_RANK"] == "1":
    held = bytearray(256 << 20)
    held[::4096] = b"x" * (len(held) // 4096)
    open(pid + ".new", "w").write(str(os.getpid()))
    os.rename(pid + ".new", pid)
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(pid):
    pass
stat = f"/proc/{open(pid).read()}/stat"
try:
    while not int(open(stat).read().rpartition(")")[2].split()[6]) & 4:
        pass
except OSError:
    pass
os._exit(1)
"""


def test_who_was_killed_is_named_and_not_who_missed_it():
    for hosts in (("-n", "2"), ("-H", "localhost:1,127.0.0.1:1")):
        for old in TMP.glob("pid.*"):
            old.unlink()
        status, err = run(*hosts, sys.executable, "-c", CAUSE_AND_VICTIM.replace("TMP", str(TMP)))
        same(status, 128 + signal.SIGKILL)
        matches(r"^kolorun: rank 1 \(pid \d+\) was killed by signal 9", err)


def test_rank_that_aborts_is_named_and_not_who_heard_of_it():
    status, err = run("-n", "3", os.environ["ABORT_RANK"])
    same(status, 7)
    matches(r"^kolorun: rank 2 \(pid \d+\) exited with status 7", err)


# Ranks 0 and 1 fail at once, the one with these words and the other after it; rank 2 fails when rank 0 has gone.
NAMED = """
echo $$ > TMP/new.$KOLO_RANK; mv TMP/new.$KOLO_RANK TMP/pid.$KOLO_RANK
while [ ! -e TMP/pid.0 ] || [ ! -e TMP/pid.1 ] || [ ! -e TMP/pid.2 ]; do sleep 0.01; done
gone() { while [ -e /proc/$(cat TMP/pid.$1) ]; do sleep 0.01; done; sleep 0.1; }
case $KOLO_RANK in
0) echo "0: WORDS: it ended" >&2; exit 3;;
1) gone 0; sleep LATER; exit 4;;
2) gone 0; sleep LATER; exit END;;
esac
"""


def named(words, end="5", later="0"):
    """Returns the job's status and the rank that it is said to come from."""
    for old in TMP.glob("pid.*"):
        old.unlink()
    program = NAMED.replace("WORDS", words).replace("END", end).replace("LATER", later).replace("TMP", str(TMP))
    status, err = run("-n", "3", "sh", "-c", program)
    return status, int(re.search(r"^kolorun: rank (\d)", err, re.M)[1])


def test_rank_that_errors_name_as_lost_is_the_cause():
    same(named("rank 2 was lost"), (5, 2))
    same(named("rank 0 waited for rank 1 (host a, process $(cat TMP/pid.1)) when rank 2 of comm (host a, process 1) was lost"), (5, 2))
    same(named("rank 1 (host a, process $(cat TMP/pid.2)) was lost"), (5, 2))  # of a communicator with other numbers
    same(named("$(head -c 2000 /dev/zero | tr '\\0' x) rank 2 was lost"), (5, 2))
    same(named("$(head -c 1010 /dev/zero | tr '\\0' x) rank 2 was lost"), (5, 2))


def test_rank_that_failed_first_is_the_cause_where_no_other_did():
    same(named("rank 2 was slow"), (3, 0))
    same(named("rank 0 was lost"), (3, 0))
    same(named("rank 7 was lost"), (3, 0))
    same(named("rank 2 was lost", end="0"), (3, 0))
    same(named("rank 2 was lost", later="20"), (3, 0))  # it is not awaited for long


def test_another_failure_seen_with_the_first_is_told():
    p = start("-n", "2", "sh", "-c", f"echo $$ > {TMP}/pid.$KOLO_RANK; until [ -e {TMP}/go ]; do sleep 0.02; done; exit $((3 + KOLO_RANK))")
    pids = pids_of(TMP, 2)
    agent, = [pid for pid, name in descendants(p.pid) if name == "kolorun"]
    os.kill(agent, signal.SIGSTOP)  # not kolorun: it might go on when the agent has told of one of them
    (TMP / "go").touch()
    until(lambda: not any(alive(pid) for pid in pids), "both ranks to be gone")
    os.kill(agent, signal.SIGCONT)
    _, err = p.communicate(timeout=LIMIT_S)
    matches(r"^kolorun: rank (0 \(pid \d+\) exited with status 3, rank 1 \(pid \d+\) with status 4|"
            r"1 \(pid \d+\) exited with status 4, rank 0 \(pid \d+\) with status 3)$", err.decode())


run_case(globals(), sys.argv[2])
