"""``iobench.watch``: exact times on a clock of the test's own, loaders that stay as they are."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import iobench
from iobench.accelerate.base import Samples
from iobench.base.errors import UsageError
from iobench.host import host as this_host
from iobench.host.timeline import read_events
from iobench.judge.rebuild import conclude, rebuild
from iobench.load.torch_compat import inner_loader
from iobench.record.run import EVENTS_FILE, TrainingRecord, load_training
from iobench.runner import watching
from iobench.subject import meter, process, watched
from tests.planted_loaders import plain

pytestmark = pytest.mark.filterwarnings("ignore")

MS = 1_000_000


class Clock:
    """Passes only when a loader or a training says so. ``used_ns``: CPU time of the process."""

    def __init__(self) -> None:
        self.now_ns, self.used_ns = 10**9, 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def process_time_ns(self) -> int:
        return self.used_ns

    def sleep(self, ms: float) -> None:
        self.now_ns += round(ms * MS)

    def spin(self, ms: float) -> None:
        self.sleep(ms)
        self.used_ns += round(ms * MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watched, "time", made)
    monkeypatch.setattr(meter, "time", made)
    monkeypatch.setattr(process.KernelCounters, "queued_ns", lambda self: 0)
    return made


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


class Planted:
    """Batches of four samples; each takes as long as it is told."""

    def __init__(self, work: Callable[[], None], count: int = 30) -> None:
        self.work, self.count = work, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.count):
            self.work()
            yield torch.full((4, 10), float(number))


def leaves_record(directory: Path | None) -> TrainingRecord:
    record = load_training(directory)
    assert rebuild(record, read_events(directory / EVENTS_FILE)).changed == ()
    return record


def trained(
    loader: Iterable[Any], results: Path, step: Callable[[], None] = lambda: None, epochs: int = 1
) -> TrainingRecord:
    """The record of a training of so many epochs, which does ``step`` with each batch."""
    with (watch := iobench.watch(loader, results=results)) as batches:
        for _ in range(epochs):
            for _ in batches:
                step()
    return leaves_record(watch.directory)


@pytest.mark.parametrize(
    ("kind", "load_ms", "busy_ms", "bottleneck", "starved"),
    [
        ("sleep", 30, 10, "storage", True),
        ("spin", 30, 10, "prep", True),
        ("sleep", 1, 99, "accelerator", False),
    ],
)
def test_planted_times_and_the_verdict(
    kind: str,
    load_ms: float,
    busy_ms: float,
    bottleneck: str,
    starved: bool,
    clock: Clock,
    tmp_path: Path,
) -> None:
    work = getattr(clock, kind)
    with (watch := iobench.watch(Planted(lambda: work(load_ms)), results=tmp_path)) as batches:
        for _ in range(2):
            for _ in batches:
                clock.spin(busy_ms)
            clock.sleep(500)  # a validation, say
    doc = leaves_record(watch.directory)
    events = read_events(tmp_path / doc.run_id / "events.parquet")
    assert set(events["wait_ns"].tolist()) == {load_ms * MS}
    assert set(events["busy_ns"].tolist()) == {busy_ms * MS}
    assert events["step"].tolist() == [*range(30)] * 2
    rank = doc.job.repetitions[0].ranks[0]
    assert rank.wall_s == pytest.approx(60 * (load_ms + busy_ms) / 1e3, rel=0.05)
    assert rank.busy_s == pytest.approx(60 * busy_ms / 1e3, rel=0.05)
    # The time after the last epoch is no part of any; that between two is.
    assert doc.job.watched.between_s == pytest.approx(0.5)
    verdict = doc.job.verdict
    assert (verdict.bottleneck, verdict.starved, verdict.basis) == (bottleneck, starved, "inferred")
    assert doc.validity == "valid"
    assert {name for name, one in doc.job.ceilings.items() if one.not_measured} == {
        *("storage_raw", "fetch", "prep", "loader")
    }
    user = doc.job.loader.user
    assert (user.batches, user.samples, user.delivered_bytes) == (60, 240, 60 * 160)


@pytest.mark.parametrize(
    ("later_ms", "says"),
    [
        (0, "The first of 3 epochs has 100.0 % of the waits: without it, the training is 100.0 %"),
        (20, ""),
    ],
)
def test_a_first_epoch_that_fills_a_cache_is_not_taken_for_all_epochs(
    later_ms: float, says: str, clock: Clock, tmp_path: Path
) -> None:
    epochs: list[int] = []
    loader = Planted(lambda: clock.sleep(later_ms if len(epochs) > 1 else 30))
    with (watch := iobench.watch(loader, results=tmp_path)) as batches:
        for epoch in range(3):
            epochs.append(epoch)
            for _ in batches:
                clock.spin(10)
    verdict = leaves_record(watch.directory).job.verdict
    assert verdict.starved
    assert ("The first of" in verdict.sentence) == bool(says)
    assert says in verdict.sentence


def test_what_only_the_first_epoch_begins_with_is_no_fault_of_its_batches(
    clock: Clock, tmp_path: Path
) -> None:
    made: list[int] = []

    def load() -> None:
        clock.sleep(1 if made else 2000)
        made.append(1)

    verdict = trained(Planted(load), tmp_path, lambda: clock.spin(10), epochs=2).job.verdict
    assert verdict.bottleneck == "fill"
    assert "train for longer" in verdict.advice[0].change


class Ending(Planted):
    """Its iterations take long to end, as those that end their workers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda: clock.sleep(10))
        self.clock = clock

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            yield from super().__iter__()
        finally:
            self.clock.sleep(500)


