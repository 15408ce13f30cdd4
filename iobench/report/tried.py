"""Advice that was tried: the promised and the found gain, side by side."""

from __future__ import annotations

from ..ask.tuning.recommend import SweepConfirmation
from ..base.units import counted
from ..judge.again import NEW, job_again
from ..judge.promise import shown
from ..record.run import TrainingRecord
from ..record.verdict import Confirmation
from . import compare
from .figures import estimated, figures, filled, interval, raws, side_by_side, word, words
from .sections import Fact, Facts, Headline, Item, Items, Section, Table

ANSWERS = {
    "kept": "the promise was kept",
    "not kept": "the promise was not kept",
    "inconclusive": "inconclusive: the promise may have been kept or not",
}

BOUNDED = {
    "kept": "it brings a gain",
    "not kept": "it brings no gain",
    "inconclusive": "inconclusive: it may bring a gain or none",
}
"""The answers where at most so much was promised."""

_OTHER_DATA = {"pack": "format=tar", "compress": "codec=zstd:1"}
"""Advice that needs another dataset, and the setting with which ``generate`` makes it."""


def tried_sections(doc: TrainingRecord) -> list[Section]:
    """Nothing, unless the run was asked to try its advice."""
    tried, none = doc.job.confirmations, doc.job.no_confirmations
    if not tried and not none:
        return []
    found: list[Section] = [_table(tried)] if tried else []
    notes = [Item(text=none)] if none else []
    notes += by_hand(doc)
    if notes:
        title = "Advice that was not tried"
        found.append(Items(id="not-tried", title=title, items=tuple(notes)))
    return found


def confirmed_sections(doc: TrainingRecord) -> list[Section]:
    """The report of a run that only tried the advice of another one."""
    tried = doc.job.confirmations
    kept = sum(each.answer == "kept" for each in tried)
    return [
        Headline(
            id="confirmation",
            title=f"{kept} of {counted(len(tried), 'promise')} kept",
            tone="good" if kept == len(tried) else "plain",
        ),
        *tried_sections(doc),
    ]


def _answer(tried: Confirmation) -> str:
    """A smaller gain does not break an upper bound: what counts is whether there is one."""
    if not tried.at_most:
        return ANSWERS[tried.answer]
    return BOUNDED[tried.answer]


def _table(tried: list[Confirmation]) -> Table:
    promised = [
        estimated(each.promised, shown(each.promised, bound=each.at_most) if each.promised else "")
        for each in tried
    ]
    found = [estimated(each.found) for each in tried]
    columns, rows = side_by_side(
        words("settings", "settings", [", ".join(each.settings) for each in tried]),
        filled("promised", "promised", promised, unit="ratio", align="right"),
        raws("promised_low", [cell.low for cell in promised]),
        raws("promised_high", [cell.high for cell in promised]),
        filled("found", "found", found, unit="ratio", align="right"),
        raws("found_low", [cell.low for cell in found]),
        raws("found_high", [cell.high for cell in found]),
        figures("turns", "turns", "", [len(each.turns) for each in tried]),
        filled("answer", "answer", [word(_answer(each), each.answer) for each in tried]),
        raws("promised_by", [each.promised_by or None for each in tried]),
    )
    notes = [
        f"{', '.join(each.settings)}: {each.not_measured}" for each in tried if each.not_measured
    ]
    if any(each.answer == "inconclusive" and len(each.turns) > 1 for each in tried):
        notes.append("inconclusive: the interval has room for the promised gain and for none")
    return Table(
        id="confirmations",
        title="Advice that was tried, in turns with today's settings: gain in samples/s",
        columns=columns,
        rows=rows,
        notes=tuple(notes),
    )


def by_hand(doc: TrainingRecord) -> list[Item]:
    """Advice that needs another dataset, with the commands to try it."""
    verdict = doc.job.verdict
    if verdict is None:
        return []
    again = job_again(doc)
    return [
        Item(text=advice.change, basis=f"try it with: {make}; {again.line(data=NEW)}")
        for advice in verdict.advice
        if advice.id in _OTHER_DATA
        and not advice.settings
        and (make := again.generate(None, _OTHER_DATA[advice.id]))
    ]


def sections(found: SweepConfirmation) -> list[Section]:
    """Whether the advice is confirmed, and the comparison of fresh runs behind it."""
    advice = found.advice
    row = next(row for row in found.comparison if row.metric == "samples_per_s")
    promised = "an unknown gain" if found.promised is None else interval(found.promised)
    measured = "an unknown gain" if found.found is None else interval(found.found)
    p = "" if row.claim.p is None else f", p = {row.claim.p:.2g}"
    changes = ", ".join(f"{key}={value}" for key, value in advice.changes.items())
    title = (
        f"{'confirmed' if found.confirmed else 'NOT confirmed'}: {ANSWERS[found.answer]}: with "
        f"{changes} fresh runs with other seeds do {measured} today's samples/s{p}; the sweep "
        f"promised {promised}"
    )
    return [
        Headline(id="confirmation", title=title, tone="good" if found.confirmed else "plain"),
        *compare.sections([found.compared], found.left_out),
        Facts(
            id="runs",
            title="Fresh runs",
            facts=(Fact(label="results", text=found.directory),),
        ),
    ]
