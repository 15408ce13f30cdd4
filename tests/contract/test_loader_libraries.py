"""Every loader library must deliver the dataset's samples, each once in an epoch, whatever the
workers, ranks, codec and content.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm
import xxhash

from iobench.base.errors import IobenchError, UsageError
from iobench.load.build import make_loader
from iobench.load.layouts import layout_keys, make_layout
from iobench.load.libraries import LOADERS, library_class
from iobench.load.libraries.base import Source
from iobench.load.reader import BatchReader
from iobench.load.third_party import open_library
from iobench.record.manifest import Manifest
from iobench.settings.workload import OWN_LOADER, USER_LOADER, LoaderSpec, ReaderSpec
from iobench.storage import open_storage
from iobench.storage.base import Retries
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.testing.loaders import LoaderContract, opened
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


NOT_HERE = _why_not(MOSAIC)
KINDS = sorted({*LOADERS.entries()} - {OWN_LOADER, USER_LOADER} - ({MOSAIC} if NOT_HERE else set()))
OPENS_PATHS = sorted({"hf-datasets", "litdata", MOSAIC} & {*KINDS})
"""As their classes say. Only a process that runs a test of them imports the libraries."""

LATER = ("grain", "spdl", "torch-iterable", "torchdata")
"""They read single files as torch-map does, or tar shards as webdataset does: their contract waits
for the night, or for a change of iobench/load/libraries.
"""

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


def test_every_kind_goes_through_this_suite() -> None:
    """But for one that CI can't have either: it wants NumPy below 2.2 and xxhash below 4, and a
    torchvision built with its torch.
    """
    assert [why for kind in KINDS if (why := _why_not(kind)) is not None] == []
    assert [kind for kind in KINDS if getattr(library_class(kind), "local", False)] == OPENS_PATHS
    if NOT_HERE:
        pytest.skip(
            f"NOT RUN: loader {MOSAIC}, which can't be installed beside the versions in "
            f"constraints.txt ({NOT_HERE})"
        )


class TestLibraries(LoaderContract):
    @pytest.fixture(
        params=[pytest.param(kind, marks=[pytest.mark.nightly] * (kind in LATER)) for kind in KINDS]
    )
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def form(self, kind: str) -> str:
        return FORMAT.get(kind, "files")

    @pytest.fixture
    def codec(self, kind: str) -> str:
        return "none" if kind in ("hf-datasets", MOSAIC) else "zstd:1"

    @pytest.fixture
    def repeats(self, kind: str) -> bool:
        return kind in ("torch-map", "torchdata", "spdl", "grain", MOSAIC)

    @pytest.fixture(autouse=True)
    def _no_trace(
        self, nothing_left: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        """No process, no shared memory, no temporary file."""
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        yield
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_whose_cpu_time_a_batch_took(kind: str, make_dataset: Any) -> None:
    manifest, root = make_dataset(**_spec(kind))
    with opened(manifest, LocalStorage(root), kind) as loader:
        first, *_ = [batch.stats.process for batch in loader]
        assert bool(set(loader.cpu_ns) - {first}) is (kind not in THREADS)


class Stubborn(MemoryStorage):
    """Each read is answered at the second try; every other time because the server is busy."""

    reads = 0
    meanwhile: Callable[[], object] | None = None  # done once, during the next read

    @classmethod
    def of(cls, manifest: Manifest, root: Path) -> Stubborn:
        keys = map(manifest.key, range(manifest.shard_count))
        return cls(objects={key: memoryview((root / key).read_bytes()) for key in keys})

    def read_into(self, *arguments: Any, **options: Any) -> int:
        self.reads += 1
        call, self.meanwhile = self.meanwhile, None
        if call is not None:
            call()
        return super().read_into(*arguments, **options)

    def retried(self) -> Retries:
        return Retries(self.reads, self.reads // 2)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*OPENS_PATHS}))
def test_a_storage_that_is_no_directory(kind: str, make_dataset: Any) -> None:
    manifest, root = make_dataset(**_spec(kind))
    with opened(manifest, Stubborn.of(manifest, root), kind) as loader:
        batches = list(loader)
    found = [xxhash.xxh3_64_intdigest(sample.numpy().data) for batch in batches for sample in batch]
    assert sorted(found) == sorted(manifest.samples["xxh3"].tolist())
    retries = sum(batch.stats.retries for batch in batches)
    assert (
        retries == 120 if FORMAT.get(kind, "files") == "files" else retries >= manifest.shard_count
    )
    assert sum(batch.stats.throttled for batch in batches) == pytest.approx(retries / 2, abs=2)


@pytest.mark.parametrize("how", ["gone", "shorter"])
@pytest.mark.parametrize("kind", ["torch-map", "torch-iterable"])
def test_a_damaged_shard_is_one_line(
    kind: str, how: str, make_dataset: Any, tmp_path: Path
) -> None:
    manifest, whole = make_dataset(**_spec(kind))
    root = Path(shutil.copytree(whole, tmp_path / "damaged"))
    shard = root / manifest.key(0)
    shard.unlink() if how == "gone" else os.truncate(shard, shard.stat().st_size // 2)
    with (
        opened(manifest, LocalStorage(root), kind) as loader,
        pytest.raises(IobenchError, match=manifest.key(0)) as caught,
    ):
        list(loader)
    assert len(str(caught.value)) < 500


def test_a_retry_is_told_once_by_readers_that_share_a_storage(make_dataset: Any) -> None:
    """As those of transport 'thread', whose batches are made at the same time."""
    manifest, root = make_dataset(**_spec("torch-map"))
    storage = Stubborn.of(manifest, root)
    reader = BatchReader(manifest, storage, ReaderSpec(concurrency=1))
    other, found = reader.clone(), []
    storage.meanwhile = lambda: found.append(other.read(np.array([1]), None).stats.retries)
    found.append(reader.read(np.array([0]), None).stats.retries)
    assert sum(found) == storage.reads == 2


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


@pytest.mark.parametrize("kind", OPENS_PATHS)
def test_a_library_that_opens_paths_needs_a_directory(kind: str, make_dataset: Any) -> None:
    manifest, _ = make_dataset(**_spec(kind))
    with pytest.raises(UsageError):
        open_library(
            manifest, MemoryStorage(objects={}), ReaderSpec(), LoaderSpec(kind=kind), batch_size=16
        )
