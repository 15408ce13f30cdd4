"""Samples whose preparation takes different times, and batches that arrive when they are ready."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from iobench.base.buffers import Buffer
from iobench.load.choose import make_reader
from iobench.load.reader import prep_times
from iobench.settings.workload import ReaderSpec
from iobench.storage import open_storage
from iobench.storage.base import Storage
from iobench.storage.wrapper import Wrapper
from tests.conftest import MakeDataset
from tests.contract.conftest import Load
from tests.contract.truth import decoded, taken
from tests.processes import PATIENCE_S


class Gated(Wrapper):
    """Reads of one key wait until a file exists."""

    def __init__(self, inner: Storage, key: str, gate: Path) -> None:
        super().__init__(inner)
        self.key, self.gate = key, gate

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        end = time.monotonic() + PATIENCE_S
        while key == self.key and not self.gate.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert key != self.key or self.gate.exists()
        return super().read_into(key, offset, buffer, once=once)


@pytest.mark.parametrize("way", [("ring", 2), ("tensor", 2), ("thread", 2)], ids=str)
def test_a_batch_that_takes_long_holds_up_no_other(
    make_dataset: MakeDataset, load: Load, tmp_path: Path, way: tuple[str, int]
) -> None:
    """The first batch is let go when all others have arrived that a worker can make."""
    manifest, path = make_dataset(samples=40, format="files")
    gate, first = tmp_path / "gate", manifest.key(0)
    loader = load(
        path,
        way,
        batch_size=4,
        storage=Gated(open_storage(str(path)), first, gate),
        reader={"shuffle": False, "concurrency": 1},
        loader={"in_order": False, "prefetch_factor": 1},
    )
    found: dict[int, bytes] = {}
    batches = []
    for batch in loader:
        batches.append(batch.indices.tolist())
        taken([batch], into=found)
        if len(batches) == 5:
            gate.touch()
    assert len(batches) == 10
    assert all(0 not in each for each in batches[:5])
    assert [found[index] for index in range(len(found))] == decoded(manifest, path)


def test_the_times_of_samples_have_the_mean_and_the_spread_that_were_asked_for() -> None:
    spec = ReaderSpec(prep_time=0.02, prep_cv=1.5)
    times = prep_times(spec, 200_000)
    assert times is not None
    assert times.mean() == pytest.approx(0.02, rel=0.02)
    assert times.std() / times.mean() == pytest.approx(1.5, rel=0.05)
    again = prep_times(spec, 200_000)
    assert again is not None
    assert np.array_equal(times, again)
    alike = prep_times(ReaderSpec(prep_time=0.02), 5)
    assert alike is not None
    assert alike.tolist() == [pytest.approx(0.02)] * 5
    assert prep_times(ReaderSpec(prep_cv=1.5), 5) is None


@pytest.mark.parametrize("format", ["files", "parquet"])
def test_the_time_is_spent_and_counted_as_preparation(
    make_dataset: MakeDataset, format: str
) -> None:
    manifest, path = make_dataset(samples=10, format=format)
    spec = ReaderSpec(prep_time=0.01, prep_cv=1.0)
    times = prep_times(spec, 10)
    assert times is not None
    indices = np.array([3, 4, 8])
    for bytes_only in (False, True):
        reader = make_reader(manifest, open_storage(str(path)), spec, bytes_only=bytes_only)
        began = time.monotonic_ns()
        stats = reader.read(indices, None).stats
        took = time.monotonic_ns() - began
        reader.close()
        planted = times[indices].sum() * 1e9
        assert took >= stats.prep_ns
        assert bytes_only or (reader.prepares and stats.prep_ns >= planted)
