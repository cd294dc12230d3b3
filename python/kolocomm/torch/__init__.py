# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on Kolo, for tensors of the host and of GPUs: init_process_group("kolo"), or "cpu:kolo,cuda:nccl".

An installed kolocomm is found by torch itself (entry point torch.backends); from a build folder import kolocomm.torch first.
The backend is one C++ file that is compiled for the torch that is there when the first group is made (a minute, once for each
version of torch; it needs a C++ compiler), and kept in the folder that KOLOCOMM_CACHE or XDG_CACHE_HOME names (~/.cache/kolocomm).

The ranks meet by torch's store, which holds the job's secret while they do: who can read the store can join the job.
"""
import datetime


def register():
    """Makes the backend known to torch.distributed. Compiles nothing."""
    import torch.distributed as dist
    if dist.is_available() and "kolo" not in dist.Backend.backend_list:
        dist.Backend.register_backend("kolo", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options, backend_options):
    from . import compiled
    timeout = options.timeout
    if backend_options is not None:
        timeout = getattr(backend_options, "_timeout", timeout)
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    made = compiled.load().create(options.store, options.group_rank, options.group_size, timeout, getattr(options, "enable_reconfigure", False))
    if hasattr(made, "options"):
        made.options.group_name = options.group_id
        made.options.global_ranks_in_group = options.global_ranks_in_group
    return made


register()
