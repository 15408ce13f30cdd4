"""The files of torch.distributed.checkpoint on any storage, and its metadata without the danger of a pickle."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.distributed.checkpoint import filesystem as library
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

from ..storage.base import Storage
from .catalog import CheckpointTarget
from .files import buffered, file_over
from .manifest import corrupt

METADATA = ".metadata"
_TEMPORARY = ".tmp"


class StorageFiles(library.FileSystemBase):
    """What the library asks of a file system, of a storage; paths are keys. A sink is all or nothing, so nothing needs to be renamed."""

    def __init__(self, storage: Storage, *, fsync: bool = True, size_hint: int = 0) -> None:
        self._storage = storage
        self._fsync = fsync
        self._size_hint = size_hint  # bytes, about, of one file of tensors

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
        return False  # whoever saves has looked before; and a temporary file was never there

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
    """The library's own writer: as it is for local files (made safe by fsync afterwards), else on top of the storage's sinks."""
    folder = target.path()
    writer = library.FileSystemWriter(
        folder or target.folder, sync_files=False, thread_count=threads
    )
    if folder is None:
        writer.fs = StorageFiles(target.storage, fsync=fsync, size_hint=nbytes // threads)  # type: ignore[assignment]
        writer.path = target.folder
    return writer


class SafeReader(library.FileSystemReader):
    """The library's reader, with metadata that names nothing but shapes, types and places within the checkpoint's own files."""

    def __init__(self, target: CheckpointTarget, files: Mapping[str, int]) -> None:
        folder = target.path()
        super().__init__(folder or target.folder)
        if folder is None:
            self.fs = StorageFiles(target.storage)  # type: ignore[assignment]
            self.path = target.folder
        self._where = target.url
        self._known = self._checked(files)
        self.current = ""  # the file that is being read

    def _checked(self, files: Mapping[str, int]) -> metadata.Metadata:
        where = f"{self._where}/{METADATA}"
        with self.fs.create_stream(self._get_metadata_path(), "rb") as stream:
            try:
                found = _Unpickler(cast(Any, stream)).load()
            except pickle.UnpicklingError:
                raise corrupt(
                    where,
                    "it asks for code to be run, or holds other objects than metadata; nothing was executed",
                ) from None
            except Exception as error:  # a damaged pickle raises anything
                raise corrupt(where, f"it can't be read ({type(error).__name__})") from None
        if not isinstance(found, metadata.Metadata) or not isinstance(found.storage_data, dict):
            raise corrupt(where, "it is no metadata")
        for place in found.storage_data.values():
            if not isinstance(place, library._StorageInfo) or place.relative_path not in files:
                raise corrupt(where, "it names a file that the manifest does not")
            if not 0 <= place.offset <= place.offset + place.length <= files[place.relative_path]:
                raise corrupt(where, f"it names bytes that {place.relative_path} does not have")
        found.storage_meta = found.storage_meta or metadata.StorageMeta()
        return found

    def read_metadata(
        self,
    ) -> metadata.Metadata:  # no per-rank metadata: iobench's writers make none
        return self._known

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        self.current = sinfo.relative_path
        return super()._slice_file(file, sinfo)

    def file_of(self, name: str) -> str:
        """The file with a tensor's first piece."""
        places: Any = self._known.storage_data
        return next(
            (place.relative_path for index, place in places.items() if index.fqn == name), METADATA
        )


class SafePlanner(DefaultLoadPlanner):
    """Values that are no tensors are read without running code, too."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = loaded


def _memory_format(enum: Any, name: str) -> Any:
    """In the place of ``getattr``, by which early Pythons 3.11 pickle members of an Enum: of the library's one, and of no other."""
    if enum is not metadata._MEM_FORMAT_ENCODING or name not in enum.__members__:
        raise pickle.UnpicklingError(f"builtins.getattr of {name}")
    return enum[name]


class _Unpickler(pickle.Unpickler):
    """Makes the library's own metadata objects and nothing else; what it is asked for besides is an UnpicklingError."""

    _CLASSES = (
        metadata.Metadata,
        metadata.TensorStorageMetadata,
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        library._StorageInfo,
        torch.Size,
        pathlib.PosixPath,
        pathlib.PurePosixPath,
        _get_layout,
    )
    _ALLOWED = {(one.__module__, one.__qualname__): one for one in _CLASSES}  # noqa: RUF012
    _MOVED = {  # noqa: RUF012
        ("pathlib", "PosixPath"): pathlib.PosixPath,
        ("pathlib._local", "PosixPath"): pathlib.PosixPath,
        ("builtins", "getattr"): _memory_format,
    }

    def find_class(self, module: str, name: str) -> Any:
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        found = self._ALLOWED.get((module, name)) or self._MOVED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return found
