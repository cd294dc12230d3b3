#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# The job with other numbers of workers, other victims, other moments: what it says of itself, and what its files show.
# The program compares the weights of all ranks after every step and keeps the books of samples; its exit status and the
# lines that are looked for here are its verdict. usage: digits_losses_test.py PROGRAM CASE | none --list
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from processes import descendants

PROGRAM = sys.argv[1]
EPOCHS = 10
STEPS = 22 * EPOCHS
LIMIT_S = 550
TWO_GONE = ("4->2->4", "4->2->3->4", "4->3->2->4", "4->3->2->3->4", "4->3->4->3->4")
TENSORS = {f"layer{i}.{what}" for i in (1, 2, 3) for what in ("bias", "weight")} | {"loss", "used"}


def expect(condition, what):
    if not condition:
        sys.exit(what)


class Run:
    def __init__(self, folder, *options, epochs=EPOCHS, look=None, timeline=False, **env):
        command = [PROGRAM, "--epochs", str(epochs), "--least", "900", "--out", str(folder), *map(str, options)]
        command += [] if timeline else ["--no-timeline"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **env}) as monitor:
            first = ""
            while "epoch" not in first and (line := monitor.stdout.readline()):  # then all train
                first += line
            if look:
                look(descendants(monitor.pid, "--worker"))
            self.text = first + monitor.communicate(timeout=LIMIT_S)[0]
        samples = f"samples: {1352 * epochs} = {epochs} epochs of 1352, each image once in each epoch; weights of both runs: equal"
        expect(monitor.returncode == 0 and samples in self.text, f"status {monitor.returncode}:\n{self.text}")
        last = r"accuracy disturbed=(0\.\d{3}) undisturbed=(0\.\d{3}) ranks ([\d>-]+) lost_steps=0"
        found = re.fullmatch(last, self.text.splitlines()[-1])
        expect(found and abs(float(found[1]) - float(found[2])) < 0.0051, self.text)
        self.ranks = found[3]

    def expect_ranks(self, *patterns):
        expect(any(re.fullmatch(p, self.ranks) for p in patterns), f"ranks {self.ranks}, not {patterns}:\n{self.text}")


# ---- cases ----


def two_workers(folder):
    Run(folder, "--workers", 2, "--kill", "1@40").expect_ranks("2->1->2")


def three_workers_lose_rank_0(folder):
    Run(folder, "--workers", 3, "--kill", "0@40").expect_ranks("3->2->3")


def five_workers(folder):
    Run(folder, "--workers", 5, "--kill", "4@40").expect_ranks("5->4->5")


def eight_workers(folder):
    Run(folder, "--workers", 8, "--kill", "3@30", epochs=6).expect_ranks("8->7->8")


def killed_in_the_first_step(folder):
    Run(folder, "--kill", "2@0").expect_ranks("4->3->4")


def rank_0_killed_in_the_first_step(folder):
    Run(folder, "--kill", "0@0").expect_ranks("4->3->4")


def killed_in_the_last_step(folder):
    """Perhaps too late for a replacement; perhaps too late to be missed."""
    for victim in (0, 1):
        Run(folder, "--kill", f"{victim}@{STEPS - 1}").expect_ranks("4", "4->3", "4->3->4")


def killed_during_the_test(folder):
    for victim in (0, 3):
        Run(folder, "--kill", f"{victim}@{STEPS}").expect_ranks("4", "4->3", "4->3->4")


def killed_twice(folder):
    Run(folder, "--kill", "2@30", "--kill", "0@90").expect_ranks(*TWO_GONE)


def two_at_once(folder):
    Run(folder, "--kill", "0@40", "--kill", "3@40").expect_ranks(*TWO_GONE)


def the_replacement_is_killed(folder):
    run = Run(folder, "--kill", "2@20", "--kill", "4@0")
    run.expect_ranks("4->3->4", "4->3->4->3->4")
    expect("kill -9 worker 4" in run.text and "worker 5 is started as a replacement" in run.text, run.text)


def another_dies_in_the_shrink(folder):
    run = Run(folder, "--kill", "2@30", "--env", "0:KOLO_FAIL_POINT=comm.shrink.gathered:1:kill")
    run.expect_ranks(*TWO_GONE)


