"""verify tells damage from what could not be read, and never advises to remove what may be good."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import IobenchError
from iobench.cli.main import main
from iobench.data.dataset import load_manifest
from iobench.data.scan.saving import save
from iobench.data.scan.scanner import scan
from iobench.data.verify import MAX_UNREADABLE, verify
from iobench.load.choose import make_reader
from iobench.runner.plan import check_shards
from iobench.settings.workload import ReaderSpec
from iobench.storage import open_storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.faulty import FaultyStorage
from tests.children import in_child
from tests.servers.listener import Listener, listener
from tests.servers.nfs import nfs_server
from tests.servers.s3 import rclone_s3, s3_environment

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
    ("call", "code", "workers"),
    [
        ("open", errno.EMFILE, 0),
        ("open", errno.EACCES, 0),
        ("preadv", errno.EIO, 2),
        ("preadv", errno.ESTALE, 0),
        ("stat", errno.ENFILE, 0),
    ],
)
def test_what_the_kernel_refuses(
    call: str, code: int, workers: int, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
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
    report = verify(LocalStorage(root), manifest, workers=workers)
    assert [unread.shard for unread in report.unreadable] == [victim]
    assert (report.damages, report.samples) == ((), 59)


def test_few_descriptors_are_enough(make_dataset: Any) -> None:
    """Two thousand files, and forty descriptors that are not taken already."""
    manifest, root = make_dataset(samples=2000, sample_size={"mean": 2000})

    def limited() -> bool:
        most = max(map(int, os.listdir("/proc/self/fd"))) + 40
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        return verify(LocalStorage(root), manifest, workers=0).ok

    assert in_child(limited).value


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="iobench-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("closed", ["shard", "folder", "manifest", "marker"])
def test_permissions(closed: str, make_dataset: Any, open_folder: Path) -> None:
    """In a child that is nobody, since nothing is refused to root."""
    _, root = make_dataset()
    data = Path(shutil.copytree(root, open_folder / "d"))
    victim = {
        "shard": shard(data),
        "folder": data / "data" / "000000",
        "manifest": data / "manifest.json",
        "marker": data / ".iobench-dataset",
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
@pytest.mark.parametrize("answer", ["404 Not Found", "403 Forbidden", "503 Slow Down", "nobody"])
def test_a_server_that_knows_nothing(
    answer: str, data: Path, tmp_path: Path, listener: Listener, told: Say
) -> None:
    mine = others(data, tmp_path)
    s3 = f"s3://bucket/x?endpoint={listener.url}&retries=0"
    origins = [s3]
    if answer == "nobody":
        listener.close()
        assert told(s3)[0] == UNREADABLE  # not even the manifest
    elif answer == "404 Not Found":
        nowhere = (str(tmp_path / "nowhere"), "memory://nowhere/x")
        origins += [f"{s3}&client=boto3", f"{listener.url}/x", *nowhere]
    else:
        listener.answer = f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode()
    for origin in origins:
        code, text = told(mine, "--origin", origin, "--workers", 1)
        assert code == UNREADABLE, (origin, text)
        assert "clean" not in text
    assert bool(listener.requests) == (answer != "nobody")


def test_data_of_others_is_theirs(data: Path, tmp_path: Path, told: Say) -> None:
    """The manifest's folder is not what is damaged, and nothing of theirs is to be removed."""
    mine = others(data, tmp_path)
    shard(data).unlink()
    code, text = told(mine, "--origin", data / "data")
    assert code == DAMAGED
    assert "clean" not in text
    assert str(data / "data") in text


# A shard that is missing, shorter or longer


@pytest.mark.parametrize(
    ("url", "change"), [("{}", None), ("{}", -100), ("{}", 100), ("local://{}", None)]
)
def test_a_shard_of_another_size_is_named(url: str, change: int | None, data: Path) -> None:
    """When a run starts, when it is verified, and when it is read."""
    manifest, file = load_manifest(data), shard(data, 13)
    whole, key = file.read_bytes(), str(file.relative_to(data))
    file.unlink()
    if change is not None:
        file.write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    storage = open_storage(url.format(data))
    with pytest.raises(IobenchError, match=key):
        check_shards(manifest, storage)
    report = verify(storage, manifest, workers=0)
    assert {damage.shard for damage in report.damages} == {key}
    assert report.unreadable == ()
    if change is not None and change > 0:
        return  # what follows a sample is none of the reader's business
    reader = make_reader(manifest, storage, ReaderSpec(decode=False))
    with pytest.raises(IobenchError, match=key):
        reader.read(np.array([13]), None)
    reader.close()
