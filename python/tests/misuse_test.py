#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# More of what programs do wrong (mistakes_test.py has the first twenty): objects of the wrong kind, memory and objects that are used
# after their end, functions that misbehave, signals, event loops, fork, cycles. No crash, no hang, an exception that says what to do.
import sys

import kit
from kit import mistake


@mistake(1, 0, "InvalidArgument: tag is -1; a whole number from 0", "tag is 18446744073709551616", "tag is 'x'", "source is 2.5; a whole number", "timeout is '5'; seconds",
         "messages is 1; a TaggedMessage", "ranks is '0'; a list of whole numbers", "signal is 'a'; a whole number", "signal is -2", "comm is 5; a Comm", "stream is 5; a kolocomm.Stream",
         "min_ranks is 'two'", "TypeError: register()", "op is <built-in function max>", "timeout is 'soon'", "done", limit_s=30)
def objects_of_the_wrong_kind():
    a, b = kolocomm.init_all(2)
    x = np.ones(4)
    for tag in (-1, 2**64, "x"):
        told(lambda: a.isend_tag(x, 1, tag=tag))
    told(lambda: a.irecv_tag(x, 2.5))
    told(lambda: a.isend_tag(x, 1, timeout="5"))
    told(lambda: kolocomm.wait_any([1]))
    told(lambda: kolocomm.connect(ranks="0"))
    windows = {}
    both(lambda: windows.update(a=a.window_register(bytes=64)), lambda: windows.update(b=b.window_register(bytes=64)))
    for signal_ in ("a", -2):
        told(lambda: a.put(x, 1, windows["a"], signal=signal_))
    told(lambda: kolocomm.Engine(5))
    told(lambda: kolocomm.Event().record(5))
    told(lambda: kolocomm.State(min_ranks="two"))
    told(lambda: kolocomm.Comm.register(5, x))
    told(lambda: a.all_reduce(x, op=max))
    r = a.all_reduce(x, wait=False)
    told(lambda: r.wait(timeout="soon"))
    b.all_reduce(np.ones(4))
    r.wait()
    both(a.destroy, b.destroy)
    print("done", x[0])


@mistake(1, 0, "of its own: 5 7", "read later: 5 0", "ended: 5", "the array: 1.0", "InvalidArgument: the window has ended", "done")
def memory_of_a_window_is_used_after_its_end():
    a, b = kolocomm.init_all(2)

    def windows(*args, **named):
        made = {}
        both(lambda: made.update(a=a.window_register(*args, **named)), lambda: made.update(b=b.window_register(bytes=64)))
        return made["a"], made["b"]

    wa, wb = windows(bytes=10000)
    view = wa.memory()
    array = np.frombuffer(view, np.uint8)
    b.put(np.array([5, 6], np.uint8), 0, wb, 3)
    view[9999] = 7
    both(a.barrier, b.barrier)
    while array[3] != 5:
        time.sleep(0.001)
    print("of its own:", array[3], wa.memory()[9999])
    both(wa.deregister, wb.deregister)
    told(wa.memory)
    print("read later:", view[3], np.asarray(view)[0])
    wa, wb = windows(bytes=64)
    view = wa.memory()
    view[0] = 5
    both(a.barrier, b.barrier)
    mine = np.ones(8)
    wm, wb2 = windows(mine)
    own = wm.memory()
    both(a.destroy, b.destroy)  # with windows that are open
    del wa, wb, wm, wb2, mine
    gc.collect()
    view[63] = 1
    print("ended:", view[0])
    print("the array:", np.frombuffer(own)[7])
    print("done")


@mistake(1, 0, "all came: 20", "cancelled, unchanged: [1. 1.]", "got: [2. 2.]", "at the end: True", "done")
def messages_that_nobody_holds():
    a, b = kolocomm.init_all(2)
    for i in range(20):
        a.isend_tag(np.full(100000, float(i)), 1, i)  # let go of at once
    gc.collect()
    x = np.empty(100000)
    came = 0
    for i in range(20):
        b.recv_tag(x, 0, i, timeout=10)
        came += bool((x == i).all())
    print("all came:", came)
    x = np.ones(2)
    b.irecv_tag(x, 0, 99)  # this, too: it is cancelled, and does not take the message from the next one
    y = np.ones(2)
    m = b.irecv_tag(y, 0, 99)
    a.send_tag(np.full(2, 2.0), 1, 99)
    m.wait(timeout=10)
    print("cancelled, unchanged:", x)
    print("got:", y)
    a.isend_tag(np.ones(1 << 20), 1, 5)  # that nobody ever receives
    began = time.monotonic()
    a.abort(), b.abort()
    print("at the end:", time.monotonic() - began < 5)
    print("done")


@mistake(1, 0, "made for another communicator", "fn is 5; a function", "InvalidUsage: barrier: another thread is inside", "SystemExit: 3", "BufferError: the operator's function has kept an array", "ValueError: operation forbidden on released",
         "not complete: wait for it first", "then: 4.0", "the operator was destroyed", "done", limit_s=30)
