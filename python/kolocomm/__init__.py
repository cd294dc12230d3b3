# SPDX-License-Identifier: Apache-2.0
"""Kolo: collectives, messages, keyed tensors and elastic jobs between processes, on arrays of numpy, torch, JAX and CuPy.

    import kolocomm, numpy
    with kolocomm.connect() as c:                  # kolorun -n 4 python3 program.py
        x = numpy.full(1000, c.rank + 1.0)
        c.all_reduce(x)                            # in place; or c.all_reduce(src, dst, op="max")

Arrays are used where they lie: nothing is copied, so they must be contiguous. Counts are elements, times are milliseconds where a
name ends in _ms and seconds elsewhere. A call waits until it is complete, without the interpreter's lock; with wait=False it
returns a Request, which can be waited for or awaited. A failure is an exception of kolocomm.errors: its message says who waited
for whom, err.ranks names the ranks that are to blame. Ctrl-C ends a call.

After fork() a communicator stays with the parent; a child makes its own, or is started with multiprocessing's "spawn".
"""
import atexit as _atexit
import contextlib as _contextlib
import math as _math
from typing import NamedTuple as _NamedTuple

from . import _native, errors
from ._native import (Comm, Engine, Event, Message, Op, Reception, Registration, Rendezvous, Request, Server, State, Stream, Submission, TaggedMessage, Window, connect,
                      get_unique_id, get_version, group_drop, group_end, group_start, init_all, join, op_takes, register_protocol, status_string, tensor_key, tensor_key_parse, type_size,
                      unique_id_load, unique_id_save, wait_any)
from .errors import Error

__version__ = "0.1.0"


class JobPlace(_NamedTuple):
    """This process's place in the job, as its launcher's variables say."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this host; -1 and 0 if the launcher does not say
    local_size: int
    launcher: str  # "kolorun", "torchrun", "openmpi", "mpich", "slurm" or "none"


def job_place():
    """This process's place in the job (kolo_job_get_place)."""
    return JobPlace(*_native._job_place())


@_contextlib.contextmanager
def group():
    """Calls inside run together when the block ends; after an exception inside nothing of the group runs."""
    group_start()
    try:
        yield
    except BaseException:
        with _contextlib.suppress(Error):
            group_drop()
        raise
    group_end()


def connect_mpi(comm, **options):
    """A communicator over a communicator of mpi4py (or what has its Get_rank(), Get_size() and bcast()): collective over its ranks.

    The id, and the secret in it, goes by comm.bcast(). Options are those of Comm.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    id = why = None
    if rank == 0:
        try:
            id = get_unique_id()
        except Error as e:
            why = e
    id, failed = comm.bcast((id, str(why) if why else None), root=0)  # all end if there is no id
    if failed:
        raise why or errors.Remote(f"rank 0 could not make an id: {failed}", (0,))
    return Comm(id, rank, size, **options)


class _Round:
    """One round of a state's loop: a with block, whose exception tells how it went."""

    def __init__(self, state):
        self.state, self.error = state, None

    def __enter__(self):
        return self.state

    def __exit__(self, kind, error, trace):
        self.error = error
        if error is None or isinstance(error, (errors.Remote, errors.Aborted, errors.Revoked, errors.RanksChange)):
            return True
        with _contextlib.suppress(Exception):
            self.state.next(error)  # the others are told; it is raised from the block
        return False


def _rounds(self):
    """The loop instead of run(): `for attempt in state.rounds():` and in it `with attempt: train(state)`.

    Each round is what run() calls its function for: losses and changes that its block raises lead to another one, when the ranks
    have changed and the last commit is restored. Any other exception ends the job on this rank.
    """
    self.enter()
    error = None
    while self.next(error):
        attempt = _Round(self)
        yield attempt
        error = attempt.error


def _enter(self):
    return self


def _exit(self, kind, value, trace):
    """Leaves with the others: finalize and destroy; after an exception without waiting for them."""
    if self.ended or self._borrowed:
        return
    if kind is None:
        try:
            self.finalize()
        finally:
            self.destroy()
    else:
        self._abort(f"its with block was left by {kind.__name__}")


def _await(request):
    """Lets an event loop go on until the operation is complete."""
    import asyncio
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def wake():
        if not future.done():
            future.set_result(None)

    def wake_loop(_):
        with _contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there any more
            loop.call_soon_threadsafe(wake)

    request._add_done_callback(wake_loop)
    yield from future.__await__()
    request.wait()


