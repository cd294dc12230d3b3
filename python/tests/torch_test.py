#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# torch.distributed on the backend "kolo": collectives and their forms, messages, groups, DDP, failures. Started with kolorun.
import datetime
import os
import sys
import time
import traceback
import warnings

import kolocomm
import kolocomm.torch  # noqa: F401
import torch
import torch.distributed as dist

warnings.simplefilter("ignore")
rank, size = kolocomm.job_place()[:2]


def begin(name, timeout_s=60):
    dist.init_process_group("kolo", init_method=f"file://{os.environ['KOLO_ID_FILE']}.{name}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=timeout_s))


def same(a, b):
    torch.testing.assert_close(a, torch.as_tensor(b).to(a.dtype).expand_as(a) if not isinstance(b, torch.Tensor) else b)


def test_reductions():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8):
        x = torch.full((3, 2), rank + 1).to(dtype)
        dist.all_reduce(x)
        same(x, sum(range(1, size + 1)))
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same(x, (size - 1) / 2)
    z = torch.tensor([complex(rank, 1)])
    dist.all_reduce(z)
    same(z, torch.tensor([complex(size * (size - 1) / 2, size)]))
    y = torch.arange(6.0).view(2, 3).t()  # not contiguous
    dist.all_reduce(y)
    same(y, torch.arange(6.0).view(2, 3).t() * size)
    r = torch.full((2,), float(rank))
    dist.reduce(r, 0, dist.ReduceOp.MAX)
    if rank == 0:
        same(r, size - 1)


def test_moved_data():
    x = torch.full((4,), float(rank))
    dist.broadcast(x, size - 1)
    same(x, size - 1)
    parts = [torch.zeros(2, 2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 2), float(rank)))
    for r, part in enumerate(parts):
        same(part, r)
    uneven = [torch.zeros(r + 1) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    for r, part in enumerate(uneven):
        same(part, r)
    whole = torch.zeros(size * 3)
    dist.all_gather_into_tensor(whole, torch.full((3,), float(rank)))
    same(whole, torch.arange(size).float().repeat_interleave(3))
    out = torch.zeros(3)
    dist.reduce_scatter_tensor(out, whole)
    same(out, rank * size)
    dist.reduce_scatter(out, [torch.full((3,), float(r)) for r in range(size)])
    same(out, rank * size)
    gathered = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), gathered)
    if rank == 0:
        same(gathered[-1], size - 1)
    dist.scatter(out, [torch.full((3,), float(r + 1)) for r in range(size)] if rank == 0 else None)
    same(out, rank + 1)
    got = torch.zeros(sum(range(1, size + 1)))
    dist.all_to_all_single(got, torch.full((size * (rank + 1),), float(rank)), [r + 1 for r in range(size)], [rank + 1] * size)
    same(got, torch.cat([torch.full((r + 1,), float(r)) for r in range(size)]))
    lists = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(lists, [torch.full((2,), float(10 * rank + r)) for r in range(size)])
    for r, part in enumerate(lists):
        same(part, 10 * r + rank)


def test_lists_without_a_copy():
    """Large ones go where the tensors lie, in whatever order; one that is not contiguous through a copy."""
    for plain in (True, False):
        memory = [torch.full((1 << 17,), -1.0) for _ in range(2 * size + 1)]
        parts = memory[1::2][::-1]
        if not plain:
            parts[0] = torch.zeros(512, 256).t()
        mine = torch.full((1 << 17,), float(rank)) if plain else torch.full((256, 512), float(rank))
        parts = [p if p.shape == mine.shape else p.view(mine.shape) for p in parts]
        dist.all_gather(parts, mine)
        for r, p in enumerate(parts):
            same(p, r)
        dist.gather(mine + 1, parts if rank == 0 else None)
        if rank == 0:
            for r, p in enumerate(parts):
                same(p, r + 1)
        for r, p in enumerate(parts):
            p.fill_(10.0 * rank + r)
        got = [torch.zeros_like(mine) for _ in range(size)][::-1]
        dist.all_to_all(got, parts)
        for r, p in enumerate(got):
            same(p, 10 * r + rank)
        dist.scatter(mine, parts if rank == 0 else None)
        same(mine, rank)
        for guard in memory[::2]:
            same(guard, -1)


def test_sparse():
    t = torch.sparse_coo_tensor([[rank, 5]], [1.0, 2.0], (8,))
    dist.all_reduce(t)
    want = torch.zeros(8)
    want[:size] += 1
    want[5] += 2 * size
    same(t.to_dense(), want)


def test_work_and_futures():
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(10)]
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda f: f.value()[0] * 2)
    for w in works:
        assert w.wait()
    same(doubled.wait(), torch.full((3,), 2.0 * size))
    assert work.is_completed() and work.is_success()


def test_objects():
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert [o["rank"] for o in objects] == list(range(size))
    box = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(box)
    assert box == ["from 0"]


def test_messages():
    to, source = (rank + 1) % size, (rank - 1) % size
    for tag in (0, 7):
        t = torch.zeros(4)
        work = dist.isend(torch.full((4,), float(rank)), to, tag=tag)
        dist.recv(t, source, tag=tag)
        work.wait()
        same(t, source)
    out = torch.zeros(2)
    ops = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), to), dist.P2POp(dist.irecv, out, source)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    same(out, source)


def test_first_sends_do_not_wait():
    """Of pairs and tags that were never used: both ranks send before they receive."""
    to, source = (rank + 1) % size, (rank - 1) % size
    for tag in (100, 101):
        dist.send(torch.full((1000,), float(rank)), to, tag=tag)
    for tag in (101, 100):  # in another order
        t = torch.zeros(1000)
        dist.recv(t, source, tag=tag)
        same(t, source)


