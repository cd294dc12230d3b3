#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on "kolo" with tensors of GPUs: one process for each GPU of this machine, or --ranks N of them.

    torch_gpu_test.py [--ranks N]           collectives, messages, futures, graphs, hooks, parts of groups: right or not
    torch_gpu_test.py --train [--ranks N]   DDP, FSDP2 and a GPT-like step, by turns with NCCL: losses and speed
    torch_gpu_test.py --killed              the last rank is killed in an operation: named by the others, and after how long
    --cpu       the same script with small tensors of the host, and Gloo for NCCL: a rehearsal where no GPU is
"""
import argparse
import contextlib
import datetime
import os
import socket
import statistics
import subprocess
import sys
import time
import traceback

import torch
import torch.distributed as dist

import kolocomm.torch  # noqa: F401

DEVICE = "cuda"


class Skipped(Exception):
    pass


def here():
    return torch.device("cpu") if DEVICE == "cpu" else torch.device("cuda", torch.cuda.current_device())


def on_gpus():
    if DEVICE == "cpu":
        raise Skipped("streams are GPUs'")


def synchronize():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def full(n, value, dtype=torch.float32):
    return torch.full((n,), value, dtype=dtype, device=DEVICE)


def same(a, b):
    torch.testing.assert_close(a, b if isinstance(b, torch.Tensor) else torch.full_like(a, b))


# ---- right or not --------------------------------------------------------------------------------------------------------------


def test_reductions(rank, size):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8):
        for count in (1, 1000, 300000):
            x = full(count, rank + 1, dtype)
            dist.all_reduce(x)
            same(x, size * (size + 1) // 2)
    x = full(5, float(rank))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same(x, (size - 1) / 2)
    b = torch.tensor([rank == 0, True, False], device=DEVICE)
    dist.all_reduce(b, dist.ReduceOp.MAX)
    assert b.tolist() == [True, True, False], b
    y = torch.arange(6.0, device=DEVICE).view(2, 3).t()
    dist.all_reduce(y)
    same(y, torch.arange(6.0, device=DEVICE).view(2, 3).t() * size)
    r = full(2, float(rank))
    dist.reduce(r, 0, dist.ReduceOp.MAX)
    if rank == 0:
        same(r, size - 1.0)


def test_moved_data(rank, size):
    x = full(4, float(rank))
    dist.broadcast(x, size - 1)
    same(x, size - 1.0)
    parts = [full(4, 0.0) for _ in range(size)]
    dist.all_gather(parts, full(4, float(rank)))
    for r, part in enumerate(parts):
        same(part, float(r))
    whole = full(3 * size, 0.0)
    dist.all_gather_into_tensor(whole, full(3, float(rank)))
    same(whole, torch.arange(size, device=DEVICE).float().repeat_interleave(3))
    out = full(3, 0.0)
    dist.reduce_scatter_tensor(out, whole)
    same(out, float(rank * size))
    dist.reduce_scatter(out, [full(3, float(r)) for r in range(size)])
    same(out, float(rank * size))
    gathered = [full(2, 0.0) for _ in range(size)] if rank == 0 else None
    dist.gather(full(2, float(rank)), gathered)
    if rank == 0:
        same(gathered[-1], size - 1.0)
    dist.scatter(out, [full(3, r + 1.0) for r in range(size)] if rank == 0 else None)
    same(out, rank + 1.0)
    got = full(sum(range(1, size + 1)), 0.0)
    dist.all_to_all_single(got, full(size * (rank + 1), float(rank)), [r + 1 for r in range(size)], [rank + 1] * size)
    same(got, torch.cat([full(r + 1, float(r)) for r in range(size)]))


def test_streams_and_futures(rank, size):
    """What is asynchronous comes behind what was queued before it, and before what comes behind wait()."""
    on_gpus()
    for _ in range(20):
        a = torch.randn(1000, 1000, device=DEVICE)
        x = (a @ a).sum() * 0 + torch.ones(1 << 20, device=DEVICE)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        same(x + 1, size + 1.0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = full(1000, float(rank))
        dist.all_reduce(y)
        same(y, size * (size - 1) / 2)
    for late in (False, True):  # a future that is asked for at once, or later from another stream
        x = full(1 << 24, 1.0)
        work = dist.all_reduce(x, async_op=True)
        with torch.cuda.stream(torch.cuda.Stream()) if late else contextlib.nullcontext():
            future = work.get_future().then(lambda f: f.value()[0] * 2)
        same(future.wait(), 2.0 * size)
    x = full(1 << 24, 1.0)
    dist.all_reduce(x, async_op=True).get_future().wait()  # as DDP waits
    same(x, float(size))
    for _ in range(50):
        dist.all_reduce(full(1 << 18, 1.0), async_op=True)  # dropped: the memory may not be taken again too soon
        full(1 << 18, 7.0)
    torch.cuda.synchronize()


def test_exchange(rank, size):
    for count in (10, 1 << 20):
        out = full(count, -1.0)
        ops = [dist.P2POp(dist.isend, full(count, float(rank)), (rank + 1) % size), dist.P2POp(dist.irecv, out, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(out, float((rank - 1) % size))
    if rank == 0:
        dist.send(full(5, 3.0), 1)
    elif rank == 1:
        got = full(5, 0.0)
        dist.recv(got, 0)
        same(got, 3.0)


def test_coalesced(rank, size):
    xs = [full(n, 1.0) for n in (1, 10, 100)]
    dist.all_reduce_coalesced(xs)
    for x in xs:
        same(x, float(size))
    outs, ins = [full(4 * size, 0.0), full(2 * size, 0.0)], [full(4, float(rank)), full(2, float(rank))]
    with dist._coalescing_manager(device=here()):
        for out, x in zip(outs, ins):
            dist.all_gather_into_tensor(out, x)
    same(outs[0], torch.arange(size, device=DEVICE).float().repeat_interleave(4))


def test_host_and_barrier(rank, size):
    x = torch.ones(5)
    dist.all_reduce(x)
    same(x, float(size))
    dist.barrier()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(range(size))


def test_graph(rank, size):
    on_gpus()
    x, y = full(1000, 1.0), full(1000, 1.0)
    dist.all_reduce(x)  # connections are made before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(y)
    y.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    same(y, 2.0 * size)


def test_any_source(rank, size):
    """For tensors of the host; GPUs say so, and nothing is sent."""
    t = full(3, -1.0)
    if DEVICE == "cpu":
        raise Skipped("it is there for the host")
    try:
        dist.recv(t)
    except RuntimeError as e:
        assert "recv from any rank is for tensors of the CPU: pass src" in str(e), e
    else:
        raise AssertionError("nothing was raised")


def test_hooks_and_times(rank, size):
    """The hook is told of each operation when the GPU is through with it; the Work has its time."""
    group = dist.new_group()
    x = full(1 << 22, 1.0)
    group._enable_collectives_timing()
    dist.all_reduce(x, group=group, async_op=True).wait()  # makes the communicator of the GPU
    synchronize()
    seen = []
    group._register_on_completion_hook(lambda info: seen.append((info.op_type, info.active_duration.total_seconds())))
    works = [dist.all_reduce(x, group=group, async_op=True) for _ in range(20)]
    dist.all_reduce(x, group=group)
    for w in works:
        w.wait()
    group._wait_for_pending_works()
    synchronize()
    took = [w._get_duration() for w in works]
    assert len(seen) == 21 and all(0 <= s < 10 for _, s in seen), seen
    assert all(0 < ms < 10000 for ms in took), took
    if rank == 0:
        print(f"    16 MB all_reduce by the GPU's clock: {statistics.median(took):.3f} ms; by the hook {statistics.median(s for _, s in seen) * 1e3:.3f} ms", flush=True)
    dist.destroy_process_group(group)


def test_part_of_a_group(rank, size):
    """Its GPU communicator is its own."""
    backend = dist.group.WORLD._get_backend(torch.device(DEVICE))
    if not hasattr(backend, "split"):
        raise Skipped("this torch does not hand out split()")
    store = dist.PrefixStore("part", dist.distributed_c10d._get_default_store())
    part = backend.split(store, list(range(size))[::-1], backend.options)
    assert part.rank() == size - 1 - rank
    x = full(1000, float(rank))
    part.allreduce([x]).wait()
    same(x, size * (size - 1) / 2)
    if not hasattr(backend, "shrink"):
        return
    if rank < size - 1:  # the last one does not call
        rest = part.shrink([0])
        y = full(1000, 1.0)
        rest.allreduce([y]).wait()
        same(y, size - 1.0)
    dist.barrier()


def check(rank, size):
    """Each case in a group of its own, so that one that fails does not hide the others."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
    cases = sorted((f for n, f in globals().items() if n.startswith("test_")), key=lambda f: f.__code__.co_firstlineno)
    failed = 0
    for case in cases:
        end, name = "right", case.__name__
        dist.init_process_group("kolo", store=dist.PrefixStore(name, store), rank=rank, world_size=size, timeout=datetime.timedelta(seconds=20))
        try:
            case(rank, size)
        except Skipped as e:
            end = f"skipped {e}"
        except Exception:
            end = "FAILED"
            print(f"FAILED {name} on rank {rank}", flush=True)
            traceback.print_exc()
            dist.group.WORLD.abort()  # the others are not waited for, and do not wait
        store.set(f"{name}/{rank}", end)
        ends = [store.get(f"{name}/{r}").decode() for r in range(size)]
        failed += "FAILED" in ends
        if rank == 0 and "FAILED" not in ends:
            print(ends[0].replace(" ", f" {name}: ", 1) if " " in ends[0] else f"right {name}", flush=True)
        dist.destroy_process_group()
    os._exit(1 if failed else 0)