@_contextlib.contextmanager
def _time_limit(self, seconds):
    """Operations of the block end with Timeout after so many seconds each, instead of the communicator's limit."""
    if not seconds > 0 or (seconds > 2e6 and not _math.isinf(seconds)):
        raise errors.InvalidArgument(f"time_limit: {seconds} is no limit in seconds: more than 0 and at most 2000000, or inf for none")
    before = self.set_op_timeout(0 if _math.isinf(seconds) else max(1, round(seconds * 1000)))
    try:
        yield self
    finally:
        with _contextlib.suppress(Error):
            self.set_op_timeout(before)


def _comm_repr(self):
    return "<kolocomm.Comm, ended>" if self.ended else f"<kolocomm.Comm, rank {self.rank} of {self.size}>"


def _as_array(memory):
    """A numpy array on memory that the library gave, where there is numpy; else the memoryview."""
    try:
        import numpy
    except ImportError:
        return memory
    return numpy.asarray(memory)


def _submission_wait(self, timeout=None):
    """Waits until the tensor is complete and returns its output; raises its error. timeout: seconds; then Timeout, and it goes on."""
    out = self._wait(timeout)
    if not isinstance(out, tuple):
        return out
    memory, dtype, shape = out
    try:
        import numpy
    except ImportError:
        return memory
    return numpy.frombuffer(memory, "uint16" if dtype == "bfloat16" else "uint8" if dtype.startswith("float8") else dtype).reshape(shape)


def _receive(self, key, into=None, timeout=None):
    """Receives the next value of a key: an array, or None for a dead one. into: the array where it goes; timeout: seconds."""
    out = self._receive(key, into, timeout)
    return out if into is not None or out is None else _as_array(out)


def _reception_wait(self, timeout=None):
    """Waits for the value: an array, or None for a dead one. timeout: seconds; then Timeout is raised, and the receive goes on."""
    out = self._wait(timeout)
    return _as_array(out) if isinstance(out, memoryview) else out


def _reception_await(self):
    """Lets an event loop go on until the value is there."""
    import asyncio
    pause = 0.0005
    while not self.done():
        yield from asyncio.sleep(pause).__await__()
        pause = min(2 * pause, 0.02)
    return self.wait()


def _send_set(self, values):
    """Sends a dictionary of arrays by their keys."""
    for key, array in values.items():
        self.send(key, array, array is None)


def _receive_set(self, keys, timeout=None):
    """Receives one value of each key at the same time: a dictionary. All or none; timeout: seconds, for all together."""
    keys = list(keys)
    return {key: None if out is None else _as_array(out) for key, out in zip(keys, self._receive_set(keys, timeout or 0))}


def _rendezvous_exit(self, *_):
    self.close()


def _engine_exit(self, kind, *_):
    self.abort() if kind else self.shutdown()


def _server_exit(self, *_):
    self.destroy()


Submission.wait, Rendezvous.receive, Rendezvous.send_set, Rendezvous.receive_set = _submission_wait, _receive, _send_set, _receive_set
Reception.wait, Reception.__await__ = _reception_wait, _reception_await
for _kind, _end in ((Rendezvous, _rendezvous_exit), (Engine, _engine_exit), (Server, _server_exit)):
    _kind.__enter__, _kind.__exit__ = _enter, _end
State.rounds = _rounds
Comm.__enter__, Comm.__exit__, Comm.__repr__, Comm.time_limit = _enter, _exit, _comm_repr, _time_limit
Request.__await__ = _await
_native._set_make_error(errors.make)


def _stays(self):
    raise TypeError(f"a kolocomm.{type(self).__name__} stays in its process and cannot be pickled or copied: make a communicator there, by connect() or by "
                    "Comm() with the bytes of get_unique_id()")


for _kind in (Comm, Engine, Event, Message, Op, Reception, Registration, Rendezvous, Request, Server, State, Stream, Submission, TaggedMessage, Window):
    _kind.__reduce__ = _stays


def _at_exit():
    """Calls that other threads are in are ended, so that these threads do not meet an interpreter that is gone."""
    with _contextlib.suppress(Error):
        _native._end_all()
    _native._leave(5.0)


_atexit.register(_at_exit)

__all__ = ["Comm", "Engine", "Error", "Event", "JobPlace", "Message", "Op", "Reception", "Registration", "Rendezvous", "Request", "Server", "State", "Stream",
           "Submission", "TaggedMessage", "Window", "connect", "connect_mpi", "errors", "get_unique_id", "get_version", "group", "group_drop", "group_end", "group_start", "init_all",
           "job_place", "join", "op_takes", "register_protocol", "status_string", "tensor_key", "tensor_key_parse", "type_size", "unique_id_load", "unique_id_save", "wait_any"]
