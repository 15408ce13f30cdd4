"""A run: first the answers, then the evidence, and last how to do it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.units import counted, format_bytes, format_count, format_duration, format_percent
from ..judge.figures.events import Events
from ..judge.figures.metrics import DEVICE_METRICS
from ..judge.promise import told
from ..record.metrics import BY_NAME, Metric, metrics_of
from ..record.run import RunRecord, TrainingRecord
from .again import again_sections
from .answer import answer
from .checkpoint import saves_sections
from .curve import curve_sections
from .fed import fed_sections
from .figures import (
    NO_REASON,
    Medians,
    TableOf,
    facts,
    figure,
    format_of,
    lacking,
    listed,
    summary,
    word,
)
from .glance import cold_reads, finding_sections, status_sections
from .hosts import device_sections, host_sections, hosts_text
from .labels import add_labels, named
from .loader import library_sections, user_sections
from .sections import Facts, Item, Items, Prose, Section, Table
from .stages import ablation_sections, ceiling_sections, rate_over_time
from .time import time_sections, worker_reasons, worker_sections
from .timeline import event_sections
from .tried import tried_sections

OF_STORED = "of the samples' stored bytes"

NO_ADVICE = (
    "No change can be promised, since the bottleneck is undecided. Measure with more repetitions "
    "(--repeat), longer ones and more time (--budget). The findings say what else is missing."
)

CONTEXT = ("seed", "accelerators", "complete")
"""Columns of a repetition that are not measured figures."""


def sections(
    doc: TrainingRecord, events: Events | None = None, samples: Events | None = None
) -> list[Section]:
    """All sections for which the run has data.

    With its ``events``, and the ``samples`` of what its host did, its charts over time, too.
    """
    failed, remarks = finding_sections(doc)
    first = answer(doc)
    found: list[Section] = [*status_sections(doc), first, *_verdict(doc, first.sentences)]
    found += _advice(doc)
    found += tried_sections(doc)
    found.append(failed)
    found += ceiling_sections(doc)
    found += ablation_sections(doc)
    curve, by_storage = curve_sections(doc), _storage_limits(doc)
    found += curve if by_storage else []
    found += host_sections(doc)
    found += time_sections(doc)
    if events is not None:
        charts, reasons = event_sections(doc, events, samples)
        found += [*charts, *worker_sections(doc)]
        found += listed("not-drawn", "Not shown", [*reasons, *worker_reasons(doc)])
    found += _metrics(doc)
    found += [] if by_storage else curve
    found += device_sections(doc)
    found += fed_sections(doc, of_stored=OF_STORED if reads_unseen(doc) else "")
    found += library_sections(doc)
    found += user_sections(doc)
    found += saves_sections(doc)
    found += remarks
    found.append(_about(doc))
    found += again_sections(doc)
    found.append(_repetitions(doc))
    return found


def _storage_limits(doc: TrainingRecord) -> bool:
    """Whether the storage is the bottleneck, so that its curve explains the answer."""
    verdict = doc.job.verdict
    return verdict is not None and "storage" in (verdict.bottleneck, *verdict.also)


def reads_unseen(doc: TrainingRecord) -> bool:
    """True if a loader library read the data: its reads were not counted.

    Bandwidths are then ``OF_STORED``.
    """
    return any("bytes_read" in repetition.not_measured for repetition in doc.job.repetitions)


def shown_metrics(doc: TrainingRecord) -> list[Metric]:
    """The metrics whose medians a report shows.

    Those of checkpoints only if there were some, and waits for other ranks only if there were any.
    Those of devices have a section of their own.
    """
    hidden = {"checkpoint_s"} if doc.job.saves is None else set()
    hidden -= doc.metrics.keys()
    hidden |= {"sync_s"} if doc.job.accelerators < 2 else set()
    hidden |= set(DEVICE_METRICS)
    return [each for each in metrics_of("repetition", median=True) if each.name not in hidden]


def _verdict(doc: TrainingRecord, told: Sequence[str]) -> list[Section]:
    """The verdict as an engineer words it, without the sentences that were told before."""
    verdict, texts = doc.job.verdict, [f"No verdict: the run's status is {doc.status}."]
    if verdict is not None:
        texts = [verdict.sentence, verdict.explanation]
    paragraphs = tuple(each for each in texts if each and each not in told)
    return [Prose(id="verdict", paragraphs=paragraphs)] if paragraphs else []


def _metrics(doc: TrainingRecord) -> list[Section]:
    if not doc.job.repetitions:
        return []
    reasons = {
        key: reason
        for repetition in doc.job.repetitions
        for key, reason in repetition.not_measured.items()
    }
    shown = shown_metrics(doc)
    # The number of repetitions, not that of saves during the run.
    n = max((doc.metrics[each.name].n for each in shown if each.name in doc.metrics), default=0)
    table = Medians("min", "max", "n")
    for metric in shown:
        name, label, show = metric.name, metric.label, format_of(metric)
        if name == "accelerator_utilization_sustained" and doc.job.saves is not None:
            label = "utilization, saves left out"
        found = doc.metrics.get(name)
        if found is None:
            table.add(label, name, lacking(reasons.get(name, "no complete repetition")))
            continue
        middle = summary(found, show)
        told = f" {OF_STORED}" if name == "read_bytes_per_s" and reads_unseen(doc) else ""
        told += f" n={found.n}" if found.n != n else ""
        middle = replace(middle, text=middle.text + told)
        table.add(label, name, middle, found.min, found.max, found.n)
    if cold := cold_reads(doc):
        table.add("cold reads", "cold_reads", word(cold))
    if rates := rate_over_time(doc):
        table.add("rate over time", "rate_over_time", word(rates))
    if doc.job.verdict:
        for key in ("fetch_stall", "prep_stall"):
            share = getattr(doc.job.verdict, key)
            why = f"not measured: {doc.job.verdict.not_measured.get(key, NO_REASON)}"
            cell = figure(share, lambda share: f"{format_percent(share)} of the time", why=why)
            label = BY_NAME[key].label
            if doc.job.subject.users:  # what it waits for need not be reads
                label = _STALLS_OF_USER[key]
            table.add(label, key, cell)
    return [table.table("metrics", f"Measured: median [min, max] of {counted(n, 'repetition')}")]


def _advice(doc: TrainingRecord) -> list[Section]:
    if doc.job.verdict is None:
        return []
    if not doc.job.verdict.advice:
        why = NO_ADVICE if doc.job.verdict.bottleneck == "undecided" else "No change is known."
        return [Items(id="advice", title="What would help", items=(Item(text=why),))]
    items = tuple(
        Item(text=advice.change, lead=told(advice), basis=advice.basis)
        for advice in doc.job.verdict.advice
    )
    measured = any(advice.found for advice in doc.job.verdict.advice)
    found = "found or " if measured else ""
    title = f"What would help: the {found}predicted factor on the measured samples/s"
    return [Items(id="advice", title=title, items=items)]


def _about(doc: TrainingRecord) -> Facts:
    """What was run, and where the data is."""
    data, host = doc.job.dataset, doc.host
    size = [f"{format_count(data.samples)} samples"] if data.samples else []
    size += [format_bytes(data.stored_bytes)] if data.stored_bytes else []
    memory = [f"{format_bytes(host.memory_bytes)} memory"] if host.memory_bytes else []
    about = [
        *named(doc),
        ("workload", f"{doc.job.workload.name}, {counted(doc.job.accelerators, 'accelerator')}"),
        ("model", _trained(doc)),
        ("dataset", ", ".join([data.name, *size])),
        ("storage", doc.storage.url or ""),
        ("hosts", hosts_text(doc)),
        ("host", ", ".join([*([f"{host.cores} cores"] if host.cores else []), *memory])),
        ("time", time_spent(doc)),
    ]
    return facts("about", "About this run", about)


def _trained(doc: TrainingRecord) -> str:
    """Which model was trained, on what; empty if the accelerator was no model."""
    facts = doc.job.trained
    if facts is None:
        return ""
    parts = [f"{facts.model} on {facts.device}" if facts.device else facts.model, facts.precision]
    if facts.parameters:
        parts.append(f"{facts.parameters:,} parameters")
    if facts.threads:
        set_before = facts.environment.get("OMP_NUM_THREADS", "")
        other = set_before not in ("", str(facts.threads))
        started = f" (started with OMP_NUM_THREADS={set_before})" if other else ""
        parts.append(f"{counted(facts.threads, 'thread')}{started}")
    if facts.allocator:
        parts.append(f"allocator {facts.allocator}")
    if facts.gradient_bytes:
        takes = f" in {format_duration(facts.exchange_s)}" if facts.exchange_s else ""
        parts.append(f"{format_bytes(facts.gradient_bytes)} of gradients exchanged{takes}")
    if facts.first_loss is not None and facts.last_loss is not None:
        parts.append(f"loss {facts.first_loss:.3g} at first, {facts.last_loss:.3g} at last")
    return ", ".join(parts)


_STALLS_OF_USER = {"fetch_stall": "loader waits", "prep_stall": "loader computes"}

PARTS = {
    "start": "start",
    "pilot": "pilot",
    "prepare": "check of the loader",
    "watched": "your training",
    "calibrate": "each stage alone",
    "checkpoint": "checkpoints alone",
    "measure": "repetitions",
    "ablations": "ablations",
    "find_max": "search for the largest number",
    "confirm": "trying the advice",
}
"""What the keys of ``timings`` mean."""


def time_spent(doc: RunRecord) -> str:
    """Where the time of a run went, in the order in which it was spent; empty if not recorded."""
    spent = [(PARTS.get(part, part), seconds) for part, seconds in doc.timings.items()]
    if not spent:
        return ""
    parts = ", ".join(f"{what} {format_duration(seconds)}" for what, seconds in spent)
    whole = format_duration(sum(seconds for _, seconds in spent))
    return f"{parts}; {whole} in all" if len(spent) > 1 else parts


def _repetitions(doc: TrainingRecord) -> Table:
    """One row for each repetition."""
    rows = TableOf(list(enumerate(doc.job.repetitions)))
    rows.data("run_id", of=lambda _: doc.run_id)
    rows.data("repetition", of=lambda each: each[0])
    of_context = dict.fromkeys(CONTEXT, "")
    rows.add_each(of_context, "", lambda each, name: getattr(each[1], name), where="data")
    for metric in metrics_of("repetition"):
        column = {metric.name: metric.name}
        rows.add_each(column, metric.unit, lambda each, name: getattr(each[1], name), where="data")
    add_labels(rows, doc)
    return rows.made("repetitions", "Repetitions", where="data")
