"""Advice that was tried: the promised and the found gain, side by side."""

from __future__ import annotations

from ..ask.tuning.recommend import SweepConfirmation
from ..base.units import counted
from ..judge.again import NEW, job_again
from ..judge.promise import shown
from ..record.run import TrainingRecord
from ..record.verdict import Confirmation
from . import compare
from .figures import TableOf, estimated, facts, interval, word
from .sections import Cell, FirstScreen, Item, Items, Section, Table

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
        FirstScreen(
            id="confirmation",
            job=f"Advice of {doc.job.workload.name}, tried",
            state=f"{kept} of {counted(len(tried), 'promise')} kept",
            tone="good" if kept == len(tried) else "plain",
            sentences=tuple(map(_told, tried)),
        ),
        *tried_sections(doc),
    ]


def _answer(tried: Confirmation) -> str:
    """A smaller gain does not break an upper bound: what counts is whether there is one."""
    if not tried.at_most:
        return ANSWERS[tried.answer]
    return BOUNDED[tried.answer]


def _told(tried: Confirmation) -> str:
    found = f"found {interval(tried.found)}" if tried.found else tried.not_measured
    return (
        f"{', '.join(tried.settings)}: promised {_promised(tried).text}, {found}: {_answer(tried)}."
    )


def _promised(tried: Confirmation) -> Cell:
    promised = tried.promised
    return estimated(promised, shown(promised, bound=tried.at_most) if promised else "")


def _table(tried: list[Confirmation]) -> Table:
    rows = TableOf(tried)
    rows.add("settings", "settings", of=lambda each: ", ".join(each.settings))
    rows.add("promised", "promised", "ratio", _promised, ends=("promised_low", "promised_high"))
    rows.add("found", "found", "ratio", ends=("found_low", "found_high"))
    rows.add("rounds", "rounds", of=lambda each: len(each.rounds))
    rows.add("answer", "answer", of=lambda each: word(_answer(each), each.answer))
    rows.data("promised_by", of=lambda each: each.promised_by or None)
    notes = [
        f"{', '.join(each.settings)}: {each.not_measured}" for each in tried if each.not_measured
    ]
    if any(each.answer == "inconclusive" and len(each.rounds) > 1 for each in tried):
        notes.append("inconclusive: the interval has room for the promised gain and for none")
    title = "Advice that was tried, in turns with today's settings: gain in samples/s"
    return rows.made("confirmations", title, notes=notes)


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
    told = f"With {changes} fresh runs with other seeds do {measured} today's samples/s{p}."
    first = FirstScreen(
        id="confirmation",
        job=f"Advice of the sweep, {ANSWERS[found.answer]}",
        state="confirmed" if found.confirmed else "NOT confirmed",
        tone="good" if found.confirmed else "plain",
        sentences=(told, f"The sweep promised {promised}."),
    )
    compared = compare.sections([found.compared], found.left_out)
    evidence = [each for each in compared if not isinstance(each, FirstScreen)]
    return [first, *evidence, facts("runs", "Fresh runs", [("results", found.directory)])]
