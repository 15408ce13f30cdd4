"""The table of metrics and what the analysis produces are the same set, and every reader uses
it.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import NoneType
from typing import get_args

import pytest

from iobench.host.timeline import read_events
from iobench.judge.rebuild import conclude, rebuild
from iobench.record.host import DeviceUse, ModelWork
from iobench.record.metrics import BY_NAME, METRICS, metrics_of
from iobench.record.run import CheckpointRecord, RunRecord, TrainingRecord, load_run
from iobench.record.training import Repetition
from iobench.record.verdict import Verdict
from iobench.settings.accelerator import StepFacts
from tests.reports import run_csv, run_text

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"
CONTEXT = {"seed", "accelerators", "complete"}
"""Numbers of a repetition that were given, not measured."""

OF_HOSTS = {"window_s", "tail_s"}
"""Numbers of a repetition on several hosts, which are told in their own part of a report."""


@pytest.fixture(scope="module")
def runs() -> list[RunRecord]:
    """Recorded runs of every kind, with all figures computed again from their events."""
    found = []
    for folder in sorted(GOLDEN.iterdir()):
        doc = load_run(folder)
        if isinstance(doc, TrainingRecord):
            doc = rebuild(doc, read_events(folder / "events.parquet"))
        found.append(doc)
    loads = [doc for doc in found if isinstance(doc, TrainingRecord)]
    found.append(trained(next(doc for doc in loads if "accelerator" in doc.job.ceilings)))
    return [*found, by_two_ranks(next(doc for doc in found if isinstance(doc, CheckpointRecord)))]


def trained(doc: TrainingRecord) -> TrainingRecord:
    """The run as if its accelerator had been a real model, on a GPU that was watched."""
    use = DeviceUse(utilization_nvml=0.8, sm_utilization=0.4, power_w=500.0, sm_clock_mhz=1980.0)
    work = ModelWork(flops_per_sample=24.5e9, peak_flops=989.5e12, devices=1)
    repetitions = [one.model_copy(update={"devices": [use]}) for one in doc.job.repetitions]
    facts = StepFacts(model="resnet50")
    return conclude(doc.with_job(trained=facts, work=work, repetitions=repetitions))


def by_two_ranks(doc: CheckpointRecord) -> CheckpointRecord:
    """The study as if another rank had restored its part in half of the time."""
    restores = [
        one.model_copy(
            update={"first_done_s": one.wall_s / 2, "rank_s": [one.wall_s, one.wall_s / 2]}
        )
        for one in doc.job.restores
    ]
    job = doc.job.model_copy(update={"ranks": 2, "restores": restores})
    return conclude(doc.model_copy(update={"job": job}))


def numbers(model: type[Repetition] | type[Verdict]) -> set[str]:
    """The keys of a model whose values are numbers, or None."""
    found = set()
    for key, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        plain = {getattr(kind, "__origin__", kind) for kind in kinds}  # without its bounds
        if plain - {NoneType} <= {int, float}:
            found.add(key)
    return found


def names(*kinds: str) -> set[str]:
    return {metric.name for metric in METRICS if metric.of in kinds}


def test_names_are_unique_within_a_kind() -> None:
    assert len({(metric.of, metric.name) for metric in METRICS}) == len(METRICS)


def test_what_is_recorded_of_a_repetition_and_a_verdict_is_in_the_table() -> None:
    assert numbers(Repetition) - CONTEXT - OF_HOSTS - {"workers_left_out"} == names("repetition")
    assert numbers(Verdict) - {"slowest_rank"} == names("verdict")  # a rank is no figure


def test_reports_and_csv_show_the_table(runs: list[RunRecord]) -> None:
    doc = next(
        doc
        for doc in runs
        if isinstance(doc, TrainingRecord) and doc.job.repetitions and doc.job.saves
    )
    text = run_text(doc)
    # Figures of devices have a heading of their own, where there are some.
    devices = {metric.name for metric in METRICS if metric.device}
    watched = run_text(
        next(doc for doc in runs if isinstance(doc, TrainingRecord) and doc.job.work)
    )
    own = watched[watched.index("GPU counters") :]
    assert all(f"  {BY_NAME[name].label}  " in own for name in devices)
    assert not any(f"  {BY_NAME[name].label}  " in watched.replace(own, "") for name in devices)
    for metric in metrics_of("repetition", median=True):
        if metric.name in devices:
            continue
        if metric.name != "accelerator_utilization_sustained":  # its label says more beside saves
            assert f"  {metric.label}  " in text, metric
    header = next(csv.reader(io.StringIO(run_csv(doc))))
    assert names("repetition") | CONTEXT <= set(header)
    alone = next(doc for doc in runs if isinstance(doc, CheckpointRecord))
    header = next(csv.reader(io.StringIO(run_csv(alone))))
    assert names("save", "restore") <= set(header)
    assert len(header) == len(set(header))
