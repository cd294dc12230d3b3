# SPDX-License-Identifier: Apache-2.0
"""What calls of Kolo raise. Each kind is one status of the library and has its message; `ranks` are those to blame."""
import re


class Error(RuntimeError):
    """Any failure of Kolo.

    status: the name of the library's status; code: its number; message: the library's words;
    ranks: a tuple of the ranks of the communicator that are to blame, () where none is known.
    """

    status, code = "", 0

    def __init__(self, message="", ranks=()):
        super().__init__(message)
        self.message, self.ranks = message, tuple(ranks)

    def __str__(self):
        return self.message

    def __reduce__(self):
        return type(self), (self.message, self.ranks)


class InvalidArgument(Error, ValueError):
    """An argument is out of its domain; nothing was done."""


class InvalidUsage(Error):
    """A call that is not allowed now."""


class Unsupported(Error, NotImplementedError):
    """Known, but not built in or not possible on this machine."""


class NoMemory(Error, MemoryError):
    """There is not enough memory."""


class SystemCall(Error):
    """A system call failed; the message holds its error."""


class Timeout(Error, TimeoutError):
    """A deadline passed; the message says what was awaited."""


class Remote(Error, ConnectionError):
    """A rank died or closed its connection."""


class Mismatch(Error):
    """Ranks called different operations, counts or types."""


class Aborted(Error):
    """The communicator was aborted."""


class Auth(Error, PermissionError):
    """A peer could not prove that it knows the job's secret."""


class Protocol(Error):
    """Bytes from outside are malformed or were changed."""


class Internal(Error):
    """A bug in Kolo; please report the message."""


class Partition(Error, ConnectionError):
    """The network has split, and this rank is on the side that does not go on."""


class Revoked(Error):
    """A rank called revoke(): the communicator can only be shrunk."""


class RanksChange(Exception):
    """Raised by State.commit(), after it has succeeded, when ranks are to be added or removed: the function of State.run() lets it pass."""


KINDS = (InvalidArgument, InvalidUsage, Unsupported, NoMemory, SystemCall, Timeout, Remote, Mismatch, Aborted, Auth, Protocol,
         Internal, Partition, Revoked)
NAMES = ("INVALID_ARGUMENT", "INVALID_USAGE", "UNSUPPORTED", "NO_MEMORY", "SYSTEM", "TIMEOUT", "REMOTE", "MISMATCH", "ABORTED", "AUTH",
         "PROTOCOL", "INTERNAL", "PARTITION", "REVOKED")
for _code, (_kind, _name) in enumerate(zip(KINDS, NAMES), 2):
    _kind.code, _kind.status = _code, _name

# In messages of these kinds a rank that is named, other than the caller's, is the one that is waited for or that differs.
_NAMING = (Timeout, Remote, Mismatch)
_RANK = re.compile(r"\brank (\d+)\b")


def make(code, message, lost=(), me=-1):
    """The exception of a status; lost: ranks that are known to be lost; me: the caller's rank, -1 where it has none."""
    kind = KINDS[code - 2] if 2 <= code < 2 + len(KINDS) else Error
    ranks = tuple(lost)
    if not ranks and kind in _NAMING:
        ranks = tuple(sorted({int(r) for r in _RANK.findall(message)} - {me}))
    return kind(message, ranks)
