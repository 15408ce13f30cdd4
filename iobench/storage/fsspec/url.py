"""Any other URL that fsspec knows (``gs://``, ``az://``, ``hf://``, ``sftp://`` ...).

It works wherever fsspec has a file system, but it is not fast: each read is one ``cat_file`` of a
range and one copy, through the service's Python client. A result says so (``compatibility``), so
that the client's speed is not taken for the storage's. There are no options: credentials, endpoints
and accounts come from the scheme's own chain (environment, files, metadata service), never from a
URL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from ...base import safety
from ...base.beneath import LeadsOutError, NoFileError, file_status, resolve
from ...base.errors import (
    IobenchError,
    MissingObjectError,
    StorageError,
    TargetRefusedError,
    UsageError,
)
from ...base.extras import install_command, package_version
from ...base.processes import watch
from ..base import Buffer, Entry, Sink, StorageTraits, check_key, check_prefix
from .fsspec_compat import path_of
from .objects import FsspecSink, begin, discard, publish, replace, size, version_of, without_secrets

T = TypeVar("T")

_EXTRAS = {"gcsfs": "gcs", "adlfs": "azure", "huggingface_hub": "hf", "paramiko": "sftp"}
"""Python package -> the extra of iobench that installs it."""

_NOT_A_PLACE = frozenset(
    {
        "asyncwrapper",
        "async_wrapper",
        "blockcache",
        "cached",
        "dir",
        "filecache",
        "generic",
        "reference",
        "simplecache",
    }
)
"""Wrappers of other file systems: a cache would be measured instead of the storage."""

_HISTORIES = frozenset({"git", "github", "gitlab", "hf"})
"""File systems in which each write is a commit that stays forever."""

_READ_ONLY = frozenset({"data", "git", "github", "http", "https", "libarchive", "tar"})
"""File systems of fsspec that only read."""

_inherited: list[Any] = []
"""In a forked process: the parent's file systems, kept so that they are never finalized here."""


def known(scheme: str) -> bool:
    """Whether fsspec has a file system for the scheme. Its package is not imported."""
    return scheme in schemes()


def schemes() -> frozenset[str]:
    from fsspec.registry import known_implementations, registry

    return frozenset({*known_implementations, *registry} - _NOT_A_PLACE)


