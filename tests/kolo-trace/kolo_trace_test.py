#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Timelines of real processes under a strict JSON parser, and kolo-trace on them, whole and damaged.
# usage: kolo_trace_test.py KOLO-TRACE CASE | none --list; KOLORUN and TRACE_PROGRAM in the environment
import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cases import has_word, kill_if

TOOL = sys.argv[1]
RANKS = 3
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}


def trace(*args, status=0):
    p = subprocess.run([sys.executable, TOOL, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    text = p.stdout.decode() + p.stderr.decode()
    assert "Traceback" not in text, text
    assert status is None or p.returncode == status, (args, p.returncode, text)
    return text


def job(folder, *args, **env):
    cmd = [os.environ["KOLORUN"], "-n", str(RANKS), os.environ["TRACE_PROGRAM"], *map(str, args)]
    return subprocess.Popen(cmd, env={**CLEAN, "KOLO_TIMELINE": f"{folder}/t.%r.json", **env}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_job(folder, *args, end="", **env):
    p = job(folder, *args, **({"KOLO_TIMELINE": f"{folder}/t.%r.json{end}"} if end else {}), **env)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0, (out, err)
    return [folder / f"t.{r}.json{end}" for r in range(RANKS)]


def no_constant(text):
    raise AssertionError(text + " in JSON")


def text_of(path):
    """Of a gzip file with check sum and length."""
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def strict(path):
    return json.loads(text_of(path).decode("utf-8"), parse_constant=no_constant)


def rows(text, title):
    """The lines of a table by their first words."""
    body = text[text.index(title):].split("\n\n")[0].splitlines()[2:]
    return {re.split(r"  +", line.strip())[0]: re.split(r"  +", line.strip())[1:] for line in body}


def names_of(events):
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


# ---- cases ----


def summary_names_the_slowest_rank(folder):
    files = run_job(folder, "steps", 1)
    text = trace(*files)
    assert f"{RANKS} of {RANKS} ranks" in text and "5 tensors" in text, text
    steps = rows(text, "Where the time of a step goes")
    for r in range(RANKS):
        count, took, *parts = map(float, steps[f"rank {r}"])
        assert count == 20 and abs(took - sum(parts)) < 0.01, (r, steps)
    # Rank 1 is late by 30 ms, so its own negotiation is short and the others' long.
    assert float(steps["rank 0"][5]) > 18 > float(steps["rank 1"][5]) or float(steps["rank 0"][5]) > 2 * float(
        steps["rank 1"][5]), steps
    late = rows(text, "Who was the last")
    assert int(late["rank 1"][0]) > int(late["rank 0"][0]) + int(late["rank 2"][0]), late
    tensors = rows(text, "Tensors, mean")
    assert set(tensors) == {f"layer.{i}" for i in range(5)}, tensors
    assert all(t[0] == "60" and t[-1] == "rank 1" for t in tensors.values()), tensors
    assert "The longest 2 steps" in trace("--steps", 2, "--tensors", 0, "--mark", "layer.3", *files)
    assert "no tensor 'nope'" in trace("--mark", "nope", *files, status=1)


def names_do_not_lead_the_terminal(folder):
    files = run_job(folder, "steps", 1)
    for f in files:
        f.write_text(f.read_text().replace("layer.0", "\\u001b[2J\\u009b"))
    text = trace(*files)
    assert "?[2J?" in text and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), text
    assert "\x1b" not in trace("--mark", "\x1b[2Jnope", *files, status=1)


def merged_by_clock_offset(folder):
    files = run_job(folder, "steps", 2)
    for f in files:  # one machine has one clock, so what was measured is the error of the measurement
        clocks = [e["args"] for e in strict(f) if e["name"] == "CLOCK"]
        assert clocks and all(abs(c["offset_ns"]) <= c["error_ns"] for c in clocks), (f, clocks)
    text = files[1].read_text()  # as from a host whose clock is five seconds ahead
    text = re.sub(r'"start_ns":(\d+)', lambda m: f'"start_ns":{int(m[1]) + 5_000_000_000}', text)
    text = re.sub(r'"offset_ns":(-?\d+)', lambda m: f'"offset_ns":{int(m[1]) - 5_000_000_000}', text)
    files[1].write_text(text)
    said = trace("--merge", folder / "all.json", *files)
    error_us = float(re.search(r"clocks within ([\d.]+) us", said)[1])
    events = strict(folder / "all.json")
    names = {r: names_of([e for e in events if e["pid"] == r]) for r in range(RANKS)}
    ready, agreed = {}, {}
    for e in events:
        name = names[e["pid"]].get(e["tid"])
        if e["ph"] == "X" and e["name"] == str(e["pid"]):
            ready.setdefault(name, {}).setdefault(e["pid"], []).append(e["ts"])
        if e["ph"] == "E" and e["name"] == "NEGOTIATE_ALLREDUCE":
            agreed.setdefault(name, {}).setdefault(e["pid"], []).append(e["ts"])
    assert len(ready) == 5
    for name in ready:
        assert len(ready[name]) == RANKS and all(len(r) == 20 for r in ready[name].values())
        for i in range(20):  # nobody has agreed before all were ready
            last = max(r[i] for r in ready[name].values())
            first = min(a[i] for a in agreed[name].values())
            assert last <= first + 2 * error_us + 1, (name, i, last, first, error_us)
    assert "merged" in trace(folder / "all.json", status=1)


def edited(path, to, process, start_ns, offset_ns):
    text = re.sub(r'"process":\d+', f'"process":{process}', path.read_text())
    text = re.sub(r'"start_ns":(\d+)', lambda m: f'"start_ns":{int(m[1]) + start_ns}', text)
    to.write_text(re.sub(r'"offset_ns":(-?\d+)', lambda m: f'"offset_ns":{int(m[1]) + offset_ns}', text))
    return to


def engines_of_one_job_become_one_timeline(folder):
    """Process 100 is lost, 101 becomes rank 0, 102 becomes rank 1, 103 is new. The clock of 101 is 5 s ahead of the
    others', the second engine works a minute after the first: the same events, so that times can be compared."""
    second, files = 1_000_000_000, run_job(folder, "steps", -1)
    for rank, ahead in ((0, 0), (1, 5), (2, 0)):
        edited(files[rank], files[rank], 100 + rank, ahead * second, -ahead * second)
    late = [edited(files[0], folder / "late.0", 101, 65 * second, 0),
            edited(files[1], folder / "late.1", 102, 55 * second, 10 * second),
            edited(files[2], folder / "late.2", 103, 60 * second, 5 * second)]
    said = trace("--merge", folder / "all.json", *files, "--then", *late)
    assert "3 of 3, then 3 of 3 ranks" in said, said
    events = strict(folder / "all.json")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [re.sub(" on .*", "", names[p]) for p in range(4)] == ["rank 0", "rank 1, then 0", "rank 2, then 1", "rank 2"], names
    for pid in range(4):
        rows = names_of([e for e in events if e["pid"] == pid])
        assert sorted(rows.values()) == ["cycles"] + [f"layer.{i}" for i in range(5)], rows
    begins = [[e["ts"] for e in events if e["pid"] == pid and e["ph"] == "B"] for pid in range(4)]
    count = len(begins[0])
    assert [len(b) for b in begins] == [count, 2 * count, 2 * count, count] and count > 0, [len(b) for b in begins]
    for rank in range(3):
        before, after = begins[rank][:count], begins[rank + 1][-count:]
        assert all(abs(b + 60e6 - a) < 1000 for b, a in zip(before, after)), (rank, before[0], after[0])
    # who forgets --then is told of it
    assert "both of rank 0; of a job whose ranks have changed: --merge OUT FILE ... --then FILE" in trace(*files, *late, status=1)
    assert "did you mean --then?" in trace("--merge", folder / "all.json", *files, "--thne", *late, status=2)
    for f in late:
        edited(f, f, 99, 0, 0)
    assert "no process is in" in trace("--merge", folder / "all.json", *files, "--then", *late, status=1)
    assert "--then goes with --merge" in trace(files[0], "--then", *late, status=2)


def valid_whenever_it_is_stopped(folder, end=""):
    run_job(folder, "stops", folder / "s", end)
    files = sorted(folder.glob("s.*"))
    assert len(files) == 30 * RANKS, files
    assert all(f.read_bytes()[:2] == (b"\x1f\x8b" if end else b"[\n") for f in files)
    open_ends = {}
    for f in files:
        events = strict(f)
        assert events[0]["name"] == "kolo_timeline" and events[-1]["name"] == "kolo_end", f
        open_ends[f.name] = sum(e["ph"] == "B" for e in events) - sum(e["ph"] == "E" for e in events)
    for i in range(0, 30, 3):  # there a tensor was waiting for the other ranks
        assert open_ends[f"s.0.{i}{end}"] > 0, open_ends


def valid_whenever_a_compressed_one_is_stopped(folder):
    valid_whenever_it_is_stopped(folder, ".gz")


def killed_in_the_middle(folder, end=""):
    whole = 0
    for i in range(6):
        p = job(folder, "forever", KOLO_TIMELINE=f"{folder}/t.%r.json{end}")
        line = p.stdout.readline()
        assert b"ready" in line, (line, p.stderr.read())
        pids = [next(e for e in strict_start(folder / f"t.{r}.json{end}"))["args"]["process"] for r in range(RANKS)]
        for _ in range(i * 20):
            (folder / f"t.0.json{end}").stat()
        for pid in pids:  # the others end when one has died
            kill_if(lambda p: has_word(p, os.environ["TRACE_PROGRAM"]), pid)
        p.communicate(timeout=60)
        for r in range(RANKS):
            f = folder / f"t.{r}.json{end}"
            try:
                strict(f)
                whole += 1
            except (ValueError, EOFError, zlib.error, gzip.BadGzipFile):
                assert "middle of a write" in trace("--merge", folder / "repaired.json", f)
                strict(folder / "repaired.json")
        trace("--merge", folder / "all.json", *(folder / f"t.{r}.json{end}" for r in range(RANKS)))
        strict(folder / "all.json")
    assert whole > 0


def killed_in_the_middle_of_a_compressed_one(folder):
    killed_in_the_middle(folder, ".gz")


def compressed_ones_say_the_same(folder):
    files = run_job(folder, "steps", 1, end=".gz")
    text = trace(*files)
    assert f"{RANKS} of {RANKS} ranks" in text and "5 tensors" in text and "middle" not in text, text
    trace("--merge", folder / "all.json", *files)
    trace("--merge", folder / "all.json.gz", *files)
    assert strict(folder / "all.json") == strict(folder / "all.json.gz")
    trace("--merge", folder / "all.json.gz", *files)  # a merged one may be written again
    for f in files:
        unpacked = f.with_suffix("")
        unpacked.write_bytes(text_of(f))
        assert unpacked.stat().st_size > 5 * f.stat().st_size, (unpacked.stat(), f.stat())
    assert trace(*(f.with_suffix("") for f in files)) == text


def every_nth_operation_is_there_on_all_ranks(folder):
    """Of 20 steps those with the numbers 0, 7 and 14, complete: nobody agrees before all are ready."""
    files = run_job(folder, "steps", 1, KOLO_TIMELINE_EVERY="7", KOLO_TIMELINE_MARK_CYCLES="1")
    trace("--merge", folder / "all.json", *files)
    events = strict(folder / "all.json")
    ready, agreed = {}, {}
    for pid in range(RANKS):
        rank = [e for e in events if e["pid"] == pid]
        names = names_of(rank)
        assert sorted(names.values()) == ["cycles"] + [f"layer.{i}" for i in range(5)], names
        begins = [e["name"] for e in rank if e["ph"] == "B"]
        assert begins.count("NEGOTIATE_ALLREDUCE") == begins.count("ALLREDUCE") == 15, (pid, begins)
        assert sum(e["ph"] == "E" for e in rank) == 30, pid
        for e in rank:
            if e["ph"] == "X" and e["name"] == str(pid):
                ready.setdefault(names[e["tid"]], []).append(e["ts"])
            if e["ph"] == "E" and e["name"].startswith("NEGOTIATE_"):
                agreed.setdefault(names[e["tid"]], []).append(e["ts"])
    for name in ready:
        times = sorted([(t, "ready") for t in ready[name]] + [(t + 200, "agreed") for t in agreed[name]])
        assert [what for _, what in times] == 3 * (RANKS * ["ready"] + RANKS * ["agreed"]), (name, times)
    text = trace(*files)
    assert "one in 7 was recorded" in text, text
    for r in range(RANKS):
        assert rows(text, "Where the time of a step goes")[f"rank {r}"][0] == "3", text
    files[0].write_text(files[0].read_text().replace('"every":7', '"every":0'))
    assert "head" in trace(*files, status=1)


def full_disk_ends_it_early_and_whole(folder):
    for end, size in (("", "16k"), (".gz", "4k")):
        disk, kept = folder / "disk", folder / f"kept{end}"
        disk.mkdir(exist_ok=True)
        kept.mkdir()
        cmd = [os.environ["KOLORUN"], "-n", str(RANKS), os.environ["TRACE_PROGRAM"], "steps"]
        script = f'mount -t tmpfs -o size={size} tmpfs {disk} || exit 77; "$@"; status=$?; cp {disk}/* {kept}; exit $status'
        p = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *cmd], capture_output=True, text=True, timeout=120,
                           env={**CLEAN, "KOLO_TIMELINE": f"{disk}/t.json{end}"}, stdin=subprocess.DEVNULL)
        if p.returncode == 77 or "unshare failed" in p.stderr:
            print("skipped: no file system can be mounted here")
            sys.exit(77)
        assert p.returncode == 0 and "ends early, it cannot be written: No space left" in p.stderr, p
        events = strict(kept / f"t.json{end}")
        assert events[0]["name"] == "kolo_timeline" and events[-1]["name"] != "kolo_end", events[-1]
        assert len(events) > 20 or end, len(events)


