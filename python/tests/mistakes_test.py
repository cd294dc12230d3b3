#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# What programs do wrong: no crash, no hang, an exception that says what to do. Those that stay on their rank first, then
# jobs that are started for one mistake each.
import os
import signal
import subprocess
import sys
import time

import kit
import kolocomm
import numpy as np
from kolocomm import errors
from kit import mistake, raises


def one_rank(c):
    """Mistakes that are refused before anything is sent; the communicator can be used afterwards."""
    x, y = np.ones(4), np.ones(4, "float32")
    with raises(errors.InvalidArgument, "float64", "float32", "same type"):
        c.all_reduce(x, y)
    with raises(errors.InvalidArgument, "not contiguous", "ascontiguousarray"):
        c.all_reduce(np.ones((4, 4))[:, 1])
    with raises(errors.InvalidArgument, "dst has 3 elements, needed are 4"):
        c.all_reduce(x, np.ones(3))
    with raises(errors.InvalidArgument, "complex", "x.real.dtype"):
        c.all_reduce(np.ones(3, "complex64"))
    with raises(errors.InvalidArgument, "other order", "newbyteorder"):
        c.all_reduce(np.ones(3, ">f4"))
    with raises(errors.InvalidArgument, "elements of type <U4"):
        c.all_reduce(np.array(["text"]))
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with raises(errors.InvalidArgument, "read-only", "writable"):
        c.all_reduce(frozen)
    with raises(errors.InvalidArgument, "is a list", "numpy"):
        c.all_reduce([1.0, 2.0])
    with raises(errors.InvalidArgument, 'no operator "mean"', "avg"):
        c.all_reduce(x, op="mean")
    with raises(errors.InvalidArgument, "root 7", "0 to"):
        c.broadcast(x, root=7)
    with raises(errors.InvalidArgument, "there is no option timeout", "op_timeout_ms"):
        c.dup(timeout=3)
    with raises(errors.InvalidArgument, "op_timeout_ms is '5'", "a whole number"):
        c.dup(op_timeout_ms="5")
    with raises(errors.InvalidArgument, "color is 'a'", "a whole number"):
        c.split("a")
    with raises(errors.InvalidArgument, "elements of type", "datetime64"):
        c.all_reduce(np.zeros(2, "datetime64[s]"))
    with raises(errors.InvalidArgument, "counts has 1 numbers"):
        c.all_gatherv(x, np.ones(9), [4])
    with raises(errors.InvalidArgument, "not inside the array"):
        c.all_gatherv(x[:1], x, [1] * c.size, displs=[9] * c.size)
    with raises(errors.InvalidArgument, "get_unique_id"):
        kolocomm.Comm(b"short", 0, 1)
    with raises(errors.InvalidUsage, "without group_start"):
        kolocomm.group_end()
    with raises(errors.InvalidUsage, "in a group"), kolocomm.group():
        c.all_reduce(x, wait=False)
    with raises(errors.InvalidArgument, "stream"):
        c.all_reduce(x, stream="mine")
    with raises(TypeError, "incompatible function arguments"):
        c.all_reduce()
    read_and_written(c)
    numbers(c)
    d = c.dup()
    d.destroy()
    d.destroy()
    with raises(errors.InvalidUsage, "it was destroyed"):
        d.all_reduce(x)
    with raises(errors.InvalidArgument):
        c.all_reduce(Gpu())
    assert isinstance(raised(c), ValueError) and raised(c).status == "INVALID_ARGUMENT" and raised(c).ranks == ()
    c.all_reduce(x)
    assert (x == c.size).all()


def read_and_written(c):
    """What may be read need not be what may be written; shapes do not matter, elements do."""
    x, frozen = np.full(4, c.rank + 1.0), np.zeros(4)
    frozen.flags.writeable = False
    with raises(errors.InvalidArgument, "dst is read-only", "writable"):
        c.all_reduce(x, frozen)
    with raises(errors.InvalidArgument, "dst has bytes in the other order"):
        c.all_reduce(x, np.zeros(4, ">f8"))
    with raises(errors.InvalidArgument, "elements of type O"):
        c.all_reduce(np.array([None, 1]))
    with raises(errors.InvalidArgument, "elements of type datetime64"):
        c.all_reduce(np.array(["2026-01-01"], "M8[s]"))
    with raises(errors.InvalidArgument, "read-only"):
        c.all_reduce(np.float64(3))  # a scalar, which is written nowhere
    with raises(errors.InvalidArgument, "overlap"):
        c.all_reduce(x[:-1], x[1:])
    c.all_reduce(np.ones((0, 3)))  # nothing is no mistake
    one = np.array(c.rank + 1.0)  # nor is an array without dimensions
    c.all_reduce(one)
    assert one == c.size * (c.size + 1) / 2, one
    frozen_source, out = np.ones(4), np.zeros(4)
    frozen_source.flags.writeable = False
    c.all_reduce(frozen_source, out)
    assert (out == c.size).all()


