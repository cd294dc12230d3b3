#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# A group of torch.distributed whose members change (torch 2.15: enable_reconfigure). Three ranks, started with kolorun; all cases
# in one process per rank, each with a group of its own.
import datetime
import os
import sys
import traceback

import kolocomm
import kolocomm.torch  # noqa: F401
import torch
import torch.distributed as dist

me, ranks = kolocomm.job_place()[:2]
LIMIT = datetime.timedelta(seconds=30)


class Job:
    """A case's group and what its ranks tell each other by a store beside it."""

    def __init__(self, name):
        self.store = dist.FileStore(f"{os.environ['KOLO_ID_FILE']}.{name}", ranks)
        self.told = 0
        dist.init_process_group("kolo", world_size=ranks, rank=me, store=self.store, timeout=LIMIT, enable_reconfigure=True)

    def tell(self, text=""):
        """All ranks' texts, when all have told theirs."""
        self.told += 1
        self.store.set(f"told/{self.told}/{me}", text or "-")
        return [self.store.get(f"told/{self.told}/{r}").decode() for r in range(ranks)]

    def handles(self):
        return self.tell(dist._get_reconfigure_handle())

    def change(self, uuid, handles):
        dist._reconfigure(uuid, handles, timeout=LIMIT).wait()


def sums(rank, size):
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size), (dist.get_rank(), dist.get_world_size())
    for count in (4, 100000):
        x = torch.full((count,), rank + 1.0)
        dist.all_reduce(x)
        assert (x == size * (size + 1) / 2).all(), x
    if size > 1:
        to, source = (rank + 1) % size, (rank - 1) % size
        got = torch.zeros(2)
        work = dist.isend(torch.full((2,), float(rank)), group_dst=to)
        dist.recv(got, group_src=source)
        work.wait()
        assert (got == source).all(), got


def test_all_come(job):
    job.change(1, job.handles())
    sums(me, ranks)


def test_again_with_the_same(job):
    job.change(1, job.handles())
    sums(me, ranks)
    job.change(2, job.handles())
    sums(me, ranks)


def test_without_one(job):
    """The last, then the middle one of what was before."""
    for uuid, out in ((1, ranks - 1), (3, ranks // 2)):
        job.change(uuid, job.handles())
        handles = job.handles()
        if me != out:
            job.change(uuid + 1, [h for r, h in enumerate(handles) if r != out])
            sums(me - (me > out), ranks - 1)
        job.tell()


def test_alone_and_back(job):
    job.change(10 + me, [dist._get_reconfigure_handle()])
    sums(0, 1)
    job.change(2, job.handles())
    sums(me, ranks)
    job.change(20 + me, [dist._get_reconfigure_handle()])
    sums(0, 1)


def test_one_comes_late(job):
    handles = job.handles()
    if me < ranks - 1:
        job.change(1, handles[:-1])
        sums(me, ranks - 1)
    job.change(2, job.handles())
    sums(me, ranks)


def test_two_parts_become_one(job):
    handles, cut = job.handles(), ranks // 2
    job.change(1 if me < cut else 2, handles[:cut] if me < cut else handles[cut:])
    sums(me if me < cut else me - cut, cut if me < cut else ranks - cut)
    job.change(3, job.handles())
    sums(me, ranks)


def test_after_an_abort(job):
    job.change(1, job.handles())
    sums(me, ranks)
    job.tell()  # nobody waits any more
    dist.get_backend_impl(dist.group.WORLD, torch.device("cpu")).abort()
    job.change(2, job.handles())
    sums(me, ranks)


def test_a_number_is_used_once(job):
    job.change(100 + me, [dist._get_reconfigure_handle()])
    try:
        job.change(100 + me, [dist._get_reconfigure_handle()])
    except RuntimeError as e:
        assert "already used" in str(e), e
    else:
        raise AssertionError("nothing was raised")
    job.tell()


def main():
    cases = sorted((f for n, f in globals().items() if n.startswith("test_")), key=lambda f: f.__code__.co_firstlineno)
    if not hasattr(dist, "_reconfigure"):
        print(f"torch {torch.__version__} has no groups that change: nothing was tried", flush=True)
        return 0
    for case in cases:
        try:
            case(Job(case.__name__))
        except Exception:
            print(f"FAILED {case.__name__} on rank {me}", flush=True)
            traceback.print_exc()
            os._exit(1)
        dist.destroy_process_group()
    if me == 0:
        print(f"{len(cases)} cases right: " + " ".join(f.__name__ for f in cases), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
