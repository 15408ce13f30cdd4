"""No key and no link leads out of a storage's root, and nothing but a regular file is opened."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base import beneath
from iobench.base.beneath import key_problem
from iobench.base.errors import IobenchError, StorageError
from iobench.runner.third_party import _copy
from iobench.storage import open_storage
from iobench.storage.base import Cached, Parallel, Replacing, Storage, Versioned
from iobench.storage.local.mapped import MappedStorage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from tests.security.hostile import make_socket
from tests.servers.nfs import NfsServer, nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["nfs_server", "rclone_s3", "s3_environment"]

HOSTILE = [
    "",
    "/",
    ".",
    "..",
    "../victim",
    "a/../../victim",
    "a/..",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "/etc/passwd",
    "//etc/passwd",
    "../root/a",
    "a\0b",
    "\0",
    "\ud800",
]
SECRET = b"not for everybody"


class Place:
    """A storage, and how to see that a neighbour of its root is as it was."""

    def __init__(self, storage: Any, look: Callable[[], object]) -> None:
        self.storage = storage
        self.look = look
        self.before = look()


def in_memory(memory: Any) -> dict[str, bytes]:
    return {path: file.getvalue() for path, file in memory.store.items()}


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture(
    params=["local", "direct", "mapped", "throttled", "faulty", "local://", "memory", "fsspec"]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "b").write_bytes(b"x" * 5000)
    (tmp_path / "victim").write_bytes(SECRET)
    if request.param == "memory":
        storage: Any = MemoryStorage(objects={"a/b": memoryview(b"x")})
        return Place(storage, lambda: sorted(storage.list()))
    if request.param == "fsspec":
        memory = fsspec.filesystem("memory")
        memory.store.clear()
        memory.pipe({"/top/victim": SECRET, "/top/root/a/b": b"x"})
        return Place(open_storage("memory://top/root"), lambda: in_memory(memory))
    storage = {
        "local": lambda: LocalStorage(root),
        "direct": lambda: LocalStorage(root, direct=True),
        "mapped": lambda: MappedStorage(root),
        "throttled": lambda: open_storage(f"throttled+{root}?latency=1us"),
        "faulty": lambda: open_storage(f"faulty+{root}?fail_at=99"),
        "local://": lambda: open_storage(f"local://{root}"),
    }[request.param]()
    return Place(storage, lambda: _files(tmp_path))


def create(storage: Storage, key: str, **more: Any) -> None:
    with storage.create(key, **more) as sink:
        sink.write(b"planted")


def create_parallel(storage: Any, key: str) -> None:
    with storage.create_parallel(key, size=4, block_size=4096) as sink:
        sink.write_at(0, memoryview(b"plan"))


def refused(storage: Any, key: str) -> Iterator[Callable[[], object]]:
    """Every operation that takes a key."""
    memory = memoryview(bytearray(4096))
    yield lambda: storage.read_into(key, 0, memory)
    yield lambda: storage.read_into(key, 0, memory, once=True)
    yield lambda: storage.size(key)
    yield lambda: storage.delete(key)
    yield lambda: create(storage, key)
    yield lambda: create(storage, key, durable=False)
    yield lambda: create(storage, key, size_hint=9 << 20)
    if isinstance(storage, Parallel):
        yield lambda: create_parallel(storage, key)
    if isinstance(storage, Cached):
        yield lambda: storage.evict([key])
        yield lambda: storage.residency([key])
    if hasattr(storage, "local_path"):
        yield lambda: storage.local_path(key)
    if not key.startswith("/") and key:  # a folder's name begins at the root, with a slash or not
        yield lambda: list(storage.list(key))
        if isinstance(storage, Versioned):
            yield lambda: storage.versions(key)


def check_refused(storage: Any, key: str) -> None:
    for call in refused(storage, key):
        with pytest.raises(StorageError) as caught:
            call()
        assert "\0" not in str(caught.value)
        assert SECRET.decode() not in str(caught.value)
    if isinstance(storage, Replacing):
        for only_new in (False, True):
            with pytest.raises(StorageError):
                storage.replace(key, b"overwritten", only_new=only_new)
    if hasattr(storage, "supports_direct"):
        assert storage.supports_direct(key) is False


@pytest.mark.parametrize("key", [key for key in HOSTILE if key not in ("a/", "/")])
def test_no_key_leads_out(place: Place, key: str) -> None:
    check_refused(place.storage, key)
    assert place.storage.size("a/b")  # its folder is known now, and need not be looked at again
    check_refused(place.storage, key)
    assert place.look() == place.before


def test_a_folder_is_no_object(place: Place) -> None:
    for key in ("a/", "/"):
        with pytest.raises(StorageError):
            place.storage.size(key)
        with pytest.raises(StorageError):
            place.storage.read_into(key, 0, memoryview(bytearray(10)))
        with pytest.raises(StorageError):
            create(place.storage, key)
    assert place.look() == place.before


@pytest.mark.parametrize(
    "key", ["%2e%2e/victim", "a/%2E%2E/%2E%2E/victim", "..\\victim", "a%2f..%2f.."]
)
def test_no_spelling_leads_out_either(tmp_path: Path, key: str) -> None:
    """Web servers undo percent signs, Windows servers part names at backslashes."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/top/victim": SECRET})
    check_refused(open_storage("memory://top/root"), key)
    assert in_memory(memory) == {"/top/victim": SECRET}


