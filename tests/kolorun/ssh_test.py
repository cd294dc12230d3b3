#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolorun over a real sshd. Started by tests/net/hosts -1 on the first of three "hosts" (network namespaces); starts an
# sshd on the other two, with keys of its own in a temporary directory. usage: ssh_test.py KOLORUN CASE
# All hosts share the machine's process numbers, so a test sees what is left where.
import json
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import alive, matches, run_case, same, until

KOLORUN = os.path.abspath(sys.argv[1])
TMP = None
LIMIT_S = 40
PORT = 2222
NETNS = os.environ.get("HOSTS_PIDS", "").split()
HOSTS = [f"10.77.0.{h + 1}" for h in range(len(NETNS))]
children = []


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def answers(address):
    try:
        with socket.create_connection((address, PORT), 1) as s:
            return s.recv(4) == b"SSH-"
    except OSError:
        return False


def start_sshd(host, extra=""):
    """Runs until this test ends. sshd insists on /run/sshd, which a boot makes where it is a service."""
    config = TMP / f"sshd_config.{host}"
    config.write_text(f"Port {PORT}\nListenAddress {HOSTS[host]}\nHostKey {TMP}/host_key\nPidFile none\nUsePAM no\n"
                      f"AuthorizedKeysFile {TMP}/user_key.pub\nStrictModes no\nPermitRootLogin prohibit-password\n"
                      f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 2:90:3\n"
                      f"SetEnv HOME={TMP}\n{extra}")  # what the user's shell starts with may print what it likes
    os.makedirs("/run/sshd", 0o755, exist_ok=True)
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    log = open(TMP / f"sshd.{host}.log", "wb")
    children.append(subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "nsenter", "-t", NETNS[host], "-n", sshd, "-D",
                                      "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    until(lambda: answers(HOSTS[host]) or children[-1].poll() is not None, f"sshd of host {host}")
    assert answers(HOSTS[host]), (TMP / f"sshd.{host}.log").read_text()


def set_up(extra=""):
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(TMP / name)], check=True)
    public = (TMP / "host_key.pub").read_text()
    (TMP / "known_hosts").write_text("".join(f"[{h}]:{PORT} {public}" for h in HOSTS))
    for host in (1, 2):
        start_sshd(host, extra)


def ssh():
    return (f"ssh -F none -p {PORT} -i {TMP}/user_key -o IdentitiesOnly=yes -o UserKnownHostsFile={TMP}/known_hosts "
            "-o StrictHostKeyChecking=yes")


def start(*args, hosts=None, stdin=subprocess.DEVNULL, **env):
    hosts = hosts or f"localhost:2,{HOSTS[1]}:2,{HOSTS[2]}:1"
    p = subprocess.Popen([KOLORUN, "-H", hosts, "--ssh", ssh(), *args], stdin=stdin,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TMP, env={**os.environ, **env})
    children.append(p)
    return p


def run(*args, **kwargs):
    p = start(*args, **kwargs)
    out, err = p.communicate(timeout=LIMIT_S)
    return p.returncode, out.decode(), err.decode()


def pids_of(count):
    def texts():
        return [t for t in (f.read_text() for f in TMP.glob("pid.*")) if t.endswith("\n")]
    until(lambda: len(texts()) == count, f"{count} processes to start")
    return [int(t) for t in texts()]


def gone(pids, limit_s=LIMIT_S):
    until(lambda: not any(alive(pid) for pid in pids), f"{pids} to be gone", limit_s)


# A rank with a child, neither of which ends by itself or by what a closed connection sends.
STAYS = (f"trap '' TERM HUP INT PIPE; (trap '' TERM HUP INT PIPE; while :; do sleep 1; done) & echo $! > %s/pid.h$KOLO_RANK; "
         "echo $$ > %s/pid.$KOLO_RANK; while :; do sleep 1; done")


def stays():
    return STAYS % (TMP, TMP)


def test_ranks_find_each_other():
    set_up()
    status, out, err = run(os.environ["EXAMPLE"])
    same((status, sorted(out.splitlines()), err), (0, [f"[{r}] rank {r} of 5: 15" for r in range(5)], ""))


