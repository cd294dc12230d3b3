#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# kolorun --as-nccl: the ranks' NCCL is Kolo's. as_nccl_test.py KOLORUN LIBRARY
import os
import subprocess
import sys

KOLORUN, LIBRARY = sys.argv[1:]
ASK = ("import ctypes, os\nl = ctypes.CDLL(None); v = ctypes.c_int(); r = l.ncclGetVersion(ctypes.byref(v))\n"
       "print('NCCL', r, v.value, [x.split()[-1] for x in open('/proc/self/maps') if 'libnccl' in x][0])")


def run(args, **env):
    out = subprocess.run([KOLORUN, "-n", "2", "--no-tag", *args], text=True, capture_output=True, timeout=60,
                         env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | env)
    return out.returncode, out.stdout, out.stderr


def check(what, fact, seen):
    if not fact:
        print(f"{what}: not so:\n{seen}")
        sys.exit(1)


# Address sanitizers want to be first among the libraries: then nothing can be preloaded.
if b"san.so" in subprocess.run(["ldd", LIBRARY], capture_output=True).stdout:
    print("built with a sanitizer")
    sys.exit(77)
seen = run(["--as-nccl", sys.executable, "-c", ASK])
check("both ranks find Kolo's library", seen[0] == 0 and seen[1].count("NCCL 0 23007 " + os.path.realpath(LIBRARY)) == 2, seen)
seen = run(["--as-nccl", sys.executable, "-c", ASK], KOLO_NCCL_VERSION="22809")
check("the version is what is asked for", seen[1].count("NCCL 0 22809") == 2, seen)
seen = run(["--as-nccl", "-x", "LD_PRELOAD=/no/such/file.so", "sh", "-c", "echo $LD_PRELOAD"])
check("what the user preloads comes first", seen[1].count("/no/such/file.so:") == 2, seen)
seen = run(["--as-nccl", sys.executable, "-c", ASK], NCCL_DEBUG="INFO", NCCL_NTHREADS="256", NCCL_NO_SUCH="1")
check("lines as NCCL's, with Kolo in each", "NCCL INFO Kolo [nccl] this is Kolo" in seen[2], seen)
check("a variable without effect is said to be one", "NCCL_NTHREADS has no effect" in seen[2], seen)
check("an unknown one is warned about once", seen[2].count("unknown variable NCCL_NO_SUCH") == 2, seen)
with open("nccl-test.conf", "w") as f:
    f.write("# a comment\nNCCL_DEBUG = INFO\n")
seen = run(["--as-nccl", sys.executable, "-c", ASK], NCCL_CONF_FILE="nccl-test.conf")
check("a configuration file is read", "this is Kolo" in seen[2], seen)
os.unlink("nccl-test.conf")
