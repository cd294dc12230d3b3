#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Elastic jobs as their users meet them: kolorun --min, a real training program (trainer.c, which checks its own sums),
# hosts that come and go, processes that die. The first eight cases are the scenarios of Horovod's elastic tests; the
# second host is 127.0.0.1 beside localhost. usage: elastic_test.py KOLORUN TRAINER CASE
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import kill_if, matches, run_case, same

KOLORUN, TRAINER = sys.argv[1], sys.argv[2]
TMP = None  # a directory of this test's own
LIMIT_S = 100
BOTH = ["localhost:2", "127.0.0.1:2"]


def script(text):
    """A discovery script; $n is the number of epochs that are done."""
    path = TMP / "discover"
    path.write_text(f"#!/bin/sh\nn=$(cat {TMP}/log 2>/dev/null | wc -l)\n{text}\n")
    path.chmod(0o755)
    return str(path)


def schedule(*steps):
    """A script that prints the hosts of the step that the epoch has; the last step is for all later ones."""
    lines = [f'{"el" if i else ""}if [ $n -le {i} ]; then echo "{" ".join(hosts)}" | tr " " "\\n"'
             for i, hosts in enumerate(steps[:-1])]
    last = f'echo "{" ".join(steps[-1])}" | tr " " "\\n"'
    return script("\n".join([*lines, "else", last, "fi"]) if lines else last)


def start(*args):
    env = {**os.environ, "TMPDIR": str(TMP), "KOLO_STATE_CHANGE_MS": "30000"}
    return subprocess.Popen([KOLORUN, "--grace", "2", "--discover-every", "0.05", *args], env=env,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(p):
    """Returns exit status, output and the epochs that were written; nothing may be left behind."""
    try:
        out, err = p.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        p.kill()
        out, err = p.communicate()
        raise AssertionError(f"kolorun did not end within {LIMIT_S} s:\n{out}{err}")
    sys.stdout.write(out + err)
    log = TMP / "log"
    epochs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for e in epochs:
        print(e)
        for pid in e["pids"]:
            assert not pathlib.Path(f"/proc/{pid}").exists(), f"process {pid} was left behind"
    assert not list(TMP.glob("kolorun-*")), "a directory of the job was left behind"
    return p.returncode, out + err, epochs


def run(*args):
    return finish(start(*args))


def trainer(**options):
    words = [TRAINER, "--log", str(TMP / "log")]
    for name, value in options.items():
        words += ["--" + name, str(value)]
    return words


def sizes(epochs):
    return [e["size"] for e in epochs]


def whole(epochs, count):
    """Each epoch once, in order, with the right sum (the trainer checks the rest)."""
    same([e["epoch"] for e in epochs], list(range(count)))


def who(epochs):
    return [e["workers"] for e in epochs]


# ---- the eight ----

def test_hosts_added_and_removed():
    for slots in (2, 1):
        a, b = f"localhost:{slots}", f"127.0.0.1:{slots}"
        (TMP / "log").unlink(missing_ok=True)
        status, text, epochs = run("--min", str(slots), "--max", str(2 * slots), "--discover",
                                   schedule([a], [a, b], [b]),
                                   *trainer(sizes=f"{slots},{2 * slots},{slots}"))
        same(status, 0)
        whole(epochs, 3)
        first, more = list(range(slots)), list(range(slots, 2 * slots))
        same(who(epochs), [first, first + more, more])
        same(epochs[0]["pids"] + epochs[2]["pids"], epochs[1]["pids"])  # nobody started again


def test_single_rank_failure():
    for how in ("exit", "kill"):
        (TMP / "log").unlink(missing_ok=True)
        status, text, epochs = run("--min", "2", "--max", "4", "--back-off", "1000", "--discover", schedule(BOTH),
                                   *trainer(die="1.0:0", how=how))
        same(status, 0)
        whole(epochs, 3)
        # The other process of that host goes on; the order stays.
        same(who(epochs), [[0, 1, 2, 3], [1, 2, 3], [1, 2, 3]])
        same(epochs[0]["pids"][1:], epochs[2]["pids"])
        matches(r"process 0 \(pid \d+ on localhost, rank 0\) " +
                ("exited with status 1" if how == "exit" else r"was killed by signal 9"), text)


def test_fault_tolerance_without_scaling():
    for how in ("exit", "kill"):
        (TMP / "log").unlink(missing_ok=True)
        status, text, epochs = run("--min", "2", "--back-off", "1000", "-H", ",".join(BOTH),
                                   *trainer(die="1.3:2", how=how, work="engine"))
        same(status, 0)
        whole(epochs, 3)
        same(who(epochs), [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3]])


