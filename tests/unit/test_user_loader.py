"""A loader of the user's own: how its batches are sized, what is counted of it, what is refused."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import iobench
from iobench.base.errors import IobenchError, StorageError, UsageError
from iobench.host.timeline import read_events
from iobench.judge.user_loader import start_left_out, user_findings
from iobench.load.requests import Stats
from iobench.record.job import DatasetFacts, LoaderFacts, UserFacts
from iobench.record.run import EVENTS_FILE, load_training
from iobench.record.training import Epoch, Repetition
from iobench.runner.messages import Link, Tried
from iobench.runner.user_loader import adopt
from iobench.settings.workload import LoaderSpec, load_workload
from iobench.subject.batches import as_bytes, hashes, measure
from iobench.subject.board import FETCHES, RING, Board, Gauge, Turns
from iobench.subject.factory import one_line, take_place
from iobench.subject.loader import UserBatch, UserLoader
from iobench.subject.meter import Meter
from tests import planted_loaders
from tests.unit.conftest import build_run

pytestmark = pytest.mark.filterwarnings("ignore")

PLANTED = "tests.planted_loaders"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("files")
    for number in range(32):
        (folder / f"{number:02}.jpg").write_bytes(np.random.default_rng(number).bytes(5000))
    return str(folder)


def made(
    name: str, data: str = "/none", *, max_samples: int | None = 1000, **arguments: Any
) -> UserLoader:
    spec = LoaderSpec(kind="user", factory=f"{PLANTED}:{name}", args=arguments)
    return UserLoader(
        spec, data=data, root=data, batch_size=8, stored_bytes=5000, max_samples=max_samples
    )


def leaves_of(loader: UserLoader, epoch: int = 0) -> list[Any]:
    """What an epoch yields, as the user's loop would get it."""
    loader.set_epoch(epoch)
    return [cast(Any, batch).value for batch in loader]


@pytest.mark.parametrize(
    ("value", "nbytes", "samples"),
    [
        (torch.zeros(4, 3), 48, 4),
        (np.zeros((2, 5), np.uint8), 10, 2),
        ({"x": torch.zeros(4, 2), "y": np.zeros(4, np.int64)}, 64, 4),
        ((torch.zeros(3, 1), [np.zeros(3, np.uint8)]), 15, 3),
        (b"12345", 5, 1),
        ([b"123", b"45"], 5, 2),
        (torch.tensor(1.0), 4, 1),
        (["grün", "text", 7], 9, 2),
        ({"text": ["one", "two", "three"], "id": ["1", "2", "3"], "n": [1, 2, 3]}, 14, 3),
        ([("a question", "another"), ("an answer", "none")], 30, 2),
        (
            [{"text": "one", "id": "1"}, {"text": "two", "id": "2"}, {"text": "six", "id": "3"}],
            12,
            3,
        ),
        ({"image": torch.zeros(4, 2), "path": ["a", "b", "c", "d"]}, 36, 4),
        ([7, None], 0, 0),
        ({}, 0, 0),
    ],
)
def test_a_batch_is_sized_whatever_it_is_made_of(value: Any, nbytes: int, samples: int) -> None:
    size = measure(value)
    assert (size.nbytes, size.samples) == (nbytes, samples)


def test_bytes_of_an_array_are_not_copied() -> None:
    array = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    found = as_bytes(array)
    assert (len(found), found.data_ptr()) == (12, array.data_ptr())
    assert as_bytes(array.t()) is None


def test_a_rank_has_the_place_that_torchrun_would_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job of two hosts, which torchrun itself has started with one process on each."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name in names:
        monkeypatch.setenv(name, "1")
    link = Link(5, 8, cast(Any, None), cast(Any, None), 4, 4)
    take_place(link.place(8, batch_size=1))
    assert [os.environ[name] for name in names] == ["5", "8", "1", "4"]


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch calls it a prototype
        return torch.nested.nested_tensor(rows)


