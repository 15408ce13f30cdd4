"""Compute every figure of a run again from its recorded events and context alone.

``iobench report`` therefore prints what ``iobench run`` printed, and ``differences`` names what a
record says otherwise than its own events and windows. Whoever changes a figure in ``run.json``
alone, or puts the events of another run beside it, is found; whoever changes everything that
belongs together is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isclose
from typing import Any, TypeVar

from ..base.units import format_count
from ..record.run import (
    RUN_FILE,
    KvCacheRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from ..record.serving import RequestWindow
from ..record.training import Ceiling, FindMax, Repetition
from ..record.verdict import RunCurve
from ..settings.workload import Subject
from .cache import with_cached_epochs
from .checkpoint import summaries_of, with_figures
from .checkpoint_meaning import with_meaning
from .figures.ablations import ablations_again, phase_of
from .figures.curve import conclude_curve
from .figures.events import Events, select
from .figures.in_flight import run_reads_in_flight
from .figures.metrics import (
    EVALUATED,
    evaluation_of,
    repetition_metrics,
    summarise,
    with_device_figures,
)
from .figures.requests import Rows, summaries, with_served_figures
from .figures.search import find_max_point, with_answer
from .figures.windows import ceiling_again, cpu_ceiling
from .judged import Judged, effective_cores, judge
from .kv import KV_SUMMARISED, kv_verdict, with_kv_figures
from .model_load import summaries_of as summaries_of_loads
from .model_load import with_figures as with_load_figures
from .promise import told_again, with_bounds
from .serving import serving_verdict
from .validity import LEVELS, evaluate, validity
from .verdict import verdict

T = TypeVar("T", bound=RunRecord)


def conclude(doc: T) -> T:
    """Return ``doc`` with its metrics, verdict, findings and validity computed again.

    They follow from its repetitions and ceilings. Findings of rules that this module does not
    know (those of the runner) are kept.
    """
    study = with_meaning(with_figures(doc.checkpoints)) if doc.checkpoints else None
    metrics = summaries_of(study) if study else {}
    judged: Judged | None = None
    if isinstance(doc, TrainingRecord):
        doc = doc.with_job(
            repetitions=[with_device_figures(one, doc.job.work) for one in doc.job.repetitions],
            quiet=_quiet(doc),
        )
        metrics = summarise(doc.job.repetitions) | metrics
        doc = doc.model_copy(update={"metrics": metrics}).with_job(
            saves=study, curve=_curve(doc), ceilings=_with_cpu(doc)
        )
        doc = doc.with_job(confirmations=[told_again(each) for each in doc.job.confirmations])
        judged = judge(doc)
        doc = doc.with_job(local_cache=with_cached_epochs(doc, judged.evidence))
        found = verdict(judged)
        confirmations = with_bounds(doc.job.confirmations, found.advice)
        doc = doc.with_job(verdict=found, confirmations=confirmations)
        judged = replace(judged, record=doc)
    elif isinstance(doc, ModelLoadRecord):
        loads = with_load_figures(doc)
        doc = doc.model_copy(update={"metrics": summaries_of_loads(loads), "job": loads})
    elif isinstance(doc, ServingRecord):
        doc = doc.model_copy(update={"metrics": summaries(doc.job.repetitions)})
        doc = doc.with_job(verdict=serving_verdict(doc))
    elif isinstance(doc, KvCacheRecord):
        doc = doc.model_copy(update={"metrics": summaries(doc.job.repetitions, KV_SUMMARISED)})
        doc = doc.with_job(verdict=kv_verdict(doc))
    else:
        doc = doc.model_copy(update={"metrics": metrics, "job": study})
    findings = [finding for finding in doc.findings if finding.rule not in LEVELS]
    findings += evaluate(doc, doc.rules, judged)
    return doc.model_copy(update={"findings": findings, "validity": validity(findings, doc.rules)})


def _quiet(doc: TrainingRecord) -> Repetition | None:
    """The repetition without checkpoints, with the figures of its GPUs."""
    quiet = doc.job.quiet
    return None if quiet is None else with_device_figures(quiet, doc.job.work)


def _with_cpu(doc: TrainingRecord) -> dict[str, Ceiling]:
    """The ceilings, with that of the CPU if others were measured."""
    others = {name: one for name, one in doc.job.ceilings.items() if name != "cpu"}
    if not any(one.samples_per_s for one in others.values()):
        return others
    cpu = cpu_ceiling(doc.job.repetitions, effective_cores(doc))
    return others | ({"cpu": cpu} if cpu is not None else {})


def _curve(doc: TrainingRecord) -> RunCurve | None:
    """The run's curve, concluded from its points, and how many reads the run keeps in flight."""
    found = doc.job.curve
    if found is None:
        return None
    large = conclude_curve(found.large) if found.large else None
    opens = conclude_curve(found.opens) if found.opens else None
    return found.model_copy(
        update={
            "curve": conclude_curve(found.curve, large, opens),
            "large": large,
            "opens": opens,
            "in_flight": float(run_reads_in_flight(doc)),
        }
    )


