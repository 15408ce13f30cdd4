"""The exchange of gradients between ranks that train one model together (data-parallel training).

The ranks of one host meet at a file, so that no port is needed, and those of several at a port of
the first host. They exchange by gloo on CPUs and by NCCL on GPUs. The caller sees to it that all
ranks make the same steps: a rank that steps alone would wait for the others until the time limit.
"""

# No postponed annotations here: torch compares those of a hook with its own types.
import datetime
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ..base.errors import LostRankError, UsageError, first_line

TIMEOUT_S = 300.0
"""How long a rank waits for the others: one of them may still compile the model."""

_LOOPBACK = "lo"


class GradientExchange:
    """The process group of ``world`` ranks, of which ``on_host`` are on this host.

    ``meeting``: where all ranks meet, as a URL for torch's ``init_method``. All ranks must open
    it, and make the same calls in the same order. Raises UsageError where two ranks would share a
    GPU, which NCCL refuses, and LostRankError if the others do not come within ``TIMEOUT_S``.
    """

    def __init__(
        self, meeting: str, *, rank: int, world: int, on_host: int, device: torch.device
    ) -> None:
        self._device = device
        cuda = device.type == "cuda"
        if cuda and on_host > torch.cuda.device_count():
            raise UsageError(
                f"accelerator.gradient_sync=ddp needs a GPU for each of {on_host} ranks, but there "
                f"are {torch.cuda.device_count()}",
                remedy="use fewer --accelerators, or accelerator.gradient_sync=none",
            )
        for library in ("GLOO", "NCCL"):  # the name of this host may have no address
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", _LOOPBACK)
        with self.told():
            dist.init_process_group(
                "nccl" if cuda else "gloo",
                init_method=meeting,
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(seconds=TIMEOUT_S),
            )
        self._began = self._ended = 0
        self._spent_ns: list[int] = []

    def wrap(self, model: torch.nn.Module) -> DistributedDataParallel:
        """Return the model with its gradients averaged over the ranks; all begin as rank 0."""
        place = [self._device] if self._device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=place)
        if place is None:
            # On a GPU the exchange only begins when its call returns: the host can't time it.
            wrapped.register_comm_hook(None, self._exchange)
        return wrapped

    def agreed(self, ready: bool) -> bool:
        """Whether all ranks are ready."""
        flag = torch.tensor([int(ready)], device=self._device)
        with self.told():
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag.item())

    def forget(self) -> None:
        """Forget how long the steps until now exchanged: they were a warm-up."""
        self._spent_ns.clear()

    def step_is_over(self) -> None:
        """Take down how long this step exchanged its gradients."""
        if self._began and self._ended:
            self._spent_ns.append(self._ended - self._began)
        self._began = self._ended = 0

    @property
    def mean_s(self) -> float | None:
        """Mean seconds from the first gradients of a step that are sent to the last received.

        Part of it overlaps with the backward pass, and part of it is a wait for slower ranks. None
        where it was not measured.
        """
        return sum(self._spent_ns) / len(self._spent_ns) / 1e9 if self._spent_ns else None

    def close(self) -> None:
        """Leave the group. To be called when no rank exchanges any more."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Raise LostRankError where torch says that another rank is gone, or did not come."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            raise LostRankError(
                f"a rank lost the others while gradients were exchanged: {first_line(error)}",
                remedy="see the kernel log for out-of-memory kills",
            ) from error

    def _exchange(
        self,
        state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if not self._began:
            self._began = time.monotonic_ns()
        assert dist.group.WORLD is not None
        sent: torch.futures.Future[Any] = allreduce_hook(dist.group.WORLD, bucket)

        def received(future: torch.futures.Future[Any]) -> torch.Tensor:
            self._ended = time.monotonic_ns()
            tensor: torch.Tensor = future.value()
            return tensor

        return sent.then(received)
