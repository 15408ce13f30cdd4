"""Where a scan's result goes: a spec, and beside it a manifest, each there as a whole or not at all.

The manifest is written as ``NAME.manifest.part`` and renamed last, so it says that the scan was
saved. What a killed scan has left is taken up: an unfinished folder is begun again, and a spec of
exactly the bytes that would be written is as good as written.
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

from ..documents import json_text, read_regular
from ..errors import TargetRefusedError, UsageError
from ..interrupts import defer_interrupts
from ..schema.manifest import (
    MANIFEST,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    Manifest,
    write_table,
)
from ..storage.local.sinks import (
    make_folders,
    open_sink,
    rename_new,
    sync_folder,
)
from .scanner import ScanReport

_NAMES = (SAMPLES, SHARDS, MANIFEST)


def save(report: ScanReport, path: Path) -> Path:
    """Write the spec to ``path`` (a .yaml) and the manifest to a folder beside it.

    The folder is returned. Nothing is overwritten. Raises UsageError, TargetRefusedError.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"'{path}' is no YAML file name", remedy="use --save mine.yaml")
    folder = path.with_suffix(".manifest")
    manifest = report.manifest
    scheme, url, place = manifest.header.origin.rpartition("://")
    if (not url or scheme == "local") and path.resolve().is_relative_to(Path(place).resolve()):
        raise TargetRefusedError(
            f"{path} lies within the data, and a scan writes nothing there",
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
    """The manifest, and the spec unless that is there (None). Raises OSError."""
    make_folders(path.parent)
    with _unfinished(folder.with_name(f"{folder.name}.part")) as part:
        _write(part / SAMPLES, write_table(SAMPLE_COLUMNS, manifest.samples))
        _write(part / SHARDS, write_table(SHARD_COLUMNS, manifest.shards, manifest.names))
        _write(part / MANIFEST, f"{json_text(manifest.header)}\n".encode("ascii"))
        sync_folder(part)
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
            if text is not None:  # without its manifest it would only stand in the way
                with suppress(OSError):
                    path.unlink()
            raise


@contextmanager
def _unfinished(part: Path) -> Iterator[Path]:
    """A new folder that is held by this process, and removed unless it has been given its name.

    What a dead process has left of that name is removed first. Raises TargetRefusedError, OSError.
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
    """Raises TargetRefusedError for what no scan has left, or another one is writing; OSError."""
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
    """A descriptor that holds the folder. Raises TargetRefusedError where another process does."""
    fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(fd)
            raise TargetRefusedError(
                f"{part} is being written by another process", remedy="wait until it has ended"
            ) from None
        # else: not every file system locks directories
    return fd


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _publish_folder(part: Path, folder: Path) -> None:
    """Raises OSError, TargetRefusedError where the name was taken meanwhile."""
    if not rename_new(part, folder):
        if _exists(folder):
            raise _taken(folder)
        part.rename(folder)
    try:
        sync_folder(folder.parent)
    except OSError:
        folder.rename(part)  # what was not made safe is not there
        raise


def _is_there(path: Path, text: bytes) -> bool:
    """Whether a regular file has exactly these bytes."""
    try:
        return not path.is_symlink() and read_regular(path, len(text) + 1) == text
    except (OSError, ValueError):
        return False


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _taken(path: Path) -> TargetRefusedError:
    return TargetRefusedError(
        f"{path} exists, and is not overwritten", remedy="choose another name, or remove it"
    )
