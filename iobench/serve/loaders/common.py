"""What all model loaders do: options, memory for tensors, times by class of size, the device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from ...base import buffers
from ...base.errors import (
    DatasetError,
    IobenchError,
    NoRoomError,
    StorageError,
    UsageError,
    first_line,
)
from ...base.units import format_bytes, parse_size
from ...storage.base import Files, Storage
from ..models import DTYPES
from ..weights import (
    ALONE,
    FileRange,
    RankShare,
    StoredTensor,
    TensorSlice,
    Weights,
    require_memory,
    slice_of,
)
from .base import Exchange, Loaded, Stage, TensorTimes, size_class

TORCH: dict[str, torch.dtype] = {name: getattr(torch, own) for name, (_, own) in DTYPES.items()}

_PAGE = 4096
_MAX_BLOCK = 1 << 30
_MAX_CONCURRENCY = 256


class OwnTensor(NamedTuple):
    """A tensor as a rank has it: the part, or None for the whole, its shape and its bytes."""

    stored: StoredTensor
    part: TensorSlice | None
    shape: tuple[int, ...]
    nbytes: int

    @property
    def room(self) -> int:
        """Bytes of memory, so that the next one is aligned."""
        return self.nbytes + -self.nbytes % 64

    @property
    def is_cut(self) -> bool:
        """Whether it is less than the bytes that are read for it."""
        return self.part is not None and self.part.axis > 0


def own_tensor(stored: StoredTensor, share: RankShare) -> OwnTensor:
    part = slice_of(stored, share)
    if part is None:
        return OwnTensor(stored, None, stored.shape, stored.nbytes)
    count = part.stop - part.start
    shape = (*stored.shape[: part.axis], count, *stored.shape[part.axis + 1 :])
    return OwnTensor(stored, part, shape, stored.nbytes // stored.shape[part.axis] * count)


def view(memory: buffers.Buffer, at: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor whose bytes begin at ``at`` of the memory."""
    count = 1
    for length in shape:
        count *= length
    if not count:
        return torch.empty(shape, dtype=TORCH[dtype])
    return torch.frombuffer(memory, dtype=TORCH[dtype], count=count, offset=at).view(shape)


class Placed(NamedTuple):
    """Bytes of a shard and where in memory they begin; both are equal modulo 4096."""

    bytes: FileRange
    at: int


def lay_out(ranges: Iterable[FileRange]) -> tuple[list[Placed], int]:
    """A place for each range, with room for rounding both ends to pages; the bytes of all."""
    placed, end = [], 0
    for each in ranges:
        at = end + each.start % _PAGE
        placed.append(Placed(each, at))
        end = at + each.nbytes + -(at + each.nbytes) % _PAGE
    return placed, end


def memory_for(nbytes: int, what: str) -> buffers.Memory:
    """Touched memory on huge pages. Raises NoRoomError if there is not so much."""
    require_memory(nbytes, what)
    return buffers.private(max(nbytes, 1)).array


def block_size_option(value: int | str) -> int:
    """Bytes that were given as a number or a text. Raises UsageError."""
    size = parse_size(value)
    if not _PAGE <= size <= _MAX_BLOCK or size % _PAGE:
        raise UsageError(
            f"block_size can't be {value}",
            remedy=f"use a multiple of 4096 bytes from {format_bytes(_PAGE)} to "
            f"{format_bytes(_MAX_BLOCK)}",
        )
    return size


