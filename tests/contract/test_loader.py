"""A loader in somebody else's training: any format, any consumer, any number of iterations at once.
Other libraries tell the truth.
"""

from __future__ import annotations

import gc
import gzip
import io
import os
import shutil
import tarfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import psutil
import pytest
import simplejpeg
import torch
import zstandard

from iobench.dataset import load_manifest
from iobench.errors import CorruptSampleError, UsageError
from iobench.load import Batch, BatchLoader, build_loader, make_loader
from iobench.load.device import DeviceFeed
from iobench.load.null import NullReader
from iobench.schema.manifest import Manifest
from iobench.schema.workload import LoaderSpec, ReaderSpec
from iobench.storage import open_storage
from iobench.storage.simulated.memory import MemoryStorage
from tests.conftest import ENGINES
from tests.pairs import pairs

TRANSPORTS = [("ring", 0), ("ring", 2), ("tensor", 0), ("tensor", 2), ("thread", 1), ("thread", 3)]

WAYS = [(*way, "threads") for way in TRANSPORTS]
WAYS += [("ring", 0, "io_uring"), ("tensor", 2, "io_uring"), ("thread", 3, "io_uring")]
"""(transport, workers, engine)"""

pytestmark = pytest.mark.usefixtures("nothing_left")

UNCOMPRESS = {
    "none": bytes,
    "gzip": gzip.decompress,
    "lz4": lz4.frame.decompress,
    "zstd": zstandard.decompress,
}
DECODE = {
    "raw": bytes,
    "npz": lambda data: np.load(io.BytesIO(data))["x"].tobytes(),
    "jpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB").tobytes(),
}


def records(path: Path) -> Iterator[bytes]:
    """The samples of one shard as other software sees them."""
    if path.suffix == ".tar":
        with tarfile.open(path) as tar:
            yield from (tar.extractfile(member).read() for member in tar)  # type: ignore[union-attr]
    elif path.suffix == ".tfrecord":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tfrecord.reader import tfrecord_loader

            yield from (
                bytes(record["data"])
                for record in tfrecord_loader(str(path), None, {"data": "byte"})
            )
    else:
        yield path.read_bytes()


def truth(manifest: Manifest, path: Path, *, decode: bool = True) -> list[bytes]:
    """What each sample must be in the training process."""
    undo = UNCOMPRESS[manifest.spec.codec.partition(":")[0]]
    plain = [undo(record) for key in manifest.keys() for record in records(path / key)]  # noqa: SIM118
    return [DECODE[manifest.spec.content](data) for data in plain] if decode else plain


@pytest.fixture
def load() -> Iterator[Any]:
    """``make_loader`` whose loaders end with the test, whatever became of it."""
    made: list[BatchLoader] = []

    def make(*arguments: Any, **more: Any) -> BatchLoader:
        made.append(make_loader(*arguments, **more))
        return made[-1]

    yield make
    for loader in made:
        loader.shutdown()


def taken(batches: Any, into: dict[int, bytes] | None = None) -> dict[int, bytes]:
    """Every delivered sample by its number; none twice."""
    found = {} if into is None else into
    for batch in batches:
        for index, sample in zip(batch.indices.tolist(), batch, strict=True):
            assert index not in found
            found[index] = sample.numpy().tobytes()
    return found


def by(transport: str, workers: int, **more: Any) -> dict[str, Any]:
    return {"transport": transport, "workers": workers, **more}


# The bytes


SPECS: list[dict[str, Any]] = [
    {"format": "tfrecord", "samples_per_shard": 13},
    {"format": "tfrecord", "content": "npz", "codec": "zstd:1", "samples_per_shard": 30},
    {"format": "tfrecord", "content": "jpeg", "samples_per_shard": 30},
    {"format": "tar", "content": "jpeg", "codec": "gzip:1"},
    {
        "format": "tar",
        "sample_size": {"mean": 700},
    },  # so small that a request spans what lies between samples
    {"format": "files", "content": "raw", "codec": "lz4", "compress_ratio": 2},
]


