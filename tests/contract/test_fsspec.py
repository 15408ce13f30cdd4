"""Any fsspec URL: the contract over a file system in memory and over one of files, and what a user
gets told.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from iobench.base.errors import (
    MissingObjectError,
    StorageError,
    TargetRefusedError,
    UsageError,
)
from iobench.storage import open_storage
from iobench.storage.base import Cached, Guarded, Storage, Versioned
from iobench.testing.storage import StorageContract, content, put, read
from tests.processes import PATIENCE_S
from tests.servers.nfs import rclone, serve
from tests.servers.process import free_port, missing

_numbers = itertools.count()
SECRET = "canary-8c1f"


@pytest.fixture
def memory() -> Iterator[Any]:
    place = f"bucket/t{next(_numbers)}"
    yield open_storage(f"memory://{place}")
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


class TestMemory(StorageContract):
    @pytest.fixture
    def storage(self, memory: Storage) -> Storage:
        return memory


class TestFiles(StorageContract):
    """fsspec's local files: real folders, one instance for each thread."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(f"local://{tmp_path}/root")


def test_it_says_that_it_is_the_compatibility_path(memory: Any, tmp_path: Path) -> None:
    facts = memory.facts()
    assert (facts["compatibility"], facts["page_cache"], facts["scheme"]) == (True, False, "memory")
    assert facts["client"] == "fsspec.implementations.memory.MemoryFileSystem"
    assert facts["fsspec_version"] == facts["client_version"] == fsspec.__version__
    assert (
        "page_cache" not in open_storage(f"local://{tmp_path}/x").facts()
    )  # files of this host may be cached
    for protocol in (Storage, Guarded, Versioned):
        assert isinstance(memory, protocol)
    assert not isinstance(memory, Cached)


@pytest.mark.parametrize("url", ["memory://bucket", "memory://", "local:///tmp"])
def test_a_bucket_is_no_target(url: str) -> None:
    with pytest.raises(TargetRefusedError):
        open_storage(url).check_target()  # type: ignore[attr-defined]
    open_storage("memory://bucket/prefix").check_target()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("gs://bucket/x", "gcsfs", "[gcs]"),
        ("az://container/x", "adlfs", "[azure]"),
        ("hf://datasets/me/x", "huggingface_hub", "[hf]"),
        ("sftp://host/x", "paramiko", "[sftp]"),
        ("oss://bucket/x", "ossfs", "pip install ossfs"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    # As if it were not installed, whatever this machine has and earlier tests have loaded.
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    monkeypatch.delitem(
        sys.modules["fsspec.registry"]._registry, url.partition(":")[0], raising=False
    )
    with pytest.raises(UsageError, match=package) as caught:
        open_storage(url)
    assert extra in str(caught.value)


def test_a_file_system_that_names_no_package_gives_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(scheme: str) -> None:
        raise ImportError("libtoy.so is missing")

    monkeypatch.setattr(fsspec, "get_filesystem_class", refuse)
    with pytest.raises(UsageError) as caught:
        open_storage("gs://bucket/x")
    assert "libtoy.so is missing" in str(caught.value)
    assert "pip install" not in str(caught.value)


class Leaky(MemoryFileSystem):
    """A client whose errors show what they should not."""

    protocol = "leaky"

    def cat_file(self, path: str, **options: Any) -> bytes:
        raise RuntimeError(f"403 for https://me:{SECRET}@store.example/x?sig={SECRET}&se=1\nmore")


def test_a_clients_error_is_one_line_without_its_secrets() -> None:
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    storage = open_storage("leaky://bucket/t")
    put(storage, "x")
    with pytest.raises(StorageError) as caught:
        read(storage, "x", 0, 4)
    assert (
        str(caught.value)
        == "cannot read leaky://bucket/t/x: RuntimeError: 403 for https://store.example/x more"
    )
    assert caught.value.__suppress_context__  # a traceback does not show the original either
    MemoryFileSystem.store.clear()


class Whole(MemoryFileSystem):
    """A server that ignores ranges."""

    protocol = "whole"

    def cat_file(self, path: str, **options: Any) -> bytes:
        return super().cat_file(path)  # type: ignore[no-any-return]


def test_a_server_without_ranges_is_refused() -> None:
    fsspec.register_implementation("whole", Whole, clobber=True)
    storage = open_storage("whole://bucket/t")
    put(storage, "x", bytes(1000))
    with pytest.raises(StorageError, match="ignores byte ranges"):
        storage.read_into("x", 0, memoryview(bytearray(100)))
    MemoryFileSystem.store.clear()


# A real service behind an asynchronous client


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """(storage, the directory that an HTTP server with ranges shows)."""
    if not importlib.util.find_spec("aiohttp"):
        missing("aiohttp (pip install aiohttp)")
    (tmp_path / "data").mkdir()
    port = free_port()
    command = [
        rclone(),
        "serve",
        "http",
        "--addr",
        f"127.0.0.1:{port}",
        "--config",
        "/dev/null",
        str(tmp_path / "data"),
    ]
    server = serve(command, port, tmp_path / "log")
    try:
        yield open_storage(f"http://127.0.0.1:{port}"), tmp_path / "data"
    finally:
        server.kill()
        server.wait()


def test_ranges_over_http(web: tuple[Any, Path]) -> None:
    storage, folder = web
    (folder / "x").write_bytes(content(300_000))
    (folder / "empty").touch()
    for offset, length in ((0, 300_000), (100, 1000), (299_990, 100), (300_000, 1), (400_000, 10)):
        assert read(storage, "x", offset, length) == content(300_000)[offset : offset + length]
    assert read(storage, "empty", 0, 10) == b""
    assert storage.size("x") == 300_000
    for call in (
        lambda: read(storage, "no", 0, 1),
        lambda: storage.size("no"),
        lambda: storage.create("y").__enter__(),
    ):
        with pytest.raises(StorageError, match=r"no such object|read-only"):
            call()


def test_a_web_server_is_no_target_and_one_that_is_down_no_empty_place() -> None:
    storage: Any = open_storage(f"http://127.0.0.1:{free_port()}/data")
    with pytest.raises(StorageError) as caught:
        storage.size("x")
    assert not isinstance(caught.value, MissingObjectError)
    with pytest.raises(TargetRefusedError, match="read-only"):
        storage.check_target()


def test_parent_and_child_both_read_on(web: tuple[Any, Path]) -> None:
    """What a child drops of an inherited client must not disturb the parent's."""
    storage, folder = web
    (folder / "x").write_bytes(content(50_000))
    assert read(storage, "x", 0, 50_000) == content(50_000)
    child = os.fork()
    if child == 0:
        fine = read(storage, "x", 0, 50_000) == content(50_000)
        gc.collect()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(read(storage, "x", 0, 50_000)), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert found == [content(50_000)] * 4
