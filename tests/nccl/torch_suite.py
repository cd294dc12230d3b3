#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cases of PyTorch's own test files (test_c10d_nccl.py, FSDP's, DTensor's; they are not in the wheel) for torch_cases.py, in the
process that each rank has already, instead of new ones for each case. A case is FILE::CLASS::METHOD.

    torch_suite.py FOLDER FILE...     prints the cases of these files, without running anything
"""
import contextlib
import gc
import importlib.util
import os
import re
import sys
import types
import unittest

# Names and modules that have moved since the files were written: what stands for them.
MOVED = {
    "MultiProcContinousTest": lambda m: m.MultiProcContinuousTest,
    "skip_if_rocm": lambda m: m.skip_if_rocm_multiprocess,
    "CUDAInitMode": lambda m: types.SimpleNamespace(**{f"CUDA_{x}": m.DEVICEInitMode[f"DEVICE_{x}"] for x in ("BEFORE", "AFTER", "NEVER")}),
}
MODULES = {
    "torch.distributed._tensor.debug": "torch.distributed.tensor.debug",
    "torch.distributed._tensor.debug.comm_mode": "torch.distributed.tensor.debug",
    "torch.distributed._spmd": "torch.distributed.tensor.debug",
    "torch.distributed._spmd.comm_mode": "torch.distributed.tensor.debug",
    **{f"torch.distributed._composable.fsdp._fsdp_{x}": f"torch.distributed.fsdp._fully_shard._fsdp_{x}"
       for x in ("collectives", "common", "init", "param", "param_group", "state")},
}


def stand_in(module, name):
    try:
        return MOVED[name](module)
    except (KeyError, AttributeError):
        return lambda *a, **k: a[0] if a and callable(a[0]) and not k else lambda f: f  # a decorator without effect


def load(folder, file):
    """The module of a test file; what it wants and this PyTorch does not have is a decorator without effect."""
    name = os.path.basename(file)[:-3]
    if name in sys.modules:
        return sys.modules[name]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for _ in range(40):
        spec = importlib.util.spec_from_file_location(name, os.path.join(folder, file))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
            return module
        except ModuleNotFoundError as e:
            del sys.modules[name]
            sys.modules[e.name] = importlib.import_module(MODULES[e.name]) if e.name in MODULES else types.ModuleType(e.name)
        except ImportError as e:
            del sys.modules[name]
            lacks = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(e))
            if not lacks or lacks[2] not in sys.modules:
                raise
            setattr(sys.modules[lacks[2]], lacks[1], stand_in(sys.modules[lacks[2]], lacks[1]))
        except SystemExit as e:
            del sys.modules[name]
            raise unittest.SkipTest(f"{file} does not want to run here") from e
    raise ImportError(file)


def cases_of(module, file):
    import torch.testing._internal.common_distributed as d
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, (d.MultiProcessTestCase, d.MultiProcContinuousTest)) and cls.__module__ == module.__name__:
            yield from (f"{file}::{cls.__name__}::{n}" for n in unittest.TestLoader().getTestCaseNames(cls))


def run_continuous(cls, method, rank, ranks, path):
    cls.rank, cls.world_size = rank, ranks
    cls._init_pg(rank, ranks, path)
    cls._run_test_given_id(f"{cls.__name__}.{method}")


def run_processes(common, cls, method, rank, ranks, path):
    """As the process that MultiProcessTestCase would have started. What its setUp() sets in the environment is there too."""
    cls._spawn_processes = lambda self: None
    cls._spawn_threads = lambda self: None
    first = cls(method)
    first.setUp()
    os.unlink(first.file_name)
    if int(first.world_size) > ranks:
        raise unittest.SkipTest(f"wants {first.world_size} ranks")
    if rank >= int(first.world_size):  # on all ranks where there is none: with as many as there are GPUs
        raise unittest.SkipTest(f"has {first.world_size} ranks")

    def run_test(self, name, _):
        common.set_rng_seed()
        getattr(self, name)()
    cls.run_test = run_test
    cls._run(rank, method, path, None)


def clean():
    import torch
    import torch.distributed as dist
    if dist.is_initialized():
        try:
            dist.destroy_process_group()
        except Exception as e:  # a group that had failed says so: the next case must not find it
            print("destroy_process_group:", type(e).__name__, e, file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                dist.distributed_c10d._abort_process_group()
    # What it keeps of a mesh has the names of groups that are gone, and an equal mesh of the next case is taken for it.
    debug = sys.modules.get("torch.distributed.tensor.debug")
    for name in ("_clear_sharding_prop_cache", "_clear_python_sharding_prop_cache", "_clear_fast_path_sharding_prop_cache"):
        getattr(debug, name, lambda: None)()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def run_case(folder, name, rank, ranks, path):
    """The end of one case on this rank, and why."""
    import torch
    import torch.testing._internal.common_distributed as d
    import torch.testing._internal.common_utils as common
    file, cls, method = name.split("::")
    env, skips = dict(os.environ), {v.exit_code: v.message for v in d.TEST_SKIPS.values()}
    try:
        cls = getattr(load(folder, file), cls)
        cls = type(cls.__name__, (cls,), {"__module__": cls.__module__})
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        if issubclass(cls, d.MultiProcContinuousTest):
            run_continuous(cls, method, rank, ranks, path)
        elif issubclass(cls, d.MultiProcessTestCase):
            run_processes(common, cls, method, rank, ranks, path)
        else:
            return "skip", "is not of several processes"
        return "pass", ""
    except SystemExit as e:
        return ("skip", skips[e.code]) if e.code in skips else ("FAIL", f"exit {e.code}")
    except unittest.SkipTest as e:
        return "skip", str(e)
    except BaseException as e:
        return "FAIL", f"{type(e).__name__}: {str(e).strip()}"
    finally:
        try:
            clean()
        except Exception as e:
            print("after", name, type(e).__name__, e, file=sys.stderr, flush=True)
        os.environ.clear()
        os.environ.update(env)


def main():
    folder = os.path.abspath(sys.argv[1])
    for file in sys.argv[2:]:
        try:
            module = load(folder, file)
        except Exception as e:
            print("#", file, type(e).__name__, e)
            continue
        assert isinstance(module, types.ModuleType)
        print("\n".join(cases_of(module, file)))


if __name__ == "__main__":
    main()
