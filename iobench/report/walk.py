"""A walk of ``iobench sweep``: its table, what helped, and the command with the best settings."""

from __future__ import annotations

from collections.abc import Iterator

from ..ask.tuning import walk
from ..ask.tuning.walk import ALL, BASELINE, TriedSetting
from ..base.text import quoted
from ..base.units import counted, format_count
from ..record.sweep import Sweep, describe, setting_text
from .figures import ENDS, RANGE, TableOf, add_head, cell, interval, lacking, listed, word
from .glance import ended, kept_sections
from .sections import (
    Cell,
    Chart,
    FirstScreen,
    Item,
    Items,
    Section,
    SourceLines,
    Table,
    Where,
    joined,
)

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
    first = FirstScreen(
        id="walk",
        job=sweep.preset,
        state=f"{measured} settings, up to {trials} trials each",
        flags=() if sweep.status == "ok" else (sweep.status,),
        sentences=tuple(_told(sweep, rows)),
        changes=_helped(rows),
    )
    return joined(
        ended("This walk", sweep.status),
        first,
        _steps(sweep, rows),
        SourceLines(id="best", title="The best of all", lines=(best_command(sweep),)),
        listed("notes", "Notes", sweep.left_out),
        kept_sections(sweep),
    )


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
    if tried and not helped:
        yield "On this host nothing that was tried is significantly faster than the baseline."
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


def _helped(rows: list[TriedSetting]) -> Items | None:
    kept = [row for row in rows if row.kept and row.step != ALL]
    items = (Item(text=row.setting, lead=interval(row.ratio)) for row in kept)
    return listed("help", "What helped on this host: the factor on samples/s", items)


def _disturbed(sweep: Sweep) -> Iterator[str]:
    """Say that other work ran on the host, since it lowers rates and widens intervals."""
    known = [used for point in sweep.points for used in point.other_cores if used is not None]
    much = [used for used in known if used > MUCH_OTHER_CORES]
    if much:
        yield (
            f"In {len(much)} of {counted(len(known), 'trial')} other processes used more than "
            f"{MUCH_OTHER_CORES:g} cores of this host, at most {max(much):.1f} on average."
        )
        yield "A host that does nothing else gives higher rates and narrower intervals."


def _rate(row: TriedSetting) -> Cell:
    return cell(row.rates, format_count) if row.rates else lacking(row.not_measured)


def _steps(sweep: Sweep, tried: list[TriedSetting]) -> Table:
    rows = TableOf(tried)
    rows.add("step", "step", where="pages")
    # The settings of the first and of the last row are in the sentences.
    named = {id(row): row.step if row.step in (BASELINE, ALL) else row.setting for row in tried}
    rows.add("setting", "setting", of=lambda row: word(named[id(row)], row.setting))
    rows.add("samples_per_s", "samples/s", of=_rate, ends=RANGE)
    rows.data("trials", of=lambda row: len(row.rates) or None)
    rows.add("ratio", "ratio to those kept", "ratio", missing="", ends=ENDS)
    rows.add("answer", "answer", of=lambda row: row.answer if row.rates else None, where="pages")
    where: Where = "data" if sweep.usd_per_hour is None else "everywhere"
    rows.add("samples_per_usd", "samples/USD", show="{:,.0f}".format, where=where)
    rows.data("kept", of=lambda row: row.kept if row.rates else None)
    add_head(rows, sweep)
    measured = tuple(at for at, row in enumerate(tried) if row.rates)
    chart = Chart(kind="bars", y=("samples_per_s",), label=("setting",), rows=measured)
    return rows.made(
        "steps",
        "Settings that were tried",
        mark=lambda row: _mark(sweep, row),
        charts=[chart] * (len(measured) > 1),
        notes=[NOTE],
    )


def _mark(sweep: Sweep, row: TriedSetting) -> str:
    if not row.rates:
        return ""
    incomplete = len(row.rates) < sweep.repetitions and row.step != BASELINE
    dropped = row.point.dropped if row.point is not None and row.step != BASELINE else ""
    marks = ["kept"] if row.kept and row.step != ALL else []
    if incomplete:
        trials = f"{len(row.rates)} of {sweep.repetitions} trials"
        marks.append(f"dropped: {dropped}" if dropped else trials)
    return "; ".join(marks)
