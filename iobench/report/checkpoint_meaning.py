"""What a checkpoint study means for a training: the conditions, the times, the costs, the chart."""

from __future__ import annotations

import math

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from ..judge.checkpoint.meaning import not_told, upper_word
from ..record.checkpoint import Meaning, Study
from .figures import TableOf, facts, summary
from .sections import Bars, Chart, Mark, Section, Table


def meaning_sections(study: Study) -> list[Section]:
    """What the figures mean, and a chart of the lost time over the interval."""
    found = study.meaning
    if not isinstance(found, Meaning):
        return []
    many, every = counted(found.accelerators, "accelerator"), format_duration(found.mtbf_s)
    overhead, waste = format_share(found.overhead), format_share(found.waste)
    told = [
        ("training", f"{many}, interrupted every {every} ({found.mtbf_how})"),
        ("hosts", _hosts(study, found)),
        ("one save", _one_save(study, found)),
        ("slower steps", _slower(found)),
        ("restart", f"{format_duration(found.restart_s)}, of it {_restore(found)}"),
        ("save every", _every(found)),
        (
            "costs",
            f"{overhead} of the time to save, {waste} with what interruptions cost, by the mean of "
            "the saves",
        ),
        ("lost a day", _lost(found)),
        ("today", _today(found)),
        ("to buy", _to_buy(found)),
        ("spot", _notice(found)),
    ]
    title = f"What it means for {study.model}: {format_bytes(found.bytes)} a checkpoint"
    return [facts("meaning", title, told), _chart(found)]


def _hosts(study: Study, found: Meaning) -> str:
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
    committed, upper = summary(end, format_duration).text, format_duration(end.upper)
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
    return f"{summary(took, format_duration).text} to restore {known}"


def _to_buy(found: Meaning) -> str:
    share = format_share(found.stall_budget)
    if found.needed_write_bytes_per_s is None:
        return f"no storage: the copies alone take more than {share} of the time"
    most = "at most " if found.asynchronous and found.slowdown is None else ""
    rate = format_rate(found.needed_write_bytes_per_s)
    return f"{most}{rate} of durable writes, for {share} of the time"


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
    parts = [f"{format_duration(found.lost_s_per_day)} of training"]
    parts += [f"{format_count(samples)} samples"] if samples is not None else []
    return ", ".join([*parts, *([f"{usd:,.2f} USD"] if usd is not None else [])])


def _today(found: Meaning) -> str:
    now = found.today
    if now is None:
        return ""
    overhead, waste = format_share(now.overhead), format_share(now.waste)
    return f"every {format_duration(now.interval_s)}: {overhead} to save, {waste} in all"


def _chart(found: Meaning) -> Table:
    advised, rows = found.interval_s, TableOf(found.curve)
    rows.add("interval_s", "interval", "s", lambda each: each[0])
    rows.add("waste", "lost", "share", lambda each: each[1], show=format_share)
    chart = Chart(
        kind="lines",
        x="interval_s",
        y=("waste",),
        x_label="interval between saves",
        y_label="share of the time that is lost",
        marks=(Mark(at=advised, label=f"advised: {format_duration(advised)}"),),
        log="x",
    )
    return rows.made(
        "interval",
        "Time lost, over the interval between saves",
        mark=lambda each: "advised" if math.isclose(each[0], advised) else "",
        bars=Bars(column="waste", full=max((share for _, share in found.curve), default=0.0)),
        charts=[chart],
    )
