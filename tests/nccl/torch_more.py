#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own cases do not reach: torch.compile with collectives, a whole training step in a CUDA graph, expandable segments,
symmetric memory left to PyTorch. One process per GPU; a line a case.

    tests/nccl/torch_more.py [--library libnccl.so.2] [--ranks N] [--hosts H] [CASE...]

--hosts tells the libraries that the ranks are on so many hosts.
"""
import argparse
import os
import socket
import subprocess
import sys
import time


def cases(torch, dist, rank, ranks, dev):
    import torch.distributed._functional_collectives as fc
    from torch import nn
    group = dist.group.WORLD

    def equal(x, want, what):
        want = torch.as_tensor(want, device=dev, dtype=x.dtype)
        assert torch.equal(x, want.expand_as(x)), f"{what}: {x.flatten()[:4].tolist()}, not {want.flatten()[:4].tolist()}"

    def collectives(x):
        s = fc.all_reduce(x * 2, "sum", group)
        g = fc.all_gather_tensor(x + 1, 0, group)
        r = fc.reduce_scatter_tensor(g * 3, "sum", 0, group)
        a = fc.all_to_all_single(g, None, None, group)
        return s + 1, g, r, a

    def compiled(mode):
        f = torch.compile(collectives, mode=mode, fullgraph=True)
        for k in range(4):
            x = torch.full((1000,), float(rank + k), device=dev)
            s, g, r, a = f(x)
            equal(s, 2.0 * sum(q + k for q in range(ranks)) + 1, "all_reduce")
            equal(g[-1000:], float(ranks + k), "all_gather")
            equal(r, 3.0 * ranks * (rank + k + 1), "reduce_scatter")
            equal(a[:1000], float(k + 1), "all_to_all")

    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(dev)

    def train(m, step=None):
        opt = torch.optim.SGD(m.parameters(), 0.1)
        rows = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(10):
            x = torch.randn(32, 64, generator=rows).to(dev)
            opt.zero_grad()
            loss = (step or m)(x).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        out = torch.stack(losses)
        dist.all_reduce(out)
        return out

    def compiled_ddp():
        want = train(nn.parallel.DistributedDataParallel(model(), device_ids=[rank]))
        m = nn.parallel.DistributedDataParallel(model(), device_ids=[rank])
        got = train(m, torch.compile(m))
        assert torch.allclose(got, want, rtol=1e-3), f"{got.tolist()}, not {want.tolist()}"

    def compiled_fsdp():
        from torch.distributed.fsdp import fully_shard
        want = train(nn.parallel.DistributedDataParallel(model(), device_ids=[rank]))
        m = model()
        for layer in m:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(m)
        got = train(m, torch.compile(m))
        assert torch.allclose(got, want, rtol=1e-3), f"{got.tolist()}, not {want.tolist()}"

    def graph_step():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            m = nn.parallel.DistributedDataParallel(model(), device_ids=[rank])
            opt = torch.optim.SGD(m.parameters(), 0.01)
            x = torch.full((32, 64), float(rank), device=dev)
            for _ in range(12):
                opt.zero_grad(set_to_none=True)
                m(x).square().mean().backward()
                opt.step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        opt.zero_grad(set_to_none=True)
        with torch.cuda.graph(g):
            loss = m(x).square().mean()
            loss.backward()
            opt.step()
        for _ in range(20):
            g.replay()
        torch.cuda.synchronize()
        weights = torch.cat([p.detach().flatten() for p in m.parameters()])
        least, most = weights.clone(), weights.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        assert torch.equal(least, most) and torch.isfinite(loss), "weights differ"

    def expandable():
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.cuda.empty_cache()
        held = []
        for k in range(60):
            x = torch.full(((k * 7919 % 97 + 1) << 16,), float(rank + k), device=dev)
            dist.all_reduce(x)
            equal(x, float(sum(q + k for q in range(ranks))), f"round {k}")
            held.append(x)
            if k % 3 == 2:
                held.pop(0)
            if k % 20 == 19:
                held.clear()
                torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")

    def symmetric():
        import torch.distributed._symmetric_memory as symm
        x = symm.empty(1024, device=dev, dtype=torch.float32)
        symm.rendezvous(x, group.group_name)
        x.fill_(rank + 1)
        y = torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group.group_name)
        equal(y, ranks * (ranks + 1) / 2, "one_shot_all_reduce")
        z = torch.ones(1 << 20, device=dev)
        dist.all_reduce(z)
        equal(z, float(ranks), "all_reduce beside it")

    return {"compile": lambda: compiled(None), "compile, reduce-overhead": lambda: compiled("reduce-overhead"), "compile DDP": compiled_ddp,
            "compile FSDP2": compiled_fsdp, "DDP step in a graph": graph_step, "expandable segments": expandable,
            "symmetric memory": symmetric}


def work(o):
    import datetime
    import torch
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
    bad = 0
    for name, case in cases(torch, dist, rank, o.ranks, torch.device("cuda", rank)).items():
        if o.cases and name not in o.cases:
            continue
        began, why = time.time(), ""
        try:
            case()
        except Exception as e:
            why = " ".join(f"{type(e).__name__}: {e}".split())
        torch.cuda.synchronize()
        whys = [None] * o.ranks
        dist.all_gather_object(whys, why)
        torch._dynamo.reset()
        failed = [(r, w) for r, w in enumerate(whys) if w]
        bad += bool(failed)
        if rank == 0:
            print(f"{'FAIL' if failed else 'pass'} {name:26} {time.time() - began:5.1f} s" + "".join(f" rank {r}: {w[:300]}" for r, w in failed[:2]), flush=True)
    dist.destroy_process_group()
    return bad > 0


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--library")
    args.add_argument("--ranks", type=int, default=4)
    args.add_argument("--hosts", type=int, default=1)
    args.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args.add_argument("cases", nargs="*")
    o = args.parse_intermixed_args()
    if o.work:
        return work(o)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(o.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    if o.library:
        env["LD_PRELOAD"] = os.path.abspath(o.library)
    cmd = [sys.executable, os.path.abspath(__file__), "--work", "--ranks", str(o.ranks), *o.cases]
    ranks = []
    for r in range(o.ranks):
        host = f"host-{r * o.hosts // o.ranks}"
        hosts = {"KOLO_HOST_ID": host, "NCCL_HOSTID": host} if o.hosts > 1 else {}
        ranks.append(subprocess.Popen(cmd, env={**env, **hosts, "RANK": str(r), "LOCAL_RANK": str(r)}))
    return max(p.wait() for p in ranks)


if __name__ == "__main__":
    sys.exit(main())
