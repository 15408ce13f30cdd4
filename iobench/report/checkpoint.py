"""A checkpoint study with what it means for a training, and the saves of a run that loads data."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from ..judge.checkpoint import cpu_s_per_gb, end_s, host_saves, slowdown, value_of, with_figures
from ..judge.checkpoint_meaning import not_told, upper_word
from ..judge.rules_ranks import host_name
from ..record.checkpoint import Meaning, Restore, Save, Spread, Study
from ..record.metrics import Metric, metrics_of
from ..record.run import CheckpointRecord, TrainingRecord
from .figures import (
    MAX_BARS,
    NO_REASON,
    Format,
    Medians,
    TableOf,
    cell,
    data_table,
    ends,
    evenly,
    facts,
    format_of,
    lacking,
    medians_of,
    picture,
    raw,
    together,
    word,
)
from .glance import whole_report
from .sections import Cell, Chart, FirstScreen, KeyFigure, Mark, Section, Table, joined
from .time import MAX_HOSTS, hosts_text

SAVE_METRICS = tuple(
    metric
    for metric in metrics_of("save", "restore")
    if metric.unit != "bytes/s" and metric.name not in ("persist_s", "cpu_s")
)
"""The metrics of saves and restores that a report shows, beside ``BANDWIDTHS``."""

BANDWIDTHS = tuple(each for each in metrics_of("save", "restore") if each.unit == "bytes/s")
"""What a report shows with the CPU time of a gigabyte."""

_SHOWN = ("blocked_s", "staged_s", "accepted_s", "durable_s", "extra_memory_bytes")


_DATA = ("p95", "min", "max", "n")
"""The figures of a spread that only data shows."""


def _with_p95(found: Spread, show: Format) -> Cell:
    """The median with the smallest and the largest value, and p95: 20 values or more tell it."""
    shown, tail = cell(found, show), "" if found.p95 is None else f", p95 {show(found.p95)}"
    return replace(shown, text=shown.text + tail)


def saves_section(doc: TrainingRecord) -> Table | None:
    """For a run that saved checkpoints while it loaded: these saves, compared with saves alone."""
    study = doc.job.saves
    if study is None:
        return None
    alone = with_figures(study.model_copy(update={"saves": study.alone})).figures
    rows = TableOf(each for each in SAVE_METRICS if each.name in study.figures.keys() & {*_SHOWN})
    rows.add("metric", of=lambda each: word(each.label, each.name))
    rows.add("median", of=lambda each: _with_p95(study.figures[each.name], format_of(each)))
    rows.data(*_DATA, each=lambda one, key: getattr(study.figures[one.name], key))
    known = [each for each in rows.records if each.name in alone]
    medians = {each: cell(alone[each.name].median, format_of(each)) for each in known}
    rows.add("alone", "alone", of=medians.get, missing="")
    quiet = doc.job.quiet.samples_per_s if doc.job.quiet is not None else None
    many = counted(len(study.saves), "save")
    title = f"Checkpoints of {study.model} by {study.writer} while loading: {many}"
    notes = [f"samples/s without saves: {format_count(quiet)}"] if quiet else []
    notes += [changed] if (changed := _changed(study)) else []
    return rows.made("saves", title, notes=notes)


_NO_WAIT_S = 1e-3
"""Shorter waits for the previous save are not shown."""

OPERATION = ("step", "bytes", "files")
"""Columns of a save that are not measured figures. A restore has no number of files."""

CHECKED = ("wall_s", "residency_before", "verified")
"""Further columns of a restore: its time under the name in ``run.json``, and what was checked."""


def sections(doc: CheckpointRecord) -> list[Section]:
    """All sections for which the study has data."""
    study = doc.job
    evidence = joined(_figures(study), _hosts(study), meaning_sections(study))
    return whole_report(doc, _first(study), evidence, _about(study), _operations(doc, study))


_CURVE = "Time lost, over the interval between saves"


def _first(study: Study) -> FirstScreen:
    """What a save costs, and the time lost over the interval."""
    gauges, bars, meaning = [], [], study.meaning
    if isinstance(meaning, Meaning):
        advised = meaning.interval_s
        kept = evenly(meaning.curve, MAX_BARS)
        bars = [
            (f"every {format_duration(at)}", lost, _advised(at, advised))
            for at, lost in meaning.curve
            if (at, lost) in kept or _advised(at, advised)
        ]
        stops, lost = format_duration(meaning.blocked_s), format_share(meaning.waste)
        gauges.append(KeyFigure("a save stops training for", stops))
        note = f"({lost} of the time is lost then)"
        gauges.append(KeyFigure("save every", format_duration(advised), note))
    elif "blocked_s" in study.figures:
        found = study.figures["blocked_s"]
        several = found.n > 1
        note = ends(found.min, found.max, format_duration) if several else "one save only"
        stops = format_duration(found.median)
        gauges.append(KeyFigure("a save stops training for", stops, note))
    return FirstScreen(
        job=f"Checkpoint of {study.model} by {study.writer}",
        state=f"{counted(len(study.saves), 'save')} measured",
        sentences=tuple(filter(None, (_changed(study), meaning.sentence))),
        gauges=tuple(gauges),
        picture=picture(_CURVE, bars, format_share),
    )


def _changed(study: Study) -> str:
    """What saves of what changes take, beside one of the whole state; empty if there are none.

    A run that loads data has saved the whole state before, alone.
    """
    ends = [end for save in study.saves if (end := end_s(save)) is not None]
    if study.base is None or study.state_bytes is None or not ends:
        return ""
    share = format_share(study.bytes / study.state_bytes)
    took, whole = format_duration(median(ends)), format_duration(end_s(study.base) or 0.0)
    how = "the whole state" if study.every is None else "the whole state, before the run,"
    restore = study.figures.get("restore_s")
    both = f"; a restore reads both: {format_duration(restore.median)}" if restore else ""
    return f"A save of the {share} that change takes {took}, {how} {whole}{both}."


def _advised(interval_s: float, advised_s: float) -> str:
    return "advised" if math.isclose(interval_s, advised_s) else ""


def _figures(study: Study) -> Table | None:
    if not study.saves:
        return None
    table = Medians(*_DATA)
    for metric in SAVE_METRICS:
        name, found = metric.name, study.figures.get(metric.name)
        if found is not None and not (name == "waited_s" and found.max < _NO_WAIT_S):
            data = (getattr(found, each) for each in _DATA)
            table.add(metric.label, name, _with_p95(found, format_of(metric)), *data)
    for metric in BANDWIDTHS:
        _add_rate(table, study, metric)
    if study.base is not None:
        took = cell(end_s(study.base), format_duration)
        told = f"{took.text} for {format_bytes(study.base.bytes)}, saved once"
        table.add("the whole state", "base_s", replace(took, text=told))
    readers = max((restore.threads or 0 for restore in study.restores), default=0)
    if readers:
        table.add("threads of a restore", "restore_threads", raw(readers))
    slower = slowdown(study)
    if slower is not None:
        took = Cell(value=slower, text=f"{slower:.3f} x as long as without one")
        table.add("steps during a save", "slowdown", took)
    many, where = medians_of(len(study.saves), "save"), hosts_text(study) or "one host"
    return table.table("metrics", f"Measured on {where}: {many}")


def _hosts(study: Study) -> Table | None:
    """A row for each host, the slowest first."""
    hosts = host_saves(study)
    if not hosts:
        return None
    rows = TableOf(hosts, most=MAX_HOSTS)
    rows.add("host", "host", of=lambda each: host_name(study.hosts, each.host))
    rows.add_each({"ranks": "ranks", "bytes": "saved", "blocked_s": "blocked"})
    rows.add_each({"durable_s": "durable", "restore_s": "restore", "late_s": "late start"})
    errors = {each.host: study.hosts[each.host].offset_error_s for each in hosts}
    rows.add("offset_error_s", "clock error", of=lambda each: errors[each.host])
    return rows.made("hosts", "Hosts, the slowest first: medians of each host's slowest rank")


def _add_rate(table: Medians, study: Study, metric: Metric) -> None:
    """A bandwidth with what a gigabyte costs, or why there is none."""
    found = study.figures.get(metric.name)
    if found is None:
        reason = study.not_measured.get(metric.name, NO_REASON)
        table.add(metric.label, metric.name, lacking(reason))
        return
    cpu = cpu_s_per_gb(study.saves if metric.of == "save" else study.restores)
    spent = "CPU s/GB not measured: the writer shares its process with the training"
    spent = spent if cpu is None else f"{cpu:.3f} CPU s/GB"
    table.measured(metric, found, told=f", {spent}")


def _about(study: Study) -> list[tuple[str, str]]:
    share = ""
    if study.bytes < study.full_bytes:
        part = format_share(study.bytes / study.full_bytes)
        share = f", {part} of {format_bytes(study.full_bytes)}"
    checkpoint = f"{format_bytes(study.bytes)} in {counted(study.files, 'file')}, "
    what = ", the weights alone" if study.spec.weights_only else ""
    if study.state_bytes is not None:
        part = format_share(study.bytes / study.state_bytes)
        what += f", the {part} that change of {format_bytes(study.state_bytes)}"
    checkpoint += f"{counted(study.tensors, 'tensor')}{share}{what}"
    ranks = f"{counted(study.ranks, 'rank')} of {format_bytes(study.largest_rank_bytes)} or less"
    return [("ranks", ranks), ("checkpoint", checkpoint)]


def _operations(doc: CheckpointRecord, study: Study) -> Table:
    """One row for each save and restore."""
    done: list[tuple[str, Save | Restore]] = [("base", study.base)] if study.base else []
    done += [("save", save) for save in study.saves]
    rows = TableOf([*done, *(("restore", restore) for restore in study.restores)])
    measured = {metric.name: metric for metric in metrics_of("save", "restore")}
    rows.data("run_id", of=lambda _: doc.run_id)
    rows.data("operation", of=lambda each: each[0])
    rows.data(*OPERATION, each=lambda done, name: getattr(done[1], name, None))
    rows.data(*measured, each=lambda done, name: value_of(done[1], measured[name]))
    rows.data(*CHECKED, each=lambda done, name: getattr(done[1], name, None))
    return data_table(rows, doc, "operations", "Saves and restores")


def meaning_sections(study: Study) -> list[Section]:
    """What the figures mean, and a chart of the lost time over the interval."""
    found = study.meaning
    if not isinstance(found, Meaning):
        return []
    many, every = counted(found.accelerators, "accelerator"), format_duration(found.mtbf_s)
    costs = f"{format_share(found.overhead)} of the time to save, {format_share(found.waste)} with "
    costs += "what interruptions cost, by the mean of the saves"
    told = [
        ("training", f"{many}, interrupted every {every} ({found.mtbf_how})"),
        ("hosts", _writers(study, found)),
        ("one save", _one_save(study, found)),
        ("slower steps", _slower(found)),
        ("restart", f"{format_duration(found.restart_s)}, of it {_restore(found)}"),
        ("save every", _every(found)),
        ("costs", costs),
        ("lost a day", _lost(found)),
        ("today", _today(found)),
        ("spot", _notice(found)),
    ]
    title = f"What it means for {study.model}: {format_bytes(found.bytes)} a checkpoint"
    return [facts("meaning", title, told), _chart(found)]


def _writers(study: Study, found: Meaning) -> str:
    """How many hosts save, what they get together, and what is not known of that."""
    one, limit = found.host_write_bytes_per_s, found.asked.storage_write_bytes_per_s
    rate = "" if one is None else f" ({format_rate(one)})"
    if (hosts := found.asked.hosts_writing) is None:
        told = f"the whole job is taken to get what the measured one got{rate}"
        if len(study.hosts) > 1:
            told = f"{counted(len(study.hosts), 'host')}, as measured{rate} each"
        unknown = "their number was not stated (--hosts-writing N)"
    else:
        told = f"{format_count(hosts)}, each with the rate of the measured one{rate}"
        unknown = "the storage's limit was not stated (--storage-write-limit RATE)"
    if limit is not None:
        reached = "reached" if found.at_write_limit else "not reached"
        unknown = f"the storage's stated limit of {format_rate(limit)} is {reached}"
    return f"{told}; {unknown}"


def _one_save(study: Study, found: Meaning) -> str:
    """The median times of a save, and the p95 until a restore finds it, with its number."""
    end, blocked = found.times["committed_s"], format_duration(found.blocked_s)
    synced = "accepted" if study.spec.fsync is False else "durable"
    committed, upper = cell(end, format_duration).text, format_duration(end.upper)
    durable = f"{synced} after {format_duration(found.durable_s)}"
    ends = f"found by a restore after {committed}, {upper_word(end)} saves {upper}"
    return f"blocks {blocked}, {durable}, {ends}"


def _every(found: Meaning) -> str:
    """The best interval between saves, by the slow saves and by the median one."""
    times = (found.interval_s, found.interval_median_s)
    slow, middle, young, daly, available = map(
        format_duration, (*times, found.young_s, found.daly_s, found.availability_s)
    )
    by = f"by {upper_word(found.times['committed_s'])} saves, {middle} by the median"
    return f"{slow} {by} (Young {young}, Daly {daly}, for availability {available})"


def _slower(found: Meaning) -> str:
    """What the steps during an asynchronous save cost; empty for a synchronous writer."""
    if not found.asynchronous:
        return ""
    if found.slowdown is None or found.slowed_s is None:
        return "not measured, and not counted: the study ran no training steps (--set steps=50)"
    lost = f"{format_duration(found.slowed_s)} lost in each interval"
    return f"{found.slowdown:.3f} x as long while a save is written: {lost}"


def _restore(found: Meaning) -> str:
    """The time of a restore with its number, and the condition on which it is the training's."""
    if (took := found.times.get("restore_s")) is None:
        return "the restore is not measured"
    known = f"({counted(took.n, 'restore')}; {found.restore_condition})"
    return f"{cell(took, format_duration).text} to restore {known}"


