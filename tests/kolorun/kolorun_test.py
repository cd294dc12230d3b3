#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolorun as its users meet it: real processes, `sh -c` programs. usage: kolorun_test.py KOLORUN CASE
# The cases named job_* run examples/all_reduce (environment EXAMPLE), which finds its place by kolo/job.h.
import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import alive, descendants, has_word, hear_signals, kill_if, matches, pids_of, run_case, same, until

KOLORUN = os.path.abspath(sys.argv[1])
TMP = None  # a directory of this test's own
LIMIT_S = 30
os.environ.pop("KOLORUN_BIND_TO", None)
hear_signals()


def start(*args, **kwargs):
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **kwargs}
    return subprocess.Popen([KOLORUN, *args], **{"env": {**os.environ, "TMPDIR": str(TMP)}, **kwargs})


def run(*args):
    """Returns exit status, stdout and stderr, and sees to it that nothing was left in the temporary directory."""
    p = start(*args)
    out, err = p.communicate(timeout=LIMIT_S)
    assert not list(TMP.glob("kolorun-*")), "the directory of the id was left behind"
    return p.returncode, out.decode(), err.decode()


def test_lines_are_tagged_whole_and_in_order():
    status, out, _ = run("-n", "8", "sh", "-c", "i=0; while [ $i -lt 500 ]; do echo $KOLO_RANK:$i; i=$((i+1)); done")
    same(status, 0)
    seen = collections.defaultdict(list)
    for line in out.splitlines():
        m = re.fullmatch(r"\[(\d+)\] (\d+):(\d+)", line)
        assert m and m[1] == m[2], f"not one rank's line: {line!r}"
        seen[m[1]].append(int(m[3]))
    same(len(seen), 8)
    for numbers in seen.values():
        same(numbers, list(range(500)))


def test_no_tag_leaves_lines_as_they_are():
    same(run("-n", "2", "--no-tag", "echo", "x y")[1], "x y\nx y\n")


def test_no_tag_cuts_no_long_line():
    status, out, _ = run("-n", "1", "--no-tag", "sh", "-c", "head -c 2500000 /dev/zero | tr '\\0' x; echo; echo y")
    same((status, out == "x" * 2500000 + "\ny\n"), (0, True))


def test_stderr_stays_apart():
    same(run("-n", "1", "sh", "-c", "echo out; echo err >&2")[1:], ("[0] out\n", "[0] err\n"))


def test_no_tag_adds_no_line_end():
    same(run("-n", "1", "--no-tag", "printf", "a\\nb")[1], "a\nb")


def test_unfinished_last_line_is_shown():
    same(run("-n", "1", "printf", "a\\nb")[1], "[0] a\n[0] b\n")


def test_empty_lines_are_kept():
    same(run("-n", "1", "printf", "\\n\\na\\n\\n")[1], "[0] \n[0] \n[0] a\n[0] \n")


def test_huge_lines_are_cut_and_not_mixed():
    size = 3 * (1 << 20) + 1000
    letters = "abcd"
    program = f"head -c {size} /dev/zero | tr '\\0' $(echo {letters} | cut -c $((KOLO_RANK+1))); echo"
    status, out, _ = run("-n", "4", "sh", "-c", program)
    same(status, 0)
    sums = collections.Counter()
    for line in out.splitlines():
        rank, text = int(line[1]), line[4:]
        assert line[:4] == f"[{rank}] " and set(text) == {letters[rank]}, "a line holds more than its rank's bytes"
        sums[rank] += len(text)
    same(dict(sums), {r: size for r in range(4)})


def test_line_of_exactly_the_limit_is_one_line():
    out = run("-n", "1", "sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; echo; echo y")[1]
    same([len(line) for line in out.splitlines()], [1048576 + 4, 5])


def test_first_failure_is_reported_and_the_rest_ended():
    before = time.monotonic()
    status, out, err = run("-n", "4", "sh", "-c", 'if [ $KOLO_RANK = 2 ]; then echo last words >&2; exit 7; fi; sleep 60')
    same(status, 7)
    lines = err.splitlines()
    same(lines[0], "[2] last words")
    matches(r"^kolorun: rank 2 \(pid \d+\) exited with status 7; ending the other 3$", lines[1])
    same(len(lines), 2)
    assert time.monotonic() - before < 4, "the rest did not end on SIGTERM"


