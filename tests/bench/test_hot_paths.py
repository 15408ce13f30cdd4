"""Code paths whose cost decides what iobench can measure: ``make bench`` runs these with
pytest-benchmark, ``make test`` runs each once.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from iobench.base import payload
from iobench.cli.pace import PhasePace
from iobench.data.codecs.lz4 import Lz4
from iobench.data.codecs.zstd import Zstd
from iobench.data.contents.jpeg import Jpeg
from iobench.data.contents.npz import Npz
from iobench.host.timeline import Recorder, StepEvent
from iobench.load.order import BatchPlan, epoch_order
from iobench.load.slots import SlotRing
from iobench.record.manifest import SAMPLE_COLUMNS, read_table, write_table
from iobench.runner.counters import Counters

MIB = 1 << 20
SAMPLE = 115_000


def test_generate_payload_64_mib(benchmark: BenchmarkFixture) -> None:
    out = memoryview(bytearray(64 * MIB))
    benchmark(payload.fill, out, seed=1, index=0, compress_ratio=1.0)


def test_generate_jpeg_115_kb(benchmark: BenchmarkFixture) -> None:
    out = memoryview(bytearray(SAMPLE))
    benchmark(Jpeg().build, out, seed=1, index=3, compress_ratio=1.0)


def test_locate_npz_array_8_mib(benchmark: BenchmarkFixture) -> None:
    content = memoryview(bytearray(8 * MIB))
    Npz().build(content, seed=1, index=0, compress_ratio=1.0)
    begin, end = benchmark(Npz().locate, content)
    assert 0 < begin < end < 8 * MIB


@pytest.mark.parametrize("codec", [Zstd(), Lz4()])
def test_decompress_8_mib(benchmark: BenchmarkFixture, codec: Zstd | Lz4) -> None:
    content = memoryview(bytearray(8 * MIB))
    payload.fill(content, seed=1, index=0, compress_ratio=2.0)
    stored = memoryview(codec.compress(content))
    out = memoryview(bytearray(8 * MIB))
    assert benchmark(codec.decompress, stored, out) == 8 * MIB


def test_record_a_step(benchmark: BenchmarkFixture) -> None:
    recorder = Recorder()

    def record(clock: int) -> None:
        recorder.record(
            StepEvent(
                epoch=0,
                step=1,
                start_ns=clock,
                wait_ns=10**6,
                busy_ns=10**8,
                late_ns=10**4,
                samples=400,
                bytes_read=46 * 10**6,
                sample_bytes=46 * 10**6,
                read_ns=10**7,
                prep_ns=10**6,
            )
        )

    benchmark(record, 10**9)


def test_order_of_a_million_samples(benchmark: BenchmarkFixture) -> None:
    firsts, counts = np.arange(0, 10**6, 1000), np.full(1000, 1000)
    order = benchmark(epoch_order, firsts, counts, sequential=False, shuffle=True, seed=1, epoch=0)
    assert len(BatchPlan(order, batch_size=400)) == 2500


def test_load_a_million_samples(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    table = tmp_path / "samples.arrow"
    table.write_bytes(
        write_table(
            SAMPLE_COLUMNS,
            {name: np.arange(10**6, dtype=dtype) for name, dtype in SAMPLE_COLUMNS.items()},
        )
    )
    columns, keys = benchmark(read_table, SAMPLE_COLUMNS, str(table))
    assert (len(columns["xxh3"]), keys) == (10**6, None)


def test_lease_a_slot(benchmark: BenchmarkFixture) -> None:
    ring = SlotRing(4, MIB, shared=False)
    benchmark(lambda: ring.lease(ring.acquire()))
    assert ring.free == 4


@pytest.mark.parametrize("words", ["--help", "list"])
def test_start_up(benchmark: BenchmarkFixture, words: str) -> None:
    """A fresh interpreter to its end; ``test_startup.py`` holds what must not be imported on the
    way.
    """
    benchmark.pedantic(
        subprocess.run,
        ([sys.executable, "-m", "iobench", words],),
        {"stdout": subprocess.DEVNULL, "check": True},
        rounds=5,
    )


def test_count_a_step_for_the_progress(benchmark: BenchmarkFixture) -> None:
    """Each rank does this once for each step."""
    counters = Counters(8)
    benchmark(counters.add, 3, read=1, busy_ns=2, wall_ns=3, sync_ns=4, retries=0)
    assert counters.steps() > 0


@pytest.mark.parametrize("ranks", [1, 8, 512])
def test_read_the_counters_for_the_progress(benchmark: BenchmarkFixture, ranks: int) -> None:
    """The thread that draws the progress does this four times a second."""
    counters, pace, now = Counters(ranks), PhasePace(0.0), itertools.count(0.0, 0.25)

    def read() -> int:
        counters.add(0, read=1, busy_ns=2, wall_ns=3, sync_ns=4, retries=0)
        return int(pace.add(next(now), counters.read()).retries)

    benchmark(read)
    assert counters.steps() > 0