@pytest.mark.parametrize(
    ("spec", "way", "access", "engine"),
    pairs(SPECS, TRANSPORTS, ["sequential", "random"], ENGINES),
    indirect=["engine"],
)
def test_every_byte_is_right(
    make_dataset: Any,
    load: Any,
    spec: dict[str, Any],
    way: tuple[str, int],
    access: str,
    engine: str,
) -> None:
    transport, workers = way
    manifest, path = make_dataset(**spec)
    expected = truth(manifest, path)
    assert len(expected) == 60
    for batch_size in (2, 500) if workers < 2 else (9,):
        loader = load(
            path,
            batch_size=batch_size,
            seed=batch_size,
            reader={"access": access, "engine": engine},
            loader=by(transport, workers),
        )
        found = taken(loader)
        assert [found[index] for index in range(60)] == expected
        loader.shutdown()


@pytest.mark.parametrize(
    ("spec", "workers", "engine"),
    pairs(
        [{"format": "files"}, {"format": "tar"}, {"format": "tfrecord", "codec": "zstd:1"}],
        [0, 2],
        ENGINES,
    ),
    indirect=["engine"],
)
def test_counts_only(
    make_dataset: Any, load: Any, spec: dict[str, Any], workers: int, engine: str
) -> None:
    manifest, path = make_dataset(**spec)
    reading = {"direct": False, "engine": engine}
    batches = list(load(path, batch_size=7, reader=reading, loader=by("null", workers)))
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(60))
    stored = sum(sum(map(len, records(path / key))) for key in manifest.keys())  # noqa: SIM118
    assert sum(batch.stats.sample_bytes for batch in batches) == stored
    files = sum((path / key).stat().st_size for key in manifest.keys())  # noqa: SIM118
    assert stored <= sum(batch.stats.bytes_read for batch in batches) <= files
    assert all(batch.data is None for batch in batches)
    for look in (lambda: batches[0][0], lambda: batches[0].stacked(), lambda: list(batches[0])):
        with pytest.raises(UsageError, match="transport 'null'"):
            look()


@pytest.mark.parametrize(("transport", "workers"), TRANSPORTS)
def test_a_shorter_sample_than_the_crop_stays_whole(
    make_dataset: Any, load: Any, transport: str, workers: int
) -> None:
    sizes = {"distribution": "lognormal", "mean": 8000, "sigma": 1.0, "min": 300, "max": 60_000}
    manifest, path = make_dataset(format="tar", sample_size=sizes)
    loader = load(path, batch_size=8, reader={"crop": 5000}, loader=by(transport, workers))
    found = taken(loader)
    assert [found[index] for index in range(60)] == [
        sample[:5000] for sample in truth(manifest, path)
    ]
    assert len({len(sample) for sample in found.values()}) > 2


def test_samples_of_unequal_length_are_not_stacked(make_dataset: Any, load: Any) -> None:
    sizes = {"distribution": "lognormal", "mean": 8000, "sigma": 1.0, "min": 300, "max": 60_000}
    _, path = make_dataset(format="tar", sample_size=sizes)
    with pytest.raises(UsageError, match=r"different lengths.*reader\.crop"):
        next(iter(load(path, batch_size=30, loader=by("ring", 0)))).stacked()


@pytest.mark.parametrize(
    ("transport", "engine"),
    [("ring", "threads"), ("tensor", "threads"), ("thread", "io_uring"), ("null", "io_uring")],
    indirect=["engine"],
)
def test_damage_is_found_by_every_transport(
    make_dataset: Any, load: Any, tmp_path: Path, transport: str, engine: str
) -> None:
    manifest, path = make_dataset(format="tfrecord", samples_per_shard=13)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shard, start = int(manifest.samples["shard"][40]), int(manifest.samples["offset"][40])
    file = copy / manifest.key(shard)
    whole = file.read_bytes()
    for where, check in (
        (start, "content"),
        (start + 19_999, "content"),
        (start + 5, "format"),
        (start - 1, "format"),
    ):
        damaged = bytearray(whole)
        damaged[where] ^= 128
        file.write_bytes(damaged)
        with pytest.raises(
            CorruptSampleError, match=f"^sample 40 in shard {manifest.key(shard)} is damaged"
        ) as caught:
            taken_or_counted(
                load(
                    copy,
                    batch_size=7,
                    reader={"check": check, "engine": engine},
                    loader=by(transport, 1),
                )
            )
        assert "\n" not in str(caught.value)
        taken_or_counted(load(copy, batch_size=7, loader=by(transport, 1)))  # nobody asked
    file.write_bytes(whole)
    taken_or_counted(load(copy, batch_size=7, reader={"check": "format"}, loader=by(transport, 1)))


