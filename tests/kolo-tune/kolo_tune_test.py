#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolo-tune and the table file as users meet them. usage: kolo_tune_test.py KOLO-TUNE CASE | none --list
# From the environment: KOLORUN_PROGRAM, KOLO_PERF_PROGRAM, KOLO_INFO_PROGRAM, GPU_RESULTS, FAKE_CUDA (if there is one).
import os
import pathlib
import re
import subprocess
import sys
import tempfile

KOLO_TUNE = sys.argv[1]
PROGRAMS = {name: os.environ.pop(name, "") for name in ("KOLORUN_PROGRAM", "KOLO_PERF_PROGRAM", "KOLO_INFO_PROGRAM",
                                                        "GPU_RESULTS", "FAKE_CUDA")}


def run(*command, **env):
    """Returns exit status, stdout and stderr; the environment holds no KOLO_ name but those given."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
    p = subprocess.run(command, env={**clean, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=160)
    return p.returncode, p.stdout, p.stderr


def good(*command, **env):
    status, out, err = run(*command, **env)
    assert status == 0, f"{command}: status {status}, stderr {err!r}, stdout {out!r}"
    return out


def info(*args, **env):
    return good(PROGRAMS["KOLO_INFO_PROGRAM"], *args, **env)


def tune(file, *args, **env):
    return good(KOLO_TUNE, "-o", str(file), *args, **env)


def in_folder(test):
    def wrapped():
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
    wrapped.__name__ = test.__name__
    return wrapped


@in_folder
def case_what_is_measured_is_chosen(folder):
    file = folder / "table"
    out = tune(file, "--ranks", "2", "--gpus", "", "--seconds", "3", "--max", "16K")
    assert f"KOLO_TUNE_FILE={file.resolve()}" in out and "measuring 2 ranks, 1 of 1, about 3 s" in out, out
    text = file.read_text()
    lines = [line for line in text.splitlines() if line.startswith("cpu all_reduce ")]
    assert text.startswith("kolo-tune 1\n") and lines and all(" ranks=2 " in line for line in lines), text
    for word in ("reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier"):
        assert f"\ncpu {word} ranks=2 from=0 " in text, (word, text)
    # another number of ranks is added, and what was there stays
    tune(file, "--ranks", "3", "--gpus", "", "--seconds", "3", "--max", "4K")
    again = file.read_text()
    assert all(line in again for line in lines) and "cpu all_reduce ranks=3 from=0" in again, again
    # and a job runs by it
    good(PROGRAMS["KOLORUN_PROGRAM"], "-n", "2", PROGRAMS["KOLO_PERF_PROGRAM"], "run", "-e", "64K", "-n", "3",
         KOLO_TUNE_FILE=str(file))


@in_folder
def case_explain_names_the_file(folder):
    file = folder / "table"
    file.write_text("kolo-tune 1\ncpu all_reduce ranks=4 from=0 algo=ring\ncpu all_reduce ranks=4 from=4096 algo=tree\n"
                    "gpu ranks=2 ll_all_reduce=1024 ll_others=0 ll128_all_reduce=2048 ll128_others=0 message_lines=0 give=0\n"
                    "end 3\n")
    env = {"KOLO_TUNE_FILE": str(file)}
    out = info("--explain", "all_reduce", "8K", "4", **env)
    assert "chosen: tree" in out and "(from the table file)" in out and f"KOLO_TUNE_FILE={file}" in out, out
    out = info("--explain", "all_reduce", "64", "4", **env)
    assert "chosen: ring" in out, out
    out = info("--explain", "all_reduce", "64", "3", **env)
    assert "table file" not in out, out
    out = info("--explain", "all_reduce", "64", "4", KOLO_ALGO="direct", **env)
    assert "chosen: direct" in out and "names ring, which is forced away" in out, out
    out = info("--explain", "all_reduce", "8K", "2", "--gpu", **env)
    assert "chosen: two steps" in out and "limits: from the table file" in out, out
    out = info("--explain", "all_reduce", "8K", "2", "--gpu")
    assert "chosen: lines," in out and "limits: built in" in out, out


@in_folder
def case_bad_files_are_refused(folder):
    file = folder / "table"
    file.write_text("kolo-tune 1\ncpu all_reduce ranks=2 from=0 algo=ring\n")
    status, _, err = run(PROGRAMS["KOLORUN_PROGRAM"], "-n", "2", PROGRAMS["KOLO_PERF_PROGRAM"], "barrier", KOLO_TUNE_FILE=str(file))
    assert status != 0 and "KOLO_TUNE_FILE: " in err and "cut off" in err, (status, err)
    status, _, err = run(PROGRAMS["KOLO_INFO_PROGRAM"], "--params", KOLO_TUNE_FILE=str(folder / "none"))
    assert status == 1 and "cannot read the table file" in err, (status, err)


@in_folder
def case_bad_output_is_refused_before_the_measuring(folder):
    (folder / "text").write_text("hello\n")
    for file, why in ((folder / "none" / "table", "cannot write"), (folder, "cannot write"), (folder / "text", "is not a table of kolo-tune")):
        status, out, err = run(KOLO_TUNE, "-o", str(file), "--ranks", "2")
        assert status == 1 and out == "" and len(err.splitlines()) == 1 and why in err and str(file) in err, (status, out, err)
    assert (folder / "text").read_text() == "hello\n"
    status, out, err = run(PROGRAMS["KOLORUN_PROGRAM"], "-n", "1", "--no-tag", KOLO_TUNE, "-o", str(folder / "table"), "--ranks", "2")
    assert status == 2 and out == "" and "this program starts the ranks itself: run it without kolorun" in err, (status, out, err)
    for args in (("--seconds", "0"), ("--ranks", "1"), ("--ranks", "x"), ("--bogus",), ("word",), ("--max", "1X"), ("--max", "0"),
                 ("--gpu-max", "4"), ("--secnds", "3")):
        status, out, err = run(KOLO_TUNE, *args)
        assert status == 2 and out == "" and len(err.splitlines()) == 1 and "try 'kolo-tune --help'" in err, (status, out, err)
    assert "did you mean --seconds?" in err, err


@in_folder
def case_ranks_with_different_files_are_told(folder):
    for rank, algo in enumerate(("ring", "tree")):
        (folder / f"table.{rank}").write_text(f"kolo-tune 1\ncpu all_reduce ranks=2 from=0 algo={algo}\nend 1\n")
    command = f'KOLO_TUNE_FILE={folder}/table.$KOLO_RANK exec {PROGRAMS["KOLO_PERF_PROGRAM"]} barrier'
    status, _, err = run(PROGRAMS["KOLORUN_PROGRAM"], "-n", "2", "sh", "-c", command)
    assert status != 0 and "KOLO_TUNE_FILE" in err and "rank 1" in err, (status, err)
    command = command.replace("$KOLO_RANK", "0")
    good(PROGRAMS["KOLORUN_PROGRAM"], "-n", "2", "sh", "-c", command)


def case_predictions_are_near_what_was_measured():
    """Each row of gpu-2.txt that was measured with the built-in limits of today, within a quarter."""
    rows, graph, tables = 0, False, {}
    for line in pathlib.Path(PROGRAMS["GPU_RESULTS"]).read_text().splitlines():
        if line.startswith("# peers-gpu "):
            graph, wanted = "--graph" in line, "--type" not in line
        found = re.fullmatch(r"(\w+) +(\d+) +[\d.]+ +([\d.]+) +[\d.]+", line)
        if not found or not wanted:
            continue
        op, size, us = "p2p" if found[1] == "sendrecv" else found[1], int(found[2]), float(found[3])
        if (op, graph) not in tables:
            out = info("--model", op, "2", *(["--graph"] if graph else []))
            tables[op, graph] = {int(m[1]): float(m[2]) for m in re.finditer(r"^ +(\d+) +([\d.]+)  ", out, re.M)}
        predicted = tables[op, graph][size]
        assert abs(predicted / us - 1) <= 0.25, f"{line}: predicted {predicted}"
        rows += 1
    assert rows > 100, rows


def case_more_gpus_are_predicted():
    """What must hold whatever the constants: more bytes take longer, and a link cannot carry more than it has."""
    for gpus in (2, 4, 8):
        out = info("--model", "all_reduce", str(gpus))
        times = [(int(m[1]), float(m[2])) for m in re.finditer(r"^ +(\d+) +([\d.]+)  ", out, re.M)]
        assert len(times) == 31, out
        for (a, us), (b, more) in zip(times, times[1:]):
            assert more >= us * 0.9, (gpus, a, us, b, more)
        size, us = times[-1]
        busbw = size * 2 * (gpus - 1) / gpus / us / 1e3
        assert 300 < busbw < 400, (gpus, busbw)


@in_folder
def case_gpus_are_measured(folder):
    if not PROGRAMS["FAKE_CUDA"]:
        return
    file = folder / "table"
    env = {"KOLO_CUDA_LIBRARY": PROGRAMS["FAKE_CUDA"], "FAKE_CUDA_SMS": "4"}
    tune(file, "--ranks", "", "--gpus", "2", "--gpu-max", "64K", **env)
    text = file.read_text()
    assert re.search(r"^gpu ranks=2 ll_all_reduce=\d+ ", text, re.M) and "\nmachine launch_ns=" in text, text
    out = good(PROGRAMS["KOLORUN_PROGRAM"], "-n", "2", "--no-tag", PROGRAMS["KOLO_PERF_PROGRAM"], "--gpu", "run", "-e", "64K", "-n", "2",
               KOLO_TUNE_FILE=str(file), **env)
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d", line)]
    assert rows and all(float(row[12]) > 0 for row in rows), out


def main():
    cases = {name[5:]: f for name, f in globals().items() if name.startswith("case_")}
    if sys.argv[2] == "--list":
        print("\n".join(cases))
        return
    cases[sys.argv[2]]()


main()
