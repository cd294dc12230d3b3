#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolo-top with jobs of real processes that are stuck. usage: kolo_top_test.py KOLO-TOP CASE | none --list
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import same, until

KOLO_TOP = sys.argv[1]
RANKS = 3


def top(*args, status=0):
    p = subprocess.run([KOLO_TOP, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert p.returncode == status, (args, p)
    return p.stdout.decode() + p.stderr.decode()


class Job:
    """Ranks that get stuck in the way `how`; none waits for kolo's own detection of mismatches."""

    def __init__(self, how, **env):
        self.folder = tempfile.TemporaryDirectory()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
        clean.update(KOLO_MISMATCH_MS="86400000", **env)
        self.ranks = [subprocess.Popen([os.environ["STUCK_RANK"], str(r), str(RANKS), self.folder.name + "/id", how],
                                       env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for r in range(RANKS)]
        self.pids = [p.pid for p in self.ranks]

    def __enter__(self):
        for p in self.ranks:
            assert p.stdout.readline() == b"ready\n", "a rank did not start"
        return self

    def __exit__(self, *_):
        for p in self.ranks:
            p.kill()
            p.wait()
            p.stdout.close()
        self.folder.cleanup()

    def only(self):
        return [a for pid in self.pids for a in ("--pid", str(pid))]

    def verdict(self, *parts):
        """Waits until the verdict has them all, as a person would who looks again."""
        for _ in range(100):
            # the processes that are gone have no records
            out = top("--dump", *self.only())
            told = out[out.index("verdict:"):]
            if all(re.search(p, told) for p in parts):
                return out
            time.sleep(0.05)
        raise AssertionError(f"{parts} not all in {out}")


def case_who_waits_for_which_tensor_is_told():
    """A parameter server that is stopped, and the worker that waits for its weights."""
    with tempfile.TemporaryDirectory() as folder:
        secret, pid = folder + "/secret", os.getpid()
        with open(secret, "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(32))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
        address = [f"127.{1 + pid % 200}.{pid // 200 % 250}.{n}:7413" for n in (1, 2)]
        roles = [subprocess.Popen([os.environ["PARAM_SERVER"], "--job", job, "--task", "0", "--ps", address[0], "--workers",
                                   address[1], "--secret", secret, "--out", folder, "--epochs", "100000"], env=clean,
                                  stdin=subprocess.DEVNULL) for job in ("ps", "worker")]
        try:
            part = folder + "/param-server-part-0"
            for _ in range(600):
                if os.path.exists(part):  # a step is done
                    break
                time.sleep(0.05)
            roles[0].send_signal(signal.SIGSTOP)
            wanted = r"task worker:0 waits [0-9.]+ s for edge weights of ps:0, (which has sent|step \d+, which has sent) steps up to \d+"
            for _ in range(200):
                out = subprocess.run([KOLO_TOP, "--once", "--pid", str(roles[0].pid), "--pid", str(roles[1].pid)],
                                     stdin=subprocess.DEVNULL, capture_output=True, timeout=30).stdout.decode()
                if re.search(wanted, out):
                    break
                time.sleep(0.05)
            assert re.search(wanted, out), out
            assert re.search(wanted, top("--dump", "--pid", str(roles[0].pid), "--pid", str(roles[1].pid)))
        finally:
            for role in roles:
                role.kill()
                role.wait()


def case_a_stopped_rank_is_named_with_what_it_did_not_enter():
    with Job("stop") as job:
        out = job.verdict(rf"rank 1 \(process {job.pids[1]} on .*\) did not enter operation 20 \(all_reduce 4 float32 sum\)",
                          "its process is stopped", r"last call is complete: operation 19 \(barrier\)",
                          r"ranks 0, 2 have been in operation 20", "Complete on all ranks: all up to operation 19")
        assert "rank 1, process %d on" % job.pids[1] in out and ", stopped" in out, out
        time.sleep(1.2)
        once = top("--once", *job.only())
        assert re.search(r"stuck for \d+\.\d s: rank 1 .* did not enter operation 20", once), once
        os.kill(job.pids[1], signal.SIGCONT)
        job.verdict("Nobody waits", "Complete on all ranks: all up to operation 20")


def missed_tensor(how, of_set, waiting):
    with Job(how) as job:
        sentence = (rf"rank 1 has not submitted tensor layer/bias{of_set}, for which {waiting} waited [0-9.]+ s; "
                    rf"rank 1 is process {job.pids[1]} on host ")
        out = job.verdict(sentence)
        assert "Nobody waits" not in out[out.index(" has not submitted"):].split("job ")[0], out
        for _ in range(100):
            once = top("--once", *job.only())
            if re.search(rf"stuck for [0-9.]+ s: {sentence}", once):
                break
            time.sleep(0.05)
        assert re.search(rf"stuck for [0-9.]+ s: {sentence}", once), once
        # on another host than rank 0's
        there = top("--once", "--pid", str(job.pids[2]))
        return once, there


def case_who_lacks_a_named_tensor_is_told():
    once, there = missed_tensor("tensor", "", "2 ranks have")
    assert "tensor layer/kernel\n" in once, once  # the last one
    assert re.search(r"rank 2 waits for tensor layer/bias; kolo-top on the host of rank 0 tells who", there), there


def case_who_lacks_a_cached_tensor_is_told():
    missed_tensor("cached", "", "2 ranks have")


def case_who_lacks_a_tensor_of_a_process_set_is_told():
    missed_tensor("set", " of process set 1", "1 rank has")


def case_a_rank_that_is_missed_while_connections_are_made_is_named():
    with Job("connect") as job:
        job.verdict(rf"rank 1 \(process {job.pids[1]} on .*\) did not enter operation 20",
                    r"ranks 0, 2 have been in operation 20 \(all_reduce 1000 float32 sum\) for [0-9.]+ m?s")
        time.sleep(1.2)
        once = top("--once", *job.only())
        assert re.search(r"stuck for \d+\.\d s: rank 1 .* did not enter operation 20", once), once


class Terminal:
    """kolo-top in a terminal of this size."""

    def __init__(self, rows, columns, *args):
        self.fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.p = subprocess.Popen([KOLO_TOP, *args], stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)

    def page(self, part, limit_s=20):
        """The first whole page with this part, as lines."""
        seen, end = "", time.monotonic() + limit_s
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                seen += os.read(self.fd, 65536).decode()
            for text in seen.split("\033[H\033[2J")[1:]:
                if "q: quit" in text or "only jobs with: " in text or "any key: back" in text:
                    if part in text:
                        return text.replace("\r", "").split("\n")
        raise AssertionError(f"no page with {part}: {seen}")

    def echoes(self):
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def end(self):
        self.type("q")
        status = self.p.wait(timeout=20)
        os.close(self.fd)
        return status


def case_the_screen_fits_and_keys_work():
    with Job("stop") as stuck, Job("run") as other:
        top = Terminal(5, 60, *stuck.only(), *other.only())
        try:
            lines = top.page("stuck for")
            assert len(lines) == 5 and all(len(line) <= 60 for line in lines), lines
            first = [line for line in lines if re.match("[0-9a-f]{16} ", line)][0]
            assert lines.index(first) == 1 and "stuck for" in lines[2], lines  # what is stuck comes first
            wide = Terminal(40, 200, *stuck.only(), *other.only())
            try:
                lines = wide.page("stuck for")
                assert re.search(r"LAST OPERATION", lines[0]) and re.search(r"PROGRAM +PID +USER", lines[0]), lines
                assert re.search(rf" stuck_rank +{stuck.pids[0]} ", lines[1]), lines
                wide.type("s")
                wide.page("order (ops/s)")
                wide.type("/no such job\n")
                lines = wide.page("only some: no such job")
                assert not [line for line in lines if re.match("[0-9a-f]{16} ", line)], lines
                wide.type("/stuck_rank\n")
                lines = wide.page("only some: stuck_rank")
                assert len([line for line in lines if re.match("[0-9a-f]{16} ", line)]) == 2, lines
            finally:
                assert wide.end() == 0
        finally:
            assert top.end() == 0


def case_the_terminal_is_as_it_was_when_the_screen_stops_or_ends():
    with Job("stop") as stuck:
        for sig in (signal.SIGQUIT, signal.SIGHUP):
            top = Terminal(24, 80, *stuck.only())
            top.page("stuck for")
            same(top.echoes(), False)
            top.p.send_signal(signal.SIGTSTP)
            until(lambda: pathlib.Path(f"/proc/{top.p.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "it to stop")
            same(top.echoes(), True)
            top.p.send_signal(signal.SIGCONT)
            until(lambda: not top.echoes(), "it to go on")
            top.p.send_signal(sig)
            same((top.p.wait(timeout=20), top.echoes()), (0, True))
            os.close(top.fd)


def ending(sentence):
    """Its last words; the time in them is that of the moment when it was made."""
    return re.sub(r"[\d.]+ (ms|s|min) ago", "before", sentence).split()[-4:]


def case_verdicts_are_wrapped_and_a_key_explains():
    with Job("stop") as job:
        job.verdict("its process is stopped")
        t = Terminal(40, 60, *job.only())
        try:
            page = t.page("stuck for")
            at = next(i for i, line in enumerate(page) if "stuck for" in line)
            sentence = page[at].strip()
            for line in page[at + 1:]:
                if not line.startswith(" " * 8):
                    break
                sentence += " " + line.strip()
            once = top("--once", *job.only())
            words = re.search(r"did not enter operation 20 .*", once)[0]
            assert ending(sentence) == ending(words), (sentence, once)
            assert all(len(line) <= 60 for line in page), page
            t.type("?")
            assert any(line.startswith("q ") for line in t.page("any key: back"))
            t.type("x")
            t.page("?: help")
        finally:
            t.end()


def case_short_calls_have_a_time_too():
    with Job("run") as job:
        job.verdict("Nobody waits|has been in|waits")
        for _ in range(100):
            out = top("--dump", "--last", "200", *job.only())
            if re.search(r"all_reduce 4 float32 sum +done +about [0-9.]+ [mu]s a call", out):
                break
            time.sleep(0.05)
        assert re.search(r"all_reduce 4 float32 sum +done +about [0-9.]+ [mu]s a call", out), out
        ops = json.loads(top("--dump", "--json", "--last", "200", *job.only()))[0]["ranks"][0]["operations"]
        assert any(0 < o.get("about_ns", 0) < 10**9 for o in ops), ops


def case_a_rank_in_another_collective_is_named():
    with Job("other") as job:
        for _ in range(100):
            jobs = json.loads(top("--dump", "--json", "--last", "1", *job.only()))
            last = [r["operations"][-1]["what"].split()[0] for r in jobs[0]["ranks"]]
            if last == ["broadcast", "reduce", "broadcast"]:
                break
            time.sleep(0.05)
        job.verdict(r"ranks 0, 2 have been in operation 20 \(broadcast 4 float32 root 1\)",
                    r"rank 1 \(.*\) entered reduce 4 float32 sum root 1 as operation 20, the others broadcast 4 float32 root 1")


def case_a_killed_rank_is_missed():
    with Job("kill") as job:
        job.verdict(r"rank 1 .* did not enter operation 20")
        job.ranks[1].kill()
        job.ranks[1].wait()
        out = job.verdict(rf"rank 1 \(process {job.pids[1]} on .*\) is gone")
        assert "records of 2" in out, out


def case_a_circle_of_receives_is_told():
    with Job("recv") as job:
        job.verdict(r"3 ranks wait for each other in a circle: 0 -> 1 -> 2 -> 0",
                    r"rank 2 \(.*\) has waited in recv 4 float32 from rank 0")


def case_who_waits_for_which_tag_from_whom_is_told():
    with Job("tag") as job:
        waits = (r"rank 0 waits [0-9.]+ s for a message with tag 7 from rank 1: no such message has come; "
                 r"what came and nobody asked for: tag 8 of rank 1 \(16 bytes\)\.",
                 r"rank 1 waits [0-9.]+ s for a message with tag 9 from any rank: no such message has come",
                 r"rank 2 waits [0-9.]+ s for a message with tag 7 from rank 1: no such message has come")
        job.verdict(*waits)
        for _ in range(100):
            once = top("--once", *job.only())
            if re.search(r"stuck for \d+\.\d s: rank \d waits", once):
                break
            time.sleep(0.05)
        # the lines are wrapped
        flat = " ".join(once.split())
        assert all(re.search(w[:w.index(":")], flat) for w in waits), once


def case_who_waits_for_whose_signals_is_told():
    with Job("signal") as job:
        job.verdict(r"rank 0 \(.*\) has waited in wait for 2 signals from rank 1.*; rank 1 \(.*\): its last call is complete: "
                    r"signal to rank 2", r"rank 2 \(.*\) has waited in wait for 2 signals from rank 1")


def case_every_kind_of_operation_has_a_name_in_json():
    with Job("signal") as job:
        job.verdict("rank 1")
        kinds = {o["kind"] for j in json.loads(top("--dump", "--json", *job.only())) for r in j["ranks"] for o in r["operations"]}
        assert {"signal", "wait"} <= kinds <= {"collective", "send", "recv", "put", "signal", "wait"}, kinds


def record_of(pid, slots=1):
    """The record of a rank's first communicator, as a memory file of one slot."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:kolo-recorder"):
            with open(f"/proc/{pid}/fd/{fd}", "rb") as f:
                data = bytearray(f.read(4096 + 4096 + 1024 * 64))
            struct.pack_into("<I", data, 12, slots)
            return bytes(data)
    raise AssertionError("no record")


def holder(code, *args, before=()):
    """A process of a stranger, which runs this Python and keeps what it has opened."""
    p = subprocess.Popen([*before, sys.executable, "-c", "import os, sys, fcntl, time\n" + code + "\nprint('ready', flush=True)\n"
                          "time.sleep(100)", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    return p


def needs_root():
    if os.geteuid() != 0:
        print("skipped: only root can be shown another user's files")
        sys.exit(77)


def case_what_is_no_memory_file_is_left_alone():
    """Files on a file system that is nowhere to be seen look like memory files; they can be cut, or be pipes."""
    needs_root()
    with Job("stop") as job, tempfile.TemporaryDirectory() as folder:
        job.verdict("its process is stopped")
        with open(folder + "/record", "wb") as f:
            f.write(record_of(job.pids[0]))
        for kind in ("plain", "bound", "pipe"): # a file in memory that is not sealed, one on a disk, which cannot be
            os.mkdir(f"{folder}/{kind}")
            mount = f"mount --bind {folder}/{kind} {folder}/{kind}" if kind == "bound" else f"mount -t tmpfs none {folder}/{kind}"
            name = f"{folder}/{kind}/memfd:kolo-recorder (deleted)"
            made = f"open({name!r}, 'wb').write(open({folder + '/record'!r}, 'rb').read())" if kind != "pipe" else f"os.mkfifo({name!r})"
            p = holder(f"os.system('{mount}')\n{made}\nfd = os.open({name!r}, os.O_RDONLY | os.O_NONBLOCK)\n"
                       f"os.system('umount -l {folder}/{kind}')", before=("unshare", "-m"))
            try:
                links = [os.readlink(f"/proc/{p.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{p.pid}/fd")]
                assert "/memfd:kolo-recorder (deleted)" in links, links
                assert "no job" in top("--dump", "--pid", str(p.pid), status=1)
            finally:
                p.kill()
                p.wait()
                p.stdout.close()


def case_another_user_does_not_take_the_place_of_a_rank():
    needs_root()
    with Job("stop") as job, tempfile.TemporaryDirectory() as folder:
        job.verdict("its process is stopped")
        with open(folder + "/record", "wb") as f:
            f.write(record_of(job.pids[0]))
        os.chmod(folder, 0o755)
        p = holder(f"data = open({folder + '/record'!r}, 'rb').read()\nos.setuid(12345)\n"
                   "fd = os.memfd_create('kolo-recorder', os.MFD_ALLOW_SEALING)\nos.write(fd, data)\n"
                   "fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)")
        try:
            jobs = json.loads(top("--dump", "--json", "--pid", str(p.pid), *job.only()))
            assert sorted([r["pid"] for r in j["ranks"]] for j in jobs) == sorted([[p.pid], job.pids]), jobs
            assert "users" in top("--dump", "--save", folder + "/saved", "--pid", str(p.pid), *job.only(), status=1)
        finally:
            p.kill()
            p.wait()
            p.stdout.close()


def case_a_user_with_too_many_records_does_not_fill_memory():
    """6,000 of them, of which only the heads have memory."""
    with Job("stop") as job, tempfile.TemporaryDirectory() as folder:
        job.verdict("its process is stopped")
        with open(folder + "/record", "wb") as f:
            f.write(record_of(job.pids[0], 1000))
        p = holder(f"data = open({folder + '/record'!r}, 'rb').read()\nfor i in range(6):\n"
                   " fd = os.memfd_create('kolo-recorder', os.MFD_ALLOW_SEALING)\n os.ftruncate(fd, 4096 + 1000 * (4096 + 65536))\n"
                   " os.pwrite(fd, data[:4096], 0)\n"
                   " for s in range(1000): os.pwrite(fd, data[4096:8192], 4096 + s * 69632)\n"
                   " fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)")
        try:
            assert "left out" in top("--once", "--pid", str(p.pid)), "all 6,000 are looked at"
        finally:
            p.kill()
            p.wait()
            p.stdout.close()


def case_a_call_that_waits_in_a_queue_is_told():
    with Job("queue") as job:
        job.verdict(r"rank 1 \(.*\) did not enter operation 20 .*: it has queued all_reduce 4 float32 sum on a stream")


def case_calls_of_all_ranks_that_are_no_collectives_are_told():
    for how, words in (("deregister", "window_deregister"), ("register", "window_register"), ("split", "comm_split"),
                       ("finalize", "comm_finalize")):
        with Job(how) as job:
            job.verdict(rf"ranks 0, 2 have been in operation 2\d \({words}\) for", rf"rank 1 \(.*\) did not enter operation 2\d \({words}\)")


def case_a_job_that_runs_is_listed_with_its_rate():
    with Job("run") as job:
        once = top("--once", *job.only())
        row = re.search(r"([0-9a-f]{16})  stuck +3 +3 +([\d.]+)([ KMG]) .*all_reduce 4 float32 sum", once)
        assert row and float(row[2]) > 0 and "stuck for" not in once, once
        assert row[1] in top("--dump", "--job", row[1])
        assert "no job" in top("--dump", "--job", "1", status=1)


def case_dumps_of_several_hosts_are_joined():
    with Job("stop") as job, tempfile.TemporaryDirectory() as folder:
        job.verdict("its process is stopped")
        files = [f"{folder}/{i}" for i in range(2)]
        top("--dump", "--save", files[0], "--pid", str(job.pids[0]), "--pid", str(job.pids[2]))
        top("--dump", "--save", files[1], "--pid", str(job.pids[1]))
        joined = top("--join", *files)
        assert "records of 3" in joined and "rank 1" in joined and "its process is stopped" in joined, joined
        half = top("--join", files[0])
        assert re.search(r"rank 1 .*is on another host", half) and "ranks that are known" in half, half
        with open(files[1], "r+b") as f:
            f.truncate(50000)
        assert "cut off" in top("--join", *files, status=1)
        with open(files[1], "wb") as f:
            f.write(b"something else" * 1000)
        assert "not a record of Kolo" in top("--join", *files, status=1)


def case_without_a_recorder_there_is_nothing_to_see():
    with Job("run", KOLO_RECORDER="0") as job:
        assert "no job" in top("--dump", *job.only(), status=1)


def case_wrong_arguments_are_named():
    for args, why in ((["--json"], "--json goes with"), (["--dump", "--once"], "exclude"), (["--join"], "--join needs"),
                      (["x"], "unexpected argument: x (files go with --join)"), (["--join"], "--join needs files"),
                      (["--job", "x"], "hexadecimal"), (["--last", "0"], "--last"),
                      (["--dump", "--last", "2000"], "--last"), (["--pid", "-3"], "--pid"), (["--what"], "try"),
                      (["--last", "3"], "--last goes with --dump and --join")):
        assert why in top(*args, status=2), args
    assert "--pid 2000000000: there is no such process" in top("--once", "--pid", "2000000000", status=1)
    assert "usage:" in top("--help") and re.fullmatch(r"kolo-top \d+\.\d+\.\d+\n", top("--version"))


CASES = {n[len("case_"):]: f for n, f in list(globals().items()) if n.startswith("case_")}
if sys.argv[2] == "--list":
    print("\n".join(CASES))
else:
    CASES[sys.argv[2]]()
