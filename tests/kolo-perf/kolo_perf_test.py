#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolo-perf as its users meet it. usage: kolo_perf_test.py KOLORUN KOLO-PERF CASE | none none --list
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

KOLORUN, KOLO_PERF = sys.argv[1:3]


def run(ranks, *args, **env):
    """Returns exit status, stdout and stderr of a job; the environment holds no KOLO_ name but those given."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
    p = subprocess.run([KOLORUN, "-n", str(ranks), "--no-tag", "--timeout", "90", KOLO_PERF, *args], env={**clean, **env},
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=110)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def good(ranks, *args, **env):
    status, out, err = run(ranks, *args, **env)
    assert status == 0, f"{args}: status {status}, stderr {err!r}, stdout {out!r}"
    return out


def rows_of(ranks, *args, **env):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows.json"
        good(ranks, *args, "--json", str(file), **env)
        return json.loads(file.read_text())["rows"]


def case_every_row_has_a_prediction():
    for ranks in (2, 3):
        rows = rows_of(ranks, "run", "--iters", "5", "--max", "1M")
        assert {r["collective"] for r in rows} >= {"all_reduce", "scatter", "sendrecv", "barrier"}, rows
        for r in rows:
            assert r["wrong"] in (0, -1) and r["algorithm"] not in ("none", "-"), r
            assert r["predicted_us"] > 0, r
            assert (r["copy_share"] is not None) == (r["bytes"] >= 1 << 20), r
        if ranks > len(os.sched_getaffinity(0)):
            continue  # a message that arrives while its reader works costs no switch: longer can be quicker
        # more bytes cannot be predicted to take less by the same algorithm
        for a, b in zip(rows, rows[1:]):
            if (a["collective"], a["algorithm"]) == (b["collective"], b["algorithm"]) and a["bytes"] < b["bytes"]:
                assert a["predicted_us"] <= b["predicted_us"] * 1.001, (a, b)


def case_the_algorithm_that_ran_is_told():
    rows = rows_of(3, "all_reduce", "--iters", "3", "--min", "64K", "--max", "256K", KOLO_ALGO="all_reduce=ring")
    assert [r["algorithm"] for r in rows] == ["ring", "ring"], rows


def case_puts_into_windows_bring_what_was_put():
    for env in ({}, {"KOLO_CMA_DISABLE": "1", "KOLO_SHM_DISABLE": "1"}):
        rows = rows_of(3, "put", "--iters", "5", "--min", "8", "--max", "1M", "--factor", "64", **env)
        assert len(rows) == 3 and all(r["collective"] == "put" and r["wrong"] == 0 for r in rows), rows


def case_keyed_tensors_are_counted():
    for protocol, copies, more in (("kolo+shm", 0, []), ("kolo+tcp", 0, []), ("kolo+buffered", 2, []),
                                   ("kolo+tcp", 0, ["--into"]), ("kolo+buffered", 2, ["--into"])):
        p = subprocess.run([KOLO_PERF, "rendezvous", "--protocol", protocol, "-b", "64K", "-e", "64K", "-n", "600", *more],
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
        assert p.returncode == 0, p.stderr
        line = p.stdout.decode().splitlines()[-1]
        counts = dict(re.findall(r"(\w+)=([0-9.]+)", line))
        assert line.startswith("count rendezvous") and counts["bytes"] == "65536", line
        # one request and its answer; what is beyond are the words between the two processes, a few for 600 values
        assert abs(float(counts["copies"]) - copies) < 0.05 and abs(float(counts["trips"]) - 1) < 0.05, line


def case_keyed_tensors_refuse_wrong_arguments():
    for args, env, why in ((["--bogus"], {}, "'--bogus'"), (["--min", "x"], {}, "--min (-b) needs a number from 1 on, not: x"),
                           (["-n", "0"], {}, "--values (-n) needs a number from 1 on, not: 0"), (["x"], {}, "unexpected argument: x"),
                           ([], {"KOLO_RANK": "0", "KOLO_NRANKS": "2"}, "run it without kolorun")):
        p = subprocess.run([KOLO_PERF, "rendezvous", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
                           env={**os.environ, **env})
        assert p.returncode == 2 and p.stderr.startswith("kolo-perf rendezvous: ") and why in p.stderr, p
        assert "try 'kolo-perf rendezvous --help'" in p.stderr and len(p.stderr.splitlines()) <= 2, p.stderr


def case_one_rank_predicts_nothing():
    rows = rows_of(1, "all_reduce", "--iters", "3", "--max", "64")
    assert rows and all(r["predicted_us"] is None for r in rows), rows


def case_every_algorithm_is_compared_with_the_choice():
    out = good(3, "all_reduce", "gather", "barrier", "--every-algorithm", "--iters", "9", "--max", "2048")
    rows = [l.split() for l in out.splitlines() if l.startswith("  ")]
    assert len(rows) == 5 + 5 + 1, out
    for row in rows:
        words = [w for w in row if w != "<"]
        name, chosen, us, best, best_us, ratio = words[0], words[2], float(words[3]), words[4], float(words[5]), float(words[6])
        all_us = {k: float(v) for k, v in (w.split("=") for w in words[7:])}
        assert len(all_us) >= 2 and all_us[chosen] == us and all_us[best] == best_us == min(all_us.values()), row
        slack = 0.0051 + 0.0051 * (1 + us / best_us) / (best_us - 0.005)  # all three are rounded to 0.01
        assert abs(ratio - us / best_us) < slack and (("<" in row) == (us / best_us > 1.1) or abs(us / best_us - 1.1) < slack), row
    assert {"ring", "tree", "direct", "one_step", "flat"} <= {w.split("=")[0] for w in rows[0] if "=" in w}, rows[0]
    last = re.fullmatch(r"tuner within 10 % at (\d+) of 11 points \(\d+\.\d %\)", out.splitlines()[-1])
    assert last and int(last[1]) == sum("<" not in r for r in rows), out


def case_shared_cores_are_told():
    core = str(min(os.sched_getaffinity(0)))
    p = subprocess.run(["taskset", "-c", core, KOLORUN, "-n", "2", "--no-tag", KOLO_PERF, "barrier", "--iters", "3"],
                       capture_output=True, text=True, timeout=110)
    assert p.returncode == 0 and re.search("^# 2 ranks share 1 core of host .*not the times", p.stdout, re.M), p


def case_wrong_arguments_are_named():
    for args, why in ((["all_reduces"], "all_reduces"), ([], "no collective"), (["run", "--min", "x"], "--min"),
                      (["run", "--every-algorithm", "--both"], "--every-algorithm"), (["run", "--type", "int7"], "int7"),
                      (["run", "--bogus"], "--bogus"), (["run", "-x"], "-x"), (["run", "-n"], "-n"), (["run", "-c", "2"], "-c"),
                      (["run", "--op", "land"], "land"), (["run", "-n", "0"], "from 1 on"),
                      (["run", "-g", "2"], "kolorun -n says how many ranks"), (["run", "-t", "2"], "kolorun -n says how many ranks"),
                      (["run", "-i", "1M"], "times -f"), (["run", "-m", "4"], "-m needs 1"), (["run", "-z", "1"], "-z needs 0"),
                      (["allreduce", "-r", "3"], "--root 3, the ranks are 0 to 0"), (["run", "-b", "2K", "-e", "1K"], "--min is above"),
                      (["all_redcue"], "all_redcue (did you mean all_reduce?)"), (["run", "--op", "summ"], "summ (did you mean sum?)"),
                      (["run", "--type", "flaot64"], "flaot64 (did you mean float64?)"),
                      (["run", "-b", "3", "-e", "3"], "--max is less than one element has bytes: float32")):
        p = subprocess.run([KOLO_PERF, *args], capture_output=True, timeout=30)
        err = p.stderr.decode()
        assert p.returncode == 2 and why in err and p.stdout == b"", (args, p)
        assert len(err.splitlines()) == 1 and err.endswith("try 'kolo-perf --help'\n"), err


def case_version_and_help():
    p = subprocess.run([KOLO_PERF, "--version"], capture_output=True, text=True, timeout=30)
    assert p.returncode == 0 and re.fullmatch(r"kolo-perf \d+\.\d+\.\d+\n", p.stdout), p
    p = subprocess.run([KOLO_PERF, "--help"], capture_output=True, text=True, timeout=30)
    assert p.returncode == 0 and "usage:" in p.stdout and "-b, --min" in p.stdout, p


def case_options_of_nccl_tests():
    for name in ("allreduce", "all-reduce", "AllReduce", "all_reduce"):
        out = good(2, name, *"-b 1K -e 4K -f 2 -n 5 -w 1 -c 1 -d double -o max -r 0".split())
        rows = [l.split() for l in out.splitlines() if l.startswith("  ")]
        assert [r[:5] for r in rows] == [[str(s), str(s // 8), "float64", "max", "-1"] for s in (1024, 2048, 4096)], out
        head = [l.split() for l in out.splitlines() if l.startswith("# ")]
        assert ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"] in [h[:10] for h in head], out
        assert any(h[1:6] == ["(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"] for h in head), out
        last = re.fullmatch(r"# out of bounds values: 0 OK, average busbw: (\d+\.\d+) GB/s", out.splitlines()[-1])
        assert last and abs(float(last[1]) - sum(float(r[7]) for r in rows) / 3) < 0.002, out
    out = good(2, "broadcast", *"-b 64 -e 64 -n 3 -c 0 -r 1 -g 1 -t 1 -m 1 -z 0".split())
    assert [l.split()[2:5] for l in out.splitlines() if l.startswith("  ")] == [["float32", "none", "1"]], out
    assert out.splitlines()[-1].startswith("# out of bounds values: not checked, average"), out


def case_the_plot_says_what_where_and_when():
    with tempfile.TemporaryDirectory() as folder:
        plot = pathlib.Path(folder, "rows.svg")
        good(2, "all_reduce", *f"-b 8 -e 4K --both -n 3 --plot {plot}".split())
        texts = [e.text for e in xml.etree.ElementTree.parse(plot).iter() if e.text and e.text.strip()]
        for word in ("kolo-perf: 2 ranks, float32", "bytes", "median time of a call", "busbw", "all_reduce", "2 KB", " us", "B/s"):
            assert any(word in t for t in texts), (word, texts)
        assert any(re.search(rf"rank 0 on {re.escape(socket.gethostname())}, \d{{4}}-\d\d-\d\d \d\d:\d\d", t) for t in texts), texts
        lines = [e for e in xml.etree.ElementTree.parse(plot).iter() if e.tag.endswith("polyline")]
        assert len(lines) == 4, "a line out of place and one in place, of time and of bandwidth"


def case_a_misspelt_parameter_is_named_with_the_one_that_was_meant():
    for wrong, meant in (("KOLO_OP_TIMEOUT", "KOLO_OP_TIMEOUT_MS"), ("KOLO_SHM_DISABEL", "KOLO_SHM_DISABLE")):
        _, _, err = run(1, "all_reduce", "--max", "8", "--iters", "2", **{wrong: "1"})
        assert f"unknown parameter {wrong} in the environment (is {meant} meant?)" in err, err
    _, _, err = run(1, "all_reduce", "--max", "8", "--iters", "2", KOLO_NOTHING_OF_THE_KIND="1")
    assert "unknown parameter KOLO_NOTHING_OF_THE_KIND in the environment; " in err, err


def case_an_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "w") as full:
        p = subprocess.run([KOLO_PERF, "all_reduce", "--max", "8", "--iters", "2"], stdout=full, stderr=subprocess.PIPE,
                           text=True, timeout=110)
    assert p.returncode == 1 and "standard output: No space left on device" in p.stderr, (p.returncode, p.stderr)


def case_a_file_that_cannot_be_written_is_an_error():
    for option in ("--json", "--plot"):
        status, out, err = run(2, "barrier", "--iters", "3", option, "/nonexistent/rows.json")
        assert status == 1 and "/nonexistent/rows.json" in err, (status, err)
        with tempfile.TemporaryDirectory() as folder:
            pipe, link, target = (pathlib.Path(folder, name) for name in ("pipe", "link", "target"))
            os.mkfifo(pipe)
            status, out, err = run(2, "barrier", "--iters", "3", option, str(pipe))
            assert status == 1 and "nobody reads from this pipe" in err, (status, err)
            if os.geteuid() == 0:
                link.symlink_to(target)
                os.lchown(link, 12345, 12345)
                status, out, err = run(2, "barrier", "--iters", "3", option, str(link))
                assert status == 1 and "symbolic link of another user" in err and not target.exists(), (status, err)
        assert out == "", "it measured before it looked whether it can write"


def case_one_that_is_stopped_leaves_no_file():
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, name) for name in ("rows.json", "rows.svg")]
        files[1].write_text("of an earlier run")
        p = subprocess.Popen([KOLORUN, "-n", "2", "--no-tag", KOLO_PERF, *f"all_reduce -b 1M -e 64M -n 100000 --json {files[0]} --plot {files[1]}".split()],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        p.stdout.readline()
        p.terminate()
        p.communicate(timeout=60)
        assert not files[0].exists() and files[1].read_text() == "of an earlier run"


CASES = {name[len("case_"):]: f for name, f in list(globals().items()) if name.startswith("case_")}
if sys.argv[3] == "--list":
    print("\n".join(CASES))
else:
    CASES[sys.argv[3]]()