def test_success_of_a_rank_ends_nobody():
    status, out, _ = run("-n", "2", "sh", "-c", "[ $KOLO_RANK = 0 ] || { sleep 0.3; echo done; }")
    same((status, out), (0, "[1] done\n"))


def test_death_by_signal_is_named():
    status, _, err = run("-n", "2", "sh", "-c", "[ $KOLO_RANK = 1 ] && kill -SEGV $$; sleep 60")
    same(status, 128 + signal.SIGSEGV)
    matches(r"rank 1 \(pid \d+\) was killed by signal 11 \(Segmentation fault", err)


def test_rank_that_ignores_sigterm_is_killed_after_the_grace():
    before = time.monotonic()
    ready = TMP / "ready"
    status, _, err = run("-n", "2", "--grace", "0.5", "sh", "-c",
                         f"if [ $KOLO_RANK = 0 ]; then trap '' TERM; touch {ready}; while :; do sleep 1; done; fi; "
                         f"while [ ! -e {ready} ]; do sleep 0.01; done; exit 3")
    same(status, 3)
    matches(r"killing what did not end within 0.5 s: rank 0", err)
    assert 0.5 <= time.monotonic() - before < 10


def signalled(sig, times=1):
    """Starts two ranks that say which signal they got, sends one to kolorun, returns its results."""
    ready = TMP
    program = (f"trap 'echo got {sig.name}; exit 0' {sig.name[3:]}; echo $$ > {ready}/pid.$KOLO_RANK; "
               "while :; do sleep 0.05; done")
    p = start("-n", "2", "sh", "-c", program)
    pids_of(ready, 2)
    p.send_signal(sig)
    out, err = p.communicate(timeout=LIMIT_S)
    # The shells say on stderr that their sleep was ended; kolorun has nothing to say.
    return p.returncode, sorted(out.decode().splitlines()), "kolorun" in err.decode()


def test_sigint_is_passed_on():
    same(signalled(signal.SIGINT), (0, ["[0] got SIGINT", "[1] got SIGINT"], False))


def test_sigterm_is_passed_on():
    same(signalled(signal.SIGTERM), (0, ["[0] got SIGTERM", "[1] got SIGTERM"], False))


def test_sighup_is_passed_on():
    same(signalled(signal.SIGHUP), (0, ["[0] got SIGHUP", "[1] got SIGHUP"], False))


def test_sigusr1_is_passed_on_to_ranks_only():
    # The helper has no handler: it would die of the signal.
    program = (f"sleep 60 & helper=$!; trap 'kill -0 $helper && echo helper lives; exit 0' USR1; "
               f"echo $$ > {TMP}/pid.$KOLO_RANK; while :; do sleep 0.05; done")
    p = start("-n", "2", "sh", "-c", program)
    pids_of(TMP, 2)
    p.send_signal(signal.SIGUSR1)
    out, _ = p.communicate(timeout=LIMIT_S)
    same((p.returncode, sorted(out.decode().splitlines())), (0, ["[0] helper lives", "[1] helper lives"]))


def test_second_sigint_kills():
    p = start("-n", "2", "sh", "-c", f"trap '' INT; echo $$ > {TMP}/pid.$KOLO_RANK; while :; do sleep 1; done")
    pids = pids_of(TMP, 2)
    p.send_signal(signal.SIGINT)
    # The second is sent only when the first was taken, or both may arrive as one.
    until(lambda: not int(re.search(r"^ShdPnd:\s*(\w+)", pathlib.Path(f"/proc/{p.pid}/status").read_text(), re.M)[1], 16),
          "the first signal to be taken")
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=LIMIT_S)
    same(p.returncode, 128 + signal.SIGINT)
    matches("killing the job", err.decode())
    assert not any(alive(pid) for pid in pids)


