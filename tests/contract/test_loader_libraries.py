"""Every loader library must deliver the dataset's samples, each once in an epoch, whatever the
workers, ranks, codec and content.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tqdm
import xxhash

from iobench.base.errors import IobenchError, UsageError
from iobench.load import LibraryLoader, library_version, make_loader, open_library
from iobench.load.layouts import layout_keys, make_layout
from iobench.load.libraries import LOADERS, converter_class, library_class
from iobench.load.libraries.base import Converts, Library, Packed, Source
from iobench.load.libraries.building_blocks import ByIndex, collate
from iobench.plugins import PlugIn
from iobench.record.manifest import Manifest
from iobench.settings.subject import OWN_LOADER, USER_LOADER
from iobench.settings.workload import LoaderSpec, ReaderSpec
from iobench.storage import open_storage
from iobench.storage.base import Retries, Storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries warn of what is theirs to mend

MOSAIC = "mosaicml-streaming"


def _why_not(kind: str) -> str | None:
    """The line that a user gets where this kind can't be had."""
    try:
        LOADERS.load(kind)
    except UsageError as error:
        return str(error)
    return None


def _opens_paths(kind: str) -> bool:
    library = library_class(kind)
    return library is not None and library.local


NOT_HERE = {kind: why for kind in LOADERS.entries() if (why := _why_not(kind)) is not None}
KINDS = sorted(set(LOADERS.entries()) - {OWN_LOADER, USER_LOADER} - set(NOT_HERE))
FORMAT = {"webdataset": "tar", "hf-datasets": "parquet", "torch-iterable": "tar", MOSAIC: "mds"}
SIZES = {"distribution": "normal", "mean": 20_000, "stdev": 3_000}
THREADS = ("torchdata", "spdl", "grain")


@pytest.fixture(autouse=True)
def _no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """datasets sleeps for 5 s at the end of each shuffled epoch; workers are forked, so they
    inherit this.
    """
    import datasets

    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


def _spec(kind: str, **more: Any) -> dict[str, Any]:
    shards = {} if (form := FORMAT.get(kind, "files")) == "files" else {"samples_per_shard": 10}
    return {"format": form, "samples": 120, "sample_size": SIZES, **shards, **more}


@contextlib.contextmanager
def _open(
    manifest: Manifest, storage: Storage, kind: str, workers: int = 2, **more: Any
) -> Iterator[LibraryLoader]:
    """The loader, its layout made where it needs one, and ended."""
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


def _epoch(loader: LibraryLoader, epoch: int) -> list[int]:
    loader.set_epoch(epoch)
    return [xxhash.xxh3_64_intdigest(sample.numpy().data) for batch in loader for sample in batch]


