"""``torch.save`` as trainings call it, and ``torch.load``, memory-mapped for local files.

``torch.load`` runs no code (``weights_only``), and only reads archives that ``archive.py`` has
accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, ClassVar, cast

import torch

from .archive import described
from .base import State
from .behind import Behind
from .catalog import CheckpointTarget
from .described import flat
from .files import buffered, file_over
from .leaves import kind, leaves, set_values
from .saving import Clock, FileWriter, uncached_window, write_file


class TorchSave(FileWriter):
    """One zip file per rank: raw tensors, a pickle, and a CRC32 of every tensor."""

    name = "torch"
    suffix = ".pt"
    crc32: ClassVar[bool] = True

    def write(self, state: State, target: CheckpointTarget, *, fsync: bool, clock: Clock) -> float:
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
        wanted = {name: kind(leaf) for name, leaf in leaves(state).items()}
        with uncached_window(target, self.file()) as window:
            found = flat(described(window.bytes, window.size, list(wanted)))
        if found != wanted:
            wrong = min(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
            raise ValueError(
                f"it holds {found.get(wrong, 'nothing')} for '{wrong}', but "
                f"the manifest says {wanted.get(wrong, 'nothing')}"
            )

    def read(self, state: State, target: CheckpointTarget) -> None:
        path = target.library_path(self.file())
        loaded: Any
        if path is not None:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        else:
            loaded = torch.load(
                buffered(target.storage, target.key(self.file())),
                map_location="cpu",
                weights_only=True,
            )
        found = leaves(loaded)
        values = {}
        for name, leaf in leaves(state).items():
            if isinstance(leaf, torch.Tensor):
                leaf.copy_(found[name])
            else:
                values[name] = found[name]
        set_values(state, values)


class TorchSaveBehind(Behind, TorchSave):
    """The same of a copy, by a thread, while training goes on."""

    name = "torch-async"


class TorchSaveNoCrc(TorchSave):
    """The same without the CRC32, which costs CPU time."""

    name = "torch-nocrc"
    crc32 = False


def _size(state: State) -> int:
    return sum(leaf.nbytes for leaf in leaves(state).values() if isinstance(leaf, torch.Tensor))
