#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# The driver of elastic jobs, by processes that speak its words (src/elastic/state.h) and do nothing else: so they can
# end between two given words. usage: elastic_words_test.py KOLORUN CASE; the processes of kolorun are this file, too:
# elastic_words_test.py --worker CASE FOLDER
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import alive, matches, run_case, same, until

KOLORUN = sys.argv[1]
TMP = None
LIMIT_S = 40
children = []


# ---- a process of the job ----

class Link:
    def __init__(self):
        self.worker = int(os.environ["KOLO_ELASTIC_WORKER"])
        self.dir = pathlib.Path(os.environ["KOLO_ID_FILE"]).parent
        self.said = self.heard = 0
        self.say(f"hello {self.worker + int(os.environ.get('STARTED_BEFORE', 0))}")

    def say(self, text):
        first = self.dir / f".from.{self.worker}"
        first.write_text(text)
        first.rename(self.dir / f"from.{self.worker}.{self.said}")
        self.said += 1

    def hear(self):
        path = self.dir / f"to.{self.worker}.{self.heard}"
        until(path.exists, "a word of kolorun", LIMIT_S)
        self.heard += 1
        return path.read_text().split()

    def come_in(self):
        """Until it is a rank; returns which."""
        word, plan, _, *rest = self.hear()
        if word == "found":
            rank, nranks = 0, 1 + int(rest[0])
            if nranks > 1:
                self.say(f"id {plan} 1 {rest[0]} {'0' * 256}")
        else:
            same(word, "join")
            rank, nranks = int(rest[0]), int(rest[1])
        self.say(f"ready {plan} {rank} {nranks} 0")
        return rank


def worker_founder_that_ends_before_its_id(link, tmp):
    if link.worker == 0:
        same(link.hear()[0], "found")
        sys.exit(3)
    print("came in as", link.come_in())
    link.say("done")


def worker_last_rank_that_ends_before_its_id(link, tmp):
    same(link.come_in(), 0) # the newcomer is never called
    (tmp / "hosts").write_text("localhost:2\n")
    same(link.hear()[0], "add")
    sys.exit(3)


def worker_number_of_seven_digits(link, tmp):
    print("came in as", link.come_in())
    link.say("done")


def worker_end_without_a_spin(link, tmp):
    link.come_in()
    link.say("done")
    (tmp / f"pid.{link.worker}").write_text(f"{os.getpid()}\n")
    if link.worker == 0:
        until((tmp / "end").exists, "the test", LIMIT_S)


def worker_host_that_is_lost_after_done(link, tmp):
    link.come_in()
    link.say("done")
    link.say("nothing") # kolorun says on stderr that it has heard it
    (tmp / f"pid.{link.worker}").write_text(f"{os.getpid()}\n")
    signal.pause()


# ---- the tests ----

def start(case, *args):
    p = subprocess.Popen([KOLORUN, "--grace", "1", "--timeout", "15", "--back-off", "1000", *args, sys.executable, __file__,
                          "--worker", case, str(TMP)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(TMP)})
    children.append(p)
    return p


def finish(p):
    out, err = p.communicate(timeout=LIMIT_S)
    print(out + err)
    return p.returncode, out, err


def pid_of(worker):
    path = TMP / f"pid.{worker}"
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"process {worker} to be done")
    return int(path.read_text())


def test_founder_that_ends_before_its_id():
    status, out, _ = finish(start("founder_that_ends_before_its_id", "--min", "2", "-H", "localhost:3"))
    same((status, sorted(out.splitlines())), (0, ["[1] came in as 0", "[2] came in as 1"]))


def test_number_of_seven_digits():
    """A job that has started processes for months."""
    os.environ["STARTED_BEFORE"] = "1234567"
    status, out, err = finish(start("number_of_seven_digits", "--min", "2", "-H", "localhost:2"))
    same((status, sorted(out.splitlines())), (0, ["[0] came in as 0", "[1] came in as 1"]))
    assert "means nothing" not in err


