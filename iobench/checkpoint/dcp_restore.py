"""A restore of torch.distributed.checkpoint (DCP), whose files are pickles, without running any.

The library's own reader reads the files. Before that, off the clock, the checksum of its metadata
is compared with our manifest, and the metadata is unpickled with its own few classes alone. Then
each archive that the restore will read is checked. The writer and the reader see any storage as the
file system that they ask for (``StorageFiles``).
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint import filesystem as library
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from ..base.errors import CheckpointError
from ..base.limits import header_limit
from ..storage.base import Storage
from ..storage.files import buffered, file_over
from .base import Job, State
from .catalog import CheckpointTarget
from .dcp_compat import StorageInfo, TracedReader, unpickle_metadata
from .leaves import SHARED, check_fits, is_shared, leaves, set_values
from .leaves import verify as verify_state
from .manifest import METADATA, CheckpointManifest, RankPart, corrupt
from .reading import check_archive, own_part, read_errors, uncached_window
from .saving import Restoring

_TEMPORARY = ".tmp"


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


_MAX_LOOKS = 16
"""How many archives are inspected at the same time."""


class RestoringDcp(Restoring):
    def __init__(
        self,
        writer: str,
        job: Job,
        state: State,
        target: CheckpointTarget,
        open_group: Callable[[], Any],
    ) -> None:
        """``open_group``: all ranks must call it, and get the group of all."""
        self._job, self._state, self._target = job, state, target
        self._manifest = target.manifest()
        self._part = (
            own_part(writer, job, target)
            if self._manifest.world == job.world or not self._manifest.writer.startswith("dcp")
            else _part_of_other_ranks(job, target, self._manifest)
        )
        checksums = self._part.checksums
        check_fits(state, checksums, target.url)
        self._shared = {name for name, sum_ in checksums.items() if sum_.endswith(SHARED)}
        self._wanted = {self._saved_name(name): leaf for name, leaf in leaves(state).items()}
        self._files = self._manifest.files()
        self._file_checksums = {
            name: checksum
            for part in self._manifest.parts
            for name, checksum in part.file_checksums.items()
        }
        metadata_bytes = self._files.get(METADATA, 0)
        target.check_sizes(
            self._files if self._shared else {**self._part.files, METADATA: metadata_bytes}
        )
        self.bytes = tensor_bytes(self._wanted)
        self._group = open_group()

    def _saved_name(self, name: str) -> str:
        # A job of another size takes the values that rank 0 saved.
        return name if name in self._shared else f"rank-{self._part.rank:04d}/{name}"

    def inspect(self) -> None:
        where = f"{self._target.url}/{METADATA}"
        with read_errors(where):
            self._text = self._vouched(where)
            self._known = unpickle_metadata(self._text)
            places: dict[str, list[StorageInfo]] = {}
            for index, place in self._known.storage_data.items():
                _check_place(place, self._files)
                if index.fqn in self._wanted:
                    places.setdefault(place.relative_path, []).append(place)
        for name, mine in places.items():
            with read_errors(f"{self._target.url}/{name}"):
                self._look_into(name, sorted(mine, key=lambda place: place.offset))

    def _vouched(self, where: str) -> bytes:
        """The metadata, if it is what the manifest says. Raises CorruptCheckpointError."""
        limit = self._manifest.world * header_limit(list(self._part.checksums))
        with uncached_window(self._target, METADATA) as window:
            if window.size > limit:
                raise corrupt(where, f"it has {window.size} bytes; the limit is {limit}")
            text = window.bytes(0, window.size)
        if xxhash.xxh3_64_hexdigest(text) != self._file_checksums.get(METADATA):
            raise corrupt(where, "it differs from what was saved (XXH3); nothing was executed")
        return text

    def _look_into(self, name: str, places: list[StorageInfo]) -> None:
        """Inspect the archives at these places of a file, several at a time."""

        def look(mine: list[StorageInfo]) -> None:
            with uncached_window(self._target, name) as window:
                for place in mine:
                    check_archive(window, place.offset, place.length, [])

        turns = min(_MAX_LOOKS, len(places))
        with ThreadPoolExecutor(turns) as threads:
            deque(threads.map(look, [places[turn::turns] for turn in range(turns)]), maxlen=0)

    def read(self) -> None:
        with read_errors(f"{self._target.url}/{METADATA}"):
            reader = _Reader(self._target, self._text, self._known)
        try:
            load(
                self._wanted,
                storage_reader=reader,
                planner=_Planner(),
                process_group=self._group,
            )
        except BaseException as error:
            with read_errors(f"{self._target.url}/{reader.current or METADATA}"):
                raise first_cause(error) from error
        values = {
            name: self._wanted[self._saved_name(name)]
            for name, leaf in leaves(self._state).items()
            if not isinstance(leaf, torch.Tensor)
        }
        set_values(self._state, values)

    def verify(self) -> str:
        own = {
            name: checksum
            for name, checksum in self._part.checksums.items()
            if name not in self._shared
        }
        verify_state(self._state, own, lambda name: f"{self._target.url}/{self._file_of(name)}")
        if not self._shared:
            return "tensors"
        # Each rank verifies its part of the files; together the ranks verify all of them.
        mine = sorted(self._file_checksums.items())[self._job.rank :: self._job.world]
        for name, checksum in mine:
            if self._target.file_checksum(name) != checksum:
                raise corrupt(f"{self._target.url}/{name}", "it differs from what was saved (XXH3)")
        return "files"

    def _file_of(self, name: str) -> str:
        """The file with the first piece of a tensor of this rank's own."""
        places: Any = self._known.storage_data
        saved = self._saved_name(name)
        return next(
            (p.relative_path for index, p in places.items() if index.fqn == saved), METADATA
        )


