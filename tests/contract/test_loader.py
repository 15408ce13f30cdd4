"""A loader in somebody else's training: any number of iterations at once, ranks, slots, and plain
torch. What it delivers is in test_transports.py.
"""

from __future__ import annotations

import gc
import itertools
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from iobench.base.errors import UsageError
from iobench.data.dataset import load_manifest
from iobench.load.build import build_loader, make_loader
from iobench.load.loader import BatchLoader
from iobench.load.null import NullReader
from iobench.load.slots import DeviceFeed
from iobench.record.manifest import Manifest
from iobench.settings.workload import LoaderSpec, ReaderSpec
from iobench.storage import open_storage
from iobench.storage.local.uring import refused
from iobench.storage.simulated.memory import MemoryStorage
from tests.conftest import ENGINES, MakeDataset
from tests.contract.conftest import Load
from tests.contract.truth import decoded, in_order, plain, taken
from tests.pairs import one_of
from tests.processes import python, wait_until

WAYS = [("ring", 0), ("ring", 2), ("tensor", 0), ("tensor", 2), ("thread", 3)]
"""(transport, workers)"""

BY = list(zip(WAYS, itertools.cycle(ENGINES)))
"""Each way over one of the engines: reading knows nothing of transports."""

pytestmark = pytest.mark.usefixtures("nothing_left")

# Ranks


@pytest.mark.parametrize("tail", ["keep", "drop"])
def test_ranks_share_an_epoch(make_dataset: MakeDataset, load: Load, tail: str) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=13)
    found: dict[int, bytes] = {}
    sizes = []
    for rank in range(4):
        reader = {"tail": tail, "access": "random"}
        loader = load(path, batch_size=4, rank=rank, world=4, seed=9, reader=reader)
        before = len(found)
        assert len(loader) == len([taken([batch], into=found) for batch in loader])
        sizes.append(len(found) - before)
    expected = decoded(manifest, path)
    assert sizes == ([15] * 4 if tail == "keep" else [12] * 4)
    assert all(expected[index] == sample for index, sample in found.items())


# Iterating


@pytest.mark.parametrize(("way", "engine"), BY, indirect=["engine"])
def test_two_iterations_at_once_do_not_disturb_each_other(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int], engine: str
) -> None:
    """As in zip(loader, loader): workers of one may still fill slots when the other begins."""
    manifest, path = make_dataset(format="tar", samples=120, samples_per_shard=11)
    reader, loading = {"access": "random", "engine": engine}, {"persistent_workers": False}
    loader = load(path, way, batch_size=4, reader=reader, loader=loading)
    first = iter(loader)
    found = [taken([next(first)]), {}]
    loader.set_epoch(1)
    for batch in loader:
        taken([batch], into=found[1])
        taken([one for one in [next(first, None)] if one is not None], into=found[0])
    taken(first, into=found[0])
    for one in found:
        assert [one[index] for index in range(120)] == plain(manifest, path)
    assert list(found[0]) != list(found[1])  # each kept the order of its own epoch
    del batch
    if loader.ring is not None:
        assert loader.ring.free == loader.ring.count


@pytest.mark.parametrize(
    ("persistent", "way", "engine"),
    one_of(2, [(lasting, *each) for lasting in (True, False) for each in BY]),
    indirect=["engine"],
)
def test_an_epoch_that_is_given_up_harms_no_later_one(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int], persistent: bool, engine: str
) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=5)
    loading = {"persistent_workers": persistent}
    loader = load(path, way, batch_size=4, reader={"engine": engine}, loader=loading)
    orders = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        if epoch % 2 == 0:
            next(iter(loader))
            continue
        found = taken(loader)
        assert [found[index] for index in range(60)] == plain(manifest, path)
        orders.append(list(found))
    assert orders[0] != orders[1]  # workers that live on see the new epoch's order
    if loader.ring is not None:
        assert (loader.ring.misses, loader.ring.free) == (0, loader.ring.count)


@pytest.mark.parametrize("transport", ["ring", "tensor", "thread"])
def test_a_thread_may_train_and_end(make_dataset: MakeDataset, load: Load, transport: str) -> None:
    """Workers belong to the process, not to the thread that first asked for a batch."""
    _, path = make_dataset(format="tar")
    loader = load(path, (transport, 1), batch_size=4)
    counts: list[int] = []
    trainer = threading.Thread(target=lambda: counts.append(sum(len(batch) for batch in loader)))
    trainer.start()
    trainer.join()
    gone = Path("/proc/self/task", str(trainer.native_id))
    wait_until(lambda: not gone.exists(), "the thread is there")  # its end signals no worker
    counts.append(sum(len(batch) for batch in loader))
    assert counts == [60, 60]