@pytest.mark.parametrize(
    ("block_size", "direct", "engine"),
    pairs([4096, 30_000, 65_536, 1 << 20], [True, False], ENGINES),
    indirect=["engine"],
)
def test_checksums_are_checked_on_whole_samples(
    make_dataset: Any, load: Any, tmp_path: Path, block_size: int, direct: bool, engine: str
) -> None:
    """Requests are aligned and split into blocks, and a sample may lie across two: only whole ones
    may be checked, and all must be.
    """
    sizes = {"distribution": "normal", "mean": 30_000, "stdev": 9000}
    manifest, path = make_dataset(format="tfrecord", samples_per_shard=20, sample_size=sizes)
    settings = {"check": "format", "direct": direct, "block_size": block_size, "engine": engine}
    for workers in (0, 1):
        taken_or_counted(load(path, batch_size=20, reader=settings, loader=by("ring", workers)))
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    file = copy / manifest.key(0)
    whole = file.read_bytes()
    for victim in (0, 7, 19):
        damaged = bytearray(whole)
        damaged[
            int(manifest.samples["offset"][victim]) + int(manifest.samples["stored"][victim]) - 1
        ] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(CorruptSampleError, match=f"^sample {victim} in shard"):
            taken_or_counted(load(copy, batch_size=20, reader=settings, loader=by("ring", 0)))


def taken_or_counted(loader: BatchLoader) -> None:
    assert sum(len(batch) for batch in loader) == 60


# Ranks


@pytest.mark.parametrize("tail", ["keep", "drop"])
def test_ranks_share_an_epoch(make_dataset: Any, load: Any, tail: str) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=13)
    found: dict[int, bytes] = {}
    sizes = []
    for rank in range(4):
        loader = load(
            path,
            batch_size=4,
            rank=rank,
            world=4,
            seed=9,
            reader={"tail": tail, "access": "random"},
            loader=by("ring", 0),
        )
        before = len(found)
        assert len(loader) == len([taken([batch], into=found) for batch in loader])
        sizes.append(len(found) - before)
    expected = truth(manifest, path)
    assert sizes == ([15] * 4 if tail == "keep" else [12] * 4)
    assert all(expected[index] == sample for index, sample in found.items())


# Iterating


@pytest.mark.parametrize(("transport", "workers", "engine"), WAYS, indirect=["engine"])
def test_two_iterations_at_once_do_not_disturb_each_other(
    make_dataset: Any, load: Any, transport: str, workers: int, engine: str
) -> None:
    """As in zip(loader, loader): workers of one may still fill slots when the other begins."""
    manifest, path = make_dataset(format="tar", samples=120, samples_per_shard=11)
    expected = truth(manifest, path)
    loader = load(
        path,
        batch_size=4,
        reader={"access": "random", "engine": engine},
        loader=by(transport, workers, persistent_workers=False),
    )
    first = iter(loader)
    found = [taken([next(first)]), {}]
    loader.set_epoch(1)
    for batch in loader:
        taken([batch], into=found[1])
        taken([one for one in [next(first, None)] if one is not None], into=found[0])
    taken(first, into=found[0])
    for one in found:
        assert [one[index] for index in range(120)] == expected
    assert list(found[0]) != list(found[1])  # each kept the order of its own epoch
    del batch
    if loader.ring is not None:
        assert loader.ring.free == loader.ring.count