def test_kill_9_of_kolorun_leaves_nothing():
    program = (f"sleep 300 & echo $! > {TMP}/pid.helper.$KOLO_RANK; trap '' TERM HUP INT; "
               f"echo $$ > {TMP}/pid.$KOLO_RANK; while :; do sleep 1; done")
    p = start("-n", "3", "sh", "-c", program)
    pids = pids_of(TMP, 6)
    family = descendants(p.pid)
    same(sorted(name for _, name in family if "kolorun" in name), ["kolorun", "kolorun-guard"])  # the agent, its guard
    assert list(TMP.glob("kolorun-*")), "no directory for the id was made"
    p.kill()
    p.wait()
    pids += [pid for pid, _ in family]
    until(lambda: not any(alive(pid) for pid in pids), f"{pids} to be gone")
    until(lambda: not list(TMP.glob("kolorun-*")), "the directory of the id to be gone")


def test_kill_9_of_the_guard_ends_the_job():
    p = start("-n", "2", "sh", "-c", f"echo $$ > {TMP}/pid.$KOLO_RANK; exec sleep 300")
    ranks = pids_of(TMP, 2)
    guard, = [pid for pid, name in descendants(p.pid) if name == "kolorun-guard"]
    os.kill(guard, signal.SIGKILL)
    _, err = p.communicate(timeout=LIMIT_S)
    same(p.returncode, 1)
    matches("guard of the job was killed", err.decode())
    assert not any(alive(pid) for pid in ranks) and not list(TMP.glob("kolorun-*"))


def test_kill_9_of_the_agent_ends_the_job():
    p = start("-n", "2", "sh", "-c", f"sleep 300 & echo $! > {TMP}/pid.helper.$KOLO_RANK; "
              f"echo $$ > {TMP}/pid.$KOLO_RANK; exec sleep 300")
    pids = pids_of(TMP, 4)
    agent, = [pid for pid, name in descendants(p.pid) if name == "kolorun"]
    os.kill(agent, signal.SIGKILL)
    _, err = p.communicate(timeout=LIMIT_S)
    same(p.returncode, 1)
    matches("host localhost is lost with ranks 0, 1: its agent was killed by signal 9", err.decode())
    until(lambda: not any(alive(pid) for pid in pids), f"{pids} to be gone")
    until(lambda: not list(TMP.glob("kolorun-*")), "the directory to be gone")


def test_kill_9_of_agent_and_guard_leaves_nothing():
    p = start("-n", "3", "sh", "-c", f"sleep 300 & echo $! > {TMP}/pid.helper.$KOLO_RANK; "
              f"echo $$ > {TMP}/pid.$KOLO_RANK; exec sleep 300")
    pids = pids_of(TMP, 6)
    those = [pid for pid, name in descendants(p.pid) if name in ("kolorun", "kolorun-guard")]
    same(len(those), 2)
    for sig in (signal.SIGSTOP, signal.SIGKILL):  # neither notices the other's end
        for pid in those:
            os.kill(pid, sig)
    p.communicate(timeout=LIMIT_S)
    same([pid for pid in pids if alive(pid)], [])


def test_directory_left_when_agent_and_guard_die_together_is_removed_by_the_next():
    p = start("-n", "1", "sh", "-c", f"echo $$ > {TMP}/pid.$KOLO_RANK; exec sleep 300")
    pids = pids_of(TMP, 1)
    those = [pid for pid, name in descendants(p.pid) if name in ("kolorun", "kolorun-guard")]
    same(len(those), 2)
    left, = TMP.glob("kolorun-*")
    same(start("-n", "1", "true").wait(LIMIT_S), 0)  # the lock is held: not this one
    assert (left / ".lock").exists()
    for pid in those:  # neither notices the other's end
        os.kill(pid, signal.SIGSTOP)
    for pid in those:
        os.kill(pid, signal.SIGKILL)
    p.communicate(timeout=LIMIT_S)
    for pid in pids:
        kill_if(lambda p: has_word(p, "sleep"), pid)
    assert left.exists()
    os.utime(left / ".lock", (0, 0))  # as if it were old
    run("-n", "1", "true")