def numbers(c):
    """Counts, limits and options that no C number holds, or that mean nothing."""
    x = np.ones(4)
    for counts, word in (([-1] * c.size, "has -1 at place 0"), ([2**64] * c.size, "18446744073709551616"),
                         ([2**62] * 4 + [0] * (c.size - 4) if c.size >= 4 else [2**62] * c.size, "needed are")):
        with raises(errors.InvalidArgument, word):
            c.all_gatherv(x, np.ones(9), counts)
    with raises(TypeError, "float"):
        c.all_gatherv(x, np.ones(9), [4.0] * c.size)
    for seconds in (0, -1, float("nan"), 1e9):
        with raises(errors.InvalidArgument, "no limit"), c.time_limit(seconds):
            pass
    with c.time_limit(float("inf")):
        c.barrier()
    with raises(errors.InvalidArgument, "op_timeout_ms is 1099511627776"):
        c.dup(op_timeout_ms=2**40)
    r = c.all_reduce(x, wait=False)
    for seconds in (-1, float("nan")):
        with raises(errors.InvalidArgument, "in seconds, 0 or more"):
            r.wait(timeout=seconds)
    r.wait(timeout=float("inf"))
    with c.dup() as d:
        pass
    with raises(errors.InvalidUsage, "it was destroyed"):
        d.barrier()
    with raises(errors.InvalidUsage, "it was destroyed"), d:
        d.barrier()