def operators_that_misbehave():
    kept = []

    def pair(fn):
        a, b = kolocomm.init_all(2)
        ops = [c.create_callback(fn, like=np.ones(1)) for c in (a, b)]
        return a, b, ops

    def used(fn):
        a, b, ops = pair(fn)
        both(lambda: told(lambda: a.all_reduce(np.ones(4), op=ops[0])), lambda: told(lambda: b.all_reduce(np.ones(4), op=ops[1])))
        a.abort(), b.abort()

    a, b, ops = pair(lambda i, o: None)
    told(lambda: a.all_reduce(np.ones(4), op=ops[1]))
    told(lambda: a.create_callback(5, like=np.ones(1)))
    a.abort(), b.abort()
    a, b, ops = pair(lambda i, o: None)
    inner = [c.create_callback(fn, like=np.ones(1)) for c, fn in ((a, lambda i, o: a.barrier()), (b, lambda i, o: None))]
    both(lambda: told(lambda: a.all_reduce(np.ones(4), op=inner[0])), lambda: told(lambda: b.all_reduce(np.ones(4), op=inner[1])))
    a.abort(), b.abort()
    used(lambda i, o: sys.exit(3))
    used(lambda i, o: kept.append(np.asarray(o)))
    kept.clear()
    used(lambda i, o: kept.append(o))
    told(lambda: kept[0][0])
    x = np.ones(4)

    def add(i, o):
        np.add(i, o, out=np.asarray(o))

    a, b, ops = pair(add)
    r = a.all_reduce(np.full(4, 3.0), x, op=ops[0], wait=False)
    told(ops[0].destroy)
    del ops[0]  # the call goes on with it
    gc.collect()
    b.all_reduce(np.ones(4), op=ops[0])
    r.wait()
    print("then:", x[0])
    ops[0].destroy()
    told(lambda: b.all_reduce(np.ones(4), op=ops[0]))
    both(a.destroy, b.destroy)
    print("done")


@mistake(1, 0, "TypeError: a kolocomm.Comm stays in its process and cannot be pickled or copied: make a communicator there", "a kolocomm.Window stays", "a kolocomm.Request stays", "an error: Remote (1,) gone", "spawned: TypeError", "done")
def pickling():
    import copy, multiprocessing, pickle
    a, b = kolocomm.init_all(2)
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        told(lambda: call(a))
    windows = {}
    both(lambda: windows.update(a=a.window_register(bytes=64)), lambda: windows.update(b=b.window_register(bytes=64)))
    told(lambda: pickle.dumps(windows["a"]))
    r = a.barrier(wait=False)
    told(lambda: pickle.dumps(r))
    b.barrier()
    r.wait()
    e = pickle.loads(pickle.dumps(errors.Remote("gone", (1,))))
    print("an error:", type(e).__name__, e.ranks, e)
    try:
        multiprocessing.get_context("spawn").Process(target=print, args=(a,)).start()
    except TypeError as e:
        print("spawned:", type(e).__name__)
    both(a.destroy, b.destroy)
    print("done")


@mistake(1, 0, "wait: the operation belongs to the process that this one was forked from", "request_wait: the request belongs to the process", "destroy: the communicator belongs to the process that called fork()", "window ended",
         "own: 2", "a child that just ends: 0", "the parent goes on: 2.0 3.0", "done", limit_s=30)
def a_fork_under_way():
    a, b = kolocomm.init_all(2)
    x, y = np.ones(4), np.ones(4)
    windows = {}
    both(lambda: windows.update(a=a.window_register(bytes=64)), lambda: windows.update(b=b.window_register(bytes=64)))
    view = windows["a"].memory()
    r, m = a.all_reduce(x, wait=False), b.irecv_tag(y, 0, 9)
    a.isend_tag(np.ones(1 << 20), 1, 8)  # let go of, and under way
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        told(lambda: r.wait(timeout=1))
        told(lambda: m.wait(timeout=1))
        a.abort()  # not the parent's
        told(a.destroy)
        told(windows["a"].deregister)
        print("window ended", view[0])
        del r, m, windows, view
        gc.collect()
        pair = kolocomm.init_all(2)
        both(pair[0].barrier, pair[1].barrier)
        print("own:", pair[0].size)
        both(pair[0].destroy, pair[1].destroy)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # with all that Python does at its end
    print("a child that just ends:", os.waitpid(pid, 0)[1])
    b.all_reduce(np.ones(4))
    r.wait(timeout=10)
    a.send_tag(np.full(4, 3.0), 1, 9)
    m.wait(timeout=10)
    print("the parent goes on:", x[0], y[0])
    both(a.destroy, b.destroy)
    print("done")


