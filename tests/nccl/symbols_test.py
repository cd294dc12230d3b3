#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# The functions that PyTorch 2.15's libtorch_cuda.so takes from libnccl.so.2 are there, and each function of the library is called by
# a case of nccl_conform: symbols_test.py NCCL_CONFORM LIBRARY [LIBTORCH_CUDA]. The loader tells what is called, since a symbol is
# bound at its first call. With a third file its undefined symbols are compared with the list here.
import ctypes
import glob
import os
import re
import subprocess
import sys
import tempfile

# By what follows "nccl".
TORCH_2_15 = """
AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount CommDeregister CommDestroy CommFinalize CommGetAsyncError
CommGetUniqueId CommGrow CommInitAll CommInitRank CommInitRankConfig CommInitRankScalable CommMemStats CommRegister CommResume
CommRevoke CommShrink CommSplit CommSuspend CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate DevCommDestroy
Gather GetErrorString GetLastError GetLsaMultimemDevicePointer GetPeerDevicePointer GetUniqueId GetVersion GroupEnd
GroupSimulateEnd GroupStart MemAlloc MemFree PutSignal Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceScatter Send Signal
WaitSignal WinGetUserPtr
"""


def symbols(path, which):
    out = subprocess.run(["nm", "-D", which, path], text=True, capture_output=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.strip()}


def called(conform):
    """What nccl_conform calls of the library."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": os.path.join(folder, "ld"), "KOLO_LOG": "error"}
        env.pop("LD_BIND_NOW", None)
        run = subprocess.run([conform, "--ranks", "2"], env=env, text=True, capture_output=True, check=False)
        if run.returncode:
            sys.exit(f"nccl_conform ends with {run.returncode}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
        found = set()
        for path in glob.glob(os.path.join(folder, "ld*")):
            with open(path, encoding="utf-8", errors="replace") as f:
                found |= {m[1] for m in re.finditer(r"binding file \S*nccl_conform \[0\] to \S*libnccl\S* \[0\]: normal symbol `(\w+)'", f.read())}
        return found


def main():
    conform, library = sys.argv[1:3]
    wanted = {"nccl" + name for name in TORCH_2_15.split()}
    exported = symbols(library, "--defined-only")
    problems = [f"{n}: PyTorch 2.15 wants it, {library} has none" for n in sorted(wanted - exported)]
    if len(sys.argv) > 3:
        torch = {n for n in symbols(sys.argv[3], "--undefined-only") if re.match(r"p?nccl[A-Z]", n)}
        problems += [f"{n}: {sys.argv[3]} and the list here differ" for n in sorted(torch ^ wanted)]
    if b"san.so" in subprocess.run(["ldd", library], capture_output=True, check=False).stdout:
        print("built with a sanitizer: what is called was not looked at")
    else:
        loaded = ctypes.CDLL(library)
        problems += [f"{n} does not resolve" for n in sorted(wanted) if not hasattr(loaded, n)]
        calls = called(conform)
        problems += [f"{n} is called by no case of nccl_conform" for n in sorted(n for n in exported - calls if n.startswith("nccl"))]
        print(f"{len(wanted)} functions of PyTorch 2.15, {len(wanted & calls)} of them called; {len(calls)} called in all")
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


main()
