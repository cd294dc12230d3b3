# SPDX-License-Identifier: Apache-2.0
"""Programs that use NCCL, on Kolo: the libnccl.so.2 of this package, which has NCCL's functions (docs/nccl.md).

    LD_PRELOAD=$(python -m kolocomm.nccl) torchrun --nproc-per-node 4 train.py
    python -m kolocomm.nccl torchrun --nproc-per-node 4 train.py       # the same

PyTorch, JAX and CuPy then find Kolo's functions before those of their own NCCL. Nothing is replaced: without LD_PRELOAD they are as
before.
"""
import os
import pathlib
import shutil
import sys

NAME = "libnccl.so.2"


def find():
    """The path of the library: in the package, or in the build folder that the package is in; None: it is in neither."""
    here = pathlib.Path(__file__).resolve().parent
    for path in here / "lib" / NAME, here.parents[1] / NAME:
        if path.is_file():
            return str(path)
    return None


def environment(path, environ=os.environ):
    """The environment of a program that is to find the library at path first."""
    before = environ.get("LD_PRELOAD", "")
    if path in before.replace(":", " ").split():
        return dict(environ)
    return {**environ, "LD_PRELOAD": f"{path}:{before}" if before else path}


def main():
    path = find()
    if not path:
        sys.exit(f"{NAME} is not in this package: it was built without it")
    if " " in path or ":" in path:
        sys.exit(f"{path}: LD_PRELOAD takes no path with a space or a colon: install the package elsewhere, or copy the file")
    if len(sys.argv) == 1:
        print(path)
        return
    if sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    program = shutil.which(sys.argv[1])
    if not program:
        sys.exit(f"{sys.argv[1]}: there is no such program")
    os.execve(program, sys.argv[1:], environment(path))


if __name__ == "__main__":
    main()
