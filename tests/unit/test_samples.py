"""What the host did over time: sums survive merging, the file gives back what was sampled, and the
samples lie on the time axis of the steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from iobench.base.errors import IobenchError
from iobench.host.resources import interfaces
from iobench.host.samples import Sampler, read_samples, write_samples
from iobench.host.timeline import Columns
from iobench.judge.figures.timeline import host_use
from iobench.record.arrow import number_column, numbers
from iobench.record.host import SAMPLE_COLUMNS


def counting() -> Iterator[dict[str, float | None]]:
    """A device that reads 1,000 bytes, and of which nothing else is known, between two reads."""
    for number in count():
        yield {"device_read_bytes": 1000.0 * number, "page_cache_bytes": float(number % 7)}


def sampled(ticks: int, capacity: int) -> Columns:
    source = counting()
    sampler = Sampler(None, interval_s=0.0, capacity=capacity, read=lambda: next(source))
    for epoch in range(2):
        sampler.prepare()
        sampler.begin(epoch, time.monotonic_ns())
        for _ in range(ticks):
            sampler.tick()
        sampler.end()
    return sampler.close()


@pytest.mark.parametrize("ticks", [1, 7, 8, 9, 100, 1000])
def test_samples_are_bounded_and_their_sums_exact(ticks: int) -> None:
    found = sampled(ticks, capacity=8)
    assert len(found["epoch"]) <= 8
    for epoch in range(2):
        mine = found["epoch"] == epoch
        assert found["device_read_bytes"][mine].sum() == 1000.0 * (ticks + 1)
        assert (np.diff(found["start_ns"][mine]) == found["wall_ns"][mine][:-1]).all()
    assert ticks < 7 or found["page_cache_bytes"].max() == 6.0
    assert np.isnan(found["network_sent_bytes"]).all()


def test_a_file_of_samples_gives_back_what_was_sampled(tmp_path: Path) -> None:
    parts = [("measure", number, sampled(3, capacity=100)) for number in range(2)]
    write_samples(tmp_path / "resources.parquet", parts)
    found = read_samples(tmp_path / "resources.parquet")
    assert set(found) == set(SAMPLE_COLUMNS)
    for name in ("epoch", "wall_ns", "device_read_bytes", "network_sent_bytes"):
        wanted = np.concatenate([columns[name] for _, _, columns in parts])
        assert np.array_equal(found[name], wanted, equal_nan=found[name].dtype.kind == "f")
    assert set(found["phase"]) == {"measure"}
    with pytest.raises(IobenchError, match="never overwritten"):
        write_samples(tmp_path / "resources.parquet", parts)


def rows(**values: list[float]) -> Columns:
    length = len(values["epoch"])
    found: Columns = {name: np.full(length, np.nan) for name in SAMPLE_COLUMNS if name != "phase"}
    return found | {name: np.array(each) for name, each in values.items()}


def test_samples_lie_on_the_time_axis_of_the_steps() -> None:
    """The second epoch begins at 10 s; a sample of half its length counts half in the mean."""
    found = host_use(
        rows(
            epoch=[0, 1, 1, 5],
            start_ns=[0, 0, 2e9, 0],
            wall_ns=[2e9, 2e9, 1e9, 1e9],
            device_read_bytes=[200.0, 400.0, 50.0, 1e9],
            device_busy_s=[1.0, 2.1, 0.0, 1.0],
            cpu_busy_s=[1.0, np.nan, 0.5, 1.0],
            cpu_total_s=[4.0, np.nan, 2.0, 1.0],
            page_cache_bytes=[1.0, 2.0, 3.0, 9.0],
        ),
        {0: 0.0, 1: 10.0},
    )
    assert set(found) == {"device_read", "device_busy", "cpu", "page_cache"}
    assert found["device_read"].at_s == (1.0, 11.0, 12.5)
    assert found["device_read"].values == (100.0, 200.0, 50.0)
    assert found["device_read"].mean == pytest.approx(650 / 5)
    assert found["device_read"].largest == 200.0
    assert found["device_busy"].values == (0.5, 1.0, 0.0)
    assert found["cpu"].at_s == (1.0, 12.5)
    assert found["cpu"].values == (0.25, 0.25)
    assert host_use(rows(epoch=[]), {0: 0.0}) == {}


def test_interfaces_that_pass_on_the_bytes_of_others_count_once(tmp_path: Path) -> None:
    for name in ("lo", "eth0", "bond0"):
        (tmp_path / name).mkdir()
    assert interfaces(tmp_path) == ["bond0", "eth0"]
    (tmp_path / "eth0" / "device").mkdir()
    assert interfaces(tmp_path) == ["eth0"]
    (tmp_path / "eth0" / "master").symlink_to("../bond0")
    assert interfaces(tmp_path) == ["eth0"]
    (tmp_path / "enP1s2" / "device").mkdir(parents=True)  # as on Azure: both are devices
    (tmp_path / "enP1s2" / "master").symlink_to("../eth0")
    assert interfaces(tmp_path) == ["eth0"]
    assert interfaces(tmp_path / "missing") == []


# Columns of numbers


VALUES = [
    np.arange(9, dtype=np.int64),
    np.arange(20, dtype=np.uint16)[::2],
    np.array([0.5, np.nan, -1.0, np.inf] * 5),
    np.array([np.nan]),
    np.empty(0, np.uint32),
]


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("nan_is_null", [False, True])
def test_numbers_are_arrows_own_there_and_back(values: np.ndarray, nan_is_null: bool) -> None:
    column = number_column(values, nan_is_null=nan_is_null)
    column.validate(full=True)
    assert column.type == pa.from_numpy_dtype(values.dtype)
    assert str(column) == str(pa.array(values, from_pandas=nan_is_null))
    for part in (slice(None), slice(3, None), slice(1, 2)):  # a slice begins within a byte of bits
        back = numbers(column[part])
        assert back.dtype == values.dtype
        np.testing.assert_array_equal(back, values[part])
