"""What consumes batches, one step each, and the form in which it gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..base.errors import UsageError
from ..base.units import counted
from ..settings.accelerator import StepFacts
from ..settings.workload import AcceleratorSpec

if TYPE_CHECKING:
    import torch

Indices = npt.NDArray[np.int64]


class StepTime(NamedTuple):
    """One step, in nanoseconds: the accelerator's nominal busy time, and the emulation's delay."""

    busy_ns: int
    late_ns: int


class RankPlace(NamedTuple):
    """Which of the job's ranks an accelerator belongs to, and the seed of the repetition.

    ``meeting``: the URL at which the ranks meet, if they exchange gradients. ``local`` and
    ``on_host``: the number of this rank on its host, and how many ranks that has; by default all
    ranks are on one host.
    """

    rank: int
    world: int
    batch_size: int
    seed: int
    meeting: str | None = None
    local: int | None = None
    on_host: int | None = None

    @property
    def share(self) -> tuple[int, int]:
        """This rank's number on its host, and the number of ranks there."""
        return (
            self.rank if self.local is None else self.local,
            self.world if self.on_host is None else self.on_host,
        )


def device_of_rank(device: str, rank: int) -> torch.device:
    """The device of a rank: with ``cuda`` without a number, ranks take the host's in turn.

    Raises UsageError for a device that this host does not have.
    """
    import torch

    found = torch.device(device)
    if found.type != "cuda":
        return found
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (found.index or 0) >= count:
        raise UsageError(
            f"device '{device}' is not available on this host, which has "
            f"{counted(count, 'CUDA device')}",
            remedy="use another one, or the CPU: --device cpu, --set accelerator.device=null",
        )
    return torch.device("cuda", rank % count if found.index is None else found.index)


class Samples:
    """A batch's samples in one tensor, in the memory of the host or of a device.

    ``data``: uint8 tensor that holds all samples; None where none are delivered (transport 'null').
    ``offsets`` and ``lengths``: where each sample lies in it, int64 [samples], in bytes, on the
    host. ``samples[i]`` is sample i, and ``stacked()`` all of them, both without a copy.
    """

    __slots__ = ("data", "lengths", "offsets")

    def __init__(self, data: torch.Tensor | None, offsets: Indices, lengths: Indices) -> None:
        self.data = data
        self.offsets = offsets
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, position: int) -> torch.Tensor:
        offset = int(self.offsets[position])
        return self._delivered()[offset : offset + int(self.lengths[position])]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[position] for position in range(len(self)))

    def stacked(self) -> torch.Tensor:
        """[samples, bytes], without a copy where the samples lie evenly.

        Raises UsageError where they differ in length.
        """
        data = self._delivered()
        if len(set(self.lengths.tolist())) > 1:
            raise UsageError(
                "samples of different lengths cannot be stacked",
                remedy="set reader.crop to give them one length",
            )
        steps = np.diff(self.offsets)
        if len(steps) and (steps != steps[0]).any():
            import torch

            return torch.stack(list(self))
        length = int(self.lengths[0])
        step = int(steps[0]) if len(steps) else length
        start = data.storage_offset() + int(self.offsets[0])
        return data.as_strided((len(self), length), (step, 1), start)

    def _delivered(self) -> torch.Tensor:
        if self.data is None:
            raise UsageError(
                "transport 'null' delivers only byte counts, and no data",
                remedy="use transport 'ring', 'tensor' or 'thread'",
            )
        return self.data


class Accelerator(Protocol):
    name: str

    def __init__(self, spec: AcceleratorSpec) -> None:
        """``spec``: the ``accelerator`` section of the workload."""

    def start(self) -> None:
        """Called at the start of an epoch."""

    def step(self, batch: Samples | None, ready_ns: int, share: float = 1.0) -> StepTime:
        """Consume a batch, which was ready at ``ready_ns`` (monotonic); None: a step without data.

        The samples lie in the memory of the workload's ``accelerator.device``, or in the host's
        where it names none. They are valid until the step returns. ``share`` is the batch's part of
        a full one: the last batch of an epoch may be short, and is then less work. Returns when the
        accelerator asks for the next batch.
        """


@runtime_checkable
class Prepares(Protocol):
    """An accelerator that has something to do in its rank's process before the loader begins."""

    def prepare(self, place: RankPlace) -> None: ...


@runtime_checkable
class Imports(Protocol):
    """An accelerator that needs slow imports. One process makes them before it forks the ranks."""

    @staticmethod
    def import_early() -> None: ...


@runtime_checkable
class Closes(Protocol):
    """An accelerator that has something to give back after its last step."""

    def close(self) -> None: ...


@runtime_checkable
class Tells(Protocol):
    """An accelerator that can tell what it did."""

    def facts(self) -> StepFacts: ...