def test_all_ranks_failure():
    status, text, epochs = run("--min", "2", "--max", "4", "--back-off", "0.1", "--discover", schedule(BOTH),
                               *trainer(die="1.0:0,1,2,3", how="kill"))
    same(status, 128 + signal.SIGKILL)
    whole(epochs, 1)
    matches(r"no process is left that has the state of the job; the first failure: process \d .*signal 9", text)


def test_all_hosts_resting():
    """Horovod: all hosts blacklisted ends the job. Here the other processes of the hosts go on."""
    status, text, epochs = run("--min", "2", "--max", "4", "--back-off", "1000", "--discover", schedule(BOTH),
                               *trainer(die="1.0:0,2", how="kill"))
    same(status, 0)
    whole(epochs, 3)
    same(who(epochs), [[0, 1, 2, 3], [1, 3], [1, 3]])
    # With too few left, and both hosts resting, it ends after the time-out.
    (TMP / "log").unlink()
    status, text, epochs = run("--min", "3", "--max", "4", "--back-off", "1000", "--elastic-timeout", "4",
                               "--discover", schedule(BOTH), *trainer(die="1.0:0,2", how="kill"))
    same(status, 128 + signal.SIGKILL)
    whole(epochs, 1)
    matches(r"2 processes were ready \(0 more started\) for 4 s, --min is 3; the first failure: process \d", text)


def test_min_hosts_timeout():
    status, text, epochs = run("--min", "4", "--max", "4", "--back-off", "1000", "--elastic-timeout", "4",
                               "--discover", schedule(BOTH), *trainer(die="1.0:0"))
    same(status, 1)
    whole(epochs, 1)
    matches(r"3 processes were ready .* --min is 4; the first failure: process 0", text)


def test_reset_limit():
    a, b = BOTH
    steps = schedule([a], [a, b], [b])
    status, text, epochs = run("--min", "2", "--max", "4", "--reset-limit", "1", "--discover", steps,
                               *trainer(sizes="2,4,2"))
    same(status, 1)
    same(sizes(epochs)[:2], [2, 4])
    matches(r"the ranks have changed 2 times, --reset-limit is 1", text)
    (TMP / "log").unlink()
    status, text, epochs = run("--min", "2", "--max", "4", "--reset-limit", "2", "--discover", steps,
                               *trainer(sizes="2,4,2"))
    same(status, 0)
    whole(epochs, 3)


def test_hosts_come_back_after_a_growing_rest():
    status, text, epochs = run("--min", "2", "--max", "4", "--back-off", "0.3:60", "--discover", schedule(BOTH),
                               *trainer(epochs=5, sizes="4,0,4,0,4", die="1.0:3/3.0:4", how="kill"))
    same(status, 0)
    whole(epochs, 5)
    # Whoever comes in place of another stands behind all that are there.
    same(who(epochs), [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 4], [0, 1, 2], [0, 1, 2, 5]])
    rests = [float(x) for x in re.findall(r"host 127.0.0.1 rests for ([\d.]+) s", text)]
    same(len(rests), 2)
    assert rests[1] > 1.5 * rests[0], f"the second rest is not longer: {rests}"


# ---- more of that kind ----

