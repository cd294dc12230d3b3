#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolorun --stdin: what comes into kolorun and who gets it. usage: stdin_test.py KOLORUN CASE
import fcntl
import hashlib
import os
import pathlib
import pty
import signal
import subprocess
import sys
import termios

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import matches, run_case, same, until

KOLORUN = sys.argv[1]
TMP = None
LIMIT_S = 40
BIG = bytes(range(256)) * 32768  # 8 MB: 32 times what may be under way
COUNT = "echo $KOLO_RANK $(md5sum | cut -c-32)"


def start(*args, **kwargs):
    return subprocess.Popen([KOLORUN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


def run(*args, data=b"", env=None):
    p = start(*args, stdin=subprocess.PIPE, env={**os.environ, **(env or {})})
    out, err = p.communicate(data, timeout=LIMIT_S)
    return p.returncode, sorted(out.decode().splitlines()), err.decode()


def sums(ranks, with_input, data=BIG):
    of = {True: hashlib.md5(data).hexdigest(), False: hashlib.md5(b"").hexdigest()}
    return (0, [f"[{r}] {r} {of[r in with_input]}" for r in range(ranks)], "")


def test_nobody_gets_it_unasked():
    same(run("-n", "2", "sh", "-c", COUNT, data=b"x"), sums(2, (), b"x"))
    same(run("-n", "2", "--stdin", "none", "sh", "-c", COUNT, data=b"x"), sums(2, (), b"x"))


def test_one_rank_gets_all_of_a_big_input():
    for rank in (0, 2):
        same(run("-n", "3", "--stdin", str(rank), "sh", "-c", COUNT, data=BIG), sums(3, (rank,)))


def test_all_ranks_get_all_of_a_big_input():
    same(run("-n", "3", "--stdin", "all", "sh", "-c", COUNT, data=BIG), sums(3, (0, 1, 2)))


def test_hosts_in_between_lose_nothing():
    """Hosts of several names, each with an agent of its own."""
    same(run("-H", "localhost:1,127.0.0.1:2", "--stdin", "all", "sh", "-c", COUNT, data=BIG), sums(3, (0, 1, 2)))


def test_connections_lose_nothing():
    """Through pipes, as an ssh would carry it."""
    (TMP / "ssh").write_text('#!/bin/sh\nfor command; do :; done\ncat | sh -c "$command" | cat\n')
    (TMP / "ssh").chmod(0o755)
    args = ("-H", "elsewhere:2,localhost:1", "--ssh", str(TMP / "ssh"), "--stdin")
    same(run(*args, "all", "sh", "-c", COUNT, data=BIG), sums(3, (0, 1, 2)))
    same(run(*args, "1", "sh", "-c", COUNT, data=BIG), sums(3, (1,)))


def test_file_is_read_to_its_end():
    (TMP / "file").write_bytes(BIG)
    with open(TMP / "file", "rb") as f:
        p = start("-n", "1", "--stdin", "0", "sh", "-c", COUNT, stdin=f)
        out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, out.decode().splitlines(), err.decode()), sums(1, (0,)))


def test_closed_input_is_empty():
    p = start("-n", "2", "--stdin", "0", "sh", "-c", COUNT, preexec_fn=lambda: os.close(0))
    out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, sorted(out.decode().splitlines()), err.decode()), sums(2, ()))


def test_input_that_cannot_be_read_is_said_and_ends():
    folder = os.open(TMP, os.O_RDONLY)
    p = start("-n", "1", "--stdin", "0", "sh", "-c", COUNT, stdin=folder)
    os.close(folder)
    out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, out.decode().splitlines()), sums(1, ())[:2])
    matches("^kolorun: cannot read the standard input: Is a directory", err.decode())


def test_words_arrive_while_more_is_to_come():
    """What was typed is there before the input ends."""
    p = start("-n", "2", "--stdin", "1", "sh", "-c", '[ $KOLO_RANK = 0 ] || { read a; echo "got $a"; read b; echo "then $b"; }',
              stdin=subprocess.PIPE)
    for word, answer in (("one", b"[1] got one\n"), ("two", b"[1] then two\n")):
        p.stdin.write(f"{word}\n".encode())
        p.stdin.flush()
        same(p.stdout.readline(), answer)
    same((p.wait(LIMIT_S), p.stderr.read()), (0, b""))


def endless():
    return subprocess.Popen(["yes", "x" * 1000], stdout=subprocess.PIPE)


