# SPDX-License-Identifier: Apache-2.0
"""The backend's C++ file, compiled for the torch that is there and kept for the next time."""
import atexit
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import kolocomm  # noqa: F401  (its library is in the process then)

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = [*(HERE / f"{name}.hpp" for name in ("changes", "device", "group", "hooks", "messages", "tensors", "windows", "work")), HERE / "backend.cpp", HERE.parent / "native" / "lane.hpp"]


def cache():
    named = os.environ.get("KOLOCOMM_CACHE")
    return pathlib.Path(named or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kolocomm")


def library():
    """The libkolo that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[5].strip() if line.count("/") else ""
            if os.path.basename(path).startswith("libkolo.so"):
                return path
    raise ImportError("kolocomm.torch: libkolo.so is not loaded")


def command(target):
    import torch
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise ImportError("kolocomm.torch: a C++ compiler is needed to build the backend for this torch: install g++ (or set CXX)")
    home = pathlib.Path(torch.__file__).parent
    libs, headers = home / "lib", home / "include"
    includes = [headers, headers / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    return [*compiler.split(), "-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-DTORCH_EXTENSION_NAME=_c10d", "-DUSE_C10D_GLOO",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", *(f"-isystem{i}" for i in includes), f"-I{HERE.parent / 'include'}",
            str(HERE / "backend.cpp"), "-o", str(target), library(), f"-L{libs}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]


def build(target):
    """Compiles, unless another process has meanwhile; a half-written file is never seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        print("kolocomm.torch: building the backend for this torch (once, about a minute)", file=sys.stderr, flush=True)
        new = target.with_suffix(f".{os.getpid()}")
        done = subprocess.run(command(new), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise ImportError(f"kolocomm.torch: the backend could not be built for this torch:\n{' '.join(command(new))}\n{done.stdout}")
        os.rename(new, target)


@functools.lru_cache(maxsize=None)
def load():
    """The compiled module."""
    import torch
    name = f"_c10d{sysconfig.get_config_var('EXT_SUFFIX')}"
    ready = HERE / "built" / torch.__version__.split("+")[0] / name  # comes with the package, for some versions of torch
    module = load_file(ready if ready.exists() else kept(torch, name))
    atexit.register(module.wait_for_hooks)  # an abort hook may need the interpreter
    return module


def kept(torch, name):
    words = [torch.__version__, sys.version, *(s.read_text() for s in SOURCES)]
    mark = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
    target = cache() / f"torch-{torch.__version__}-{mark}" / name
    if not target.exists():
        build(target)
    return target


def load_file(path):
    loader = importlib.machinery.ExtensionFileLoader("kolocomm.torch._c10d", str(path))
    spec = importlib.util.spec_from_file_location("kolocomm.torch._c10d", str(path), loader=loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