def test_every_kind_goes_through_this_suite() -> None:
    """But for one that CI can't have either: it wants NumPy below 2.2 and xxhash below 4, and a
    torchvision built with its torch.
    """
    assert set(NOT_HERE) <= {MOSAIC}
    if NOT_HERE:
        pytest.skip(
            f"NOT RUN: loader {MOSAIC}, which can't be installed beside the versions in "
            f"constraints.txt ({NOT_HERE[MOSAIC]})"
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_once_in_every_epoch_and_in_another_order(
    kind: str, workers: int, make_dataset: Any, nothing_left: set[int]
) -> None:
    manifest, root = make_dataset(**_spec(kind))
    truth = sorted(manifest.samples["xxh3"].tolist())
    with _open(manifest, LocalStorage(root), kind, workers) as loader:
        orders = [_epoch(loader, epoch) for epoch in range(3)]
        again = (
            _epoch(loader, 1)
            if kind in ("torch-map", "torchdata", "spdl", "grain", MOSAIC)
            else None
        )
    assert [sorted(order) for order in orders] == [truth] * 3
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != manifest.samples["xxh3"].tolist()
    if again is not None:
        assert again == orders[1]  # an epoch's number decides its order


@pytest.mark.parametrize("kind", KINDS)
def test_unshuffled_samples_come_in_their_order(kind: str, make_dataset: Any) -> None:
    manifest, root = make_dataset(**_spec(kind))
    with _open(
        manifest, LocalStorage(root), kind, 0, reader={"decode": False, "shuffle": False}
    ) as loader:
        assert _epoch(loader, 0) == manifest.samples["xxh3"].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_an_epoch(
    kind: str,
    make_dataset: Any,
    nothing_left: set[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, as they are in a run; the first one to end takes nothing away from the other, and
    none leaves anything.
    """
    manifest, root = make_dataset(**_spec(kind))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _open(manifest, LocalStorage(root), kind, 1, rank=1, world=2) as last:
        with _open(manifest, LocalStorage(root), kind, 1, rank=0, world=2) as first:
            shares = [_epoch(first, 0), _epoch(last, 0)]
        again = _epoch(last, 1)
    assert all(40 <= len(share) <= 80 for share in (*shares, again))
    assert sorted(shares[0] + shares[1]) == sorted(manifest.samples["xxh3"].tolist())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_and_cropping_are_those_of_iobenchs_own_loader(
    kind: str, make_dataset: Any
) -> None:
    manifest, root = make_dataset(**_spec(kind, content="npz"))
    reader = {"decode": True, "crop": 9_000}
    own = make_loader(
        manifest, batch_size=16, storage=LocalStorage(root), reader=reader, loader={"workers": 0}
    )
    truth = sorted(bytes(sample.numpy()) for batch in own for sample in batch)
    own.shutdown()
    with _open(manifest, LocalStorage(root), kind, 1, reader=reader) as loader:
        assert sorted(bytes(sample.numpy()) for batch in loader for sample in batch) == truth


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_batch_cost_is_told(kind: str, make_dataset: Any) -> None:
    manifest, root = make_dataset(**_spec(kind))
    with _open(manifest, LocalStorage(root), kind) as loader:
        stats = [batch.stats for batch in loader]
        assert bool(set(loader.cpu_ns) - {stats[0].process}) is (kind not in THREADS)
    assert sum(each.samples for each in stats) == 120
    # Where a sample's own stored bytes can't be told, those of the dataset are shared out by its
    # length.
    shared = kind in ("hf-datasets", "litdata")
    stored = manifest.header.stored_bytes if shared else int(manifest.samples["stored"].sum())
    assert sum(each.bytes_read for each in stats) == pytest.approx(
        stored, rel=1e-3 if shared else 0
    )
    assert all(each.started_ns > 0 and each.cpu_ns > 0 and each.prep_ns >= 0 for each in stats)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"hf-datasets", MOSAIC}))
def test_compressed_samples(kind: str, make_dataset: Any) -> None:
    manifest, root = make_dataset(**_spec(kind, codec="zstd:1", compress_ratio=2.0))
    with _open(manifest, LocalStorage(root), kind) as loader:
        assert sorted(_epoch(loader, 0)) == sorted(manifest.samples["xxh3"].tolist())


class Stubborn(MemoryStorage):
    """Each read is answered at the second try; every other time because the server is busy."""

    reads = 0

    def read_into(self, *arguments: Any, **options: Any) -> int:
        self.reads += 1
        return super().read_into(*arguments, **options)

    def retried(self) -> Retries:
        return Retries(self.reads, self.reads // 2)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not _opens_paths(kind)])
def test_a_storage_that_is_no_directory(kind: str, make_dataset: Any) -> None:
    manifest, root = make_dataset(**_spec(kind))
    storage = Stubborn(
        objects={
            key: memoryview((root / key).read_bytes())
            for key in map(manifest.key, range(manifest.shard_count))
        }
    )
    with _open(manifest, storage, kind) as loader:
        batches = list(loader)
    hashes = [
        xxhash.xxh3_64_intdigest(sample.numpy().data) for batch in batches for sample in batch
    ]
    assert sorted(hashes) == sorted(manifest.samples["xxh3"].tolist())
    retries = sum(batch.stats.retries for batch in batches)
    assert (
        retries == 120 if FORMAT.get(kind, "files") == "files" else retries >= manifest.shard_count
    )
    assert sum(batch.stats.throttled for batch in batches) == pytest.approx(retries / 2, abs=2)


@pytest.mark.parametrize("kind", KINDS)
def test_giving_up_half_way_leaves_nothing_behind(
    kind: str, make_dataset: Any, nothing_left: set[int]
) -> None:
    manifest, root = make_dataset(**_spec(kind))
    with _open(manifest, LocalStorage(root), kind) as loader:
        batches = iter(loader)
        assert len(next(batches)) == 16
        batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"litdata"}))
def test_a_shard_that_is_gone_is_one_line(
    kind: str, make_dataset: Any, tmp_path: Path, nothing_left: set[int]
) -> None:
    manifest, root = make_dataset(**_spec(kind))
    for key in map(manifest.key, range(manifest.shard_count)):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).hardlink_to(root / key)
    (tmp_path / manifest.key(3)).unlink()

    def read() -> None:
        with _open(manifest, LocalStorage(tmp_path), kind) as loader:
            _epoch(loader, 0)

    with pytest.raises(IobenchError) as caught:
        read()
    assert kind in str(caught.value) or manifest.key(3) in str(caught.value)
    assert manifest.key(3).rpartition("/")[2] in str(caught.value)


def _takes_the_lock() -> None:
    with tqdm.tqdm.get_lock():
        pass


def test_a_worker_of_hf_datasets_may_be_forked_while_tqdm_holds_its_lock() -> None:
    """tqdm's thread takes it every ten seconds; a worker once waited for it for ever."""
    library_class("hf-datasets")
    worker = multiprocessing.get_context("fork").Process(target=_takes_the_lock)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with tqdm.tqdm.get_lock():
            held.set()
            forked.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    worker.start()
    forked.set()
    holder.join()
    worker.join(PATIENCE_S)
    alive = worker.is_alive()
    worker.kill()
    worker.join()
    assert not alive


class Plain(Library):
    """What a plug-in states at the least."""

    package = "torch"

    def epoch(self, epoch: int) -> Iterator[Packed]:
        samples = ByIndex(self.source)
        for batch in self.source.batches(epoch):
            yield collate([samples[index] for index in batch])


def test_a_plug_in_states_only_what_differs(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOADERS._entries, "plain", PlugIn(target="-", summary="-"))
    monkeypatch.setattr(
        LOADERS, "load", lambda name, load=LOADERS.load: Plain if name == "plain" else load(name)
    )
    manifest, root = make_dataset(**_spec("plain"))
    with _open(manifest, LocalStorage(root), "plain") as loader:
        assert sorted(_epoch(loader, 0)) == sorted(manifest.samples["xxh3"].tolist())


def test_a_plug_in_must_state_its_epochs_and_how_its_layout_is_made(make_dataset: Any) -> None:
    manifest, root = make_dataset(samples=4)
    source = Source(manifest, LocalStorage(root), ReaderSpec(), LoaderSpec(), 2)
    for base, missing in ((Library, "epoch"), (Converts, "convert")):
        with pytest.raises(TypeError, match=missing):
            type("Half", (base,), {"package": "torch"})(source)


def test_a_layout_is_made_once_and_belongs_to_its_dataset(make_dataset: Any) -> None:
    manifest, root = make_dataset(samples=61, name="demo")
    storage = LocalStorage(root)
    source = Source(manifest, storage, ReaderSpec(decode=False), LoaderSpec(kind="litdata"), 16)
    made, kept = make_layout(source, "litdata 1")
    assert (kept, made.bytes > manifest.header.sample_bytes) == (False, True)
    assert make_layout(source, "litdata 1") == (made, True)
    assert make_layout(source, "litdata 2")[1] is False  # another version of the library
    assert sorted(layout_keys(storage, "litdata")) == [
        f"layouts/litdata/{name}" for name in made.files
    ]


def test_a_layout_is_durable_with_its_record_and_its_name(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, root = make_dataset(samples=57, name="demo")
    synced: list[str] = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), root)),
    )
    make_layout(
        Source(
            manifest, LocalStorage(root), ReaderSpec(decode=False), LoaderSpec(kind="litdata"), 16
        ),
        "litdata 1",
    )
    assert {"layouts/litdata.part/layout.json", "layouts/litdata.part", "layouts", "."} <= set(
        synced
    )