@pytest.mark.parametrize(
    ("way", "persistent", "engine"),
    pairs([("ring", 0), ("ring", 2), ("thread", 2)], [True, False], ENGINES),
    indirect=["engine"],
)
def test_iterations_given_up_return_their_slots(
    make_dataset: Any, load: Any, way: tuple[str, int], persistent: bool, engine: str
) -> None:
    _, path = make_dataset(format="tar")
    loading = by(*way, persistent_workers=persistent)
    loader = load(path, batch_size=4, reader={"engine": engine}, loader=loading)
    for _ in range(5):
        next(iter(loader))
    assert sum(len(batch) for batch in loader) == 60
    assert loader.ring.misses == 0
    assert loader.ring.free == loader.ring.count


@pytest.mark.parametrize("transport", ["ring", "tensor", "thread"])
def test_a_thread_may_train_and_end(make_dataset: Any, load: Any, transport: str) -> None:
    """Workers belong to the process, not to the thread that first asked for a batch."""
    _, path = make_dataset(format="tar")
    loader = load(path, batch_size=4, loader=by(transport, 1))
    counts: list[int] = []
    trainer = threading.Thread(target=lambda: counts.append(sum(len(batch) for batch in loader)))
    trainer.start()
    trainer.join()
    time.sleep(0.2)  # a signal to the workers would arrive by now
    counts.append(sum(len(batch) for batch in loader))
    assert counts == [60, 60]


@pytest.mark.parametrize(
    ("transport", "workers"), [("ring", 0), ("ring", 2), ("thread", 2), ("tensor", 2)]
)
def test_a_kept_batch_outlives_its_loader(make_dataset: Any, transport: str, workers: int) -> None:
    manifest, path = make_dataset(format="tar")
    loader = make_loader(path, batch_size=6, loader=by(transport, workers))
    kept = list(loader)
    loader.shutdown()
    del loader
    gc.collect()
    found = taken(kept)
    assert [found[index] for index in range(60)] == truth(manifest, path)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("transport", "workers", "engine"), WAYS, indirect=["engine"])
def test_loaders_that_come_and_go_leave_nothing_open(
    make_dataset: Any, transport: str, workers: int, engine: str, whole: bool
) -> None:
    """An open descriptor of a ring would keep all of its memory."""
    _, path = make_dataset(format="tar", samples_per_shard=5)

    def once() -> int:
        reading = {"engine": engine, "concurrency": 20}  # more than a batch has: it reads ahead
        loader = make_loader(path, batch_size=10, reader=reading, loader=by(transport, workers))
        if whole:
            assert sum(len(batch) for batch in loader) == 60
        else:
            next(iter(loader))
        loader.shutdown()
        del loader
        gc.collect()
        return psutil.Process().num_fds()

    once()  # what Python opens once for all
    before = once()
    # Each of them would leave one more; a library's own thread may have some open for a moment.
    assert min(once() for _ in range(4)) <= before


# Slots


class TestBatchesThatOutgrowTheirSlots:
    """Sizes vary, so the batches of an epoch that nobody looked at may be larger than the slots
    that were made.
    """

    @pytest.fixture
    def manifest(self, make_dataset: Any) -> Manifest:
        return make_dataset(format="files", samples=200, sample_size={"mean": 100})[0]  # type: ignore[no-any-return]

    def loader(self, manifest: Manifest, **spec: Any) -> BatchLoader:
        sizes = np.round(
            np.random.default_rng(0).lognormal(0, 1, manifest.sample_count) * 1_000_000
        ).astype(np.int64)
        return build_loader(
            NullReader(manifest, sizes), LoaderSpec(workers=0, **spec), ReaderSpec(), batch_size=4
        )

    def test_later_epochs_work(self, manifest: Manifest) -> None:
        loader = self.loader(manifest)
        assert loader.ring is not None
        for epoch in range(80):
            loader.set_epoch(epoch)
            assert sum(len(batch) for batch in loader) == 200
        assert 0 < loader.ring.misses < 80

    def test_a_size_that_the_user_set_is_meant(self, manifest: Manifest) -> None:
        with pytest.raises(
            UsageError, match=r"does not fit a slot of \d+ bytes.*loader\.slot_size=\d+MiB"
        ):
            list(self.loader(manifest, slot_size=2 << 20))

    def test_the_size_in_the_message_is_enough(self, manifest: Manifest) -> None:
        import re

        size = 2
        for _ in range(50):
            try:
                assert len(list(self.loader(manifest, slot_size=size << 20))) == 50
            except UsageError as error:
                found = re.search(r"slot_size=(\d+)MiB", str(error))
                assert found
                assert int(found[1]) > size
                size = int(found[1])
            else:
                return
        pytest.fail("raising the size as told never ends")


