#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX's collectives on the GPUs of this process: jit and shard_map, pmap, a training of 20 steps. A line a case.

    LD_PRELOAD=$PWD/build/libnccl.so.2 tests/nccl/clients/jax_cases.py

Without LD_PRELOAD it is NCCL's own library. JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 tries the program
itself without a GPU. Last line: N passed, N failed.
"""
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec as P  # noqa: E402

DEVICES = jax.devices()
N = len(DEVICES)
MESH = Mesh(np.array(DEVICES), ("i",))
TYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint8)


def on_all(f, ins=P("i"), outs=P("i"), mesh=MESH):
    """f runs on each device, on its part."""
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False))


def numbers(n=1024, dtype=np.float32):
    return (np.arange(N * n) % 5).astype(dtype).reshape(N, n)


def same(got, want):
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64))


def case_psum(dtype):
    a = numbers().astype(dtype)
    y = on_all(lambda v: jax.lax.psum(v, "i"))(a)
    for row in y:
        same(row, a.astype(np.float64).sum(0))


def case_pmap():
    a = numbers()
    same(jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")(a)[N - 1], a.sum(0))


def case_pmax():
    a = numbers()
    same(on_all(lambda v: jax.lax.pmax(v, "i"))(a)[0], a.max(0))


def case_all_gather():
    a = numbers()
    y = on_all(lambda v: jax.lax.all_gather(v, "i", tiled=True))(a)
    same(y, np.tile(a, (N, 1)))


def case_psum_scatter():
    a = numbers(1024 * N)
    y = on_all(lambda v: jax.lax.psum_scatter(v, "i", scatter_dimension=1, tiled=True))(a)
    same(np.asarray(y).reshape(-1), a.sum(0))


def case_all_to_all():
    a = numbers(1024 * N)
    y = on_all(lambda v: jax.lax.all_to_all(v, "i", 1, 1, tiled=True))(a)
    same(np.asarray(y).reshape(N, N, -1), a.reshape(N, N, -1).transpose(1, 0, 2))


def case_ppermute():
    a = numbers()
    same(on_all(lambda v: jax.lax.ppermute(v, "i", [(k, (k + 1) % N) for k in range(N)]))(a), np.roll(a, 1, 0))


def case_half():
    mesh = Mesh(np.array(DEVICES).reshape(2, -1), ("a", "b"))
    a = numbers().reshape(2, N // 2, -1)
    y = np.asarray(on_all(lambda v: jax.lax.psum(v, "b"), P("a", "b"), P("a", "b"), mesh)(a))
    for k in range(N // 2):
        same(y[:, k], a.sum(1))


def case_twenty():
    def body(v):
        for _ in range(20):
            v = jax.lax.pmean(v * 2, "i") * 0.5
        return v
    a = np.ones((N, 1 << 20), np.float32)
    same(on_all(body)(a), a)


def case_training():
    w = jax.random.normal(jax.random.key(0), (64, 10))
    k = jax.random.key(1)
    x = np.asarray(jax.random.normal(k, (N * 32, 64)))
    y = np.asarray(jax.random.randint(k, (N * 32,), 0, 10))

    def loss(w, x, y):
        return -jax.nn.log_softmax(x @ w)[jnp.arange(x.shape[0]), y].mean()

    def step(w, x, y):
        value, slope = jax.value_and_grad(loss)(w, x, y)
        return w - 0.1 * jax.lax.pmean(slope, "i"), jax.lax.pmean(value, "i")

    both, alone = on_all(step, (P(), P("i"), P("i")), (P(), P())), jax.jit(jax.value_and_grad(loss))
    v = w
    for _ in range(20):
        w, got = both(w, x, y)
        want, slope = alone(v, x, y)  # all rows on one device
        v = v - 0.1 * slope
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-3)
    return f"loss {float(got):.6g}"


CASES = {f"psum {jnp.dtype(t).name}": lambda t=t: case_psum(t) for t in TYPES}
CASES.update({"pmap, psum": case_pmap, "pmax": case_pmax, "all_gather": case_all_gather, "psum_scatter": case_psum_scatter, "all_to_all": case_all_to_all,
              "ppermute": case_ppermute, "20 in one program": case_twenty, "20 steps of training": case_training})
if N > 1 and N % 2 == 0:
    CASES["psum over half of a mesh"] = case_half


def main():
    print(f"JAX {jax.__version__}, {N} x {DEVICES[0].platform}", flush=True)
    counts = [0, 0]
    for name, case in CASES.items():
        began = time.monotonic()
        try:
            said = case() or ""
            counts[0] += 1
        except Exception as e:  # noqa: BLE001: whatever it is, the next case comes
            said = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
            counts[1] += 1
            name = "WRONG " + name
        print(f"{name:32}{time.monotonic() - began:8.2f} s  {said}", flush=True)
    print("libraries:", *sorted({line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line}))
    print(f"{counts[0]} passed, {counts[1]} failed")
    sys.exit(counts[1] != 0)


if __name__ == "__main__":
    main()