def concurrency_option(value: int | str) -> int:
    """A number of requests in flight. Raises UsageError."""
    text = str(value)
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_CONCURRENCY:
        raise UsageError(f"concurrency can't be {text[:50]}", remedy=f"use 1 to {_MAX_CONCURRENCY}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a loader was told. ``on_device``: memory of the device for each tensor, if it is one."""

    storage: Storage
    weights: Weights
    share: RankShare
    tensors: list[OwnTensor]
    on_device: dict[str, torch.Tensor]
    exchange: Exchange | None


class PreparedLoader:
    """The base of all loaders. A subclass has ``run`` for one load.

    ``library``: the package whose version says what was measured; '' for iobench's own code.
    """

    name: ClassVar[str]
    library: ClassVar[str] = ""
    local_only: ClassVar[bool] = False
    sharing: ClassVar[frozenset[str]] = frozenset({"all"})
    can_leave_out: ClassVar[frozenset[Stage]] = frozenset({"device"})
    buffered: ClassVar[bool] = True
    prepared: Prepared | None = None

    @property
    def version(self) -> str:
        return f"{self.library} {metadata.version(self.library)}" if self.library else ""

    def prepare(
        self,
        storage: Storage,
        weights: Weights,
        share: RankShare = ALONE,
        *,
        device: str = "cpu",
        exchange: Exchange | None = None,
    ) -> None:
        if self.local_only and not isinstance(storage, Files):
            raise UsageError(
                f"the loader {self.name} reads local files, and {storage.url} has none",
                remedy="use --loader direct or eager, or copy the files to a local directory",
            )
        if share.how not in self.sharing:
            raise UsageError(
                f"the loader {self.name} can't share weights as '{share.how}'",
                remedy=f"it can: {', '.join(sorted(self.sharing))}; or use --loader direct",
            )
        self.close()
        own = [own_tensor(tensor, share) for tensor in weights.tensors]
        self.prepared = Prepared(
            storage=storage,
            weights=weights,
            share=share,
            tensors=own,
            on_device=_device_memory(own, device),
            exchange=exchange,
        )
        self.take_memory(self.prepared)

    def take_memory(self, prepared: Prepared) -> None:
        """Take the memory of all loads; or check that there is room, where a library takes it."""
        require_memory(prepared.weights.file_bytes, "the model's weights")

    def load(self, *, leave_out: Stage | None = None) -> Loaded:
        if self.prepared is None:
            raise UsageError(f"the loader {self.name} was not prepared")
        if leave_out is not None and leave_out not in self.can_leave_out:
            raise UsageError(f"the loader {self.name} can't leave out '{leave_out}'")
        clock = LoadClock({} if leave_out == "device" else self.prepared.on_device)
        return self.run(self.prepared, clock, leave_out)

    def run(self, prepared: Prepared, clock: LoadClock, leave_out: Stage | None) -> Loaded:
        raise NotImplementedError

    def close(self) -> None:
        self.prepared = None


def tensors_of_files(prepared: Prepared) -> list[tuple[Path, list[OwnTensor]]]:
    """The path of each local file that has tensors, and those that the rank has of it."""
    found: dict[str, list[OwnTensor]] = {}
    for own in prepared.tensors:
        found.setdefault(own.stored.shard, []).append(own)
    storage = prepared.storage
    assert isinstance(storage, Files)
    return [(storage.local_path(key), tensors) for key, tensors in found.items()]


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turn what a library raises while it reads ``where`` into StorageError or DatasetError.

    iobench's own errors pass.
    """
    try:
        yield
    except (IobenchError, MemoryError):
        raise
    except OSError as error:
        raise StorageError(f"cannot read {where}: {error.strerror or first_line(error)}") from error
    except Exception as error:
        raise DatasetError(
            f"{where} can't be read by this loader: {first_line(error)}",
            remedy="use --loader direct, and if that fails, get the file from its source again",
        ) from error


def touch(tensor: torch.Tensor) -> None:
    """Read one byte of each page, so that all bytes of a mapped tensor are in memory."""
    if tensor.nbytes:
        tensor.contiguous().reshape(-1).view(torch.uint8)[::_PAGE].sum()


class LoadClock:
    """The times of one load, from when it is made.

    ``on_device``: where the tensors are copied to; empty: they stay.
    """

    def __init__(self, on_device: dict[str, torch.Tensor]) -> None:
        self._on_device = on_device
        self._tensors: dict[str, torch.Tensor] = {}
        self._classes: dict[str, list[int]] = {}
        self._first_ns: int | None = None
        self._cpu = time.process_time()
        self._started_s = time.monotonic()
        self._started_ns = time.perf_counter_ns()

    def seconds(self) -> float:
        return (time.perf_counter_ns() - self._started_ns) / 1e9

    def add(self, name: str, nbytes: int, tensor: torch.Tensor, began_ns: int) -> None:
        """Take a tensor that was made since ``began_ns``, and copy it to the device."""
        now = time.perf_counter_ns()
        totals = self._classes.setdefault(size_class(nbytes), [0, 0, 0])
        totals[0] += 1
        totals[1] += nbytes
        totals[2] += now - began_ns
        if self._on_device:
            tensor = self._on_device[name].copy_(tensor, non_blocking=True)
        self._tensors[name] = tensor
        if self._first_ns is None:
            self._first_ns = time.perf_counter_ns()

    def ended(self, *, fetch_s: float | None = None, bytes_read: int | None = None) -> Loaded:
        """What has been loaded, when the device has it, too."""
        if self._on_device:
            torch.cuda.synchronize(next(iter(self._on_device.values())).device)
        load_s = self.seconds()
        first = self._first_ns
        return Loaded(
            tensors=self._tensors,
            load_s=load_s,
            first_s=load_s if first is None else (first - self._started_ns) / 1e9,
            fetch_s=fetch_s,
            assembly={
                name: TensorTimes(count, nbytes, ns / 1e9)
                for name, (count, nbytes, ns) in self._classes.items()
            },
            bytes_read=bytes_read,
            cpu_s=time.process_time() - self._cpu,
            started_s=self._started_s,
        )


def _device_memory(tensors: Sequence[OwnTensor], device: str) -> dict[str, torch.Tensor]:
    """Memory of the device for each tensor, as an engine has it before it loads.

    Raises UsageError, NoRoomError.
    """
    if device == "cpu":
        return {}
    if not device.startswith("cuda") or not torch.cuda.is_available():
        raise UsageError(
            f"there is no device '{device}' here", remedy="use cpu, or a host with a CUDA device"
        )
    try:
        return {
            own.stored.name: torch.empty(own.shape, dtype=TORCH[own.stored.dtype], device=device)
            for own in tensors
        }
    except (RuntimeError, AssertionError) as error:
        total = format_bytes(sum(own.nbytes for own in tensors))
        raise NoRoomError(
            f"the weights take {total}, which {device} does not have: {first_line(error)}",
            remedy="load a model of fewer layers, or share it sliced over more ranks",
        ) from None
