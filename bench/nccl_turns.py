#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyTorch on two libnccl.so.2 by turns: two sets of processes on the same GPUs, one works while the other waits.

    bench/nccl_turns.py LIBRARY [--ranks N] [--rounds R] [--seconds S] [--also KEY=VALUE[,KEY=VALUE]]... [CASE...]

LIBRARY is preloaded for one set; the other takes the one that PyTorch brings. A line per case: the median time of a step with each,
and the median of the ratios of neighbouring turns (above 1: LIBRARY is faster). Each --also is one more set with LIBRARY and these
variables, and its own line. --dry tries the program itself on CPUs, with Gloo.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time


def gpt(torch, dev, ddp, scale):
    """A step of a decoder of 8 layers, in mixed precision."""
    nn = torch.nn
    width, layers, seq = 1024 // scale, 8, 512 // scale

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (t.view(*t.shape[:2], 16, -1).transpose(1, 2) for t in self.qkv(self.a(x)).chunk(3, -1))
            h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(x.shape))
            return x + self.down(nn.functional.gelu(self.up(self.b(x))))

    m = ddp(nn.Sequential(nn.Embedding(16384 // scale, width), *[Block() for _ in range(layers)], nn.Linear(width, 16384 // scale)).to(dev))
    opt = torch.optim.AdamW(m.parameters(), 1e-4)
    ids = torch.randint(0, 16384 // scale, (4, seq), device=dev)

    def one():
        opt.zero_grad()
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            logits = m(ids)
        nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten()).backward()
        opt.step()
    return one


def work(o):
    import datetime
    import torch
    import torch.distributed as dist
    from torch import nn
    rank, ranks = int(os.environ["RANK"]), o.ranks
    dev = torch.device("cpu") if o.dry else torch.device("cuda", rank)
    if not o.dry:
        torch.cuda.set_device(rank)
    scale = 8 if o.dry else 1
    dist.init_process_group("gloo" if o.dry else "nccl", timeout=datetime.timedelta(seconds=60))

    def sync():
        if not o.dry:
            torch.cuda.synchronize()

    def ddp(m):
        return nn.parallel.DistributedDataParallel(m, device_ids=None if o.dry else [rank], gradient_as_bucket_view=True)

    def steps(m, x, opt):
        def one():
            opt.zero_grad()
            m(x).float().square().mean().backward()
            opt.step()
        return one

    def linear(n, width, batch, shard=False):
        width //= scale
        m = nn.Sequential(*[l for _ in range(n) for l in (nn.Linear(width, width, bias=False), nn.ReLU())]).to(dev)
        if shard:
            from torch.distributed.fsdp import fully_shard
            for l in m:
                if isinstance(l, nn.Linear):
                    fully_shard(l)
            fully_shard(m)
        else:
            m = ddp(m)
        return steps(m, torch.randn(batch, width, device=dev), torch.optim.SGD(m.parameters(), 1e-4))

    def small():
        m = ddp(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(dev))
        return steps(m, torch.randn(32, 64, device=dev), torch.optim.SGD(m.parameters(), 1e-3))

    def reduce(nbytes):
        x = torch.ones(nbytes // 4 // scale, device=dev)
        return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)

    def graph(nbytes):
        f = reduce(nbytes)
        if o.dry:
            return f
        f()
        sync()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(20):
                f()
        return g.replay

    cases = {"DDP 0.3 MB": (small, 60), "DDP 134 MB": (lambda: linear(8, 2048, 64), 20), "DDP 1000 MB": (lambda: linear(15, 4096, 64), 8),
             "FSDP2 134 MB": (lambda: linear(8, 2048, 64, True), 20), "GPT-like, 117 million": (lambda: gpt(torch, dev, ddp, scale), 6),
             "all_reduce 26 MB": (lambda: reduce(26 << 20), 40), "all_reduce 67 MB": (lambda: reduce(64 << 20), 20), "all_reduce 1 GB": (lambda: reduce(1 << 30), 4),
             "20 all_reduce 8 B, graph": (lambda: graph(8), 30), "20 all_reduce 32 KB, graph": (lambda: graph(32768), 30)}
    made = {}
    for line in sys.stdin:
        name = line.strip()
        if name.startswith("-"):
            made.pop(name[1:], None)
            if not o.dry:
                torch.cuda.empty_cache()
            continue
        fn, n = cases[name]
        if name not in made:
            torch.manual_seed(3)
            with dev:  # parameters begin on the device: on CPUs they would take seconds
                made[name] = fn()
            for _ in range(8):
                made[name]()
        sync()
        dist.barrier()
        sync()
        began = time.perf_counter()
        for _ in range(n):
            made[name]()
        sync()
        print("=", (time.perf_counter() - began) / n * 1e3, flush=True)
    dist.destroy_process_group()


CASES = ["DDP 0.3 MB", "DDP 134 MB", "DDP 1000 MB", "FSDP2 134 MB", "GPT-like, 117 million", "all_reduce 26 MB", "all_reduce 67 MB", "all_reduce 1 GB",
         "20 all_reduce 8 B, graph", "20 all_reduce 32 KB, graph"]


class Set:
    def __init__(self, o, name, log, library=None, also=""):
        self.name = name
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = {**os.environ, "WORLD_SIZE": str(o.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1"}
        env.update(pair.split("=", 1) for pair in also.split(",") if pair)
        if library:
            env["LD_PRELOAD"] = os.path.abspath(library)
        cmd = [sys.executable, os.path.abspath(__file__), o.library, "--ranks", str(o.ranks), "--work"] + ["--dry"] * o.dry
        self.ranks = [subprocess.Popen(cmd, env={**env, "RANK": str(r)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
                      for r in range(o.ranks)]

    def say(self, text):
        for p in self.ranks:
            p.stdin.write(text + "\n")
            p.stdin.flush()

    def turn(self, name):
        """The slowest rank's time of a step, in ms."""
        self.say(name)
        times = []
        for p in self.ranks:
            line = p.stdout.readline()
            while line and not line.startswith("= "):
                line = p.stdout.readline()
            if not line:
                raise RuntimeError(f"a rank has ended in {name}")
            times.append(float(line[2:]))
        return max(times)

    def end(self):
        for p in self.ranks:
            p.stdin.close()
        for p in self.ranks:
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()


def show(name, s, turns):
    pairs = [(t["other"], t[s.name]) for t in turns]
    ratios = sorted(a / b for a, b in pairs)
    print(f"{name:28} {statistics.median(a for a, _ in pairs):9.3f} {statistics.median(b for _, b in pairs):9.3f} "
          f"{statistics.median(ratios):6.3f}   {ratios[0]:.3f} {ratios[-1]:.3f}{'' if s.name == 'library' else '  ' + s.name}", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("library")
    args.add_argument("--ranks", type=int, default=4)
    args.add_argument("--rounds", type=int, default=11)
    args.add_argument("--also", action="append", default=[])
    args.add_argument("--seconds", type=float, default=1e9, help="no new case after so long")
    args.add_argument("--log", default="/dev/null")
    args.add_argument("--json")
    args.add_argument("--dry", action="store_true")
    args.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args.add_argument("cases", nargs="*")
    o = args.parse_intermixed_args()
    if o.work:
        return work(o)
    began, rows = time.time(), {}
    with open(o.log, "a", encoding="utf-8") as log:
        theirs = Set(o, "other", log)
        sets = [Set(o, also or "library", log, None if o.dry else o.library, also) for also in ["", *o.also]]
        print(f"{'ms a step':28} {'other':>9} {'library':>9} {'ratio':>6}   least and greatest ratio", flush=True)
        for name in o.cases or CASES:
            if time.time() - began > o.seconds:
                print("no time for", name)
                continue
            turns = []
            for k in range(o.rounds + 1):
                order = [theirs, *sets] if k % 2 else [*sets, theirs]
                turns.append({s.name: s.turn(name) for s in order})
            rows[name] = turns[1:]
            for s in sets:
                show(name, s, turns[1:])
            for s in (theirs, *sets):
                s.say("-" + name)
        for s in (theirs, *sets):
            s.end()
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(rows, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
