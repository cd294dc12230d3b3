#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# The engine, keyed tensors and state from Python. Without KOLO_RANK it starts itself under kolorun.
import os
import socket
import subprocess
import sys

import kit
import kolocomm
import numpy as np
from kit import raises
from kolocomm import errors


def test_engine_in_any_order(c):
    with kolocomm.Engine(c) as engine:
        assert (engine.rank, engine.size) == (c.rank, c.size)
        tensors = [np.full(4, 10.0 * i + c.rank) for i in range(6)]
        handles = {}
        for k in range(6):
            i = (k + c.rank) % 6
            handles[i] = engine.all_reduce(f"layer{i}", tensors[i])
        for i in range(6):
            out = handles[i].wait(timeout=60)
            assert handles[i].done() and out is tensors[i] and (out == 10 * i + (c.size - 1) / 2).all(), out
        rows = engine.all_gather("rows", np.full((c.rank + 1, 2), c.rank, "int32")).wait()
        assert rows.shape == (sum(range(1, c.size + 1)), 2) and rows[-1, 0] == c.size - 1
        part = engine.reduce_scatter("part", np.ones((c.size, 3), "float32"), op="sum").wait()
        assert part.shape == (1, 3) and (part == c.size).all()
        back = engine.all_to_all("swap", np.arange(c.size, dtype="int64") + 100 * c.rank).wait()
        assert (back == 100 * np.arange(c.size) + c.rank).all()
        text = engine.broadcast("text", np.full(3, float(c.rank)), root=1).wait()
        assert (text == 1).all()
        engine.barrier().wait()
        assert engine.counters["tensors"] > 8 and engine.backends[-1]["available"], (engine.counters, engine.backends)
        if c.size > 2:
            half = engine.add_set([0, 1])
            assert engine.sets == [0, half] and engine.set_ranks(half) == [0, 1] and engine.set_ranks(0) == list(range(c.size))
            assert engine.set_info(half) == {"id": half, "size": 2, "included": c.rank < 2, "rank": c.rank if c.rank < 2 else -1}
            if c.rank < 2:
                assert engine.all_reduce("x", np.ones(2), op="sum", set=half).wait()[0] == 2
            engine.remove_set(half)


