"""The local cache in front of a storage: exactly LRU, never more than its size, never a part."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iobench.base import buffers
from iobench.base.buffers import Buffer
from iobench.base.errors import StorageError, UsageError
from iobench.judge.cache import expected_share
from iobench.record.training import CachedEpoch
from iobench.report.stages import local_cache_section
from iobench.settings.workload import LocalCacheSpec
from iobench.storage.local_cache import LocalCache, local_cache
from iobench.storage.simulated.memory import MemoryStorage
from tests.oracle.plants import ran

PAGE = 4096


class Counting(MemoryStorage):
    """What was asked of it, and from which read on it fails."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__(objects={key: memoryview(data) for key, data in objects.items()})
        self.asked: list[tuple[str, int]] = []
        self.fails = False

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        self.asked.append((key, offset))
        if self.fails:
            raise StorageError("planted")
        return super().read_into(key, offset, buffer, once=once)


def contents(count: int, size: int = 3 * PAGE) -> dict[str, bytes]:
    return {f"folder/{number}": bytes([number % 251]) * size for number in range(count)}


@contextmanager
def cached(
    storage: Counting, objects: Mapping[str, bytes], place: Path, **spec: Any
) -> Iterator[LocalCache]:
    sizes = {key: len(data) for key, data in objects.items()}
    asked = LocalCacheSpec(directory=str(place), **spec)
    with local_cache(asked, storage, sizes, direct=True) as cache:
        yield cache