@mistake(1, 0, "two awaiters: [1, 1]", "Aborted: comm rank 0: aborted", "RuntimeError: no running event loop", "in another loop: 4.0", "done")
def event_loops():
    import asyncio
    a, b = kolocomm.init_all(2)
    x = np.ones(4)

    async def wait(r):
        await r
        return 1

    async def two():
        r = a.all_reduce(x, wait=False)
        tasks = [asyncio.create_task(wait(r)) for _ in range(2)]
        await asyncio.sleep(0.01)
        b.all_reduce(np.ones(4), wait=False)
        return await asyncio.gather(*tasks)

    print("two awaiters:", asyncio.run(two()))
    r = a.all_reduce(x, wait=False)
    told(lambda: next(r.__await__()))
    t = threading.Thread(target=lambda: asyncio.run(wait(r)))  # a loop of another thread
    t.start()
    b.all_reduce(np.full(4, 2.0))
    t.join()
    print("in another loop:", x[0])

    async def aborted():
        r = a.all_reduce(x, wait=False)
        task = asyncio.create_task(wait(r))
        await asyncio.sleep(0.02)
        a.abort()
        await task

    told(lambda: asyncio.run(aborted()))
    b.abort()
    print("done")


@mistake(1, 0, "under a storm: True True", "Alarm: in wait", "Alarm: in message", "Alarm: in wait_any", "KeyboardInterrupt", "then: 2.0 3.0", "done", limit_s=40)
def signals_in_waits():
    class Alarm(Exception):
        pass

    def raise_in(where):
        def handler(*_):
            raise Alarm("in " + where)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    a, b = kolocomm.init_all(2)
    count = [0]
    signal.signal(signal.SIGALRM, lambda *_: count.__setitem__(0, count[0] + 1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    xs = [np.ones(1000), np.ones(1000)]
    both(lambda: [a.all_reduce(xs[0], op="max") for _ in range(200)], lambda: [b.all_reduce(xs[1], op="max") for _ in range(200)])
    right = True
    for i in range(100):
        y = np.zeros(100000)
        a.isend_tag(np.full(100000, float(i)), 1, i)
        b.recv_tag(y, 0, i)
        right = right and (y == i).all()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("under a storm:", bool(right), count[0] > 10)
    x, y = np.ones(4), np.ones(4)
    r, m = a.all_reduce(x, wait=False), b.irecv_tag(y, 0, 500)
    raise_in("wait")
    told(r.wait)
    raise_in("message")
    told(m.wait)
    raise_in("wait_any")
    told(lambda: kolocomm.wait_any([m]))
    for call in (m.wait, lambda: b.recv_tag(np.ones(4), 0, 501)):
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        told(call)
    b.all_reduce(np.ones(4))
    r.wait()
    a.send_tag(np.full(4, 3.0), 1, 500)
    m.wait()
    print("then:", x[0], y[0])
    both(a.destroy, b.destroy)
    print("done")


@mistake(1, 0, "collected: True", "the other rank is told: Remote", "done")
def cycles():
    import weakref

    class Holder:
        pass

    a, b = kolocomm.init_all(2)
    h = Holder()
    h.me, h.comm, h.request, h.message = h, a, a.all_reduce(np.ones(4), wait=False), a.irecv_tag(np.ones(4), 1, 3)
    h.op = a.create_callback(lambda i, o: None, like=np.ones(1))
    gone = weakref.ref(h)
    import warnings
    warnings.simplefilter("ignore", ResourceWarning)  # that it was freed without destroy(), which is so
    del h, a
    gc.collect()
    print("collected:", gone() is None)
    try:
        while True:
            b.all_reduce(np.ones(4))
    except errors.Error as e:
        print("the other rank is told:", type(e).__name__)
    b.abort()
    print("done")


@mistake(1, 0, "elements of type g", "not contiguous|not contiguous", "BufferError: Existing exports", "is a memoryview, which has no memory", "not at a multiple: 2.0", "empty, too", "float16: 2.0", "bytes: 2", "ctypes: 4.0", "done", limit_s=30)
def arrays_at_the_edge():
    import array, ctypes
    a, b = kolocomm.init_all(2)

    def sums(x, y):
        both(lambda: a.all_reduce(x), lambda: b.all_reduce(y))
        return x

    for bad in (np.ones(4, np.longdouble), np.zeros(4, [("a", "i4"), ("b", "f4")]), np.broadcast_to(1.0, (4,)), np.asfortranarray(np.ones((4, 4))), np.ones(4)[::-1], np.ones(8)[::2]):
        told(lambda: a.all_reduce(bad))
    odd = [np.frombuffer(bytearray(33), offset=1, dtype="f8") for _ in range(2)]
    odd[0][:], odd[1][:] = 1.5, 0.5
    print("not at a multiple:", sums(*odd)[3])
    sums(np.ones((0, 3))[:, ::2], np.ones((0, 3))[:, ::2])
    print("empty, too")
    print("float16:", sums(np.ones(4, "f2"), np.ones(4, "f2"))[0])
    print("bytes:", sums(bytearray(b"\x01\x01"), bytearray(b"\x01\x01"))[0])
    print("ctypes:", sums((ctypes.c_double * 2)(1, 2), array.array("d", [1, 2]))[1])
    grows = bytearray(16)
    r = a.all_reduce(grows, wait=False)
    told(lambda: grows.extend(b"1"))
    b.all_reduce(bytearray(16))
    r.wait()
    grows.extend(b"1")
    released = memoryview(bytearray(16))
    released.release()
    told(lambda: a.all_reduce(released))
    both(a.destroy, b.destroy)
    print("done")


if __name__ == "__main__":
    sys.exit(kit.run_mistakes(sys.argv[1:]))
