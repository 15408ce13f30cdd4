"""A checkpoint study, and the saves of a run that loaded data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from ..judge.checkpoint.study import (
    cpu_s_per_gb,
    host_saves,
    slowdown,
    value_of,
    with_figures,
)
from ..record.checkpoint import Meaning, Restore, Save, Spread, Study
from ..record.metrics import metrics_of
from ..record.run import CheckpointRecord, TrainingRecord
from .again import again_sections
from .checkpoint_meaning import meaning_sections
from .figures import (
    MAX_BARS,
    NO_REASON,
    Format,
    Medians,
    ends,
    evenly,
    facts_of,
    figure,
    figures,
    filled,
    format_of,
    picture,
    raw,
    raws,
    side_by_side,
    summary,
    word,
    words,
)
from .glance import about_text, finding_sections, state_text, status_sections, trust_text
from .hosts import MAX_ROWS
from .labels import label_cells, label_columns, tags_text
from .sections import (
    Cell,
    Column,
    Facts,
    FirstScreen,
    Headline,
    KeyFigure,
    Row,
    Section,
    Table,
)

SAVE_METRICS = tuple(
    metric
    for metric in metrics_of("save", "restore")
    if metric.unit != "bytes/s" and metric.name not in ("persist_s", "cpu_s")
)
"""The metrics of saves and restores that a report shows; bandwidths have rows of their own."""

_SHOWN = ("blocked_s", "staged_s", "accepted_s", "durable_s", "extra_memory_bytes")


_DATA = ("p95", "min", "max", "n")
"""The figures of a spread that only data shows."""


def _with_p95(found: Spread, show: Format) -> Cell:
    """The median with the smallest and the largest value, and p95: 20 values or more tell it."""
    cell = summary(found, show)
    tail = "" if found.p95 is None else f", p95 {show(found.p95)}"
    return replace(cell, text=cell.text + tail)


def saves_sections(doc: TrainingRecord) -> list[Section]:
    """For a run that saved checkpoints while it loaded: these saves, compared with saves alone."""
    study = doc.job.saves
    if study is None:
        return []
    alone = with_figures(study.model_copy(update={"saves": study.alone})).figures
    shown = [each for each in SAVE_METRICS if each.name in study.figures and each.name in _SHOWN]
    found = [study.figures[each.name] for each in shown]
    apart = [
        figure(alone[each.name].median if each.name in alone else None, format_of(each), missing="")
        for each in shown
    ]
    middles = [_with_p95(one, format_of(each)) for one, each in zip(found, shown, strict=True)]
    columns, rows = side_by_side(
        filled("metric", "", [word(each.label, each.name) for each in shown]),
        filled("median", "", middles),
        *(raws(name, [getattr(one, name) for one in found]) for name in _DATA),
        filled("alone", "alone", apart, align="right"),
    )
    notes: tuple[str, ...] = ()
    if doc.job.quiet is not None and doc.job.quiet.samples_per_s:
        notes = (f"samples/s without saves: {format_count(doc.job.quiet.samples_per_s)}",)
    many = counted(len(study.saves), "save")
    return [
        Table(
            id="saves",
            title=f"Checkpoints of {study.model} by {study.writer} while loading: {many}",
            columns=columns,
            rows=rows,
            notes=notes,
        )
    ]


_NO_WAIT_S = 1e-3
"""Shorter waits for the previous save are not shown."""

OPERATION = ("step", "bytes", "files")
"""Columns of a save that are not measured figures. A restore has no number of files."""

CHECKED = ("wall_s", "residency_before", "verified")
"""Further columns of a restore: its time under the name in ``run.json``, and what was checked."""


def sections(doc: CheckpointRecord) -> list[Section]:
    """All sections for which the study has data."""
    study = doc.job
    failed, remarks = finding_sections(doc)
    return [
        *status_sections(doc),
        _first(doc, study),
        _headline(doc, study),
        failed,
        *_figures(study),
        *meaning_sections(study),
        *remarks,
        _about(doc, study),
        *again_sections(doc),
        _operations(doc, study),
    ]


def _headline(doc: CheckpointRecord, study: Study) -> Headline:
    return Headline(
        id="verdict",
        title=f"Checkpoint of {study.model} by {study.writer} ({state_text(doc)})",
        sentences=(study.meaning.sentence,) if study.meaning.sentence else (),
        tone="bad" if doc.validity == "invalid" else "plain",
    )


def _first(doc: CheckpointRecord, study: Study) -> FirstScreen:
    """The first screen of a page: what a save costs, and the time lost over the interval."""
    gauges, bars, meaning = [], [], study.meaning
    if isinstance(meaning, Meaning):
        advised = meaning.interval_s
        kept = evenly(meaning.curve, MAX_BARS)
        bars = [
            (f"every {format_duration(at)}", lost, format_share(lost), _advised(at, advised))
            for at, lost in meaning.curve
            if (at, lost) in kept or _advised(at, advised)
        ]
        stops, lost = format_duration(meaning.blocked_s), format_share(meaning.waste)
        gauges.append(KeyFigure(label="a save stops training for", value=stops))
        note = f"{lost} of the time is lost then"
        gauges.append(KeyFigure(label="save every", value=format_duration(advised), note=note))
    elif "blocked_s" in study.figures:
        found = study.figures["blocked_s"]
        note = ends(found.min, found.max, format_duration)
        stops = format_duration(found.median)
        gauges.append(KeyFigure(label="a save stops training for", value=stops, note=note))
    return FirstScreen(
        job=f"Checkpoint of {study.model} by {study.writer}",
        state=f"{counted(len(study.saves), 'save')} measured",
        flags=(*["INVALID"] * (doc.validity == "invalid"), *[doc.status] * (doc.status != "ok")),
        tone="bad" if doc.validity == "invalid" else "plain",
        about=about_text(doc),
        sentences=(meaning.sentence,) if meaning.sentence else (),
        gauges=tuple(gauges),
        picture=picture("Time lost, over the interval between saves", bars),
        trust=f"{trust_text(doc)[:1].upper()}{trust_text(doc)[1:]}.",
        instead="verdict",
    )


def _advised(interval_s: float, advised_s: float) -> str:
    return "advised" if math.isclose(interval_s, advised_s) else ""


def _figures(study: Study) -> list[Section]:
    if not study.saves:
        return []
    table = Medians(*_DATA)
    for metric in SAVE_METRICS:
        name, found = metric.name, study.figures.get(metric.name)
        if found is not None and not (name == "waited_s" and found.max < _NO_WAIT_S):
            data = (getattr(found, each) for each in _DATA)
            table.add(metric.label, name, _with_p95(found, format_of(metric)), *data)
    for label, name, done in (
        ("write bandwidth", "write_bytes_per_s", study.saves),
        ("restore bandwidth", "restore_bytes_per_s", study.restores),
    ):
        table.add(label, name, _rate(study, name, done))
    readers = max((restore.threads or 0 for restore in study.restores), default=0)
    if readers:
        table.add("threads of a restore", "restore_threads", raw(readers))
    slower = slowdown(study)
    if slower is not None:
        cell = Cell(value=slower, text=f"{slower:.3f} x as long as without one")
        table.add("steps during a save", "slowdown", cell)
    many = counted(len(study.saves), "save")
    title = f"Measured on {_where(study)}: median [min, max] of {many}"
    return [table.table("metrics", title), *_hosts(study)]


def _where(study: Study) -> str:
    if len(study.hosts) < 2:
        return "one host"
    by = f", started by {study.started_by}" if study.started_by else ""
    return counted(len(study.hosts), "host") + by


def _hosts(study: Study) -> list[Section]:
    """A row for each host, the slowest first."""
    hosts = host_saves(study)
    if not hosts:
        return []
    shown = [(each, study.hosts[each.host]) for each in hosts[:MAX_ROWS]]
    columns, rows = side_by_side(
        words(
            "host",
            "host",
            [
                f"host {each.host} ({known.name})" if known.name else f"host {each.host}"
                for each, known in shown
            ],
        ),
        figures("ranks", "ranks", "", [each.ranks for each, _ in shown]),
        figures("bytes", "saved", "bytes", [each.bytes for each, _ in shown]),
        figures("blocked_s", "blocked", "s", [each.blocked_s for each, _ in shown]),
        figures("durable_s", "durable", "s", [each.durable_s for each, _ in shown]),
        figures("restore_s", "restore", "s", [each.restore_s for each, _ in shown]),
        figures("late_s", "late start", "s", [each.late_s for each, _ in shown]),
        figures("offset_error_s", "clock error", "s", [known.offset_error_s for _, known in shown]),
    )
    return [
        Table(
            id="hosts",
            title="Hosts, the slowest first: medians of each host's slowest rank",
            columns=columns,
            rows=rows,
            more=max(0, len(hosts) - MAX_ROWS),
        )
    ]


def _rate(study: Study, name: str, done: Sequence[Save] | Sequence[Restore]) -> Cell:
    value = getattr(study, name)
    cpu = cpu_s_per_gb(done)
    spent = (
        "CPU s/GB not measured: the writer shares its process with the training"
        if cpu is None
        else f"{cpu:.3f} CPU s/GB"
    )
    why = f"not measured: {study.not_measured.get(name, NO_REASON)}"
    return figure(value, lambda value: f"{format_rate(value)}, {spent}", why=why)


def _about(doc: CheckpointRecord, study: Study) -> Facts:
    share = ""
    if study.bytes < study.full_bytes:
        part = format_share(study.bytes / study.full_bytes)
        share = f", {part} of {format_bytes(study.full_bytes)}"
    facts = [
        ("run", doc.run_id),
        ("labels", tags_text(doc)),
        (
            "ranks",
            f"{counted(study.ranks, 'rank')} of {format_bytes(study.largest_rank_bytes)} or less",
        ),
        (
            "checkpoint",
            f"{format_bytes(study.bytes)} in {counted(study.files, 'file')}, "
            f"{counted(study.tensors, 'tensor')}{share}",
        ),
        ("storage", doc.storage.url or ""),
    ]
    return Facts(id="about", title="About this run", facts=facts_of(facts))


def _operations(doc: CheckpointRecord, study: Study) -> Table:
    """One row for each save and restore."""
    done: list[tuple[str, Save | Restore]] = [("save", save) for save in study.saves]
    done += [("restore", restore) for restore in study.restores]
    measured = metrics_of("save", "restore")
    names = (*OPERATION, *(metric.name for metric in measured), *CHECKED)
    return Table(
        id="operations",
        title="Saves and restores",
        columns=tuple(Column(name=name, label=name) for name in ("run_id", "operation", *names))
        + label_columns(doc),
        rows=tuple(
            Row(
                cells=(
                    raw(doc.run_id),
                    raw(operation),
                    *(raw(getattr(one, name, None)) for name in OPERATION),
                    *(raw(value_of(one, metric)) for metric in measured),
                    *(raw(getattr(one, name, None)) for name in CHECKED),
                    *label_cells(doc),
                )
            )
            for operation, one in done
        ),
        where="data",
    )
