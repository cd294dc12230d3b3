# SPDX-License-Identifier: Apache-2.0
"""python -m kolocomm.check: starts 4 local ranks, checks every collective with numpy, and prints what was right.

    python -m kolocomm.check [--ranks N]

Under a launcher (kolorun, torchrun, mpirun, srun) the processes that are there are the ranks.
"""
import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

import kolocomm

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


def part(np, rank, n, dtype):
    return ((np.arange(n) * 7 + rank * 3) % 5 + 1).astype(dtype)


def expect(np, name, got, want):
    if not np.array_equal(got, want):
        at = int(np.argmax(np.asarray(got) != np.asarray(want)))
        raise SystemExit(f"kolocomm.check: {name}: element {at} is {got.flat[at]} and not {want.flat[at]}")


def collectives(np, c, n, dtype):
    """Every collective once; returns how many calls were looked at."""
    rank, size, root = c.rank, c.size, c.size - 1
    mine, all_parts = part(np, rank, n, dtype), [part(np, r, n, dtype) for r in range(size)]
    total, out = sum(p.astype("float64") for p in all_parts).astype(dtype), np.zeros(n, dtype)
    c.all_reduce(mine, out)
    expect(np, "all_reduce", out, total)
    for op, fn in (("min", np.minimum), ("max", np.maximum)):
        c.all_reduce(mine, out, op)
        expect(np, f"all_reduce {op}", out, fn.reduce(all_parts))
    c.reduce(mine, out, root=root)
    expect(np, "reduce", out, total if rank == root else fn.reduce(all_parts))
    out[:] = mine
    c.broadcast(out, root=root)
    expect(np, "broadcast", out, all_parts[root])
    everything, whole = np.concatenate(all_parts), np.zeros(n * size, dtype)
    c.all_gather(mine, whole)
    expect(np, "all_gather", whole, everything)
    whole[:] = 0
    c.gather(mine, whole if rank == root else None, root)
    expect(np, "gather", whole, everything if rank == root else np.zeros_like(whole))
    c.scatter(everything if rank == root else None, out, root)
    expect(np, "scatter", out, mine)
    c.reduce_scatter(np.tile(mine, size), out)
    expect(np, "reduce_scatter", out, total)
    c.all_to_all(np.concatenate([part(np, rank + r, n, dtype) for r in range(size)]), whole)
    expect(np, "all_to_all", whole, np.concatenate([part(np, r + rank, n, dtype) for r in range(size)]))
    return 10 + unequal(np, c, dtype)


def unequal(np, c, dtype):
    """The forms with parts of different lengths: rank r has 2 r + 1 elements."""
    rank, size = c.rank, c.size
    counts = [2 * r + 1 for r in range(size)]
    everything, mine = np.concatenate([part(np, r, counts[r], dtype) for r in range(size)]), part(np, rank, counts[rank], dtype)
    whole, out = np.zeros(sum(counts), dtype), np.zeros(counts[rank], dtype)
    c.all_gatherv(mine, whole, counts)
    expect(np, "all_gatherv", whole, everything)
    whole[:] = 0
    c.gatherv(mine, whole if rank == 0 else None, counts)
    expect(np, "gatherv", whole, everything if rank == 0 else np.zeros_like(whole))
    c.scatterv(everything if rank == 0 else None, counts, out)
    expect(np, "scatterv", out, mine)
    c.reduce_scatterv(everything, out, counts, "max")
    expect(np, "reduce_scatterv", out, mine)
    got = np.zeros(counts[rank] * size, dtype)
    c.all_to_allv(everything, counts, got, [counts[rank]] * size)
    expect(np, "all_to_allv", got, np.tile(mine, size))
    return 5


def messages(np, c):
    to, source, n = (c.rank + 1) % c.size, (c.rank - 1) % c.size, 1000
    out = np.zeros(n, "float32")
    with kolocomm.group():
        c.send(part(np, c.rank, n, "float32"), to)
        c.recv(out, source)
    expect(np, "send and recv", out, part(np, source, n, "float32"))
    request = c.all_reduce(np.ones(n), wait=False)
    request.wait()
    c.barrier()
    return 4


def work():
    import numpy as np
    started = time.monotonic()
    with kolocomm.connect(op_timeout_ms=60000) as c:
        calls = sum(collectives(np, c, n, dtype) for dtype in TYPES for n in (1, 1000)) + messages(np, c)
        if c.rank == 0:
            version = kolocomm.get_version()
            print(f"kolocomm {kolocomm.__version__} on Kolo {version // 10000}.{version // 100 % 100}.{version % 100}, numpy {np.__version__}: "
                  f"{c.size} ranks, {calls} calls on {len(TYPES)} types, all right ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


def start(ranks):
    """Ranks of this host, as kolorun starts them."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "KOLO_NRANKS": str(ranks), "KOLO_LOCAL_SIZE": str(ranks), "KOLO_ID_FILE": os.path.join(folder, "id")}
        all_ranks = [subprocess.Popen([sys.executable, "-m", "kolocomm.check"], env={**env, "KOLO_RANK": str(r), "KOLO_LOCAL_RANK": str(r)})
                     for r in range(ranks)]
        try:
            return max(p.wait(120) for p in all_ranks)
        finally:
            for p in all_ranks:
                p.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, help="how many ranks are started (4)")
    args = parser.parse_args()
    if importlib.util.find_spec("numpy") is None:
        sys.exit("kolocomm.check compares with numpy, which is not there: pip install numpy")
    return work() if kolocomm.job_place().launcher != "none" else start(args.ranks)


if __name__ == "__main__":
    sys.exit(main())