def test_ranks_know_their_place():
    set_up()
    program = "echo $KOLO_RANK $KOLO_NRANKS $KOLO_LOCAL_RANK $KOLO_LOCAL_SIZE $A $B $KOLO_C $(pwd)"
    status, out, err = run("-n", "4", "-x", "A=it's", "-x", "B", "sh", "-c", program, B="two words", KOLO_C="see",
                           hosts=f"{HOSTS[1]}:3,{HOSTS[2]}:3")
    rest = f"it's two words see {TMP}"
    same((status, sorted(out.splitlines()), err),
         (0, [f"[{r}] {r} 4 {r % 3} {3 if r < 3 else 1} {rest}" for r in range(4)], ""))


def test_host_file_and_output_files():
    set_up()
    (TMP / "hosts").write_text(f"# three ranks\nlocalhost slots=1\n\n{HOSTS[2]}:2  # two there\n")
    p = subprocess.run([KOLORUN, "--hostfile", str(TMP / "hosts"), "--ssh", ssh(), "--output-dir", str(TMP / "logs"), "sh",
                        "-c", "echo out $KOLO_RANK; echo err >&2"], capture_output=True, text=True, timeout=LIMIT_S, cwd=TMP)
    same((p.returncode, sorted(p.stdout.splitlines())), (0, [f"[{r}] out {r}" for r in range(3)]))
    for r in range(3):
        same((TMP / f"logs/rank.{r}/stdout").read_text(), f"out {r}\n")
        same((TMP / f"logs/rank.{r}/stderr").read_text(), "err\n")


def test_first_failure_elsewhere_is_reported_and_the_rest_ended():
    set_up()
    status, _, err = run("sh", "-c", "if [ $KOLO_RANK = 4 ]; then echo last words >&2; exit 7; fi; "
                         f"echo $$ > {TMP}/pid.$KOLO_RANK; exec sleep 300")
    same(status, 7)
    lines = err.splitlines()
    same(lines[0], "[4] last words")
    matches(rf"^kolorun: rank 4 \(pid \d+ on {HOSTS[2]}\) exited with status 7; ending the other 4$", lines[1])
    same(len(lines), 2)
    gone([int(t.read_text()) for t in TMP.glob("pid.*")])


def test_death_by_signal_elsewhere_is_named():
    set_up()
    status, _, err = run("sh", "-c", "[ $KOLO_RANK = 2 ] && kill -SEGV $$; exec sleep 300")
    same(status, 128 + signal.SIGSEGV)
    matches(rf"rank 2 \(pid \d+ on {HOSTS[1]}\) was killed by signal 11 \(Segmentation fault", err)


def test_missing_program_elsewhere_is_said():
    set_up()
    status, _, err = run("no-such-program", hosts=f"{HOSTS[1]}:1")
    same((status, err), (127, f"kolorun: rank 0 on {HOSTS[1]} cannot start no-such-program: No such file or directory in PATH\n"))


def test_sigint_reaches_all_hosts():
    set_up()
    p = start("sh", "-c", f"trap 'echo got it; exit 0' INT; echo $$ > {TMP}/pid.$KOLO_RANK; while :; do sleep 0.05; done")
    pids_of(5)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=LIMIT_S)
    same((p.returncode, sorted(out.decode().splitlines())), (0, [f"[{r}] got it" for r in range(5)]))


def test_kill_9_of_kolorun_leaves_nothing_anywhere():
    set_up()
    p = start("sh", "-c", stays())
    pids = pids_of(10)
    p.kill()
    p.wait()
    gone(pids)
    until(lambda: not list(TMP.glob("kolorun-*")), "the directories of the id to be gone")


def test_kill_9_of_a_connection_loses_the_host():
    set_up()
    p = start("--grace", "1", "sh", "-c", stays())
    pids = pids_of(10)
    victim, = [int(c) for c in pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()
               if f"{HOSTS[1]}\0".encode() in pathlib.Path(f"/proc/{c}/cmdline").read_bytes()]
    os.kill(victim, signal.SIGKILL)
    _, err = p.communicate(timeout=LIMIT_S)
    same(p.returncode, 1)
    matches(rf"^kolorun: host {HOSTS[1]} is lost with ranks 2, 3: the ssh to it was killed by signal 9; ending the other 3$",
            err.decode())
    gone(pids)


def test_kill_9_of_an_agent_loses_the_host():
    set_up()
    p = start("--grace", "1", "sh", "-c", stays())
    pids = pids_of(10)
    rank = int((TMP / "pid.4").read_text())
    agent = int(pathlib.Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[1])
    matches("--agent", pathlib.Path(f"/proc/{agent}/cmdline").read_text())
    os.kill(agent, signal.SIGKILL)
    _, err = p.communicate(timeout=LIMIT_S)
    same(p.returncode, 1)
    matches(rf"host {HOSTS[2]} is lost with rank 4: ", err.decode())
    gone(pids)
    until(lambda: not list(TMP.glob("kolorun-*")), "the directories of the id to be gone")


