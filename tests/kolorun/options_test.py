#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolorun's command line, right and wrong, and what it says of programs that cannot run. usage: options_test.py KOLORUN CASE
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import matches, run_case, same

KOLORUN = pathlib.Path(sys.argv[1]).absolute()
TMP = None  # a directory of this test's own; its TMPDIR, too
LIMIT_S = 30


def run(*args, **kwargs):
    p = subprocess.run([KOLORUN, *args], capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, **kwargs)
    assert not list(TMP.glob("kolorun-*")), "the directory of the id was left behind"
    return p.returncode, p.stdout, p.stderr


def test_number_of_ranks_as_mpirun_has_it():
    for option in ("-np", "--np"):
        same(sorted(run(option, "2", "sh", "-c", "echo $KOLO_NRANKS")[1].splitlines()), ["[0] 2", "[1] 2"])


def test_hosts_as_mpirun_has_them():
    (TMP / "one_dash").write_text("localhost slots=2\n")
    for option, value in (("-host", "localhost:2"), ("-hosts", "localhost:2"), ("-hostfile", str(TMP / "one_dash"))):
        same(sorted(run(option, value, "sh", "-c", "echo $KOLO_NRANKS")[1].splitlines()), ["[0] 2", "[1] 2"])


def test_output_files_that_must_not_grow_end_no_job():
    out = TMP / "out"
    job = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", KOLORUN, "-n", "2", "--output-dir", out, "seq", "1", "5000"]
    p = subprocess.run(job, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    same((p.returncode, len(p.stdout.splitlines())), (0, 10000))
    for rank in range(2):
        matches(f"the output files of rank {rank} are not complete: File too large", p.stderr)
        same((out / f"rank.{rank}" / "stdout").stat().st_size > 1000, True)


def test_every_address_of_the_loopback_network_is_here():
    for hosts in ("127.0.1.1:1,127.3.2.1:1", "[0:0:0:0:0:0:0:1]:1,localhost:1"):
        same(run("-H", hosts, "--ssh", "/bin/false", "true"), (0, "", ""))


def test_missing_program_is_said_once():
    status, _, err = run("-n", "3", "no-such-program")
    same(status, 127)
    # whichever rank comes to it first
    same(re.sub("rank [012] ", "rank R ", err), "kolorun: rank R cannot start no-such-program: No such file or directory in PATH\n")
    (TMP / "beside").write_text("#!/bin/sh\n")
    (TMP / "beside").chmod(0o755)
    same(run("-n", "1", "beside", cwd=TMP)[2],
         "kolorun: rank 0 cannot start beside: No such file or directory in PATH; try ./beside\n")


def test_a_script_that_lies_here_is_offered():
    (TMP / "here.py").write_text("#!/usr/bin/env python3\n")
    err = run("-n", "1", "here.py", cwd=TMP)[2]
    assert "it lies here and may not be executed: chmod +x, then ./here.py" in err, err


def test_a_missing_interpreter_is_told_apart_from_a_missing_program():
    (TMP / "script").write_text("#!/usr/bin/no-such-interpreter\n")
    (TMP / "script").chmod(0o755)
    status, _, err = run("-n", "1", str(TMP / "script"))
    assert status == 127 and "the interpreter that its first line names" in err, (status, err)


def test_lines_of_a_shell_get_a_hint():
    for line, want in (("echo hi | cat", "sh -c 'LINE'"), ("KOLO_LOG=info", "-x NAME=VALUE")):
        status, _, err = run("-n", "1", line, "true")
        assert status == 127 and want in err, (line, status, err)


def test_a_launcher_within_a_launcher_is_told():
    status, out, err = run("-n", "2", KOLORUN, "-n", "2", "true")
    assert status == 0 and "kolorun has started 2 of these, and each starts a job of its own" in err, (status, err)
    same(err.count("one launcher is enough"), 1)
    same(run("-n", "1", KOLORUN, "-n", "2", "true")[2], "")


def test_mistyped_options_are_guessed():
    for args, want in ((["--output-dri", "x", "true"], "did you mean --output-dir?"), (["--hostflie=x", "true"], "did you mean --hostfile?")):
        status, _, err = run(*args)
        assert status == 2 and want in err.splitlines(), (args, err)
    assert "did you mean" not in run("--nonsense", "true")[2]
    for option in ("--nproc_per_node", "--nproc-per-node=2"):  # torchrun's
        assert "did you mean -n N?" in run(option, "2", "true")[2].splitlines(), option


def test_an_option_behind_the_program_is_told_where_it_belongs():
    for args in (("./train", "-n", "4"), ("./train", "--lr", "0.1", "-H", "a,b")):
        status, _, err = run(*args)
        assert status == 2 and "come before the program" in err, (args, err)
    assert "come before" not in run("./train")[2]


def test_a_wrong_line_of_a_host_file_is_numbered():
    (TMP / "wrong").write_text("# two hosts\nlocalhost:2\nb ad:x\n")
    status, _, err = run("--hostfile", str(TMP / "wrong"), "true")
    assert status == 2 and 'line 3: "b ad:x"' in err, err


def test_two_numbers_of_slots_are_no_address():
    status, _, err = run("-H", "localhost:2:3", "true")
    assert status == 2 and '"localhost:2:3" is neither host:slots nor an address of IPv6' in err, (status, err)


def test_bad_options_are_refused():
    for args in ((), ("-n", "2"), ("-n", "0", "true"), ("-n", "2x", "true"), ("-n", "1", "-x", "novalue", "true"),
                 ("-n", "1", "--timeout", "-1", "true"), ("-n", "1", "--bind-to", "sockets", "true"), ("-n", "1", "--nonsense", "true")):
        status, out, err = run(*args)
        assert status == 2 and out == "" and err, f"{args}: status {status}, {err!r}"
        assert len(err.splitlines()) <= 2, f"{args}: more than the mistake and where help is: {err!r}"


def test_words_of_mpirun():
    matches('several programs, separated by ":", are not possible', run("-n", "1", "echo", "a", ":", "-n", "1", "echo", "b")[2])
    same(run("-n", "1", "--oversubscribe", "--allow-run-as-root", "sh", "-c", ":"), (0, "", ""))
    same(run("-n", "1", "echo", ":", "x"), (0, "[0] : x\n", ""))  # a colon alone is a word like others
    same(run("-n", "1", "--", "echo", ":", "-n", "1"), (0, "[0] : -n 1\n", ""))  # after -- all words are the program's
    status, _, err = run("-n", "1", "--ssh", "--", "echo", ":", "-n", "1")  # this -- is the value of --ssh
    assert status == 2 and "is a word for the program, put -- before the program" in err, (status, err)


def test_programs_and_host_files_that_are_none():
    (TMP / "text").write_text("no program\n")
    (TMP / "hosts").write_text("# nobody\n")
    for args, want in ((["-n", "1", str(TMP)], "it is a directory"),
                       (["-n", "1", str(TMP / "text")], r"it may not be executed \(chmod"),
                       (["-n", "1", "sh", "-c", "exit 127"], "status 127 .*LD_LIBRARY_PATH"),
                       (["--hostfile", str(TMP / "hosts"), "true"], "names no host")):
        status, _, err = run(*args)
        assert status != 0
        matches(want, err)


run_case(globals(), sys.argv[2])
