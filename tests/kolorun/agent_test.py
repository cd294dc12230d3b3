#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# The agent of kolorun alone: what it says of the files and ends of its processes. usage: agent_test.py KOLORUN CASE
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import alive, pids_of, run_case, same, until

KOLORUN = os.path.abspath(sys.argv[1])
TMP = None  # a directory of this test's own


def frame(kind, number, data=b""):
    return struct.pack("<IiI", kind, number, len(data)) + data


def frames_of(agent):
    """What it says: kind, id, data."""
    while agent.stdout.readline() != b"kolorun-agent 2\n":
        pass
    while header := agent.stdout.read(12):
        kind, number, size = struct.unpack("<IiI", header)
        yield kind, number, agent.stdout.read(size)


def test_file_of_a_process_comes_before_its_end():
    """Also when kolorun has not read for long, so that the agent reads nothing of its processes any more."""
    start_frame, file_frame, ended_frame = 1, 4, 13
    agent = subprocess.Popen([KOLORUN, "--agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def launch(number, program):
        spec = struct.pack("<III", 0, 3, 0) + b"\0" + b"".join(w.encode() + b"\0" for w in ("sh", "-c", program))
        agent.stdin.write(frame(start_frame, number, spec))
        agent.stdin.flush()
    launch(0, f"echo $$ > {TMP}/pid.0; exec head -c 4000000 /dev/zero")
    writer, = pids_of(TMP, 1)

    def written():
        return re.search(r"wchar: (\d+)", pathlib.Path(f"/proc/{writer}/io").read_text())[1]
    seen = [None, None, None]

    def waits():
        seen[:] = seen[1:] + [written()]
        time.sleep(0.1)
        return int(seen[0] or 0) > 1 << 20 and seen[0] == seen[2]
    until(waits, "the agent to be full")
    launch(1, f"f=${{KOLO_ID_FILE%/*}}; echo said > $f/.new1; mv $f/.new1 $f/said; echo $$ > {TMP}/pid.1")
    pids_of(TMP, 2)
    until(lambda: not alive(int((TMP / "pid.1").read_text())), "the process to end")
    until(lambda: not pathlib.Path(f"/proc/{(TMP / 'pid.1').read_text().strip()}").exists(), "its end to be seen")
    said = []
    for kind, number, data in frames_of(agent):
        if kind == file_frame:
            said.append(data)
        if (kind, number) == (ended_frame, 1):
            break
    agent.stdin.close()
    agent.stdout.close()
    agent.wait()
    same(said, [b"said\0said\n"])


def files_passed_on(agent, count):
    """Names and contents of the next files that an agent passes on."""
    seen = {}
    for kind, _, data in frames_of(agent):
        if kind == 4:
            name, content = data.split(b"\0", 1)
            seen[name.decode()] = content.decode()
        if len(seen) >= count:
            return seen
    return seen


def agent_with_a_directory(*command):
    before = set(TMP.glob("kolorun-??????"))
    agent = subprocess.Popen([*command, KOLORUN, "--agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**os.environ, "TMPDIR": str(TMP)})
    until(lambda: set(TMP.glob("kolorun-??????")) - before, "the directory of the job")
    return agent, (set(TMP.glob("kolorun-??????")) - before).pop()


def move_in(folder, name):
    (folder / ".made").write_text(f"{name}\n")
    (folder / ".made").rename(folder / name)


def test_files_are_passed_on_where_the_kernel_lost_count():
    """It keeps so many events, and drops what comes then."""
    most = int(pathlib.Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100000:
        print(f"skipped: {most} events are too many here")
        sys.exit(77)
    agent, folder = agent_with_a_directory()
    until(lambda: any("inotify" in os.readlink(f) for f in pathlib.Path(f"/proc/{agent.pid}/fd").iterdir()), "the watch")
    os.kill(agent.pid, signal.SIGSTOP)
    move_in(folder, "a")
    for i in range(most // 2 + 1):
        os.rename(folder / "a", folder / "b")
        os.rename(folder / "b", folder / "a")
    move_in(folder, "id")
    os.kill(agent.pid, signal.SIGCONT)
    same(files_passed_on(agent, 2), {"a": "a\n", "id": "id\n"})
    agent.stdin.close()
    agent.stdout.close()
    agent.wait()


def test_files_are_passed_on_without_inotify():
    """A user's watchers may all be taken, mostly by others than Kolo. Nothing comes back that came from elsewhere."""
    without = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh")
    if subprocess.run([*without, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("skipped: there are no user namespaces here")
        sys.exit(77)
    agent, folder = agent_with_a_directory(*without)
    agent.stdin.write(frame(4, 0, b"other\0of another host\n"))
    agent.stdin.flush()
    until(lambda: (folder / "other").exists(), "the file of another host")
    move_in(folder, "id")
    same(files_passed_on(agent, 1), {"id": "id\n"})
    agent.stdin.close()
    agent.stdout.close()
    agent.wait()


def in_numbers_of_its_own(case):
    """Runs a case where no other process takes numbers, and the next one can be chosen. True: this is that run."""
    if os.environ.get("KOLO_TEST_INSIDE"):
        return True
    space = ("unshare", "-Urpf", "--mount-proc")
    chosen = subprocess.run([*space, "sh", "-c", "echo 99 > /proc/sys/kernel/ns_last_pid"], stderr=subprocess.DEVNULL)
    if chosen.returncode != 0:
        print("skipped: numbers of processes cannot be chosen here")
        sys.exit(77)
    inside = subprocess.run([*space, sys.executable, __file__, KOLORUN, case], env={**os.environ, "KOLO_TEST_INSIDE": "1"})
    same(inside.returncode, 0)
    return False


def test_who_has_the_number_of_an_ended_process_gets_no_signal():
    """An end is kept back while another process is dying, and somebody may have the number meanwhile."""
    if not in_numbers_of_its_own("who_has_the_number_of_an_ended_process_gets_no_signal"):
        return
    dying = ("import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
             f"open('{TMP}/made', 'w'); ctypes.CDLL(None).pthread_exit(None)")  # its first thread ends, it does not
    agent = subprocess.Popen([KOLORUN, "--agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said = frames_of(agent)

    def launch(number, *words):
        spec = struct.pack("<III", 0, len(words), 0) + b"\0" + b"".join(w.encode() + b"\0" for w in words)
        agent.stdin.write(frame(1, number, spec))
        agent.stdin.flush()
        return next(struct.unpack("<i", data)[0] for kind, n, data in said if (kind, n) == (8, number))

    def send(number, sig):
        agent.stdin.write(frame(2, number, struct.pack("<i", sig)))
        agent.stdin.flush()
    first = launch(0, sys.executable, "-c", dying)
    until(lambda: pathlib.Path(f"/proc/{first}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z", "its first thread to end")
    ended = launch(1, "sh", "-c", "exit 3")
    until(lambda: not pathlib.Path(f"/proc/{ended}").exists(), "the other to be reaped")
    pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(ended - 1))
    stranger = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    same(stranger.pid, ended)
    send(1, signal.SIGKILL)
    send(0, signal.SIGKILL)
    same(sorted((n, data) for kind, n, data in (next(f for f in said if f[0] == 13) for _ in range(2))),
         [(0, struct.pack("<i", signal.SIGKILL)), (1, struct.pack("<i", 3 << 8))])
    same(stranger.communicate(b"lives", timeout=40), (b"lives", None))
    agent.stdin.close()
    agent.stdout.close()
    agent.wait()


run_case(globals(), sys.argv[2])
