# SPDX-License-Identifier: Apache-2.0
"""What the tests of torch.distributed that kolorun starts have in common."""
import datetime
import os
import sys
import time
import traceback

import kolocomm
import kolocomm.torch  # noqa: F401
import torch
import torch.distributed as dist

rank, size = kolocomm.job_place()[:2]


def store(name):
    return dist.FileStore(f"{os.environ['KOLO_ID_FILE']}.{name}", size)


def begin(name, seconds=60.0, **more):
    dist.init_process_group("kolo", store=store(name), rank=rank, world_size=size, timeout=datetime.timedelta(seconds=seconds), **more)


def sums(group, ranks):
    """All ranks of the group add up."""
    x = torch.tensor([float(rank), 1.0])
    dist.all_reduce(x, group=group)
    assert x.tolist() == [sum(ranks), len(ranks)], x


def raises(call, *words):
    try:
        call()
    except Exception as e:
        for w in words:
            assert w in str(e), f"{w!r} is not in: {e}"
        return e
    raise AssertionError(f"nothing was raised, and {words} was awaited")


def meet(name):
    """All ranks, by a store: what is tested takes no part."""
    s = store(f"meet.{name}")
    s.set(str(rank), "here")
    s.wait([str(r) for r in range(size)], datetime.timedelta(seconds=60))


def run(cases, of_all=True):
    """Each case in a group of its own, if of_all is false in one of all."""
    cases = [c for c in cases if c.__name__ in sys.argv[1:] or not sys.argv[1:]]
    for case in cases:
        try:
            if of_all is False:
                begin(case.__name__)
            began = time.monotonic()
            case()
            if of_all is False:
                dist.destroy_process_group()
            if os.environ.get("KIT_TIMES") and rank == 0:
                print(f"{case.__name__}: {time.monotonic() - began:.2f} s", flush=True)
        except SystemExit:  # of a child that a case made
            raise
        except BaseException:
            print(f"FAILED {case.__name__} on rank {rank}", flush=True)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    if rank == 0:
        print(f"{len(cases)} cases right: " + " ".join(f.__name__ for f in cases), flush=True)


def cases_of(names):
    return sorted((f for n, f in names.items() if n.startswith("test_")), key=lambda f: f.__code__.co_firstlineno)