def test_tensors_are_submitted_together(c):
    with kolocomm.Engine(c) as engine:
        names, total = ["a", "b", "c"], c.size * (c.size + 1) / 2
        sums = [np.full(4 + i, c.rank + 1.0, "float32" if i else "float64") for i in range(3)]
        for s, mine in zip(engine.all_reduce_group(names, sums, op="sum"), sums):
            assert s.wait(60) is mine and (mine == total).all(), mine
        with raises(errors.InvalidArgument, "2 names"):
            engine.all_reduce_group(["x", "y"], [np.ones(2)])
        with raises(errors.InvalidUsage, "outstanding already"):
            engine.all_reduce_group(["x", "x"], [np.ones(2), np.ones(2)])
        for i, s in enumerate(engine.broadcast_group(["d", "e"], [np.full(3, 10.0 * i + c.rank) for i in range(2)], root=1)):
            assert (s.wait(60) == 10 * i + 1).all()
        for s in engine.all_gather_group(["f", "g"], [np.full((c.rank + 1, 2), c.rank, "int32")] * 2):
            rows = s.wait(60)
            assert rows.shape == (c.size * (c.size + 1) // 2, 2) and rows[-1, 0] == c.size - 1
        mine = np.arange(c.size, dtype="int64") + 100 * c.rank
        for s in engine.all_to_all_group(["h", "i"], [mine, mine], splits=[None, [1] * c.size]):
            assert (s.wait(60) == 100 * np.arange(c.size) + c.rank).all()
        for s in engine.reduce_scatter_group(["j", "k"], [np.ones((c.size, 3), "float32")] * 2, op="sum"):
            assert (s.wait(60) == c.size).all()


def test_groups_stay_apart(c):
    with kolocomm.Engine(c, group_fusion=False) as engine:
        assert (engine.all_reduce("x", np.full(3, c.rank + 1.0), op="sum").wait(60) == c.size * (c.size + 1) / 2).all()
    with raises(errors.Mismatch, "group_fusion"):
        kolocomm.Engine(c, group_fusion=c.rank == 0)


def test_engine_mistakes(c):
    engine = kolocomm.Engine(c)
    with raises(errors.InvalidArgument, "no option"):
        kolocomm.Engine(c, fusion=3)
    a = engine.all_reduce("differs", np.ones(2 + c.rank))
    with raises(errors.Mismatch, "differs"):
        a.wait(60)
    with raises(errors.InvalidUsage, "waited for"):
        a.wait()
    dropped = engine.all_reduce("nobody waits", np.ones(1 << 16))
    del dropped  # the engine still has the array
    engine.barrier().wait(60)
    engine.shutdown()
    with raises(errors.InvalidUsage, "has ended"):
        engine.barrier()


def test_keyed_tensors(c):
    """Rank 0 is a server of parameters, rank 1 its worker."""
    port = np.zeros(2, "int32")
    if c.rank < 2:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port[c.rank] = s.getsockname()[1]
    c.all_reduce(port)
    pair = c.split(0 if c.rank < 2 else None)
    if not pair:
        return
    cluster = f"ps=127.0.0.1:{port[0]};worker=127.0.0.1:{port[1]}"
    tasks = ["/job:ps/task:0", "/job:worker/task:0"]
    with kolocomm.Server(cluster, tasks[c.rank], secret=b"known to both of us") as server:
        server.start()
        key = kolocomm.tensor_key(tasks[0] + "/device:cpu:0", server.incarnation(tasks[0], 20000), tasks[1] + "/device:cpu:0", "weights")
        with server.open(1) as step:
            if c.rank == 0:
                step.send(key, np.arange(6, dtype="float32").reshape(2, 3))
                step.send(key, np.arange(4, dtype="int16"))
                step.send(key, None, dead=True)
            else:
                got = step.receive(key, timeout=20)
                assert got.shape == (2, 3) and got.dtype == np.float32 and got[1, 2] == 5
                into = np.zeros(4, "int16")
                assert step.receive(key, into=into, timeout=20) is into and (into == np.arange(4)).all()
                assert step.receive(key, timeout=20) is None
                with raises(errors.Timeout, "nothing came"):
                    step.receive(key, timeout=0.1)
            pair.barrier()
        keys = [kolocomm.tensor_key(tasks[0] + "/device:cpu:0", server.incarnation(tasks[0], 20000), tasks[1] + "/device:cpu:0", f"w{i}") for i in range(5)]
        assert kolocomm.tensor_key_parse(keys[2])["edge_name"] == "w2"
        with server.open(2) as step:
            futures_and_sets(pair, step, keys)
        assert server.steps == 2
        server.cleanup_all()
        assert server.steps == 0
        pair.barrier()
    pair.finalize()
    pair.destroy()


def futures_and_sets(pair, step, keys):
    import asyncio
    if pair.rank == 1:
        into = np.zeros(3)
        later, awaited, dropped = step.receive_begin(keys[0]), step.receive_begin(keys[1], into=into), step.receive_begin(keys[4])
        assert not later.done()
        with raises(errors.Timeout, "the receive goes on"):
            later.wait(0.05)
        dropped.discard()
    pair.barrier()
    if pair.rank == 0:
        step.send_set({keys[0]: np.ones(2), keys[1]: np.full(3, 7.0), keys[2]: None, keys[3]: np.arange(3)})
    else:
        async def both():
            return await awaited

        assert (later.wait(20) == 1).all() and asyncio.run(both()) is into and (into == 7).all()
        got = step.receive_set(keys[2:4], timeout=20)
        assert got[keys[2]] is None and (got[keys[3]] == np.arange(3)).all(), got
        with raises(errors.InvalidUsage, "was waited for"):
            later.wait()
        with raises(errors.Timeout):
            step.receive_set(keys[:1], timeout=0.1)
    pair.barrier()


def state():
    """In a job of kolorun --min: one rank is killed at step 3, the others go on from the last commit."""
    step, weights = np.zeros(1, "int64"), np.zeros(8)

    def train(s):
        with s.comm as c:
            pass
        c = s.comm
        while step[0] < 6:
            if step[0] == 3 and s.info["changes"] == 0 and c.rank == 1:
                os._exit(9)
            gradient = np.ones(8)
            c.all_reduce(gradient, op="avg")
            weights[:] += gradient
            step[0] += 1
            s.commit()

    s = kolocomm.State()
    s.register("step", step)
    s.register("weights", weights)
    assert s.run(train) and step[0] == 6 and (weights == 6).all(), (step, weights)
    print("state is right:", s.info["size"], "ranks,", s.info["losses"], "losses", flush=True)
    s.destroy()


def state_loop():
    """The same as a loop, with an engine on each round's communicator, and a value that grows."""
    weights, step = np.zeros(8), np.zeros(1, "int64")
    s = kolocomm.State()
    s.put("seen", b"")
    s.register("step", step)
    s.register("weights", weights)
    rounds = 0
    for attempt in s.rounds():
        rounds += 1
        with attempt, kolocomm.Engine(s.comm) as engine:
            assert s.get("seen") == bytes(range(step[0])) * 3, (s.get("seen"), step)
            while step[0] < 6:
                s.put("seen", b"not committed")
                if step[0] == 3 and s.info["changes"] == 0 and s.info["rank"] == 1:
                    os._exit(9)
                weights[:] += engine.all_reduce("gradient", np.ones(8)).wait(60)
                step[0] += 1
                s.put("seen", np.tile(np.arange(step[0], dtype="uint8"), 3))
                s.commit()
    assert step[0] == 6 and (weights == 6).all() and s.get("seen") == bytes(range(6)) * 3, (step, weights)
    with raises(errors.InvalidUsage, "has ended"):
        s.next()
    with raises(errors.InvalidArgument, "is a buffer"):
        s.put("step", b"x")
    print("loop is right:", s.info["size"], "ranks,", s.info["losses"], "losses", flush=True)
    s.destroy()


def state_loop_that_fails():
    s = kolocomm.State()
    with raises(errors.InvalidUsage, "enter"):
        s.next()
    with raises(ZeroDivisionError):
        for attempt in s.rounds():
            with attempt:
                1 / 0
    with raises(errors.InvalidUsage, "has ended"):
        s.next()
    print("its exception came back", flush=True)
    s.destroy()


def state_that_fails():
    s = kolocomm.State()
    s.register("step", np.zeros(1))
    with raises(ZeroDivisionError):
        s.run(lambda s: 1 / 0)
    print("its exception came back", flush=True)
    s.destroy()


def main():
    if len(sys.argv) > 1:
        return {f.__name__: f for f in (state, state_that_fails, state_loop, state_loop_that_fails)}[sys.argv[1]]()
    if "KOLO_RANK" in os.environ:
        return kit.run(globals())
    me = [sys.executable, __file__]
    for cmd, words in (([kit.KOLORUN, "-n", "2", *me], "cases right"), ([kit.KOLORUN, "-n", "3", *me], "cases right"),
                       ([kit.KOLORUN, "-n", "1", *me, "state_that_fails"], "its exception came back"),
                       ([kit.KOLORUN, "-n", "1", *me, "state_loop_that_fails"], "its exception came back"),
                       ([kit.KOLORUN, "--min", "2", "-H", "localhost:3", *me, "state_loop"], "loop is right: 2 ranks, 1 losses|loop is right: 3 ranks, 1 losses"),
                       ([kit.KOLORUN, "--min", "2", "-H", "localhost:3", *me, "state"], "state is right: 2 ranks, 1 losses|state is right: 3 ranks, 1 losses")):
        out = subprocess.run(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        print(out.stdout, flush=True)
        if not any(w in out.stdout for w in words.split("|")) or (out.returncode and "--min" not in cmd):
            print(f"FAILED: {' '.join(cmd)}: status {out.returncode}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