def test_few_wait_for_more():
    """Below --min the ranks wait, keep the state, and go on when another has come."""
    status, text, epochs = run("--min", "4", "--max", "4", "--back-off", "0.5", "--discover", schedule(BOTH),
                               *trainer(die="1.5:1", how="kill", work="engine"))
    same(status, 0)
    whole(epochs, 3)
    same(who(epochs), [[0, 1, 2, 3], [0, 2, 3, 4], [0, 2, 3, 4]])


def test_newcomer_of_another_build():
    """It is told and ends; the job, and who came with it, go on."""
    a, b = "localhost:1", "127.0.0.1:2"
    status, text, epochs = run("--min", "1", "--max", "3", "--back-off", "1000", "--discover", schedule([a], [a, b]),
                               *trainer(epochs=2, sizes="1,2", other=1))
    same(status, 0)
    whole(epochs, 2)
    same(who(epochs), [[0], [0, 2]])
    matches(r"rank 1 has registered other buffers", text)


def test_max_holds():
    status, text, epochs = run("--min", "1", "--max", "3", "--discover", schedule(BOTH), *trainer())
    same(status, 0)
    whole(epochs, 3)
    same(sizes(epochs), [3, 3, 3])


def test_slots_of_a_host_change():
    status, text, epochs = run("--min", "1", "--discover", schedule(["localhost:1"], ["localhost:3"], ["localhost:2"]),
                               *trainer(sizes="1,3,2"))
    same(status, 0)
    whole(epochs, 3)
    same(who(epochs), [[0], [0, 1, 2], [0, 1]])


