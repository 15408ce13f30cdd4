"""The log of a serving run: every record once, after its answer, and as it was asked for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from iobench.base.errors import StorageError
from iobench.judge.figures.requests import Accelerators, joined_log
from iobench.serve import logs
from iobench.serve.logs import Log, Logged, StepLog
from iobench.settings.workload import LogSpec
from iobench.storage.base import Buffer, Sink, StorageTraits
from iobench.storage.local import sinks
from iobench.storage.local.storage import LocalStorage

STEP_S = 0.002


class Objects:
    """A storage whose objects can't grow: what is kept of it is the size of each."""

    url, alignment, traits = "objects://", 1, StorageTraits(page_cache=False)

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Sink]:
        assert durable
        storage, size = self, 0

        class Counted:
            def write(self, data: bytes | Buffer) -> None:
                nonlocal size
                size += len(data)

        yield Counted()
        storage.sizes[key] = size


def make(storage: Any, number: int = 60, **spec: Any) -> Log:
    steps = Accelerators(servers=1, batch_size=4, batch_delay=1e6, step=STEP_S * 1e9)
    spec = {"record": 500, **spec}
    sizes = [500] * number
    return Log(LogSpec(**spec), storage, window=1, sizes=sizes, steps=steps, seconds=0.05)


def written(log: Log, number: int = 60) -> tuple[Logged, np.ndarray]:
    """What became of the records of so many requests, and when their samples were ready."""
    log.begin(time.monotonic_ns())
    ready = []
    for request in range(number):
        ready.append(log.now_ns())
        log.ready(request, ready[-1])
        time.sleep(0.0005)
    return log.end(30), np.array(ready)


COMMITS: dict[str, tuple[dict[str, Any], int, int]] = {
    "each for itself": ({}, 60, 1),
    "groups of ten": ({"commit": "group", "group_records": 10, "group_delay": 60}, 6, 1),
    "a last group": ({"commit": "group", "group_records": 25, "group_delay": 60}, 3, 1),
    "one file": ({"commit": "rotation"}, 1, 1),
    "files of ten": ({"commit": "rotation", "rotate_bytes": 5_000}, 6, 6),
    "files of ten, each record": ({"rotate_bytes": 5_000}, 60, 6),
}


@pytest.mark.parametrize("name", COMMITS)
def test_every_record_is_committed_as_it_was_asked_for(tmp_path: Path, name: str) -> None:
    spec, commits, files = COMMITS[name]
    found, ready = written(make(LocalStorage(tmp_path), **spec))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert (found.commits, found.objects, found.bytes) == (commits, files, 30_000)
    assert (len(sizes), sum(sizes)) == (files, 30_000)
    assert (found.logged_ns - ready >= STEP_S * 1e9).all()


