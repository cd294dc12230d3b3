#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs libnccl.so.2 on an old system: links it for glibc 2.28 (scripts/link-nccl), makes a Debian 11 (glibc 2.31) in a folder if there
is none, and runs a job of two ranks there on host memory. As root; needs debootstrap, and ziglang of PyPI.

    tests/nccl/old_system_test.py --root FOLDER [--build build] [--python PYTHON WITH ziglang]
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--root", required=True, type=pathlib.Path, help="folder of the old system; made if it is not there")
    args.add_argument("--build", default="build")
    args.add_argument("--suite", default="bullseye", help="which Debian is made")
    args.add_argument("--python", default=sys.executable, help="a Python that has ziglang")
    o = args.parse_args()
    if not (o.root / "bin").exists():
        subprocess.run(["debootstrap", "--variant=minbase", o.suite, o.root], check=True)
    folder = o.root / "tmp" / "kolo"
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run([o.python, TOP / "scripts/link-nccl", "--build", o.build, folder / "libnccl.so.2"], check=True)
        subprocess.run([o.python, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28", "-I", TOP / "src", "-o", folder / "old_system",
                        TOP / "tests/nccl/old_system.c", "-ldl"], check=True)
        return subprocess.run(["chroot", o.root, "/tmp/kolo/old_system", "/tmp/kolo/libnccl.so.2"], timeout=60, check=False).returncode
    finally:
        shutil.rmtree(folder)


sys.exit(main())