def _notice(found: Meaning) -> str:
    """Whether a save fits into the notice of a spot instance, and how sure that is."""
    end, notice = found.times["committed_s"], format_duration(found.notice_s)
    took = f"{upper_word(end)} saves took {format_duration(end.upper)}"
    if not found.fits_notice:
        longer = f"{found.over_notice} of {end.n} took longer than that notice"
        return f"a save does NOT fit into a notice of {notice}: {took}, and {longer}"
    share, sure = not_told(end), ""
    if share is not None:
        many = counted(end.n, "save")
        sure = f"; {many} cannot rule out that {format_share(share)} take longer"
    before = ", if the save before has ended" if found.asynchronous else ""
    return f"a save fits into a notice of {notice}{before}: {took}{sure}"


def _lost(found: Meaning) -> str:
    samples, usd = found.lost_samples_per_day, found.lost_usd_per_day
    return together(
        f"{format_duration(found.lost_s_per_day)} of training",
        samples is not None and f"{format_count(samples)} samples",
        usd is not None and f"{usd:,.2f} USD",
    )


def _today(found: Meaning) -> str:
    now = found.today
    if now is None:
        return ""
    overhead, waste = format_share(now.overhead), format_share(now.waste)
    return f"every {format_duration(now.interval_s)}: {overhead} to save, {waste} in all"


def _chart(found: Meaning) -> Table:
    advised, rows = found.interval_s, TableOf(found.curve)
    rows.add("interval_s", "interval", of=lambda each: each[0])
    rows.add("waste", "lost", "share", lambda each: each[1], show=format_share)
    mark = Mark(at=advised, label=f"advised: {format_duration(advised)}")
    chart = Chart(kind="lines", x="interval_s", y=("waste",), marks=(mark,), log="x")
    return rows.made(
        "interval",
        _CURVE,
        mark=lambda each: _advised(each[0], advised),
        charts=[chart],
        where="pages",
    )