def test_rank_that_exits_early_ends_the_writer_and_nothing_else():
    """The job goes on; who writes gets the SIGPIPE of a pipeline."""
    source = endless()
    p = start("-n", "2", "--stdin", "0", "sh", "-c",
              f"[ $KOLO_RANK = 0 ] && exit 0; until [ -e {TMP}/go ]; do sleep 0.02; done; echo well", stdin=source.stdout)
    source.stdout.close()
    same(source.wait(LIMIT_S), -signal.SIGPIPE)
    (TMP / "go").touch()
    out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, out, err), (0, b"[1] well\n", b""))


def test_rank_that_closes_its_input_and_goes_on():
    source = endless()
    p = start("-n", "1", "--stdin", "0", "sh", "-c",
              f"exec < /dev/null; until [ -e {TMP}/go ]; do sleep 0.02; done; echo well", stdin=source.stdout)
    source.stdout.close()
    same(source.wait(LIMIT_S), -signal.SIGPIPE)
    (TMP / "go").touch()
    out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, out, err), (0, b"[0] well\n", b""))


def test_closed_input_is_noticed_before_more_comes():
    p = start("-n", "1", "--stdin", "0", "sh", "-c", f"exec < /dev/null; until [ -e {TMP}/go ]; do sleep 0.02; done",
              stdin=subprocess.PIPE)
    until(lambda: os.readlink(f"/proc/{p.pid}/fd/0") == "/dev/null", "kolorun to give up its input")
    try:
        p.stdin.write(b"x")
        p.stdin.flush()
        raise AssertionError("somebody reads")
    except BrokenPipeError:
        pass
    (TMP / "go").touch()
    same((p.wait(LIMIT_S), p.stderr.read()), (0, b""))


def test_one_of_all_that_leaves_holds_up_nobody():
    status, out, err = run("-n", "2", "--stdin", "all", "sh", "-c", f"[ $KOLO_RANK = 0 ] && exit 0; {COUNT}", data=BIG)
    same((status, out, err), (0, sums(2, (1,))[1][1:], ""))


def test_rank_that_does_not_read_takes_no_memory():
    """It holds up who writes, and a signal reaches it all the same."""
    source = endless()
    p = start("-n", "1", "--stdin", "0", "sh", "-c", f"trap 'exit 7' USR1; echo $$ > {TMP}/new; mv {TMP}/new {TMP}/pid; "
              "while :; do sleep 0.05; done", stdin=source.stdout)
    source.stdout.close()
    until((TMP / "pid").exists, "the rank")

    def waits():
        with open(f"/proc/{source.pid}/wchan") as f:
            return "pipe" in f.read()
    until(waits, "who writes to wait")
    p.send_signal(signal.SIGUSR1)
    same((p.wait(LIMIT_S), source.wait(LIMIT_S)), (7, -signal.SIGPIPE))


def test_elastic_job_hands_it_to_its_first_process():
    program = "sum=$(md5sum | cut -c-32); echo $KOLO_ELASTIC_WORKER $sum"
    status, out, _ = run("--min", "2", "-H", "localhost:2", "--stdin", "0", "--back-off", "0.1", "sh", "-c", program, data=BIG)
    same((status, out), sums(2, (0,))[:2])


def test_job_in_the_background_leaves_the_terminal_alone():
    """At a terminal of which it does not have the foreground it would be stopped."""
    master, slave = pty.openpty()
    os.write(master, b"typed\n")

    def leader():  # the terminal's foreground is its group, and kolorun has another
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    shell = "import os, subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], preexec_fn=os.setpgrp).returncode)"
    p = subprocess.Popen([sys.executable, "-c", shell, KOLORUN, "-n", "1", "--stdin", "0", "echo", "up"], stdin=slave,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=leader)
    out, err = p.communicate(timeout=LIMIT_S)
    os.close(master)
    os.close(slave)
    same((p.returncode, out, err), (0, b"[0] up\n", b""))


def test_who_is_named_must_be_there():
    for args, want in ((("-n", "2", "--stdin", "2", "true"), "--stdin 2: the ranks are 0 to 1"),
                       (("-n", "2", "--stdin", "first", "true"), '--stdin "first": expected the number of a rank, all or none'),
                       (("-n", "2", "--stdin", "-1", "true"), '--stdin "-1": expected'),
                       (("--min", "1", "-H", "localhost", "--stdin", "all", "true"), "--stdin all cannot be used with --min")):
        status, out, err = run(*args)
        same((status, out), (2, []))
        matches(want, err)


run_case(globals(), sys.argv[2])
