"""A checkpoint study: what a save costs, the figures, and what they mean for a training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analyse.checkpoint.meaning import not_told, upper_word
from ..analyse.checkpoint.study import cpu_s_per_gb, slowdown, value_of
from ..schema.checkpoint import Meaning, Restore, Save, Study
from ..schema.metrics import metrics_of
from ..schema.record import CheckpointRecord
from ..units import counted, format_bytes, format_count, format_duration, format_rate, format_share
from .figures import BLANK, NO_REASON, figure, format_of, raw, spread, word
from .run import state_text
from .saves import SAVE_METRICS, SPREAD_COLUMNS, spread_cells
from .sections import (
    Bars,
    Cell,
    Column,
    Fact,
    Facts,
    Findings,
    Headline,
    Row,
    Section,
    Table,
)

_NO_WAIT_S = 1e-3
"""Shorter waits for the previous save are not shown."""

OPERATION = ("step", "bytes", "files")
"""Columns of a save that are not measured figures. A restore has no number of files."""

CHECKED = ("wall_s", "residency_before", "verified")
"""Further columns of a restore: its time under the name in ``run.json``, and what was checked."""


def sections(doc: CheckpointRecord) -> list[Section]:
    """All sections for which the study has data."""
    study = doc.job
    return [
        _headline(doc, study),
        *_figures(study),
        *_meaning(study),
        Findings(findings=tuple(doc.findings)),
        _about(doc, study),
        _operations(doc, study),
    ]


def _headline(doc: CheckpointRecord, study: Study) -> Headline:
    sentences = [study.meaning.sentence] if study.meaning.sentence else []
    sentences += [f"error: {doc.error}"] if doc.error else []
    return Headline(
        id="verdict",
        title=f"Checkpoint of {study.model} by {study.writer} ({state_text(doc)})",
        sentences=tuple(sentences),
    )


def _figures(study: Study) -> list[Section]:
    if not study.saves:
        return []
    rows = []
    for metric in SAVE_METRICS:
        name, figures = metric.name, study.figures
        if name in figures and not (name == "waited_s" and figures[name].max < _NO_WAIT_S):
            cells = spread_cells(figures[name], format_of(metric))
            rows.append(Row(cells=(word(metric.label, name), *cells)))
    for label, name, done in (
        ("write bandwidth", "write_bytes_per_s", study.saves),
        ("restore bandwidth", "restore_bytes_per_s", study.restores),
    ):
        rows.append(_single(label, name, _rate(study, name, done)))
    slower = slowdown(study)
    if slower is not None:
        cell = Cell(value=slower, text=f"{slower:.3f} x as long as without one")
        rows.append(_single("steps during a save", "slowdown", cell))
    return [
        Table(
            id="metrics",
            title=f"Measured on one host: median [min, max], of {counted(len(study.saves), 'save')}",
            columns=(Column(name="metric"), *SPREAD_COLUMNS),
            rows=tuple(rows),
        )
    ]


def _single(label: str, name: str, cell: Cell) -> Row:
    """A row of one figure, which is no median."""
    return Row(cells=(word(label, name), cell, BLANK, BLANK, BLANK, BLANK))


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


def _meaning(study: Study) -> list[Section]:
    """What the figures mean, and a chart of the lost time over the interval."""
    found = study.meaning
    if not isinstance(found, Meaning):
        return []
    facts = [
        (
            "training",
            f"{counted(found.accelerators, 'accelerator')}, interrupted every "
            f"{format_duration(found.mtbf_s)} ({found.mtbf_how})",
        ),
        ("hosts", _hosts(found)),
        ("one save", _one_save(study, found)),
        ("slower steps", _slower(study, found)),
        ("restart", f"{format_duration(found.restart_s)}, of it {_restore(found)}"),
        (
            "save every",
            f"{format_duration(found.interval_s)} by {upper_word(found.times['committed_s'])} "
            f"saves, {format_duration(found.interval_median_s)} by the median (Young "
            f"{format_duration(found.young_s)}, Daly {format_duration(found.daly_s)}, for "
            f"availability {format_duration(found.availability_s)})",
        ),
        (
            "costs",
            f"{format_share(found.overhead)} of the time to save, "
            f"{format_share(found.waste)} with what interruptions cost, by the mean of the saves",
        ),
        ("lost a day", _lost(found)),
        ("today", _today(found)),
        ("to buy", _to_buy(found)),
        ("spot", _notice(found)),
    ]
    return [
        Facts(
            id="meaning",
            title=f"What it means for {study.model}: {format_bytes(found.bytes)} a checkpoint",
            facts=tuple(Fact(label=label, text=text) for label, text in facts if text),
        ),
        _chart(found),
    ]


def _hosts(found: Meaning) -> str:
    """How many hosts save, and what they get together."""
    asked, rate = found.asked, found.job_write_bytes_per_s
    if asked.hosts_writing is None:
        one = f"one measured{f' at {format_rate(rate)}' if rate is not None else ''}, and the "
        return f"{one}whole job is taken to get as much; for more hosts: --hosts-writing N"
    limit = asked.storage_write_bytes_per_s
    many = f"{counted(asked.hosts_writing, 'host')} at the measured rate of one"
    together = "" if rate is None else f": {format_rate(rate)} together"
    if limit is None:
        return f"{many}{together}; the limit of the storage was not stated (--storage-write-limit)"
    reached = "reached" if found.at_write_limit else "not reached"
    return f"{many}{together}; the storage's stated limit of {format_rate(limit)} is {reached}"


def _one_save(study: Study, found: Meaning) -> str:
    """The median times of a save, and the p95 until a restore finds it, with its number."""
    end = found.times["committed_s"]
    synced = "accepted" if study.spec.fsync is False else "durable"
    return (
        f"blocks {format_duration(found.blocked_s)}, {synced} after "
        f"{format_duration(found.durable_s)}, found by a restore after "
        f"{spread(end.median, end.min, end.max, format_duration)}, {upper_word(end)} saves "
        f"{format_duration(end.upper)}"
    )


def _slower(study: Study, found: Meaning) -> str:
    """What the steps during an asynchronous save cost; empty for a synchronous writer."""
    if all(save.staged_s is None for save in study.saves):
        return ""
    if found.slowdown is None or found.slowed_s is None:
        return "not measured, and not counted: the study ran no training steps (--set steps=50)"
    return (
        f"{found.slowdown:.3f} x as long while a save is written: "
        f"{format_duration(found.slowed_s)} lost in each interval"
    )


def _restore(found: Meaning) -> str:
    """The time of a restore with its number, and the condition on which it is the training's."""
    if (took := found.times.get("restore_s")) is None:
        return "the restore is not measured"
    return (
        f"{spread(took.median, took.min, took.max, format_duration)} to restore "
        f"({counted(took.n, 'restore')}; {found.restore_condition})"
    )


