"""``torch.save`` as trainings call it, and ``torch.load``, memory-mapped for local files.

``torch.load`` runs no code (``weights_only``), and only reads archives that ``check_archive`` has
accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, ClassVar, cast

import torch

from ..storage.files import buffered, file_over
from .base import State
from .catalog import CheckpointTarget
from .leaves import SEPARATOR, kind, leaves
from .reading import check_archive, uncached_window
from .saving import Behind, FileWriter, SaveClock, write_file


class TorchSave(FileWriter):
    """One zip file per rank: raw tensors, a pickle, and a CRC32 of every tensor."""

    name = "torch"
    suffix = ".pt"
    crc32: ClassVar[bool] = True

    def write(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(self.crc32)
        try:
            if target.path() is not None:

                def save(path: Path) -> None:
                    torch.save(state, path)

                return write_file(target, self.file(), save, fsync=fsync, clock=clock)
            with (
                target.storage.create(
                    target.key(self.file()), size_hint=_size(state), durable=fsync
                ) as sink,
                file_over(sink) as file,
            ):
                torch.save(state, cast(IO[bytes], file))
                return clock.wall()
        finally:
            torch.serialization.set_crc32_options(before)

    def inspect(self, state: State, target: CheckpointTarget) -> None:
        with uncached_window(target, self.file()) as window:
            check_archive(window, 0, window.size, list(leaves(state)))

    def read(self, state: State, target: CheckpointTarget) -> None:
        path = target.library_path(self.file())
        if path is not None:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        else:
            file = buffered(target.storage, target.key(self.file()))
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        _fill(state, loaded)


class TorchSaveBehind(Behind, TorchSave):
    """The same of a copy, by a thread, while training goes on."""

    name = "torch-async"


class TorchSaveNoCrc(TorchSave):
    """The same without the CRC32, which costs CPU time."""

    name = "torch-nocrc"
    crc32 = False


def _size(state: State) -> int:
    return sum(leaf.nbytes for leaf in leaves(state).values() if isinstance(leaf, torch.Tensor))


def _fill(state: State, loaded: object, prefix: str = "") -> None:
    """Copy each leaf of what was loaded into the state. Raises ValueError if they don't match."""
    if not isinstance(loaded, dict) or loaded.keys() != state.keys():
        raise ValueError(f"it holds other names than the manifest says in '{prefix}'")
    for key, own in state.items():
        value, name = loaded[key], f"{prefix}{key}"
        if isinstance(own, dict):
            _fill(own, value, name + SEPARATOR)
        elif kind(value) != kind(own):
            raise ValueError(f"it holds {kind(value)} for '{name}', the manifest says {kind(own)}")
        elif isinstance(own, torch.Tensor):
            own.copy_(value)
        else:
            state[key] = value
