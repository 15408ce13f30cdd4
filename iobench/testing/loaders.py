"""The contract of loader libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash

from ..base.errors import IobenchError
from ..load.build import make_loader
from ..load.layouts import make_layout
from ..load.libraries import converter_class
from ..load.libraries.base import Source
from ..load.third_party import LibraryLoader, library_version, open_library
from ..record.manifest import Manifest
from ..settings.workload import LoaderSpec, ReaderSpec
from ..storage.base import Storage
from ..storage.local.storage import LocalStorage
from .data import generated

SAMPLES = 120


@contextmanager
def opened(
    manifest: Manifest, storage: Storage, kind: str, workers: int = 2, **more: Any
) -> Iterator[LibraryLoader]:
    """Open a loader in batches of 16; its layout is made where it needs one, and it is ended."""
    reading = ReaderSpec.model_validate(more.pop("reader", {"decode": False}))
    loading = LoaderSpec(kind=kind, workers=workers)
    more.setdefault("batch_size", 16)
    if converter_class(kind) is not None:
        bare = reading.model_copy(update={"decode": False, "crop": None})
        make_layout(Source(manifest, storage, bare, loading, 16), library_version(kind))
    loader = open_library(manifest, storage, reading, loading, seed=5, **more)
    try:
        yield loader
    finally:
        loader.shutdown()


def hashes(loader: LibraryLoader, epoch: int) -> list[int]:
    """Read an epoch, and return what the manifest has as ``xxh3`` of each sample, as delivered."""
    loader.set_epoch(epoch)
    return [xxhash.xxh3_64_intdigest(sample.numpy().data) for batch in loader for sample in batch]


class LoaderContract:
    """What holds for every loader library. A subclass has the fixture ``kind``.

    The fixtures ``form``, ``codec`` and ``repeats`` say what the library reads and promises; their
    defaults are those of a library that reads single files.
    """

    @pytest.fixture
    def kind(self) -> str:
        """Return the name under which the library is registered."""
        raise NotImplementedError("a subclass of LoaderContract needs the fixture 'kind'")

    @pytest.fixture
    def form(self, kind: str) -> str:
        """Return a format that the library reads."""
        return "files"

    @pytest.fixture
    def codec(self, kind: str) -> str:
        """Return a codec whose samples the library can be given; ``none`` for no codec at all."""
        return "zstd:1"

    @pytest.fixture
    def repeats(self, kind: str) -> bool:
        """Return whether the number of an epoch decides its order, however often it is read."""
        return True

    @pytest.fixture
    def spec(self, form: str) -> dict[str, Any]:
        """Return the specification of the dataset: 120 samples of about 20,000 bytes."""
        sizes = {"distribution": "normal", "mean": 20_000, "stdev": 3_000}
        shards = {} if form == "files" else {"samples_per_shard": 10}
        return {"format": form, "samples": SAMPLES, "sample_size": sizes, **shards}

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Return the directory of the dataset."""
        return tmp_path / "data-of-the-contract"

    @pytest.mark.parametrize("workers", [0, 2])
    def test_each_sample_once_in_every_epoch_and_in_another_order(
        self, kind: str, repeats: bool, workers: int, spec: dict[str, Any], root: Path
    ) -> None:
        manifest = generated(root, **spec)
        stated = manifest.samples["xxh3"].tolist()
        with opened(manifest, LocalStorage(root), kind, workers) as loader:
            orders = [hashes(loader, epoch) for epoch in range(3)]
            again = hashes(loader, 1) if repeats else orders[1]
        assert [sorted(order) for order in orders] == [sorted(stated)] * 3
        assert orders[0] != orders[1] != orders[2] != orders[0]
        assert orders[0] != stated
        assert again == orders[1]

    def test_unshuffled_samples_come_in_their_order(
        self, kind: str, spec: dict[str, Any], root: Path
    ) -> None:
        manifest = generated(root, **spec)
        reader = {"decode": False, "shuffle": False}
        with opened(manifest, LocalStorage(root), kind, 0, reader=reader) as loader:
            assert hashes(loader, 0) == manifest.samples["xxh3"].tolist()

    def test_ranks_share_an_epoch(self, kind: str, spec: dict[str, Any], root: Path) -> None:
        """At once, as they are in a run; the first one to end takes nothing from the other."""
        manifest = generated(root, **spec)
        with opened(manifest, LocalStorage(root), kind, 1, rank=1, world=2) as last:
            with opened(manifest, LocalStorage(root), kind, 1, rank=0, world=2) as first:
                shares = [hashes(first, 0), hashes(last, 0)]
            again = hashes(last, 1)
        assert all(SAMPLES / 3 <= len(share) <= 2 * SAMPLES / 3 for share in (*shares, again))
        assert sorted(shares[0] + shares[1]) == sorted(manifest.samples["xxh3"].tolist())

    def test_decoding_and_cropping_are_those_of_iobenchs_own_loader(
        self, kind: str, spec: dict[str, Any], root: Path
    ) -> None:
        manifest = generated(root, **{**spec, "content": "npz"})
        storage, reader = LocalStorage(root), dict[str, object](decode=True, crop=9_000)
        own = make_loader(
            manifest, batch_size=16, storage=storage, reader=reader, loader={"workers": 0}
        )
        truth = sorted(bytes(sample.numpy()) for batch in own for sample in batch)
        own.shutdown()
        with opened(manifest, storage, kind, 1, reader=reader) as loader:
            assert sorted(bytes(sample.numpy()) for batch in loader for sample in batch) == truth

    def test_what_a_batch_cost_is_told(self, kind: str, spec: dict[str, Any], root: Path) -> None:
        """Where a sample's own stored bytes are not known, those of the dataset are shared out."""
        manifest = generated(root, **spec)
        with opened(manifest, LocalStorage(root), kind) as loader:
            stats = [batch.stats for batch in loader]
        assert sum(each.samples for each in stats) == SAMPLES
        read = sum(each.bytes_read for each in stats)
        known = int(manifest.samples["stored"].sum())
        assert read == known or read == pytest.approx(manifest.header.stored_bytes, rel=1e-3)
        assert all(each.started_ns > 0 and each.cpu_ns > 0 and each.prep_ns >= 0 for each in stats)

    def test_compressed_samples(
        self, kind: str, codec: str, spec: dict[str, Any], root: Path
    ) -> None:
        if codec == "none":
            pytest.skip("this library reads no samples that iobench has compressed")
        manifest = generated(root, **{**spec, "codec": codec, "compress_ratio": 2.0})
        with opened(manifest, LocalStorage(root), kind) as loader:
            assert sorted(hashes(loader, 0)) == sorted(manifest.samples["xxh3"].tolist())

    def test_a_loop_may_end_early(self, kind: str, spec: dict[str, Any], root: Path) -> None:
        manifest = generated(root, **spec)
        with opened(manifest, LocalStorage(root), kind) as loader:
            batches = iter(loader)
            assert len(next(batches)) == 16
            batches.close()

    def test_a_shard_that_is_gone_is_one_line(
        self, kind: str, spec: dict[str, Any], root: Path
    ) -> None:
        if converter_class(kind) is not None:
            pytest.skip("this library reads its own layout, not the shards")
        manifest = generated(root, **spec)
        key = manifest.key(3)
        (root / key).unlink()

        def read() -> None:
            with opened(manifest, LocalStorage(root), kind) as loader:
                hashes(loader, 0)

        with pytest.raises(IobenchError) as caught:
            read()
        assert "\n" not in str(caught.value)
        assert kind in str(caught.value) or key in str(caught.value)
        assert key.rpartition("/")[2] in str(caught.value)
