#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kolo on torch's own tensors, by ctypes: two processes (or more) all_reduce what torch allocates, grows and frees.

With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torch puts its memory together of pieces (cuMemMap), which a run
of growing tensors makes longer, and gives back with empty_cache(). Every element is looked at.

    torch_test.py LIBRARY [--ranks N] [--rounds N]

Needs torch and a GPU; ranks share GPU 0 where there are fewer GPUs than ranks. By hand, and on a machine for GPUs.
"""
import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile

FLOAT32, SUM = 8, 0
UNDEFINED = -2**31


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("magic", ctypes.c_uint32), ("blocking", ctypes.c_int),
                ("init_timeout_ms", ctypes.c_int), ("op_timeout_ms", ctypes.c_int), ("name", ctypes.c_char_p),
                ("split_share", ctypes.c_int), ("device", ctypes.c_int), ("gpu_profile", ctypes.c_int)]


def load(path):
    lib = ctypes.CDLL(path)
    lib.kolo_get_last_error.restype = ctypes.c_char_p
    lib.kolo_get_last_error.argtypes = [ctypes.c_void_p]
    lib.kolo_comm_init_rank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int,
                                        ctypes.POINTER(Config)]
    lib.kolo_all_reduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                    ctypes.c_void_p, ctypes.c_void_p]
    lib.kolo_comm_finalize.argtypes = lib.kolo_comm_destroy.argtypes = [ctypes.c_void_p]
    return lib


def check(lib, status, what):
    if status:
        sys.exit(f"{what}: {lib.kolo_get_last_error(None).decode()}")


def connect(lib, rank, ranks, path, device):
    uid, comm = UniqueId(), ctypes.c_void_p()
    if rank == 0:
        check(lib, lib.kolo_get_unique_id(ctypes.byref(uid)), "get_unique_id")
        check(lib, lib.kolo_unique_id_save(ctypes.byref(uid), path.encode()), "unique_id_save")
    else:
        check(lib, lib.kolo_unique_id_load(ctypes.byref(uid), path.encode(), 60000), "unique_id_load")
    config = Config(ctypes.sizeof(Config), 0x6b6f6c6f, UNDEFINED, 60000, 60000, None, UNDEFINED, device, UNDEFINED)
    check(lib, lib.kolo_comm_init_rank(ctypes.byref(comm), ranks, uid, rank, ctypes.byref(config)), "init")
    return comm


def tensor_rounds(lib, torch, comm, rank, ranks, rounds):
    """All ranks draw the same lengths; tensors live for some rounds, so that torch's segments grow, split and shrink."""
    draw, kept, calls, wrong = random.Random(7), [], 0, 0
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for i in range(rounds):
        count = draw.choice([1, 1000, 65537, 1 << 20, 3 << 20, (17 << 20) + 5, 32 << 20])
        stream, in_place = streams[draw.randrange(2)], draw.randrange(2)
        with torch.cuda.stream(stream):
            src = torch.arange(count, device="cuda", dtype=torch.float32) % 1000 + rank
            want = (torch.arange(count, device="cuda", dtype=torch.float32) % 1000) * ranks + ranks * (ranks - 1) // 2
            dst = src if in_place else torch.empty_like(src)
            for _ in range(1 if in_place else 2):  # the second time others may have the memory mapped
                check(lib, lib.kolo_all_reduce(src.data_ptr(), dst.data_ptr(), count, FLOAT32, SUM, comm,
                                               stream.cuda_stream), "all_reduce")
                calls += 1
                wrong += int((dst != want).sum().item())
        kept.append((src, dst))
        while len(kept) > draw.randrange(1, 8):
            kept.pop(draw.randrange(len(kept)))
        if draw.randrange(10) == 0:
            kept.clear()
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    return calls, wrong


def work(args):
    import torch
    device = args.rank % torch.cuda.device_count()
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    lib = load(args.library)
    comm = connect(lib, args.rank, args.ranks, args.meet, device)
    calls, wrong = tensor_rounds(lib, torch, comm, args.rank, args.ranks, args.rounds)
    check(lib, lib.kolo_comm_finalize(comm), "finalize")
    check(lib, lib.kolo_comm_destroy(comm), "destroy")
    print(f"rank {args.rank} of {args.ranks}, torch {torch.__version__}, "
          f"{os.environ.get('PYTORCH_CUDA_ALLOC_CONF', 'default allocator')}: {calls} calls, {wrong} elements wrong", flush=True)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank >= 0:
        return work(args)
    with tempfile.TemporaryDirectory() as folder:
        env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "KOLO_GPU_SHARED": "1", **os.environ}
        ranks = [subprocess.Popen([sys.executable, __file__, args.library, "--ranks", str(args.ranks), "--rounds",
                                   str(args.rounds), "--rank", str(r), "--meet", os.path.join(folder, "id")], env=env)
                 for r in range(args.ranks)]
        return max(r.wait() for r in ranks)


if __name__ == "__main__":
    sys.exit(main())
