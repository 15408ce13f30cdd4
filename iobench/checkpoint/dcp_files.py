"""The files of torch.distributed.checkpoint on any storage, read without running any pickle."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import filesystem as library
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from ..storage.base import Storage
from ..storage.files import buffered, file_over
from . import archive, dcp_metadata
from .catalog import CheckpointTarget
from .dcp_compat import StorageInfo, TracedReader
from .manifest import corrupt
from .saving import read_errors, uncached_window

METADATA = ".metadata"
_TEMPORARY = ".tmp"
_MAX_LOOKS = 16
"""How many archives are inspected at the same time."""


class StorageFiles(library.FileSystemBase):
    """A storage as the file system that the library asks for; paths are keys.

    A storage's object is complete or absent, so temporary names and renames are not needed.
    """

    def __init__(self, storage: Storage, *, fsync: bool = True, size_hint: int = 0) -> None:
        self._storage = storage
        self._fsync = fsync
        self._size_hint = size_hint  # expected bytes of one file of tensors

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        key = str(path).removesuffix(_TEMPORARY)
        if mode == "rb":
            yield buffered(self._storage, key)
            return
        size_hint = 0 if key.endswith(METADATA) else self._size_hint
        with (
            self._storage.create(key, size_hint=size_hint, durable=self._fsync) as sink,
            file_over(sink) as file,
        ):
            yield file

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return False  # the writer has checked that; and temporary files do not exist here

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        return

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        return

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        return

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def writer_for(
    target: CheckpointTarget, *, fsync: bool, threads: int, nbytes: int
) -> library.FileSystemWriter:
    """The library's own writer.

    It writes local files itself (fsync follows later), and uses the sinks of other storages.
    """
    folder = target.path()
    writer = library.FileSystemWriter(
        folder or target.folder, sync_files=False, thread_count=threads
    )
    if folder is None:
        files = StorageFiles(target.storage, fsync=fsync, size_hint=nbytes // threads)
        writer.fs = files  # type: ignore[assignment]
        writer.path = target.folder
    return writer


class Inspected(NamedTuple):
    """The inspected metadata: its bytes, and their meaning."""

    text: bytes
    known: metadata.Metadata


def inspect(
    target: CheckpointTarget, files: Mapping[str, int], wanted: set[str], *, limit: int
) -> Inspected:
    """Inspect the metadata, and the archive of each of the ``wanted`` leaves (DCP's names).

    The library only reads what was inspected before. ``files``: the checkpoint's files with their
    sizes in bytes. ``limit``: the largest size of the metadata in bytes. Raises StorageError, and
    CorruptCheckpointError, which names the file.
    """
    where = f"{target.url}/{METADATA}"
    with uncached_window(target, METADATA) as window:
        if window.size > limit:
            raise corrupt(where, f"it has {window.size} bytes; the limit is {limit}")
        text = window.bytes(0, window.size)
    try:
        known = dcp_metadata.read(text)
    except ValueError as error:
        raise corrupt(where, str(error)) from None
    places: dict[str, list[StorageInfo]] = {}
    for index, place in known.storage_data.items():
        if place.relative_path not in files:
            raise corrupt(where, "it names a file that is not in the manifest")
        if place.offset + place.length > files[place.relative_path]:
            raise corrupt(where, f"it names bytes beyond the end of {place.relative_path}")
        if index.fqn in wanted:
            places.setdefault(place.relative_path, []).append(place)
    for name, mine in places.items():
        with read_errors(f"{target.url}/{name}"):
            _look_into(target, name, sorted(mine, key=lambda place: place.offset))
    return Inspected(text, known)


def _look_into(target: CheckpointTarget, name: str, places: list[StorageInfo]) -> None:
    """Inspect the archives at these places of a file, several at a time: two small reads each."""

    def look(mine: list[StorageInfo]) -> None:
        with uncached_window(target, name) as window:
            for place in mine:
                begin = place.offset

                def read(start: int, end: int, begin: int = begin) -> bytes:
                    return window.bytes(begin + start, begin + end)

                archive.check(read, place.length, [])

    turns = min(_MAX_LOOKS, len(places))
    with ThreadPoolExecutor(turns) as threads:
        deque(threads.map(look, [places[turn::turns] for turn in range(turns)]), maxlen=0)


class SafeReader(TracedReader):
    """The library's reader, for metadata and archives that ``inspect`` has accepted."""

    def __init__(self, target: CheckpointTarget, inspected: Inspected) -> None:
        folder = target.path()
        super().__init__(folder or target.folder)
        if folder is None:
            self.fs = StorageFiles(target.storage)  # type: ignore[assignment]
            self.path = target.folder
        self._known = inspected.known
        with self.fs.create_stream(self.metadata_path(), "rb") as stream:
            if stream.read() != inspected.text:
                raise corrupt(f"{target.url}/{METADATA}", "it changed while it was read")

    def read_metadata(self) -> metadata.Metadata:
        # There is no metadata for each rank: iobench's writers make none.
        return self._known

    def file_of(self, name: str) -> str:
        """The file with the first piece of a tensor."""
        places: Any = self._known.storage_data
        return next(
            (place.relative_path for index, place in places.items() if index.fqn == name), METADATA
        )


class SafePlanner(DefaultLoadPlanner):
    """Reads values that are not tensors without running code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = loaded