def test_last_rank_that_ends_before_its_id():
    (TMP / "hosts").write_text("localhost:1\n")
    status, _, err = finish(start("last_rank_that_ends_before_its_id", "--min", "1", "--discover", f"cat {TMP}/hosts",
                                  "--discover-every", "0.05"))
    same(status, 3)
    matches("no process is left that has the state of the job; the first failure: process 0 .*status 3", err)


def cpu_s(pid):
    ticks = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def test_end_without_a_spin():
    """While the last process takes its time, the discovery script, running or due, does not keep kolorun awake."""
    for script in ("echo localhost:2", f"echo localhost:2; [ ! -e {TMP}/pid.1 ] || sleep 0.1"):
        for f in TMP.glob("*"):
            f.unlink()
        p = start("end_without_a_spin", "--min", "2", "--discover", script, "--discover-every", "0.02")
        first = pid_of(1)
        until(lambda: not alive(first), "one process to end")
        pid_of(0)
        before = cpu_s(p.pid)
        try:
            p.wait(1) # it does not end
        except subprocess.TimeoutExpired:
            pass
        used = cpu_s(p.pid) - before
        (TMP / "end").touch()
        same(finish(p)[0], 0)
        assert used < 0.05, f"kolorun used {used} s of 1 s while it waited"


def test_host_that_is_lost_after_done():
    p = start("host_that_is_lost_after_done", "--min", "2", "-H", "localhost:2")
    agent = int(pathlib.Path(f"/proc/{pid_of(0)}/stat").read_text().rsplit(")", 1)[1].split()[1])
    pid_of(1)
    heard = [p.stderr.readline() for _ in range(3)]
    same(len([line for line in heard if "means nothing" in line]), 2)
    os.kill(agent, signal.SIGKILL)
    status, _, err = finish(p)
    same(status, 1)
    matches(r"process [01] \(pid \d+ on localhost\) had reported that all is done, and was lost: its agent was killed", err)


def shell(program, *args):
    """The processes of this job are shells and say no word."""
    p = subprocess.Popen([KOLORUN, "--grace", "1", "--timeout", "30", *args, "sh", "-c", program], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(TMP)})
    children.append(p)
    return p


def test_limit_of_open_files_is_raised_for_kolorun_alone():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard)) # four hosts take 16
    p = shell(f"ulimit -Sn; until [ -e {TMP}/limit ]; do sleep 0.02; done", "--min", "4", "--discover",
              f"ulimit -Sn > {TMP}/new; mv {TMP}/new {TMP}/limit; echo localhost:1,127.0.0.1:1,[::1]:1,{os.uname().nodename}:1")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    status, out, _ = finish(p)
    same((status, sorted(out.splitlines()), (TMP / "limit").read_text()), (0, [f"[{w}] 16" for w in range(4)], "16\n"))


def test_output_files_of_each_process():
    """Process 0 fails, 2 comes in its place; each has files of its own, as it wrote them."""
    program = (f"me=$KOLO_ELASTIC_WORKER; echo out $me; printf 'err %s' $me >&2; [ $me != 0 ] || exit 3; [ $me != 2 ] || touch {TMP}/end; "
               f"until [ -e {TMP}/end ]; do sleep 0.02; done")
    status, out, err = finish(shell(program, "--min", "2", "-H", "localhost:2", "--back-off", "0.05", "--output-dir", str(TMP / "logs")))
    same((status, sorted(out.splitlines())), (0, [f"[{w}] out {w}" for w in range(3)]))
    same({str(f.relative_to(TMP / "logs")): f.read_text() for f in (TMP / "logs").glob("*/*")},
         {f"process.{w}/{name}": text for w in range(3) for name, text in (("stdout", f"out {w}\n"), ("stderr", f"err {w}"))})


