"""Runs with ablations: each really leaves its stage out, and nothing else."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from iobench.base.errors import InterruptedRun, StorageError, TargetLostError, TargetRefusedError
from iobench.load.reader import BatchReader
from iobench.record.run import TrainingRecord, load_training
from iobench.record.verdict import Ablation
from iobench.runner import repetition, rounds
from iobench.runner.ablations import Ablations
from iobench.runner.budget import Budget
from iobench.runner.calibration.bench import Bench
from iobench.runner.experiment import run as run_plan
from iobench.runner.options import Mixed, Options
from iobench.runner.phase import PhaseInterrupted
from iobench.runner.plan import make_plan
from iobench.settings.workload import load_workload
from iobench.storage.local.storage import LocalStorage
from tests.processes import document

pytestmark = pytest.mark.usefixtures("nothing_left")

SETTINGS = (
    *("batch_size=10", "epochs=1", "loader.workers=1", "accelerator.step_time=1ms"),
    *("reader.direct=false", "reader.crop=null"),
)
Measure = Callable[..., tuple[TrainingRecord, Path]]


@pytest.fixture
def measure(tmp_path: Path, make_dataset: Any) -> Measure:
    """Run a small workload without ceilings; returns its record and its directory."""

    def run(
        *settings: str,
        accelerators: int = 1,
        repetitions: int = 1,
        mixed: Mixed | None = None,
        codec: str = "gzip",
        **options: Any,
    ) -> tuple[TrainingRecord, Path]:
        _, path = make_dataset(samples=200, format="tar", samples_per_shard=20, codec=codec)
        plan = make_plan(
            load_workload("demo", [*SETTINGS, *settings]),
            str(path),
            accelerators=accelerators,
            repetitions=repetitions,
            seed=1,
        )
        given = Options(results=tmp_path / "results", calibration_s=0.0, mixed=mixed, **options)
        return run_plan(plan, given)

    return run


def of(doc: TrainingRecord) -> dict[str, Ablation]:
    return {each.stage: each for each in doc.job.ablations}


def rows_of(directory: Path, phase: str) -> dict[str, Any]:
    table = pq.read_table(directory / "events.parquet").to_pydict()
    chosen = [n for n, name in enumerate(table["phase"]) if name == phase]
    return {name: np.array([column[n] for n in chosen]) for name, column in table.items()}


class Counted:
    """Counts the calls of a method in all processes, by the phase that runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.by_phase: dict[str, int] = {}
        calls = multiprocessing.get_context("fork").RawArray(ctypes.c_int64, 1)
        method, run = getattr(owner, name), Bench.run

        def counting(this: Any, *arguments: Any, **more: Any) -> Any:
            calls[0] += 1  # one worker at a time; only 0 or more is asserted
            return method(this, *arguments, **more)

        def running(bench: Bench, phase: Any, **more: Any) -> Any:
            before = calls[0]
            try:
                return run(bench, phase, **more)
            finally:
                self.by_phase[phase.name] = self.by_phase.get(phase.name, 0) + calls[0] - before

        monkeypatch.setattr(owner, name, counting)
        monkeypatch.setattr(Bench, "run", running)