def test_a_layout_that_was_not_made_is_one_line_that_says_what_makes_it(make_dataset: Any) -> None:
    manifest, root = make_dataset(samples=59, name="demo")
    other, _ = make_dataset(samples=58, name="demo")
    storage, loader = LocalStorage(root), {"kind": "litdata", "workers": 0}
    remedy = f"iobench run WORKLOAD --data {root} --set loader.kind=litdata"
    with pytest.raises(UsageError, match="litdata") as caught:
        make_loader(str(root), batch_size=16, loader=loader)
    assert remedy in str(caught.value)
    made, _ = make_layout(
        Source(manifest, storage, ReaderSpec(decode=False), LoaderSpec(kind="litdata"), 16),
        "litdata 1",
    )
    with pytest.raises(UsageError, match="another dataset") as caught:
        make_loader(other, batch_size=16, storage=storage, loader=loader)
    assert remedy in str(caught.value)
    opened = make_loader(str(root), batch_size=16, loader=loader)
    assert sum(len(batch) for batch in opened) == 59
    opened.shutdown()
    (root / "layouts" / "litdata" / made.files[-1]).unlink()
    with pytest.raises(UsageError, match="no complete layout"):
        make_loader(str(root), batch_size=16, loader=loader)


PARQUET_OF_ONE_SHARD = {"format": "parquet", "samples_per_shard": 60, "block_size": "40kB"}