class FsspecStorage:
    """Objects below a URL.

    Asynchronous file systems are shared by all threads. Others are only as thread-safe as their
    clients, so each thread has its own.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    alignment = 1

    @classmethod
    def open(cls, url: str, *, direct: bool, options: Mapping[str, str]) -> FsspecStorage:
        """``direct`` has no effect.

        Raises UsageError that names a missing package, and for a URL with a password.
        """
        if "::" in url:
            raise UsageError(
                f"'{url}' chains file systems: a cache would be measured instead of the storage",
                remedy="use the URL of the last one alone",
            )
        if "@" in urlsplit(url).netloc and urlsplit(url).password is not None:
            where = f"{urlsplit(url).scheme}://{urlsplit(url).hostname}"
            raise UsageError(
                f"the URL for {where} contains a password",
                remedy="remove it: give the password to an agent, a key file or the environment",
            )
        scheme = urlsplit(url).scheme
        if not known(scheme):
            raise UsageError(
                f"fsspec has no file system '{scheme}'",
                remedy="write the URL with its own scheme, for example gs://bucket/prefix",
            )
        _file_system_class(scheme)
        return cls(url)

    def __init__(self, url: str) -> None:
        self.url = url if url.endswith("://") else url.rstrip("/")
        self.scheme = urlsplit(url).scheme
        self._reset()
        watch(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._shared: Any = None  # an asynchronous file system
        self._own = threading.local()

    def after_fork(self) -> None:
        # Connections and event loops do not survive a fork. The parent's are kept and never
        # finalized: closing their sockets here would remove them from the epoll set that parent
        # and child share, and the parent would wait forever.
        _inherited.append((self._shared, self._own))
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def facts(self) -> dict[str, Any]:
        import fsspec

        kind = _file_system_class(self.scheme)
        facts = {
            "scheme": self.scheme,
            "url": self.url,
            "compatibility": True,
            "client": f"{kind.__module__}.{kind.__qualname__}",
            "client_version": package_version(kind.__module__.partition(".")[0]),
            "fsspec_version": fsspec.__version__,
            "durable": "as far as the service makes a closed object durable: fsspec has no fsync",
        }
        return facts if self.traits.page_cache else {**facts, "page_cache": False}

    @property
    def traits(self) -> StorageTraits:
        local = self._is_local()
        return StorageTraits(
            page_cache=local,
            keeps_history=self.scheme in _HISTORIES,
            folder=Path(self._ask(self._root, "look at", "") or "/") if local else None,
        )

    def _is_local(self) -> bool:
        from fsspec.implementations.local import LocalFileSystem

        return issubclass(_file_system_class(self.scheme), LocalFileSystem)

    # The file system

    def _fs(self) -> Any:
        """An instance of this process; of this thread, if it is not asynchronous."""
        found = self._shared or getattr(self._own, "fs", None)
        if found is not None:
            return found
        import fsspec

        with self._lock:
            if self._shared is None:
                made = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)[0]
                if not made.async_impl:
                    self._own.fs = made
                    return made
                self._shared = made
            return self._shared

    def _ask(self, work: Callable[[Any], T], verb: str, key: str) -> T:
        try:
            return work(self._fs())
        except Exception as error:  # clients raise exceptions of any type
            raise self._failed(verb, key, error) from None  # the original may show a signed URL

    def _root(self, fs: Any) -> str:
        return path_of(fs, self.url).rstrip("/")

    def _at(self, fs: Any, key: str) -> str:
        """The file system's name of a key. Raises StorageError for a key that leads out."""
        check_key(key, text=True)
        # Web servers decode percent signs, and Windows servers split names at backslashes.
        check_key(unquote(key).replace("\\", "/"), text=True)
        root = self._root(fs)
        if self._is_local():
            resolve(root, key)
        return f"{root}/{key}"

    def _file_at(self, fs: Any, key: str) -> str:
        """``_at`` for an object that is read or measured."""
        path = self._at(fs, key)
        if self._is_local():
            file_status(self._root(fs), key)
        return path

    # Reading

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        want = len(buffer)

        def read(fs: Any) -> int:
            path = self._file_at(fs, key)
            # By default a file object would read ahead, into memory that is not needed.
            more = {} if fs.async_impl else {"cache_type": "none"}
            try:
                data = fs.cat_file(path, start=offset, end=offset + want, **more)
            except Exception:
                if size(fs, path) <= offset:  # object stores refuse a range beyond the end
                    return 0
                raise
            if len(data) > want:
                raise ValueError("the server ignores byte ranges and sends whole objects")
            np.copyto(
                np.frombuffer(buffer, dtype=np.uint8)[: len(data)],
                np.frombuffer(data, dtype=np.uint8),
            )
            return len(data)

        return self._ask(read, "read", key) if want else 0

    def size(self, key: str) -> int:
        return self._ask(lambda fs: size(fs, self._file_at(fs, key)), "stat", key)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Everything in the folder ``prefix`` and below it, sorted by key.

        A missing folder counts as empty.
        """
        return (Entry(key, int(info["size"] or 0)) for key, info in self._found(prefix))

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Key -> a digest of the properties that change with an object.

        They are the ETag, generation, times and size, as far as the file system reports them.
        """
        return {key: version_of(info) for key, info in self._found(prefix)}

    def _found(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        prefix = check_prefix(prefix, text=True)
        local = self._is_local()  # symbolic links are not followed, and no key names a pipe

        def find(fs: Any) -> dict[str, dict[str, Any]]:
            fs.invalidate_cache()
            root = self._root(fs)
            try:
                folder = self._at(fs, prefix) if prefix else root or "/"
                infos: dict[str, dict[str, Any]] = fs.find(folder, detail=True)
            except FileNotFoundError:
                return {}
            return {
                path.removeprefix(root).lstrip("/"): info
                for path, info in infos.items()
                if info.get("type", "file") != "directory"
                and not (local and (info.get("islink") or info.get("type") != "file"))
            }

        found = self._ask(find, "list", prefix)
        return (
            (key, found[key]) for key in sorted(found) if not prefix or key.startswith(f"{prefix}/")
        )

    # Writing

    def check_target(self) -> None:
        if self.scheme in _READ_ONLY:
            raise TargetRefusedError(
                f"refusing {self.url}: {self.scheme} storage is read-only",
                remedy="name a place that can be written",
            )
        root = self._ask(lambda fs: self._root(fs) or "/", "look at", "")
        if self._is_local():
            safety.check_target(Path(root))
        elif "/" not in root.strip("/"):
            raise TargetRefusedError(
                f"refusing {self.url}: it is the root of a bucket",
                remedy=f"name a prefix, for example {self.url}/iobench-data",
            )

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Sink]:
        """Write ``KEY.part``, close it, then move it to the key (object stores copy it).

        An existing key is refused, at the beginning and again before the move. fsspec has no move
        that never overwrites, so of two writers that finish at the same moment the later one wins.
        The object is as durable as the service makes a closed one. Raises StorageError.
        """
        fs, path, file = self._ask(lambda fs: begin(fs, self._at(fs, key)), "create", key)
        try:
            yield FsspecSink(file, lambda error: self._failed("write", key, error))
            self._ask(lambda _: publish(fs, file, path), "write", key)
        except BaseException:
            discard(fs, file, path)
            raise

    @property
    def exclusive_create(self) -> bool:
        """Of local files alone: fsspec has no create that fails where the key exists."""
        return self._is_local()

    def replace(
        self,
        key: str,
        data: bytes,
        *,
        only_new: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> None:
        def put(fs: Any) -> None:
            allowed()
            replace(fs, self._at(fs, key), data, only_new=only_new)

        self._ask(put, "replace", key)

    def flush(self) -> None:
        """Nothing to do: an object is complete as soon as it has its name."""

    def delete(self, key: str) -> None:
        self.delete_if(key, lambda: None)

    def delete_if(self, key: str, allowed: Callable[[], None]) -> None:
        def remove(fs: Any) -> None:
            path = self._at(fs, key)
            size(fs, path)  # some file systems delete a missing object without an error
            allowed()
            fs.rm_file(path)

        self._ask(remove, "delete", key)

    def close(self) -> None:
        self._reset()

    def _failed(self, verb: str, key: str, error: Exception) -> IobenchError:
        if isinstance(error, IobenchError):
            return error
        where = f"{self.url}/{key}" if key else self.url
        if isinstance(error, NoFileError | LeadsOutError):
            kind = MissingObjectError if isinstance(error, NoFileError) else StorageError
            return kind(f"cannot {verb} {where}: {error.strerror}")
        if isinstance(error, FileNotFoundError):
            if cause := _other_cause(error):
                return self._failed(verb, key, cause)
            return MissingObjectError(f"cannot {verb} {where}: no such object")
        if isinstance(error, NotImplementedError):
            return StorageError(
                f"cannot {verb} {where}: {self.scheme} storage is read-only or does not support it"
            )
        remedy = (
            "check the credentials that the client finds (environment, configuration files)"
            if isinstance(error, PermissionError)
            else ""
        )
        text = without_secrets(str(error))
        plain = isinstance(error, OSError | ValueError)
        reason = text if plain and text else f"{type(error).__name__}{': ' if text else ''}{text}"
        return StorageError(f"cannot {verb} {where}: {reason}", remedy=remedy)


def _other_cause(error: FileNotFoundError) -> Exception | None:
    """The failure for which fsspec's HTTP says that there is no such file; None: there is none."""
    cause = error.__cause__
    if not isinstance(cause, Exception) or isinstance(cause, FileNotFoundError):
        return None
    no_answer = isinstance(cause, OSError)
    return cause if no_answer or getattr(cause, "status", 404) not in (404, 410) else None


def _file_system_class(scheme: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name
        if missing is None:
            raise UsageError(
                f"storage '{scheme}' cannot be imported: {' '.join(str(error).split())[:300]}",
                remedy="install what it needs",
            ) from error
        package = str(missing).partition(".")[0]
        extra = _EXTRAS.get(package)
        remedy = f"install it: {install_command(extra) if extra else f'pip install {package}'}"
        raise UsageError(
            f"storage '{scheme}' needs the Python package '{package}'", remedy=remedy
        ) from error
