"""Any storage as the file system that torch.distributed.checkpoint writes to, and reads from."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from contextlib import contextmanager

from torch.distributed.checkpoint import filesystem as library

from ..storage.base import Storage
from ..storage.files import buffered, file_over
from .catalog import CheckpointTarget
from .manifest import METADATA

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