def test_output_of_an_earlier_job_stays():
    """A second job of the same name does not write over it, with and without --min."""
    for how, name in ((["--min", "1", "-H", "localhost:1"], "process.0"), (["-n", "1"], "rank.0")):
        folder = TMP / name
        for words, status, want in (("first", 0, "^$"), ("second", None, f"--output-dir: {folder}/{name}/stdout is there already, from an earlier job")):
            got, out, err = finish(shell(f"echo {words}", *how, "--output-dir", str(folder)))
            assert status is None or got == status, (got, err)
            matches(want, err)
        same((folder / name / "stdout").read_text(), "first\n")


def test_output_files_that_cannot_be_written():
    """Without the folder no job begins; without the files of one process it goes on, and says so."""
    (TMP / "logs").mkdir()
    (TMP / "logs" / "process.0").touch()
    for folder, status, want in ((TMP / "logs" / "process.0" / "x", 1, "--output-dir .*/x: Not a directory"),
                                 (TMP / "logs", 0, "--output-dir: cannot write .*process.0.*: Not a directory")):
        got, out, err = finish(shell("echo here", "--min", "1", "-H", "localhost:1", "--output-dir", str(folder)))
        same((got, out), (status, "" if status else "[0] here\n"))
        matches(want, err)


def written(pid):
    return int(re.search(r"wchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text())[1])


def waits(pid):
    """It has been writing for some time, and does not go on."""
    before = written(pid)
    time.sleep(0.3)
    return before > 0 and written(pid) == before


def test_reader_that_does_not_read_and_loses_patience():
    (TMP / "hosts").write_text("localhost:1\n")
    p = shell(f"trap '' INT TERM; echo $$ > {TMP}/pid.$KOLO_ELASTIC_WORKER; while :; do echo {'x' * 4000}; done", "--min", "1",
              "--discover", f"cat {TMP}/hosts", "--discover-every", "0.05")
    first = pid_of(0)
    until(lambda: waits(first), "the first process to wait in write()")
    (TMP / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
    second = pid_of(1)
    until(lambda: waits(second), "the process of a host that came later to wait in write()", 10)
    p.send_signal(signal.SIGINT)
    p.send_signal(signal.SIGTERM)
    same(p.wait(LIMIT_S), 128 + signal.SIGINT)
    matches("second signal 15: killing the job", p.stderr.read())


def test_hosts_that_hang_are_closed_side_by_side():
    """Ten ssh that do not end when their hosts are no longer named: the loop waits for them once, not ten times."""
    ssh = TMP / "ssh"
    ssh.write_text(f'#!/bin/sh\nfor command; do :; done\necho $$ > {TMP}/ssh.$$\nsh -c "$command"\nexec sleep 1000\n')
    ssh.chmod(0o755)
    away = 10
    (TMP / "hosts").write_text("localhost:1\n" + "".join(f"h{i}:1\n" for i in range(away)))
    p = shell(f"echo $$ > {TMP}/pid.$KOLO_ELASTIC_WORKER; until [ -e ${{KOLO_ID_FILE%/*}}/to.$KOLO_ELASTIC_WORKER.0 ]; do "
              "sleep 0.1; done", "--min", "1", "--ssh", str(ssh), "--discover", f"cat {TMP}/hosts", "--discover-every", "0.05")
    for worker in range(away + 1):
        pid_of(worker)
    all_ssh = [int(f.read_text()) for f in TMP.glob("ssh.*")]
    same(len(all_ssh), away)
    (TMP / "hosts.new").write_text("localhost:1\n")
    os.rename(TMP / "hosts.new", TMP / "hosts")
    until(lambda: not all(alive(pid) for pid in all_ssh), "the first to be gone")
    until(lambda: not any(alive(pid) for pid in all_ssh), "all to be gone", 6)
    p.send_signal(signal.SIGTERM)
    same(finish(p)[0], 128 + signal.SIGTERM)


def end_children():
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


if __name__ == "__main__":
    if KOLORUN == "--worker":
        globals()["worker_" + sys.argv[2]](Link(), pathlib.Path(sys.argv[3]))
    else:
        run_case(globals(), sys.argv[2], clean_up=end_children)
