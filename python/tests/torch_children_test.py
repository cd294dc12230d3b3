#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Groups of torch.distributed that come from groups: split, shrunk, merged. Three ranks, started with kolorun.
import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch_kit import begin, cases_of, meet, raises, rank, run, size, store, sums

CPU = torch.device("cpu")


def test_split_keeps_the_order_that_is_given():
    part = dist.split_group(split_ranks=[[2, 0], [1]])
    want = {0: (1, 2), 1: (0, 1), 2: (0, 2)}[rank]
    assert (part.rank(), part.size()) == want, (part.rank(), part.size())
    sums(part, [0, 2] if rank != 1 else [1])
    got = torch.full((1,), float(rank))
    dist.broadcast(got, group=part, group_src=0)
    assert got == (1 if rank == 1 else 2), got
    sums(None, range(size))


def test_split_leaves_ranks_out():
    part = dist.split_group(split_ranks=[[0, 1]])
    if rank == 2:
        assert part is dist.GroupMember.NON_GROUP_MEMBER, part
    else:
        sums(part, [0, 1])
        again = dist.split_group(part, split_ranks=[[1], [0]])
        sums(again, [rank])


def test_split_comes_behind_what_was_begun():
    xs = [torch.ones(20000) for _ in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    part = dist.split_group(split_ranks=[[0, 1, 2]])
    y = torch.ones(5)
    last = dist.all_reduce(y, group=part, async_op=True)
    for w in (last, *works):
        w.wait()
    assert all((x == size).all() for x in (*xs, y))


def test_split_has_a_limit_of_its_own_and_outlives_its_parent():
    parent = dist.new_group()
    part = dist.split_group(parent, split_ranks=[[0, 1, 2]], timeout=datetime.timedelta(seconds=0.4))
    dist.destroy_process_group(parent)
    sums(part, range(size))
    if rank == 0:
        raises(lambda: dist.all_reduce(torch.ones(1), group=part), "Timed out")
    meet("limit")
    sums(None, range(size))


def test_split_of_ranks_that_are_not_there():
    backend = dist.group.WORLD._get_backend(CPU)
    raises(lambda: backend.split(store("nobody"), [0, 7], backend.options), "rank 7 is not in this group of 3")
    sums(None, range(size))


def test_merge_meets_by_the_store_that_is_given():
    backend = dist.group.WORLD._get_backend(CPU)
    merged = backend.merge(store("merged"), backend.options, (rank + 1) % size, size)
    x = torch.full((1,), float(rank))
    merged.allreduce([x]).wait()
    assert (merged.rank(), x) == ((rank + 1) % size, 3.0), (merged.rank(), x)


def test_groups_of_a_group_that_is_bound_to_a_device():
    """torch then asks ranks outside of a new group to take part in a split."""
    dist.destroy_process_group()
    begin("bound", device_id=torch.device("cpu", 0))
    pair = dist.new_group([0, 2])
    if rank != 1:
        sums(pair, [0, 2])
    sums(None, range(size))


def test_shrink():
    """The last rank is left out and does not call."""
    if rank == 2:
        dist.all_reduce(torch.ones(1))
        meet("shrunk")
        return
    work = dist.all_reduce(torch.ones(1), async_op=True)
    group = dist.shrink_group([2])
    assert work.is_success() and (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    sums(group, [0, 1])
    sums(None, [0, 1])
    meet("shrunk")


def test_shrink_ends_what_waits():
    """One that hangs is left out: what waits for it ends, what is queued behind that too."""
    if rank == 2:
        meet("ended")
        return
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    group = dist.shrink_group([2], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    for w in works:
        raises(w.wait, "kolo")
    sums(group, [0, 1])
    meet("ended")


def shrink_without_one_that_is_gone():
    """What waits for it ends; ranks that are lost and not in the list are named. The last two cases: rank 2 is gone then."""
    begin("gone")
    part = dist.split_group(split_ranks=[[0, 1, 2]])
    sums(part, range(size))
    meet("gone")
    if rank == 2:
        os._exit(0)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    raises(lambda: work.wait(), "rank 2")
    if rank == 0:
        raises(lambda: part._get_backend(CPU).shrink([1], dist.distributed_c10d.SHRINK_ABORT), "more ranks are lost than", "names (2)")
    group = dist.shrink_group([2], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    sums(group, [0, 1])
    sums(dist.new_group([0, 1]), [0, 1])
    dist.destroy_process_group()


if __name__ == "__main__":
    run(cases_of(globals()), of_all=False)
    run([shrink_without_one_that_is_gone])
    sys.exit(0)