def test_words_of_ssh_do_not_lead_the_terminal():
    ssh = TMP / "ssh"
    ssh.write_text("#!/bin/sh\nprintf 'no\\033]0;title\\007 \\302\\2330m route\\n' >&2\nexit 255\n")
    ssh.chmod(0o755)
    p = start("-H", "elsewhere", "-n", "1", "--ssh", str(ssh), "true")
    _, err = p.communicate(timeout=LIMIT_S)
    assert b"no?]0;title? ??0m route" in err, err
    assert b"\033" not in err and b"\302\233" not in err, err


def test_login_script_that_writes_without_end():
    """The time limit holds, and what nobody reads is not kept."""
    ssh = TMP / "ssh"
    ssh.write_text("#!/bin/sh\nexec yes 'some words of a login script' >&2\n")
    ssh.chmod(0o755)
    reader, writer = os.pipe()
    p = start("-H", "elsewhere", "--start-timeout", "1", "--ssh", str(ssh), "true", stderr=writer)
    os.close(writer)
    peak, begun = 0, time.monotonic()
    while p.poll() is None and time.monotonic() < begun + 1.5:
        found = re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{p.pid}/status").read_text())
        peak = max(peak, int(found[1])) if found else peak
        time.sleep(0.05)
    with os.fdopen(reader, "rb") as said:
        words = said.read()
    assert b"kolorun there did not start within 1 s" in words, words[-300:]
    assert len(words) < 8 << 20, len(words)
    assert 0 < peak < 24 << 10, f"{peak} KB"
    same(p.wait(), 1)


def test_sigterm_and_sighup_kill_after_the_grace():
    for sig in (signal.SIGTERM, signal.SIGHUP):
        for old in TMP.glob("pid.*"):
            old.unlink()
        p = start("-n", "2", "--grace", "0.3", "sh", "-c",
                  f"trap '' TERM HUP; echo $$ > {TMP}/pid.$KOLO_RANK; while :; do sleep 1; done")
        pids = pids_of(TMP, 2)
        p.send_signal(sig)
        _, err = p.communicate(timeout=LIMIT_S)
        same(p.returncode, 128 + sig)
        matches(r"killing what did not end within 0.3 s: ranks 0, 1", err.decode())
        assert not any(alive(pid) for pid in pids)


DAEMON = "setsid sh -c 'echo $$ > {0}/pid.$KOLO_RANK; exec sleep 300' & "


def test_children_that_left_the_group_are_ended():
    status, _, err = run("-n", "2", "sh", "-c", DAEMON.format(TMP) + f"until [ -s {TMP}/pid.$KOLO_RANK ]; do sleep 0.01; done")
    same((status, err), (0, ""))
    pids = pids_of(TMP, 2)
    assert not any(alive(pid) for pid in pids), "daemons of the ranks live on"


def test_children_that_left_the_group_end_with_kolorun_and_with_its_agent():
    for victim in ("kolorun", "agent"):
        for old in TMP.glob("pid.*"):
            old.unlink()
        p = start("-n", "2", "sh", "-c", DAEMON.format(TMP) + "sleep 300")
        pids = pids_of(TMP, 2)
        agent, = [pid for pid, name in descendants(p.pid) if name == "kolorun"]
        os.kill(p.pid if victim == "kolorun" else agent, signal.SIGKILL)
        p.communicate(timeout=LIMIT_S)
        until(lambda: not any(alive(pid) for pid in pids), f"daemons to end with the {victim}")


def test_children_left_by_ranks_are_ended():
    before = time.monotonic()
    status, _, _ = run("-n", "2", "sh", "-c", f"sleep 300 & echo $! > {TMP}/pid.$KOLO_RANK")
    same(status, 0)
    pids = pids_of(TMP, 2)
    until(lambda: not any(alive(pid) for pid in pids), "left children to be gone")
    assert time.monotonic() - before < 10

def test_time_limit():
    status, _, err = run("-n", "2", "--timeout", "0.3", "sleep", "60")
    same(status, 124)
    matches(r"time limit of 0.3 s passed; ending ranks 0, 1", err)
    matches(r"kolo-top --dump.*-x KOLO_OP_TIMEOUT_MS=150", err)


