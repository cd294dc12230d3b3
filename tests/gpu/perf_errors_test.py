#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolo-perf --gpu on a driver whose calls fail (FAKE_CUDA_FAIL): whichever call it is, and whether the program or the
# library made it, a rank says which one it was and what the driver calls the error.
# usage: perf_errors_test.py KOLORUN KOLO-PERF FAKE-DRIVER
import os
import re
import subprocess
import sys

KOLORUN, KOLO_PERF, FAKE = sys.argv[1:4]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("KOLO_")}
# The first call, and later ones, which the library has let pass.
CALLS = (("cuInit", 1), ("cuDeviceGetCount", 1), ("cuDeviceGet", 1), ("cuDevicePrimaryCtxRetain", 1), ("cuCtxSetCurrent", 1),
         ("cuMemAlloc_v2", 1), ("cuMemAlloc_v2", 2), ("cuMemcpyAsync", 1), ("cuMemcpyAsync", 3), ("cuStreamCreate", 1),
         ("cuStreamSynchronize", 1), ("cuStreamSynchronize", 4), ("cuEventCreate", 1), ("cuEventCreate", 2), ("cuEventRecord", 1),
         ("cuEventRecord", 2), ("cuEventElapsedTime_v2", 1), ("cuLaunchKernelEx", 1))


def name(call):
    return call.removesuffix("_v2") + "(_v2)?"  # the fake has one function for both


def run(call, which):
    env = {**CLEAN, "KOLO_CUDA_LIBRARY": FAKE, "KOLO_GPU_SHARED": "1", "FAKE_CUDA_SMS": "4", "FAKE_CUDA_FAIL": f"{call}:{which}"}
    p = subprocess.run([KOLORUN, "-n", "2", "--no-tag", "--timeout", "60", KOLO_PERF, "--gpu", "all_reduce", "-b", "8", "-e", "8",
                        "-n", "1"], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=80)
    said = [line for line in p.stderr.splitlines() if line.startswith("kolo-perf:")]
    assert p.returncode == 1 and said, (call, which, p)
    # "on GPU 0" is in all but what comes before a GPU is taken; the library says what it was doing, the program the call
    words = [re.search(r"GPU|CUDA driver|" + name(call), line) and "CUDA_ERROR_LAUNCH_FAILED" in line for line in said]
    assert any(words), (call, which, said)
    return said


for call, which in CALLS:
    said = run(call, which)
    # the tool's own calls by their names
    if call in ("cuMemAlloc_v2", "cuEventElapsedTime_v2"):
        assert any(re.search(name(call) + r"( on GPU \d)? failed: CUDA_ERROR_LAUNCH_FAILED \(error 719: ", line) for line in said), said
