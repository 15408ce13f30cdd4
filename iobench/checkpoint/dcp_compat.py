"""The parts of torch.distributed.checkpoint that are not public. Checked with torch 2.13.0."""

from __future__ import annotations

import logging
from typing import Any

from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo

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