def test_environment_of_ranks():
    program = 'echo "$KOLO_RANK $KOLO_NRANKS $KOLO_LOCAL_RANK $KOLO_LOCAL_SIZE $A|$B"; dirname $KOLO_ID_FILE'
    status, out, _ = run("-n", "2", "-x", "A=1 2", "-x", "B=", "sh", "-c", program)
    lines = out.splitlines()
    assert "[0] 0 2 0 2 1 2|" in lines and "[1] 1 2 1 2 1 2|" in lines, out
    same(len({line[4:] for line in lines if "/" in line}), 1)  # all ranks use one directory
    out = run("-n", "1", "sh", "-c", "stat -c %a $(dirname $KOLO_ID_FILE); ls $(dirname $KOLO_ID_FILE)")[1]
    same(out, "[0] 700\n")


def test_ranks_inherit_no_descriptors():
    out = run("-n", "2", "ls", "/proc/self/fd")[1]  # 3 is the directory that ls reads
    same(sorted(out.splitlines()), [f"[{r}] {fd}" for r in range(2) for fd in range(4)])


def test_input_of_ranks_is_empty():
    status, out, _ = run("-n", "2", "sh", "-c", "cat; echo end")
    same((status, sorted(out.splitlines())), (0, ["[0] end", "[1] end"]))


def test_more_ranks_than_cores():
    status, out, _ = run("-n", "100", "sh", "-c", "echo $KOLO_RANK")
    same(status, 0)
    same(sorted(out.splitlines()), sorted(f"[{i}] {i}" for i in range(100)))


ALLOWED = "echo $KOLO_LOCAL_RANK $(grep Cpus_allowed_list /proc/self/status) $KOLORUN_BIND_TO"


def with_hwloc():
    out = subprocess.run([KOLORUN, "--check-build"], capture_output=True, text=True, timeout=LIMIT_S).stdout
    if "[X] hwloc" not in out:
        print("kolorun was built without hwloc")
        sys.exit(77)


def allowed(*args):
    """The cores that each rank may use."""
    status, out, err = run(*args, "sh", "-c", ALLOWED)
    same((status, err), (0, ""))
    return [re.fullmatch(r"\[\d+\] \d+ Cpus_allowed_list: (\S+) *", line)[1] for line in sorted(out.splitlines())]