def test_host_that_does_not_answer_ends_the_job():
    set_up()
    status, _, err = run("sh", "-c", stays(), "--grace", "1", hosts=f"localhost:1,{HOSTS[0]}9:1")
    same(status, 1)
    matches(rf"host {HOSTS[0]}9 is lost with rank 1: the ssh to it ended with status 255", err)
    gone([int(t.read_text()) for t in TMP.glob("pid.*")])


def test_wrong_key_is_shown_in_the_words_of_ssh():
    set_up()
    (TMP / "user_key.pub").write_text("")
    status, _, err = run("true", hosts=f"{HOSTS[1]}:1")
    same(status, 1)
    matches(rf"^kolorun: {HOSTS[1]}: .*Permission denied", err)


def test_what_login_scripts_print_is_no_harm():
    set_up("ForceCommand sh -c 'echo Welcome; echo to >&2; eval \"$SSH_ORIGINAL_COMMAND\"'\n")
    status, out, err = run("echo", "x", hosts=f"{HOSTS[1]}:2")
    same((status, sorted(out.splitlines()), err), (0, ["[0] x", "[1] x"], f"kolorun: {HOSTS[1]}: to\n"))


def test_secrets_are_on_no_command_line_and_in_no_environment():
    set_up()
    # Rank 0 leaves the id and stays: what an all_reduce of several hosts has while it begins.
    p = start("--grace", "1", "sh", "-c", f"if [ $KOLO_RANK = 0 ]; then head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > "
              f"$KOLO_ID_FILE.tmp; mv $KOLO_ID_FILE.tmp $KOLO_ID_FILE; fi; while [ ! -s $KOLO_ID_FILE ]; do sleep 0.01; done; "
              f"stat -c %a $KOLO_ID_FILE; cat $KOLO_ID_FILE > {TMP}/got.$KOLO_RANK; echo $$ > {TMP}/pid.$KOLO_RANK; sleep 300",
              "argument", KOLO_HIDDEN="in-the-environment")
    pids_of(5)
    secrets = {(TMP / f"got.{r}").read_bytes() for r in range(5)}
    same((len(secrets), len(next(iter(secrets)))), (1, 64))
    secret = secrets.pop()
    seen = 0
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (proc / "cmdline").read_bytes(), (proc / "environ").read_bytes()
        except OSError:
            continue
        assert secret not in command and secret not in environment, f"the secret shows in {command!r}"
        if command.startswith(b"ssh\0"):
            seen += b"--agent" in command
            assert b"in-the-environment" not in command, command
    assert seen >= 2, "saw no ssh of this job"
    p.send_signal(signal.SIGTERM)
    out, _ = p.communicate(timeout=LIMIT_S)
    # Who wrote it says with which mode; what kolorun lays down elsewhere is the user's alone.
    same(sorted(out.decode().splitlines())[2:], ["[2] 600", "[3] 600", "[4] 600"])


def test_much_output_from_elsewhere_is_whole():
    set_up()
    size = 8 << 20
    status, out, _ = run("--no-tag", "sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x", hosts=f"{HOSTS[1]}:2,{HOSTS[2]}:1")
    same((status, out.count("x")), (0, 3 * size))


def test_input_reaches_ranks_elsewhere():
    set_up()
    data = os.urandom(1 << 20) * 5
    want = {True: hashlib.md5(data).hexdigest(), False: hashlib.md5(b"").hexdigest()}
    for who, ranks in (("3", (3,)), ("all", range(5))):
        p = start("--stdin", who, "sh", "-c", "echo $KOLO_RANK $(md5sum | cut -c-32)", stdin=subprocess.PIPE)
        out, err = p.communicate(data, timeout=LIMIT_S)
        same((p.returncode, sorted(out.decode().splitlines()), err), (0, [f"[{r}] {r} {want[r in ranks]}" for r in range(5)], b""))


def share_values(hosts):
    if "STORE_RANK" not in os.environ:
        skip("built without the store")
    # Around kolorun there may be an ssh of the user's.
    status, out, err = run("--store", "sh", "-c", f"echo ${{KOLO_STORE%:*}}; exec {os.environ['STORE_RANK']}", hosts=hosts,
                           SSH_CONNECTION="203.0.113.7 50000 203.0.113.1 22")
    same((status, err), (0, ""))
    return sorted(out.splitlines())