def test_a_record_is_committed_after_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync sees how many records are in the file, and as many are committed afterwards."""
    synced, sync = list[int](), os.fdatasync

    def counted(fd: int) -> None:
        sync(fd)
        synced.append(os.fstat(fd).st_size // 500)

    monkeypatch.setattr(sinks.os, "fdatasync", counted)
    found, _ = written(make(LocalStorage(tmp_path), commit="group", group_records=20))
    assert len(synced) == found.commits
    assert synced[-1] == 60


@pytest.mark.parametrize("name", COMMITS)
def test_where_objects_can_not_grow_each_commit_is_one(name: str) -> None:
    spec, commits, files = COMMITS[name]
    storage = Objects()
    log = make(storage, **spec)
    found, _ = written(log)
    number = max(commits, files)
    assert (found.commits, found.objects, len(storage.sizes)) == (number, number, number)
    assert sum(storage.sizes.values()) == 30_000
    assert (found.logged_ns >= 0).all()
    assert found.at_risk is not None
    assert found.volatile == 0
    if log.spec.waits:  # an answer whose record is committed is on the other machine
        assert found.at_risk == 0


def test_a_group_is_committed_when_its_first_record_has_waited(tmp_path: Path) -> None:
    log = make(LocalStorage(tmp_path), commit="group", group_records=10**6, group_delay=0.005)
    found, ready = written(log)
    assert found.commits > 1
    assert (found.logged_ns - ready >= STEP_S * 1e9).all()


def test_writers_have_files_of_their_own(tmp_path: Path) -> None:
    found, _ = written(make(LocalStorage(tmp_path), writers=3))
    names = {path.name for path in tmp_path.iterdir()}
    assert (found.commits, found.bytes, len(names)) == (60, 30_000, found.objects)
    assert names <= {f"window-00001-{writer:04d}-00000000.log" for writer in range(3)}


def test_records_that_were_not_committed_in_time_are_left_out(tmp_path: Path) -> None:
    class Slow(LocalStorage):
        @contextmanager
        def create(self, *about: Any, **more: Any) -> Iterator[Sink]:
            time.sleep(0.3)
            with super().create(*about, **more) as sink:
                yield sink

    log = make(Slow(tmp_path))
    log.begin(time.monotonic_ns())
    for request in range(60):
        log.ready(request, log.now_ns())
    found = log.end(0.05)
    assert (found.logged_ns < 0).any()


def test_a_window_without_requests_has_an_empty_log(tmp_path: Path) -> None:
    found, _ = written(make(LocalStorage(tmp_path), number=0), 0)
    assert (found.commits, found.bytes, found.at_risk) == (0, 0, 0)
    assert not list(tmp_path.iterdir())


def test_a_file_that_vanishes_is_a_failure(tmp_path: Path) -> None:
    log = make(LocalStorage(tmp_path))
    log.begin(time.monotonic_ns())
    log.ready(0, log.now_ns())
    while log.logged[0] < 0:
        time.sleep(0.001)
    shutil.rmtree(tmp_path)
    log.ready(1, log.now_ns())
    with pytest.raises(StorageError, match="removed while it was written"):
        log.end(30)


DIRTY: dict[str, tuple[dict[str, Any], int | None, tuple[int, int] | None]] = {
    "a sync that does not write": ({}, 40_960, (66, 66)),  # 8 pages of 500 bytes a record
    "clean pages": ({}, 0, (0, 0)),
    "nobody waits": ({"wait": False}, 0, (0, 0)),
    "records that wait for a rotation": ({"commit": "rotation"}, 32_768, (60, 0)),
    "some of them are written": ({"commit": "rotation"}, 4_096, (10, 0)),
    "pages that can not be seen": ({}, None, None),
}


@pytest.mark.parametrize("name", DIRTY)
def test_a_crash_loses_what_is_in_dirty_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec, dirty, expected = DIRTY[name]
    monkeypatch.setattr(logs, "unwritten_bytes", lambda paths: dirty)
    log = make(LocalStorage(tmp_path), **spec)
    log.begin(time.monotonic_ns())
    for request in range(60):
        log.ready(request, log.now_ns())
    while (log.held if "commit" in spec else log.committed) < 60:
        time.sleep(0.001)
    assert log.lost_now() == expected
    log.remove(lambda: None)


# Beside batches


def batches(place: Path | str, *, number: int = 3, **spec: Any) -> Any:
    """The log of so many steps of ten samples, and how many records each step has left."""
    asked = LogSpec(to=str(place), record=500, **spec)
    log, left = StepLog(asked, window=7, record_bytes=500, seconds=0.0), []
    try:
        for _ in range(number):
            log.step(10, lambda: False)
            left.append(log._handed - log._log.committed)
        found, steps = log.end()
        assert 0 < len(steps) <= number
        assert (steps > 0).all()
        return found, left, asked
    finally:
        log.close()


def test_a_batch_waits_until_each_of_its_records_is_durable(tmp_path: Path) -> None:
    found, left, _ = batches(tmp_path)
    assert left == [0, 0, 0]
    assert (found.records, found.left, found.commits, found.objects) == (30, 0, 30, 1)
    assert (found.bytes, found.backlog_end) == (15_000, 0)
    assert 0 < found.backlog_max <= 10
    assert 0 < found.commit_p50_s <= found.commit_p99_s
    assert found.waited_s > 0
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [15_000]


@pytest.mark.parametrize(("commit", "syncs"), [("record", 30), ("group", 3)])
def test_a_batch_waits_for_the_syncs_of_its_records(
    tmp_path: Path, commit: str, syncs: int
) -> None:
    """Each sync takes 5 ms: that of each record, or one of all records of a batch."""
    found, _, _ = batches(
        f"throttled+{tmp_path}?sync=5ms",
        commit=commit,
        wait=True,
        group_records=10,
        group_delay=60,
    )
    assert (found.records, found.commits) == (30, syncs)
    assert found.waited_s >= 0.005 * syncs


def test_a_log_beside_batches_is_complete_at_the_end(tmp_path: Path) -> None:
    found, _, asked = batches(tmp_path, commit="rotation", rotate_bytes=5_000)
    assert (found.records, found.left, found.objects, found.waited_s) == (30, 0, 3, 0)
    both = joined_log([[found], [found]], asked)
    assert (both.records, both.objects, both.keeps_up) == (60, 6, True)
    hourly = 3600 * 15_000 / found.seconds / 5_000
    assert both.objects_per_hour == pytest.approx(2 * hourly)
    epochs = joined_log([[found, found]], asked)
    assert (epochs.records, epochs.seconds) == (60, 2 * found.seconds)
    assert epochs.backlog_max == found.backlog_max
    assert epochs.objects_per_hour == pytest.approx(hourly)
    assert epochs.records_per_s == pytest.approx(30 / found.seconds)


def test_more_records_than_are_known_at_a_time_are_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_NUMBERS", 16)
    found, _, _ = batches(tmp_path, number=5)
    assert (found.records, found.left, found.bytes) == (50, 0, 25_000)


@pytest.mark.parametrize(
    ("left", "grows", "keeps_up"),
    [(1, None, False), (0, True, False), (0, None, None), (0, False, True)],
)
def test_whether_a_log_keeps_up(
    tmp_path: Path, left: int, grows: bool | None, keeps_up: bool | None
) -> None:
    found, _, asked = batches(tmp_path)
    first = found.model_copy(update={"grows": False})
    last = found.model_copy(update={"left": left, "grows": grows})
    assert joined_log([[first], [last]], asked).keeps_up is keeps_up
    assert joined_log([[first, last]], asked).keeps_up is keeps_up


@pytest.mark.parametrize("size", [200, 100_000])
def test_no_storage_can_compress_the_records(tmp_path: Path, size: int) -> None:
    log = Log(
        LogSpec(record=size),
        LocalStorage(tmp_path),
        window=1,
        sizes=[size] * 10_000,
        seconds=1,
    )
    records = b"".join(bytes(log.record(number)) for number in range(2_000_000 // size))
    assert len(zstandard.ZstdCompressor(level=3).compress(records[:2_000_000])) > 1_900_000
