"""A walk of ``iobench sweep``: its table, what helped, and the command with the best settings."""

from __future__ import annotations

from collections.abc import Iterator

from ..ask.tuning import walk
from ..ask.tuning.walk import ALL, BASELINE, TriedSetting
from ..base.text import quoted
from ..base.units import counted, format_count
from ..record.sweep import Sweep, describe, setting_text
from .again import command_sections
from .figures import BLANK, estimated, figure, interval, lacking, listed, median_cell, raw, word
from .glance import ended
from .sections import (
    Chart,
    Column,
    Headline,
    Row,
    Section,
    SourceLines,
    Table,
)

_USD = "samples_per_usd"

MUCH_OTHER_CORES = 0.5
"""What other processes may use of a host's cores before the report tells it.

The kernel's own threads and the process of the sweep are among them.
"""

NOTE = (
    "Samples/s: median [min, max] of the trials. Ratio: to the settings that were kept before, "
    "which were tried in turns with it, so the rates of two rows need not have this ratio; its "
    "interval holds with 95 % for all variants of a step together."
)


def sections(sweep: Sweep) -> list[Section]:
    """The walk's table, a row for each setting that was tried, and what it tells."""
    rows = walk.rows(sweep)
    measured = sum(1 for row in rows if row.rates)
    trials = max((len(row.rates) for row in rows), default=0)
    title = f"{sweep.preset}: {measured} settings, up to {trials} trials each"
    found = ended("This walk", sweep.status, "")
    found.append(Headline(id="walk", title=title, sentences=tuple(_told(sweep, rows))))
    found.append(
        Table(
            id="steps",
            columns=_columns(sweep),
            rows=tuple(_row(sweep, row) for row in rows),
            charts=_charts(rows),
            notes=(NOTE,),
        )
    )
    found.append(SourceLines(id="best", title="The best of all", lines=(best_command(sweep),)))
    found += listed("notes", "Notes", sweep.left_out)
    return [*found, *(command_sections(sweep.command) if sweep.command else [])]


def facts(sweep: Sweep) -> dict[str, object]:
    """What is computed of a walk, for its JSON document; empty for another sweep."""
    if not sweep.walk:
        return {}
    return {
        "steps": walk.rows(sweep),
        "kept": walk.changed(sweep, walk.kept_settings(sweep)),
        "best_command": best_command(sweep),
    }


def best_command(sweep: Sweep) -> str:
    """The command line that runs the walk's workload with all settings that were kept."""
    kept = walk.changed(sweep, walk.kept_settings(sweep))
    asked = [*sweep.overrides, *(f"{key}={setting_text(value)}" for key, value in kept.items())]
    last = {text.partition("=")[0].strip(): text for text in asked}  # a later one replaces it
    words = ["iobench", "run", sweep.workload, "--data", sweep.data or "DIR"]
    words += ["--accelerators", str(sweep.accelerators)] if sweep.accelerators != 1 else []
    for text in last.values():
        if not text.startswith("dataset."):
            words += ["--set", text]
    return " ".join(map(quoted, words))


def _told(sweep: Sweep, rows: list[TriedSetting]) -> Iterator[str]:
    """Yield what helped, what did not, and what all of it gives."""
    yield f"It began with {describe(sweep.default or {})}."
    helped = [row for row in rows if row.kept and row.step != ALL]
    tried = [row for row in rows if row.rates and row.step not in (BASELINE, ALL)]
    rest = [row for row in tried if row.step not in {each.step for each in helped}]
    if helped:
        each = (f"{row.setting} ({interval(row.ratio)})" for row in helped)
        yield f"On this host these helped: {', '.join(each)}."
    elif tried:
        yield "On this host nothing that was tried is told to be faster than the baseline."
    steps = dict.fromkeys(row.step for row in rest)
    if steps:
        what = "Of the others" if helped else "Of all steps"
        yield f"{what}, none was kept: {', '.join(steps)}."
    whole = next((row for row in rows if row.step == ALL and row.ratio), None)
    if whole is not None:
        yield f"All of them together: {interval(whole.ratio)} the baseline, tried in turns."
    elif len(helped) == 1:
        yield "It is the only one that was kept, so its ratio is to the baseline."
    yield from _disturbed(sweep)
    if helped:
        yield f"Take the best of all with: {best_command(sweep)}"


def _disturbed(sweep: Sweep) -> Iterator[str]:
    """Say that other work ran on the host, since it lowers rates and widens intervals."""
    known = [used for point in sweep.points for used in point.other_cores if used is not None]
    much = [used for used in known if used > MUCH_OTHER_CORES]
    if much:
        yield (
            f"In {len(much)} of {counted(len(known), 'trial')} other processes used more than "
            f"{MUCH_OTHER_CORES:g} cores of this host, at most {max(much):.1f} on average: run it "
            "again on a host that does nothing else, for higher rates and narrower intervals."
        )


def _columns(sweep: Sweep) -> tuple[Column, ...]:
    return (
        Column(name="step", label="step", where="pages"),
        Column(name="setting", label="setting"),
        Column(name="samples_per_s", label="samples/s", unit="samples/s"),
        *(Column(name=name, unit="samples/s", where="data") for name in ("min", "max")),
        Column(name="trials", unit="count", where="data"),
        Column(name="ratio", label="ratio to those kept", unit="ratio"),
        *(Column(name=f"ratio_{name}", unit="ratio", where="data") for name in ("low", "high")),
        Column(name="answer", label="told", where="pages"),
        Column(
            name=_USD,
            label="samples/USD",
            align="right",
            where="data" if sweep.usd_per_hour is None else "everywhere",
        ),
        Column(name="kept", where="data"),
    )


def _row(sweep: Sweep, row: TriedSetting) -> Row:
    alone = row.step in (BASELINE, ALL)  # their settings are in the sentences
    first = (word(row.step), word(row.step if alone else row.setting, row.setting))
    rates = row.rates
    if not rates:
        return Row(cells=(*first, lacking(row.not_measured), *[BLANK] * (len(_columns(sweep)) - 3)))
    ratio = row.ratio
    incomplete = len(rates) < sweep.repetitions and row.step != BASELINE
    dropped = row.point.dropped if row.point is not None and row.step != BASELINE else ""
    marks = ["kept"] if row.kept and row.step != ALL else []
    marks += [f"dropped: {dropped}"] if dropped and incomplete else []
    marks += [f"{len(rates)} of {sweep.repetitions} trials"] if incomplete and not dropped else []
    return Row(
        cells=(
            *first,
            median_cell(rates, format_count),
            raw(min(rates)),
            raw(max(rates)),
            raw(len(rates)),
            BLANK if ratio is None else estimated(ratio),
            raw(None if ratio is None else ratio.low),
            raw(None if ratio is None else ratio.high),
            word(row.answer),
            figure(row.samples_per_usd, lambda samples: f"{samples:,.0f}"),
            raw(row.kept),
        ),
        mark="; ".join(marks),
    )


def _charts(rows: list[TriedSetting]) -> tuple[Chart, ...]:
    measured = tuple(at for at, row in enumerate(rows) if row.rates)
    if len(measured) < 2:
        return ()
    title = "Samples/s of each setting that was tried"
    return (
        Chart(
            kind="bars",
            y=("samples_per_s",),
            label=("setting",),
            title=title,
            y_label="samples/s",
            rows=measured,
        ),
    )
