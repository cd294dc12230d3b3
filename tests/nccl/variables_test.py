#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# NCCL's variables and configuration files do what docs/nccl-env.md says, and two copies of the library are told of:
# variables_test.py LIBRARY PLUGIN. Jobs of one or two processes, on host memory.
import ctypes
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import run_case, until

FLOAT, SUM = 7, 0


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def rank_main(library, rank, ranks):
    """An all_reduce of that many ranks; with more than one they meet by NCCL_COMM_ID. Prints the sum, or the error."""
    nccl = ctypes.CDLL(library)
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    ident, comm, data = Id(), ctypes.c_void_p(), (ctypes.c_float * 3)(1, 2, 3)
    r = nccl.ncclGetUniqueId(ctypes.byref(ident))
    r = r or nccl.ncclCommInitRank(ctypes.byref(comm), ranks, ident, rank)
    r = r or nccl.ncclAllReduce(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None)
    print("error", r, nccl.ncclGetLastError(None).decode()) if r else print("sum", *data)


def run(command, **env):
    full = {k: v for k, v in os.environ.items() if not re.match("NCCL_|KOLO_|LD_PRELOAD|HOME$", k)} | {"KOLO_NCCL_CPU": "1", "HOME": str(TMP)} | env
    done = subprocess.run([sys.executable, *command], env=full, text=True, capture_output=True, timeout=60, check=False)
    return done.stdout, done.stderr


def one(**env):
    """What a job of one rank prints, and its log."""
    return run([__file__, "rank", LIBRARY, "0", "1"], **env)


def file(name, text):
    path = TMP / name
    path.write_text(text)
    return str(path)


def test_a_file_is_read():
    out, log = one(NCCL_CONF_FILE=file("conf", "# a comment\n  NCCL_DEBUG = INFO  # behind\n\nNCCL_NO_SUCH_THING=1\n"))
    assert "this is Kolo" in log and out.startswith("sum 1.0"), log
    assert log.count("unknown variable NCCL_NO_SUCH_THING in a configuration file") == 1, log


def test_a_pipe_in_place_of_a_file_is_not_waited_for():
    os.mkfifo(TMP / "pipe")
    assert one(NCCL_CONF_FILE=str(TMP / "pipe"))[0].startswith("sum 1.0")


def test_what_is_neither_0_nor_1_decides_nothing():
    assert one(NCCL_COMM_BLOCKING="x")[0].startswith("sum 1.0")


def test_the_environment_goes_before_a_file():
    _, log = one(NCCL_CONF_FILE=file("conf", "NCCL_DEBUG=INFO\n"), NCCL_DEBUG="WARN")
    assert "this is Kolo" not in log, log


def test_the_user_s_file_is_read_unless_another_is_named():
    file(".nccl.conf", "NCCL_DEBUG=INFO\n")
    assert "this is Kolo" in one()[1]
    assert "this is Kolo" not in one(NCCL_CONF_FILE=file("conf", ""))[1]
    assert "this is Kolo" not in one(NCCL_CONF_FILE="/no/such/file")[1]


def test_an_unknown_variable_is_warned_of_once():
    _, log = one(NCCL_NO_SUCH_THING="1", NCCL_NTHREADS="256")
    assert log.count("NCCL_NO_SUCH_THING") == 1 and "WARN" in log and "NCCL_NTHREADS" not in log, log
    _, log = one(NCCL_NTHREADS="256", NCCL_DEBUG="INFO")
    assert "NCCL INFO Kolo [nccl] NCCL_NTHREADS has no effect" in log, log


def test_the_log_goes_to_a_file():
    _, log = one(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(TMP / "log-%p"))
    files = [p for p in TMP.iterdir() if p.name.startswith("log-")]
    assert len(files) == 1 and re.fullmatch(r"log-\d+", files[0].name) and "this is Kolo" in files[0].read_text() and not log, (files, log)


def test_a_log_file_that_cannot_be_is_a_warning():
    for path in ("/no/such/folder/log", str(TMP)):
        out, log = one(NCCL_DEBUG_FILE=path)
        assert out.startswith("sum 1.0") and f"cannot open log file {path}" in log, (out, log)


def test_a_limit_that_is_no_number_is_named():
    out, _ = one(KOLO_NCCL_WAIT_MS="soon")
    assert out.startswith("error 4") and 'KOLO_NCCL_WAIT_MS="soon"' in out and "KOLO_OP_TIMEOUT_MS" not in out, out


def interfaces():
    return [name for _, name in socket.if_nameindex() if os.path.exists(f"/sys/class/net/{name}/operstate")]


def listens(text):
    out, log = one(NCCL_DEBUG="INFO", NCCL_SOCKET_IFNAME=text)
    found = re.findall(r"listening on interface (\S+)", log)
    return found[0] if found else out


