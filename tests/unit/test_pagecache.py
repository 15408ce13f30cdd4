"""Evicting and measuring agree with what the kernel must do; the reference is the other system
call, or a read that just happened.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from iobench.base import buffers, filesystem, pagecache
from iobench.base.errors import StorageError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    if (
        subprocess.run(
            ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "tmpfs"
    ):
        pytest.skip("tmpfs is page cache: nothing can be evicted")
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_bytes(os.urandom(1_000_001))
    paths[1].write_bytes(os.urandom(3 << 20))
    return paths


def test_written_files_are_resident_and_evicted_files_are_not(files: list[Path]) -> None:
    before = pagecache.residency(files)
    assert before.total_bytes == 1_000_001 + (3 << 20)
    assert (
        before.resident_bytes == before.total_bytes
    )  # the last page counts for the bytes of the file that are in it
    pagecache.evict(files)
    assert pagecache.residency(files).resident_bytes == 0


def test_a_partly_read_file_is_partly_resident(files: list[Path]) -> None:
    pagecache.evict(files)
    fd = os.open(files[1], os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    os.pread(fd, 1 << 20, 0)
    os.close(fd)
    assert 1 << 20 <= pagecache.residency([files[1]]).resident_bytes < 2 << 20


def test_mincore_agrees_with_cachestat(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pagecache.evict(files[1:])
    first = pagecache.residency(files)
    monkeypatch.setattr(pagecache, "_cachestat", lambda fd: None)
    second = pagecache.residency(files)
    assert second.how == "mincore"
    assert (
        (second.resident_bytes, second.total_bytes)
        == (first.resident_bytes, first.total_bytes)
        == (1_000_001, 1_000_001 + (3 << 20))
    )
    assert pagecache.residency(files).resident_bytes == 1_000_001  # looking faulted nothing in


def test_files_of_an_overlay_are_looked_at_by_mincore(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cachestat tells of an overlay's own pages, and it has none: all would seem to be cold."""
    overlay = filesystem.Mount("0:50", "/", "/", "rw", "overlay", "overlay", "rw")
    monkeypatch.setattr(pagecache, "mount_of", lambda path: overlay)
    monkeypatch.setattr(pagecache, "_cachestat", lambda fd: 0)
    found = pagecache.residency(files)
    assert (found.how, found.ratio) == ("mincore", 1.0)


@pytest.mark.parametrize("size", [0, 5000])
def test_a_file_that_becomes_shorter_meanwhile_is_one_clear_line(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(pagecache, "_cachestat", lambda fd: os.truncate(files[0], size))
    with pytest.raises(StorageError, match=str(files[0])):
        pagecache.residency(files)


@pytest.mark.parametrize("call", [pagecache.evict, pagecache.residency])
def test_a_missing_file_is_one_clear_line(
    tmp_path: Path, call: Callable[[list[Path]], object]
) -> None:
    with pytest.raises(StorageError, match=r"gone.*No such file"):
        call([tmp_path / "gone"])


# Memory to read into


@pytest.fixture(params=["best", "4 KiB pages"])
def shared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], buffers.Region]:
    """The best that this host grants, and what remains where it grants nothing."""
    if request.param != "best":

        def refused(nbytes: int) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(buffers, "_tmpfs_huge", refused)
        monkeypatch.setattr(buffers, "_hugetlb", refused)
    return buffers.shared


def test_another_mapping_shows_the_same_bytes(shared: Callable[[int], buffers.Region]) -> None:
    region = shared(5000)
    other = buffers.attach(region.fd, 5000)
    assert other.ctypes.data != region.array.ctypes.data
    assert other.nbytes == 5000
    region.array[4321] = 42
    assert other[4321] == 42
    os.close(region.fd)  # the mappings outlive it
    other[0] = 1
    assert region.array[0] == 1
