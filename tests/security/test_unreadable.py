"""verify tells damage from what could not be read, and never advises to remove what may be good."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import IobenchError
from iobench.cli.main import main
from iobench.data.generator.engine import generate
from iobench.data.scan.saving import save
from iobench.data.scan.scanner import scan
from iobench.data.verify import MAX_UNREADABLE, verify
from iobench.load.choose import make_reader
from iobench.record.manifest import Manifest
from iobench.runner.plan import check_shards
from iobench.settings.workload import ReaderSpec
from iobench.storage import open_storage
from iobench.storage.base import Storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.faulty import FaultyStorage
from tests.processes import PATIENCE_S
from tests.servers.listener import Listener, listener
from tests.servers.nfs import nfs_server
from tests.servers.process import missing
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["listener", "nfs_server", "rclone_s3", "s3_environment"]

DAMAGED, UNREADABLE = 1, 5
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Say:
    """``told(...)``: the exit code of verify, and all that it printed."""

    def call(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["verify", *map(str, words)])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return call


@pytest.fixture
def data(make_dataset: Any, tmp_path: Path) -> Path:
    """60 files of a sample each, to be damaged."""
    return Path(shutil.copytree(make_dataset()[1], tmp_path / "d"))


def shard(root: Path, number: int = 7) -> Path:
    return root / f"data/000000/{number:09d}.bin"


def test_an_error_of_a_device_is_no_damage(data: Path, told: Say) -> None:
    code, text = told(f"faulty+{data}?fail_every=9", "--workers", 1)
    assert code == UNREADABLE
    assert "DAMAGED" not in text
    assert "clean" not in text


def test_damage_wins(data: Path, told: Say) -> None:
    shard(data).write_bytes(b"x" * 20_000)
    code, text = told(f"faulty+{data}?fail_every=20", "--workers", 1)
    assert code == DAMAGED
    assert "DAMAGED" in text
    assert "NOT READ" in text


def test_both_are_in_the_document(data: Path, told: Say) -> None:
    shard(data, 3).unlink()
    code, text = told(f"faulty+{data}?fail_at=30", "--workers", 1, "--json")
    document = json.loads(text)
    assert code == DAMAGED
    assert document["ok"] is False
    assert [damage["shard"] for damage in document["damages"]] == ["data/000000/000000003.bin"]
    assert [unread["shard"] for unread in document["unreadable"]] == ["data/000000/000000030.bin"]
    assert document["samples"] == 58


def test_it_gives_up_in_time(make_dataset: Any) -> None:
    """Each failure may have cost a time-out."""
    manifest, root = make_dataset()
    report = verify(FaultyStorage(LocalStorage(root), fail_every=1), manifest, workers=0)
    assert (len(report.unreadable), report.stopped) == (MAX_UNREADABLE, True)
    assert report.damages == ()


def test_a_read_that_ends_early_is_damage_only_if_the_file_does(make_dataset: Any) -> None:
    manifest, root = make_dataset()
    report = verify(FaultyStorage(LocalStorage(root), short_every=60), manifest, workers=0)
    assert [unread.shard for unread in report.unreadable] == [manifest.key(59)]
    assert report.damages == ()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("open", errno.EMFILE),
        ("open", errno.EACCES),
        ("preadv", errno.EIO),
        ("preadv", errno.ESTALE),
        ("stat", errno.ENFILE),
    ],
)
def test_what_the_kernel_refuses(
    call: str, code: int, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file for which the kernel has no answer, every time that it is asked."""
    manifest, root = make_dataset()
    real, victim = getattr(os, call), manifest.key(7)

    def refuse(what: Any, *arguments: Any, **more: Any) -> Any:
        name = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        if str(name).endswith(victim):
            raise OSError(code, os.strerror(code))
        return real(what, *arguments, **more)

    monkeypatch.setattr(os, call, refuse)
    report = verify(LocalStorage(root), manifest, workers=0)
    assert [unread.shard for unread in report.unreadable] == [victim]
    assert (report.damages, report.samples) == ((), 59)