@pytest.mark.parametrize(("way", "engine"), BY, indirect=["engine"])
def test_loaders_that_come_and_go_leave_nothing_open(
    make_dataset: MakeDataset, way: tuple[str, int], engine: str
) -> None:
    """An open descriptor of a ring would keep all of its memory."""
    _, path = make_dataset(format="tar", samples_per_shard=5)

    def once() -> int:
        reading = {"engine": engine, "concurrency": 20}  # more than a batch has: it reads ahead
        loading = {"transport": way[0], "workers": way[1]}
        loader = make_loader(path, batch_size=10, reader=reading, loader=loading)
        next(iter(loader))
        loader.shutdown()
        del loader
        gc.collect()
        return psutil.Process().num_fds()

    once()  # what Python opens once for all
    before = once()
    # Each of them would leave one more; a library's own thread may have some open for a moment.
    assert min(once() for _ in range(3)) <= before


# Slots


class TestBatchesThatOutgrowTheirSlots:
    """Sizes vary, so the batches of an epoch that nobody looked at may be larger than the slots
    that were made.
    """

    @pytest.fixture
    def manifest(self, make_dataset: MakeDataset) -> Manifest:
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
        for epoch in range(40):
            loader.set_epoch(epoch)
            assert sum(len(batch) for batch in loader) == 200
        assert 0 < loader.ring.misses < 40

    def test_the_size_in_the_message_is_enough(self, manifest: Manifest) -> None:
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


def test_a_ring_that_memory_can_not_hold_is_refused_with_numbers(make_dataset: MakeDataset) -> None:
    _, path = make_dataset(format="tar")
    with pytest.raises(UsageError, match=r"\d+ slots of .*iB"):
        make_loader(path, batch_size=4, loader={"slot_size": 1 << 40})


# In a training


@pytest.mark.parametrize("way", [("ring", 2), ("tensor", 2), ("thread", 2)])
def test_a_training_loop_in_plain_torch(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int]
) -> None:
    """Ops in place on the batch, ops that copy, and a model whose graph holds on to its input."""
    manifest, path = make_dataset(format="tar", sample_size={"mean": 4096})
    expected = torch.stack(
        [torch.frombuffer(bytearray(sample), dtype=torch.uint8) for sample in plain(manifest, path)]
    )
    model = torch.nn.Linear(4096, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = load(path, way, batch_size=8)
    assert isinstance(loader, torch.utils.data.DataLoader)
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


def test_the_copy_to_a_device_is_the_batch(make_dataset: MakeDataset, load: Load) -> None:
    manifest, path = make_dataset(format="tar", content="npz")
    expected = decoded(manifest, path)
    loader = load(path, ("ring", 2))
    feed = DeviceFeed(torch.device("cpu"))
    feed.attach(loader)
    for batch in loader:
        target, spent = feed.copy(batch)
        assert spent > 0
        assert target.data is not batch.data
        for index, sample in zip(batch.indices.tolist(), target, strict=True):
            assert sample.numpy().tobytes() == expected[index]
    feed.close()


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_a_manifest_and_a_storage_of_ones_own(
    make_dataset: MakeDataset, load: Load, start_method: str
) -> None:
    manifest, path = make_dataset(format="tar", content="npz", codec="gzip:1")
    objects = {key: memoryview((path / key).read_bytes()) for key in manifest.keys()}  # noqa: SIM118
    storage, loading = MemoryStorage(objects=objects), {"start_method": start_method}
    loader = load(load_manifest(path), ("tensor", 1), storage=storage, loader=loading)
    assert in_order(loader) == decoded(manifest, path)


def test_what_can_not_be_spawned_says_so(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(format="tar")
    storage = open_storage(f"throttled+{path}?latency=1us")
    loader = load(
        load_manifest(path), ("ring", 1), storage=storage, loader={"start_method": "spawn"}
    )
    with pytest.raises(UsageError, match=r"loader\.start_method=fork"):
        next(iter(loader))


# A script that ends in the middle of an epoch


SCRIPT = """
import iobench
loader = iobench.make_loader({data!r}, batch_size=2, {more})
batches = iter(loader)
next(batches)
print("end")
"""

SCRIPTS = {
    "read-ahead": "num_workers=0, reader={'engine': 'threads', 'concurrency': 16}",
    "io_uring": "num_workers=0, reader={'engine': 'io_uring', 'concurrency': 16}",
    "by-workers": "num_workers=2",
    "by-threads": "loader={'workers': 2, 'transport': 'thread'}, collate='list'",
    "by-a-library": "loader={'kind': 'torch-map', 'workers': 0}",
}


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("by-workers"),
        *(pytest.param(way, marks=pytest.mark.nightly) for way in SCRIPTS if way != "by-workers"),
    ],
)
def test_a_script_that_ends_with_an_iterator_in_use_says_nothing(
    way: str, make_dataset: Any
) -> None:
    if "io_uring" in SCRIPTS[way] and refused():
        pytest.skip("the kernel refuses io_uring")
    _, root = make_dataset()
    assert python(SCRIPT.format(data=str(root), more=SCRIPTS[way])) == "end\n"