@pytest.mark.usefixtures("s3_environment")
def test_no_key_leads_out_of_a_prefix(rclone_s3: S3Server, tmp_path: Path) -> None:
    """With each client, since each quotes names in its own way."""
    bucket = rclone_s3.client()
    neighbour = f"{tmp_path.name}/victim"
    for client in ("obstore", "boto3", "s3fs"):
        storage: Any = open_storage(rclone_s3.url(f"{tmp_path.name}/{client}/root", client=client))
        create(storage, "a/b")
        outside = open_storage(rclone_s3.url(f"{tmp_path.name}/{client}"))
        create(outside, "victim")
        for key in [*HOSTILE, "a\nb"]:
            if key not in ("a/", "/"):
                check_refused(storage, key)
        names = {entry.key: entry.size for entry in outside.list()}
        assert names == {"root/a/b": 7, "victim": 7}
    assert "Contents" not in bucket.list_objects_v2(Bucket="iobench-tests", Prefix=neighbour)


def test_no_key_leads_out_of_an_export(nfs_server: NfsServer, tmp_path: Path) -> None:
    top = nfs_server.root / tmp_path.name
    (top / "root" / "a").mkdir(parents=True)
    (top / "root" / "a" / "b").write_bytes(b"x")
    (top / "victim").write_bytes(SECRET)
    storage: Any = open_storage(nfs_server.url(f"{tmp_path.name}/root"))
    for key in HOSTILE:
        if key not in ("a/", "/"):
            check_refused(storage, key)
    assert _files(top) == {"root/a/b": b"x", "victim": SECRET}


@given(st.text(alphabet="./a\0\\%2e\ud800", max_size=12))
def test_a_key_that_is_taken_stays_below(key: str) -> None:
    """Whatever it is made of: joined with the root it is a path below it, by Python's own rules."""
    if not key_problem(key):
        assert os.path.normpath(f"/root/{key}") == f"/root/{key}"


# Links, and what is no file


