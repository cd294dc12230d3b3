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


run_case(globals(), sys.argv[2])