PRELOADED = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <sys/syscall.h>
static int refused(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return strstr(path, "000000007.bin") != 0;
}
ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int flags) {
  if (refused(fd)) { errno = EIO; return -1; }
  return syscall(SYS_preadv2, fd, v, n, at, 0, flags);
}
ssize_t preadv64v2(int fd, const struct iovec *v, int n, off_t at, int flags) {
  return preadv2(fd, v, n, at, flags);
}
ssize_t preadv(int fd, const struct iovec *v, int n, off_t at) { return preadv2(fd, v, n, at, 0); }
ssize_t preadv64(int fd, const struct iovec *v, int n, off_t at) {
  return preadv2(fd, v, n, at, 0);
}
"""


def test_a_failing_device(data: Path, tmp_path: Path) -> None:
    """EIO out of the C library, in the workers that verify starts."""
    compiler = shutil.which("cc") or missing("a C compiler")
    source, library = tmp_path / "eio.c", tmp_path / "eio.so"
    source.write_text(PRELOADED)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    command = [sys.executable, "-m", "iobench", "verify", str(data)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == UNREADABLE
    assert "000000007.bin: not read" in done.stdout
    assert "clean" not in done.stdout


def with_few_descriptors(words: str) -> subprocess.CompletedProcess[str]:
    """``iobench WORDS`` in a process that has none of the tests' descriptors."""
    return subprocess.run(
        [sys.executable, "-m", "iobench", *words.split()],
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.slow
def test_few_descriptors_are_enough(make_dataset: Any, tmp_path: Path) -> None:
    """2,000 files at a limit of 64 are whole; 200 can be run, calibration included."""
    _, root = make_dataset(samples=2000, sample_size={"mean": 2000})
    ended = with_few_descriptors(f"verify {root}")
    assert (ended.returncode, ended.stdout[:2]) == (0, "ok"), ended
    _, root = make_dataset(samples=200, sample_size={"mean": 8000})
    words = f"run demo --data {root} --results {tmp_path}/results --repeat 1 --calibration 0.1s"
    for setting in ("epochs=1", "reader.decode=false", "loader.workers=1", "accelerator.kind=null"):
        words += f" --set {setting}"
    ended = with_few_descriptors(words)
    assert ended.returncode == 0, ended


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="iobench-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("closed", ["shard", "folder", "manifest"])
def test_permissions(closed: str, make_dataset: Any, open_folder: Path) -> None:
    """In a child that is nobody, since nothing is refused to root."""
    _, root = make_dataset()
    data = Path(shutil.copytree(root, open_folder / "d"))
    victim = {
        "shard": shard(data),
        "folder": data / "data" / "000000",
        "manifest": data / "manifest.json",
    }[closed]
    victim.chmod(0)
    said = open_folder / "said"
    said.touch(mode=0o666)
    said.chmod(0o666)
    child = os.fork()
    if not child:
        out = os.open(said, os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if os.geteuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
        code = main(["verify", str(data)])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == UNREADABLE, said.read_text()
    assert "Remove" not in said.read_text()
    victim.chmod(0o755)


# Other storages


def others(data: Path, tmp_path: Path) -> Path:
    """The manifest of files that somebody else wrote."""
    return save(scan(LocalStorage(data / "data")), tmp_path / "mine.yaml")


def test_a_dataset_without_its_table_is_none(data: Path, told: Say) -> None:
    (data / "samples.arrow").unlink()
    for url in (str(data), f"local://{data}"):
        assert told(url)[0] == DAMAGED


@pytest.mark.usefixtures("s3_environment")
def test_a_server_that_knows_nothing(
    data: Path, tmp_path: Path, listener: Listener, told: Say
) -> None:
    mine = others(data, tmp_path)
    for origin in (
        f"s3://bucket/x?endpoint={listener.url}&retries=0",
        f"s3://bucket/x?endpoint={listener.url}&retries=0&client=boto3",
        f"{listener.url}/x",
        str(tmp_path / "nowhere"),
        "memory://nowhere/x",
    ):
        code, text = told(mine, "--origin", origin, "--workers", 1)
        assert code == UNREADABLE, (origin, text)
        assert "clean" not in text
    assert listener.requests


@pytest.mark.usefixtures("s3_environment")
@pytest.mark.parametrize("status", ["403 Forbidden", "503 Slow Down"])
def test_a_server_that_refuses(
    status: str, data: Path, tmp_path: Path, listener: Listener, told: Say
) -> None:
    listener.answer = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()
    origin = f"s3://bucket/x?endpoint={listener.url}&retries=0"
    code, text = told(others(data, tmp_path), "--origin", origin, "--workers", 1)
    assert code == UNREADABLE, text


@pytest.mark.usefixtures("s3_environment")
def test_a_server_that_is_not_there(
    data: Path, tmp_path: Path, listener: Listener, told: Say
) -> None:
    listener.close()
    origin = f"s3://bucket/x?endpoint={listener.url}&retries=0"
    assert told(others(data, tmp_path), "--origin", origin, "--workers", 1)[0] == UNREADABLE
    assert told(origin)[0] == UNREADABLE  # not even the manifest


def test_data_of_others_is_theirs(data: Path, tmp_path: Path, told: Say) -> None:
    """The manifest's folder is not what is damaged, and nothing of theirs is to be removed."""
    mine = others(data, tmp_path)
    shard(data).unlink()
    code, text = told(mine, "--origin", data / "data")
    assert code == DAMAGED
    assert "clean" not in text
    assert str(data / "data") in text


# A shard that is missing, shorter or longer, wherever it lies


@pytest.fixture
def lies(request: pytest.FixtureRequest, tmp_path: Path, make_dataset: Any) -> tuple[Any, Manifest]:
    """A storage with a dataset of 20 shards, and its manifest."""
    manifest, root = make_dataset(samples=20)
    if request.param in ("local", "direct"):
        target = shutil.copytree(root, tmp_path / "d")
        return LocalStorage(target, direct=request.param == "direct"), manifest
    url = {
        "fsspec": lambda: f"local://{tmp_path}/d",
        "s3": lambda: _s3(request).url(tmp_path.name),
        "nfs": lambda: request.getfixturevalue("nfs_server").url(tmp_path.name),
    }[request.param]()
    storage = open_storage(url)
    generate(manifest.spec, storage, workers=0)
    return storage, manifest


def _s3(request: pytest.FixtureRequest) -> S3Server:
    request.getfixturevalue("s3_environment")
    server: S3Server = request.getfixturevalue("rclone_s3")
    return server


def rewrite(storage: Storage, key: str, change: int | None) -> None:
    """An object without its last bytes, with more of them, or (None) away."""
    content = bytearray(storage.size(key))
    with memoryview(content) as view:
        _read_all(storage, key, view)
    storage.delete(key)
    if change is not None:
        with storage.create(key) as sink:
            sink.write(bytes(content[:change]) if change < 0 else bytes(content) + bytes(change))


def _read_all(storage: Storage, key: str, view: memoryview) -> None:
    plain = LocalStorage(storage.url) if storage.alignment > 1 else storage
    assert plain.read_into(key, 0, view) == len(view)


@pytest.mark.parametrize(
    ("lies", "change"),
    [
        *(("local", None), ("local", -100), ("local", 100), ("direct", -100)),
        ("fsspec", None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("s3", -100), ("nfs", -100), ("nfs", 100))
        ),
    ],
    indirect=["lies"],
)
def test_a_shard_of_another_size_is_named(change: int | None, lies: tuple[Any, Manifest]) -> None:
    """When a run starts, when it is verified, and when it is read."""
    storage, manifest = lies
    key = manifest.key(13)
    rewrite(storage, key, change)
    storage.close()
    with pytest.raises(IobenchError, match=key):
        check_shards(manifest, storage)
    report = verify(storage, manifest, workers=0)
    assert {damage.shard for damage in report.damages} == {key}
    assert report.unreadable == ()
    reader = make_reader(manifest, storage, ReaderSpec(decode=False))
    if change is not None and change > 0:
        return  # what follows a sample is none of the reader's business
    with pytest.raises(IobenchError, match=key):
        reader.read(np.array([13]), None)
    reader.close()
