"""A checkpoint study as text for people: what a save costs, the figures, and what they mean."""

from __future__ import annotations

import math

from ..analyse.checkpoint.study import cpu_s_per_gb, slowdown, with_figures
from ..schema.checkpoint import Meaning, Spread, Study
from ..schema.metrics import metrics_of
from ..schema.record import CheckpointRecord, TrainingRecord
from ..text import printable, renders
from ..units import format_bytes, format_count, format_duration, format_rate, format_share
from .figures import Format, format_of
from .lines import Paint, findings_lines, painter, wrapped

_LABEL = 30
_ROWS = tuple(
    metric
    for metric in metrics_of("save", "restore")
    if metric.unit != "bytes/s" and metric.name not in ("persist_s", "cpu_s")
)
_BESIDE = ("blocked_s", "staged_s", "accepted_s", "durable_s", "extra_memory_bytes")
"""Metrics that are shown for saves during loading, and for the same saves alone."""

_NO_WAIT_S = 1e-3
"""Shorter waits for the previous save are not shown."""


@renders(printable)
def render_study(doc: CheckpointRecord, width: int = 100, color: bool = False) -> str:
    """All sections for which the study has data, separated by blank lines."""
    study = doc.job
    paint = painter(color)
    sections = [
        _headline(doc, study, width, paint),
        _figures(study, width, paint),
        meaning_lines(study, width, paint),
    ]
    sections += [findings_lines(doc.findings, width, paint), _about(doc, study, width)]
    return (
        "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in sections if lines)
        + "\n"
    )


def beside_lines(doc: TrainingRecord, width: int, paint: Paint) -> list[str]:
    """For a run that saved checkpoints while it loaded: these saves, compared with saves alone."""
    study = doc.job.saves
    if study is None:
        return []
    lines = [
        paint(
            f"Checkpoints of {study.model} by {study.writer} while loading: "
            f"{_many(len(study.saves), 'save')}",
            "title",
        )
    ]
    alone = with_figures(study.model_copy(update={"saves": study.alone})).figures
    for metric in _ROWS:
        name, label, show = metric.name, metric.label, format_of(metric)
        if name in study.figures and name in _BESIDE:
            beside = f"; alone {show(alone[name].median)}" if name in alone else ""
            lines.append(f"  {label:<{_LABEL}}{_spread(study.figures[name], show)}{beside}")
    if doc.job.quiet is not None and doc.job.quiet.samples_per_s:
        lines.append(
            f"  {'samples/s without saves':<{_LABEL}}{format_count(doc.job.quiet.samples_per_s)}"
        )
    return lines


def _headline(doc: CheckpointRecord, study: Study, width: int, paint: Paint) -> list[str]:
    state = {"valid": "valid", "invalid": "INVALID", "unknown": "validity unknown"}[doc.validity]
    state = state if doc.status == "ok" else f"{doc.status}, {state}"
    lines = [
        paint(
            f"Checkpoint of {study.model} by {study.writer} ({state}, {doc.rules} rules)", "title"
        )
    ]
    lines += wrapped(study.meaning.sentence, width) if study.meaning.sentence else []
    return lines + (wrapped(f"error: {doc.error}", width) if doc.error else [])


def _figures(study: Study, width: int, paint: Paint) -> list[str]:
    if not study.saves:
        return []
    lines = [
        paint(f"Measured: median [min, max], p95, of {_many(len(study.saves), 'save')}", "title")
    ]
    for metric in _ROWS:
        name, label, show = metric.name, metric.label, format_of(metric)
        if name in study.figures and not (
            name == "waited_s" and study.figures[name].max < _NO_WAIT_S
        ):
            lines.append(f"  {label:<{_LABEL}}{_spread(study.figures[name], show)}")
    lines.append(f"  {'write bandwidth':<{_LABEL}}{_rate(study, 'write_bytes_per_s', study.saves)}")
    lines.append(
        f"  {'restore bandwidth':<{_LABEL}}{_rate(study, 'restore_bytes_per_s', study.restores)}"
    )
    slower = slowdown(study)
    if slower is not None:
        lines.append(f"  {'steps beside a save':<{_LABEL}}{slower:.3f} x as long as without one")
    return lines


