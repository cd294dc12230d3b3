# SPDX-License-Identifier: Apache-2.0
"""TorchFT's process groups on Kolo: torchft.Manager(pg=kolocomm.torchft.ProcessGroupKolo(), ...).

A group is configured anew after each change of the replicas; a lost replica is an error that names its rank. ProcessGroupBabyKolo
is the same in a process of its own. For tensors of the host and of GPUs; wants the package torchft.
"""
import datetime

import torch
import torch.distributed as dist
from torchft import process_group as _ft

import kolocomm.torch  # noqa: F401
from kolocomm.torch import compiled as _compiled


def _make(store, rank, size, timeout):
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    group, custom = dist.ProcessGroup(store, rank, size), dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    backend = _compiled.load().create(store, rank, size, timeout, False)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        group._register_backend(torch.device(device), custom, backend)
    return group


class ProcessGroupKolo(_ft.ProcessGroupWrapper):
    """A group of Kolo that is configured again when its members change."""

    def _create_pg(self, store, rank, world_size):
        return _make(store, rank, world_size, self._timeout)

    def set_timeout(self, timeout):
        """The limit of each operation from now on, and of the next configure()."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def shutdown(self):
        """Leaves the group without waiting for the others."""
        if self._pg is not None:
            self._pg.shutdown()
        super().shutdown()

    def getBackendName(self):
        """The name that torch shows."""
        return "torchft-kolo"


class ProcessGroupBabyKolo(_ft.ProcessGroupBaby):
    """A group of Kolo in a process of its own, which is ended when the group is configured again."""

    @classmethod
    def _create_pg(cls, store, rank, world_size):
        return _make(store, rank, world_size, datetime.timedelta(seconds=60))

    def getBackendName(self):
        """The name that torch shows."""
        return "torchft-baby-kolo"