def test_deaths_and_changes_at_any_moment():
    """Hosts come and go while processes are killed; who kills looks neither at steps nor at changes."""
    steps = script('case $((n % 3)) in 0) echo localhost:2;; 1) echo localhost:2; echo 127.0.0.1:2;; '
                   '*) echo localhost:1; echo 127.0.0.1:1;; esac')
    p = start("--min", "1", "--back-off", "0.05:0.2", "--discover", steps,
              *trainer(epochs=9, steps=40, slow=2, work="engine"))
    kills = 0
    end = time.monotonic() + LIMIT_S
    while p.poll() is None and kills < 4 and time.monotonic() < end:
        time.sleep(0.15)
        ranks = sorted(int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*") if is_trainer(p.name))
        if len(ranks) > 1:
            kill_if(is_trainer, ranks[kills % len(ranks)])
            kills += 1
    status, text, epochs = finish(p)
    if status != 0:  # all that had the state may have been among the killed
        matches("no process is left that has the state", text)
    else:
        done = [e["epoch"] for e in epochs]
        assert done == sorted(set(done)) and len(done) >= 9 - kills, done


def is_trainer(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[0] == TRAINER.encode() and str(TMP / "log").encode() in words
    except OSError:
        return False


# ---- bad input ----

def answers_later(nonsense, warning, limit="10"):
    """The script gives nonsense at first and again after the first epoch; the job begins, and goes on."""
    mark = TMP / "tries"
    status, text, epochs = run("--min", "2", "--discover-limit", limit, "--discover", script(
        f'if [ $n = 1 ] || [ ! -e {mark} ]; then touch {mark}; {nonsense}; else echo localhost:2; fi'),
        *trainer(steps=40, slow=10))
    same(status, 0)
    whole(epochs, 3)
    same(who(epochs), [[0, 1]] * 3)
    matches(r"warning: the discovery script " + warning + r"(.*[^ ])?; there is no answer yet", text)
    matches(r"warning: the discovery script " + warning + r".*; the last good answer stays", text)
    said = [line for line in text.splitlines() if "the discovery script" in line]
    assert all(a != b for a, b in zip(said, said[1:])), "the same warning comes again and again"


def test_script_that_fails():
    answers_later("echo out of order >&2; exit 3", "ended with status 3: out of order")


def test_script_that_hangs():
    answers_later("sleep 1000", "did not end within 0.3 s", "0.3")


def test_script_that_leaves_a_child_with_its_output():
    status, text, epochs = run("--min", "2", "--discover", script("sleep 1000 & echo localhost:2"), *trainer())
    same(status, 0)
    whole(epochs, 3)


def test_script_that_prints_nonsense():
    answers_later("echo '??? !'", "printed what is no list of hosts")


def test_script_that_prints_negative_slots():
    answers_later("echo localhost:-2", "printed what is no list of hosts: line 1: \"localhost:-2\" has no number of slots")


def test_script_that_prints_an_option():
    answers_later("echo -oProxyCommand=false:2", "printed what is no list of hosts")


def test_script_that_prints_without_end():
    answers_later("exec yes localhost:1", "printed more than")


def test_script_that_prints_zeros():
    answers_later("head -c 100 /dev/zero", "printed bytes that are no text")


def test_script_that_is_not_there():
    status, text, epochs = run("--min", "2", "--elastic-timeout", "0.5", "--discover", str(TMP / "nothing"),
                               *trainer())
    same(status, 1)
    matches("the discovery script ended with status 127", text)
    matches(r"0 processes were ready \(0 more started\) for 0.5 s, --min is 2", text)


def test_host_named_twice_has_the_sum():
    status, text, epochs = run("--min", "1", "--discover", script("echo localhost:1; echo localhost:2"), *trainer())
    same(status, 0)
    same(who(epochs), [[0, 1, 2]] * 3)


def test_program_that_cannot_start():
    status, text, _ = run("--min", "2", "-H", "localhost:2", "/no/such/program")
    same(status, 127)
    matches("every process has failed; the first: process [01] .* cannot start /no/such/program", text)


def test_program_that_is_not_elastic():
    status, text, _ = run("--min", "2", "-H", "localhost:2", "sh", "-c", "echo here")
    same(status, 0)
    status, text, _ = run("--min", "2", "-H", "localhost:2", "--elastic-timeout", "0.3", "sleep", "1000")
    same(status, 1)
    matches(r"0 processes were ready \(2 more started\)", text)


def test_launcher_that_keeps_its_ranks():
    status, _, epochs = run("-n", "3", *trainer())
    same(status, 0)
    whole(epochs, 3)
    same([len(e["pids"]) for e in epochs], [3] * 3)


def test_options_that_do_not_fit():
    for args, want in ((["--max", "2", "x"], "--min is missing"),
                       (["--min", "3", "--max", "2", "-H", "a:3", "x"], "--max is less"),
                       (["--min", "1", "x"], "--discover SCRIPT is missing, or, .* -H localhost:N"),
                       (["--min", "1", "-n", "2", "--discover", "y", "x"], "-n cannot be used with --min"),
                       (["--min", "1", "-H", "a:1", "--discover", "y", "x"], "--discover cannot be used with -H"),
                       (["--min", "1", "-H", "a:1"], "the program is missing"),
                       (["--min", "0", "x"], '--min "0": expected a whole number'),
                       (["--min", "1", "--back-off", "5:1", "x"], '--back-off "5:1": expected'),
                       (["--min", "1", "--reset-limit", "-1", "x"], '--reset-limit "-1": expected')):
        status, text, _ = run(*args)
        same(status, 2)
        matches(want, text)


# ---- the user ends it ----

def test_signal_ends_all():
    p = start("--min", "2", "--discover", schedule(BOTH), *trainer(epochs=1000, steps=1000, slow=1))
    end = time.monotonic() + LIMIT_S
    while not (TMP / "log").exists() and time.monotonic() < end:
        time.sleep(0.05)
    p.send_signal(signal.SIGTERM)
    status, text, _ = finish(p)
    same(status, 128 + signal.SIGTERM)


def test_killed_driver_leaves_nothing():
    p = start("--min", "2", "--discover", schedule(BOTH), *trainer(epochs=1000, steps=100, slow=1))
    log, end = TMP / "log", time.monotonic() + LIMIT_S
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < end:
        time.sleep(0.05)
    pids = json.loads(log.read_text().splitlines()[0])["pids"]
    p.kill()
    p.communicate()
    while any(is_trainer(pid) for pid in pids) or list(TMP.glob("kolorun-*")):
        assert time.monotonic() < end, "something is left behind"
        time.sleep(0.05)


run_case(globals(), sys.argv[3])