def another_dies_while_the_engine_is_made(folder):
    run = Run(folder, "--kill", "2@30", "--env", "1:KOLO_FAIL_POINT=comm.split.exchange:2:kill")
    run.expect_ranks(*TWO_GONE)


def the_gateway_dies_in_the_grow(folder):
    """Rank 0 makes the id by which the replacement comes in, as it did for the first ones; the next one is made by another."""
    run = Run(folder, "--kill", "2@30", "--env", "0:KOLO_FAIL_POINT=comm.grow.door:2:kill")
    run.expect_ranks("4->3->2->4", "4->3->2->3->4")


def who_is_stopped_is_not_given_up(folder):
    run = Run(folder, "--stop", "1@50", "--stop", "0@120")
    run.expect_ranks("4")
    expect(run.text.count("kill -STOP") == 2 and run.text.count("goes on") == 2, run.text)


def over_tcp(folder):
    """Nothing but TCP between the workers; one of them is stopped, then another one killed."""
    def mapped(workers):
        return any("kolo-queue" in pathlib.Path(f"/proc/{w}/maps").read_text() for w in workers)

    seen = []
    Run(folder, "--kill", "2@60", epochs=6, look=lambda workers: seen.append(mapped(workers)))
    run = Run(folder, "--stop", "1@20", "--kill", "2@60", look=lambda workers: seen.append(mapped(workers)),
              KOLO_SHM_DISABLE="1", KOLO_CMA_DISABLE="1")
    run.expect_ranks("4->3->4")
    expect(seen == [True, False], f"shared memory between workers: {seen}")


def files_tell_of_the_change(folder):
    run = Run(folder, "--kill", "1@40", timeline=True)
    run.expect_ranks("4->3->4")
    texts = [e.text for e in xml.etree.ElementTree.parse(f"{folder}/digits-loss.svg").iter() if e.text]
    for word in ("training loss (mean of the last epoch)", "steps", "seconds since the start", "throughput, samples/s", "ranks", "kill -9 worker 1", "4 -> 3 ranks", "3 -> 4 ranks"):
        expect(word in texts, f"the picture does not say {word!r}")
    events = json.loads(pathlib.Path(folder, "digits-timeline.json").read_text())
    rows = {}
    for e in events:
        if e["name"] == "thread_name":
            rows.setdefault(e["pid"], {})[e["tid"]] = e["args"]["name"]
    expect(set(rows) == set(range(5)) and all(TENSORS <= set(r.values()) for r in rows.values()), f"rows: {rows}")
    begun = {pid: [rows[pid][e["tid"]] for e in events if e["pid"] == pid and e["ph"] == "B" and e["name"] == "ALLREDUCE"]
             for pid in rows}
    for pid, least, most in ((0, STEPS, STEPS + 1), (1, 1, STEPS - 1), (4, 20, STEPS - 41)):
        for name in TENSORS:  # each step once, but for the one that was broken; who is killed has its last ones unwritten
            expect(least <= begun[pid].count(name) <= most, f"worker {pid}: {begun[pid].count(name)} times {name}")
    times = {pid: [e["ts"] for e in events if e["pid"] == pid and e["ph"] != "M"] for pid in rows}
    expect(max(times[1]) < min(times[4]), "the replacement is there before the other is gone")


CASES = [two_workers, three_workers_lose_rank_0, five_workers, eight_workers, killed_in_the_first_step,
         rank_0_killed_in_the_first_step, killed_in_the_last_step, killed_during_the_test, killed_twice, two_at_once,
         the_replacement_is_killed, another_dies_in_the_shrink, another_dies_while_the_engine_is_made,
         the_gateway_dies_in_the_grow, who_is_stopped_is_not_given_up, over_tcp, files_tell_of_the_change]


def main():
    if sys.argv[2] == "--list":
        print("\n".join(c.__name__ for c in CASES))
        return
    with tempfile.TemporaryDirectory(prefix="digits-test-") as folder:
        next(c for c in CASES if c.__name__ == sys.argv[2])(folder)


main()