@pytest.mark.parametrize("steps", [30, 29])
def test_the_end_of_an_epoch_is_waited_for_before_the_next_one(
    steps: int, clock: Clock, tmp_path: Path
) -> None:
    with (watch := iobench.watch(Ending(clock), results=tmp_path)) as batches:
        for _ in range(3):
            for number, _ in enumerate(batches, 1):
                clock.spin(10)
                if number == steps < 30:
                    break
            clock.sleep(70)  # a validation, say
    doc = leaves_record(watch.directory)
    waits = read_events(watch.directory / EVENTS_FILE)["wait_ns"].reshape(3, -1)[:, 0]
    assert (waits // MS).tolist() == [10, 510, 510]
    assert doc.job.watched.between_s == pytest.approx(0.14)
    assert doc.job.verdict.bottleneck == "fill"


def test_workers_that_look_long_for_a_last_batch_are_not_slow_to_start(tmp_path: Path) -> None:
    doc = trained(DataLoader(Late(), num_workers=1), tmp_path, epochs=2)
    # However long a busy machine takes to start them, the second that they look is no part of it.
    assert doc.job.repetitions[0].ranks[0].fill_s > doc.job.loader.user.worker_ready_s + 0.9


class Late(IterableDataset):
    """It takes long to find that there is no more."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        time.sleep(1)


def test_short_epochs_of_slow_batches_are_not_blamed_on_their_start(
    clock: Clock, tmp_path: Path
) -> None:
    loader = Planted(lambda: clock.sleep(30), 1)
    doc = trained(loader, tmp_path, lambda: clock.spin(10), epochs=6)
    assert doc.job.repetitions[0].ranks[0].fill_s == 0
    assert doc.job.verdict.bottleneck == "storage"


@pytest.mark.parametrize(
    ("cores", "load_ms", "says"),
    [
        (2, 30, "at most 1.9"),  # all of it is CPU time, and the workers take some, too
        (64, 30, "at most 3.8"),  # what is not waited for remains
        (64, 0.3, "larger batches"),  # handing a batch over takes as long
    ],
)
def test_workers_bring_no_more_than_the_cores_and_their_own_cost_allow(
    cores: int, load_ms: float, says: str, clock: Clock, tmp_path: Path, monkeypatch: Any
) -> None:
    kinds = ("cores", "affinity_cores", "cpu_quota_cores", "effective_cores")
    found = this_host.fingerprint() | dict.fromkeys(kinds, cores)
    monkeypatch.setattr(this_host, "fingerprint", lambda: found)
    loader = Planted(lambda: clock.spin(load_ms))
    doc = trained(loader, tmp_path, lambda: clock.spin(load_ms / 3))
    advice = doc.job.verdict.advice[0]
    assert says in f"{advice.change}: {advice.basis}"


def test_forked_workers_that_are_slow_to_start_are_told_what_to_do_less_of(tmp_path: Path) -> None:
    """Nothing is sent to a worker that is forked."""
    loader = of_torch(2, worker_init_fn=lambda _: time.sleep(1), multiprocessing_context="fork")
    verdict = trained(loader, tmp_path, epochs=2).job.verdict
    assert verdict.bottleneck == "fill"
    assert "worker_init_fn" in verdict.advice[0].change


@pytest.mark.parametrize(("more_ms", "slower"), [(10, True), (0, False)])
def test_epochs_that_wait_longer_and_longer_are_named(
    more_ms: float, slower: bool, clock: Clock, tmp_path: Path
) -> None:
    epochs: list[int] = []
    loader = Planted(lambda: clock.sleep(30 + more_ms * len(epochs)))
    with (watch := iobench.watch(loader, results=tmp_path)) as batches:
        for number in range(5):
            for _ in batches:
                clock.spin(10)
            epochs.append(number)
    doc = leaves_record(watch.directory)
    assert ("user.slower_epochs" in {each.rule for each in doc.findings}) == slower
    told = "40.0 ms in the second, 70.0 ms in the last"
    assert (told in doc.job.verdict.advice[0].change) == slower


def test_even_shares_bring_no_more_than_the_workers_need_then(clock: Clock, tmp_path: Path) -> None:
    """Two workers have batches for 3 s in all, of which one makes nine tenths."""
    doc = trained(Planted(lambda: clock.sleep(90)), tmp_path, lambda: clock.spin(10))
    user = doc.job.loader.user.model_copy(
        update={"workers": 2, "fetch_wall_s": 3.0, "batches_by_worker": [27, 3]}
    )
    loader = doc.job.loader.model_copy(update={"workers": 2, "user": user})
    settings = doc.job.workload.loader.model_copy(update={"workers": 2})
    workload = doc.job.workload.model_copy(update={"loader": settings})
    advice = conclude(doc.with_job(loader=loader, workload=workload)).job.verdict.advice[0]
    assert "each worker as much of the dataset" in advice.change
    assert advice.basis.startswith("at most 2.0")


def test_findings_say_starved_as_the_verdict_does(clock: Clock, tmp_path: Path) -> None:
    """It waits for 9.9 % of its time, and for 10.2 % of that without the first step."""
    batches_made: list[int] = []

    def load() -> None:
        clock.sleep(10.2 if batches_made else 0)
        batches_made.append(1)

    doc = trained(Planted(load), tmp_path, lambda: clock.spin(90))
    assert doc.metrics["accelerator_utilization"].median < 0.9
    assert doc.job.verdict.starved is False
    assert "au.threshold" not in {each.rule for each in doc.findings}


def test_a_cached_dataset_is_not_blamed_on_the_storage(clock: Clock, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "one").write_bytes(b"x" * 100_000)  # just written, so its pages are there
    loader = Planted(lambda: clock.sleep(30))
    with (watch := iobench.watch(loader, results=tmp_path / "r", data=data)) as batches:
        for _ in batches:
            clock.sleep(10)
    doc = leaves_record(watch.directory)
    epoch = doc.job.repetitions[0].epochs[0]
    if epoch.residency_before is None:
        pytest.skip(f"NOT RUN: the page cache is inconclusive here: {epoch.residency_how}")
    assert epoch.residency_before == 1.0
    assert doc.job.verdict.bottleneck == "prep"
    assert doc.job.loader.user.files_inside == 0  # our own looks at the cache do not count


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(24, dtype=torch.float32).reshape(12, 2))


def _augment(batch: list[Any]) -> Any:
    """Draws from all three generators of random numbers, as augmentations do."""
    noise = [*torch.rand(2).tolist(), float(np.random.rand()), random.random()]
    return torch.stack([each[0] for each in batch]), noise


def _seeded(number: int) -> None:
    torch.manual_seed(number)


def of_torch(workers: int, **more: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(60, dtype=torch.float32).reshape(20, 3))
    more = {"batch_size": 6, "shuffle": True, "collate_fn": _augment} | more
    return DataLoader(data, num_workers=workers, **more)


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "list": lambda: [torch.ones(2), {"x": np.arange(3)}, b"bytes", ("text", None)],
    "generator": lambda: (torch.full((2,), float(n)) for n in range(5)),
    "torch": lambda: of_torch(0),
    "workers": lambda: of_torch(2, worker_init_fn=_seeded),
    "persistent": lambda: of_torch(1, persistent_workers=True),
    "stream": lambda: DataLoader(Stream(), batch_size=5, num_workers=0),
}


def _epochs(batches: Iterable[Any]) -> list[Any]:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    seen = []
    for _ in range(2):
        seen.append([plain(batch) for batch in batches])
        for batch in batches:  # left early
            seen.append(plain(batch))
            break
    return seen


@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_bit_identical(name: str, tmp_path: Path) -> None:
    bare = _epochs(LOADERS[name]())
    with (watch := iobench.watch(LOADERS[name](), results=tmp_path)) as batches:
        assert _epochs(batches) == bare
    user = leaves_record(watch.directory).job.loader.user
    assert user.batches == sum(len(each) if isinstance(each, list) else 1 for each in bare)
    if name in ("workers", "persistent"):
        assert user.fetches >= user.batches
        assert user.process_bytes is not None


def test_everything_else_is_the_loaders(tmp_path: Path) -> None:
    loader = of_torch(1, worker_init_fn=_seeded)
    with iobench.watch(loader, results=tmp_path) as batches:
        assert (len(batches), batches.batch_size, bool(batches)) == (4, 6, True)
        assert batches.sampler is loader.sampler
        batches.note = "kept"
        assert loader.note == "kept"  # type: ignore[attr-defined]
        assert len(list(zip(batches, batches, strict=True))) == 4  # two iterations at once
        assert len(iter(batches)) == 4  # type: ignore[arg-type]
    assert loader.worker_init_fn is _seeded
    with iobench.watch(iter([1, 2, 3]), results=tmp_path) as numbers:
        assert next(numbers) == 1
        assert list(numbers) == [2, 3]
        with pytest.raises(StopIteration):
            next(numbers)
        with pytest.raises(TypeError):
            len(numbers)


def test_a_second_job_of_the_same_shell_leaves_a_record_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its ranks in one directory, beside that of the first job."""
    found = []
    for _ in range(2):
        for rank in range(2):
            monkeypatch.setattr(watching, "_counts", Counter())  # a process of its own
            watch = iobench.watch([torch.ones(2)] * 3, results=tmp_path, rank=rank, world=2)
            with watch as batches:
                list(batches)
            found.append(leaves_record(watch.directory))
    assert [len(doc.job.watched.ranks) for doc in found if doc.job.watched] == [1, 2, 1, 2]
    assert len({doc.run_id for doc in found}) == 2


def test_nested_iterations_are_steps_of_the_outer_one(clock: Clock, tmp_path: Path) -> None:
    with (watch := iobench.watch(Planted(lambda: clock.sleep(10), 3), results=tmp_path)) as batches:
        for _ in batches:
            clock.sleep(5)
            for _ in batches:
                clock.sleep(1)
    doc = leaves_record(watch.directory)
    repetition = doc.job.repetitions[0]
    assert (repetition.steps, len(repetition.epochs)) == (12, 1)
    assert repetition.wait_s == pytest.approx(0.12)
    assert repetition.busy_s == pytest.approx(3 * 0.005 + 9 * 0.001)


def test_exceptions_of_the_loader_and_the_training_pass(tmp_path: Path) -> None:
    planted = KeyError("sample 7")

    def breaks() -> Iterator[torch.Tensor]:
        yield torch.ones(2)
        raise planted

    watch = iobench.watch(breaks(), results=tmp_path)
    with pytest.raises(KeyError) as caught, watch as batches:
        list(batches)
    assert caught.value is planted
    doc = leaves_record(watch.directory)
    assert (doc.status, doc.job.repetitions[0].steps) == ("failed", 1)
    assert "sample 7" in doc.error


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), "interrupted"), (SystemExit(0), "ok"), (SystemExit(1), "failed")],
)
def test_how_a_training_ends(error: BaseException, status: str, tmp_path: Path) -> None:
    watch = iobench.watch([torch.ones(2)] * 9, results=tmp_path)

    def train() -> None:
        with watch as batches:
            for number, _ in enumerate(batches):
                if number == 6:
                    raise error

    with pytest.raises(type(error)):
        train()
    doc = leaves_record(watch.directory)
    assert (doc.status, doc.job.repetitions[0].steps) == (status, 7)
    assert doc.metrics["samples_per_s"].n == 1


