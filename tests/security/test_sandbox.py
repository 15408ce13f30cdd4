"""What the child that parses metadata of others may do, and what becomes of one that does more."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import DatasetError, StorageError
from iobench.data.scan import sandbox
from iobench.data.scan.index import FINDERS
from iobench.data.scan.samples import ShardSamples
from iobench.data.scan.sandbox import Sandbox
from iobench.data.scan.scanner import scan
from iobench.storage.files import ReadWindow
from tests.looking import stored_as

DATA = bytes(range(200))


def window(data: bytes = DATA) -> ReadWindow:
    opened = ReadWindow(stored_as({"a": data}), 0)
    opened.open("a")
    return opened


def one_sample(source: Any, size: int) -> ShardSamples:
    """A sample whose offset is the file's first byte."""
    offset, length = np.array([source.apart(0, 1)[0]]), np.array([size // 2])
    return ShardSamples(offset=offset, stored=length, size=length)


def forever(*_: Any) -> ShardSamples:
    while True:
        time.sleep(0.01)


def beyond(source: Any, size: int) -> ShardSamples:
    source.apart(0, size + 1)
    raise AssertionError


def elsewhere(_: Any, size: int) -> ShardSamples:
    place = np.array([size])
    return ShardSamples(offset=place, stored=place, size=place)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("find", "why"),
    [
        (lambda *_: os.abort(), "the process that read it was killed by signal 6"),
        (lambda *_: np.empty(3 << 30, np.uint8), "it takes too much memory"),
        (forever, "reading it took more than 1 s"),
        (beyond, "the process that read it"),
        (elsewhere, "the process that read it"),
        (lambda *_: {}["x"], "KeyError"),
    ],
    ids=["abort", "memory", "time", "beyond", "elsewhere", "error"],
)
def test_a_file_that_does_harm_is_named_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch, find: Callable[..., ShardSamples], why: str
) -> None:
    def often(source: Any, size: int) -> ShardSamples:
        return find(source, size) if source.apart(1, 2)[0] == 99 else one_sample(source, size)

    child = Sandbox(often)
    bad = bytes([0, 99, *DATA[2:]])
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, "SANDBOX_S", 1.0 if find is forever else 60.0)
            with pytest.raises(DatasetError, match=f"a cannot be read: {why}"):
                child.samples(window(bad), "a", len(bad))
        found = child.samples(window(), "a", len(DATA))
        assert (found.offset.tolist(), found.size.tolist()) == ([0], [100])


@pytest.mark.usefixtures("nothing_left")
def test_an_error_of_the_storage_is_the_storages() -> None:
    opened = window()
    opened.storage = stored_as({})
    child = Sandbox(one_sample)
    with pytest.raises(StorageError):
        child.samples(opened, "a", len(DATA))
    assert len(child.samples(window(), "a", len(DATA))) == 1


def test_the_child_has_no_file_of_its_parents() -> None:
    def look(*_: Any) -> ShardSamples:
        links = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
        others = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
        raise ValueError(f"{set(links)} {len(others)}")

    with socket.socket(), pytest.raises(DatasetError, match=r"\{'/dev/null'\} 2"):
        # Two others: the pipe to the parent, and the folder that is listed.
        Sandbox(look).samples(window(), "a", len(DATA))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_scan_names_the_file_over_which_the_child_died(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    def deadly(source: Any, size: int) -> ShardSamples:
        if size == 7:
            os.abort()
        return one_sample(source, size)

    monkeypatch.setitem(FINDERS, "parquet", deadly)
    files = {"a.parquet": DATA, "b.parquet": bytes(7), "c.parquet": DATA}
    with pytest.raises(DatasetError, match=r"b\.parquet .* signal 6"):
        scan(stored_as(files), workers=workers)
