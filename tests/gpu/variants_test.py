#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# usage: variants_test.py PEERS_GPU FAKE_CUDA LIBRARY: Kolo beside itself in peers-gpu (bench/peers_gpu/variants.c). A variant
# reads its own parameters, the library that the program is linked with does not, and what they compute is compared.
import os
import subprocess
import sys

PEERS, FAKE, LIBRARY = sys.argv[1:4]


def run(*more):
    p = subprocess.run([PEERS, "all_reduce", "gather", "--nccl", "none", "--driver", FAKE, "--gpus", "2", "--min", "8", "--max", "2K",
                        "--factor", "256", "--rounds", "2", "--budget", "0.001", "--limit", "50", *more],
                       env=os.environ | {"KOLO_CUDA_LIBRARY": FAKE}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return p.returncode, p.stdout + p.stderr


def want(right, what, output):
    if not right:
        sys.exit(f"variants_test: {what}:\n{output}")


status, output = run("--variant", "KOLO_REDUCE_ORDER=ranks", "--variant", "KOLO_GPU_BLOCKS=3,KOLO_GPU_LL_SIZE=64")
want(status == 0, f"ended with status {status}", output)
want(output.count("variant all_reduce ") == 4 and output.count("of KOLO_GPU_BLOCKS=3,KOLO_GPU_LL_SIZE=64") == 4,
     "not a line for each operation, place and variant", output)
status, output = run("--variant", "KOLO_GPU_BLOCKS=3", "--variant", "KOLO_GPU_BLOCKS=many")
want(status and "a variant's" in output and "KOLO_GPU_BLOCKS" in output and "many" in output, "a wrong value was not read", output)
os.environ["KOLO_GPU_BLOCKS"] = "many"  # of the one that is linked
status, output = run("--variant", "KOLO_GPU_BLOCKS=3")
want(status and "a variant's" not in output and "many" in output, "the linked one did not read its own", output)
del os.environ["KOLO_GPU_BLOCKS"]
status, output = run("--variant", "KOLO_GPU_BLOCKS")
want(status and "KEY=VALUE" in output, "settings that cannot be read were taken", output)
status, output = run("--variant", f"library={LIBRARY},KOLO_GPU_BLOCKS=3")
want(status == 0 and output.count(f"of library={LIBRARY}") == 4, "another file of the library was not taken", output)
status, output = run("--variant", "library=/nowhere.so")
want(status and "/nowhere.so" in output, "a file that is not there was taken", output)