# ---- a rank that is killed -------------------------------------------------------------------------------------------------------


def killed(rank, size):
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
    dist.init_process_group("kolo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=30))
    x = full(1 << 20, 1.0)
    dist.all_reduce(x)
    synchronize()
    if rank == size - 1:
        store.set("when", repr(time.monotonic()))
        os.kill(os.getpid(), 9)
    try:
        for _ in range(100000):
            dist.all_reduce(x, async_op=True).wait()
            synchronize()
    except RuntimeError as e:
        took = (time.monotonic() - float(store.get("when"))) * 1e3
        print(f"rank {rank}: rank {size - 1} named: {f'rank {size - 1}' in str(e)}, after {took:.1f} ms: {str(e)[:160]}", flush=True)
        os._exit(0 if f"rank {size - 1}" in str(e) and took < 5000 else 1)
    os._exit(1)


# ---- training, by turns with NCCL ------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    def __init__(self, words, width, heads, layers, length):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, words, bias=False)

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def wide():
    if DEVICE == "cpu":
        return torch.nn.Sequential(torch.nn.Linear(2048, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    return torch.nn.Sequential(*(m for _ in range(8) for m in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())), torch.nn.Linear(2048, 1024))


def gpt(small):
    return Gpt(8192, 32, 2, 2, 512) if small else Gpt(8192, 768, 12, 6, 512)


def made(kind, group, rank):
    """A model, what makes a batch of a step, and the loss."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(1)
    ids = None if DEVICE == "cpu" else [torch.cuda.current_device()]
    small = DEVICE == "cpu"
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(wide().to(DEVICE), device_ids=ids, process_group=group)
    elif kind == "GPT, DDP, bfloat16":
        model = torch.nn.parallel.DistributedDataParallel(gpt(small).to(DEVICE).bfloat16(), device_ids=ids, process_group=group)
    else:
        model = gpt(small).to(DEVICE)
        mesh = DeviceMesh.from_group(group, DEVICE)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def batch(step):
        g = torch.Generator(device=DEVICE)
        g.manual_seed(1000 * step + rank)
        if kind == "DDP":
            return torch.randn(64, 2048, device=DEVICE, generator=g), None
        x = torch.randint(0, 8192, (1, 64) if small else (4, 512), device=DEVICE, generator=g)
        return x, x.roll(-1, 1)

    def loss(out, want):
        return (out**2).mean() if want is None else torch.nn.functional.cross_entropy(out.float().flatten(0, 1), want.flatten())

    return model, batch, loss


def train(rank, size):
    dist.init_process_group("gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    groups = {"nccl": dist.group.WORLD, "kolo": dist.new_group(backend="kolo")}
    bad = 0
    for kind in ("DDP", "GPT, DDP, bfloat16", "GPT, FSDP2"):
        runs = {}
        for name, group in groups.items():
            model, batch, loss = made(kind, group, rank)
            runs[name] = (model, batch, loss, torch.optim.SGD(model.parameters(), 0.01), [], [])
        for round_ in range(8):
            for name, (model, batch, loss, optimizer, losses, times) in runs.items():
                synchronize()
                dist.barrier()
                began = time.perf_counter()
                for step in range(10):
                    x, want = batch(10 * round_ + step)
                    optimizer.zero_grad()
                    value = loss(model(x), want)
                    value.backward()
                    optimizer.step()
                synchronize()
                if round_ > 1:
                    times.append((time.perf_counter() - began) / 10 * 1e3)
                losses.append(value.item())
        nccl, kolo = (statistics.median(runs[n][5]) for n in ("nccl", "kolo"))
        apart = max(abs(a - b) / abs(a) for a, b in zip(runs["nccl"][4], runs["kolo"][4]))
        bad += apart > 2e-3
        if rank == 0:
            print(f"{size} {'processes, Gloo for NCCL' if DEVICE == 'cpu' else 'GPUs'}  {kind:20} kolo {kolo:7.2f} ms a step, nccl {nccl:7.2f}, speed {nccl / kolo:5.3f}; last loss {runs['kolo'][4][-1]:.6f} and {runs['nccl'][4][-1]:.6f}, most apart {apart:.1e}", flush=True)
        del runs, model, optimizer, value
        if DEVICE != "cpu":
            torch.cuda.empty_cache()
    dist.barrier()
    os._exit(1 if bad else 0)  # groups of two libraries: nothing more to learn from their ends


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--killed", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    if args.cpu:
        global DEVICE
        DEVICE = "cpu"
    if "RANK" in os.environ:
        rank = int(os.environ["RANK"])
        if not args.cpu:
            torch.cuda.set_device(rank % torch.cuda.device_count())
        return (train if args.train else killed if args.killed else check)(rank, args.ranks)
    ranks = args.ranks or (2 if args.cpu else torch.cuda.device_count())
    if not ranks:
        print("no GPU is here: nothing was tried")
        return 77
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    cmd = [sys.executable, __file__, "--ranks", str(ranks), *(["--train"] if args.train else []), *(["--killed"] if args.killed else []), *(["--cpu"] if args.cpu else [])]
    env = {**os.environ, "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"}
    all_ranks = [subprocess.Popen(cmd, env={**env, "RANK": str(r)}) for r in range(ranks)]
    ends = [p.wait() for p in all_ranks]
    return max(ends[:-1] if args.killed else ends, key=abs)


if __name__ == "__main__":
    sys.exit(main())