def _to_buy(found: Meaning) -> str:
    share = format_share(found.stall_budget)
    if found.needed_write_bytes_per_s is None:
        return f"no storage: the copies alone take more than {share} of the time"
    return f"{format_rate(found.needed_write_bytes_per_s)} of durable writes, for {share}" + (
        " of the time"
    )


def _notice(found: Meaning) -> str:
    """Whether a save fits into the notice of a spot instance, and how sure that is."""
    end, notice = found.times["committed_s"], format_duration(found.notice_s)
    took = f"{upper_word(end)} saves took {format_duration(end.upper)}"
    if not found.fits_notice:
        return (
            f"a save does NOT fit into a notice of {notice}: {took}, and "
            f"{found.over_notice} of {end.n} took longer than that notice"
        )
    share = not_told(end)
    sure = "" if share is None else f"; up to {format_share(share)} of the saves may take longer"
    return f"a save fits into a notice of {notice}: {took}{sure}"


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


def _chart(found: Meaning) -> Table:
    rows = [
        Row(
            cells=(figure(at, format_duration), figure(share, format_share)),
            mark="advised" if math.isclose(at, found.interval_s) else "",
        )
        for at, share in found.curve
    ]
    return Table(
        id="interval",
        title="Time lost, over the interval between saves",
        columns=(
            Column(name="interval_s", label="interval", unit="s", align="right"),
            Column(name="waste", label="lost", unit="share", align="right"),
        ),
        rows=tuple(rows),
        bars=Bars(column="waste", full=max((share for _, share in found.curve), default=0.0)),
    )


def _about(doc: CheckpointRecord, study: Study) -> Facts:
    share = ""
    if study.bytes < study.full_bytes:
        part = format_share(study.bytes / study.full_bytes)
        share = f", {part} of {format_bytes(study.full_bytes)}"
    facts = [
        ("run", doc.run_id),
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
    found = tuple(Fact(label=label, text=text) for label, text in facts if text)
    return Facts(id="about", title="About this run", facts=found)


def _operations(doc: CheckpointRecord, study: Study) -> Table:
    """One row for each save and restore."""
    done: list[tuple[str, Save | Restore]] = [("save", save) for save in study.saves]
    done += [("restore", restore) for restore in study.restores]
    measured = metrics_of("save", "restore")
    names = (*OPERATION, *(metric.name for metric in measured), *CHECKED)
    return Table(
        id="operations",
        title="Saves and restores",
        columns=tuple(Column(name=name, label=name) for name in ("run_id", "operation", *names)),
        rows=tuple(
            Row(
                cells=(
                    raw(doc.run_id),
                    raw(operation),
                    *(raw(getattr(one, name, None)) for name in OPERATION),
                    *(raw(value_of(one, metric)) for metric in measured),
                    *(raw(getattr(one, name, None)) for name in CHECKED),
                )
            )
            for operation, one in done
        ),
        where="data",
    )
