#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own cases do not reach: torch.compile with collectives, a whole training step in a CUDA graph, expandable segments,
symmetric memory left to PyTorch, one process with all GPUs, a group whose first call is captured. One process per GPU; a line a case.

    tests/nccl/torch_more.py [--library libnccl.so.2] [--ranks N] [--hosts H] [CASE...]

--hosts tells the libraries that the ranks are on so many hosts.
"""
import argparse
import os
import socket
import subprocess
import sys
import time


NAMES = ["expandable segments", "symmetric memory", "DDP step in a graph", "compile", "compile, reduce-overhead", "compile DDP", "compile FSDP2", "operators in one group",
         "one process", "a group that begins in a capture"]


class Cases:
    def __init__(self, torch, dist, rank, ranks):
        self.torch, self.dist, self.rank, self.ranks = torch, dist, rank, ranks
        self.dev = torch.device("cuda", rank)
        self.cases = dict(zip(NAMES, (self.expandable, self.symmetric, self.graph_step, self.compiled, lambda: self.compiled("reduce-overhead"),
                                      self.compiled_ddp, self.compiled_fsdp, self.operators, self.one_process, self.begins_in_a_capture)))

    def equal(self, x, want, what):
        want = self.torch.as_tensor(want, device=self.dev, dtype=x.dtype)
        assert self.torch.equal(x, want.expand_as(x)), f"{what}: {x.flatten()[:4].tolist()}, not {want.flatten()[:4].tolist()}"

    def compiled(self, mode=None):
        import torch.distributed._functional_collectives as fc
        group = self.dist.group.WORLD

        def collectives(x):
            s = fc.all_reduce(x * 2, "sum", group)
            g = fc.all_gather_tensor(x + 1, 0, group)
            r = fc.reduce_scatter_tensor(g * 3, "sum", 0, group)
            a = fc.all_to_all_single(g, None, None, group)
            return s + 1, g, r, a

        f = self.torch.compile(collectives, mode=mode, fullgraph=True)
        for k in range(4):
            x = self.torch.full((1000,), float(self.rank + k), device=self.dev)
            s, g, r, a = f(x)
            self.equal(s, 2.0 * sum(q + k for q in range(self.ranks)) + 1, "all_reduce")
            self.equal(g[-1000:], float(self.ranks + k), "all_gather")
            self.equal(r, 3.0 * self.ranks * (self.rank + k + 1), "reduce_scatter")
            self.equal(a[:1000], float(self.rank + k + 1), "all_to_all")

    def model(self):
        nn = self.torch.nn
        self.torch.manual_seed(3)
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(self.dev)

    def train(self, m, step=None):
        opt = self.torch.optim.SGD(m.parameters(), 0.1)
        rows = self.torch.Generator().manual_seed(self.rank)
        losses = []
        for _ in range(10):
            x = self.torch.randn(32, 64, generator=rows).to(self.dev)
            opt.zero_grad()
            loss = (m if step is None else step)(x).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        out = self.torch.stack(losses)
        self.dist.all_reduce(out)
        return out

    def compiled_ddp(self):
        nn = self.torch.nn
        want = self.train(nn.parallel.DistributedDataParallel(self.model(), device_ids=[self.rank]))
        m = nn.parallel.DistributedDataParallel(self.model(), device_ids=[self.rank])
        got = self.train(m, self.torch.compile(m))
        assert self.torch.allclose(got, want, rtol=1e-3), f"{got.tolist()}, not {want.tolist()}"

    def compiled_fsdp(self):
        nn = self.torch.nn
        from torch.distributed.fsdp import fully_shard
        want = self.train(nn.parallel.DistributedDataParallel(self.model(), device_ids=[self.rank]))
        m = self.model()
        for layer in m:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(m)
        got = self.train(m, self.torch.compile(m))
        assert self.torch.allclose(got, want, rtol=1e-3), f"{got.tolist()}, not {want.tolist()}"

    def graph_step(self):
        nn = self.torch.nn
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side):
            m = nn.parallel.DistributedDataParallel(self.model(), device_ids=[self.rank])
            opt = self.torch.optim.SGD(m.parameters(), 0.01)
            x = self.torch.full((32, 64), float(self.rank), device=self.dev)
            for _ in range(12):
                opt.zero_grad(set_to_none=True)
                m(x).square().mean().backward()
                opt.step()
        self.torch.cuda.current_stream().wait_stream(side)
        self.torch.cuda.synchronize()
        g = self.torch.cuda.CUDAGraph()
        opt.zero_grad(set_to_none=True)
        with self.torch.cuda.graph(g):
            loss = m(x).square().mean()
            loss.backward()
            opt.step()
        for _ in range(20):
            g.replay()
        self.torch.cuda.synchronize()
        weights = self.torch.cat([p.detach().flatten() for p in m.parameters()])
        least, most = weights.clone(), weights.clone()
        self.dist.all_reduce(least, self.dist.ReduceOp.MIN)
        self.dist.all_reduce(most, self.dist.ReduceOp.MAX)
        assert self.torch.equal(least, most) and self.torch.isfinite(loss), "weights differ"

    def expandable(self):
        self.torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        self.torch.cuda.empty_cache()
        held = []
        for k in range(60):
            x = self.torch.full(((k * 7919 % 97 + 1) << 16,), float(self.rank + k), device=self.dev)
            self.dist.all_reduce(x)
            self.equal(x, float(sum(q + k for q in range(self.ranks))), f"round {k}")
            held.append(x)
            if k % 3 == 2:
                held.pop(0)
            if k % 20 == 19:
                held.clear()
                self.torch.cuda.empty_cache()
        self.torch.cuda.memory._set_allocator_settings("expandable_segments:False")

    def operators(self):
        """As FSDP's gradients that are divided by a factor of the user's, in one coalesced call."""
        xs = [self.torch.full((8 * self.ranks,), float(k), device=self.dev) for k in range(150)]
        ys = [self.torch.zeros(8, device=self.dev) for _ in xs]
        with self.dist._coalescing_manager(device=self.dev, async_ops=True) as work:
            for x, y in zip(xs, ys):
                self.dist.reduce_scatter_tensor(y, x, op=self.dist._make_nccl_premul_sum(0.5))
        work.wait()
        for k, y in enumerate(ys):
            self.equal(y, 0.5 * k * self.ranks, f"call {k}")

    def one_process(self):
        """All GPUs of rank 0, as DataParallel and torch.cuda.nccl use them; the others wait."""
        if self.rank == 0:
            torch, n = self.torch, self.ranks
            devices = [torch.device("cuda", d) for d in range(n)]
            xs = [torch.full((1000,), float(d + 1), device=dev) for d, dev in enumerate(devices)]
            torch.cuda.nccl.all_reduce(xs)
            self.equal(xs[0], n * (n + 1) / 2, "torch.cuda.nccl.all_reduce")
            out = torch.zeros(n * 1000, device=self.dev)
            outs = [out] + [torch.zeros(n * 1000, device=dev) for dev in devices[1:]]
            torch.cuda.nccl.all_gather(xs, outs)
            self.equal(out, n * (n + 1) / 2, "torch.cuda.nccl.all_gather")
            alone, torch_model = self.model(), torch.nn.DataParallel(self.model(), device_ids=list(range(n)))
            x = torch.randn(64, 64, generator=torch.Generator().manual_seed(5)).to(self.dev)
            for _ in range(5):
                for m in (alone, torch_model):
                    m.zero_grad()
                    m(x).square().mean().backward()
            for p, q in zip(alone.parameters(), torch_model.module.parameters()):
                assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-6), "DataParallel's gradients"
            for dev in devices:
                torch.cuda.synchronize(dev)
        self.dist.barrier()

    def begins_in_a_capture(self):
        group = self.dist.new_group()
        x = self.torch.zeros(1000, device=self.dev)
        y = self.torch.zeros(1000, device=self.dev)
        g = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(g, capture_error_mode="thread_local"):
            y.copy_(x)
            self.dist.all_reduce(y, group=group)
        x.fill_(self.rank + 1.0)
        for _ in range(3):
            g.replay()
        self.torch.cuda.synchronize()
        self.equal(y, self.ranks * (self.ranks + 1) / 2, "the replay")

    def symmetric(self):
        import torch.distributed._symmetric_memory as symm
        group = self.dist.group.WORLD
        x = symm.empty(1024, device=self.dev, dtype=self.torch.float32)
        symm.rendezvous(x, group.group_name)
        x.fill_(self.rank + 1)
        y = self.torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group.group_name)
        self.equal(y, self.ranks * (self.ranks + 1) / 2, "one_shot_all_reduce")
        z = self.torch.ones(1 << 20, device=self.dev)
        self.dist.all_reduce(z)
        self.equal(z, float(self.ranks), "all_reduce beside it")


def gathered(store, name, ranks, why):
    """What each rank says. Who has failed does not wait long for those that wait for it."""
    import datetime
    whys = []
    for r in range(ranks):
        try:
            store.wait([f"{name}/{r}"], datetime.timedelta(seconds=10 if why else 120))
            whys.append(store.get(f"{name}/{r}").decode())
        except Exception:
            whys.append("does not come to the end")
    return whys


def work(o):
    import datetime
    import torch
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=120))
    store = dist.distributed_c10d._get_default_store()
    for name, case in Cases(torch, dist, rank, o.ranks).cases.items():
        if name not in o.cases:
            continue
        began, why = time.time(), ""
        try:
            case()
            torch.cuda.synchronize()
        except Exception as e:
            why = " ".join(f"{type(e).__name__}: {e}".split())
        store.set(f"{name}/{rank}", why)  # a rank that has failed makes other calls than the others
        whys = gathered(store, name, o.ranks, why)
        torch._dynamo.reset()
        failed = [(r, w) for r, w in enumerate(whys) if w]
        if rank == 0:
            print(f"{'FAIL' if failed else 'pass'} {name:26} {time.time() - began:5.1f} s" + "".join(f" rank {r}: {w[:300]}" for r, w in failed[:2]), flush=True)
        if failed:
            os._exit(10 + list(NAMES).index(name))
    dist.destroy_process_group()
    return 0


def run(o, names):
    """The ranks' exit status: 10 and up is the number of the case that failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(o.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    if o.library:
        env["LD_PRELOAD"] = os.path.abspath(o.library)
    cmd = [sys.executable, os.path.abspath(__file__), "--work", "--ranks", str(o.ranks), *names]
    ranks = []
    for r in range(o.ranks):
        host = f"host-{r * o.hosts // o.ranks}"
        hosts = {"KOLO_HOST_ID": host, "NCCL_HOSTID": host} if o.hosts > 1 else {}
        ranks.append(subprocess.Popen(cmd, env={**env, **hosts, "RANK": str(r), "LOCAL_RANK": str(r)}))
    while all(p.poll() is None for p in ranks):
        time.sleep(0.1)
    end = time.time() + 15
    while any(p.poll() is None for p in ranks) and (time.time() < end or all(p.poll() in (None, 0) for p in ranks)):
        time.sleep(0.1)
    for p in ranks:
        p.kill()
    return max((p.wait() if p.wait() > 0 else 1) if p.wait() else 0 for p in ranks)


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
    names, bad = [n for n in NAMES if not o.cases or n in o.cases], 0
    while names:  # a case that fails spoils the group: the rest has new processes
        status = run(o, names)
        if status == 0:
            return bad
        bad = 1
        failed = NAMES[status - 10] if 10 <= status < 10 + len(NAMES) else names[0]
        if status < 10:
            print("FAIL", failed, "ended its processes", flush=True)
        names = names[names.index(failed) + 1:]
    return bad


if __name__ == "__main__":
    sys.exit(main())
