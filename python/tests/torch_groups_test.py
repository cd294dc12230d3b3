#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# A hundred groups of torch.distributed take at most 600 descriptors and 5 threads in each process. Two ranks, started with kolorun.
import datetime
import os
import sys

import kolocomm
import kolocomm.torch  # noqa: F401
import torch
import torch.distributed as dist

GROUPS, DESCRIPTORS, THREADS = 100, 600, 5


def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def main():
    me, ranks = kolocomm.job_place()[:2]
    # A store over TCP, as programs have it: what a group keeps of it counts.
    port = int.from_bytes(os.urandom(2), "little") % 20000 + 10000
    file = dist.FileStore(f"{os.environ['KOLO_ID_FILE']}.groups", ranks)
    if me == 0:
        store = dist.TCPStore("127.0.0.1", port, ranks, True, wait_for_workers=False)
        file.set("port", str(port))
    else:
        store = dist.TCPStore("127.0.0.1", int(file.get("port")), ranks, False)
    dist.init_process_group("kolo", world_size=ranks, rank=me, store=store, timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))
    before = held()
    groups = [dist.new_group() for _ in range(GROUPS)]
    for group in groups:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x == ranks, x
    descriptors, threads = (now - then for now, then in zip(held(), before))
    assert descriptors <= DESCRIPTORS and threads <= THREADS, f"{GROUPS} groups took {descriptors} descriptors and {threads} threads"
    dist.barrier()
    if me == 0:
        print(f"{GROUPS} groups took {descriptors} descriptors and {threads} threads", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
