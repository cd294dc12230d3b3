#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Planted hangs: a job of three processes in which rank 1 does not make a call. What kolo-top --once says of it first,
# what the log says by itself, and the error at a time limit name that rank and the call. Each case is two jobs that run
# beside each other, one without a time limit and one with. usage: hangs_test.py KOLO-TOP KOLORUN HANG CASE | --list
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import has_word, kill_if, run_case, until

RANKS = 3
CLEAN = {k: v for k, v in os.environ.items() if not re.match(r"KOLO_|OMPI_|PMI|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC_", k)}


class Job:
    """Started by kolorun, or with the variables of another launcher."""

    def __init__(self, case, limit, launcher, more):
        self.folder = TMP / ("limit" if limit else "free")
        self.folder.mkdir()
        env = dict(CLEAN, KOLO_MISMATCH_MS="86400000", KOLO_JOB_DIR=str(self.folder), HANG_CLUSTER=cluster(limit), **more)
        if limit:
            env.update(KOLO_OP_TIMEOUT_MS="1000", KOLO_INIT_TIMEOUT_MS="3000", KOLO_ENGINE_STALL_LIMIT_MS="1000")
        else:
            env.update(KOLO_STALL_WARN_MS="1000", KOLO_ENGINE_STALL_WARN_MS="1000")
        program = [HANG, case, str(self.folder), "1000" if limit else "0"]
        self.log = open(self.folder / "log", "w+")
        if launcher == "kolorun":
            starts = [([KOLORUN, "-n", str(RANKS), "--no-tag", *program], env)]
        elif launcher is mpirun and OPEN_MPI:
            starts = [([*OPEN_MPI, "-n", str(RANKS), *program], env)]
        else:
            starts = [(program, dict(env, **launcher(r, limit))) for r in range(RANKS)]
        self.processes = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
                          for command, env in starts]

    def pid(self, rank):
        file = self.folder / str(rank)
        until(lambda: file.exists() and file.read_text().endswith("\n"), f"rank {rank} to start")
        return int(file.read_text())

    def text(self):
        return (self.folder / "log").read_text()

    def end(self):
        for p in self.processes:
            p.send_signal(signal.SIGKILL if len(self.processes) > 1 else signal.SIGTERM)
        for rank in range(RANKS):
            file = self.folder / str(rank)
            if file.exists() and file.read_text().endswith("\n"):
                kill_if(lambda pid: has_word(pid, str(self.folder)), int(file.read_text()))
        for p in self.processes:
            p.wait()
        self.log.close()


def cluster(limit):
    pid = os.getpid()
    host = f"127.{1 + pid % 200}.{pid // 200 % 250}."
    return f"ps={host}{2 * limit + 1}:7413;worker={host}{2 * limit + 2}:7413"


def torchrun(rank, limit):
    return {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 10000), "TORCHELASTIC_RUN_ID": f"hang{limit}"}


def mpirun(rank, limit):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(RANKS), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(RANKS), "PMIX_NAMESPACE": f"hang{os.getpid()}.{limit}"}


def open_mpi():
    """Its mpirun, if there is one; else its variables have to do."""
    found = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return [found, *root, "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"] if "Open MPI" in version else None


