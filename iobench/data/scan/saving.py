"""Save a scan's result: a spec, and next to it a manifest, each completely or not at all.

The manifest is written to ``NAME.manifest.part`` and renamed last, so its presence means that the
scan was saved. A scan that was killed can be repeated: its unfinished folder is written again, and
a spec with exactly the right bytes is kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from ...base.documents import json_text, read_regular
from ...base.errors import TargetRefusedError, UsageError
from ...base.filesystem import sync
from ...base.interrupts import defer_interrupts
from ...record.manifest import (
    MANIFEST,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    Manifest,
    write_table,
)
from ...storage.local.sinks import make_folders, open_sink, rename_new
from .scanner import ScanReport

_NAMES = (SAMPLES, SHARDS, MANIFEST)


def save(report: ScanReport, path: Path) -> Path:
    """Write the spec to ``path`` (a .yaml) and the manifest to a folder next to it.

    Returns the folder. Nothing is overwritten. Raises UsageError, TargetRefusedError.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"'{path}' is not the name of a YAML file", remedy="use --save mine.yaml")
    folder = path.with_suffix(".manifest")
    manifest = report.manifest
    scheme, url, place = manifest.header.origin.rpartition("://")
    if (not url or scheme == "local") and path.resolve().is_relative_to(Path(place).resolve()):
        raise TargetRefusedError(
            f"{path} is inside the data, where a scan never writes",
            remedy="choose another place for --save",
        )
    data = manifest.spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    text = yaml.safe_dump(data, sort_keys=False, width=130).encode()
    there = _is_there(path, text)
    for name, taken in ((path, not there and _exists(path)), (folder, _exists(folder))):
        if taken:
            raise _taken(name)
    try:
        _write_both(manifest, folder, path, None if there else text)
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or path}: {error.strerror}",
            remedy="choose another place for --save",
        ) from error
    return folder


def _write_both(manifest: Manifest, folder: Path, path: Path, text: bytes | None) -> None:
    """Write the manifest, and the spec unless it exists already (``text`` None). Raises OSError."""
    make_folders(path.parent)
    with _unfinished(folder.with_name(f"{folder.name}.part")) as part:
        _write(part / SAMPLES, write_table(SAMPLE_COLUMNS, manifest.samples))
        _write(part / SHARDS, write_table(SHARD_COLUMNS, manifest.shards, manifest.names))
        _write(part / MANIFEST, f"{json_text(manifest.header)}\n".encode("ascii"))
        sync(part)
        if text is not None:
            sink = open_sink(path, size_hint=len(text), durable=True)
            try:
                sink.write(text)
                sink.commit()
            except BaseException:
                with suppress(OSError):
                    sink.abort()
                raise
        try:
            _publish_folder(part, folder)
        except BaseException:
            if text is not None:  # without its manifest, the spec would only block the next attempt
                with suppress(OSError):
                    path.unlink()
            raise


@contextmanager
def _unfinished(part: Path) -> Iterator[Path]:
    """Make a new folder, locked by this process; remove it at the end unless it was renamed.

    A folder of that name that a dead process left is removed first. Raises TargetRefusedError,
    OSError.
    """
    with defer_interrupts():
        if _exists(part):
            _remove_left_over(part)
        part.mkdir()
        fd = _lock(part)
        made = os.fstat(fd)
    try:
        yield part
    finally:
        with defer_interrupts():
            with suppress(OSError):
                if os.path.samestat(made, part.lstat()):
                    shutil.rmtree(part)
            os.close(fd)


def _remove_left_over(part: Path) -> None:
    """Remove the unfinished folder of a dead process.

    Raises TargetRefusedError if no scan made it, or if another scan is writing it; OSError.
    """
    if part.is_symlink() or not part.is_dir() or not {*os.listdir(part)} <= {*_NAMES}:
        raise _taken(part)
    fd = _lock(part)
    try:
        for name in _NAMES:
            (part / name).unlink(missing_ok=True)
        part.rmdir()
    finally:
        os.close(fd)


def _lock(part: Path) -> int:
    """Lock the folder and return its descriptor.

    Raises TargetRefusedError if another process holds the lock.
    """
    fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(fd)
            raise TargetRefusedError(
                f"{part} is being written by another process", remedy="wait until it has ended"
            ) from None
        # Ignore other errors: not every file system can lock directories.
    return fd


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _publish_folder(part: Path, folder: Path) -> None:
    """Rename ``part`` to ``folder``. Raises OSError; TargetRefusedError if the name is taken."""
    if not rename_new(part, folder):
        if _exists(folder):
            raise _taken(folder)
        part.rename(folder)
    try:
        sync(folder.parent)
    except OSError:
        folder.rename(part)  # undo the rename, because it may not survive a crash
        raise


def _is_there(path: Path, text: bytes) -> bool:
    """Whether ``path`` is a regular file with exactly these bytes."""
    try:
        return not path.is_symlink() and read_regular(path, len(text) + 1) == text
    except (OSError, ValueError):
        return False


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _taken(path: Path) -> TargetRefusedError:
    return TargetRefusedError(
        f"{path} already exists, and a scan overwrites nothing",
        remedy="choose another name, or remove it",
    )
