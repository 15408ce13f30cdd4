"""The process group of the ranks, with which torch.distributed.checkpoint plans a save."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from ..errors import UsageError
from .base import Job


class Group:
    """A gloo group of all ranks.

    It is a new group if the training has initialized torch.distributed; otherwise it is the
    process's default group while this object is open.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._owned = False
        self._group: Any = None
        self._address = False

    def open(self) -> Any:
        """The group, the same at each call. All ranks must call it. Raises UsageError."""
        if self._group is not None:
            return self._group
        job = self._job
        if not dist.is_initialized():
            if job.world > 1 and not job.rendezvous:
                raise UsageError(
                    f"the {job.world} ranks of a dcp checkpoint have no rendezvous",
                    remedy="give the job a rendezvous: tcp://host:port",
                )
            if job.world == 1:
                store = dist.HashStore()  # type: ignore[attr-defined]
                dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            else:
                dist.init_process_group(
                    "gloo", init_method=job.rendezvous, rank=job.rank, world_size=job.world
                )
            self._owned = True
        self._group = dist.group.WORLD if self._owned else dist.new_group(backend="gloo")
        one_host = job.world == 1 or job.rendezvous.startswith(
            ("file://", "tcp://127.0.0.1", "tcp://localhost")
        )
        if one_host and "MASTER_ADDR" not in os.environ:
            # dcp-async-process's processes of all ranks meet here. The host's own name may have no
            # address.
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            self._address = True
        return self._group

    def close(self) -> None:
        if self._owned and dist.is_initialized():
            dist.destroy_process_group()
        elif self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        if self._address:
            os.environ.pop("MASTER_ADDR", None)
        self._group, self._owned, self._address = None, False, False