def first_sentence(job):
    """What kolo-top says of the job that is stuck."""
    pids = [a for rank in range(RANKS) for a in ("--pid", str(job.pid(rank)))]
    p = subprocess.run([KOLO_TOP, "--once", *pids], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    found = re.search(r"^ +stuck for [0-9.]+ s: (.*)$|^(task .* waits .*)$", p.stdout.decode(), re.M)
    return (found[1] or found[2]) if found else ""


def hang(case, top, report, error, launcher="kolorun", also=None, env={}):
    free, limited = Job(case, False, launcher, env), Job(case, True, launcher, env)
    told = ""

    def is_told():
        nonlocal told
        told = first_sentence(free)
        return re.match(top, told)

    try:
        try:
            until(is_told, "kolo-top", 25)
        except AssertionError:
            raise AssertionError(f"kolo-top says {told!r}, wanted {top!r}")
        print(f"kolo-top --once: {told}")
        for job, wanted in ((free, report), (limited, error)):
            try:
                until(lambda: re.search(wanted, job.text()), "the log", 25)
            except AssertionError:
                raise AssertionError(f"the log is {job.text()!r}, wanted {wanted!r}")
        if also:
            also(free)
    finally:
        free.end()
        limited.end()


def collective(case, call, first_use=False, **more):
    """Ranks 0 and 2 are in this call."""
    entered = rf"rank 1 \(process \d+ on [^)]*\) did not enter operation \d+ \({call}\)"
    waits = rf"still waiting: rank [02], in operation \d+ \({call}(, flat algorithm)?\), waited [0-9.]+ s for "
    whom = "the others to come to it and connect" if first_use else "data from rank 1"
    hang(case, entered, rf"{waits}{whom}.*; {entered}", rf"rank [02]: time-out: .*\({call}.*; {entered}", **more)


def whole(case, call):
    """A call of all ranks that is no collective."""
    waits = rf"rank [02], in operation \d+ \({call}\), waited [0-9.]+ s for rank 1 to come to the same call"
    entered = rf"rank 1 \(process \d+ on [^)]*\) did not enter operation \d+ \({call}\)"
    hang(case, entered, rf"still waiting: {waits}.*; {entered}", rf"rank [02]: time-out: .*{waits}.*; {entered}")


def tensor(case, what, waiting="2 ranks have", **more):
    lacks = rf"rank 1 has not submitted {what}, for which {waiting} waited [0-9.]+ s"
    hang(case, lacks, lacks, rf"rank [02]: time-out: .*{lacks}.*KOLO_ENGINE_STALL_LIMIT_MS is over", **more)


ALL_REDUCE = "all_reduce 4 float32 sum"


def test_all_reduce():
    collective("all_reduce", ALL_REDUCE)


def test_barrier():
    collective("barrier", "barrier")


def test_root_of_a_broadcast():
    collective("broadcast_root", "broadcast 4 float32 root 1")


def test_connecting():
    collective("connecting", "all_reduce 100000 float32 sum", first_use=True)


def message(case, call, wants, how=""):
    waited = rf"rank 0 \(process \d+ on [^)]*\) has waited in {call}"
    hang(case, rf"{waited} for [0-9.]+ s; rank 1 \(process \d+ on ",
         (how or rf"still waiting: rank 0, in {call}, waited [0-9.]+ s for rank 1 to {wants}") + f".*; {waited}",
         rf"rank 0: time-out: .*; {waited}")


def test_who_waits_for_one_that_waits():
    """Rank 0 waits for data of rank 2, which waits for rank 1: what is said names rank 1."""
    entered = r"rank 1 \(process \d+ on [^)]*\) did not enter operation \d+ \(all_reduce 100000 float32 sum\)"
    waits = r"rank 0, in operation \d+ \(all_reduce [^)]*\), waited [0-9.]+ s for data from rank 2"
    hang("ring", entered, rf"still waiting: {waits}; {entered}", rf"rank 0: time-out: .*{waits}; {entered}", env={"KOLO_ALGO": "ring"})


def test_group():
    entered = r"rank 1 \(process \d+ on [^)]*\) did not enter operation \d+ \(all_reduce 4 float32 sum\)"
    hang("group", entered, rf"still waiting: [^\n]*; {entered}", rf"rank [02]: time-out: .*; {entered}")


def test_a_message_that_nobody_sends():
    message("send", "recv 4 float32 from rank 1", "send it")


def test_a_first_message_that_nobody_sends():
    message("first_send", "recv 4 float32 from rank 1", "",
            r"still waiting: rank 0, in its first receive from rank 1, waited [0-9.]+ s for rank 1 to call the send")


def test_a_message_that_nobody_receives():
    message("recv", "send 100000 float32 to rank 1", "receive it")


def test_two_that_first_send():
    circle = "2 ranks wait for each other in a circle: 0 -> 1 -> 0. rank 0 .* has waited in send 100000 float32 to rank 1"
    hang("both_send", circle, rf"rank 0, in its first send to rank 1, waited .*that is a circle: put the two calls into a group.*; {circle}",
         rf"rank [01]: time-out: .*that is a circle: put the two calls into a group.*; {circle}")


def test_a_signal():
    waits = "wait for 2 signals from rank 1"
    hang("signal", rf"rank 0 .* has waited in {waits} for [0-9.]+ s; rank 1 .*: its last call is complete: put 4 float32 to rank 0",
         rf"still waiting: rank 0, in a wait for signals, waited [0-9.]+ s for rank 1 to signal: 1 of 2 signals.*has waited in {waits}",
         rf"rank 0: time-out: .*for rank 1 to signal: 1 of 2 signals.*has waited in {waits}")


def test_window_register():
    whole("window_register", "window_register")


def test_window_deregister():
    whole("window_deregister", "window_deregister")


def test_split():
    whole("split", "comm_split")


def test_dup():
    whole("dup", "comm_dup")


def test_finalize():
    whole("finalize", "comm_finalize")


def test_a_stopped_process():
    hang("stopped", rf"rank 1 .* did not enter operation \d+ \({ALL_REDUCE}\): its process is stopped",
         rf"still waiting: rank [02], in operation \d+ \({ALL_REDUCE}, .*waited [0-9.]+ s for data from rank 1.*; rank 1 \(process \d+ on [^)]*\) is stopped",
         rf"rank [02]: time-out: .*\({ALL_REDUCE}, .*; rank 1 \(process \d+ on [^)]*\) is stopped and does not answer")


def test_a_late_one():
    def comes(job):
        os.kill(job.pid(1), signal.SIGUSR1)
        until(lambda: first_sentence(job) == "", "nobody to be stuck")

    collective("late", ALL_REDUCE, also=comes)


def test_tensor():
    tensor("tensor", "tensor layer/bias")


def test_tensor_of_one_of_two_sets():
    tensor("tensor_of_a_set", "tensor layer/bias of process set 2", "1 rank has")


def test_join():
    tensor("join", "the join")


def test_barrier_of_an_engine():
    tensor("engine_barrier", "the barrier")


INSIDE = "it has been inside its own callback"
AGREEMENT = "the engine's agreement on tensors"


def test_shutdown():
    """The process of rank 1 is stopped, and the others end their engines."""
    call = f"({AGREEMENT}|engine_shutdown)"  # whichever the others have come to
    waits = rf"rank [02], in operation \d+ \({call}, flat algorithm\), waited [0-9.]+ s for data from rank 1"
    stops = r"rank 1 \(process \d+ on [^)]*\) is stopped"
    hang("shutdown", rf"rank 1 .* did not (enter|leave) operation \d+ \({call}\).*: its process is stopped", rf"still waiting: {waits}; {stops}",
         rf"rank [02]: time-out: .*{waits}; {stops}")


def test_callback():
    """A callback of rank 1 does not return, and the others end their engines."""
    entered = rf"rank 1 \(process \d+ on [^)]*\) did not enter operation \d+ \({AGREEMENT}\): {INSIDE} \(of a named tensor\) for "
    waits = rf"rank [02], in operation \d+ \({AGREEMENT}, flat algorithm\), waited [0-9.]+ s for data from rank 1"
    hang("callback", entered, rf"still waiting: {waits}; {entered}", rf"rank [02]: time-out: .*{waits}; {entered}")


def test_user_operator():
    """The function of an operator of rank 1 does not return. The others may be in the next call by then."""
    inside = rf"rank 1 \(process \d+ on [^)]*\) did not leave operation \d+ \(all_reduce 4 float32 user operator\)[^:]*: {INSIDE} \(the function of a user operator\) for "
    waits = r"rank [02], in operation \d+ \(barrier, flat algorithm\), waited [0-9.]+ s for data from rank 1"
    hang("operator", inside, rf"still waiting: {waits}; {inside}", rf"rank [02]: time-out: .*{waits}; {inside}")


def test_add_set():
    tensor("add_set", "the adding of a process set")


def key(case, task, why=""):
    edge = rf"a value of edge weights from /job:{task}/task:0/device:cpu:0 \(step 7\)"
    waits = rf"task worker:0 waits [0-9.]+ s for edge weights of {task}:0, step 7, which has never sent it{why}"
    hang(case, waits, rf"still waiting: waited [0-9.]+ s for {edge}; {waits}", rf"rank 0: time-out: .*{edge}; {waits}")


def test_key_in_one_task():
    key("key_in_one_task", "worker")


def test_key_in_two_tasks():
    key("key_in_two_tasks", "ps")


def test_key_whose_sender_is_in_a_callback():
    key("key_callback", "ps", " and has been inside its own callback for ")


def test_commit():
    collective("commit", "state_commit or the end of state_run")


def test_init():
    missing = r"rank 1 \(never called\) is missing: 2 of 3 ranks have called kolo_comm_init_rank\(\) or kolo_job_connect\(\)"
    hang("init", missing, rf"still waiting: waited [0-9.]+ s for rank 1 to call kolo_comm_init_rank\(\)[^\n]*; {missing}",
         rf"rank [02]: time-out: .*, rank [02] of 3: [a-z]+: {missing}")


def test_init_not_of_the_next_rank():
    """Rank 0 waits for the address of rank 1, which waits for that of rank 2. What the root tells is encrypted."""
    missing = r"rank 2 \(never called\) is missing: 2 of 3 ranks have called kolo_comm_init_rank\(\) or kolo_job_connect\(\)"
    hang("init_last", missing, rf"still waiting: waited [0-9.]+ s for rank [12] to (call|come)[^\n]*; {missing}",
         rf"rank [01]: time-out: .*, rank [01] of 3: [a-z]+: {missing}", env={"KOLO_TCP_SECURITY": "encrypt"})


def test_all_reduce_under_mpirun():
    collective("all_reduce", ALL_REDUCE, launcher=mpirun)


def test_message_under_mpirun():
    message_of_mpirun = rf"rank 0 \(process \d+ on [^)]*\) has waited in recv 4 float32 from rank 1"
    hang("send", message_of_mpirun, "still waiting: rank 0, in recv 4 float32 from rank 1", rf"rank 0: time-out: .*; {message_of_mpirun}",
         launcher=mpirun)


def test_all_reduce_under_torchrun():
    collective("all_reduce", ALL_REDUCE, launcher=torchrun)


def test_tensor_under_torchrun():
    tensor("tensor", "tensor layer/bias", launcher=torchrun)


def test_each_has_its_row_in_the_page():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "hangs.md").read_text()
    rows = re.findall(r"^\| `hang_(\w+)` \| [^|]+ \| [^|]+ \|$", page, re.M)
    cases = [n[len("test_"):] for n in globals() if n.startswith("test_") and n != "test_each_has_its_row_in_the_page"]
    assert sorted(rows) == sorted(cases), set(rows) ^ set(cases)


KOLO_TOP, KOLORUN, HANG = sys.argv[1:4]
OPEN_MPI = open_mpi()
run_case(globals(), sys.argv[4])
