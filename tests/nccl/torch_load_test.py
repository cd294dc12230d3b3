#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# PyTorch as PyPI has it, unmodified, loads with libnccl.so.2: each symbol that its libtorch_cuda.so wants is there, and PyTorch's own
# calls arrive in it. Needs no GPU. torch_load_test.py LIBRARY
import os
import re
import subprocess
import sys

LIBRARY = os.path.abspath(sys.argv[1])
if os.environ.get("LD_PRELOAD") != LIBRARY:
    os.environ.update(LD_PRELOAD=LIBRARY, KOLO_NCCL_CPU="1")
    os.execv(sys.executable, [sys.executable, *sys.argv])
del os.environ["LD_PRELOAD"]  # of the tools below

import torch  # noqa: E402


def symbols(path, which):
    out = subprocess.run(["nm", "-D", which, path], text=True, capture_output=True, check=True).stdout
    return {name for name in re.findall(r"\bnccl[A-Z]\w*", out)}


if not torch.version.cuda:
    print(f"PyTorch {torch.__version__} is built without CUDA: nothing to look at")
    sys.exit(0)
wanted = symbols(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so"), "--undefined-only")
missing = wanted - symbols(LIBRARY, "--defined-only")
assert wanted and not missing, f"{len(wanted)} wanted, missing: {missing}"
assert torch.distributed.is_nccl_available()
assert torch.cuda.nccl.version() == (2, 30, 7), torch.cuda.nccl.version()
assert torch.cuda.nccl.unique_id().startswith(b"kolo-id"), "the id is another library's"
print(f"PyTorch {torch.__version__}: its {len(wanted)} functions of NCCL are Kolo's")
