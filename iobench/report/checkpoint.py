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
    TableOf,
    ends,
    evenly,
    facts,
    figure,
    format_of,
    picture,
    raw,
    summary,
    word,
)
from .glance import finding_sections, status_sections, with_trust
from .hosts import MAX_ROWS
from .labels import add_labels, named
from .sections import Cell, Facts, FirstScreen, KeyFigure, Section, Table, Value

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
    rows = TableOf(each for each in SAVE_METRICS if each.name in study.figures.keys() & {*_SHOWN})
    rows.add("metric", of=lambda each: word(each.label, each.name))
    rows.add("median", of=lambda each: _with_p95(study.figures[each.name], format_of(each)))
    of_data = dict.fromkeys(_DATA, "")
    rows.add_each(of_data, "", lambda one, key: getattr(study.figures[one.name], key), where="data")
    rows.add(
        "alone",
        "alone",
        of=lambda each: figure(
            alone[each.name].median if each.name in alone else None, format_of(each), missing=""
        ),
    )
    quiet = doc.job.quiet.samples_per_s if doc.job.quiet is not None else None
    many = counted(len(study.saves), "save")
    return [
        rows.made(
            "saves",
            f"Checkpoints of {study.model} by {study.writer} while loading: {many}",
            notes=[f"samples/s without saves: {format_count(quiet)}"] if quiet else [],
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
        failed,
        *_figures(study),
        *meaning_sections(study),
        *remarks,
        _about(doc, study),
        *again_sections(doc),
        _operations(doc, study),
    ]


def _first(doc: CheckpointRecord, study: Study) -> FirstScreen:
    """What a save costs, and the time lost over the interval."""
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
        gauges.append(KeyFigure("a save stops training for", stops))
        note = f"({lost} of the time is lost then)"
        gauges.append(KeyFigure("save every", format_duration(advised), note))
    elif "blocked_s" in study.figures:
        found = study.figures["blocked_s"]
        note = ends(found.min, found.max, format_duration)
        stops = format_duration(found.median)
        gauges.append(KeyFigure("a save stops training for", stops, note))
    first = FirstScreen(
        job=f"Checkpoint of {study.model} by {study.writer}",
        state=f"{counted(len(study.saves), 'save')} measured",
        sentences=(meaning.sentence,) if meaning.sentence else (),
        gauges=tuple(gauges),
        picture=picture("Time lost, over the interval between saves", bars),
    )
    return with_trust(doc, first)


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
    rows = TableOf(hosts[:MAX_ROWS], more=max(0, len(hosts) - MAX_ROWS))
    rows.add("host", "host", of=lambda each: _named(each.host, study.hosts[each.host].name))
    rows.add("ranks", "ranks")
    rows.add("bytes", "saved", "bytes")
    for name, label in _TIMES.items():
        rows.add(name, label, "s")
    rows.add(
        "offset_error_s", "clock error", "s", lambda each: study.hosts[each.host].offset_error_s
    )
    return [rows.made("hosts", "Hosts, the slowest first: medians of each host's slowest rank")]


_TIMES = {
    "blocked_s": "blocked",
    "durable_s": "durable",
    "restore_s": "restore",
    "late_s": "late start",
}


def _named(host: int, name: str) -> str:
    return f"host {host} ({name})" if name else f"host {host}"


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
    checkpoint = f"{format_bytes(study.bytes)} in {counted(study.files, 'file')}, "
    checkpoint += f"{counted(study.tensors, 'tensor')}{share}"
    ranks = f"{counted(study.ranks, 'rank')} of {format_bytes(study.largest_rank_bytes)} or less"
    told = [
        *named(doc),
        ("ranks", ranks),
        ("checkpoint", checkpoint),
        ("storage", doc.storage.url or ""),
    ]
    return facts("about", "About this run", told)


def _operations(doc: CheckpointRecord, study: Study) -> Table:
    """One row for each save and restore."""
    done: list[tuple[str, Save | Restore]] = [("save", save) for save in study.saves]
    rows = TableOf([*done, *(("restore", restore) for restore in study.restores)])
    measured = {metric.name: metric for metric in metrics_of("save", "restore")}
    rows.data("run_id", of=lambda _: doc.run_id)
    rows.data("operation", of=lambda each: each[0])
    rows.add_each(dict.fromkeys(OPERATION, ""), "", _attribute, where="data")
    rows.add_each(
        dict.fromkeys(measured, ""),
        "",
        lambda each, name: value_of(each[1], measured[name]),
        where="data",
    )
    rows.add_each(dict.fromkeys(CHECKED, ""), "", _attribute, where="data")
    add_labels(rows, doc)
    return rows.made("operations", "Saves and restores", where="data")


def _attribute(done: tuple[str, Save | Restore], name: str) -> Value:
    value: Value = getattr(done[1], name, None)
    return value
