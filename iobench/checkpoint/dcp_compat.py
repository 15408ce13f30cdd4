"""The parts of torch.distributed.checkpoint that are not public. Checked with torch 2.13.0."""

from __future__ import annotations

import io
import logging
import pickle
from pathlib import PurePosixPath
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.serialization import _get_layout

StorageInfo = _StorageInfo
"""Where a piece of a tensor lies: ``relative_path``, ``offset`` and ``length`` in bytes."""


class TracedReader(FileSystemReader):
    """The library's reader. ``current`` is the file that it reads."""

    current = ""

    def metadata_path(self) -> Any:
        return self._get_metadata_path()

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        self.current = sinfo.relative_path
        return super()._slice_file(file, sinfo)


class _LessVerboseProcess(_AsyncCheckpointProcess):
    """The library's process without its INFO messages, for which it sets up the root logger.

    Warnings and errors are shown, and so are the messages of other loggers.
    """

    @staticmethod
    def _checkpointing_subprocess(pg_init_info: Any, parent_conn: Any) -> None:
        # The library's own set-up comes later, and keeps existing filters.
        logging.getLogger().addFilter(_is_warning)
        _AsyncCheckpointProcess._checkpointing_subprocess(pg_init_info, parent_conn)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def use_less_verbose_process() -> None:
    """Make the next asynchronous save start its process without INFO messages."""
    executor._AsyncCheckpointProcess = _LessVerboseProcess  # type: ignore[misc]


def end_process() -> None:
    """End the process of asynchronous saves, and undo ``use_less_verbose_process``."""
    executor._CHECKPOINT_PROCESS = None  # deleting it ends the process
    executor._AsyncCheckpointProcess = _AsyncCheckpointProcess  # type: ignore[misc]


_RECORDS = (
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.TensorStorageMetadata,
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.TensorProperties,
    metadata.StorageMeta,
    StorageInfo,
)
"""The classes of which metadata consists."""

_NAMES: dict[tuple[str, str], Any] = {
    (named.__module__, named.__qualname__): named
    for named in (*_RECORDS, metadata._MEM_FORMAT_ENCODING, torch.Size, _get_layout)
} | {
    ("torch", name): dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)
}


def unpickle_metadata(text: bytes) -> metadata.Metadata:
    """The metadata that the library has pickled, of which nothing else is called or changed.

    Raises UnpicklingError for other names; any exception means that it is damaged.
    """
    found = _MetadataUnpickler(io.BytesIO(text)).load()
    if not isinstance(found, metadata.Metadata):
        raise pickle.UnpicklingError("it is not metadata")
    return found


_USUAL: dict[int, Any] = pickle._Unpickler.dispatch


# Python's own unpickler, not the one in C: that one allocates as much memory as an index states.
class _MetadataUnpickler(pickle._Unpickler):
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("pathlib"):  # of the folder, which no restore needs
            return PurePosixPath
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _NAMES[module, name]

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], _RECORDS):
            raise pickle.UnpicklingError("it would change what is not metadata")
        _USUAL[pickle.BUILD[0]](self)

    dispatch: ClassVar[dict[int, Any]] = {**_USUAL, pickle.BUILD[0]: load_build}