def one_that_cannot_begin_is_said_once(folder):
    cmd = [os.environ["KOLORUN"], "-n", str(RANKS), os.environ["TRACE_PROGRAM"], "steps"]
    p = subprocess.run(cmd, capture_output=True, text=True, timeout=120, env={**CLEAN, "KOLO_TIMELINE": "/dev/full"},
                       stdin=subprocess.DEVNULL)
    lines = [line for line in p.stderr.splitlines() if "timeline" in line]
    assert p.returncode == 0 and len(lines) == 1, (p.returncode, p.stderr)
    assert "goes on without a timeline" in lines[0] and "/dev/full cannot be written: No space left" in lines[0], lines


def strict_start(path):
    """The first event; the rest is being written."""
    with contextlib.suppress(EOFError), open(path, "rb") as plain:
        f = gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain
        assert f.readline() == b"[\n"
        yield json.loads(f.readline().strip().removesuffix(b","))


def damage_is_bounded_and_told(folder):
    files = run_job(folder, "steps", -1)
    good = files[0].read_bytes()
    bad = folder / "bad.json"

    def told(content, words, status=1, others=()):
        bad.write_bytes(content)
        text = trace(bad, *others, status=status)
        assert all(w in text for w in words), (words, text)

    lines = good.split(b"\n")
    told(b"", ["no event"])
    told(b"not a timeline at all", ["line 1 is not '['"])
    told(b"[\n]\n", ["no event"])
    told(b"[\n{\"ph\":\"B\",\"name\":\"x\",\"ts\":1}\n]\n", ["no timeline of Kolo"])
    told(good[:len(good) // 2], ["middle of a write"], status=0)
    told(b"\n".join(lines[:9] + [b'{"ph":"B","name":'] + lines[9:]), ["line 10"])
    for what in (b'{"ph":"B","name":"x","ts":NaN},', b'{"ph":"B","name":"x","ts":1e999},', b'{"ph":"B","name":"x","ts":-1},',
                 b'{"ph":"B","name":"x","ts":"1"},', b'{"ph":"B","name":"x","tid":1.5},', b'{"ph":"Q","name":"x"},',
                 b'{"ph":"B","name":"\xff"},', b'[' * 60000, b'{"ph":"B","name":"x","ts":' + b"9" * 5000 + b'},', b'7,',
                 b'{"ph":"B","name":["x"]},', b'{"ph":"B","name":"x","args":[]},'):
        told(b"\n".join(lines[:9] + [what] + lines[9:]), ["line 10"])
    told(b"\n".join(lines[:9] + [b"x" * 70000] + lines[9:]), ["line 10 is longer"])
    told(good.replace(b'"version":1', b'"version":2'), ["version 2"])
    told(good.replace(b'"size":3', b'"size":-3'), ["head"])
    told(good.replace(b'"start_ns":', b'"start_ns":"x","y":'), ["head"])
    told(good.replace(b'"size":3', b'"size":4'), ["different jobs", "4 ranks"], others=[files[1]])
    told(good, ["both of rank 0"], others=[files[0]])
    told(good.replace(b'"pid":0,"tid":2', b'"pid":1,"tid":2'), ["an event of rank 1 in the timeline of rank 0"])
    told(good.replace(b"\"offset_ns\":0", b"\"offset_ns\":\"x\""), ["1 of 3 ranks"], status=0)
    assert "longer than" in trace("/dev/zero", status=1)
    packed = gzip.compress(good)
    told(packed, [f"{RANKS} ranks"], status=0)
    told(packed[:-8] + bytes(8), ["damaged", "CRC"])
    told(packed[:len(packed) // 2], ["middle of a write"], status=0)
    told(packed[:100] + bytes(100) + packed[200:] + bytes(300_000), ["damaged"])
    told(gzip.compress(bytes(50_000_000)), ["longer than"])
    assert "No such file" in trace(folder / "none.json", status=1)
    assert "no number" in trace("--steps", "x", files[0], status=2)
    assert not (folder / "no" / "out").exists() and trace("--merge", folder / "no" / "out", files[0], status=1)
    noise = random.Random(7)
    for _ in range(15):  # anything at all: an answer, and no traceback
        content = bytearray(good)
        for _ in range(noise.randrange(1, 6)):
            at = noise.randrange(len(content))
            content[at:at + noise.randrange(4)] = bytes(noise.randrange(256) for _ in range(noise.randrange(4)))
        bad.write_bytes(content[:noise.randrange(1, len(content))])
        trace(bad, status=None)


def merge_without_a_name_for_it_keeps_the_first_file(folder):
    """kolo-trace --merge t.*.json: the first of them is the name of what is written."""
    for end in ("", ".gz"):
        files = run_job(folder, "steps", 1, end=end)
        before = files[0].read_bytes()
        for args in (files, [files[0], *files]):
            assert f"{files[0]}: there is another file already" in trace("--merge", *args, status=1)
            assert files[0].read_bytes() == before
    (folder / "text").write_text("hello\n")
    assert "another file already" in trace("--merge", folder / "text", *files, status=1)
    (folder / "empty").write_text("")
    trace("--merge", folder / "empty", *files)


CASES = [merge_without_a_name_for_it_keeps_the_first_file, compressed_ones_say_the_same,
         every_nth_operation_is_there_on_all_ranks, full_disk_ends_it_early_and_whole,
         one_that_cannot_begin_is_said_once,
         killed_in_the_middle_of_a_compressed_one, valid_whenever_a_compressed_one_is_stopped,
         summary_names_the_slowest_rank, names_do_not_lead_the_terminal, merged_by_clock_offset,
         engines_of_one_job_become_one_timeline,
         valid_whenever_it_is_stopped, killed_in_the_middle, damage_is_bounded_and_told]


def main():
    if sys.argv[2] == "--list":
        print("\n".join(c.__name__ for c in CASES))
        return
    with tempfile.TemporaryDirectory(prefix="kolo-trace-test-") as folder:
        next(c for c in CASES if c.__name__ == sys.argv[2])(pathlib.Path(folder))


main()