def test_any_source():
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            t = torch.zeros(3)
            seen.add(dist.recv(t))
            assert int(t[0]) in seen, (t, seen)
        assert seen == set(range(1, size)), seen
    else:
        dist.send(torch.full((3,), float(rank)), 0)


def test_message_ends_apart():
    """A receive that is late, or gets another size, says so and ends nothing else."""
    other = (rank + 1) % size
    t = torch.zeros(4)
    work = dist.irecv(t, other, tag=200)
    try:
        work.wait(datetime.timedelta(milliseconds=50))
    except dist.DistBackendError as e:
        assert "not complete after 50 ms" in str(e), e
    else:
        raise AssertionError("nothing was raised")
    dist.barrier()
    dist.send(torch.full((4,), 1.0 + rank), (rank - 1) % size, tag=200)
    assert work.wait()
    same(t, 1 + other)
    dist.send(torch.ones(3), (rank - 1) % size, tag=201)
    try:
        dist.recv(t, other, tag=201)
    except dist.DistBackendError as e:
        assert f"rank {other} sent 12 bytes, and the tensor has 16" in str(e), e
    else:
        raise AssertionError("nothing was raised")


def test_message_futures():
    to, source = (rank + 1) % size, (rank - 1) % size
    columns = torch.zeros(2, 3).t()  # not contiguous
    future = dist.irecv(columns, source, tag=300).get_future()
    dist.isend(torch.arange(6.0).view(3, 2) + rank, to, tag=300)  # nobody holds it
    same(future.wait()[0], torch.arange(6.0).view(3, 2) + source)


def test_groups():
    group = dist.new_group([0, 1])
    if rank < 2:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        same(x, 2)
        dist.barrier(group)
    dist.destroy_process_group(group) if rank < 2 else None
    dist.barrier()


def test_ddp():
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
    model.module.load_state_dict(plain.state_dict())
    data = torch.randn(4 * size, 8)
    for m, part in ((plain, data), (model, data[4 * rank:4 * rank + 4])):
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (m(part)**2).mean().backward()
            optimizer.step()
    for a, b in zip(plain.parameters(), model.parameters()):
        same(a, b)


def test_mistakes():
    for call, words in ((lambda: dist.all_gather_into_tensor(torch.zeros(1), torch.zeros(3)), "world_size times input"),
                        (lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size), [1] * size, [2] * size), "dim 0"),
                        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "")):
        try:
            call()
        except (RuntimeError, ValueError, NotImplementedError) as e:
            assert words in str(e), e
        else:
            raise AssertionError("nothing was raised")


def test_tensors_without_memory_of_their_own():
    """kolocomm on tensors that torch does not hand out, or shows otherwise than they lie in memory."""
    c = kolocomm.init_all(1)[0]
    for tensor, words in ((torch.ones(3).to_sparse(), "to_dense()"), (torch.ones(3, requires_grad=True) * 2, "x.detach()"), (torch.nn.Parameter(torch.ones(3)), "x.detach()"),
                          (torch.ones(3, dtype=torch.complex64).conj(), "resolve_conj"), (torch._neg_view(torch.ones(3)), "resolve_neg()"), (torch.ones(3, device="meta"), "no memory"),
                          (torch.ones(2, 3).t(), "contiguous"), (torch.ones(1).expand(4), "contiguous")):
        try:
            c.all_reduce(tensor)
        except kolocomm.errors.InvalidArgument as e:
            assert words in str(e), e
        else:
            raise AssertionError(f"nothing was raised for {tensor}")
    x = torch.tensor(3.0)
    c.all_reduce(x)
    assert x == 3
    c.destroy()


def a_call_has_a_limit_of_its_own():
    """The group's is a minute. The communicator cannot be used afterwards, as after any time limit."""
    begin("limit", 60)
    dist.barrier()
    if rank == 0:
        options = dist.AllreduceOptions()
        options.timeout = datetime.timedelta(milliseconds=300)
        began = time.monotonic()
        try:
            dist.group.WORLD.allreduce([torch.ones(1)], options).wait()
        except dist.DistBackendError as e:
            assert "Timed out" in str(e) and "rank 1" in str(e), e
            assert 0.25 < time.monotonic() - began < 10
        else:
            raise AssertionError("nothing was raised")
        dist.distributed_c10d._get_default_store().set("told", "yes")
    else:
        dist.distributed_c10d._get_default_store().wait(["told"])
    dist.destroy_process_group()


def last_a_late_rank_is_named():
    """Of the group's timeout; the last case, since the group cannot be used afterwards."""
    begin("late", 1)
    dist.barrier()
    if rank == 0:
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as e:
            assert "Timed out" in str(e) and "rank 1" in str(e), e
            assert time.monotonic() - began < 10
        else:
            raise AssertionError("nothing was raised")
    else:
        time.sleep(3)
    os._exit(0)


def main():
    cases = sorted((f for n, f in globals().items() if n.startswith("test_")), key=lambda f: f.__code__.co_firstlineno)
    begin("first")
    for case in cases:
        try:
            case()
        except Exception:
            print(f"FAILED {case.__name__} on rank {rank}", flush=True)
            traceback.print_exc()
            os._exit(1)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{len(cases)} cases right: " + " ".join(f.__name__ for f in cases), flush=True)
    if size == 2:
        a_call_has_a_limit_of_its_own()
        last_a_late_rank_is_named()
    return 0


if __name__ == "__main__":
    sys.exit(main())