def test_forms_of_interfaces():
    assert listens("lo") == "lo" and listens("=lo") == "lo" and listens("=nosuch,lo") == "lo"
    others = [n for n in interfaces() if not n.startswith("lo")]
    if others:
        assert listens("^" + ",".join(others)) == "lo", others
        assert listens("^lo") != "lo" and listens("^=lo") != "lo" and listens("^=l") == listens("^nosuch")
    out = listens("=l")
    assert out.startswith("error 5") and "NCCL_SOCKET_IFNAME==l" in out, out


def test_a_family_of_addresses():
    _, log = one(NCCL_DEBUG="INFO", NCCL_SOCKET_IFNAME="=lo", NCCL_SOCKET_FAMILY="AF_INET")
    assert "root listens on 127.0.0.1:" in log, log


def test_the_root_is_named():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{s.getsockname()[1]}"
    out, _ = one(NCCL_COMM_ID=where)
    assert out.startswith("error 5") and "NCCL_COMM_ID needs the job's secret: set KOLO_COMM_SECRET_FILE" in out, out
    secret = file("secret", "some words that only this job knows")
    os.chmod(secret, 0o600)
    env = os.environ | {"NCCL_COMM_ID": where, "KOLO_COMM_SECRET_FILE": secret, "KOLO_NCCL_CPU": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, "rank", LIBRARY, str(r), "2"], env=env, stdout=subprocess.PIPE, text=True) for r in range(2)]
    assert [r.communicate(timeout=60)[0] for r in ranks] == ["sum 2.0 4.0 6.0\n"] * 2


def two_hosts(**env):
    """What two ranks print that take themselves to be on two hosts, and their logs."""
    secret = file("secret", "some words that only this job knows")
    os.chmod(secret, 0o600)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{s.getsockname()[1]}"
    env = os.environ | {"NCCL_COMM_ID": where, "KOLO_COMM_SECRET_FILE": secret, "KOLO_NCCL_CPU": "1", "NCCL_DEBUG": "INFO"} | env
    ranks = [subprocess.Popen([sys.executable, __file__, "rank", LIBRARY, str(r), "2"], env=env | {"NCCL_HOSTID": f"host{r}"}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for r in range(2)]
    said = [r.communicate(timeout=60) for r in ranks]
    return [out for out, _ in said], "".join(err for _, err in said)


def test_a_network_plugin_that_is_named_moves_the_data():
    out, log = two_hosts(NCCL_NET_PLUGIN=PLUGIN)
    assert out == ["sum 2.0 4.0 6.0\n"] * 2 and PLUGIN in log, (out, log)
    out, log = two_hosts()
    assert out == ["sum 2.0 4.0 6.0\n"] * 2 and PLUGIN not in log, (out, log)


def test_a_network_plugin_that_is_none_is_named():
    for path in (LIBRARY, "/no/such/plugin.so"):
        out, log = two_hosts(NCCL_NET_PLUGIN=path)
        assert all(o.startswith("error ") and path in o for o in out), (out, log)


def test_log_lines_name_nccl_s_calls():
    secret = file("secret", "some words that only this job knows")
    os.chmod(secret, 0o600)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{s.getsockname()[1]}"
    env = os.environ | {"NCCL_COMM_ID": where, "KOLO_COMM_SECRET_FILE": secret, "KOLO_NCCL_CPU": "1", "NCCL_DEBUG_FILE": str(TMP / "log-%p")}
    first = subprocess.Popen([sys.executable, __file__, "rank", LIBRARY, "0", "2"], env=env, stdout=subprocess.PIPE, text=True)
    log = TMP / f"log-{first.pid}"
    until(lambda: log.exists() and "still waiting" in log.read_text(), "the log")
    assert "rank 1 to call ncclCommInitRank()" in log.read_text() and "kolo_comm" not in log.read_text(), log.read_text()
    subprocess.run([sys.executable, __file__, "rank", LIBRARY, "1", "2"], env=env, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert first.communicate(timeout=60)[0] == "sum 2.0 4.0 6.0\n"


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int),
                ("cga", ctypes.c_int), ("min_ctas", ctypes.c_int), ("max_ctas", ctypes.c_int), ("net", ctypes.c_char_p)]


def configured_main(library):
    """Communicators with a configuration that asks for what Kolo decides by itself."""
    nccl = ctypes.CDLL(library)
    for _ in range(3):
        ident, comm, none = Id(), ctypes.c_void_p(), -2**31
        config = Config(ctypes.sizeof(Config), 0xcafebeef, 21700, none, none, 2, none, b"Socket")
        assert nccl.ncclGetUniqueId(ctypes.byref(ident)) == 0
        assert nccl.ncclCommInitRankConfig(ctypes.byref(comm), 1, ident, 0, ctypes.byref(config)) == 0


class CallConfig(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("ext", ctypes.c_void_p), ("min_ctas", ctypes.c_int),
                ("max_ctas", ctypes.c_int), ("nvls_ctas", ctypes.c_int), ("cga", ctypes.c_int), ("algorithms", ctypes.c_char_p),
                ("force", ctypes.c_int), ("policy", ctypes.c_int), ("tag", ctypes.c_uint64), ("event", ctypes.c_void_p)]