@pytest.fixture(params=["openat2", "realpath"])
def local(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalStorage:
    """With the kernel's check, and without it, as on kernels before 5.6."""
    if request.param == "realpath":

        def missing(path: str, flags: int, *, dir_fd: int) -> int:
            raise OSError(38, "Function not implemented", path)

        monkeypatch.setattr(beneath, "openat2", missing)
    root = tmp_path / "root"
    (root / "data" / "0").mkdir(parents=True)
    (root / "data" / "0" / "x").write_bytes(b"inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(SECRET)
    return LocalStorage(root)


LINKS_OUT: dict[str, tuple[str, str, str]] = {
    # name of the link below the root, what it points to ({} is the folder above), the key
    "a file": ("data/0/link", "{}/outside/x", "data/0/link"),
    "a file, relative": ("data/0/link", "../../../outside/x", "data/0/link"),
    "a folder": ("data/1", "{}/outside", "data/1/x"),
    "a folder, relative": ("data/1", "../../outside", "data/1/x"),
    "the first folder": ("other", "{}/outside", "other/x"),
    "the folder above": ("up", "..", "up/outside/x"),
    "through the root's own name": ("up", "..", "up/root/../outside/x"),
    "by proc": ("data/0/link", "/proc/self/environ", "data/0/link"),
}


@pytest.mark.parametrize("how", LINKS_OUT)
def test_no_link_leads_out(how: str, local: LocalStorage, tmp_path: Path) -> None:
    name, target, key = LINKS_OUT[how]
    (local.root / name).symlink_to(target.format(tmp_path))
    before = _files(tmp_path)
    memory = memoryview(bytearray(100))
    for storage in (local, MappedStorage(local.root), open_storage(f"local://{local.root}")):
        for call in (
            lambda: storage.read_into(key, 0, memory),  # noqa: B023
            lambda: storage.read_into(key, 0, memory, once=True),  # noqa: B023
            lambda: storage.size(key),  # noqa: B023
        ):
            with pytest.raises(StorageError):
                call()
    for call in (
        lambda: local.local_path(key),
        lambda: local.evict([key]),
        lambda: local.residency([key]),
        lambda: create(local, f"{key}/new"),
        lambda: create(local, f"{key.rpartition('/')[0]}/new" if "link" not in key else key),
    ):
        with pytest.raises(StorageError):
            call()
    assert local.supports_direct(key) is False
    if "link" not in key:  # a link itself may be removed, what lies behind it may not
        with pytest.raises(StorageError):
            local.delete(key)
        with pytest.raises(StorageError):
            list(local.list(key.rpartition("/")[0]))
    assert bytes(memory) == bytes(100)
    assert _files(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "target", "key"),
    [
        ("data/0/link", "x", "data/0/link"),
        ("data/0/link", "../0/x", "data/0/link"),
        ("data/0/link", "{}/root/data/0/x", "data/0/link"),
        ("data/1", "0", "data/1/x"),
        ("data/1", "{}/root/data/0", "data/1/x"),
    ],
)
def test_a_link_that_stays_inside_works(
    name: str, target: str, key: str, local: LocalStorage, tmp_path: Path
) -> None:
    (local.root / name).symlink_to(target.format(tmp_path))
    memory = memoryview(bytearray(6))
    for _ in range(2):
        assert local.read_into(key, 0, memory, once=True) == 6
        assert bytes(memory) == b"inside"
    assert local.size(key) == 6
    assert local.local_path(key).read_bytes() == b"inside"
    local.evict([key])
    assert local.residency([key]).total_bytes == 6


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    """It is the user's word."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to("real")
    storage = LocalStorage(tmp_path / "link")
    assert storage.size("x") == 1
    assert storage.read_into("x", 0, memoryview(bytearray(1))) == 1
    create(storage, "deep/down/y")
    assert (tmp_path / "real" / "deep" / "down" / "y").read_bytes() == b"planted"


def test_what_was_good_and_becomes_a_link_is_not_followed(
    local: LocalStorage, tmp_path: Path
) -> None:
    """A file that is remembered as checked is still never opened through a link."""
    key, memory = "data/0/x", memoryview(bytearray(6))
    assert local.read_into(key, 0, memory, once=True) == 6
    (local.root / key).unlink()
    (local.root / key).symlink_to(tmp_path / "outside" / "x")
    with pytest.raises(StorageError):
        local.read_into(key, 0, memory, once=True)
    assert bytes(memory) == b"inside"


def test_a_folder_that_becomes_a_link_is_not_written_through(
    local: LocalStorage, tmp_path: Path
) -> None:
    """A folder is checked again before something in it is created, replaced, deleted or listed."""
    assert local.read_into("data/0/x", 0, memoryview(bytearray(6)), once=True) == 6
    assert [entry.key for entry in local.list("data/0")] == ["data/0/x"]
    (local.root / "data" / "0").rename(tmp_path / "before")
    (local.root / "data" / "0").symlink_to(tmp_path / "outside")
    before = _files(tmp_path / "outside")
    for work in (
        lambda: local.delete("data/0/x"),
        lambda: create(local, "data/0/new"),
        lambda: create(local, "data/0/new", size_hint=9 << 20),
        lambda: create_parallel(local, "data/0/new"),
        lambda: local.replace("data/0/x", b"planted"),
        lambda: list(local.list("data/0")),
    ):
        with pytest.raises(StorageError):
            work()
    assert _files(tmp_path / "outside") == before


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("make", [os.mkfifo, make_socket, _device, Path.mkdir])
@pytest.mark.parametrize("linked", [False, True])
def test_only_regular_files_are_opened(
    make: Callable[[Path], None], linked: bool, local: LocalStorage
) -> None:
    """A FIFO does not make anybody wait, and a device is not read."""
    key = "data/0/thing"
    if linked:
        make(local.root / "data/0/behind")
        (local.root / key).symlink_to("behind")
    else:
        make(local.root / key)
    memory = memoryview(bytearray(b"\xff" * 100))
    for storage in (local, LocalStorage(local.root, direct=True), MappedStorage(local.root)):
        for call in (
            lambda: storage.read_into(key, 0, memory),  # noqa: B023
            lambda: storage.read_into(key, 0, memory, once=True),  # noqa: B023
            lambda: storage.size(key),  # noqa: B023
            lambda: storage.local_path(key),  # noqa: B023
            lambda: storage.evict([key]),  # noqa: B023
            lambda: storage.residency([key]),  # noqa: B023
        ):
            with pytest.raises(StorageError):
                call()
        assert storage.supports_direct(key) is False
    other = open_storage(f"local://{local.root}")
    for call in (lambda: other.read_into(key, 0, memory), lambda: other.size(key)):
        with pytest.raises(IobenchError):
            call()
    assert bytes(memory) == b"\xff" * 100


def test_a_copy_for_memory_stays_in_its_folder(tmp_path: Path) -> None:
    memory = MemoryStorage(objects={"a": memoryview(b"x")})
    (tmp_path / "copy").mkdir()
    with pytest.raises(StorageError):
        _copy(memory, "../planted", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == [tmp_path / "copy"]


# Descriptors


def test_idle_handles_give_way(tmp_path: Path) -> None:
    """In a child, whose limit no other test sees: two storages, few descriptors, many files."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for number in range(40):
            (tmp_path / name / str(number)).write_bytes(b"%02d" % number)
    child = os.fork()
    if not child:
        os._exit(0 if _reads_at_the_limit(tmp_path) else 1)
    assert os.waitpid(child, 0)[1] == 0


def _reads_at_the_limit(folder: Path) -> bool:
    first = LocalStorage(folder / "one")
    memory = memoryview(bytearray(2))
    for number in range(40):  # all stay open: the limit is another one now
        first.read_into(str(number), 0, memory)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, highest + 2))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    second = LocalStorage(folder / "two")
    return all(
        second.read_into(str(number), 0, memory) == 2 and bytes(memory) == b"%02d" % number
        for number in range(40)
    )
