"""Every figure of a run again, from its recorded events and context alone: what ``iobench report`` prints is what ``run`` printed."""

from __future__ import annotations

import numpy as np

from ...schema.result import (
    Ceiling,
    Epoch,
    FindMax,
    FindMaxPoint,
    Repetition,
    RunDocument,
)
from ..checkpoint.meaning import with_meaning
from ..checkpoint.study import summaries_of, with_figures
from .bind import verdict
from .evidence import OWN_LOADER
from .metrics import Events, repetition_metrics, select, strands, summarise, unseen_reads
from .validity import RULE_IDS, evaluate, validity

CALIBRATED = ("fetch", "prep", "harness", "accelerator")


def ceiling_from_events(
    events: Events, context: Repetition, *, round_steps: int = 1
) -> tuple[float | None, float | None]:
    """(samples/s, stored bytes/s) of one calibration phase, summed over its ranks.

    Workers begin together, so batches arrive in rounds of ``round_steps`` (a rank's workers). The rate is taken from the end of the first
    round to the end of the last: at both instants each worker is equally far, so nothing that is half done falsifies it. A rank with
    fewer than two rounds is rated from the first read on. (None, None) where nothing was recorded.
    """
    startups = {epoch.epoch: epoch.startup_s or 0.0 for epoch in context.epochs}
    ranks: dict[int, list[float]] = {}
    for part in strands(events) if len(events["step"]) else ():
        later = part.rows["step"] >= round_steps
        steady = int(part.rows["steps"][later].sum()) >= round_steps
        rows = later if steady else np.ones(len(later), dtype=bool)
        begin = (
            float(part.rows["start_ns"][rows][0]) / 1e9 if steady else startups.get(part.epoch, 0.0)
        )
        totals = ranks.setdefault(part.rank, [0.0, 0.0, 0.0])
        totals[0] += part.end_ns / 1e9 - begin
        totals[1] += float(part.rows["samples"][rows].sum())
        totals[2] += float(part.rows["sample_bytes"][rows].sum())
    # No batch was loaded by the accelerator alone: then there are no bytes, rather than 0.
    if not ranks or min(totals[0] for totals in ranks.values()) <= 0:
        return None, None
    stored_per_s = sum(stored / span for span, _, stored in ranks.values())
    return sum(samples / span for span, samples, _ in ranks.values()), stored_per_s or None


def find_max_point(
    events: Events, *, accelerators: int, required: float, startup_s: float | None = None
) -> FindMaxPoint:
    """One point of the search for the largest number of accelerators, from the rows of phase ``find-max.<accelerators>``."""
    context = Repetition(
        seed=0, accelerators=accelerators, epochs=[Epoch(epoch=0, startup_s=startup_s)]
    )
    figures = repetition_metrics(events, context)
    sustained = figures.accelerator_utilization_sustained
    return FindMaxPoint(
        accelerators=accelerators,
        accelerator_utilization=figures.accelerator_utilization,
        accelerator_utilization_sustained=sustained,
        samples_per_s=figures.samples_per_s,
        read_bytes_per_s=figures.read_bytes_per_s,
        passed=sustained is not None and sustained >= required,
        startup_s=startup_s,
        not_measured={
            key: figures.not_measured[key]
            for key in ("accelerator_utilization_sustained",)
            if key in figures.not_measured
        },
    )


def conclude(doc: RunDocument) -> RunDocument:
    """``doc`` with the metrics, verdict, findings and validity that follow from its repetitions and ceilings.

    Findings of rules that this module does not know (the runner's own) are kept.
    """
    doc = doc.model_copy(update={"metrics": summarise(doc.repetitions)})
    if doc.checkpoint is not None:
        study = with_meaning(with_figures(doc.checkpoint))
        doc = doc.model_copy(
            update={"checkpoint": study, "metrics": {**doc.metrics, **summaries_of(study)}}
        )
    if doc.dataset.recorded:  # a study alone has nothing to starve
        doc = doc.model_copy(update={"verdict": verdict(doc)})
    findings = [finding for finding in doc.findings if finding.rule not in RULE_IDS] + evaluate(
        doc, doc.rules
    )
    return doc.model_copy(update={"findings": findings, "validity": validity(findings, doc.rules)})


def rebuild(doc: RunDocument, events: Events) -> RunDocument:
    """``doc`` with everything that follows from ``events`` computed again; what has no events stays as recorded."""
    unseen = unseen_reads(doc.loader.kind or OWN_LOADER)
    repetitions = [
        _again(repetition, select(events, "measure", index), unseen)
        for index, repetition in enumerate(doc.repetitions)
    ]
    ceilings = {
        name: _ceiling(ceiling, select(events, f"calibrate.{name}"))
        for name, ceiling in doc.ceilings.items()
    }
    find_max = _find_max(doc.find_max, events) if doc.find_max else None
    quiet = _again(doc.quiet, select(events, "quiet", 0), unseen) if doc.quiet else None
    return conclude(
        doc.model_copy(
            update={
                "repetitions": repetitions,
                "ceilings": ceilings,
                "find_max": find_max,
                "quiet": quiet,
            }
        )
    )


def _again(repetition: Repetition, events: Events, unseen: dict[str, str]) -> Repetition:
    """``unseen``: documents of older versions counted reads that nobody saw."""
    context = repetition.model_copy(update={"not_measured": repetition.not_measured | unseen})
    return repetition_metrics(events, context) if len(events["step"]) else repetition


def _ceiling(ceiling: Ceiling, events: Events) -> Ceiling:
    """Computed again where its details hold ``startup_s`` (a number, None, or one per epoch), which the events cannot know."""
    if not len(events["step"]) or "startup_s" not in ceiling.details.model_fields_set:
        return ceiling
    startup = ceiling.details.startup_s
    startups = startup if isinstance(startup, list) else [startup]
    epochs = [Epoch(epoch=index, startup_s=value) for index, value in enumerate(startups)]
    context = Repetition(seed=0, accelerators=1, epochs=epochs)
    samples_per_s, bytes_per_s = ceiling_from_events(
        events, context, round_steps=ceiling.details.round_steps
    )
    stored, cpu_s = float(events["sample_bytes"].sum()), ceiling.details.cpu_s
    update = {"samples_per_s": samples_per_s}
    if stored > 0:
        update["bytes_per_s"] = bytes_per_s
        update["cpu_s_per_gb"] = (
            float(cpu_s) / (stored / 1e9) if cpu_s is not None else ceiling.cpu_s_per_gb
        )
    return ceiling.model_copy(update=update)


def _find_max(found: FindMax, events: Events) -> FindMax:
    required = found.required_accelerator_utilization
    points = []
    for point in found.points:
        rows = select(events, f"find-max.{point.accelerators}")
        again = find_max_point(
            rows, accelerators=point.accelerators, required=required, startup_s=point.startup_s
        )
        points.append(again if len(rows["step"]) else point)
    passed = [point.accelerators for point in points if point.passed]
    return found.model_copy(
        update={"points": points, "accelerators": max(passed) if passed else None}
    )