class Gpu:
    """As numba's arrays are."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}


def raised(c):
    try:
        c.all_reduce(None)
    except errors.Error as e:
        return e


@mistake(2, 0, "said: True", "ranks: (1,)")
def a_killed_rank_is_named():
    c = kolocomm.connect()
    c.barrier()
    if c.rank == 1:
        os._exit(0)
    try:
        c.all_reduce(np.ones(1 << 20))
        c.all_reduce(np.ones(1 << 20))
    except errors.Remote as e:
        print("said:", "rank 1" in str(e), "ranks:", e.ranks, flush=True)


@mistake(2, 0, "ranks: (1,)", "rank 1")
def a_late_rank_is_named():
    c = kolocomm.connect(op_timeout_ms=500)
    c.barrier()
    if c.rank == 1:
        time.sleep(2)
        os._exit(0)
    try:
        c.all_reduce(np.ones(3))
    except errors.Timeout as e:
        print("ranks:", e.ranks, e, flush=True)


@mistake(2, 0, "no limit outside", "ranks: (1,)", "rank 1")
def a_late_rank_is_named_by_a_limit_of_one_block():
    c = kolocomm.connect()
    with c.time_limit(0.2):
        c.barrier()
    if c.rank == 1:
        time.sleep(0.6)
    c.barrier()
    print("no limit outside", c.set_op_timeout(0) == 0, flush=True)
    if c.rank == 1:
        time.sleep(1)
        os._exit(0)
    try:
        with c.time_limit(0.2):
            c.all_reduce(np.ones(3))
    except errors.Timeout as e:
        print("ranks:", e.ranks, e, flush=True)


@mistake(2, 0, "Mismatch")
def ranks_that_differ_in_counts():
    c = kolocomm.connect(op_timeout_ms=10000)
    try:
        c.all_reduce(np.ones(3 + c.rank))
        c.barrier()
    except errors.Error as e:
        print(type(e).__name__, e.ranks, e, flush=True)
    c.abort()


@mistake(2, 1, "ValueError: mine", "left by ValueError|was lost")
def an_exception_on_one_rank():
    with kolocomm.connect() as c:
        c.barrier()
        if c.rank == 1:
            raise ValueError("mine")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # kolorun ends the others at once; what this one says is wanted
        c.barrier()


@mistake(2, 0, "freed without destroy", limit_s=20, PYTHONWARNINGS="always")
def a_forgotten_destroy():
    c = kolocomm.connect()
    c.barrier()
    c.finalize()
    del c


@mistake(2, 0, "done")
def an_end_without_finalize():
    c = kolocomm.connect()
    x = np.ones(1000)
    c.all_reduce(x)
    c.barrier()
    print("done", flush=True)


@mistake(2, 0, "child said: True", "and the parent goes on")
def a_fork():
    c = kolocomm.connect()
    c.barrier()
    pid = os.fork()
    if pid == 0:
        try:
            c.barrier()
        except errors.InvalidUsage as e:
            print("child said:", "fork()" in str(e) and "spawn" in str(e), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    c.barrier()
    print("and the parent goes on", flush=True)
    c.finalize()
    c.destroy()


@mistake(1, 0, "one thread at a time")
def two_threads_in_one_communicator():
    a, b = kolocomm.init_all(2)
    waits = threading.Thread(target=lambda: a.barrier())
    waits.start()
    while True:
        try:
            a.get_async_error()
            time.sleep(0.05)
            a.barrier()
        except errors.InvalidUsage as e:
            print(e, flush=True)
            break
    b.barrier()
    waits.join()
    a.destroy(), b.destroy()


@mistake(1, 0, "ended: Aborted")
def an_abort_from_another_thread():
    a, b = kolocomm.init_all(2)

    def wait():
        try:
            a.barrier()
        except errors.Error as e:
            print("ended:", type(e).__name__, flush=True)

    waits = threading.Thread(target=wait)
    waits.start()
    time.sleep(0.1)
    a.abort()
    waits.join()
    b.abort()


@mistake(1, 0, "the end")
def an_interpreter_that_ends_in_mid_call():
    a, b = kolocomm.init_all(2)
    threading.Thread(target=a.barrier, daemon=True).start()
    time.sleep(0.1)
    print("the end", flush=True)


@mistake(1, 0, "the end")
def an_interpreter_that_ends_before_its_requests():
    a, b = kolocomm.init_all(2)
    r = a.all_reduce(np.ones(5), wait=False)
    print("the end", flush=True)


@mistake(1, 0, "ended by Ctrl-C: True", "then ended: ")
def ctrl_c_in_a_call():
    a, b = kolocomm.init_all(2)
    signal.signal(signal.SIGALRM, lambda *_: None)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        a.barrier()
    except KeyboardInterrupt:
        print("ended by Ctrl-C:", time.monotonic() - began < 3, flush=True)
    try:
        a.barrier()
    except errors.Error as e:
        print("then ended:", e, flush=True)
    b.abort()


@mistake(1, 0, "Ctrl-C while it waits", "then: 2.0")
def ctrl_c_while_a_request_is_waited_for():
    a, b = kolocomm.init_all(2)
    x = np.ones(5)
    r = a.all_reduce(x, wait=False)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        r.wait()
    except KeyboardInterrupt:
        print("Ctrl-C while it waits", flush=True)
    b.all_reduce(np.ones(5))
    r.wait()
    print("then:", x[0], flush=True)
    a.destroy(), b.destroy()


@mistake(1, 0, "not complete after 0.2 s", "then: 2.0")
def a_request_that_is_not_complete():
    a, b = kolocomm.init_all(2)
    x = np.ones(5)
    r = a.all_reduce(x, wait=False)
    try:
        r.wait(timeout=0.2)
    except errors.Timeout as e:
        print(e, flush=True)
    b.all_reduce(np.ones(5))
    r.wait()
    print("then:", x[0], flush=True)
    a.destroy(), b.destroy()


@mistake(1, 0, "cancelled, done: False", "timed out", "then: 4.0", "quiet end")
def an_awaited_request_that_is_cancelled():
    import asyncio
    a, b = kolocomm.init_all(2)
    x = np.ones(1000)

    async def wait(r):
        await r

    async def program():
        r = a.all_reduce(x, wait=False)
        task = asyncio.create_task(wait(r))
        await asyncio.sleep(0.05)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled, done:", r.done(), flush=True)
        b.all_reduce(np.ones(1000))
        await r  # the operation went on
        r = a.all_reduce(x, wait=False)
        try:
            await asyncio.wait_for(wait(r), 0.05)
        except asyncio.TimeoutError:
            print("timed out", flush=True)
        b.all_reduce(np.full(1000, 2.0))
        r.wait()
        print("then:", x[0], flush=True)
        r = a.all_reduce(x, wait=False)
        asyncio.create_task(wait(r))
        await asyncio.sleep(0.02)
        return r

    import io
    sys.stderr = io.StringIO()  # where an exception that is ignored would be told
    r = asyncio.run(program())  # the loop ends before the request
    b.all_reduce(np.ones(1000))
    r.wait()
    a.destroy(), b.destroy()
    time.sleep(0.1)
    print("quiet end" if not sys.stderr.getvalue() else sys.stderr.getvalue(), flush=True)


@mistake(1, 0, "ZeroDivisionError")
def an_operator_that_raises():
    a, b = kolocomm.init_all(2)
    x = np.ones(5)
    op, other = (c.create_callback(lambda i, o: 1 / 0, like=x) for c in (a, b))
    t = threading.Thread(target=lambda: b.all_reduce(np.ones(5), op=other))
    t.start()
    try:
        a.all_reduce(x, op=op)
    except ZeroDivisionError as e:
        print(type(e).__name__, flush=True)
    t.join()
    a.abort(), b.abort()


@mistake(1, 1, "KOLO_RANK", KOLO_JOB_LAUNCHER="kolorun", KOLO_RANK="seven")
def a_rank_that_is_no_number():
    os.environ["KOLO_RANK"] = "seven"
    kolocomm.connect()


def main():
    if "KOLO_RANK" in os.environ:
        with kolocomm.connect(op_timeout_ms=20000) as c:
            one_rank(c)
        return 0
    status = subprocess.run([kit.KOLORUN, "-n", "2", sys.executable, __file__]).returncode if not sys.argv[1:] else 0
    return kit.run_mistakes(sys.argv[1:], [] if status == 0 else ["one_rank"])


if __name__ == "__main__":
    sys.exit(main())
