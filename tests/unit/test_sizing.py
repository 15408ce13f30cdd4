"""Sizes and rates that ``plan`` shows, against published examples and hand arithmetic."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from iobench.ask.capacity import sizing
from iobench.judge.figures.in_flight import reads_per_sample
from iobench.load.reader import BatchReader
from iobench.settings.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage


def simulated_hit_rate(
    cached: float, hosts: int, *, samples: int = 4000, epochs: int = 40
) -> float:
    """Of one host's LRU cache of ``cached`` datasets, when each epoch is one shuffle that ``hosts``
    hosts share. Four epochs warm it.
    """
    generator, cache, hits, reads = np.random.default_rng(7), OrderedDict[int, None](), 0, 0
    for epoch in range(epochs):
        for sample in generator.permutation(samples)[: samples // hosts].tolist():
            hit = sample in cache
            if epoch >= 10:
                hits, reads = hits + hit, reads + 1
            cache[sample] = None
            cache.move_to_end(sample)
            if len(cache) > cached * samples:
                cache.popitem(last=False)
    return hits / reads


@pytest.mark.parametrize(
    ("cached", "hosts"), [(0, 1), (0.3, 1), (1, 1), (0.6, 2), (0.9, 2), (0.5, 8)]
)
def test_the_cache_of_one_of_several_hosts_agrees_with_simulation(
    cached: float, hosts: int
) -> None:
    assert sizing.expected_hit_rate(cached, hosts=hosts) == pytest.approx(
        simulated_hit_rate(cached, hosts), abs=0.012
    )


class Counting(LocalStorage):
    """Counts reads."""

    reads = 0

    def read_into(self, key: str, offset: int, buffer: Any, *, once: bool = False) -> int:
        self.reads += 1
        return super().read_into(key, offset, buffer, once=once)


@pytest.mark.parametrize(
    ("form", "size", "block", "access"),
    [
        ("files", 20_000, 1 << 20, "random"),
        ("tar", 20_000, 65_536, "sequential"),
        ("tar", 20_000, 8192, "random"),
    ],
)
def test_reads_per_sample_are_those_of_the_reader(
    make_dataset: Any, form: str, size: int, block: int, access: str
) -> None:
    """240 samples, 60 in a shard, batches of 20: the formula against what a reader really asks
    for.
    """
    cut = {} if form == "files" else {"samples_per_shard": 60}
    manifest, root = make_dataset(samples=240, sample_size={"mean": size}, format=form, **cut)
    storage = Counting(root)
    spec = ReaderSpec(block_size=block, decode=False, concurrency=1)
    reader = BatchReader(manifest, storage, spec, bytes_only=True)
    order = np.arange(240) if access == "sequential" else np.random.default_rng(1).permutation(240)
    for start in range(0, 240, 20):
        reader.read(order[start : start + 20], None)
    reader.close()
    formula = reads_per_sample(
        sample_bytes=size,
        block_size=block,
        batch_size=20,
        samples_per_shard=1 if form == "files" else 60,
        sequential=access == "sequential",
    )
    assert storage.reads / 240 == pytest.approx(
        formula, rel=0.15
    )  # framing, alignment, and neighbours that meet by chance