def chosen_main(library):
    """Calls with a configuration that names an algorithm and a number of CTAs."""
    nccl = ctypes.CDLL(library)
    comm, none, data = ctypes.c_void_p(), -2**31, (ctypes.c_float * 3)(1, 2, 3)
    assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, None) == 0
    config = CallConfig(ctypes.sizeof(CallConfig), 0xcafebeef, 23203, None, none, 4, none, none, b"RING", 1, none, 0, None)
    for _ in range(3):
        assert nccl.ncclAllReduceConfig(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None, ctypes.byref(config)) == 0


def window_main(library):
    nccl = ctypes.CDLL(library)
    comm, memory, window = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, None) == 0
    assert nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
    assert nccl.ncclCommWindowRegister(comm, memory, ctypes.c_size_t(4096), ctypes.byref(window), 1) == 0
    print("a window" if window.value else "none")


def polls_main(library):
    """Two communicators fail, and the program asks both, by turns."""
    nccl = ctypes.CDLL(library)
    pairs, now = [(ctypes.c_void_p * n)() for n in (2, 3)], ctypes.c_int()
    for pair in pairs:
        assert nccl.ncclCommInitAll(pair, len(pair), None) == 0
    for pair in pairs:
        assert nccl.ncclCommAbort(ctypes.c_void_p(pair[-2])) == 0
    failed = 0
    while failed < 100:
        seen = []
        for pair in pairs:  # each has another text
            assert nccl.ncclCommGetAsyncError(ctypes.c_void_p(pair[-1]), ctypes.byref(now)) == 0
            seen.append(now.value)
        failed += seen == [6, 6]


def test_what_a_configuration_cannot_set_is_said_once():
    _, log = run([__file__, "configured", LIBRARY], NCCL_DEBUG="INFO")
    assert log.count("a configuration sets minCTAs netName, which Kolo decides by itself") == 1, log


def test_what_a_call_cannot_choose_is_said_once():
    _, log = run([__file__, "chosen", LIBRARY])
    assert log.count("names algorithms (algSelection)") == 1 and "WARN" in log and "maxCTAs" not in log, log
    _, log = run([__file__, "chosen", LIBRARY], NCCL_DEBUG="INFO")
    assert log.count("a call's configuration sets maxCTAs, which Kolo decides by itself") == 1, log


def test_windows_can_be_switched_off():
    out, log = run([__file__, "window", LIBRARY])
    assert out == "a window\n", (out, log)
    out, log = run([__file__, "window", LIBRARY], KOLO_NCCL_WINDOWS="0")
    assert out == "none\n", (out, log)


def test_a_failure_is_logged_once_however_often_it_is_asked_for():
    _, log = run([__file__, "polls", LIBRARY], KOLO_QUIET_EXIT="0")
    lines = [line for line in log.splitlines() if "aborted the communicator" in line]
    assert 1 <= len(lines) <= 4, (len(lines), lines[:6])


def test_the_first_line_says_that_it_is_kolo():
    _, log = one(NCCL_DEBUG="INFO", NCCL_PAT_ENABLE="0")
    assert "this is Kolo" in log.splitlines()[0], log


def test_variables_of_nccl_that_have_no_effect_are_known():
    _, log = one(NCCL_NVLS_CHUNKSIZE="1", NCCL_IB_MERGE_VFS="1", NCCL_PAT_ENABLE="0", NCCL_SOCKET_RCVBUF="-1", NCCL_SOCKET_SNDBUF="100000")
    assert "WARN" not in log, log


TWO = """
import ctypes, sys
first = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
second = ctypes.CDLL(sys.argv[2])
v = ctypes.c_int()
assert (second if sys.argv[3] == "second" else first).ncclGetVersion(ctypes.byref(v)) == 0
"""


def test_two_copies_are_told_of():
    paths = []
    for folder in ("a", "b"):
        (TMP / folder).mkdir()
        paths.append(str(TMP / folder / "libnccl.so.2"))
        shutil.copy(LIBRARY, paths[-1])
    _, log = run(["-c", TWO, *paths, "second"])
    assert "WARN" in log and "two NCCL libraries are loaded" in log and all(p in log for p in paths), log
    assert "lead to the other one" in log, log
    _, log = run(["-c", TWO, *paths, "first"], NCCL_DEBUG="INFO")
    assert "WARN" not in log and all(p in log for p in paths) and "names lead to this one" in log, log


if sys.argv[1] == "rank":
    rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
elif sys.argv[1] in ("configured", "chosen", "window", "polls"):
    globals()[sys.argv[1] + "_main"](sys.argv[2])
else:
    LIBRARY, PLUGIN = (os.path.abspath(a) for a in sys.argv[1:3])
    if b"san.so" in subprocess.run(["ldd", LIBRARY], capture_output=True, check=False).stdout:
        print("built with a sanitizer")
        sys.exit(77)
    for case in [n for n in globals() if n.startswith("test_")]:
        run_case(globals(), case[len("test_"):])
        print(f"{case}: right", flush=True)