def test_each_stage_is_really_left_out(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a report computes the same gains from the events."""
    reads = Counted(monkeypatch, LocalStorage, "read_into")
    prepared = Counted(monkeypatch, BatchReader, "_prepare")
    doc, directory = measure(repetitions=2, ablations_s=60.0)
    phases = {"measure", "without-storage", "without-prep", "without-accelerator"}
    assert set(reads.by_phase) == set(prepared.by_phase) == phases
    assert {name for name in phases if not reads.by_phase[name]} == {"without-storage"}
    assert {name for name in phases if not prepared.by_phase[name]} == {"without-prep"}
    assert rows_of(directory, "measure")["busy_ns"].min() > 0
    assert rows_of(directory, "without-accelerator")["busy_ns"].max() == 0
    assert rows_of(directory, "without-prep")["busy_ns"].min() > 0
    for stage in ("storage", "prep", "accelerator"):
        found = of(doc)[stage]
        assert [one.repetition for one in found.rounds] == [0, 1]
        assert found.gain.n == 2
        rounds = set(rows_of(directory, f"without-{stage}")["repetition"].tolist())
        assert rounds == {0, 1}
    assert of(doc)["fill"].gain is not None
    assert {stage for stage, each in of(doc).items() if each.not_measured} == {
        *("sync", "checkpoint", "log")
    }
    assert doc.job.no_ablations == ""
    again = document(f"report {directory}")["job"]["ablations"]
    assert again == json.loads(doc.model_dump_json())["job"]["ablations"]


@pytest.mark.nightly
def test_what_is_not_there_cannot_be_left_out(measure: Measure) -> None:
    """Raw bytes have nothing to prepare."""
    nothing = ("reader.decode=false", "accelerator.kind=null", "accelerator.step_time=null")
    doc, _ = measure(*nothing, codec="none")
    assert of(doc)["prep"].not_measured
    assert of(doc)["prep"].rounds == []
    assert of(doc)["accelerator"].not_measured
    assert of(doc)["storage"].gain is not None


def test_a_budget_that_is_too_small_leaves_all_out(measure: Measure) -> None:
    doc, directory = measure(ablations_s=1e-3)
    assert doc.job.no_ablations
    measured = {stage for stage, each in of(doc).items() if each.gain is not None}
    assert measured == {"fill"}  # it needs no time
    assert all(each.not_measured for stage, each in of(doc).items() if stage != "fill")
    assert set(pq.read_table(directory / "events.parquet")["phase"].to_pylist()) == {"measure"}


def test_a_ablation_that_fails_does_not_end_the_run(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise StorageError("planted")

    monkeypatch.setattr(Bench, "copy", failing)
    doc, _ = measure(repetitions=2, ablations_s=60.0)
    assert doc.status == "ok"
    assert "planted" in of(doc)["storage"].not_measured
    assert of(doc)["prep"].gain is not None


def test_a_place_of_checkpoints_that_is_lost_ends_the_run(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes there now, so no ablation may go on saving."""

    def lost(*_: object) -> None:
        raise TargetLostError("another process has taken it over")

    monkeypatch.setattr(Ablations, "_saving", lost)
    with pytest.raises(TargetLostError):
        measure()


def test_an_interrupted_round_does_not_count(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first round is complete; Ctrl-C comes in the second ablation of the second round."""
    run, begun = Ablations._measure, []

    def interrupted(this: Any, entry: Any, number: int, saving: Any) -> Any:
        begun.append(entry.stage)
        outcome = run(this, entry, number, saving)
        if len(begun) == 5:
            raise PhaseInterrupted(outcome)
        return outcome

    monkeypatch.setattr(Ablations, "_measure", interrupted)
    with pytest.raises(InterruptedRun):
        measure(repetitions=3, ablations_s=60.0)
    (directory,) = (tmp_path / "results").iterdir()
    doc = load_training(directory)
    assert doc.status == "interrupted"
    assert len(doc.job.repetitions) == 2
    complete = {each.stage: [one.complete for one in each.rounds] for each in doc.job.ablations}
    assert complete[begun[4]] == [True, False]
    assert complete[begun[3]] == [True, True]
    gain = of(doc)[begun[4]].gain
    assert gain.n == 1


def test_a_copy_of_a_part_is_read_repeatedly_and_without_a_barrier_no_rank_waits(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iobench.runner.calibration import bench

    monkeypatch.setattr(bench, "bytes_to_copy", lambda *_: 1)
    doc, directory = measure("accelerator.step_time=5ms", accelerators=2, ablations_s=60.0)
    rows = rows_of(directory, "without-storage")
    for rank in (0, 1):  # the copy has one shard of 20 samples
        assert rows["samples"][rows["rank"] == rank].sum() > 20
    assert of(doc)["storage"].gain is not None
    assert of(doc)["sync"].gain is not None
    assert rows_of(directory, "measure")["sync_ns"].max() > 0
    assert rows_of(directory, "without-sync")["sync_ns"].max() == 0


def test_checkpoints_are_left_out_and_those_of_other_ablations_are_not_recorded(
    measure: Measure, tmp_path: Path
) -> None:
    from iobench.record.checkpoint import CheckpointSpec, Training
    from iobench.runner.checkpoint_plan import make_study_plan

    spec = CheckpointSpec(model="llama3-8b", scale="1/65536", ranks=1, restores=0)
    plan = make_study_plan(spec, str(tmp_path / "ckpt"), Training())
    doc, directory = measure(mixed=Mixed(plan=plan, every=8))
    assert rows_of(directory, "without-checkpoint")["checkpoint_ns"].max() == 0
    assert rows_of(directory, "without-storage")["checkpoint_ns"].max() > 0
    assert len(doc.job.saves.saves) == 2  # after 8 and 16 of 20 steps
    assert of(doc)["checkpoint"].gain is not None
    assert doc.job.quiet.steps == 20
    assert not list((tmp_path / "ckpt").glob("*"))


@pytest.mark.nightly
def test_a_library_cannot_be_run_without_its_prep(measure: Measure) -> None:
    pytest.importorskip("webdataset")
    doc, directory = measure("loader.kind=webdataset", codec="none", prove=False)
    assert of(doc)["prep"].not_measured
    assert of(doc)["storage"].gain is not None
    assert of(doc)["accelerator"].gain is not None
    assert rows_of(directory, "without-storage")["samples"].sum() > 0


def test_what_is_left_of_a_budget_ends_the_repetitions(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were given are made, whatever they take; no round of ablations is repeated."""
    made: list[int] = []

    def left_s(budget: Budget) -> float:
        return 0.0 if made else 60.0

    def counted(*args: Any, **keywords: Any) -> Any:
        made.append(1)
        return repetition.measure(*args, **keywords)

    monkeypatch.setattr(Budget, "left_s", property(left_s))
    monkeypatch.setattr(Budget, "slack_s", 0.0)
    monkeypatch.setattr(rounds, "measure", counted)
    for given, repetitions in ((["calibration"], 1), (["calibration", "repetitions"], 3)):
        made.clear()
        budget = Budget(seconds=60.0, given=frozenset(given))
        doc, _ = measure(repetitions=3, budget=budget)
        assert len(doc.job.repetitions) == repetitions
        assert "--budget" in doc.job.no_ablations


def test_a_log_is_written_beside_batches_and_is_left_out_in_turns(
    measure: Measure, tmp_path: Path
) -> None:
    """Each of two ranks writes a record of each of its samples, into a file of its own."""
    log = tmp_path / "logs"
    settings = (f"log.to={log}", "log.record=100B", "log.commit=group", "epochs=2")
    doc, folder = measure(*settings, accelerators=2, ablations_s=60.0)
    (repetition,) = doc.job.repetitions
    found = repetition.log
    assert (repetition.samples, found.records, found.left, found.bytes) == (400, 400, 0, 40_000)
    assert found.objects == 4  # each rank's, in each epoch
    assert found.commits >= found.objects
    assert of(doc)["log"].rounds
    assert not of(doc)["log"].not_measured
    assert "log" in doc.job.verdict.gains
    assert not log.exists()
    assert load_training(folder).job.repetitions[0].log == found


def test_the_waits_for_a_log_are_what_leaving_it_out_saves(
    measure: Measure, tmp_path: Path
) -> None:
    """A sync of 2 ms for each of 200 records: no step of 1 ms hides that, the last one neither.

    The time of a log holds the first step.
    """
    log = f"throttled+{tmp_path}/logs?sync=2ms"
    doc, _ = measure(f"log.to={log}", "log.commit=record", "batch_size=100", ablations_s=60.0)
    (repetition,) = doc.job.repetitions
    assert repetition.log.seconds > repetition.log.waited_s >= 0.4
    assert repetition.ranks[0].sync_s == pytest.approx(repetition.log.waited_s, rel=1e-6)
    assert doc.job.verdict.gains["log"].value > 2


def test_a_log_goes_to_an_empty_place_or_nothing_is_measured(
    measure: Measure, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(TargetRefusedError):
        measure(f"log.to={tmp_path}")
    assert not list(tmp_path.glob("results/*/run.json"))
    with pytest.raises(StorageError, match="window-00000"):
        measure(f"log.to=faulty+{tmp_path}/logs?fail_write_at=3", "log.commit=record")
    assert not list(tmp_path.glob("logs/window-*"))
