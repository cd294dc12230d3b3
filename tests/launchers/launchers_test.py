#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Ranks that find each other without kolorun: real mpirun of Open MPI and MPICH, a real Slurm on this machine, and
# torchrun's variables. usage: launchers_test.py CASE; runs examples/all_reduce (environment EXAMPLE), which needs four
# ranks, and tests/engine/env_test.c (ENGINE), which makes and ends an engine five times and needs three.
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

EXAMPLE = os.environ.get("EXAMPLE")
ENGINE = os.environ.get("ENGINE")  # not set: built without protobuf-c, and so without engines of several ranks
NCCL = os.environ.get("NCCL")  # libnccl.so.2
LIMIT_S = 50
TMP = None
children = []
SUMS = [f"rank {r} of 4: 10" for r in range(4)]
# What a launcher of this test itself may have left in the environment is not for the ranks.
CLEAN = {k: v for k, v in os.environ.items() if not re.match(r"KOLO_|OMPI_|PMI|MPI_|SLURM_|RANK$|WORLD_SIZE$|MASTER_|TORCHELASTIC_", k)}
CLEAN["KOLO_LOG"] = "error"  # four ranks may well have to share cores here, which is worth a warning


def need(tool, package):
    path = shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if path is None:
        print(f"skipped: there is no {tool} here ({package})")
        sys.exit(77)
    return path


def same(got, want):
    assert got == want, f"got {got!r}, wanted {want!r}"


def matches(pattern, text):
    assert re.search(pattern, text, re.M), f"no {pattern!r} in {text!r}"


def start(*args, **env):
    p = subprocess.Popen(args, env={**CLEAN, "KOLO_JOB_DIR": str(TMP / "meet"), **env}, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TMP)
    children.append(p)
    return p


def clean():
    """Nothing of the exchange is left."""
    same(list((TMP / "meet").iterdir()) if (TMP / "meet").exists() else [], [])


def check(*jobs, want=SUMS):
    for p in jobs:
        out, err = p.communicate(timeout=LIMIT_S)
        assert p.returncode == 0, err
        same(sorted(out.splitlines()), want)
    clean()


def fails(p, *patterns):
    out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, out), (1, ""))
    for pattern in patterns:
        matches(pattern, err)


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def secret():
    path = TMP / "secret"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return {"KOLO_COMM_SECRET_FILE": str(path), "KOLO_JOB_DIR": "/dev/null"}


def free_ports():
    """The first of five that are free together, and that the system does not give to whoever asks for any."""
    while True:
        port = random.randrange(10000, 20990)
        if all(is_free(port + i) for i in range(5)):
            return port


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except OSError:
            return False
    return True


# ---- mpirun ----

def mpirun(ranks, *program):
    # As root, as many ranks as one likes, and nothing but this machine.
    return [need("mpirun.openmpi", "openmpi-bin"), "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated",
            "-n", str(ranks), *program]


def mpiexec(ranks, *program):
    return [need("mpirun.mpich", "mpich"), "-launcher", "fork", "-n", str(ranks), *program]


def test_open_mpi():
    check(start(*mpirun(4, EXAMPLE)))
    if ENGINE:
        check(start(*mpirun(3, ENGINE)), want=[])


def test_open_mpi_jobs_side_by_side():
    check(*[start(*mpirun(4, EXAMPLE)) for _ in range(3)])


def test_mpich():
    check(start(*mpiexec(4, EXAMPLE)))
    if ENGINE:
        check(start(*mpiexec(3, ENGINE)), want=[])


def test_mpich_jobs_side_by_side_behind_scripts():
    # The parents of the ranks are shells, a different one each.
    check(*[start(*mpiexec(4, "sh", "-c", '"$0"; exit $?', EXAMPLE)) for _ in range(3)])


# ---- torchrun's variables ----

def torch(rank, size=4, program=EXAMPLE, **env):
    return start(program, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
                 **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **env})


def results(*ranks, want=SUMS):
    lines = []
    for p in ranks:
        out, err = p.communicate(timeout=LIMIT_S)
        same((p.returncode, err), (0, ""))
        lines += out.splitlines()
    same(sorted(lines), want)


def test_torchrun_variables():
    results(*[torch(r) for r in (3, 1, 0, 2)])
    if ENGINE:
        results(*[torch(r, 3, ENGINE) for r in range(3)], want=[])
    clean()