def read(cache: LocalCache, key: str, size: int, offset: int = 0) -> bytes:
    memory = buffers.private(-(-size // PAGE) * PAGE).array.data
    return bytes(memory[: cache.read_into(key, offset, memory, once=True)])[:size]


def bytes_in(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def test_it_is_exactly_lru(tmp_path: Path) -> None:
    """Against an OrderedDict, with objects of all sizes and reads in an order that prefers some."""
    chance = np.random.default_rng(5)
    sizes = chance.integers(1, 5 * PAGE, 40).tolist()
    objects = {str(number): os.urandom(size) for number, size in enumerate(sizes)}
    storage, limit = Counting(objects), sum(sizes) // 3
    model: OrderedDict[str, int] = OrderedDict()
    with cached(storage, objects, tmp_path, size=limit) as cache:
        for number in (chance.pareto(1.0, 600).astype(int) % 40).tolist():
            key, size = str(number), sizes[number]
            hit, before = key in model, len(storage.asked)
            assert read(cache, key, size) == objects[key]
            assert (len(storage.asked) == before) == hit
            if hit:
                model.move_to_end(key)
                continue
            while sum(model.values()) + size > limit:
                model.popitem(last=False)
            model[key] = size
            assert set(cache.held()) == set(model)
            assert bytes_in(tmp_path) == sum(model.values()) <= limit
        use = cache.counted()
    assert use.misses == len(storage.asked)
    assert use.hits == 600 - use.misses > 300
    assert use.evicted == use.misses - len(model) > 20
    assert use.bypassed == 0
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_failed_is_not_served_and_takes_no_room(tmp_path: Path) -> None:
    objects = contents(2)
    storage = Counting(objects)
    (key, data), (other, _) = objects.items()
    with cached(storage, objects, tmp_path, size=len(data), eviction="none") as cache:
        storage.fails = True
        with pytest.raises(StorageError):
            read(cache, key, len(data))
        storage.fails = False
        assert cache.held() == []
        assert bytes_in(tmp_path) == 0
        assert read(cache, other, len(data)) == objects[other]
        assert cache.held() == [other]


def test_a_part_of_an_object_copies_all_of_it(tmp_path: Path) -> None:
    objects = {"shard": os.urandom(20 << 20)}
    storage = Counting(objects)
    with cached(storage, objects, tmp_path, size=32 << 20) as cache:
        for offset in (8 * PAGE, 0, (20 << 20) - PAGE):
            assert read(cache, "shard", PAGE, offset) == objects["shard"][offset : offset + PAGE]
        use = cache.counted()
    assert (use.misses, use.hits, use.storage_bytes) == (1, 2, 20 << 20)
    assert [offset for _, offset in storage.asked] == [0, 8 << 20, 16 << 20]


def test_all_processes_share_one_order_and_one_limit(tmp_path: Path) -> None:
    objects = contents(60)
    limit = 20 * 3 * PAGE
    with cached(Counting(objects), objects, tmp_path, size=limit) as cache:
        children = []
        for seed in range(4):
            if (child := os.fork()) == 0:
                status = 1
                try:
                    for number in np.random.default_rng(seed).integers(0, 60, 300).tolist():
                        key = f"folder/{number}"
                        assert read(cache, key, 3 * PAGE) == objects[key]
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        use, held = cache.counted(), cache.held()
        assert use.hits + use.misses == 4 * 300
        assert use.misses - use.bypassed - use.evicted == len(held) == 20
        assert bytes_in(tmp_path) == limit
        cache.empty()
        assert (bytes_in(tmp_path), cache.held()) == (0, [])


def test_it_touches_nothing_that_it_did_not_write(tmp_path: Path) -> None:
    objects = contents(3)
    (tmp_path / "mine").write_text("stays")
    for keep in (False, True):
        with cached(Counting(objects), objects, tmp_path, size=1 << 20, keep=keep) as cache:
            read(cache, "folder/1", PAGE)
    mine, kept = sorted(tmp_path.iterdir(), key=lambda path: path.is_dir())
    assert mine.read_text() == "stays"
    assert (kept / "folder/1").read_bytes() == objects["folder/1"]


RUN: dict[str, Any] = {
    "accelerator": {"kind": "null"},
    "reader": {"concurrency": 1, "read_ahead": False},
    "loader": {"workers": 1},
    "batch_size": 1,
    "epochs": 3,
}
"""Reads come one by one, in the order of the epoch."""


@pytest.mark.slow
@pytest.mark.parametrize("eviction", ["lru", pytest.param("none", marks=pytest.mark.nightly)])
def test_the_hits_of_each_epoch_of_a_run(tmp_path: Path, make_dataset: Any, eviction: str) -> None:
    """They are near the law of random orders."""
    count, room = 300, 180
    _, data = make_dataset(samples=count, sample_size={"mean": PAGE})
    place = tmp_path / "cache"
    place.mkdir()
    spec = {"directory": str(place), "size": room * PAGE, "eviction": eviction}
    doc, _ = ran(tmp_path, data, local_cache=spec, **RUN)
    assert doc.validity == "valid", doc.findings
    uses = [epoch.local_cache for one in doc.job.repetitions for epoch in one.epochs]
    assert [use.hits + use.misses for use in uses if use is not None] == [count] * 3
    facts = doc.job.local_cache
    first, *later = facts.epochs
    assert (first.hit_rate, first.expected_share) == (0.0, 0.0)
    law = 0.6 if eviction == "none" else 0.6 + 0.4 * np.log(0.4)
    for each in later:
        assert each.expected_share == pytest.approx(law)
        assert each.hit_rate == pytest.approx(law, abs=0.06)
        assert each.cached_share == pytest.approx(each.hit_rate)
        assert each.samples_per_s is not None
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "findings"), [({}, []), ({"format": "tar", "samples_per_shard": 5}, ["unknown"])]
)
def test_copies_leave_the_page_cache_where_it_may_serve_them(
    tmp_path: Path, make_dataset: Any, spec: dict[str, Any], findings: list[str]
) -> None:
    """Before each epoch. Of a shard, a later sample may be read from what its copy left there."""
    _, data = make_dataset(samples=60, **spec)
    place = tmp_path / "cache"
    place.mkdir()
    asked = {**RUN, "reader": {"direct": False}}
    doc, _ = ran(tmp_path, data, local_cache={"directory": str(place), "size": "1GB"}, **asked)
    assert doc.job.local_cache.direct is False
    uses = [epoch.local_cache for one in doc.job.repetitions for epoch in one.epochs]
    assert [use.residency_before for use in uses if use is not None] == [None, 0.0, 0.0]
    assert [use.storage_bytes for use in uses if use is not None][1:] == [0, 0]
    found = [each.level for each in doc.findings if each.rule == "cache.local"]
    assert found == findings


def test_what_is_expected_of_other_orders() -> None:
    lru, none = (LocalCacheSpec(directory="/x", size=1, eviction=how) for how in ("lru", "none"))  # type: ignore[arg-type]
    assert expected_share(lru, 0.9, shuffled=False) == 0.0
    assert expected_share(none, 0.9, shuffled=False) == 0.9
    assert expected_share(lru, 1.0, shuffled=False) == expected_share(lru, 1.0, shuffled=True) == 1


def test_a_place_that_is_missing_or_too_small_is_refused(tmp_path: Path, make_dataset: Any) -> None:
    _, data = make_dataset(samples=10, sample_size={"mean": PAGE})
    with pytest.raises(UsageError, match="not a directory"):
        ran(tmp_path, data, local_cache={"directory": str(tmp_path / "no"), "size": 1}, **RUN)


def test_a_cache_that_spares_nothing_is_not_said_to_have_served_nothing() -> None:
    """Reads that go past a copy in the making: 40 % of them hit, and the storage delivers more."""
    use = CachedEpoch(epoch=1, hit_rate=0.4, cached_share=0.0)
    facts = {"epochs": [use], "kept": "", "share": None, "directory": "d", "fs_type": "ext4"}
    workload = SimpleNamespace(local_cache=SimpleNamespace(size=1000, eviction="lru"))
    job = SimpleNamespace(local_cache=SimpleNamespace(**facts, direct=True), workload=workload)
    doc: Any = SimpleNamespace(job=job)
    table = local_cache_section(doc)
    labels = [each.label for each in table.columns]
    assert not any("from the cache" in label for label in labels)
    assert any("spared" in label for label in labels)
