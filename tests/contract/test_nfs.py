"""NFS without a mount, against a real server: the contract of storages, what NFS does in its own
way, and a server that goes away.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from iobench.base.errors import StorageError, TargetRefusedError, UsageError
from iobench.base.safety import Removal, check_target
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.data.generator.cleaner import clean, discard
from iobench.serve.weights import WEIGHTS
from iobench.storage import open_storage
from iobench.storage.base import Storage
from iobench.storage.nfs import context
from iobench.storage.nfs import write as nfs_write
from iobench.storage.nfs.storage import NfsStorage
from iobench.testing.storage import StorageContract, content, put, read
from tests.checkpoints import save
from tests.datasets import generated
from tests.processes import descriptors
from tests.servers.nfs import NfsServer, ganesha_v4, nfs_server, rclone_nfs
from tests.weights import tiny

__all__ = ["nfs_server"]

_numbers = itertools.count()


def emptied(storage: Any) -> None:
    for entry in list(storage.list()):
        storage.delete(entry.key)
    storage.close()


@pytest.fixture
def root(nfs_server: NfsServer) -> Path:
    """A directory of the export that is not there yet."""
    return nfs_server.root / f"t{next(_numbers)}"


@pytest.fixture
def nfs(nfs_server: NfsServer, root: Path) -> Iterator[Any]:
    storage = open_storage(nfs_server.url(root.name))
    yield storage
    emptied(storage)


class TestNfs(StorageContract):
    @pytest.fixture
    def storage(self, nfs: Storage) -> Storage:
        return nfs


def test_the_fingerprint_says_what_was_granted(nfs: Any, nfs_server: NfsServer) -> None:
    facts = nfs.facts()
    assert (facts["version"], facts["server"], facts["mounted"], facts["page_cache"]) == (
        3,
        "127.0.0.1",
        "/",
        False,
    )
    assert facts["rsize"] >= 4096
    assert facts["wsize"] >= 4096
    assert facts["library"].startswith("libnfs.so")
    assert f"nfsport={nfs_server.port}" in facts["url"]


def test_a_file_is_opened_without_being_read(nfs: Any) -> None:
    put(nfs, "a/b.bin", content(1000))
    nfs.open_and_close("a/b.bin")
    with pytest.raises(StorageError):
        nfs.open_and_close("a/missing.bin")


def test_another_client_sees_plain_files(nfs: Any, root: Path) -> None:
    put(nfs, "a/b/c.bin", content(3_000_001))
    assert (root / "a/b/c.bin").read_bytes() == content(3_000_001)
    assert [path.name for path in root.rglob("*.part")] == []


def test_a_directory_below_an_export_is_a_root(nfs: Any, nfs_server: NfsServer, root: Path) -> None:
    put(nfs, "deep/er/x")
    inner = open_storage(nfs_server.url(f"{root.name}/deep"))
    assert [entry.key for entry in inner.list()] == ["er/x"]
    assert (
        inner.facts()["mounted"] == f"/{root.name}/deep"
    )  # the server lets it be mounted by itself
    inner.close()


def test_what_a_killed_writer_left_is_begun_again(nfs: Any, root: Path) -> None:
    writing = nfs.create("x")
    writing.__enter__().write(content(3 << 20))
    assert (root / "x").exists() is False
    assert [entry.key for entry in nfs.list()] == ["x.part"]
    put(nfs, "x", b"whole")
    assert read(nfs, "x", 0, 100) == b"whole"
    with pytest.raises(StorageError):  # and the first, if it lives after all, publishes nothing
        writing.__exit__(None, None, None)
    assert read(nfs, "x", 0, 100) == b"whole"


def test_a_file_that_was_replaced_is_read_anew(nfs: Any, nfs_server: NfsServer, root: Path) -> None:
    """The handle of the first one is still open."""
    put(nfs, "x", b"first")
    assert read(nfs, "x", 0, 100) == b"first"
    other: Any = open_storage(nfs_server.url(root.name))
    other.delete("x")
    put(other, "x", b"another")
    assert read(nfs, "x", 0, 100) == b"another"
    other.replace("x", b"the third")
    other.close()
    assert read(nfs, "x", 0, 100) == b"the third"


def test_a_file_that_is_replaced_again_and_again_is_read(
    nfs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses a read of each one that is gone, and at last one that it can't read."""
    put(nfs, "x", b"first")
    pread, left = context.Context.pread, 3

    def replaced(nfs: Any, handle: int, *where: int) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EIO, "stale")
        return pread(nfs, handle, *where)

    def replaced_later(nfs: Any, handle: int, offset: int, address: int, count: int) -> int:
        """Two bytes of a file were read before another one took its name."""
        match next(steps, ""):
            case "read":
                ctypes.memmove(address, b"of", 2)
                return 2
            case "gone":
                raise OSError(errno.EIO, "stale")
        return pread(nfs, handle, offset, address, count)

    monkeypatch.setattr(context.Context, "pread", replaced)
    assert read(nfs, "x", 0, 100) == b"first"
    left = 4
    with pytest.raises(StorageError, match="refused to read it"):
        read(nfs, "x", 0, 100)
    steps = iter(["read", "gone"])
    monkeypatch.setattr(context.Context, "pread", replaced_later)
    assert read(nfs, "x", 0, 100) == b"first"


