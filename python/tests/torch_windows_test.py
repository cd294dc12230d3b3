#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# torch.distributed's windows (torch 2.15): memory that other ranks write to. Three ranks, started with kolorun.
import datetime
import sys

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch_kit import cases_of, meet, raises, rank, run, size, sums

to, source = (rank + 1) % size, (rank - 1) % size


def test_put_and_signal():
    memory = torch.zeros(1000)
    assert dist.distributed_c10d._supports_window()
    window = dist.distributed_c10d._new_window(memory)
    for step in range(5):
        assert window.put(torch.full((10,), 100.0 * rank + step), to, 10 * step, False).wait()
        window.signal(to, False).wait()
        window.wait_signal(source, False).wait()
        assert (memory[10 * step:10 * step + 10] == 100 * source + step).all(), memory
    assert (memory[50:] == 0).all()
    assert window.map_remote_tensor(rank).data_ptr() == memory.data_ptr()
    assert window.get_attr(to).access_type == c10d.WindowAccessType.UNIFIED
    window.tensor_deregister()


def test_asynchronous_ones_are_in_order():
    memory = torch.zeros(3, 4, dtype=torch.int64)
    window = dist.distributed_c10d._new_window()
    window.tensor_register(memory, False)
    works = [window.put(torch.arange(8)[::2] + i, to, 4 * i, True) for i in range(3)]  # not contiguous, and dropped at once
    works += [window.signal(to, True), window.wait_signal(source, True)]
    for w in works:
        w.wait()
    assert memory.tolist() == [[i, 2 + i, 4 + i, 6 + i] for i in range(3)], memory
    window.tensor_deregister()
    window.tensor_register(memory)
    window.tensor_deregister()


def test_windows_are_apart():
    """From each other, and from the group: a wait holds up no collective, and one that fails ends nothing else."""
    a, b = (dist.distributed_c10d._new_window(torch.zeros(2)) for _ in range(2))
    works = [a.wait_signal(source, True), a.signal(to, True)] if rank else []
    b.signal(to, False)
    b.wait_signal(source, False)
    sums(None, range(size))
    assert not any(w.is_completed() for w in works)
    meet("not yet")
    if rank == 0:
        works = [a.signal(to, True), a.wait_signal(source, True)]
    for w in works:
        w.wait()
    limit = c10d.WaitSignalOptions()
    limit.timeout = datetime.timedelta(milliseconds=200)
    raises(lambda: b.wait_signal(source, False, limit), f"rank {source} to signal")
    assert dist.group.WORLD._get_backend(torch.device("cpu")).get_error() == c10d.ErrorType.SUCCESS
    sums(None, range(size))
    a.tensor_deregister()


def test_mistakes():
    window = dist.distributed_c10d._new_window()
    raises(lambda: window.signal(to, False), "tensor_register() on all ranks first")
    raises(lambda: dist.distributed_c10d._new_window(torch.zeros(4, 4).t()), "contiguous")
    raises(lambda: window.tensor_register(torch.zeros(4, device="meta")), "memory of the host")
    window.tensor_register(torch.zeros(4))
    raises(lambda: window.tensor_register(torch.zeros(4)), "tensor_deregister() on all ranks first")
    raises(lambda: window.put(torch.zeros(2), to, 3, False), "window")
    raises(lambda: window.put(torch.zeros(2), size, 0, False), f"rank {size} is not in this group")
    raises(lambda: window.put(torch.zeros(2, dtype=torch.int32), to, 0, False), "Int into a window of Float")
    raises(lambda: window.put(torch.zeros(2), to, -1, False), "offset -1")
    raises(lambda: window.map_remote_tensor(to), "write to it with put()")
    window.signal(to, False)
    window.wait_signal(source, False)
    window.tensor_deregister()


if __name__ == "__main__":
    run(cases_of(globals()), of_all=False)
    sys.exit(0)