def test_store_reaches_ranks_everywhere():
    set_up()
    same(share_values(f"localhost:1,{HOSTS[1]}:1,{HOSTS[2]}:1"),
         ["[0] 127.0.0.1", "[0] sum 3", f"[1] {HOSTS[0]}", "[1] sum 3", f"[2] {HOSTS[0]}", "[2] sum 3"])


def test_store_reaches_ranks_by_ipv6():
    """ssh comes to host 1 by IPv6 and to host 2 by IPv4."""
    for h in (0, 1):
        if subprocess.run(["nsenter", "-t", NETNS[h], "-n", "ip", "-6", "address", "add", f"fd77::{h + 1}/64", "dev", "eth0",
                           "nodad"], capture_output=True).returncode != 0:
            skip("there is no IPv6 here")
    HOSTS[1] = "fd77::2"
    set_up()
    same(share_values(f"localhost:1,[{HOSTS[1]}]:1,{HOSTS[2]}:1"),
         ["[0] 127.0.0.1", "[0] sum 3", "[1] [fd77::1]", "[1] sum 3", f"[2] {HOSTS[0]}", "[2] sum 3"])


def discovered(*hosts):
    (TMP / "hosts.new").write_text("\n".join(hosts) + "\n")
    os.rename(TMP / "hosts.new", TMP / "hosts")


def elastic(hosts, *args):
    """An elastic job whose discovery script prints what stands in `hosts`; its epochs are in TMP/log."""
    discovered(*hosts)
    p = subprocess.Popen([KOLORUN, "--min", "2", "--max", "4", "--discover", f"cat {TMP}/hosts", "--discover-every",
                          "0.05", "--grace", "2", "--ssh", ssh(), os.environ["TRAINER"], "--log", str(TMP / "log"), *args],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TMP,
                         env={**os.environ, "KOLO_VERDICT_MS": "2000"})
    children.append(p)
    return p


def epochs():
    log = TMP / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def test_elastic_job_moves_from_host_to_host():
    set_up()
    one, two = f"{HOSTS[1]}:2", f"{HOSTS[2]}:2"
    p = elastic([one], "--sizes", "2,4,2")
    for count, hosts in ((1, [one, two]), (2, [two])):
        until(lambda: len(epochs()) >= count or p.poll() is not None, f"epoch {count}")
        discovered(*hosts)
    _, err = p.communicate(timeout=90)
    print(err)
    same((p.returncode, [e["workers"] for e in epochs()]), (0, [[0, 1], [0, 1, 2, 3], [2, 3]]))
    same([e["epoch"] for e in epochs()], [0, 1, 2])
    gone([pid for e in epochs() for pid in e["pids"]])


def test_slow_elastic_job_goes_on_without_a_host():
    set_up()
    p = elastic([f"{HOSTS[1]}:2", f"{HOSTS[2]}:2"], "--sizes", "4,2,2", "--epochs", "3", "--slow", "20")
    until(lambda: len(epochs()) >= 1 or p.poll() is not None, "the first epoch")
    subprocess.run(["nsenter", "-t", NETNS[2], "-n", "ip", "link", "set", "eth0", "down"], check=True)
    _, err = p.communicate(timeout=150)
    print(err)
    same((p.returncode, [e["workers"] for e in epochs()]), (0, [[0, 1, 2, 3], [0, 1], [0, 1]]))
    gone(epochs()[0]["pids"], 90)


def test_slow_cut_cable_ends_both_sides():
    set_up()
    p = start("--grace", "1", "sh", "-c", stays(), hosts=f"localhost:1,{HOSTS[1]}:2")
    pids = pids_of(6)
    subprocess.run(["nsenter", "-t", NETNS[1], "-n", "ip", "link", "set", "eth0", "down"], check=True)
    _, err = p.communicate(timeout=90)
    same(p.returncode, 1)
    matches(rf"host {HOSTS[1]} is lost with ranks 1, 2: the ssh to it ended with status 255", err.decode())
    gone(pids, 90)


def look_for_what_it_needs():
    for tool, package in (("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")):
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin") is None:
            skip(f"there is no {tool} here ({package})")
    if len(NETNS) != 3:
        skip("start it by tests/net/hosts -1 3 1")


def end_children():
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


run_case(globals(), sys.argv[2], look_for_what_it_needs, end_children)