ARRAYS = {
    "bfloat16": torch.arange(24, dtype=torch.bfloat16).reshape(8, 3),
    "conjugated": torch.ones(8, dtype=torch.complex64).conj(),
    "nested": nested([torch.ones(rows + 1, 4) for rows in range(8)]),
    "sparse": torch.eye(8).to_sparse(),
    "mirrored": np.arange(24).reshape(8, 3)[:, ::-1],
    "texts": np.array([f"{number}.jpg" for number in range(8)]),
    "other byte order": np.arange(8, dtype=">f4"),
    "objects": np.array([{}] * 8, dtype=object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_any_kind_is_a_batch(name: str) -> None:
    batch = UserBatch(ARRAYS[name], Stats(8, 8, 8, 0, 0, 0, 0, 0))
    assert measure(batch.value).samples == 8
    plain = name in ("bfloat16", "texts", "other byte order")
    assert (batch.data is not None) == plain
    hashed = plain or name == "mirrored"
    assert len(set(hashes(batch.value))) == (8 if hashed else 0)


def test_samples_are_hashed_one_by_one() -> None:
    rows = torch.tensor([[1.0, 2], [3, 4], [1, 2]])
    first, second, third = hashes({"x": rows})
    assert first == third != second
    assert hashes([b"a", b"b"])[0] != hashes([b"b"])[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_of_a_fetch_is_split(data: str, workers: int) -> None:
    """Sleep is no CPU time, however busy the machine is; CPU time is at least what was asked."""
    sleeping = made("of_files", data, workers=workers, sleep=0.002)
    leaves_of(sleeping)
    facts = sleeping.facts()
    sleeping.shutdown()
    assert facts.fetch_wall_s >= 32 * 0.002
    spinning = made("of_files", data, workers=workers, spin=0.002)
    leaves_of(spinning)
    spun = spinning.facts()
    spinning.shutdown()
    assert spun.fetch_cpu_s >= 32 * 0.002 * 0.99
    assert facts.fetch_cpu_s < spun.fetch_cpu_s


def replayed(data: str, replay: str, count: int) -> tuple[UserLoader, list[Any]]:
    asked = {"kind": "user", "factory": f"{PLANTED}:of_files", "args": {"workers": 1}}
    spec = LoaderSpec.model_validate({**asked, "replay": replay})
    loader = UserLoader(spec, data=data, root=data, batch_size=8, stored_bytes=5000)
    batches = iter(loader)
    found = [cast(Any, next(batches)).value for _ in range(count)]
    loader.shutdown()
    return loader, found


def test_kept_samples_replace_the_dataset(data: str) -> None:
    _, found = replayed(data, "samples", 6)
    assert all(torch.equal(each[0], found[0][0]) for each in found)
    assert found[0][0].shape == (8, 1000)


def test_kept_batches_are_repeated(data: str) -> None:
    loader, found = replayed(data, "batches", 9)
    assert len(loader.kept) == 4
    assert found[8] is found[0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "returned None"),
        ("a_class", "returned the class Pair"),
        ("ragged", "8, 7"),
    ],
)
def test_what_is_no_loader_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        leaves_of(made(name))
    assert says in str(refused.value)


@pytest.mark.parametrize("factory", ["nowhere.at.all:f", "no-colon", "tests.planted_loaders:np"])
def test_a_factory_that_is_none_is_refused(factory: str) -> None:
    spec = LoaderSpec(kind="user", factory=factory)
    with pytest.raises(UsageError):
        UserLoader(spec, data="", root="", batch_size=1, stored_bytes=1)


@pytest.mark.parametrize(
    ("function", "line", "says"),
    [
        ("needs", 2, "'root'"),
        ("of_batches", 6, "no image"),
        ("inside", 10, "path"),
    ],
)
def test_an_error_of_the_users_code_names_its_line(
    function: str, line: int, says: str, tmp_path: Path
) -> None:
    file = tmp_path / f"of_a_user_{function}.py"
    file.write_text(
        "from torch.utils.data import DataLoader\ndef needs(root): pass\nclass Bad:\n"
        " def __len__(self): return 9\n def __getitem__(self, index):\n"
        "  raise ValueError('no image')\ndef of_batches():\n"
        " return DataLoader(Bad(), batch_size=2, num_workers=1)\n"
        "def inside():\n return {}['path']\n"
    )
    loading = LoaderSpec(kind="user", factory=f"{file}:{function}")
    with pytest.raises(IobenchError) as refused:
        leaves_of(UserLoader(loading, data="", root="", batch_size=2, stored_bytes=1))
    assert f"({file}:{line})" in str(refused.value)
    assert says in str(refused.value)


def test_an_error_with_several_lines_is_one_line() -> None:
    passed_on = RuntimeError(
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
        'last):\n  File "x.py", line 1\n    a[1]\nKeyError: 1\nmore'
    )
    assert one_line(passed_on) == "KeyError: 1"
    assert one_line(StorageError(str(passed_on))) == "KeyError: 1"  # its text is escaped
    assert one_line(ValueError("a\nb")) == "ValueError: a"
    assert one_line(ValueError()) == "ValueError"


def tried(numbers: Iterator[int] | list[int], **facts: Any) -> Tried:
    return Tried(
        facts=UserFacts(batches=1, workers=3, **facts),
        batch_size=16,
        prefetch_factor=2,
        persistent=True,
        hashes=list(numbers),
        not_replaced="",
    )


def test_a_workload_adopts_what_the_loader_does() -> None:
    workload = load_workload("demo")
    found = adopt(workload, [tried([1]), tried([2])])
    assert (found.batch_size, found.loader.workers, found.loader.persistent_workers) == (
        16,
        3,
        True,
    )
    assert found.samples_per_s_per_accelerator == pytest.approx(
        workload.samples_per_s_per_accelerator
    )


CPU = {"fetches": 10, "fetch_wall_s": 10.0, "workers": 2}


@pytest.mark.parametrize(
    ("facts", "rules"),
    [
        (CPU | {"fetch_cpu_s": 9.5}, ["user.workers_are_cpu_bound"]),
        (CPU | {"fetch_cpu_s": 1.0}, ["user.workers_wait"]),
        (CPU | {"fetch_cpu_s": 6.0}, []),
        ({"out_of_order_s": 4.0, "wait_s": 5.0}, ["user.out_of_order_wait"]),
        ({"out_of_order_s": 0.5, "wait_s": 5.0}, []),
        (CPU | {"fetch_cpu_s": 6.0, "collate_s": 4.0}, ["user.collate_share"]),
        ({"workers": 2, "batches_by_worker": [90, 10]}, ["user.uneven_workers"]),
        ({"workers": 2, "batches_by_worker": [2, 1]}, []),
        ({"workers": 2, "worker_ready_s": 3.0}, ["user.spawn_cost"]),
        ({"workers": 2, "worker_ready_s": 3.0, "worker_ready_mean_s": 0.2}, []),
        ({"workers": 2, "worker_ready_s": 0.1}, ["user.epoch_start"]),
        ({"workers": 2, "private_growth_bytes": 512 << 20}, ["user.dataset_copied"]),
        (  # each worker holds batches of 128 MB while it makes them
            {"workers": 2, "private_growth_bytes": 512 << 20}
            | {"batches": 10, "delivered_bytes": 1280 << 20},
            [],
        ),
        ({"shared_samples": 30, "compared_samples": 100}, ["user.ranks_overlap"]),
        ({"files_inside": 3, "files_outside": 1}, ["user.reads_outside_dataset"]),
    ],
)
def test_findings_by_name(facts: dict[str, Any], rules: list[str]) -> None:
    started = 2.0 if rules == ["user.epoch_start"] else 0.1
    epochs = [Epoch(epoch=0, startup_s=started)]
    repetition = Repetition(seed=1, accelerators=1, wall_s=10.0, wait_s=5.0, epochs=epochs)

    def found(kind: str, user: UserFacts | None) -> list[str]:
        loader = LoaderFacts(kind=kind, user=user)
        doc = build_run().with_job(loader=loader, repetitions=[repetition])
        return [each.rule for each in user_findings(doc)]

    assert found("user", UserFacts(**facts)) == rules
    assert found("iobench", None) == []


@pytest.mark.parametrize(
    ("persistent", "samples", "share"),
    [
        (False, 1000, None),  # the rates have the start, since the next epoch has it again
        (True, 1000, 0.5),  # 6 s beside the 2 s in which workers start once, and 6 s of samples
        (True, 2000, 1 / 3),  # the run made half of an epoch
    ],
)
def test_a_start_that_no_rate_has_is_told_with_its_share_of_a_whole_epoch(
    persistent: bool, samples: int, share: float | None
) -> None:
    user = UserFacts(workers=2, worker_ready_s=2.0)
    loader = {"workers": 2, "persistent_workers": persistent}
    epoch = Epoch(epoch=0, startup_s=8.0, startups_s=[8.0])
    doc = build_run(workload={"loader": loader}).with_job(
        loader=LoaderFacts(kind="user", workers=2, user=user),
        dataset=DatasetFacts(samples=samples),
        repetitions=[Repetition(seed=1, accelerators=1, samples=1000, wall_s=14.0, epochs=[epoch])],
    )
    found = start_left_out(doc, cut=False)
    assert found == (None if share is None else (6.0, pytest.approx(share), False))
    rules = [each.rule for each in user_findings(doc)]
    assert ("user.spawn_cost" in rules) is not persistent


def test_workers_that_stayed_in_a_watched_training_are_not_told_to_stay() -> None:
    user = UserFacts(workers=2, worker_ready_s=3.0, worker_starts=1)
    base = build_run()
    doc = base.with_job(
        workload=base.job.workload.model_copy(update={"epochs": 3}),
        loader=LoaderFacts(kind="user", user=user),
        repetitions=[Repetition(seed=1, accelerators=1, wall_s=10.0)],
    )
    (found,) = [each for each in user_findings(doc) if each.rule == "user.spawn_cost"]
    assert (found.remedy or "").startswith("do less as a worker starts")


def test_the_wait_for_a_batch_that_comes_in_turn_is_divided() -> None:
    """Two workers: batch 0 is made at 10, batch 1 at 2, batch 2 at 12."""
    board = Board(2)
    board.counts()[:, FETCHES] = (70, 3)  # of an earlier epoch
    turns = Turns(board)

    def made(place: int, at_ns: int) -> None:
        count = int(board.counts()[place, FETCHES])
        board.done_ns()[place, count % RING] = at_ns
        board.counts()[place, FETCHES] = count + 1

    made(1, 2)
    made(0, 10)
    assert turns.arrived(0, 11) == (8, 1)
    made(0, 12)
    assert turns.arrived(11, 11) == (0, 0)
    assert turns.arrived(11, 15) == (0, 3)
    assert turns.arrived(15, 20) == (0, 0)  # not known when it was made


def slow_meter() -> Meter:
    return Meter(planted_loaders.slow_sampler(workers=2), gauge=Gauge(Board(1), 0, ""))


def test_a_worker_is_slow_by_its_usual_sample_and_not_by_a_few_batches() -> None:
    """Two workers: one gets batches of 40 samples and once a slow file, the other batches of 2."""
    meter = slow_meter()
    for number, size in ((0, 40), (1, 2)):
        gauge = Gauge(meter.board, number, "")
        for took_ns in (size * 1_000_000, size * 1_000_000, size * 50_000_000):
            gauge.fetched(0, took_ns, 0, 0, size)
        gauge.close()
    facts = meter.facts()
    meter.close()
    assert facts.fetch_s_by_worker[0] == pytest.approx(20 * facts.fetch_s_by_worker[1])
    assert facts.sample_s_by_worker == [0.001, 0.001]
    assert facts.slow_worker is None
    assert facts.model_copy(update={"sample_s_by_worker": [0.002, 0.001]}).slow_worker is not None


def test_workers_start_as_python_says_where_the_loader_does_not() -> None:
    """Which is no longer by fork from Python 3.14 on."""
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        with closing(slow_meter()) as meter:
            assert meter.facts().start_method == "forkserver"
    finally:
        multiprocessing.set_start_method(None, force=True)
    usual = multiprocessing.get_all_start_methods()[0]
    with closing(slow_meter()) as meter:
        assert meter.facts().start_method == usual
    assert multiprocessing.get_start_method(allow_none=True) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_of_a_sampler_is_known_and_is_no_handing_over(
    workers: int, tmp_path: Path
) -> None:
    """torch asks for the first choices while the iteration is made: a training waits for them.

    The time of a run begins later, with the first read.
    """
    loader = made("slow_sampler", max_samples=None, workers=workers, persistent=True)
    theirs = (cast(Any, loader.iterable).batch_sampler, cast(Any, loader.iterable).sampler)
    for epoch in (0, 1):
        assert len(leaves_of(loader, epoch)) == 16
    facts = loader.facts()
    loader.shutdown()
    assert theirs == (loader.iterable.batch_sampler, loader.iterable.sampler)
    asked_ahead = 2 * workers
    assert 2 * (16 - asked_ahead) * 4 * 0.005 <= facts.sampler_s <= facts.wait_s
    if workers:
        assert facts.hand_over_s + facts.sampler_s <= facts.wait_s + 1e-6
    seen, _ = watched("slow_sampler", {"workers": workers}, "", tmp_path)
    assert seen.sampler_s is not None
    assert seen.wait_s is not None
    assert 16 * 4 * 0.005 <= seen.sampler_s <= seen.wait_s


def test_a_factory_needs_its_kind() -> None:
    for keys in ({"kind": "user"}, {"factory": "a:b"}, {"args": {"a": 1}}, {"replay": "batches"}):
        with pytest.raises((ValueError, IobenchError)):
            LoaderSpec.model_validate(keys)


# Driven by iobench, and by a training of the user's own


OF_FILES = ("of_files", "of_generator", "slow_stream", "slow_collate", "Module")
"""Planted loaders that read the files of a directory."""

COUNTED = ("type", "workers", "batches", "samples", "delivered_bytes", "fetches")


def driven(name: str, arguments: dict[str, Any], data: str) -> tuple[UserFacts, list[int]]:
    """What ``run --loader`` counts, and the samples of each batch."""
    loader = made(name, data, max_samples=None, **arguments)
    sizes = [cast(Any, batch).stats.samples for batch in loader]
    facts = loader.facts()
    loader.shutdown()
    return facts, sizes


def watched(
    name: str, arguments: dict[str, Any], data: str, results: Path
) -> tuple[UserFacts, list[int]]:
    """What ``iobench.watch`` counts, and the samples of each step."""
    loader = getattr(planted_loaders, name)(*([data] if name in OF_FILES else []), **arguments)
    if name == "Module":
        loader.setup("fit")
        loader = loader.train_dataloader()
    with iobench.watch(loader, results=results, data=data, rank=0, world=1) as batches:
        list(batches)
    (directory,) = results.iterdir()
    facts = load_training(directory).job.loader.user
    assert facts is not None
    return facts, read_events(directory / EVENTS_FILE)["samples"].tolist()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("of_files", {"workers": 2, "batch": 7}),
        ("of_generator", {}),
        ("slow_stream", {}),
        ("slow_collate", {"workers": 0}),
        ("of_dicts", {}),
        ("of_stream", {"workers": 1}),
        ("of_kind", {"kind": "bytes"}),
        ("of_kind", {"kind": "ragged"}),
        ("of_lists_of_samples", {"shape": 3}),
        ("of_lists_of_samples", {"shape": 4}),
        ("Module", {}),
    ],
)
def test_both_count_the_same(
    name: str, arguments: dict[str, Any], data: str, tmp_path: Path
) -> None:
    ours, sizes = driven(name, arguments, data)
    theirs, steps = watched(name, arguments, data, tmp_path)
    assert len(sizes) == ours.batches > 1
    assert steps == sizes
    for key in COUNTED:
        assert getattr(theirs, key) == getattr(ours, key), key
    assert theirs.not_measured.keys() - ours.not_measured.keys() == set()
    for found in (ours, theirs):
        assert found.wait_s is not None
        assert (found.collate_s or 0) <= (found.fetch_wall_s or 0)
        assert len(found.fetch_s_by_worker) == found.workers
    assert (theirs.collate_s is None) == (ours.collate_s is None)
    if name == "slow_collate":
        assert (theirs.collate_s or 0) >= ours.batches * 0.01
    assert theirs.files_inside == ours.files_inside == (32 if name in OF_FILES else 0)
