#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# What a group of torch.distributed tells: torch's flight recorder, completion and abort hooks, times, errors; limits that are
# longer for a while. Two ranks, started with kolorun.
import datetime
import json
import os
import pickle
import sys
import threading
import time

PREFIX = f"{os.environ['KOLO_ID_FILE']}.trace."
os.environ["TORCH_FR_DUMP_TEMP_FILE"] = PREFIX

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch_kit import cases_of, meet, raises, rank, run, size, store, sums

CPU = torch.device("cpu")
other = 1 - rank


def recorded():
    trace = json.loads(c10d._dump_fr_trace_json(backend="kolo"))
    return trace, trace["entries"]


def late_group(seconds):
    return dist.new_group(timeout=datetime.timedelta(seconds=seconds))


def fails(group):
    """Rank 1 does not come."""
    if rank == 0:
        raises(lambda: dist.all_reduce(torch.ones(3), group=group), "Timed out", "rank 1")


def test_flight_recorder_knows_what_is_complete():
    c10d._reset_fr_trace("kolo")
    dist.all_reduce(torch.ones(3, 5, dtype=torch.float64))
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(5)]
    t = torch.zeros(7)
    sent = dist.isend(torch.ones(7), other)
    dist.recv(t, other)
    for w in (sent, *works):
        w.wait()
    trace, entries = recorded()
    assert [e["state"] for e in entries] == ["completed"] * 8, entries
    assert [e["is_p2p"] for e in entries] == [False] * 6 + [True] * 2
    first = entries[0]
    assert first["input_sizes"] == [[3, 5]] and first["input_dtypes"] == ["Double"] and first["timeout_ms"] == 60000, first
    assert all(0 <= e["duration_ms"] < 60000 and e["time_discovered_completed_ns"] >= e["time_created_ns"] for e in entries), entries
    assert "kolo" in first["profiling_name"], first
    assert any(json.loads(g["ranks"]) == [0, 1] for g in trace["pg_config"].values()), trace["pg_config"]


def test_flight_recorder_knows_what_is_not():
    c10d._reset_fr_trace("kolo")
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert recorded()[1][0]["state"] == "scheduled", recorded()
        meet("looked")
        work.wait()
        assert recorded()[1][0]["state"] == "completed", recorded()
    else:
        meet("looked")
        dist.all_reduce(torch.ones(3))


def test_every_work_has_its_time():
    work = dist.all_reduce(torch.ones(100000), async_op=True)
    work.wait()
    assert 0 < work._get_duration() < 10000, work._get_duration()
    assert work.timeout == datetime.timedelta(seconds=60), work.timeout
    assert work.get_future_result().wait() == 0
    dist.group.WORLD._enable_collectives_timing()
    if rank == 0:
        work = dist.irecv(torch.ones(1), 1)
        raises(work._get_duration, "wait() for it first")
        dist.send(torch.ones(1), 1)
        work.wait()
        assert work._get_duration() > 0
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)


def test_on_completion_hook():
    group = late_group(30)
    seen = []
    group._register_on_completion_hook(lambda info: seen.append((info.op_type, info.seq, info.time_finished - info.time_started, info.active_duration)))
    raises(lambda: group._register_on_completion_hook(print), "already")
    works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(10)]
    held = dist.isend(torch.ones(1), other, group=group)
    dist.irecv(torch.zeros(1), other, group=group)  # nobody holds it
    dist.barrier(group)
    group._wait_for_pending_works()
    assert len(seen) == 13 and len({seq for _, seq, _, _ in seen}) == 13, seen
    assert [op for op, *_ in seen].count(c10d.OpType.ALLREDUCE) == 10
    assert all(lasted >= took >= datetime.timedelta(0) for _, _, lasted, took in seen), seen
    assert held.is_completed() and all(w.is_completed() for w in works)
    dist.destroy_process_group(group)


def test_abort_hooks_run_when_an_operation_fails():
    group = late_group(0.3)
    backend = group._get_backend(CPU)
    told, not_told = threading.Event(), []
    assert backend.supports_abort_hooks and backend.supports_completion_hooks
    backend.register_abort_hook(1, told.set)
    backend.register_abort_hook(2, lambda: not_told.append(1))
    backend.unregister_abort_hook(2)
    sums(group, [0, 1])
    assert backend.get_error() == c10d.ErrorType.SUCCESS and not told.is_set()
    fails(group)
    if rank == 0:
        assert told.wait(30) and not not_told
        assert backend.get_error() == c10d.ErrorType.TIMEOUT, backend.get_error()
        trace = f"{PREFIX}0"
        end = time.monotonic() + 40  # with the stacks of all entries: seconds where others work too
        while not os.path.exists(trace) and time.monotonic() < end:
            time.sleep(0.01)
        with open(trace, "rb") as f:
            entries = pickle.load(f)["entries"]
        assert entries[-1]["state"] == "scheduled" and entries[-1]["profiling_name"] == "kolo:all_reduce", entries[-1]
    meet("failed")


def test_abort_hooks_run_at_an_abort():
    """Which does not wait for them."""
    group = late_group(30)
    backend = group._get_backend(CPU)
    began, go_on = threading.Event(), threading.Event()
    backend.register_abort_hook(1, lambda: (began.set(), go_on.wait(30)))
    sums(group, [0, 1])
    meet("aborting")
    backend.abort()
    assert not go_on.is_set() and began.wait(30)
    go_on.set()
    raises(lambda: dist.all_reduce(torch.ones(1), group=group))


def test_a_hook_that_fails_does_no_harm():
    group = late_group(0.3)
    group._get_backend(CPU).register_abort_hook(1, lambda: 1 / 0)
    fails(group)
    meet("harm")


def test_limits_that_are_longer_for_a_while():
    group = late_group(0.3)
    group._get_backend(CPU)._add_ephemeral_timeout(datetime.timedelta(seconds=20))
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=group)
    else:
        time.sleep(0.8)
        dist.all_reduce(torch.ones(1), group=group)
    began = time.monotonic()
    fails(group)
    assert time.monotonic() - began < 15
    meet("longer")


def test_options_are_the_group_s():
    group = late_group(5)
    options = group._get_backend(CPU).options
    assert options.backend == "kolo" and options._timeout == datetime.timedelta(seconds=5)
    assert options.global_ranks_in_group == [0, 1], options.global_ranks_in_group
    group.set_timeout(datetime.timedelta(seconds=7))
    assert group._get_backend(CPU).options._timeout == datetime.timedelta(seconds=7)


def test_what_is_not_there_says_so():
    backend = dist.group.WORLD._get_backend(CPU)
    for call, words in ((lambda: backend.allocate_tensor(10, dtype=torch.float32, device=CPU), "does not support allocateTensor"),
                        (lambda: backend.mem_allocator, "does not support getMemAllocator"),
                        (backend._start_time_estimate, "does not support time estimation")):
        raises(call, "kolo", words)
    assert not backend._supports_time_estimate and not backend.supports_tensor_alloc(CPU)
    backend.suspend(), backend.resume()  # there is no memory of a GPU
    assert backend.memory_stats["gpu_bytes"] == 0 if not callable(backend.memory_stats) else backend.memory_stats()["gpu_bytes"] == 0


if __name__ == "__main__":
    run(cases_of(globals()), of_all=False)
    sys.exit(0)
