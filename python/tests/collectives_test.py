#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Collectives, messages, windows and communicators on numpy arrays. Started with kolorun; kolocomm.check has the values of all
# collectives on all types.
import asyncio
import pickle

import kit
import kolocomm
import numpy as np
from kit import raises
from kolocomm import errors


def test_operators_by_name(c):
    x = np.array([c.rank + 1, 2, 0, 7], "int64")
    n = c.size
    for op, first in (("sum", n * (n + 1) // 2), ("prod", np.prod(range(1, n + 1))), ("min", 1), ("max", n), ("bor", np.bitwise_or.reduce(range(1, n + 1)))):
        out = np.zeros_like(x)
        c.all_reduce(x, out, op=op)
        assert out[0] == first, (op, out)
    y = np.full(3, float(c.rank))
    c.all_reduce(y, op="avg")
    assert np.allclose(y, (n - 1) / 2)


def test_shapes_of_any_dimensions(c):
    x = np.full((2, 3, 4), c.rank + 1.0, "float32")
    c.all_reduce(x)
    assert x.shape == (2, 3, 4) and (x == sum(range(1, c.size + 1))).all()
    scalar = np.array(5.0)
    c.all_reduce(scalar)
    assert scalar == 5.0 * c.size
    nothing = np.zeros((0, 7))
    c.all_reduce(nothing)


def test_what_speaks_the_buffer_protocol(c):
    data = bytearray(b"abcd" if c.rank == 0 else b"....")
    c.broadcast(data)
    assert data == b"abcd"
    import array
    x = array.array("d", [1.5, 2.5])
    c.all_reduce(x)
    assert x[0] == 1.5 * c.size


def test_in_place_in_a_part_of_an_array(c):
    whole = np.zeros((c.size, 3))
    whole[c.rank] = c.rank + 1
    c.all_gather(whole[c.rank], whole)
    assert (whole[:, 0] == np.arange(c.size) + 1).all()


def test_requests_in_order(c):
    arrays = [np.full(100, i + c.rank, "int32") for i in range(20)]
    requests = [c.all_reduce(a, wait=False) for a in arrays]
    after = np.ones(1)
    c.all_reduce(after)  # comes behind what was begun
    assert after[0] == c.size
    for i, (r, a) in enumerate(zip(requests, arrays)):
        r.wait(timeout=60)
        assert r.done() and (a == i * c.size + c.size * (c.size - 1) // 2).all()


def test_requests_awaited(c):
    async def steps():
        x, y = np.ones(10), np.ones(10)
        first, second = c.all_reduce(x, wait=False), c.all_reduce(y, op="max", wait=False)
        await asyncio.gather(wait(first), wait(second))
        return x[0], y[0]

    async def wait(request):
        await request

    assert asyncio.run(steps()) == (c.size, 1)


def test_a_request_outlives_its_array_in_the_program(c):
    request = c.all_reduce(np.ones(1 << 16), wait=False)
    request.wait()


def test_streams_and_events(c):
    with kolocomm.Stream() as stream:
        x = np.ones(1000)
        for _ in range(3):
            c.all_reduce(x, stream=stream)
        event = kolocomm.Event()
        event.record(stream)
        event.synchronize()
        assert event.query() and (x == c.size**3).all()
        stream.synchronize()
        assert stream.query()


def test_messages_in_a_group(c):
    to, source = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    out = np.zeros(5)
    with kolocomm.group():
        c.send(np.full(5, c.rank, "float64"), to)
        c.recv(out, source)
    assert (out == source).all()


def test_messages_to_wait_for(c):
    to, source = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    out = np.zeros(5)
    sent, received = c.isend(np.full(5, c.rank, "float64"), to), c.irecv(out, source)
    while not received.done():
        pass
    received.wait()
    sent.wait()
    assert (out == source).all()


def test_messages_with_tags(c):
    to, source = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    c.send_tag(np.full(5, c.rank, "float64"), to, 7)  # nobody receives yet
    sent = c.isend_tag(np.full(1 << 17, c.rank, "float64"), to, tag=1 << 63)
    out, long, never = np.zeros(9), np.zeros(1 << 17), np.zeros(1)
    waits = [c.irecv_tag(never, tag=8, timeout=0.05), c.irecv_tag(long, source, 1 << 63)]
    assert c.recv_tag(out, tag=7) == source and (out[:5] == source).all() and (out[5:] == 0).all()
    seen = set()
    while len(seen) < 2:
        seen.add(kolocomm.wait_any([None if i in seen else m for i, m in enumerate(waits)]))
    with raises(errors.Timeout, "tag 8 from any rank"):
        waits[0].wait()
    waits[1].wait()
    sent.wait()
    assert (long == source).all() and (waits[1].source, waits[1].nbytes) == (source, 8 << 17)
    unwanted = c.irecv_tag(never, tag=9)
    with raises(errors.Timeout, "goes on"):
        unwanted.wait(0.01)
    unwanted.cancel()
    with raises(errors.Aborted, "cancelled"):
        unwanted.wait()
    assert kolocomm.wait_any([None]) is None and not c.irecv_tag(never, tag=9).done()
    c.barrier()


def test_windows(c):
    memory = np.zeros(c.size, "int64")
    window = c.window_register(memory)
    assert window.memory().nbytes == memory.nbytes
    for peer in range(c.size):
        c.put(np.array([c.rank + 1], "int64"), peer, window, offset=8 * c.rank, signal=3)
    c.wait_signal([(peer, 3) for peer in range(c.size)])
    assert (memory == np.arange(c.size) + 1).all()
    window.deregister()


def test_some_ranks_of_the_job(c):
    ranks = [c.size - 1, 0]
    if c.rank in ranks:
        with kolocomm.connect(ranks=ranks) as pair:
            assert (pair.size, ranks[pair.rank]) == (2, c.rank)
            x = np.full(3, c.rank + 1.0)
            pair.all_reduce(x)
            assert (x == c.size + 1).all()
    with raises(errors.InvalidArgument, "not in its own list"):
        kolocomm.connect(ranks=[(c.rank + 1) % c.size])
    with raises(errors.InvalidArgument, "empty"):
        kolocomm.connect(ranks=[])


class Mpi:
    """What connect_mpi() uses of mpi4py, on a communicator of Kolo."""

    def __init__(self, c):
        self.Get_rank, self.Get_size, self.c = lambda: c.rank, lambda: c.size, c

    def bcast(self, thing, root):
        data = np.zeros(4096, "uint8")
        text = pickle.dumps(thing)
        data[:len(text)] = np.frombuffer(text, "uint8")
        self.c.broadcast(data, root=root)
        return pickle.loads(data.tobytes())


def test_over_mpi(c):
    with kolocomm.connect_mpi(Mpi(c), name="over mpi") as other:
        assert (other.rank, other.size) == (c.rank, c.size)
        other.barrier()


def test_split_and_dup(c):
    part = c.split(c.rank % 2, name="half")
    x = np.ones(1)
    part.all_reduce(x)
    assert x[0] == part.size == (c.size + 1 - c.rank % 2) // 2
    part.finalize()
    part.destroy()
    none = c.split(None if c.rank else 0)
    assert (none is None) == (c.rank != 0)
    if none:
        none.destroy()
    with c.dup() as d:
        d.barrier()
    assert d.ended and repr(d) == "<kolocomm.Comm, ended>"


def test_operators_of_the_program(c):
    def larger(a, inout):
        a, inout = np.asarray(a), np.asarray(inout)
        inout[:] = np.where(abs(a) > abs(inout), a, inout)

    x = np.array([-c.rank - 1.0, 1.0])
    op = c.create_callback(larger, like=x)
    c.all_reduce(x, op=op)
    op.destroy()
    assert x[0] == -c.size and x[1] == 1
    half = c.create_premul_sum(np.float32(0.5))
    y = np.ones(3, "float32")
    c.all_reduce(y, op=half)
    half.destroy()
    assert (y == c.size / 2).all()


def test_registered_memory(c):
    x = np.ones(1 << 14)
    r = c.register(x)
    c.all_reduce(x)
    r.deregister()
    assert c.memory() > 0 and c.get_async_error() == 0 and c.lost() == ()


def test_shrink_without_a_rank(c):
    if c.size < 3:
        return
    d = c.dup()
    if c.rank == 1:
        d.destroy()
        return
    s = d.shrink([1])
    x = np.ones(1)
    s.all_reduce(x)
    assert x[0] == s.size == c.size - 1
    s.finalize()
    s.destroy()
    d.destroy()


if __name__ == "__main__":
    kit.run(globals())