def test_torchrun_jobs_side_by_side():
    # Told apart by the port, by the name of the run, by a name of our own.
    others = ({}, {"MASTER_PORT": "29501"}, {"TORCHELASTIC_RUN_ID": "7"}, {"KOLO_JOB_NAME": "mine"})
    ranks = [torch(r, **env) for r in range(4) for env in others]
    for i in range(len(others)):
        results(*ranks[i::len(others)])
    clean()


def test_torchrun_variables_and_a_secret_need_no_directory():
    env = {"MASTER_PORT": str(free_ports()), **secret()}
    results(*[torch(r, **env) for r in range(4)])
    if ENGINE:
        results(*[torch(r, 3, ENGINE, **env) for r in range(3)], want=[])


def test_neighbours_with_one_secret():
    # The first port of one is the second of the other; and one has the ports of both.
    port = free_ports()
    quiet = {"KOLO_LOG": "error", **secret()}
    others = ({"MASTER_PORT": str(port)}, {"MASTER_PORT": str(port + 1)},
              {"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "7"}, {"MASTER_PORT": str(port), "KOLO_JOB_NAME": "mine"})
    ranks = [torch(r, **quiet, **env) for r in range(4) for env in others]
    for i in range(len(others)):
        results(*ranks[i::len(others)])


def hashed_port(job, step="0"):
    """Where the ranks of a job of Slurm's meet, before KOLO counts on (job_name.c): FNV-1a."""
    number = 0xcbf29ce484222325
    for byte in f"{job}\0{step}".encode():
        number = (number ^ byte) * 0x100000001b3 % 2**64
    return 21000 + number % 2500 * 4


def test_neighbours_of_one_hashed_port():
    # Slurm's variables of two jobs whose numbers come to one port.
    jobs = {}
    for job in range(random.randrange(1000, 9000), 20000):
        port = hashed_port(job)
        if port not in jobs and all(is_free(port + k) for k in range(4)):
            jobs[port] = job
        elif port in jobs:
            break
    env = {"KOLO_LOG": "error", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4",
           "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_CLUSTER_NAME": "here", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "0", **secret()}
    ranks = {j: [] for j in (jobs[port], job)}

    def one(j, r):
        ranks[j].append(start(EXAMPLE, SLURM_PROCID=str(r), SLURM_LOCALID=str(r), SLURM_JOB_ID=str(j), **env))

    one(job, 0)
    until(lambda: not is_free(port), f"job {job} at port {port}")
    for j, r in ((j, r) for r in range(4) for j in ranks if (j, r) != (job, 0)):
        one(j, r)
    for those in ranks.values():
        results(*those)


def test_two_jobs_of_one_name_are_told_so():
    # The same variables twice: nothing tells the jobs apart.
    env = {"MASTER_PORT": str(free_ports()), **secret()}
    first = torch(0, 3, **env)
    until(lambda: not is_free(int(env["MASTER_PORT"]) + 1), "the root")
    for p in (torch(0, 3, **env), first):
        fails(p, r"rank 0 checked in twice, from .* two jobs the same MASTER_ADDR and MASTER_PORT .*KOLO_JOB_NAME")


def test_a_program_that_says_nothing_at_the_port():
    port = free_ports()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", port + 1))
        silent.listen()
        env = {"MASTER_PORT": str(port), "KOLO_LOG": "error", **secret()}
        results(*[torch(r, **env) for r in range(4)])


def test_no_such_interface_is_said_by_each_rank():
    env = {"KOLO_SOCKET_IFNAME": "nosuch", "MASTER_PORT": str(free_ports())}
    ranks = [start(EXAMPLE, RANK=str(r), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", **env)
             for r in range(2)]
    for p in ranks:
        fails(p, "KOLO_SOCKET_IFNAME=nosuch")


def test_a_local_size_that_cannot_be_is_told():
    # 192.0.2.1 is nobody's address.
    rank = start(EXAMPLE, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", MASTER_ADDR="192.0.2.1",
                 MASTER_PORT="29500", KOLO_INIT_TIMEOUT_MS="1000", KOLO_LOG="warn")
    out, err = rank.communicate(timeout=LIMIT_S)
    same("LOCAL_WORLD_SIZE is WORLD_SIZE" in err, True)


def test_secrets_that_differ():
    env = {"MASTER_PORT": str(free_ports()), **secret()}
    torch(0, 2, **env)
    until(lambda: not is_free(int(env["MASTER_PORT"]) + 1), "the root")
    (TMP / "secret").write_bytes(os.urandom(32))
    # Another job may have the port: it looks at others, too, for as long as it may.
    fails(torch(1, 2, **env, KOLO_INIT_TIMEOUT_MS="2000"), "the secrets differ")


def left_file():
    """The file that rank 0 leaves; None while it is being written, or not there."""
    files = list((TMP / "meet").iterdir()) if (TMP / "meet").exists() else []
    return files[0] if len(files) == 1 and re.fullmatch(r"torchrun-[0-9a-f]{16}\.0", files[0].name) else None


def test_id_of_a_job_that_died_is_not_taken():
    first = torch(0)
    until(left_file, "the id")
    same(oct(left_file().stat().st_mode & 0o777), "0o600")
    first.kill()
    first.communicate()
    # They come first and find that nobody answers.
    env = {"KOLO_LOG": "info", "KOLO_LOG_FILE": str(TMP / "log.%p")}
    others = [torch(r, **env) for r in (1, 2, 3)]
    until(lambda: sum("waits for another id" in f.read_text() for f in TMP.glob("log.*")) == 3, "the others")
    results(*others, torch(0))
    clean()


def test_id_of_a_host_that_is_gone_is_not_taken():
    # Nobody says that nobody answers; but the file is older than any rank 0 waits.
    first = torch(0)
    until(left_file, "the id")
    first.send_signal(signal.SIGSTOP)
    os.utime(left_file(), (time.time() - 1000, time.time() - 1000))
    others = [torch(r) for r in (1, 2, 3)]
    results(torch(0), *others)
    first.kill()
    clean()


def test_directory_of_somebody_else_is_refused():
    (TMP / "meet").mkdir()
    (TMP / "meet").chmod(0o777)
    fails(torch(0), "must be a directory of this user that nobody else may write")


def test_rank_that_never_comes_is_named():
    fails(torch(1, KOLO_INIT_TIMEOUT_MS="300"), r"rank 0 did not leave the id in .*/meet/torchrun-")
    for p in [torch(r, KOLO_INIT_TIMEOUT_MS="5000") for r in (0, 1, 3)]:
        fails(p, r"rank 2 \(never called\) is missing: 3 of 4 ranks have called ")
    clean()


def connected(p):
    """Has this process called somebody?"""
    links = []
    for fd in pathlib.Path(f"/proc/{p.pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            pass
    rows = [row.split() for name in ("tcp", "tcp6") for row in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(row[3] == "01" and f"socket:[{row[9]}]" in links for row in rows)


def test_rank_that_dies_ends_the_wait_of_all():
    # Long before the time is over, also where the id was there before the rank, which so may be an old one.
    first = torch(0)
    until(left_file, "the id")
    other = torch(1)
    until(lambda: connected(other), "rank 1 to call the root")  # else it comes when all is over
    torch(2, KOLO_FAIL_POINT="oob.checkin.sent:1:kill").communicate(timeout=LIMIT_S)
    for p in (first, other):
        fails(p, "rank 2.* died after it had checked in")
    clean()


def test_variables_that_make_no_sense():
    torch_all = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a"}
    ompi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    for env, want in (({**torch_all, "RANK": "4", "WORLD_SIZE": "4"}, "rank 4 of 4 is out of range"),
                      ({**torch_all, "RANK": "x"}, 'RANK="x" is not a whole number'),
                      ({"RANK": "0", "WORLD_SIZE": "4"}, "RANK is set but MASTER_ADDR is not"),
                      ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not"),
                      ({**torch_all, **ompi}, "rank 0 of 1, but OMPI_COMM_WORLD_RANK and .* rank 3 of 4"),
                      ({**torch_all, "KOLO_JOB_LAUNCHER": "slurm"}, "has none of its variables")):
        fails(start(EXAMPLE, **env), want)


def test_variables_of_something_else_are_no_job():
    # RANK alone may mean anything; a batch script has SLURM_PROCID without being a task.
    alone = ["rank 0 of 1: 1"]
    check(start(EXAMPLE, RANK="colonel", SLURM_PROCID="0", SLURM_NTASKS="4"), want=alone)
    check(start(EXAMPLE, OMPI_COMM_WORLD_RANK="0", KOLO_JOB_LAUNCHER="none"), want=alone)


# ---- Slurm ----

CONF = """ClusterName=kolotest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={d_port}
AuthType=auth/munge
AuthInfo=socket={tmp}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={tmp}/state
SlurmdSpoolDir={tmp}/spool
SlurmctldPidFile={tmp}/ctld.pid
SlurmdPidFile={tmp}/d.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MailProg=/bin/true
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def daemon(name, *args, **env):
    log = open(TMP / f"{name}.log", "wb")
    p = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                         env={**CLEAN, **env})
    children.append(p)


def start_slurm():
    if os.geteuid() != 0:
        print("skipped: the daemons of Slurm want root")
        sys.exit(77)
    munged, ctld, d = need("munged", "munge"), need("slurmctld", "slurm-wlm"), need("slurmd", "slurm-wlm")
    need("srun", "slurm-wlm")
    TMP.chmod(0o755)
    for name in ("state", "spool"):
        (TMP / name).mkdir()
    key = TMP / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    daemon("munged", munged, "--foreground", "--force", f"--key-file={key}", f"--socket={TMP}/munge.sock",
           f"--pid-file={TMP}/munge.pid", f"--log-file={TMP}/munge.log", f"--seed-file={TMP}/munge.seed")
    until((TMP / "munge.sock").exists, "munged")
    port = free_ports()
    (TMP / "slurm.conf").write_text(CONF.format(host=socket.gethostname(), tmp=TMP, ctld_port=port, d_port=port + 1,
                                                cpus=len(os.sched_getaffinity(0))))
    # The one that looks at no control groups before it is asked to; in a container there may be none.
    (TMP / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    conf = {"SLURM_CONF": str(TMP / "slurm.conf")}
    daemon("slurmctld", ctld, "-D", **conf)
    daemon("slurmd", d, "-D", "-N", "localhost", **conf)

    def idle():
        assert all(p.poll() is None for p in children), "one of Slurm's daemons has ended"
        return subprocess.run(["sinfo", "-h", "-o", "%T"], env={**CLEAN, **conf}, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True).stdout == "idle\n"

    until(idle, "slurmd")  # a job that comes before the host may stay in the queue for long
    return conf


def test_slurm():
    conf = start_slurm()
    srun = ["srun", "-O", "-n"]
    # Two jobs at once, then the engine, and with a secret at the step's first host.
    check(*[start(*srun, "4", EXAMPLE, **conf) for _ in range(2)])
    if ENGINE:
        check(start(*srun, "3", ENGINE, **conf), want=[])
    check(start(*srun, "4", EXAMPLE, **secret(), **conf))
    # A batch script is no task, but what it starts is.
    (TMP / "batch").write_text(f"#!/bin/sh\n{EXAMPLE}\nsrun -O -n 4 {EXAMPLE}\n")
    p = start("sbatch", "--wait", "--quiet", "-O", "-n", "4", "-o", str(TMP / "batch.out"), str(TMP / "batch"), **conf)
    out, err = p.communicate(timeout=LIMIT_S)
    same((p.returncode, out, err), (0, "", ""))
    same(sorted((TMP / "batch.out").read_text().splitlines()), ["rank 0 of 1: 1", *SUMS])
    clean()


def test_nccl_in_slurm():
    """What docs/nccl.md says: the library is preloaded, and the ranks know only NCCL's functions."""
    conf = start_slurm()
    rank = [sys.executable, str(pathlib.Path(__file__).resolve().parent.parent / "nccl/rank.py"), NCCL]
    for job in range(2):  # a step each; the variables of a job that is not theirs are in the way of none
        p = start("srun", "-O", f"--export=ALL,LD_PRELOAD={NCCL},PMIX_RANK=7,PMIX_NAMESPACE=slurm.pmix.1.0", "-n", "3", *rank, str(TMP / f"id{job}"),
                  KOLO_NCCL_CPU="1", **conf)
        check(p, want=[f"rank {r} of 3: right" for r in range(3)])


def test_mpirun_inside_slurm():
    mpirun = need("mpirun.openmpi", "openmpi-bin")
    conf = start_slurm()
    check(start("salloc", "--quiet", "-O", "-n", "4", mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", EXAMPLE,
                **conf))


def main():
    cases = {n[len("test_"):]: f for n, f in globals().items() if n.startswith("test_")}
    name = sys.argv[1]
    if name == "--list":
        print("\n".join(cases))
        return
    global TMP
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the end of our time, too, clears up
    TMP = pathlib.Path(tempfile.mkdtemp(prefix="kolo-launchers-test-"))
    try:
        cases[name]()
    except Exception:
        for log in sorted(TMP.glob("*.log")):  # of Slurm's daemons
            print(f"--- {log.name}", log.read_text(errors="replace")[-3000:], sep="\n")
        raise
    finally:
        for child in reversed(children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.send_signal(signal.SIGCONT)
        for child in reversed(children):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(TMP, ignore_errors=True)


main()
