"""Operations of the fsspec adapter on one object of one file system, and its error messages."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...base.errors import IobenchError
from ..base import Buffer
from .fsspec_compat import parent

_VERSION_KEYS = (
    "etag",
    "generation",
    "md5hash",
    "oid",
    "blob_id",
    "ino",
    "mtime",
    "modified",
    "last_modified",
    "lastmodified",
    "updated",
    "created",
)
"""Names, in lower case, under which file systems report what changes with an object."""


class FsspecSink:
    """Writes to a file of fsspec. ``failed`` turns an exception of the client into an error."""

    def __init__(self, file: Any, failed: Callable[[Exception], IobenchError]) -> None:
        self._file = file
        self._failed = failed

    def write(self, data: bytes | Buffer) -> None:
        try:
            self._file.write(data)
        except Exception as error:
            raise self._failed(error) from None


def begin(fs: Any, path: str) -> tuple[Any, str, Any]:
    """(file system, path, open ``.part`` file); an existing ``.part`` file is written anew."""
    refuse_existing(fs, path)
    try:
        file = fs.open(f"{path}.part", "wb")
    except FileNotFoundError:  # real folders; object stores never get here, so no bucket is made
        fs.makedirs(parent(fs, path), exist_ok=True)
        file = fs.open(f"{path}.part", "wb")
    return fs, path, file


def publish(fs: Any, file: Any, path: str) -> None:
    file.close()
    refuse_existing(fs, path)
    fs.mv(f"{path}.part", path)


def replace(fs: Any, path: str, data: bytes, *, only_new: bool) -> None:
    """Overwrite a small object, or refuse to with ``only_new``.

    Asynchronous file systems are clients of object stores and HTTP, where one request writes a
    whole object. Others may have real files, so the data is written under a random name and moved.
    """
    if only_new:
        refuse_existing(fs, path)
    fs.invalidate_cache()
    if fs.async_impl:
        fs.pipe_file(path, data)
        return
    part = f"{path}.{secrets.token_hex(4)}.part"
    try:
        fs.pipe_file(part, data)
    except FileNotFoundError:  # a file system with real folders
        fs.makedirs(parent(fs, path), exist_ok=True)
        fs.pipe_file(part, data)
    from fsspec.implementations.local import LocalFileSystem

    try:
        if only_new and isinstance(fs, LocalFileSystem):
            os.link(part, path)  # where the name is taken, it fails
            fs.rm_file(part)
            return
        if only_new:
            refuse_existing(fs, path)
        fs.mv(part, path)
    except Exception:
        fs.rm_file(part)
        raise


def discard(fs: Any, file: Any, path: str) -> None:
    for step in (file.close, lambda: fs.rm_file(f"{path}.part")):
        with suppress(Exception):  # the first failure has already been raised
            step()


def refuse_existing(fs: Any, path: str) -> None:
    fs.invalidate_cache()
    if fs.exists(path):
        raise FileExistsError("it exists, and iobench never overwrites")


def size(fs: Any, path: str) -> int:
    fs.invalidate_cache()
    info = fs.info(path)
    if info.get("type") == "directory":
        raise IsADirectoryError("it is a directory")
    return int(info["size"] or 0)


def version_of(info: dict[str, Any]) -> str:
    known = {str(name).lower(): value for name, value in info.items()}
    text = repr(
        [
            info.get("size"),
            *((name, known[name]) for name in _VERSION_KEYS if known.get(name) is not None),
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def without_secrets(text: str) -> str:
    """``text`` in one line, without parts of URLs that may be a password or a signature."""
    text = re.sub(r"(\w+://)[^\s/@'\"]*@", r"\1", " ".join(text.split()))
    return re.sub(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)[:300]