@pytest.mark.parametrize("step", ["generate", "clean"])
def test_weights_are_removed_after_an_interruption(
    nfs: Any, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Within the first file, which stays as it is after ``kill -9``."""
    commit, delete = nfs_write.NfsSink.commit, NfsStorage.delete_if

    def interrupted_commit(self: Any) -> None:
        if ".safetensors" in self._path:
            raise KeyboardInterrupt
        commit(self)

    def interrupted_delete(self: Any, *arguments: Any) -> None:
        delete(self, *arguments)
        raise KeyboardInterrupt

    def clean_weights() -> Removal:
        return WEIGHTS.clean_alone(nfs, WEIGHTS.clean)

    if step == "clean":
        tiny(nfs)
    with monkeypatch.context() as patched:
        patched.setattr(nfs_write.NfsSink, "abort", lambda sink: None)
        patched.setattr(nfs_write.NfsSink, "commit", interrupted_commit)
        if step == "clean":
            patched.setattr(NfsStorage, "delete_if", interrupted_delete)
        with pytest.raises(KeyboardInterrupt):
            clean_weights() if step == "clean" else tiny(nfs)
    assert len(names(root)) > 1
    assert clean_weights().root_removed
    assert not root.exists()


def test_what_the_server_refuses_is_one_line_with_the_key(nfs: Any) -> None:
    put(nfs, "folder/file")
    memory = memoryview(bytearray(10))
    refused = {
        "folder": lambda: nfs.read_into("folder", 0, memory),
        "folder/file/below": lambda: nfs.read_into("folder/file/below", 0, memory),
        "folder/file/beneath": lambda: put(nfs, "folder/file/beneath"),
        "gone": lambda: nfs.read_into("gone", 0, memory, once=True),
    }
    for key, call in refused.items():
        with pytest.raises(StorageError) as caught:
            call()
        assert f"/{key}:" in str(caught.value)
    assert nfs.retried().retries == 0  # an answer is not asked for again until the time-out


def test_connections_are_bounded_and_closed(nfs: Any) -> None:
    put(nfs, "x", content(100_000))
    nfs.close()
    before = descriptors()
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        for _ in range(20):
            assert read(nfs, "x", 0, 100_000) == content(100_000)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(descriptors() - before) <= 8
    nfs.close()
    assert descriptors() <= before


def test_more_files_than_handles(nfs: Any) -> None:
    for number in range(100):
        put(nfs, f"k{number}", str(number).encode())
    for _ in range(2):
        for number in range(100):
            assert read(nfs, f"k{number}", 0, 9) == str(number).encode()


def test_the_root_of_a_server_is_no_target(nfs_server: NfsServer, nfs: Any) -> None:
    nfs.check_target()
    with pytest.raises(TargetRefusedError, match="root of the server"):
        open_storage(nfs_server.url()).check_target()  # type: ignore[attr-defined]
    with pytest.raises(TargetRefusedError):
        check_target("/")  # as on a local disk


def test_version_4_is_read_only_and_says_so(nfs_server: NfsServer) -> None:
    storage = open_storage(nfs_server.url("x", version=4))
    with pytest.raises(StorageError, match="can't write with NFS version 4"), storage.create("y"):
        pass


def test_a_missing_library_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context.shared_object.cache_clear()
    monkeypatch.setattr(context, "SONAMES", ("libnfs-is-not-here.so.1",))
    try:
        with pytest.raises(UsageError, match="apt-get install libnfs13"):
            open_storage("nfs://filer/vol")
    finally:
        context.shared_object.cache_clear()


def test_a_url_says_it_all() -> None:
    storage = NfsStorage("nfs://filer:2050/vol/set%201/", {"timeout": "3s", "uid": "12"})
    assert storage.url == "nfs://filer/vol/set 1?version=3&nfsport=2050&timeout=3s&uid=12"
    assert storage.connections.timeout_s == 3
    assert open_storage(storage.url).url == storage.url


# Folders that became empty


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def make_folder(storage: Any, key: str) -> None:
    """By the protocol: the server takes no notice of what is changed behind it."""
    storage.connections.ask(
        lambda connection: connection.mkdir(storage.connections.path_of(key)), "make", key
    )


@pytest.mark.parametrize("wrapper", ["", "throttled+"])
def test_a_dataset_goes_with_its_folders(
    nfs: Any, nfs_server: NfsServer, root: Path, wrapper: str
) -> None:
    url = nfs_server.url(root.name)
    for foreign, left in (
        ([], []),
        (["data/notes", "mine", "mine/000000"], ["data", "data/notes", "mine", "mine/000000"]),
        (["data/000000/mine"], ["data", "data/000000", "data/000000/mine"]),
    ):
        generated(nfs, format="npz", content="npz", samples=5, sample_size={"mean": 600})
        assert {"data", "data/000000", "manifest.json"} < set(names(root))
        assert not (root / ".iobench-journal").exists()
        for folder in foreign:
            make_folder(nfs, folder)
        before = names(root)
        assert clean(wrapper + url, dry_run=True).files == 5 + 4
        assert names(root) == before
        report = clean(wrapper + url)
        assert (report.files, report.foreign, report.root_removed) == (5 + 4, [], not foreign)
        assert root.exists() == bool(foreign)
        assert not foreign or names(root) == left
        nfs.remove_empty(lambda name: True)
        assert not foreign or nfs.remove_root()


def test_a_root_that_was_there_stays(nfs: Any, nfs_server: NfsServer, root: Path) -> None:
    open_storage(nfs_server.url()).replace(f"{root.name}/x", b"")
    nfs.delete("x")
    generated(nfs)
    assert not clean(nfs_server.url(root.name)).root_removed
    assert names(root) == []


def test_a_dataset_of_a_check_goes_with_its_own_folder(nfs_server: NfsServer) -> None:
    name = f"checks/iobench-check-{next(_numbers)}"
    url = nfs_server.url(name)
    generated(open_storage(url), samples=3, sample_size={"mean": 600})
    assert (nfs_server.root / name).is_dir()
    discard("throttled+" + url)
    assert not (nfs_server.root / name).exists()
    assert (nfs_server.root / "checks").is_dir()


def test_checkpoints_go_with_their_folders(nfs: Any, root: Path) -> None:
    checkpoints = CheckpointRoot(nfs)
    checkpoints.claim()
    save("torch", checkpoints, 1, {"x": torch.ones(3)})
    save("torch", checkpoints, 2, {"x": torch.ones(3)})
    checkpoints.remove(checkpoints.step(1))
    assert [path.name for path in root.glob("step-*")] == ["step-00000002"]
    make_folder(nfs, "step-00000003")  # of a save that failed before its first file
    make_folder(nfs, "mine")
    checkpoints.clean()
    assert names(root) == ["mine"]


def test_only_empty_folders_go(nfs: Any, root: Path) -> None:
    put(nfs, "a/b/c/file")
    make_folder(nfs, "a/b/empty")
    make_folder(nfs, "a/b/empty/deep")
    nfs.remove_empty(lambda name: True, "a/b")
    assert names(root) == ["a", "a/b", "a/b/c", "a/b/c/file"]
    nfs.delete("a/b/c/file")
    nfs.remove_empty(lambda name: name != "a/b", "")
    assert names(root) == ["a", "a/b"]
    nfs.remove_empty(lambda name: True, "absent")
    nfs.remove_empty(lambda name: True)
    assert names(root) == []
    assert root.is_dir()


# A server that goes away


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[NfsServer]:
    """A server that the test may end."""
    with rclone_nfs(tmp_path / "server") as server:
        yield server


def failure(call: Callable[[], Any]) -> str:
    """The one line of the error."""
    with pytest.raises(StorageError) as caught:
        call()
    return str(caught.value)


def test_a_server_that_is_gone_for_good_is_one_line_in_time(mortal: NfsServer) -> None:
    storage = open_storage(mortal.url("d", timeout="3s"))
    put(storage, "x")
    assert read(storage, "x", 0, 4) == b"data"
    mortal.stop()
    for call in (
        lambda: read(storage, "x", 0, 4),
        lambda: storage.size("x"),
        lambda: list(storage.list()),
        lambda: storage.delete("x"),
        lambda: put(storage, "y"),
    ):
        assert "no answer from the NFS server" in failure(call)
    storage.close()


def test_a_server_that_starts_again_is_asked_again_and_counted(mortal: NfsServer) -> None:
    storage: Any = open_storage(mortal.url("d", timeout="20s"))
    put(storage, "x", content(100_000))
    assert read(storage, "x", 0, 100_000) == content(100_000)
    assert storage.retried().retries == 0
    mortal.stop()
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(read(storage, "x", 0, 100_000)))
    reading.start()
    while not storage.retried().retries and reading.is_alive():
        time.sleep(0.01)
    mortal.restart()  # in this thread: the server ends with the thread that started it
    reading.join()
    assert found == [content(100_000)]
    assert storage.retried().retries >= 1
    storage.close()


def test_a_write_that_loses_its_server_fails_and_leaves_no_object(mortal: NfsServer) -> None:
    storage = open_storage(mortal.url("d", timeout="3s"))
    with pytest.raises(StorageError, match="no answer"), storage.create("x") as sink:  # noqa: PT012
        sink.write(content(5 << 20))
        mortal.stop()
        sink.write(content(5 << 20))
    assert not (mortal.root / "d/x").exists()
    storage.close()


def test_a_write_that_finds_no_connection_is_one_line(
    mortal: NfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its first question and its first byte the server ends, and another thread has the
    connection that was there.
    """
    storage = open_storage(mortal.url("d", timeout="3s"))
    put(storage, "x")
    prepare = nfs_write._prepare

    def prepare_and_lose(nfs: Any, *about: Any) -> None:
        prepare(nfs, *about)
        nfs.spoiled = True  # it is not kept
        mortal.stop()

    monkeypatch.setattr(nfs_write, "_prepare", prepare_and_lose)
    line = failure(lambda: put(storage, "y"))
    assert "cannot create" in line
    assert "no answer from the NFS server" in line
    storage.close()


def test_nobody_at_the_port_and_no_such_host_are_told_at_once(mortal: NfsServer) -> None:
    mortal.stop()
    assert "no NFS server was reached" in failure(lambda: open_storage(mortal.url("d")).facts())
    nowhere = open_storage("nfs://no-such-host.invalid/x")
    assert "could not be resolved" in failure(lambda: nowhere.size("y"))


# Version 4, where a server for it is installed


def test_version_4_reads(tmp_path: Path) -> None:
    with ganesha_v4(tmp_path / "server") as server:
        (server.root / "d").mkdir()
        (server.root / "x").write_bytes(content(3_000_001))
        (server.root / "d/y").write_bytes(b"data")
        storage: Any = open_storage(server.url("export", version=4))
        assert (storage.facts()["version"], storage.facts()["mounted"]) == (4, "/export")
        assert [(entry.key, entry.size) for entry in storage.list()] == [
            ("d/y", 4),
            ("x", 3_000_001),
        ]
        assert set(storage.versions()) == {"d/y", "x"}
        assert read(storage, "x", 0, 4_000_000) == content(3_000_001)
        # libnfs 4.0.0 makes a server repeat its answer after a failed OPEN: each failure must be
        # the key's own.
        for key, reason in (
            ("no", "No such file"),
            ("d", "Is a directory"),
            ("no", "No such file"),
            ("d", "Is a directory"),
        ):
            with pytest.raises(StorageError, match=reason):
                read(storage, key, 0, 1)
            assert read(storage, "d/y", 0, 9) == b"data"
        storage.close()


def test_version_4_on_several_connections_at_a_time(tmp_path: Path) -> None:
    """To the server, each connection is a client of its own, not one that was restarted."""
    with ganesha_v4(tmp_path / "server") as server:
        for number in range(40):
            (server.root / str(number)).write_bytes(content(1000 + number))
        storage: Any = open_storage(server.url("export", version=4))
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda n: read(storage, str(n), 0, 2000), range(40)))
        assert found == [content(1000 + number) for number in range(40)]