@pytest.mark.parametrize(
    ("kind", "spec", "reader", "workers", "words"),
    [
        ("webdataset", {}, {}, 2, "format=tar"),
        ("hf-datasets", {}, {}, 2, "format=parquet"),
        ("torch-map", {"format": "parquet", "samples_per_shard": 10}, {}, 2, "'parquet'"),
        ("webdataset", {"format": "tar", "samples_per_shard": 30}, {}, 4, "loader.workers=2"),
        ("hf-datasets", PARQUET_OF_ONE_SHARD, {}, 2, "loader.workers=1"),
        ("spdl", {}, {"direct": True}, 2, "reader.direct"),
        ("grain", {}, {"mmap": True}, 2, "reader.mmap"),
        ("torch-map", {}, {"check": "content"}, 2, "reader.check"),
    ],
)
def test_what_a_library_cannot_have_is_named_with_a_way_out(
    kind: str,
    spec: dict[str, Any],
    reader: dict[str, Any],
    workers: int,
    words: str,
    make_dataset: Any,
) -> None:
    manifest, root = make_dataset(**{"format": "files", **spec})
    with pytest.raises(UsageError) as caught:
        open_library(
            manifest,
            open_storage(str(root)),
            ReaderSpec(**reader),
            LoaderSpec(kind=kind, workers=workers),
            batch_size=16,
        )
    assert words in str(caught.value)  # the setting to change


@pytest.mark.parametrize("kind", [kind for kind in KINDS if _opens_paths(kind)])
def test_a_library_that_opens_paths_needs_a_directory(kind: str, make_dataset: Any) -> None:
    manifest, _ = make_dataset(**_spec(kind))
    with pytest.raises(UsageError):
        open_library(
            manifest, MemoryStorage(objects={}), ReaderSpec(), LoaderSpec(kind=kind), batch_size=16
        )
