#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# What programs do wrong with torch.distributed: an error on each rank that is to blame, and the group can be used afterwards, but
# where the ranks have called different things. Two ranks, started with kolorun.
import copy
import os
import pickle
import sys
import threading

import torch
import torch.distributed as dist
import torch_kit as kit
from torch_kit import raises

rank, size = kit.rank, kit.size


def n(*counts, **more):
    return [torch.ones(c, **more) for c in counts]


def goes_on():
    kit.sums(None, range(size))


def test_lists_that_do_not_fit(*_):
    """More than fits is never written: each rank has room for 3 elements where 4 come, or the other way round."""
    x, three = torch.ones(4), torch.ones(3)
    raises(lambda: dist.all_gather([torch.ones(3) for _ in range(size)], x), "has 3 elements, and 4 are needed")
    raises(lambda: dist.all_gather([torch.ones(4) for _ in range(size)], three), "has 4 elements, and 3 are needed")
    raises(lambda: dist.all_gather([x], x), "one tensor per rank")
    raises(lambda: dist.all_gather(n(4, 4, dtype=torch.int32), x), "type")
    raises(lambda: dist.all_gather_into_tensor(torch.ones(5), x), "world_size times input")
    raises(lambda: dist.reduce_scatter(three, [torch.ones(4) for _ in range(size)]), "has 4 elements, and 3 are needed")
    raises(lambda: dist.reduce_scatter_tensor(three, x), "output size times world size")
    world = dist.group.WORLD
    raises(lambda: world.allgather_into_tensor_coalesced([torch.ones(4)], [three]), "has 4 elements, and 6 are needed")
    raises(lambda: world.allgather_into_tensor_coalesced(n(8, 8), [x]), "2 and 1 tensors")
    raises(lambda: world.reduce_scatter_tensor_coalesced([x], [three]), "has 3 elements, and 8 are needed")
    raises(lambda: dist.all_gather_coalesced([n(4), n(3)], [x]), "")
    if rank == 0:
        raises(lambda: dist.gather(x, [torch.ones(3) for _ in range(size)]), "has 3 elements, and 4 are needed")
        raises(lambda: dist.scatter(x, [torch.ones(5) for _ in range(size)]), "has 5 elements, and 4 are needed")
    goes_on()


def test_splits_that_do_not_fit(*_):
    x = torch.ones(4)
    raises(lambda: dist.all_to_all_single(torch.ones(4), x, [1, 1], [3, 1]), "Split sizes")
    raises(lambda: dist.all_to_all_single(torch.ones(4), x, [-1, 5], [-1, 5]), "a split of -1 rows")
    raises(lambda: dist.all_to_all_single(torch.ones(4), x, [4], [4]), "not equal to group size")
    raises(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), "divide equally")
    goes_on()


def test_tensors_of_other_kinds(*_):
    raises(lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND), "not for float32")
    raises(lambda: dist.all_reduce(torch.ones(3, dtype=torch.complex64), op=dist.ReduceOp.MAX), "complex")
    raises(lambda: dist.all_reduce(torch.ones(3, dtype=torch.complex64).conj()), "resolve_conj")
    raises(lambda: dist.all_reduce(torch.ones(1).expand(4)), "clone()")
    raises(lambda: dist.all_reduce([1.0]), "torch.Tensor")
    raises(lambda: dist.broadcast(torch.ones(3), size), "root 2 is out of range")
    for y in (torch.ones(8)[::2], torch.ones(3, requires_grad=True), torch.tensor(1.0), torch.ones(3, dtype=torch.uint16)):
        dist.all_reduce(y)
        assert (y == size).all(), y
    dist.all_reduce(torch.ones(0))
    empty = [torch.ones(0, 3) for _ in range(size)]
    dist.all_gather(empty, torch.ones(0, 3))
    goes_on()


def test_messages(*_):
    other = 1 - rank
    raises(lambda: dist.send(torch.ones(3), rank), "same as the rank")
    raises(lambda: dist.send(torch.ones(3), 7), "7")
    work = dist.isend(torch.ones(9), other, tag=3)
    raises(lambda: dist.recv(torch.ones(4), other, tag=3), "bytes")
    work.wait()
    goes_on()


def test_groups_are_not_pickled(*_):
    raises(lambda: pickle.dumps(dist.group.WORLD))
    raises(lambda: copy.deepcopy(dist.group.WORLD))
    goes_on()


def test_futures_that_raise(*_):
    raises(lambda: dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda f: 1 / 0).wait(), "ZeroDivisionError")
    inner = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda f: dist.all_reduce(torch.ones(2), async_op=True)).wait()
    inner.wait()
    goes_on()


def test_groups_of_threads(*_):
    """A group for each thread; four at a time."""
    groups, errors = [dist.new_group(backend="kolo") for _ in range(4)], []

    def use(group):
        try:
            for _ in range(50):
                dist.all_reduce(torch.ones(8), group=group)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=use, args=(g,)) for g in groups]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
    goes_on()


def test_fork(*_):
    """A child is told, and one that just ends does no harm."""
    for ends in (False, True):
        pid = os.fork()
        if pid == 0:
            if ends:
                sys.exit(0)  # with all that Python does at its end
            raises(lambda: dist.all_reduce(torch.ones(3)), "fork")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        goes_on()


def test_after_destroy(*_):
    group = dist.new_group(backend="kolo")
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    dist.destroy_process_group(group)
    work.wait()  # it was complete before the group ended
    raises(lambda: dist.all_reduce(torch.ones(3), group=group))
    goes_on()


def test_ranks_that_differ(*_):
    raises(lambda: dist.all_reduce(torch.ones(3 + rank)), "all ranks must")


if __name__ == "__main__":
    kit.run(kit.cases_of(globals()), of_all=False)
