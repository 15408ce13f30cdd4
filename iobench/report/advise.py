"""Advice: of `iobench advise`, and that was tried: the promised and the found gain."""

from __future__ import annotations

from collections.abc import Mapping

from ..ask.tuning.points import NO_HELP
from ..ask.tuning.recommend import Alternative, Recommendation, SweepConfirmation
from ..base.units import counted, format_count, format_share
from ..judge.again import NEW, job_again
from ..judge.promise import shown
from ..judge.statistics import MIN_COVERAGE
from ..record.run import TrainingRecord
from ..record.verdict import Confirmation
from . import compare
from .figures import (
    ENDS,
    TableOf,
    estimated,
    facts,
    interval,
    listed,
    sentence,
    told,
    with_interval,
    word,
)
from .sections import Cell, FirstScreen, Item, KeyFigure, Section, Table, joined

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
    notes = listed("not-tried", "Advice that was not tried", [*told(none), *by_hand(doc)])
    return joined(_table(tried) if tried else None, notes)


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
    return (BOUNDED if tried.at_most else ANSWERS)[tried.answer]


def _told(tried: Confirmation) -> str:
    found = f"found {interval(tried.found)}" if tried.found else tried.not_measured
    what = f"{', '.join(tried.settings)}: promised {_promised(tried).text}"
    return f"{what}, {found}: {_answer(tried)}."


def _promised(tried: Confirmation) -> Cell:
    return estimated(tried.promised, shown(tried.promised, bound=tried.at_most))


def _table(tried: list[Confirmation]) -> Table:
    rows = TableOf(tried)
    rows.add("settings", "settings", of=lambda each: ", ".join(each.settings))
    rows.add("promised", "promised", "ratio", _promised, ends=ENDS)
    rows.add("found", "found", "ratio", ends=ENDS)
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


def confirmation_sections(found: SweepConfirmation) -> list[Section]:
    """Whether the advice is confirmed, and the comparison of fresh runs behind it."""
    advice = found.advice
    row = next(row for row in found.comparison if row.metric == "samples_per_s")
    promised = "an unknown gain" if found.promised is None else interval(found.promised)
    measured = "an unknown gain" if found.found is None else interval(found.found)
    p = "" if row.claim.p is None else f", p = {row.claim.p:.2g}"
    changes = ", ".join(f"{key}={value}" for key, value in advice.changes.items())
    answer = f"With {changes} fresh runs with other seeds do {measured} today's samples/s{p}."
    first = FirstScreen(
        id="confirmation",
        job=f"Advice of the sweep, {ANSWERS[found.answer]}",
        state="confirmed" if found.confirmed else "NOT confirmed",
        tone="good" if found.confirmed else "plain",
        sentences=(answer, f"The sweep promised {promised}."),
    )
    compared = compare.sections([found.compared], found.left_out)
    evidence = [each for each in compared if not isinstance(each, FirstScreen)]
    return [first, *evidence, facts("runs", "Fresh runs", [("results", found.directory)])]


MAX_SHOWN = 12
"""Largest number of rows of the Pareto front, and of entries that were left out."""


def sections(found: Recommendation) -> list[Section]:
    """The answer first, then why, what speaks against it, and the alternatives."""
    return joined(
        _recommended(found),
        listed("why", "Why", map(sentence, found.why), MAX_SHOWN),
        listed("but", "But", map(sentence, found.doubts), MAX_SHOWN),
        _front(found),
        listed("left-out", "Left out", found.left_out, MAX_SHOWN),
    )


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(
        f"{key} not set" if value in ("None", "null") else f"{key}={value}"
        for key, value in settings.items()
    )


def _recommended(found: Recommendation) -> FirstScreen:
    keep = found.gain == 1.0 and not found.changes
    changes = _settings(found.changes)
    what = "keep today's settings" if keep else f"take {changes}"
    if found.gain is not None and found.gain > NO_HELP and (found.gain_low or 0.0) <= 1:
        what = f"perhaps {changes}, whose gain is not proven"
    elif found.gain is not None and found.gain <= NO_HELP and found.changes:
        what = f"today's, or {changes}, which is about as fast"
    kept = {key: value for key, value in found.settings.items() if key not in found.changes}
    best = _settings(found.untested or {})
    return FirstScreen(
        id="advice",
        job=f"Settings for {found.workload}",
        state=f"{what}; leave {_settings(kept)}" if kept and not keep else what,
        sentences=told(
            found.untested is not None
            and f"Worth a run: the best of each axis together, which nobody measured: {best}.",
            found.payback is not None and sentence(found.payback.told),
        ),
        gauges=(
            _gain(found, keep=keep),
            KeyFigure("confidence", found.confidence),
            KeyFigure("based on", found.basis),
        ),
    )


def _gain(found: Recommendation, *, keep: bool) -> KeyFigure:
    if keep:
        return KeyFigure("gain", "none", "(today's settings are as good as any)")
    if found.gain is None or found.gain_low is None or found.gain_high is None:
        return KeyFigure("gain", "not known", "(no point has today's settings)")
    share = found.gain_coverage
    coverage = "" if share is None else f", {format_share(share)} interval"
    if share is not None and share < MIN_COVERAGE:
        coverage = ", too few repetitions for an interval"
    note = f"today's samples/s [{found.gain_low:.2f}, {found.gain_high:.2f}{coverage}]"
    if found.gain <= NO_HELP:
        note += "; within 5 % of the best, with smaller settings, lower costs or enough shards"
    return KeyFigure("gain", f"{found.gain:.2f} x", note)


def _rate(each: Alternative) -> Cell:
    return with_interval(each.samples_per_s, each.low, each.high, format_count)


def _front(found: Recommendation) -> Table:
    rows = TableOf(found.alternatives, most=MAX_SHOWN)
    rows.add("samples_per_s", "samples/s [min, max]", of=_rate, ends=("low", "high"))
    rows.add("repetitions", "n")
    rows.add("cpu_s_per_gb", "CPU s/GB", show="{:.3g}".format)
    rows.add("stored_bytes", "stored")
    rows.add("settings", "settings", of=lambda each: _settings(each.settings))
    title = "Pareto front: no other point is at once faster, cheaper in CPU and smaller"
    best = dict(found.settings)
    return rows.made(
        "pareto-front",
        title,
        mark=lambda each: "recommended" if dict(each.settings) == best else "",
    )
