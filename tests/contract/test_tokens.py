"""Token files: what numpy maps is what was generated, and windows are read at random, through a map
where asked.
"""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from iobench.errors import SpecError, StorageError, UsageError
from iobench.generator.plan import plan_shards
from iobench.load import is_sequential, make_loader, make_reader, use_direct
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.workload import ReaderSpec
from iobench.storage import open_storage
from iobench.storage.local.mapped import MappedStorage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.verify import verify

pytestmark = pytest.mark.usefixtures("nothing_left")

WINDOW = 2 * (2048 + 1)
TOKENS: dict[str, Any] = {
    "format": "tokens",
    "samples": 200,
    "sample_size": {"mean": WINDOW},
    "samples_per_shard": 64,
}


def windows(path: Path) -> list[bytes]:
    """Every window, as numpy sees the shards."""
    found: list[bytes] = []
    for shard in sorted((path / "data").iterdir()):
        tokens = np.memmap(shard, dtype=np.uint16, mode="r")
        assert len(tokens) * 2 == shard.stat().st_size
        found += [row.tobytes() for row in np.asarray(tokens).reshape(-1, WINDOW // 2)]
    return found


@pytest.mark.parametrize(
    ("transport", "workers"), [("ring", 0), ("ring", 2), ("tensor", 2), ("thread", 2)]
)
@pytest.mark.parametrize(
    "reader",
    [{"mmap": True}, {"mmap": True, "access": "sequential"}, {"direct": False}, {}],
    ids=str,
)
def test_every_window_is_the_one_that_numpy_maps(
    make_dataset: Any, reader: dict[str, Any], transport: str, workers: int
) -> None:
    _, path = make_dataset(**TOKENS)
    loader = make_loader(
        path,
        batch_size=16,
        seed=3,
        reader=reader,
        loader={"transport": transport, "workers": workers},
    )
    found = {
        i: sample.numpy().tobytes()
        for batch in loader
        for i, sample in zip(batch.indices.tolist(), batch, strict=True)
    }
    loader.shutdown()
    assert [found[index] for index in range(200)] == windows(path)
    shards = [index // 64 for index in found]
    walked = sum(a != b for a, b in itertools.pairwise(shards)) < 40
    assert walked is (reader.get("access") == "sequential")


def test_auto_means_random_and_a_map_means_buffered(make_dataset: Any) -> None:
    manifest, path = make_dataset(**TOKENS)
    tar, _ = make_dataset(format="tar")
    assert not is_sequential(ReaderSpec(), manifest)
    assert is_sequential(ReaderSpec(access="sequential"), manifest)
    assert is_sequential(ReaderSpec(), tar)
    storage = LocalStorage(path)
    assert use_direct(ReaderSpec(), storage, manifest) is storage.supports_direct(manifest.key(0))
    assert use_direct(ReaderSpec(mmap=True), storage, manifest) is False


def test_verify_finds_a_flipped_bit(make_dataset: Any, tmp_path: Path) -> None:
    manifest, path = make_dataset(**TOKENS)
    assert verify(LocalStorage(path), manifest, workers=0).ok
    objects = {key: bytearray((path / key).read_bytes()) for key in manifest.keys()}  # noqa: SIM118
    objects[manifest.key(1)][WINDOW * 3 + 5] ^= 1
    memory = MemoryStorage(objects={key: memoryview(data) for key, data in objects.items()})
    report = verify(memory, manifest, workers=0)
    assert [(d.shard, d.sample) for d in report.damages] == [(manifest.key(1), 67)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sample_size": {"mean": 4097}}, "a multiple of 2 bytes"),
        (
            {"sample_size": {"distribution": "normal", "mean": 4096, "stdev": 10}},
            "sample_size.mean",
        ),
        ({"codec": "zstd:1"}, "can't be compressed"),
        ({"content": "npz"}, "content 'npz'"),
        ({"columns": 4}, "format 'tokens' has no columns"),
        ({"block_size": 4096}, "format 'tokens' has no block_size"),
    ],
)
def test_what_is_no_token_file_is_refused(change: dict[str, Any], why: str) -> None:
    spec = build(DatasetSpec, {"name": "x", **TOKENS, **change}, where="test")
    with pytest.raises(SpecError, match=why) as caught:
        plan_shards(spec)
    assert "\n" not in str(caught.value)


class TestMap:
    def test_a_map_and_direct_io_exclude_each_other(self, make_dataset: Any) -> None:
        manifest, path = make_dataset(**TOKENS)
        with pytest.raises(
            ValidationError,
            match=r"reader\.mmap reads through the page cache, reader\.direct past it",
        ):
            ReaderSpec(mmap=True, direct=True)
        with pytest.raises(UsageError, match=r"reader\.mmap=false") as caught:
            make_reader(manifest, LocalStorage(path, direct=True), ReaderSpec(mmap=True))
        assert "\n" not in str(caught.value)

    def test_what_is_no_local_directory_is_refused(self, make_dataset: Any) -> None:
        manifest, path = make_dataset(**TOKENS)
        with pytest.raises(UsageError, match=r"throttled\+"):
            make_reader(
                manifest, open_storage(f"throttled+{path}?latency=1ms"), ReaderSpec(mmap=True)
            )

    def test_it_reads_what_the_file_holds(self, tmp_path: Path) -> None:
        data = os.urandom(100_000)
        (tmp_path / "a").write_bytes(data)
        (tmp_path / "empty").touch()
        for storage in (MappedStorage(tmp_path), MappedStorage(tmp_path, random=True)):
            buffer = memoryview(bytearray(1000))
            for offset in (0, 1, 99_000, 50_001):
                assert storage.read_into("a", offset, buffer) == 1000
                assert buffer == data[offset : offset + 1000]
            assert storage.read_into("a", 99_500, buffer) == 500  # short only where it ends
            assert storage.read_into("a", 200_000, buffer) == 0
            assert storage.read_into("empty", 0, buffer) == 0
            with pytest.raises(StorageError, match=r"cannot open .*missing"):
                storage.read_into("missing", 0, buffer)
            again = pickle.loads(pickle.dumps(storage))
            assert again.random is storage.random
            assert again.read_into("a", 7, buffer) == 1000
            storage.close()
            assert storage.read_into("a", 3, buffer) == 1000
            assert storage.facts()["mmap"] is True

    @pytest.mark.parametrize(
        "loading",
        [
            {"workers": 0},
            {"workers": 3},
            {"workers": 2, "transport": "null"},
            {"workers": 2, "transport": "tensor", "start_method": "spawn"},
            {"workers": 2, "transport": "thread"},
            {"workers": 2, "persistent_workers": False},
        ],
        ids=str,
    )
    def test_between_epochs_the_pages_can_be_evicted(
        self, make_dataset: Any, loading: dict[str, Any]
    ) -> None:
        manifest, path = make_dataset(**TOKENS)
        storage, keys = LocalStorage(path), list(manifest.keys())
        storage.evict(keys)
        assert storage.residency(keys).ratio == 0
        loader = make_loader(path, batch_size=16, seed=3, reader={"mmap": True}, loader=loading)
        try:
            loader.release_maps()  # before anything is mapped
            for epoch in range(3):
                assert storage.residency(keys).ratio == 0
                loader.set_epoch(epoch)
                seen = [index for batch in loader for index in batch.indices.tolist()]
                assert sorted(seen) == list(range(200))
                assert storage.residency(keys).ratio == 1
                if loading == {"workers": 3}:
                    storage.evict(keys)
                    assert (
                        storage.residency(keys).ratio == 1
                    )  # the workers live, and so do their maps
                loader.release_maps()
                storage.evict(keys)
        finally:
            loader.shutdown()

    def test_released_maps_are_read_again(self, tmp_path: Path) -> None:
        data = os.urandom(100_000)
        (tmp_path / "a").write_bytes(data)
        (tmp_path / "empty").touch()
        storage, buffer = MappedStorage(tmp_path), memoryview(bytearray(100_000))
        storage.release_maps()
        for _ in range(2):
            assert storage.read_into("empty", 0, buffer) == 0
            assert storage.read_into("a", 0, buffer) == 100_000
            assert buffer == data
            storage.evict(["a"])
            assert storage.residency(["a"]).ratio == 1
            storage.release_maps()
            storage.evict(["a"])
            assert storage.residency(["a"]).ratio == 0
        storage.close()

    def test_a_file_that_was_replaced_by_a_shorter_one_is_a_clear_error(
        self, make_dataset: Any, tmp_path: Path
    ) -> None:
        manifest, path = make_dataset(**TOKENS)
        (tmp_path / "data").mkdir()
        for key in manifest.keys():  # noqa: SIM118
            (tmp_path / key).write_bytes((path / key).read_bytes()[: -WINDOW - 1])
        reader = make_reader(manifest, LocalStorage(tmp_path), ReaderSpec(mmap=True))
        with pytest.raises(StorageError, match=r"ends at byte \d+"):
            reader.read(np.arange(200), None)
        reader.close()