def _part_of_other_ranks(
    job: Job, target: CheckpointTarget, manifest: CheckpointManifest
) -> RankPart:
    """Rank 0's part of a checkpoint that another number of ranks saved.

    Raises CheckpointError if a tensor belongs to one rank alone.
    """
    for rank in range(manifest.world):
        part = target.part(manifest, rank)
        for name, checksum in part.checksums.items():
            if "[" in checksum and not checksum.endswith(SHARED):
                raise CheckpointError(
                    f"{target.url} was saved by {manifest.world} ranks, not {job.world}, "
                    f"and '{name}' belongs to rank {rank} alone",
                    remedy=f"use --ranks {manifest.world}; only tensors that ranks share "
                    "(DTensors) can be restored by another number of ranks",
                )
    return target.part(manifest, 0)


def _check_place(place: StorageInfo, files: dict[str, int]) -> None:
    """Raises ValueError where the metadata names bytes that are not a rank's."""
    if place.relative_path not in files:
        raise ValueError("it names a file that is not in the manifest")
    if place.offset < 0 or place.length < 0:
        raise ValueError("it names bytes before the beginning of a file")
    if place.offset + place.length > files[place.relative_path]:
        raise ValueError(f"it names bytes beyond the end of {place.relative_path}")
    if place.transform_descriptors:
        raise ValueError("bytes need a transformation when they are read")


class _Reader(TracedReader):
    """The library's reader, for metadata that is known and whose archives have been checked."""

    def __init__(self, target: CheckpointTarget, text: bytes, known: metadata.Metadata) -> None:
        folder = target.path()
        super().__init__(folder or target.folder)
        if folder is None:
            self.fs = StorageFiles(target.storage)  # type: ignore[assignment]
            self.path = target.folder
        self._known = known
        with self.fs.create_stream(self.metadata_path(), "rb") as stream:
            if stream.read() != text:
                raise corrupt(f"{target.url}/{METADATA}", "it changed while it was read")

    def read_metadata(self) -> metadata.Metadata:
        # There is no metadata for each rank: iobench's writers make none.
        return self._known


class _Planner(DefaultLoadPlanner):
    """Reads values that are not tensors without running code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = loaded


def tensor_bytes(state: State) -> int:
    """Bytes of this rank's tensors, and of its parts of shared ones."""
    local = (leaf.to_local() if is_shared(leaf) else leaf for leaf in leaves(state).values())
    return sum(leaf.nbytes for leaf in local if isinstance(leaf, torch.Tensor))


def first_cause(error: BaseException) -> BaseException:
    """The exception of the first rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        return error.failures[min(error.failures)][0]
    return error