def test_bind_gives_each_rank_cores_of_its_own():
    with_hwloc()
    everything = pathlib.Path("/proc/self/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
    cores = len(os.sched_getaffinity(0))
    same(allowed("-n", "1"), [everything])
    same(allowed("-n", str(cores + 1)), [everything] * (cores + 1))
    same(allowed("-n", "2", "--bind-to", "none"), [everything] * 2)
    p = subprocess.run([KOLORUN, "-n", "2", "sh", "-c", ALLOWED], capture_output=True, text=True, timeout=LIMIT_S,
                       env={**os.environ, "KOLORUN_BIND_TO": "none"})
    same(sorted(p.stdout.splitlines()), [f"[{r}] {r} Cpus_allowed_list: {everything}" for r in range(2)])
    if len({open(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list").read() for c in os.sched_getaffinity(0)}) > 1:
        first, second = allowed("-n", "2")
        assert first != second and everything not in (first, second), (first, second, everything)


def test_bind_is_reported():
    """On machines that hwloc makes up: 8 cores of two threads on two nodes."""
    with_hwloc()
    def report(*args):
        p = start(*args, "--report-bindings", "true", env={**os.environ, "TMPDIR": str(TMP), "HWLOC_SYNTHETIC": "numa:2 core:4 pu:2"})
        _, err = p.communicate(timeout=LIMIT_S)
        same(p.returncode, 0)
        return [re.fullmatch(r"\[(\d+)\] kolorun: rank \1 on \S+ is (.*)", line)[2] for line in sorted(err.decode().splitlines())]
    same(report("-n", "2"), ["bound to cores 0-3 (cpus 0-7)", "bound to cores 4-7 (cpus 8-15)"])
    same(report("-n", "3"), ["bound to cores 0-1 (cpus 0-3)", "bound to cores 2-3 (cpus 4-7)", "bound to cores 5-6 (cpus 10-13)"])
    same(report("-n", "8")[7], "bound to core 7 (cpus 14-15)")
    same(report("-n", "9"), ["not bound: 9 ranks of this host may use 8 cores"] * 9)
    same(report("-n", "3", "--bind-to", "numa"), ["bound to NUMA node 0 (cpus 0-7)"] * 2 + ["bound to NUMA node 1 (cpus 8-15)"])
    same(report("-n", "2", "--bind-to", "none"), ["not bound: --bind-to none"] * 2)


def test_bind_respects_the_cores_that_kolorun_may_use():
    with_hwloc()
    core = str(min(os.sched_getaffinity(0)))
    p = subprocess.run(["taskset", "-c", core, KOLORUN, "-n", "2", "--bind-to", "core", "sh", "-c", ALLOWED],
                       capture_output=True, text=True, timeout=LIMIT_S)
    same(sorted(p.stdout.splitlines()), [f"[{r}] {r} Cpus_allowed_list: {core}" for r in range(2)])
    matches(r"^\[0\] kolorun: rank 0 on \S+ is not bound: 2 ranks of this host may use 1 core$", p.stderr)
    same(len(p.stderr.splitlines()), 1)  # who asked for it hears once


def test_job_whose_ranks_share_cores_is_warned_once():
    core = str(min(os.sched_getaffinity(0)))
    p = subprocess.run(["taskset", "-c", core, KOLORUN, "-n", "3", os.environ["EXAMPLE"]], capture_output=True, text=True,
                       timeout=LIMIT_S)
    same(p.returncode, 0)
    warned, = p.stderr.splitlines()
    matches(r"^\[0\] kolo warn \S+ \[comm\] 3 ranks share 1 core of host ", warned)


def test_version_and_help_of_every_tool():
    folder = pathlib.Path(KOLORUN).parent
    for tool in ("kolorun", "kolo-perf", "kolo-info", "kolo-top", "kolo-trace", "kolo-tune", "../examples/digits/digits", "../examples/elastic/elastic"):
        name = pathlib.Path(tool).name
        if name == "digits" and not (folder / tool).exists():
            continue  # a build without protobuf-c
        for option, want in (("--version", rf"{name} \d+\.\d+\.\d+\n"), ("--help", r"usage:(.|\n)*")):
            p = subprocess.run([folder / tool, option], capture_output=True, text=True, timeout=LIMIT_S)
            same((p.returncode, p.stderr), (0, ""))
            assert re.fullmatch(want, p.stdout), (tool, option, p.stdout)
        p = subprocess.run([folder / tool, "--no-such-option"], capture_output=True, text=True, timeout=LIMIT_S)
        same((p.returncode, p.stdout), (2, ""))
        assert f"try '{name} --help'" in p.stderr and len(p.stderr.splitlines()) <= 2, (tool, p.stderr)


def test_reader_that_goes_away_ends_the_job():
    p = start("-n", "2", "sh", "-c", "while :; do echo y; done")
    p.stdout.read(10)
    p.stdout.close()
    err = p.stderr.read()
    same(p.wait(LIMIT_S), 128 + signal.SIGPIPE)
    matches("nobody reads the output", err.decode())


def test_output_without_room_is_named():
    with open("/dev/full", "w") as full:
        p = subprocess.run([KOLORUN, "-n", "2", "echo", "y"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    same(p.returncode, 1)
    matches("the output cannot be written: No space left on device", p.stderr)
    for program, want in (("echo y", (1, "the output cannot be written: Bad file descriptor")), ("true", (0, "^$"))):  # closed
        p = subprocess.run(f"{KOLORUN} -n 2 {program} >&-", shell=True, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
        assert p.returncode == want[0] and re.search(want[1], p.stderr), p


def test_folder_that_cannot_be_made_is_named():
    p = start("-n", "1", "true", env={**os.environ, "TMPDIR": str(TMP / "none")})
    err = p.communicate(timeout=LIMIT_S)[1].decode()
    assert p.returncode != 0
    matches(r"cannot make the job's directory .*/none/kolorun-\w+ \(TMPDIR chooses where\): No such file", err)


def test_reader_that_does_not_read_does_not_block_signals():
    p = start("-n", "2", "sh", "-c", f"echo $$ > {TMP}/pid.$KOLO_RANK; exec yes")
    pids = pids_of(TMP, 2)
    # Full: the ranks wait in write() because nobody takes their output from kolorun.
    until(lambda: all(pathlib.Path(f"/proc/{pid}/wchan").read_text() != "0" and
                      "pipe" in pathlib.Path(f"/proc/{pid}/wchan").read_text() for pid in pids)
          if os.access(f"/proc/{pids[0]}/wchan", os.R_OK) else True, "the pipes to be full")
    p.send_signal(signal.SIGTERM)
    until(lambda: not any(alive(pid) for pid in pids), "the ranks to end")
    p.send_signal(signal.SIGTERM)  # nobody will ever read the rest
    p.wait(LIMIT_S)
    p.stdout.close()
    p.stderr.close()


def example(**env):
    """Runs the example without kolorun, under these KOLO_ variables only."""
    rest = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
    p = subprocess.run([os.environ["EXAMPLE"]], env={**rest, **env}, capture_output=True, text=True, timeout=LIMIT_S)
    return p.returncode, p.stdout, p.stderr


def test_job_ranks_find_each_other():
    status, out, err = run("-n", "4", os.environ["EXAMPLE"])
    same((status, sorted(out.splitlines())), (0, [f"[{r}] rank {r} of 4: 10" for r in range(4)]))


def test_job_names_the_parameter_that_differs():
    program = 'KOLO_ALGO=$([ $KOLO_RANK = 1 ] && echo tree || echo ring) exec "$EXAMPLE"'
    status, out, err = run("-n", "3", "--no-tag", "sh", "-c", program)
    same((status, out), (1, ""))
    matches("rank 1 has KOLO_ALGO=tree, rank 0 has KOLO_ALGO=ring", err)


def test_job_id_is_gone_once_all_have_read_it():
    program = '"$EXAMPLE" > /dev/null && ls -I id.ended $(dirname $KOLO_ID_FILE)'  # which says who has ended before
    same(run("-n", "3", "sh", "-c", program)[:2], (0, ""))


def test_job_rank_that_ends_without_a_call_is_told():
    # Long before the limit of init, also rank 0, whose id the others wait for. What a shell leaves behind may still come.
    for rank in (1, 0):
        err = run("-n", "3", "sh", "-c", f'[ $KOLO_RANK = {rank} ] || exec "$EXAMPLE"')[2]
        matches(f"the process of rank {rank} has ended .with status 0. and had not called", err)
    left = 'if [ $KOLO_RANK = 1 ]; then (sleep 1; exec "$EXAMPLE") & else exec "$EXAMPLE"; fi'
    status, out, _ = run("-n", "3", "sh", "-c", left)
    same((status, "rank 0 of 3: 6" in out), (0, True))


def test_job_without_launcher_is_one_rank():
    same(example(), (0, "rank 0 of 1: 1\n", ""))


def test_job_refuses_variables_that_make_no_sense():
    for env, want in (({"KOLO_RANK": "0"}, "KOLO_RANK is set but KOLO_NRANKS is not"),
                      ({"KOLO_RANK": "2", "KOLO_NRANKS": "2"}, "rank 2 of 2 .* out of range"),
                      ({"KOLO_RANK": "x", "KOLO_NRANKS": "2"}, 'KOLO_RANK="x" is not a whole number'),
                      ({"KOLO_RANK": "0", "KOLO_NRANKS": "99999999999"}, 'KOLO_NRANKS="99999999999" is not a whole number'),
                      ({"KOLO_RANK": "0", "KOLO_NRANKS": "2"}, "knows no way to the others")):
        status, out, err = example(**env)
        same((status, out), (1, ""))
        matches(want, err)


run_case(globals(), sys.argv[2])
