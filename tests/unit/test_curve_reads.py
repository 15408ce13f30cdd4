"""How a curve is measured: which bytes, each how often, and what the times become."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import StorageError
from iobench.host import fio
from iobench.host.fio import parse
from iobench.host.fio_depth import (
    WINDOWS,
    Depth,
    busy_time,
    of_cycles,
    of_readers,
    read_at_depth,
    window_rates,
)
from iobench.record.curve import StorageCurve
from iobench.runner.budget import Budget
from iobench.runner.curve.curve import CurveMeasurement, Limits
from iobench.runner.curve.places import Place, Places, blocks, samples
from iobench.runner.curve.reader import FioReader, ThreadReader
from iobench.runner.curve.story import second_requests
from iobench.runner.hosts.reads import HaveRead, summed, together
from iobench.storage.base import Buffer, Entry, Retries, Storage, StorageTraits
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.conftest import MakeDataset
from tests.processes import PATIENCE_S

needs_fio = pytest.mark.skipif(not fio.available(), reason="fio is not installed")


class Watched(MemoryStorage):
    """Objects in memory that remember what was read.

    ``most``: reads in flight that it allows. ``together``: so many must begin before one ends.
    """

    def __init__(
        self, objects: Mapping[str, bytes], *, most: int = 1000, together: int = 1
    ) -> None:
        super().__init__(objects={key: memoryview(data) for key, data in objects.items()})
        self.reads: list[tuple[str, int, int]] = []
        self.most, self.together, self.now, self.peak = most, together, 0, 0
        self.cached = False
        self._lock = threading.Condition()

    @property
    def traits(self) -> StorageTraits:  # type: ignore[override]
        return StorageTraits(page_cache=self.cached)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        with self._lock:
            self.now += 1
            self.peak = max(self.peak, self.now)
            self.reads.append((key, offset, len(buffer)))
            full = self.now > self.most
            self._lock.notify_all()
            self._lock.wait_for(lambda: self.peak >= self.together, PATIENCE_S)
        try:
            if full:
                raise StorageError("too many open connections")
            time.sleep(0.001)
            return super().read_into(key, offset, buffer, once=once)
        finally:
            with self._lock:
                self.now -= 1


OBJECTS = {f"{name}": bytes(40_000) for name in range(8)}
ENTRIES = [Entry(key, len(data)) for key, data in OBJECTS.items()]


def measured(
    storage: Storage,
    places: Places,
    folder: Path,
    *,
    most: int = 8,
    point_s: float = 0.02,
    reader: Any = None,
) -> StorageCurve:
    limits = Limits(max_in_flight=most, point_s=point_s, budget=Budget(seconds=600))
    return CurveMeasurement(storage, places, limits, run_dir=folder, reader=reader).run()


# places


@given(
    st.lists(st.integers(0, 50_000), min_size=1, max_size=20),
    st.sampled_from([512, 4096, 10_000]),
    st.sampled_from(["random", "sequential"]),
)
def test_blocks_are_disjoint_and_inside(sizes: list[int], size: int, order: str) -> None:
    entries = [Entry(str(number), each) for number, each in enumerate(sizes)]
    if max(sizes) < size:
        return
    found = blocks(entries, size, order=order, seed=1)  # type: ignore[arg-type]
    taken = found.take(10**6, enough=1)
    assert taken.fresh
    assert len(taken.places) == len(found) == sum(each // size for each in sizes)
    assert len(set(taken.places)) == len(found)
    for key, offset, length, needed in taken.places:
        assert (length, needed, offset % size) == (size, size, 0)
        assert offset + length <= sizes[int(key)]
    again = found.take(1, enough=1)
    assert not again.fresh
    if order == "sequential":
        for one, two in zip(taken.places, taken.places[1:], strict=False):
            assert two.offset == (one.offset + size if one.key == two.key else 0)


@pytest.mark.parametrize("form", ["files", "tar"])
@pytest.mark.parametrize("alignment", [1, 4096])
def test_samples_are_read_as_they_lie(make_dataset: MakeDataset, form: str, alignment: int) -> None:
    manifest, _ = make_dataset(format=form)
    found = samples(manifest, max_bytes=8192, alignment=alignment, seed=1)
    places = found.take(10**6, enough=1).places
    assert found.once is (form == "files" and found.max_bytes > 20_000)
    covered: dict[str, list[tuple[int, int]]] = {}
    for key, offset, length, needed in places:
        assert offset % alignment == length % alignment == 0
        assert 0 < needed <= length <= 8192
        covered.setdefault(key, []).append((offset, offset + needed))
    columns = manifest.samples
    for shard, offset, stored in zip(
        columns["shard"].tolist(),
        columns["offset"].tolist(),
        columns["stored"].tolist(),
        strict=True,
    ):
        parts = covered[manifest.key(shard)]
        for byte in (offset, offset + stored // 2, offset + stored - 1):
            assert any(low <= byte < high for low, high in parts)


# rates


@given(st.integers(1, 64), st.integers(2, 50), st.floats(1e-5, 1.0))
def test_equal_latencies_give_an_exact_rate(readers: int, each: int, latency_s: float) -> None:
    """All readers end together: counting the reads of a window would err by their number."""
    ended = np.repeat(np.arange(1, each + 1) * latency_s, readers)
    cycles, lengths = np.full(len(ended), latency_s), np.full(len(ended), 100.0)
    reads, there, windows, bytes_per_s = of_cycles(ended, cycles, lengths, 0.0, ended.max())
    assert reads == pytest.approx(readers / latency_s)
    assert there == pytest.approx(100 * readers / latency_s)
    assert 1 <= len(windows) == len(bytes_per_s) <= WINDOWS
    assert windows == pytest.approx([reads] * len(windows))


def test_a_stall_is_not_lost() -> None:
    cycles = np.array([0.01] * 50 + [1.0] + [0.01] * 50)
    reads, _, windows, _ = of_cycles(np.cumsum(cycles), cycles, np.ones(101), 0.0, 2.0)
    assert reads == pytest.approx(101 / 2.0)
    assert min(windows) < 11 < 90 < max(windows)


def test_readers_that_are_served_unevenly_have_the_rate_of_all() -> None:
    """One reader gets a read in each millisecond, and the other one, in turn, in each hundredth."""
    ended = np.concatenate([np.arange(1, 1001) / 1000, np.arange(1, 11) / 10 + 0.05])
    cycles = np.concatenate([np.full(1000, 0.001), [0.15], np.full(9, 0.1)])
    reads, _, windows, _ = of_cycles(ended, cycles, np.ones(1010), 0.2, 0.9)
    assert reads == pytest.approx(1010)
    assert windows == pytest.approx([1010] * len(windows))


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("200, 100, 0, 0, 0\n400, 300, 0, 0, 0\n", [50.0, 150.0]),
        # two jobs, of which one has a missing window
        ("200, 100, 0\n400, 100, 0\n600, 100, 0\n203, 100, 0\n601, 100, 0\n", [100.0] * 3),
        ("200, 0, 0\n", []),
    ],
)
def test_windows_of_fios_log(log: str, found: list[float]) -> None:
    assert window_rates(log, 1.0, 0.2, 100.0) == pytest.approx(found)


# threads


def test_threads_keep_that_many_in_flight_and_read_each_place_once() -> None:
    storage = Watched(OBJECTS, together=8)
    places = blocks(ENTRIES, 1000, order="random", seed=1).take(200, enough=1).places
    reader = ThreadReader(storage, max_bytes=1000, once=False)
    found = reader.read(places, in_flight=8, seconds=600, most=0)
    assert (found.reads, found.bytes, found.used) == (200, 200_000, 200)
    assert storage.peak == 8
    assert Counter(storage.reads) == Counter(place[:3] for place in places)
    assert found.latency_p50_s >= 0.001
    assert found.latency_p99_s is not None
    assert found.latency_p999_s is None  # too few reads
    assert found.reads_per_s <= 8 / 0.001
    assert found.bytes_per_s == pytest.approx(1000 * found.reads_per_s)


def test_a_short_time_at_a_great_depth_is_no_faster_than_the_storage() -> None:
    """A storage of 100 reads/s that begins idle: the first read of 32 readers waits for 16 others
    on average, each later one for 31. With the first ones, the rate would be a quarter too large.
    """
    storage = ThrottledStorage(Watched(OBJECTS), iops=100)
    places = blocks(ENTRIES, 1000, order="random", seed=1).take(300, enough=1).places
    found = ThreadReader(storage, max_bytes=1000, once=False).read(
        places, in_flight=32, seconds=0.001, most=0
    )
    assert found.reads >= 2 * 32
    assert found.reads_per_s <= 1.15 * 100  # beside other work, too


MIB = 1 << 20


@pytest.mark.parametrize(
    ("objects", "usual", "bytes_per_s", "size", "order"),
    [
        ([6 * MIB] * 20, 100_000, 1e9, 4 * MIB, "sequential"),
        ([6 * MIB] * 20, 100_000, 20e6, MIB, "sequential"),  # 5 large ones in a second are too few
        ([6 * MIB] * 20, MIB, 20e6, 4096, "random"),  # no larger ones are quick
        ([6 * MIB] * 5, MIB, 1e9, 4096, "random"),  # too few places for larger ones
        ([20_000] * 400, 20_000, 4e6, 4096, "random"),
        ([6 * MIB] * 20, 4096, 1e5, 64 << 10, "sequential"),  # small ones have no choice
        ([8192] * 400, 8192, 4e6, None, None),
    ],
)
def test_the_second_requests_are_of_another_size_and_quick(
    objects: list[int], usual: int, bytes_per_s: float, size: int | None, order: str | None
) -> None:
    entries = [Entry(f"{number}", size) for number, size in enumerate(objects)]
    found = second_requests(entries, usual, bytes_per_s=bytes_per_s, seed=1)
    exists = second_requests(entries, usual, seed=1)
    assert (found is None) == (exists is None) == (size is None)
    if found is not None:
        assert (found.median_bytes, found.order) == (size, order)


# whole curves


def test_points_are_disjoint_as_far_as_the_data_goes(tmp_path: Path) -> None:
    storage = Watched(OBJECTS)
    found = measured(storage, blocks(ENTRIES, 1000, order="random", seed=1), tmp_path, most=64)
    at = 0
    for point in found.points:
        part = storage.reads[at : at + point.reads]
        if point.disjoint:
            assert len({*part}) == len(part)
            assert not {*part} & {*storage.reads[:at]}
        at += point.reads
    assert at == len(storage.reads)
    assert found.points[0].disjoint
    assert bool(found.notes) is not all(point.disjoint for point in found.points)
    assert found.by == "engine"
    assert [point.in_flight for point in found.points] == [
        2**number for number in range(len(found.points))
    ]


def test_reads_through_the_page_cache_repeat_no_byte_within_a_point(tmp_path: Path) -> None:
    storage = Watched(OBJECTS)
    storage.cached = True
    found = measured(
        storage, blocks(ENTRIES, 20_000, order="random", seed=1), tmp_path, point_s=600
    )
    assert {point.reads for point in found.points} == {16}
    at = 0
    for point in found.points:
        part = storage.reads[at : at + point.reads]
        assert len(set(part)) == len(part)
        at += point.reads


class SlowedDown(Watched):
    """A server that asks to slow down from two reads in flight on; the client sends them again."""

    def retried(self) -> Retries:
        return Retries(5, 3) if self.peak > 1 else Retries(0, 0)


def test_a_server_that_asks_to_slow_down_ends_the_curve_there(tmp_path: Path) -> None:
    places = blocks(ENTRIES, 1000, order="random", seed=1)
    found = measured(SlowedDown(OBJECTS), places, tmp_path, point_s=0.2)
    assert [(point.retries, point.throttled) for point in found.points] == [(0, 0), (5, 3)]
    assert "slow down" in found.stopped


# fio


@needs_fio
@pytest.mark.parametrize(("once", "in_flight"), [(False, 4), (True, 1)])
def test_fio_reads_each_place_once(tmp_path: Path, once: bool, in_flight: int) -> None:
    folder = tmp_path / "a b"  # a name of the parent folder that fio's lists can't have
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}").write_bytes(bytes(1 << 16))
    reads = [(folder / str(n % 8), (n // 8) * 8192, 8192) for n in range(64)]
    found = read_at_depth(
        reads,
        engine="psync",
        in_flight=in_flight,
        once=once,
        direct=False,
        seconds=20,
        run_dir=tmp_path / "run",
    )
    assert (found.reads, found.bytes) == (64, 64 * 8192)
    assert found.used == 64
    assert found.latency_p50_s is not None
    assert found.latency_p99_s is None


class Limited:
    """A reader of a storage on which each read takes 1 s, up to ``limit`` reads/s."""

    program, by, hosts = "nothing", "engine", 1
    notes: ClassVar[list[str]] = []

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        rate = min(float(in_flight), self.limit)
        return Depth(
            in_flight=in_flight,
            reads=100,
            bytes=100 * 512,
            seconds=0.0,
            reads_per_s=rate,
            bytes_per_s=512 * rate,
            window_reads_per_s=[rate] * WINDOWS,
            window_bytes_per_s=[512 * rate] * WINDOWS,
            latency_mean_s=None,
            latency_p50_s=None,
            latency_p99_s=None,
            latency_p999_s=None,
            client_cpu_share=None,
            used=0,
        )


def test_a_host_that_reads_on_alone_adds_no_rate() -> None:
    """A link of 12 MB/s: one host gets 9 of it for 1 s, and the other 3, then all for 0.5 s.

    By their own times they had 9 and 12 MB/s.
    """
    ends = {"fast": [1 / 3, 2 / 3, 1.0], "slow": [1.0, 1.25, 1.5]}

    def read(ended: Sequence[float]) -> Depth:
        rows = [
            (thread, end, end - before, 1.5e6)
            for thread in range(2)
            for before, end in itertools.pairwise([0.0, *ended])
        ]
        cycles = np.array(rows)
        reads_per_s, bytes_per_s, windows, there = of_readers(cycles, busy_time(cycles, 2))
        return replace(
            Limited(2.0).read([], in_flight=2, seconds=1.0, most=6),
            reads=6,
            reads_per_s=reads_per_s,
            bytes_per_s=bytes_per_s,
            window_reads_per_s=windows,
            window_bytes_per_s=there,
            cycles=cycles,
        )

    hosts = [read(ended) for ended in ends.values()]
    assert [each.bytes_per_s for each in hosts] == pytest.approx([9e6, 12e6])
    shared = together(hosts)
    assert [each.bytes_per_s for each in shared] == pytest.approx([9e6, 3e6])
    found = summed(shared, in_flight=4, given=12)
    assert (found.bytes_per_s, found.reads_per_s) == pytest.approx((12e6, 8.0))


@needs_fio
def test_what_fio_leaves_out_was_handed_out_and_a_place_is_not_read_twice_unseen(
    tmp_path: Path,
) -> None:
    """With O_DIRECT it reads no file of less than 4 KiB: here every second one."""
    places = [Place(str(number), 0, 8192, 8192) for number in range(8)]
    for place in places:
        (tmp_path / place.key).write_bytes(bytes(8192 >> 2 * (int(place.key) % 2)))
    if not LocalStorage(tmp_path).supports_direct("0"):
        pytest.skip("this file system has no O_DIRECT")
    storage = LocalStorage(tmp_path, direct=True)
    reader = FioReader(storage, direct=True, once=True, run_dir=tmp_path / "run")
    found = reader.read(places, in_flight=1, seconds=PATIENCE_S, most=8)
    assert (found.reads, found.used, found.again) == (8, 7, True)
    found = reader.read(places, in_flight=1, seconds=PATIENCE_S, most=4)
    assert (found.reads, found.used, found.again) == (4, 7, False)


@pytest.mark.parametrize(
    "cycles",
    [np.empty((0, 4)), np.ones((2, 3)), np.ones(4), np.full((2, 4), np.nan), -np.ones((1, 4))],
)
def test_cycles_of_another_host_that_are_none_are_refused(cycles: Any) -> None:
    depth = Limited(2.0).read([], in_flight=1, seconds=1.0, most=1)
    with pytest.raises(ValueError, match="cycle"):
        HaveRead(replace(depth, cycles=cycles), "engine", "threads", ())


@pytest.mark.parametrize(
    ("limit", "found"), [(1000.0, [1, 2, 8, 32, 64, 128, 256]), (1.5, [1, 2, 4, 8])]
)
def test_where_time_is_short_points_at_which_latency_is_the_limit_are_left_out(
    tmp_path: Path, limit: float, found: Sequence[int]
) -> None:
    """Points of 150 s each in 600 s: doublings up to 256 in flight have no time."""
    places, reader = blocks(ENTRIES, 512, order="random", seed=1), Limited(limit)
    curve = measured(Watched(OBJECTS), places, tmp_path, most=256, point_s=150.0, reader=reader)
    assert [point.in_flight for point in curve.points] == found


@needs_fio
@pytest.mark.parametrize(
    ("names", "by"), [("0123", "fio"), (["a b"], "engine")], ids=["by fio", "a name it can't read"]
)
def test_a_curve_of_files_is_measured_by_fio_where_it_can_read_them(
    tmp_path: Path, names: Sequence[str], by: str
) -> None:
    (tmp_path / "data").mkdir()
    for name in names:
        (tmp_path / "data" / name).write_bytes(bytes(1 << 20))
    storage = LocalStorage(tmp_path / "data")
    places = blocks(list(storage.list()), 4096, order="random", seed=1)
    found = measured(storage, places, tmp_path / "run", most=2, point_s=0.05)
    assert found.by == by
    assert [point.in_flight for point in found.points] == [1, 2]
    assert all(point.reads > 0 for point in found.points)
    assert any("without fio" in note for note in found.notes) == (by == "engine")


# fio's output, in all its moods


def fio_json(**changes: Any) -> dict[str, Any]:
    """fio 3.33, two psync jobs with group_reporting, cut down to what matters."""
    job = {
        "jobname": "j0",
        "error": 0,
        "job_runtime": 2000,
        "usr_cpu": 5.0,
        "sys_cpu": 20.0,
        "read": {
            "io_bytes": 2_000_000_000,
            "bw_bytes": 1_998_001_998,
            "runtime": 1001,
            "total_ios": 500,
            "clat_ns": {"percentile": {"50.000000": 1351680, "99.000000": 1630208}},
        },
        "write": {"io_bytes": 0, "runtime": 0, "total_ios": 0, "clat_ns": {}},
    }
    return {"fio version": "fio-3.33", "jobs": [{**job, **changes}]}


def test_figures_come_from_the_json() -> None:
    found = parse(json.dumps(fio_json()), "", 0, kind="read")
    assert found.bytes == 2_000_000_000
    assert found.seconds == 1.001
    assert found.bytes_per_s == pytest.approx(1_998_001_998, rel=1e-6)  # as fio says itself
    assert found.iops == pytest.approx(499.5, abs=0.01)
    assert found.latency_p50_s == pytest.approx(0.00135168)
    assert found.latency_p99_s == pytest.approx(0.001630208)
    assert found.cpu_s == pytest.approx(0.5)  # a quarter of two seconds of job time


@pytest.mark.parametrize(
    ("out", "err", "code", "message"),
    [
        (
            json.dumps(fio_json(error=5)),
            "fio: io_u error on file data/0.tar: Input/output error: read offset=0\n",
            0,
            "data/0.tar: Input/output error",
        ),
        ('{"jobs": []}', "", 0, "exit status 0"),
    ],
)
def test_what_fio_says_when_it_fails_is_passed_on_in_one_line(
    out: str, err: str, code: int, message: str
) -> None:
    with pytest.raises(StorageError, match="fio failed") as caught:
        parse(out, err, code, kind="read")
    assert message in str(caught.value)


def test_nothing_moved_is_an_error_not_a_zero() -> None:
    with pytest.raises(StorageError, match="no data"):
        parse(json.dumps(fio_json()), "", 0, kind="write")