def test_a_ring_that_memory_can_not_hold_is_refused_with_numbers(make_dataset: Any) -> None:
    _, path = make_dataset(format="tar")
    with pytest.raises(UsageError, match=r"iB \(\d+ slots of .*iB\), .*iB"):
        make_loader(path, batch_size=4, loader=by("ring", 2, slot_size=1 << 40))


# In a training


@pytest.mark.parametrize(("transport", "workers"), [("ring", 2), ("tensor", 2), ("thread", 2)])
def test_a_training_loop_in_plain_torch(
    make_dataset: Any, load: Any, transport: str, workers: int
) -> None:
    """Ops in place on the batch, ops that copy, and a model whose graph holds on to its input."""
    manifest, path = make_dataset(format="tar", sample_size={"mean": 4096})
    expected = torch.stack(
        [torch.frombuffer(bytearray(sample), dtype=torch.uint8) for sample in truth(manifest, path)]
    )
    model = torch.nn.Linear(4096, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = load(path, batch_size=8, loader=by(transport, workers))
    for epoch in range(2):
        loader.set_epoch(epoch)
        rows, losses, views = [], [], []
        for batch in loader:
            images = batch.stacked()
            views.append(images)  # one for each batch, more than there are slots
            rows.append(torch.from_numpy(batch.indices))
            losses.append(model(images.float() / 255).square().mean())
        assert torch.equal(torch.cat(views), expected[torch.cat(rows)])
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
        views[0] += 1  # the user's to change: no other batch shares it
        assert torch.equal(torch.cat(views[1:]), expected[torch.cat(rows[1:])])
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_copy_to_a_device_is_the_batch(make_dataset: Any, load: Any) -> None:
    manifest, path = make_dataset(format="tar", content="npz")
    expected = truth(manifest, path)
    loader = load(path, batch_size=7, loader=by("ring", 2))
    feed = DeviceFeed("cpu")
    feed.attach(loader)
    for batch in loader:
        target, spent = feed.copy(batch)
        assert spent > 0
        assert target.data is not batch.data
        for index, sample in zip(batch.indices.tolist(), target, strict=True):
            assert sample.numpy().tobytes() == expected[index]
    feed.close()


def test_a_manifest_and_a_storage_of_ones_own(make_dataset: Any, load: Any) -> None:
    manifest, path = make_dataset(format="tar", content="npz", codec="gzip:1")
    objects = {key: memoryview((path / key).read_bytes()) for key in manifest.keys()}  # noqa: SIM118
    for start_method in ("fork", "spawn"):
        storage = MemoryStorage(objects=objects)
        found = taken(
            load(
                load_manifest(path),
                storage=storage,
                batch_size=20,
                loader=by("tensor", 1, start_method=start_method),
            )
        )
        assert [found[index] for index in range(60)] == truth(manifest, path)


def test_what_can_not_be_spawned_says_so(make_dataset: Any, load: Any) -> None:
    _, path = make_dataset(format="tar")
    storage = open_storage(f"throttled+{path}?latency=1us")
    loader = load(
        load_manifest(path),
        storage=storage,
        batch_size=20,
        loader=by("ring", 1, start_method="spawn"),
    )
    with pytest.raises(UsageError, match=r"loader\.start_method=fork"):
        next(iter(loader))


def test_batches_say_what_they_cost(make_dataset: Any, load: Any) -> None:
    _, path = make_dataset(format="tar", content="jpeg")
    loader = load(path, batch_size=10, loader=by("ring", 2))
    batches: list[Batch] = list(loader)
    assert {batch.stats.process for batch in batches} == set(loader.cpu_ns)
    assert os.getpid() not in loader.cpu_ns
    assert len(loader.cpu_ns) == 2
    assert all(
        batch.stats.read_ns > 0 and batch.stats.prep_ns > 0 and batch.stats.samples == len(batch)
        for batch in batches
    )
