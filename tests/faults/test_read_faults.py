"""Storage and processes that fail under a loader: one StorageError or WorkerError in one line, no
hang, nothing left running.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.base.errors import IobenchError, StorageError, WorkerError
from iobench.load.build import build_loader, make_loader
from iobench.load.loader import BatchLoader, die_with_parent
from iobench.load.reader import BatchReader
from iobench.record.manifest import Manifest
from iobench.record.training import Epoch
from iobench.runner.agent import HostAgent
from iobench.runner.loading import run_phase
from iobench.runner.plan import make_plan
from iobench.runner.results import add_changes, begin_record, shard_versions
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec, load_workload
from iobench.storage.base import Storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.faulty import FaultyStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.conftest import ENGINES
from tests.observers import on_steps
from tests.pairs import pairs
from tests.phases import phase
from tests.processes import check_ended

TRANSPORTS = [("ring", 0), ("ring", 2), ("tensor", 2), ("thread", 2)]

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def loader_over() -> Iterator[Callable[..., BatchLoader]]:
    made: list[BatchLoader] = []

    def make(
        manifest: Manifest,
        storage: Storage,
        transport: str,
        workers: int,
        *,
        batch_size: int = 8,
        **more: Any,
    ) -> BatchLoader:
        reading = ReaderSpec(concurrency=3, direct=False)
        loading = LoaderSpec.model_validate({"transport": transport, "workers": workers, **more})
        made.append(
            build_loader(
                BatchReader(manifest, storage, reading),
                loading,
                reading,
                batch_size=batch_size,
                seed=1,
            )
        )
        return made[-1]

    yield make
    for loader in made:
        loader.shutdown()


def exhaust(*loaders: Any) -> None:
    for loader in loaders:
        for _ in loader:
            pass


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


# Storage


@pytest.mark.parametrize(
    ("transport", "workers", "persistent"),
    [*((*each, True) for each in TRANSPORTS), ("ring", 2, False)],
)
def test_every_read_may_fail(
    make_dataset: Any,
    loader_over: Callable[..., BatchLoader],
    transport: str,
    workers: int,
    persistent: bool,
) -> None:
    """Fail the Nth read for N = 1, 2, ... until an epoch passes. What arrived before the failure is
    right, and arrived once. The user may go on: the next epoch is whole, and no slot is lost.
    """
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)
    texts: list[str] = []
    while len(texts) < 100:
        number = len(texts) + 1
        storage = FaultyStorage(LocalStorage(path), fail_at=number)
        loader = loader_over(manifest, storage, transport, workers, persistent_workers=persistent)
        seen: list[int] = []
        try:
            for batch in loader:
                seen += batch.indices.tolist()
        except StorageError as error:
            texts.append(one_line(error))
        if len(texts) < number:
            break
        assert len(set(seen)) == len(seen) < 40
        if number in (1, 3):
            again = sorted(index for batch in loader for index in batch.indices.tolist())
            assert again == list(range(40))
            batch = None
            gc.collect()  # frames of the traceback hold a batch
            assert loader.ring is None or loader.ring.free == loader.ring.count
        loader.shutdown()
    assert sorted(seen) == list(range(40))
    assert len(texts) >= 5  # five batches of one read at least
    assert all(
        text.endswith(f"simulated input/output error (read {number})")
        for number, text in enumerate(texts, 1)
    )


@pytest.mark.parametrize(("transport", "workers"), TRANSPORTS)
def test_short_reads_are_never_delivered(
    make_dataset: Any, loader_over: Callable[..., BatchLoader], transport: str, workers: int
) -> None:
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)
    with pytest.raises(StorageError, match=r"ends at byte \d+") as caught:
        list(
            loader_over(
                manifest, FaultyStorage(LocalStorage(path), short_every=3), transport, workers
            )
        )
    assert "data/demo-00000" in one_line(caught.value)


@pytest.mark.parametrize(
    ("damage", "way", "form", "engine"),
    pairs(
        ["truncated", "emptied", "missing", "a loop of links"],
        [("ring", 2), ("thread", 1)],
        ["files", "tar"],
        ENGINES,
    ),
    indirect=["engine"],
)
def test_shards_that_break_in_the_middle_of_a_run(
    make_dataset: Any, tmp_path: Path, damage: str, way: tuple[str, int], form: str, engine: str
) -> None:
    transport, workers = way
    reading = {"engine": engine}
    _, source = make_dataset(
        format=form, samples=40, **({"samples_per_shard": 10} if form == "tar" else {})
    )
    path = tmp_path / "copy"
    shutil.copytree(source, path)
    loader = make_loader(
        path,
        batch_size=4,
        reader=reading,
        loader={"transport": transport, "workers": workers, "prefetch_factor": 1},
    )
    batches = iter(loader)
    assert len(next(batches)) == 4
    broken = [
        file
        for file in path.rglob("*")
        if file.is_file() and file.suffix in (".bin", ".raw", ".tar")
    ]
    assert len(broken) == loader.reader.manifest.shard_count
    # Handles of this process; workers keep theirs, and may well read on from a file that was
    # unlinked.
    loader.reader.storage.close()
    for file in broken:
        if damage == "truncated":
            os.truncate(file, 700)
        elif damage == "emptied":
            os.truncate(file, 0)
        else:
            file.unlink()
            if damage == "a loop of links":
                file.symlink_to(file.name)
    loader.set_epoch(1)
    with pytest.raises(StorageError, match=r"data/") as caught:
        exhaust(
            batches,
            make_loader(
                path,
                batch_size=4,
                reader=reading,
                loader={"transport": transport, "workers": workers},
            ),
        )
    one_line(caught.value)
    del batches
    loader.shutdown()


# Processes


@pytest.mark.parametrize(
    ("transport", "persistent"), [("ring", True), ("tensor", False), ("null", True)]
)
def test_a_killed_worker_is_one_clear_error(
    make_dataset: Any,
    loader_over: Callable[..., BatchLoader],
    transport: str,
    persistent: bool,
    nothing_left: set[int],
) -> None:
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)
    storage = ThrottledStorage(LocalStorage(path), latency_s=0.02)
    loader = loader_over(
        manifest, storage, transport, 2, batch_size=2, persistent_workers=persistent
    )

    def train() -> None:
        for number, batch in enumerate(loader):
            if number == 2:
                nothing_left.add(batch.stats.process)
                psutil.Process(batch.stats.process).kill()

    # torch may raise from its signal handler, which is outside the loader's reach.
    with pytest.raises(
        (WorkerError, RuntimeError), match=r"worker.*(died|killed|exited)"
    ) as caught:
        train()
    assert isinstance(caught.value, WorkerError) or "DataLoader worker" in str(caught.value)


@pytest.mark.parametrize("step_time", [None, 0.3])
def test_a_killed_worker_of_a_rank_is_one_clear_error(
    make_dataset: Any, step_time: float | None
) -> None:
    """Whether its rank waits for data or computes when the worker dies."""
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)
    accelerator = (
        AcceleratorSpec(kind="emulated", step_time=step_time)
        if step_time
        else AcceleratorSpec(kind="null")
    )
    storage = ThrottledStorage(LocalStorage(path), latency_s=0.1)
    killed: list[int] = []
    before = set(psutil.Process().children())  # servers of other tests, which have children, too

    def kill_a_worker(steps: int) -> None:
        if steps >= 2 and not killed:
            for rank in set(psutil.Process().children()) - before:
                with suppress(psutil.NoSuchProcess):
                    for worker in rank.children():
                        worker.kill()
                        killed.append(worker.pid)
                        return

    with pytest.raises(WorkerError, match="worker died") as caught:
        run_phase(
            phase(manifest, storage, accelerator=accelerator, epochs=50, batch_size=2),
            context=on_steps(kill_a_worker),
        )
    one_line(caught.value)
    assert killed


@pytest.mark.parametrize("when", ["before the epoch", "in the epoch", "stopped and killed"])
def test_a_killed_rank_takes_its_workers_along(make_dataset: Any, when: str) -> None:
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)
    family: list[psutil.Process] = []

    def kill_rank() -> None:
        if family:
            return
        rank = max(
            psutil.Process().children(), key=psutil.Process.create_time
        )  # numbers of processes start again at 1
        family.extend([rank, *rank.children()])
        if when.startswith("stopped"):
            rank.suspend()
        rank.kill()

    def prepare(epoch: int) -> Epoch:
        if when == "before the epoch":
            kill_rank()
        return Epoch(epoch=epoch)

    storage = ThrottledStorage(LocalStorage(path), latency_s=0.05)
    with pytest.raises(WorkerError, match=r"rank \d died \(killed by SIGKILL\)") as caught:
        run_phase(
            phase(manifest, storage, epochs=100),
            prepare=prepare,
            context=on_steps(lambda steps: kill_rank() if steps >= 2 else None),
        )
    one_line(caught.value)
    check_ended(family)


def test_what_iobench_did_not_expect_is_one_line_too(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)

    class Careless(LocalStorage):
        def read_into(self, *arguments: Any, **more: Any) -> int:
            raise KeyError("a plug-in's bug\nin two lines")

    for transport, workers in (("ring", 2), ("thread", 2)):
        loading = LoaderSpec.model_validate({"transport": transport, "workers": workers})
        with pytest.raises(IobenchError, match="plug-in's bug") as caught:
            run_phase(phase(manifest, Careless(path), loading=loading))
        one_line(caught.value)


def test_a_parent_that_is_dead_already_is_noticed() -> None:
    """The kernel reports the parent's death only to who asked before it; a child may get to ask too
    late.
    """
    from multiprocessing import get_context

    readable, writable = os.pipe()

    def child(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.01)
        die_with_parent()
        os.write(writable, b"survived")

    middle = os.fork()
    if middle == 0:
        get_context("fork").Process(target=child, args=(os.getpid(),)).start()
        os._exit(0)
    os.close(writable)
    os.waitpid(middle, 0)
    assert os.read(readable, 100) == b""
    os.close(readable)


@pytest.mark.nightly  # its server imports torch again
def test_workers_of_a_server_of_forks_live(
    make_dataset: Any, loader_over: Callable[..., BatchLoader]
) -> None:
    """Their parent is not the process that loads."""
    manifest, path = make_dataset(format="tar", samples=40, samples_per_shard=10)
    loader = loader_over(manifest, LocalStorage(path), "ring", 1, start_method="forkserver")
    assert sum(len(batch) for batch in loader) == 40
    loader.shutdown()
    forkserver._forkserver._stop()  # Python keeps it for the next one


def test_shards_that_can_not_be_listed_at_the_end_are_no_failure_of_the_run(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody removes a file beside them meanwhile."""

    def fails(self: LocalStorage, prefix: str = "") -> dict[str, str]:
        raise StorageError("a file has just gone")

    workload = load_workload("demo", ["reader.crop=null", "batch_size=8"])
    plan = make_plan(
        workload, str(make_dataset(samples=60)[1]), accelerators=1, repetitions=1, seed=1
    )
    before = shard_versions(plan)
    doc = begin_record(plan, HostAgent(plan.storage), run_id="r", command=(), rules="quick")
    monkeypatch.setattr(LocalStorage, "versions", fails)
    add_changes(doc, plan, before)
    found = doc.job.dataset
    assert (found.changed, found.changed_unknown) == (None, "a file has just gone")
