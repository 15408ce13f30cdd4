"""An NFS export without a mount: ``nfs://server/export/path?version=3&timeout=15s``, by libnfs.

It works in containers and for users who may not mount, and bypasses this host's page cache.
Options:

- ``version``: 3 (reads and writes) or 4 (reads only: libnfs 4.0.0 can't write).
- ``nfsport`` and ``mountport``: needed where no port mapper runs.
- ``timeout``: how long the server may take to answer (default 15 s; libnfs counts whole seconds).
- ``uid`` and ``gid``: the user and group that the requests name.
- ``traverse=1``: enter exports that lie inside other exports.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar
from urllib.parse import unquote, urlencode, urlsplit

import numpy as np

from ...base.errors import StorageError, TargetRefusedError, UsageError, in_option
from ...base.units import parse_duration
from ..base import Buffer, Entry, Retries, Sink, StorageTraits, check_key, check_prefix
from .connections import Connections
from .context import Context, Lost, NfsEntry, library_version, shared_object
from .write import exists, replacing, writing

TIMEOUT_S = 15.0
_NUMBERS = {
    "version": "version",
    "nfsport": "nfsport",
    "mountport": "mountport",
    "uid": "uid",
    "gid": "gid",
    "traverse": "auto-traverse-mounts",
}
"""Options that are whole numbers, and their names in libnfs."""

_REPLACED = 3
"""A server may refuse a read this many times: the file may have been replaced while it was open."""


class NfsStorage:
    """Files below a directory of an export.

    A missing directory counts as empty, and the first ``create`` makes it.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({*_NUMBERS, "timeout"})
    alignment = 1

    @classmethod
    def open(cls, url: str, *, direct: bool, options: Mapping[str, str]) -> NfsStorage:
        """``direct`` has no effect: this host caches nothing.

        Raises UsageError, also where libnfs is not installed.
        """
        shared_object()
        return cls(url, options)

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self._made_of = (url, dict(options or {}))
        server, port, path = _parse(url)
        given = {
            "version": "3",
            **({"nfsport": str(port)} if port is not None else {}),
            **(options or {}),
        }
        timeout_s = TIMEOUT_S
        if "timeout" in given:
            timeout_s = in_option("timeout", parse_duration, given["timeout"])
        self.version = int(_checked(given)["version"])
        # Nested exports are not entered by default: the search for them needs a procedure that some
        # servers do not have.
        settings = {
            _NUMBERS[name]: value for name, value in {"traverse": "0", **_checked(given)}.items()
        }
        self.connections = Connections(
            server, path, urlencode(settings), timeout_s=max(1.0, timeout_s)
        )
        self.url = f"nfs://{server}{path.rstrip('/')}?{urlencode(given, safe='/:')}"

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": self._made_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])  # type: ignore[misc]

    traits = StorageTraits(page_cache=False)

    def facts(self) -> dict[str, Any]:
        """See Storage; with the transfer sizes that the server grants (rsize, wsize).

        Raises StorageError if the server can't be reached.
        """
        rsize, wsize = self.connections.ask(lambda nfs: (nfs.readmax, nfs.writemax), "reach", "")
        return {
            "scheme": "nfs",
            "url": self.url,
            "server": self.connections.server,
            "mounted": self.connections.mounted,
            "version": self.version,
            "rsize": rsize,
            "wsize": wsize,
            "timeout_s": self.connections.timeout_s,
            "library": library_version(),
            "is_nfs": True,
            "is_network": True,
            "page_cache": self.traits.page_cache,
        }

    # Reading

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        check_key(key)
        want, refused = len(buffer), 0
        if not want:
            return 0
        address = int(np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0])

        def read(nfs: Context) -> int:
            nonlocal refused
            done = 0  # also on a new connection: the name may be another file's by now
            path = self.connections.path_of(key)
            with nfs.opened(path, keep=not once, anew=refused > 0) as handle:
                try:
                    while done < want:
                        count = nfs.pread(
                            handle, offset + done, address + done, min(nfs.readmax, want - done)
                        )
                        if count == 0:
                            break
                        done += count
                except OSError as error:
                    if nfs.is_folder(path):
                        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from error
                    if refused == _REPLACED:
                        raise OSError(errno.EIO, "the server refused to read it") from error
                    refused += 1
                    raise Lost("the file was replaced while it was open") from error
            return done

        return self.connections.ask(read, "read", key)

    def open_and_close(self, key: str) -> None:
        check_key(key)

        def look(nfs: Context) -> None:
            with nfs.opened(self.connections.path_of(key), keep=False):
                pass

        self.connections.ask(look, "open", key)

    def size(self, key: str) -> int:
        check_key(key)
        return self.connections.ask(
            lambda nfs: nfs.stat(self.connections.path_of(key)).size, "stat", key
        )

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Everything in the folder ``prefix`` and below it, sorted by key.

        Symbolic links are listed, not followed. A missing folder counts as empty.
        """
        return (Entry(key, item.size) for key, item in self._walk(check_prefix(prefix)))

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Key -> time of the last change (of contents and of status, ns) and size in bytes."""
        return {
            key: f"{item.mtime_ns}-{item.ctime_ns}-{item.size}"
            for key, item in self._walk(check_prefix(prefix))
        }

    def _walk(self, folder: str) -> Iterator[tuple[str, NfsEntry]]:
        items = self.connections.ask(
            lambda nfs: _items(nfs, self.connections.path_of(folder)), "list", folder
        )
        # A folder sorts as its name with a slash, which is how its keys begin.
        for item in sorted(items, key=lambda item: f"{item.name}/" if item.folder else item.name):
            key = f"{folder}/{item.name}" if folder else item.name
            if item.folder:
                yield from self._walk(key)
            else:
                yield key, item

    # Writing

    def check_target(self) -> None:
        if self.connections.path == "/":
            raise TargetRefusedError(
                f"refusing {self.url}: it is the root of the server",
                remedy="name a directory in an export",
            )

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        """Write ``KEY.part``, commit it to stable storage, then give it its name.

        The object is complete and durable (whatever ``durable`` says), or absent. Nothing is
        overwritten: LINK gives the name, and fails if it exists. On a server without LINK the name
        is checked and the file renamed, so that of two writers that finish at the same moment the
        later one wins. An existing ``.part`` file is taken for a killed writer's and written anew,
        so two concurrent writers of one key are not kept apart: without the lock manager, NFS has
        no lock that ends with its holder. Raises StorageError.
        """
        check_key(key)
        self._require_writing("create", key)
        return writing(self.connections, key)

    @property
    def exclusive_create(self) -> bool | None:
        """Whether the server has LINK, which refuses an existing name."""
        return self.connections.links

    def replace(
        self,
        key: str,
        data: bytes,
        *,
        only_new: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> None:
        """Write and commit a ``.part`` file with a random name, then rename it to the key."""
        self._require_writing("replace", key)
        replacing(self.connections, key, data, only_new=only_new, allowed=allowed)

    def _require_writing(self, verb: str, key: str) -> None:
        if self.version != 3:
            raise StorageError(
                f"cannot {verb} {key} in {self.url}: "
                f"libnfs can't write with NFS version {self.version}",
                remedy="use version=3, or mount the export",
            )

    def flush(self) -> None:
        """Nothing to do: an object is durable as soon as it has its name."""

    def delete(self, key: str) -> None:
        self.delete_if(key, lambda: None)

    def delete_if(self, key: str, allowed: Callable[[], None]) -> None:
        check_key(key)
        attempts = 0

        def unlink(nfs: Context) -> None:
            nonlocal attempts
            attempts += 1
            try:
                nfs.unlink_if(self.connections.path_of(key), allowed)
            except FileNotFoundError:
                if attempts == 1:  # a later attempt may find that the first one succeeded
                    raise

        self.connections.ask(unlink, "delete", key)

    def remove_empty(self, ours: Callable[[str], bool], folder: str = "") -> None:
        """As Folders.remove_empty; symbolic links are not followed.

        A folder that the server refuses to remove stays.
        """
        for item in self.connections.ask(
            lambda nfs: _items(nfs, self.connections.path_of(folder)), "list", folder
        ):
            if item.folder:
                self.remove_empty(ours, f"{folder}/{item.name}" if folder else item.name)

        def remove(nfs: Context) -> None:
            path = self.connections.path_of(folder)
            if _items(nfs, path):
                return
            # Another writer may have just used it, or it is a symbolic link, or it is gone.
            with suppress(OSError):
                nfs.rmdir(path)

        if folder and ours(folder):
            self.connections.ask(remove, "delete", folder)

    def has_root(self) -> bool:
        return self.connections.ask(
            lambda nfs: exists(nfs, self.connections.path_of("")), "stat", ""
        )

    def remove_root(self) -> bool:
        """By its parent: a directory that is mounted can't be removed."""
        place = self.connections
        above, name = posixpath.split(place.path)
        parent = Connections(place.server, above, place.settings, timeout_s=place.timeout_s)

        def remove(nfs: Context) -> bool:
            try:
                nfs.rmdir(parent.path_of(name))
            except OSError:
                return False  # something is in it, or it is gone
            return True

        try:
            return parent.ask(remove, "delete", name)
        finally:
            parent.close()

    def retried(self) -> Retries:
        return Retries(self.connections.retries, 0)

    def close(self) -> None:
        self.connections.close()


def _items(nfs: Context, folder: str) -> list[NfsEntry]:
    try:
        return nfs.items(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _parse(url: str) -> tuple[str, int | None, str]:
    """(server, port, path) of an NFS URL, without its query. Raises UsageError."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    path = unquote(parts.path)
    if (
        parts.scheme != "nfs"
        or not parts.hostname
        or parts.username is not None
        or port == -1
        or "\0" in path
    ):
        raise UsageError(
            f"'{url}' is not an NFS URL", remedy="write it like nfs://server/export/path?version=3"
        )
    server = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return server, port, posixpath.normpath("/" + path.strip("/"))


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """The options that are numbers. Raises UsageError."""
    numbers = {name: given[name] for name in _NUMBERS if name in given}
    for name, text in numbers.items():
        limit = 65535 if name.endswith("port") else 2**31 - 1
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= limit):
            raise UsageError(
                f"nfs storage: {name} is '{text}'",
                remedy=f"use a whole number, for example {name}={3 if name == 'version' else 2049}",
            )
    if numbers.get("version", "3") not in ("3", "4"):
        raise UsageError(
            f"nfs storage: version is '{numbers['version']}'", remedy="use version=3 or version=4"
        )
    return numbers
