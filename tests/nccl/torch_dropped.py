#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What becomes of the tensor of an asynchronous all_reduce that nobody waits for, when the other rank is late. With TORCH_NCCL_BLOCKING_WAIT=1
PyTorch lets go of it at once: the next tensor gets its memory while the sum is under way, and the sum is written over its values. So it
is with any library. Two GPUs; a line for each setting, 20 s for all.

    tests/nccl/torch_dropped.py [--library libnccl.so.2]

Without --library it is the libnccl that PyTorch brings.
"""
import argparse
import datetime
import os
import socket
import subprocess
import sys

COUNTS, LATE_S = (1, 1000, 4 << 20), 0.5


def tried(torch, dist, rank, count, late_s):
    """Values that are not what was stored last, of how many; and whether the memory was the same."""
    import time
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(late_s)
    x = torch.ones(count, device="cuda")
    dist.all_reduce(x, async_op=True)
    at = x.data_ptr()
    del x
    y = torch.full((count,), 100.0, device="cuda")
    dist.barrier()
    torch.cuda.synchronize()
    wrong = y[y != 100]
    return f"{len(wrong)} of {count} wrong" + (f" ({wrong[0].item():g} for 100)" if len(wrong) else "") + ("" if y.data_ptr() == at else ", other memory")


def work():
    import torch
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20))
    rows = [tried(torch, dist, rank, n, LATE_S) for n in COUNTS]
    if rank == 0:
        print("; ".join(rows), flush=True)
    os._exit(0)


def started(library, blocking):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_NCCL_BLOCKING_WAIT": blocking}
    if library:
        env["LD_PRELOAD"] = os.path.abspath(library)
    return [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--rank"], env={**env, "RANK": str(r)}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True) for r in range(2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.rank:
        return work()
    for blocking, ranks in [(b, started(o.library, b)) for b in ("0", "1")]:
        text = ""
        for p in ranks:
            try:
                out = p.communicate(timeout=60)[0]
            except subprocess.TimeoutExpired:
                p.kill()
                out = p.communicate()[0]
            text = text or next((line for line in out.splitlines() if "wrong" in line), "")
        print(f"TORCH_NCCL_BLOCKING_WAIT={blocking}, {'Kolo' if o.library else 'NCCL'}: {text or 'nothing: ' + out[-300:]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
