#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What docs/python.md shows is run, word for word, in an empty folder; and the names that it speaks of are there.

    docs_test.py PAGE [--torch]     --torch: only what wants torch, which is left out without it
"""
import inspect
import os
import re
import sys
import tempfile

import kit
import kolocomm

# For each paragraph of the page's examples, by its first line: ranks, kolorun's options, what the page takes to be there, and what
# must be so afterwards. A paragraph that is not here fails the test.
ANY = """
import os, sys
import numpy
place = kolocomm.job_place()
"""
PARAGRAPHS = {
    "pip install '.[numpy]'": None,  # scripts/make-wheel does, in an empty environment
    "python -m kolocomm.nccl torchrun --nproc-per-node 4 train.py": None,  # nccl_test.py runs the module both ways
    "import kolocomm, numpy": (4, (), "", "assert x[0] == 10 and whole.tolist() == [10.0] * 4000 and c.ended"),
    "try:": (4, (), ANY + """
c, x = kolocomm.connect(), numpy.ones(1000)
c.all_reduce(x)
if c.rank == 3:
    os._exit(0)
x[:] = 1
""", "assert c.size == 3\nx[:] = 1\nc.all_reduce(x)\nassert x[0] == 3\nc.finalize(), c.destroy()"),
    "with kolocomm.Engine() as engine:": (2, (), ANY + """
names = ["weight", "bias"]
gradients = {n: numpy.full(10, place.rank + 1.0) for n in (names if place.rank else names[::-1])}
""", "assert all((g == 1.5).all() for g in gradients.values()), gradients"),
    'with kolocomm.Server(cluster, "/job:ps/task:0", secret=secret) as server:': (2, (), ANY + '''
import socket
job, port = kolocomm.connect(), numpy.zeros(2, "int32")
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port[job.rank] = s.getsockname()[1]
job.all_reduce(port)
cluster = "ps=127.0.0.1:%d;worker=127.0.0.1:%d" % tuple(port)
secret, step, weights = b"known to all of the job", 1, numpy.arange(5.0)
if job.rank == 1:  # elsewhere
    with kolocomm.Server(cluster, "/job:worker/task:0", secret=secret) as worker:
        worker.start()
        start = worker.incarnation("/job:ps/task:0")
        key = kolocomm.tensor_key("/job:ps/task:0/device:cpu:0", start, "/job:worker/task:0/device:cpu:0", "weights")
        with worker.open(step) as r:
            got = r.receive(key, timeout=20)
        job.barrier()
    assert (got == weights).all()
    print("as the page says", flush=True)
    sys.exit(0)
''', ""),
    "s = kolocomm.State()": (3, ("--min", "2", "-H", "localhost:3"), '''
import os, numpy
weights = numpy.zeros(8)

def train(s):
    assert s.get("seen") == b""
    while weights[0] < 6:
        if weights[0] == 3 and s.info["changes"] == 0 and s.comm.rank == 1:
            os._exit(9)
        gradient = numpy.ones(8)
        s.comm.all_reduce(gradient, op="avg")
        weights[:] += gradient
        s.commit()
''', "assert (weights == 6).all() and s.info['losses'] == 1"),
    'torch.distributed.init_process_group("kolo")': (2, (), ANY + """
import torch, kolocomm.torch
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["DOCS_PORT"], RANK=str(place.rank), WORLD_SIZE=str(place.size))
""", "x = torch.ones(4)\ntorch.distributed.all_reduce(x)\nassert x.tolist() == [2] * 4\ntorch.distributed.destroy_process_group()"),
}


def paragraphs(page):
    """Indented lines, cut where a line without any is between them."""
    found, lines = [], []
    for line in [*page.splitlines(), ""]:
        if line.startswith("    "):
            lines.append(line[4:])
        elif lines and all(x.startswith("import ") for x in lines):
            lines.append("")  # of what comes behind it
        elif lines:
            found.append("\n".join(lines))
            lines = []
    return found


def run(text, want):
    ranks, options, before, after = want
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        env = {"DOCS_PORT": str(s.getsockname()[1])}
    code = f"import kolocomm\nfrom kolocomm import errors\n{before}\n{text}\n{after}\nprint('as the page says', flush=True)\n"
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.chdir(folder)
        try:
            status, out = kit.job(ranks, code, 100, env, options)
        finally:
            os.chdir(here)
        left = os.listdir(folder)
    lost = 1 if "_exit" in before else 0
    right = out.count("as the page says") == ranks - lost and (status == 0 or lost) and not left
    if not right:
        print(f"status {status}, files left: {left}\n{code}\n{out}")
    return right


def names(page):
    """Names of the page that are not there: kolocomm.x, errors.X, and of its classes; `word(...)` is a function of some class, or of Python's."""
    classes = [c for _, c in inspect.getmembers(kolocomm, inspect.isclass)]
    missing = []
    for code in re.findall(r"`([^`\n]+)`", page):
        for path in re.findall(r"\bkolocomm((?:\.\w+)+)", code):
            at = kolocomm
            for part in path[1:].split("."):
                if part in ("torch", "torchft", "check", "run", "nccl"):
                    break
                at = getattr(at, part, None)
            if at is None:
                missing.append("kolocomm" + path)
        for kind in re.findall(r"\berrors\.(\w+)", code):
            if not hasattr(kolocomm.errors, kind):
                missing.append("errors." + kind)
        for name in re.findall(r"(?<![\w.])(?:[cs]\.)?(\w+)\(", code):
            if not any(hasattr(c, name) for c in classes) and not hasattr(kolocomm, name) and name not in OTHERS:
                missing.append(name + "()")
    return missing


OTHERS = {"help"}  # Python's


def main():
    torch_only = "--torch" in sys.argv
    with open(sys.argv[1], encoding="utf-8") as f:
        page = f.read()
    failed, seen = [], 0
    for text in paragraphs(page):
        first = text.splitlines()[0].split("  #")[0].rstrip()
        if first not in PARAGRAPHS:
            print(f"FAILED: nothing is known of the example that begins with: {first}")
            failed.append(first)
            continue
        want = PARAGRAPHS[first]
        if want is None or ("import torch" in want[2]) != torch_only:
            continue
        seen += 1
        right = run(text, want)
        print(f"{'right ' if right else 'FAILED'} {first}", flush=True)
        if not right:
            failed.append(first)
    if missing := [] if torch_only else names(page):
        print("FAILED: the page speaks of", ", ".join(missing))
        failed.append("names")
    print(f"{seen} examples, {len(failed)} failed")
    return 1 if failed or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