def rebuild(doc: TrainingRecord, events: Events) -> TrainingRecord:
    """Return ``doc`` with everything that follows from ``events`` computed again.

    What has no events stays as recorded.
    """
    workers = doc.job.workload.loader.workers
    repetitions = [
        _again(repetition, select(events, "measure", index), workers, doc.job.subject).model_copy(
            update={"evaluation": evaluation_of(select(events, EVALUATED, index))}
        )
        for index, repetition in enumerate(doc.job.repetitions)
    ]
    ceilings = {
        name: ceiling_again(ceiling, select(events, f"calibrate.{name}"))
        for name, ceiling in doc.job.ceilings.items()
    }
    find_max = _find_max(doc.job.find_max, events, workers) if doc.job.find_max else None
    quiet = doc.job.quiet
    if quiet is not None:
        rows = select(events, "quiet", 0)
        if not len(rows["step"]):
            rows = select(events, phase_of("checkpoint"), 0)
        quiet = _again(quiet, rows, workers, doc.job.subject)
    before = doc
    doc = doc.with_job(repetitions=repetitions, ceilings=ceilings, find_max=find_max, quiet=quiet)
    doc = conclude(doc.with_job(ablations=ablations_again(doc.job, events)))
    found = list(differences(before, doc))
    return conclude(doc.with_changes(found)) if found else doc


def _again(repetition: Repetition, events: Events, workers: int, subject: Subject) -> Repetition:
    """One repetition of ranks with ``workers`` each, computed again; as recorded without events."""
    if not len(events["step"]):
        return repetition
    return repetition_metrics(events, repetition, round_steps=max(1, workers), subject=subject)


def _find_max(found: FindMax, events: Events, workers: int) -> FindMax:
    """The search computed again; a try without events or a steady window stays as recorded."""
    points = []
    for point in found.points:
        rows = select(events, f"find-max.{point.accelerators}", point.trial)
        if point.steps is None or not len(rows["step"]):
            points.append(point)
            continue
        again = find_max_point(
            rows,
            accelerators=point.accelerators,
            required=found.required_accelerator_utilization,
            startup_s=point.startup_s,
            round_steps=max(1, workers),
            trial=point.trial,
            in_flight=point.in_flight_batches,
        )
        points.append(again)
    return with_answer(found.model_copy(update={"points": points}))


ROUNDING = 1e-6
"""Relative difference that rounding may leave between a figure and the same one computed again."""


def differences(doc: TrainingRecord, again: TrainingRecord) -> Iterator[str]:
    """Yield a sentence for each figure of a record that is another one when computed ``again``."""
    for name, figure in doc.metrics.items():
        now = again.metrics.get(name)
        if now is not None and _differ(figure.median, now.median):
            yield _sentence(name, figure.median, now.median)
    for name, ceiling in doc.job.ceilings.items():
        computed = again.job.ceilings.get(name)
        if name == "cpu" or computed is None:
            continue
        told, now_rate = ceiling.samples_per_s, computed.samples_per_s
        if told is not None and now_rate is not None and _differ(told, now_rate):
            yield _sentence(f"ceilings.{name}.samples_per_s", told, now_rate)
    yield from _raw(doc)


def _raw(doc: TrainingRecord) -> Iterator[str]:
    """The ceiling of the raw storage, which is a rate of the recorded curve, in samples."""
    raw, curve = doc.job.ceilings.get("storage_raw"), doc.job.curve
    if raw is None or raw.bytes_per_s is None or curve is None or curve.curve is None:
        return
    rates = [point.bytes_per_s.value for point in curve.curve.points]
    if curve.curve.plateau_bytes_per_s is not None:
        rates.append(curve.curve.plateau_bytes_per_s.value)
    if rates and all(_differ(raw.bytes_per_s, rate) for rate in rates):
        yield _sentence("ceilings.storage_raw.bytes_per_s", raw.bytes_per_s, rates[-1])
    of_sample = raw.details.read_bytes_per_sample
    if raw.samples_per_s is not None and of_sample:
        expected = raw.bytes_per_s / of_sample
        if _differ(raw.samples_per_s, expected):
            yield _sentence("ceilings.storage_raw.samples_per_s", raw.samples_per_s, expected)


def _differ(told: float, found: float) -> bool:
    return not isclose(told, found, rel_tol=ROUNDING, abs_tol=1e-12)


def _sentence(name: str, told: float, found: float) -> str:
    return f"{RUN_FILE} says {name} = {format_count(told)}, but {format_count(found)} follows"


W = TypeVar("W", ServingRecord, KvCacheRecord)


def served_again(doc: ServingRecord, rows: Rows) -> ServingRecord:
    """The record with all figures of its windows computed from ``rows``, its ``events.parquet``.

    Windows whose figures were other ones are told as changed.
    """
    spec = doc.job.scenario
    return _windows_again(doc, rows, lambda trial, of: with_served_figures(trial, of, spec))


def kv_again(doc: KvCacheRecord, rows: Rows) -> KvCacheRecord:
    """The same for a run of a KV cache."""
    spec = doc.job.scenario
    return _windows_again(doc, rows, lambda trial, of: with_kv_figures(trial, of, spec))


def _windows_again(doc: W, rows: Rows, compute: Callable[[Any, Rows], RequestWindow]) -> W:
    trials, changed = list[RequestWindow](), list[str]()
    for place, trial in enumerate(doc.job.trials):
        mine = rows["trial"] == place
        again = compute(trial, {name: each[mine] for name, each in rows.items()})
        if _differs(trial, again):
            changed.append(
                f"the figures of window {place + 1} are not those of its requests in events.parquet"
            )
        trials.append(again)
    return doc.with_job(trials=trials).with_changes(changed)


def _differs(trial: RequestWindow, again: RequestWindow) -> bool:
    return _unlike(trial.model_dump(), again.model_dump())


def _unlike(kept: Any, found: Any) -> bool:
    if isinstance(found, dict) and isinstance(kept, dict):
        return any(_unlike(kept.get(name), value) for name, value in found.items())
    if isinstance(found, float) and isinstance(kept, float):
        return abs(kept - found) > 1e-6 * abs(found)
    return bool(kept != found)
