"""Token files are read at random, and any file through a map where asked."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError
from iobench.load.build import make_loader
from iobench.load.choose import is_sequential, make_reader, use_direct
from iobench.settings.workload import ReaderSpec
from iobench.storage import open_storage
from iobench.storage.local.mapped import MappedStorage
from iobench.storage.local.storage import LocalStorage
from tests.conftest import MakeDataset

pytestmark = pytest.mark.usefixtures("nothing_left")

WINDOW = 2 * (2048 + 1)
TOKENS: dict[str, Any] = {
    "format": "tokens",
    "samples": 200,
    "sample_size": {"mean": WINDOW},
    "samples_per_shard": 64,
}


def test_auto_means_random_and_a_map_means_buffered(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(**TOKENS)
    tar, _ = make_dataset(format="tar")
    assert not is_sequential(ReaderSpec(), manifest)
    assert is_sequential(ReaderSpec(access="sequential"), manifest)
    assert is_sequential(ReaderSpec(), tar)
    storage = LocalStorage(path)
    assert use_direct(ReaderSpec(), storage, manifest) is storage.supports_direct(manifest.key(0))
    assert use_direct(ReaderSpec(mmap=True), storage, manifest) is False


class TestMap:
    def test_auto_maps_local_files_and_reads_what_has_no_map(
        self, make_dataset: MakeDataset
    ) -> None:
        manifest, path = make_dataset(**TOKENS)
        auto = ReaderSpec(mmap="auto")
        local, slow = LocalStorage(path), open_storage(f"throttled+{path}?latency=1ms")
        assert isinstance(make_reader(manifest, local, auto).storage, MappedStorage)
        assert use_direct(auto, local, manifest) is False
        for spec, storage in (
            (auto, slow),
            (auto, LocalStorage(path, direct=True)),
            (ReaderSpec(mmap="auto", direct=True), local),
            (ReaderSpec(mmap="auto", engine="io_uring"), local),
        ):
            assert make_reader(manifest, storage, spec).storage is storage

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
            {"workers": 2, "transport": "thread"},
            {"workers": 2, "transport": "null", "persistent_workers": False},
        ],
        ids=str,
    )
    def test_between_epochs_the_pages_can_be_evicted(
        self, make_dataset: MakeDataset, loading: dict[str, Any]
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
