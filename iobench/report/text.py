"""A run as text for people: first the verdict, then the evidence.

Lines have at most ``width`` columns, and colours only on request.
"""

from __future__ import annotations

from ..analyse.verdict.evidence import bytes_per_sample, gather
from ..schema.metrics import BY_NAME, Metric, metrics_of
from ..schema.record import CheckpointRecord, RunRecord, Summary, TrainingRecord
from ..schema.training import Ceiling
from ..text import printable, renders
from ..units import format_bytes, format_count, format_percent, format_rate
from .cache import cold_reads
from .checkpoint import beside_lines, render_study
from .figures import Format, format_of
from .lines import Paint, findings_lines, painter, wrapped
from .loader import library_lines

LABELS = {
    "storage_raw": "storage, raw",
    "fetch": "fetch",
    "prep": "prep",
    "harness": "harness",
    "accelerator": "accelerators",
}
BOUND_BY = {
    "storage": ("fetch", "storage_raw"),
    "prep": ("prep",),
    "harness": ("harness",),
    "accelerator": ("accelerator",),
    "undecided": (),
}
LONGEST = 8
"""Longest bar, as a multiple of the lowest rate.

Without this limit a harness of 11 GiB/s would make the other bars too short to compare.
"""

OF_STORED = "of the samples' stored bytes"


def reads_unseen(doc: TrainingRecord) -> bool:
    """True if a loader library read the data: its reads were not counted.

    Bandwidths are then ``OF_STORED``.
    """
    return any("bytes_read" in repetition.not_measured for repetition in doc.job.repetitions)


def shown_metrics(doc: TrainingRecord) -> list[Metric]:
    """The metrics whose medians a report shows; those of checkpoints only if there were some."""
    return [
        metric
        for metric in metrics_of("repetition", median=True)
        if metric.name != "checkpoint_s" or metric.name in doc.metrics or doc.job.saves is not None
    ]


def render(doc: RunRecord, width: int = 100, color: bool = False) -> str:
    """The report of any kind of run."""
    if isinstance(doc, TrainingRecord):
        return render_run(doc, width, color)
    assert isinstance(doc, CheckpointRecord)
    return render_study(doc, width, color)


@renders(printable)
def render_run(doc: TrainingRecord, width: int = 100, color: bool = False) -> str:
    """All sections for which ``doc`` has data, separated by blank lines."""
    paint = painter(color)
    sections = [
        _verdict(doc, width, paint),
        _ceilings(doc, width, paint),
        _metrics(doc, width, paint),
        _find_max(doc, width, paint),
    ]
    sections += [
        library_lines(doc, width, paint),
        beside_lines(doc, width, paint),
        findings_lines(doc.findings, width, paint),
        _advice(doc, width, paint),
        _about(doc, width),
    ]
    return (
        "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in sections if lines)
        + "\n"
    )


def _verdict(doc: TrainingRecord, width: int, paint: Paint) -> list[str]:
    if doc.job.verdict is None:
        return [
            paint("No verdict", "title"),
            *wrapped(doc.error or f"the run's status is {doc.status}", width),
        ]
    binds = (
        "what binds is undecided"
        if doc.job.verdict.binds == "undecided"
        else f"{doc.job.verdict.binds} binds"
    )
    state = {"valid": "valid", "invalid": "INVALID", "unknown": "validity unknown"}[doc.validity]
    if doc.status != "ok":
        state = f"{doc.status}, {state}"
    lines = [
        paint(
            f"Verdict: {binds} ({state}, {doc.rules} rules)",
            "good" if doc.job.verdict.starved is False else "title",
        )
    ]
    lines += wrapped(doc.job.verdict.sentence, width)
    return lines + (wrapped(f"error: {doc.error}", width) if doc.error else [])


def _ceilings(doc: TrainingRecord, width: int, paint: Paint) -> list[str]:
    """Bars for the ceilings, the prediction and the measured rate.

    All are in one unit of stored bytes/s (samples/s if the bytes are not known).
    """
    size, evidence = bytes_per_sample(doc), gather(doc)
    bound = BOUND_BY[doc.job.verdict.binds] if doc.job.verdict else ()
    rates = {
        "storage_raw": evidence.raw,
        "fetch": evidence.fetch,
        "prep": evidence.prep,
        "harness": evidence.harness,
    }
    rates["accelerator"] = evidence.accelerator
    shown = [name for name in LABELS if name in doc.job.ceilings or rates[name] is not None]
    rows = [
        (
            LABELS[name],
            rates[name],
            doc.job.ceilings.get(name, Ceiling()).not_measured,
            name in bound,
        )
        for name in shown
    ]
    if "fetch" in bound and rates["fetch"] is not None:
        rows = [
            (label, rate, why, binds and label != LABELS["storage_raw"])
            for label, rate, why, binds in rows
        ]
    rows += [
        ("predicted", evidence.predicted, "no ceiling was measured", False),
        ("measured", evidence.measured, "no complete repetition", False),
    ]
    known = [rate for _, rate, _, _ in rows if rate]
    if not known:
        return []
    scale = min(max(known), LONGEST * min(known))
    divisor, unit = _unit(min(known) * size) if size else (1.0, "samples/s")
    title = (
        f"Ceilings of each stage alone, {unit} of stored bytes (samples/s)"
        if size
        else "Ceilings of each stage alone, samples/s"
    )
    lines = [paint(title, "title")]
    room = max(8, width - 2 - 14 - 9 - 12 - 2 - 8)
    for label, rate, why, binds in rows:
        if not rate:
            lines += wrapped(
                f"not measured: {why or 'no reason was recorded'}",
                width,
                f"  {label:<14}",
                " " * 16,
            )
            continue
        figure = f"{_figure(rate * size / divisor):>9}" if size else f"{format_count(rate):>9}"
        samples = f" ({format_count(rate)})" if size else ""
        line = (
            f"  {label:<14}{figure}{samples:>12}  "
            f"{_bar(rate, scale, room)}{' < binds' if binds else ''}"
        )
        lines.append(paint(line, "bound") if binds else line)
    tax = doc.job.ceilings.get("harness", Ceiling()).details.tensor_samples_per_s
    if tax:
        moved = (
            f"{format_rate(tax * size)} ({format_count(tax)} samples/s)"
            if size
            else f"{format_count(tax)} samples/s"
        )
        lines += wrapped(
            f"with torch's default transport the harness would end at {moved}", width, "  ", "  "
        )
    return lines


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _unit(bytes_per_s: float) -> tuple[float, str]:
    for power, name in ((3, "GiB/s"), (2, "MiB/s"), (1, "KiB/s")):
        if bytes_per_s >= 0.1 * 1024**power:
            return float(1024**power), name
    return 1.0, "B/s"