def test_an_error_of_ours_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    count, calls = meter.Meter.count, []

    def fails(self: meter.Meter, value: Any) -> int:
        calls.append(value)
        if len(calls) == 3:
            raise RuntimeError("planted\nin two lines")
        return count(self, value)

    monkeypatch.setattr(meter.Meter, "count", fails)
    with (
        caplog.at_level(logging.WARNING, "iobench"),
        (watch := iobench.watch([torch.ones(2)] * 9, results=tmp_path)) as batches,
    ):
        assert len(list(batches)) == 9
    assert [record.message.count("\n") for record in caplog.records] == [0]
    doc = leaves_record(watch.directory)
    assert doc.job.repetitions[0].steps == 2
    assert "watch.lost" in {each.rule for each in doc.findings}


@pytest.mark.parametrize("world", [1, 2])
def test_no_place_for_the_record_does_not_stop_the_training_and_the_figures_are_told(
    world: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    file, none = tmp_path / "file", tmp_path / "none"
    file.touch()
    loader = [torch.ones(2)] * 3
    with iobench.watch(loader, results=file, data=none, rank=0, world=world) as batches:
        assert len(list(batches)) == 3
    told = [each.message for each in caplog.records if each.name.startswith("iobench")]
    assert len(told) == 2
    assert "Not a directory. Make room there, or choose another with watch(" in told[1]
    rate, verdict = capsys.readouterr().err.splitlines()
    assert rate.endswith(" samples/s")
    assert "undecided: each rank made 3 steps" in verdict


def test_samples_of_a_batch(tmp_path: Path) -> None:
    ragged = [{"x": torch.ones(4, 3), "y": torch.ones(5)}] * 2

    def samples(loader: Iterable[Any], **more: Any) -> tuple[int | None, int]:
        with (watch := iobench.watch(loader, results=tmp_path, **more)) as batches:
            list(batches)
        job = leaves_record(watch.directory).job
        return job.workload.batch_size, job.loader.user.samples

    assert samples([torch.ones(4, 3)] * 2) == (4, 8)
    assert samples(ragged, batch_size=9) == (9, 18)
    assert samples(ragged) == (4, 8)
    assert samples([object()] * 2) == (1, 2)
    own = Samples(torch.ones(8, dtype=torch.uint8), np.arange(0, 8, 2), np.full(4, 2))
    assert samples([own] * 2) == (4, 8)
    lists = TensorDataset(torch.ones(6, 2))
    boxes = DataLoader(lists, batch_size=3, collate_fn=lambda batch: ragged[0])
    assert samples(boxes) == (3, 6)


def test_ranks_of_one_launch_share_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for rank in (1, 0):
        monkeypatch.setattr(watching, "_counts", Counter())  # each rank is a process of its own
        watch = iobench.watch([torch.ones(2)] * 9, results=tmp_path, rank=rank, world=3)
        with watch as batches:
            list(batches)
        doc = leaves_record(watch.directory)
        found.append((watch.directory, doc.job.accelerators, doc.job.repetitions[0].steps))
    assert [each[1:] for each in found] == [(1, 9), (2, 18)]
    assert found[0][0] == found[1][0]
    assert (doc.job.watched.ranks, doc.job.watched.world) == ([0, 1], 3)
    assert "watch.ranks" in {each.rule for each in doc.findings}
    assert doc.host.cores  # rank 0 describes the host
    events = read_events(tmp_path / doc.run_id / "events.parquet")
    assert np.unique(events["rank"]).tolist() == [0, 1]
    # The same rank once more, of the same parent process: not a part of this launch.
    monkeypatch.setattr(watching, "_counts", Counter())
    with (again := iobench.watch([1], results=tmp_path, rank=0, world=3)) as batches:
        list(batches)
    assert again.directory not in (None, found[0][0])


@pytest.mark.parametrize("loader", [5, None])
def test_what_is_no_loader_is_refused(loader: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        iobench.watch(loader, results=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [{"name": "../up"}, {"batch_size": 0}, {"rank": 2, "world": 2}, {"tags": {"a b": "c"}}],
)
def test_wrong_arguments_do_not_end_the_training(
    arguments: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = tmp_path / "results"
    given: list[Any] = [torch.ones(2)] * 3
    with (watch := iobench.watch(given, results=results, **arguments)) as batches:
        assert len(list(batches)) == 3
    assert len([each for each in caplog.records if each.name.startswith("iobench")]) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["results"]
    doc = leaves_record(watch.directory)
    assert watch.directory.parent == results
    assert doc.job.loader.user.samples == 6
    assert doc.tags == {}


def test_a_watch_that_is_not_entered_says_so() -> None:
    for use in (iter, list, enumerate):
        with pytest.raises(UsageError) as caught:
            use(iobench.watch([1]))
        assert "with iobench.watch" in str(caught.value)


def test_a_context_is_entered_once(tmp_path: Path) -> None:
    watch = iobench.watch([1], results=tmp_path)
    with watch:
        pass
    with pytest.raises(UsageError), watch:
        pass


def test_synchronize_awaits_the_device(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, synchronize=lambda: clock.sleep(20)
    )
    monkeypatch.setattr(meter.torch, "cuda", device)
    for asked, busy_ms in ((False, 5), (True, 25)):
        loader = Planted(lambda: clock.sleep(1), 6)
        with (
            watch := iobench.watch(loader, results=tmp_path, synchronize=asked, name=f"s{asked}")
        ) as batches:
            for _ in batches:
                clock.sleep(5)
        doc = leaves_record(watch.directory)
        assert doc.job.repetitions[0].busy_s == pytest.approx(6 * busy_ms / 1e3)
        assert doc.job.watched.synchronized is asked


def test_the_dataloader_in_a_wrapper_is_found() -> None:
    loader, other = of_torch(0), of_torch(0)
    for wrapper in (
        SimpleNamespace(loader=loader, name="x"),
        SimpleNamespace(pipeline=[loader, len]),
        SimpleNamespace(iterables={"train": loader}, again=loader),
        loader,
    ):
        assert inner_loader(wrapper) is loader
    deeper = SimpleNamespace(inner=SimpleNamespace(loader=loader))
    for none in (SimpleNamespace(train=loader, valid=other), deeper, iter([1]), [loader], None):
        assert inner_loader(none) is None