def _rate(study: Study, name: str, done: list[object] | list[object] | object) -> str:
    value = getattr(study, name)
    if value is None:
        return f"not measured: {study.not_measured.get(name, 'no reason was recorded')}"
    cpu = cpu_s_per_gb(done)  # type: ignore[arg-type]
    spent = (
        "CPU s/GB not measured: the writer shares its process with the training"
        if cpu is None
        else f"{cpu:.3f} CPU s/GB"
    )
    return f"{format_rate(value)}, {spent}"


def _spread(spread: Spread, show: Format) -> str:
    tail = f", p95 {show(spread.p95)}" if spread.n > 1 else ""
    return f"{show(spread.median)} [{show(spread.min)}, {show(spread.max)}]{tail}"


def meaning_lines(study: Study, width: int, paint: Paint) -> list[str]:
    """What the figures mean, and a chart of the lost time over the interval."""
    found = study.meaning
    if not isinstance(found, Meaning):
        return []
    job = (
        f"{_many(found.accelerators, 'accelerator')}, interrupted every "
        f"{format_duration(found.mtbf_s)} ({found.mtbf_how})"
    )
    rows = [
        ("training", job),
        (
            "one save",
            (
                f"blocks {format_duration(found.blocked_s)}, durable after "
                f"{format_duration(found.durable_s)}"
            ),
        ),
        (
            "restart",
            (
                f"{format_duration(found.restart_s)}, of it "
                f"{_optional(found.restore_s, format_duration)} to restore"
            ),
        ),
        (
            "save every",
            f"{format_duration(found.interval_s)} (Young {format_duration(found.young_s)}, Daly "
            f"{format_duration(found.daly_s)}, for availability "
            f"{format_duration(found.availability_s)})",
        ),
        (
            "costs",
            (
                f"{format_share(found.overhead)} of the time to save, "
                f"{format_share(found.waste)} with what interruptions cost"
            ),
        ),
        ("lost a day", _lost(found)),
        ("today", _today(found)),
        (
            "to buy",
            (
                f"{format_rate(found.needed_write_bytes_per_s)} of durable writes, for "
                f"{format_share(found.stall_budget)} of the time"
            ),
        ),
        (
            "spot",
            (
                f"a save {'fits' if found.fits_notice else 'does NOT fit'} into a notice of "
                f"{format_duration(found.notice_s)}"
            ),
        ),
    ]
    lines = [
        paint(f"What it means for {study.model}: {format_bytes(found.bytes)} a checkpoint", "title")
    ]
    for name, text in rows:
        lines += wrapped(text, width, f"  {name:<12}", " " * 14) if text else []
    return [
        *lines,
        "",
        paint("Time lost, over the interval between saves", "title"),
        *_chart(found, width),
    ]


def _lost(found: Meaning) -> str:
    parts = [f"{format_duration(found.lost_s_per_day)} of training"]
    parts += (
        [f"{format_count(found.lost_samples_per_day)} samples"]
        if found.lost_samples_per_day is not None
        else []
    )
    parts += [f"{found.lost_usd_per_day:,.2f} USD"] if found.lost_usd_per_day is not None else []
    return ", ".join(parts)


def _today(found: Meaning) -> str:
    now = found.today
    if now is None:
        return ""
    return (
        f"every {format_duration(now.interval_s)}: {format_share(now.overhead)} to save, "
        f"{format_share(now.waste)} in all"
    )


def _chart(found: Meaning, width: int) -> list[str]:
    most = max(share for _, share in found.curve)
    room = max(8, width - 36)
    lines = []
    for at, share in found.curve:
        best = " < best" if math.isclose(at, found.interval_s) else ""
        bar = "█" * max(1, round(room * share / (most or 1)))
        lines.append(f"  {format_duration(at):>13}{format_share(share):>10}  {bar}{best}")
    return lines


def _optional(value: float | None, show: Format) -> str:
    return "not measured" if value is None else show(value)


def _about(doc: CheckpointRecord, study: Study, width: int) -> list[str]:
    facts = [
        f"run {doc.run_id}",
        f"{_many(study.ranks, 'rank')} of {format_bytes(study.largest_rank_bytes)} or less",
    ]
    facts.append(
        f"{format_bytes(study.bytes)} in {_many(study.files, 'file')}, "
        f"{_many(study.tensors, 'tensor')}"
    )
    if study.bytes < study.full_bytes:
        facts.append(
            f"{format_share(study.bytes / study.full_bytes)} of {format_bytes(study.full_bytes)}"
        )
    facts += [doc.storage.url] if doc.storage.url else []
    return wrapped(", ".join(facts), width)


def _many(count: float, noun: str) -> str:
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"