def _bar(rate: float, scale: float, room: int) -> str:
    cells = max(1, round(min(rate / scale, 1) * room))
    return "█" * (cells - 1) + "▶" if rate > scale * 1.001 else "█" * cells


def _metrics(doc: TrainingRecord, width: int, paint: Paint) -> list[str]:
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
    lines = [
        paint(f"Measured: median [min, max] of {n} repetition{'' if n == 1 else 's'}", "title")
    ]
    for metric in shown:
        name, label = metric.name, metric.label
        summary = doc.metrics.get(name)
        if name == "accelerator_utilization_sustained" and doc.job.saves is not None:
            label = "utilization, saves left out"
        if summary is None:
            lines += wrapped(
                f"not measured: {reasons.get(name, 'no complete repetition')}",
                width,
                f"  {label:<30}",
                " " * 32,
            )
        else:
            of = f" {OF_STORED}" if name == "read_bytes_per_s" and reads_unseen(doc) else ""
            lines.append(
                "  "
                f"{label:<30}{_spread(summary, format_of(metric))}{of}"
                f"{f' n={summary.n}' if summary.n != n else ''}"
            )
    if cold := cold_reads(doc):
        lines += wrapped(cold, width, f"  {'cold reads':<30}", " " * 32)
    if doc.job.verdict:
        for key in ("fetch_stall", "prep_stall"):
            label, share = BY_NAME[key].label, getattr(doc.job.verdict, key)
            why = f"not measured: {doc.job.verdict.not_measured.get(key, 'no reason was recorded')}"
            lines += wrapped(
                why if share is None else f"{format_percent(share)} of the time",
                width,
                f"  {label:<30}",
                " " * 32,
            )
    return lines


def _spread(summary: Summary, show: Format) -> str:
    return f"{show(summary.median)} [{show(summary.min)}, {show(summary.max)}]"


def _find_max(doc: TrainingRecord, width: int, paint: Paint) -> list[str]:
    if doc.job.find_max is None:
        return []
    found, required = (
        doc.job.find_max,
        format_percent(doc.job.find_max.required_accelerator_utilization),
    )
    none = "none of those tried" if found.bound else "not even one"
    answer = none if found.accelerators is None else format_count(found.accelerators)
    lines = [paint(f"Accelerators fed at {required} utilization or more: {answer}", "title")]
    room = max(8, width - 56)
    for point in sorted(found.points, key=lambda point: point.accelerators):
        au = point.accelerator_utilization_sustained
        if au is None:
            why = point.not_measured.get(
                "accelerator_utilization_sustained", "no reason was recorded"
            )
            lines += wrapped(
                f"not measured: {why}", width, f"  {point.accelerators:>6}  ", " " * 10
            )
            continue
        rate = "" if point.read_bytes_per_s is None else format_rate(point.read_bytes_per_s)
        verdict = "fed" if point.passed else "starved"
        lines.append(
            f"  {point.accelerators:>6}  {format_percent(au):>8}  {rate:>12}  {verdict:<8} "
            f"{_bar(au, 1.0, room)}"
        )
    if reads_unseen(doc):
        lines += wrapped(f"bandwidths are {OF_STORED}", width, "  ", "  ")
    return lines + (
        wrapped(f"the search stopped: {found.bound}", width, "  ", "  ") if found.bound else []
    )


def _advice(doc: TrainingRecord, width: int, paint: Paint) -> list[str]:
    if doc.job.verdict is None or not doc.job.verdict.advice:
        return []
    lines = [paint("What would help, with the predicted samples/s", "title")]
    for advice in doc.job.verdict.advice:
        gain = "     " if advice.predicted_gain is None else f"{advice.predicted_gain:.2f} x"
        lines += wrapped(advice.change, width, f"  {gain:>8}  ", " " * 12)
        lines += wrapped(f"({advice.basis})", width, " " * 12, " " * 12)
    return lines


def _about(doc: TrainingRecord, width: int) -> list[str]:
    """What was run, and where the data is."""
    data, host = doc.job.dataset, doc.host
    facts = [
        f"run {doc.run_id}",
        f"workload {doc.job.workload.name}",
        f"accelerators {format_count(doc.job.accelerators)}",
        f"dataset {data.spec.name}",
    ]
    facts += [f"{format_count(data.samples)} samples"] if data.samples else []
    facts += [format_bytes(data.stored_bytes)] if data.stored_bytes else []
    facts += [doc.storage.url] if doc.storage.url else []
    facts += [f"{host.cores} cores"] if host.cores else []
    facts += [f"{format_bytes(host.memory_bytes)} memory"] if host.memory_bytes else []
    return wrapped(", ".join(facts), width)
