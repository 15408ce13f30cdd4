"""``iobench report`` of results of MLPerf Storage: what was published, and what the files add."""

from __future__ import annotations

from functools import partial

from ..ask.submission import Submission, Submissions
from ..base.units import counted, format_percent, format_rate
from .figures import MAX_BARS, TableOf, items_of, listed, picture
from .sections import Bars, FirstScreen, Items, Section

FACTS = "What the files say beside it"
MAX_FACTS, MAX_NAME = 4, 40
"""Facts of the first screen."""


def sections(found: Submissions) -> list[Section]:
    """The answer, then a row for each system and workload, and all facts."""
    facts = [f"{each.name}: {fact}" for each in found.found for fact in each.facts]
    left_out = listed("left-out", "Not read", found.left_out, most=20)
    return [_first(found), _table(found), *_facts(facts), *left_out]


def _facts(facts: list[str]) -> list[Section]:
    return [Items(id="facts", title=FACTS, items=items_of(facts))] if facts else []


def _first(found: Submissions) -> FirstScreen:
    runs = sum(len(each.runs) for each in found.found)
    short = sum(each.falls_short for each in found.found)
    gap = found.median_gap()
    sentences = []
    if gap is not None:
        sentences.append(
            "Published utilization leaves out the first and the last steps of an epoch. "
            f"Over whole epochs it is {100 * gap:.1f} points lower in the median run."
        )
    if short:
        which = f"{short} of {counted(len(found.found), 'result')}"
        has = "has" if short == 1 else "have"
        sentences.append(
            f"Over whole epochs, {which} {has} a lower utilization than the rules require."
        )
    rates = [
        (_short(each.name), rate, format_rate(rate), counted(each.hosts, "host"))
        for each in sorted(found.found, key=_of_all, reverse=True)[:MAX_BARS]
        if (rate := each.mean("bytes_per_s")) is not None
    ]
    facts = [f"{each.name}: {each.facts[0]}" for each in found.found if each.facts]
    items = items_of(facts[:MAX_FACTS])
    more = len(facts) - len(items)
    return FirstScreen(
        job=f"MLPerf Storage results in {found.folder}",
        state=f"{counted(runs, 'run')} of {counted(len(found.found), 'result')}",
        sentences=tuple(sentences),
        picture=picture("Bytes/s that the training read, the highest first", rates),
        changes=Items(id="looked-at", title=FACTS, items=items, more=more) if items else None,
        trust="These are facts about files. iobench measured none of it.",
    )


def _short(name: str) -> str:
    """The end of a long name, which tells more than its beginning."""
    return name if len(name) <= MAX_NAME else f"...{name[3 - MAX_NAME :]}"


def _of_all(each: Submission) -> float:
    return each.mean("bytes_per_s") or 0.0


def _table(found: Submissions) -> Section:
    rows = TableOf(found.found)
    rows.add("name", "result")
    rows.add("workload", "workload")
    rows.add("runs", "runs", of=lambda each: len(each.runs))
    rows.add("hosts", "hosts")
    rows.add("accelerators", "accelerators")
    rows.add("samples_per_s", "samples/s", "samples/s", lambda each: each.mean("samples_per_s"))
    rows.add("bytes_per_s", "bytes/s", "bytes/s", lambda each: each.mean("bytes_per_s"))
    rows.add("bytes_per_s_per_host", "of a host", "bytes/s", _of_a_host)
    rows.add("utilization", "AU published", "share", lambda each: each.mean("utilizations"))
    rows.add("utilization_by_rate", "AU by samples/s", "share", lambda each: each.mean("by_rate"))
    rows.add("utilization_whole", "AU of whole epochs", "share", lambda each: each.mean("whole"))
    rows.add("required", "required", "share", show=format_percent)
    for name, label in (("save_bytes_per_s", "saves"), ("load_bytes_per_s", "restores")):
        some = any(each.mean(name) is not None for each in found.found)
        of = partial(Submission.mean, name=name)
        rows.add(name, label, "bytes/s", of, where="everywhere" if some else "data")
    rows.add(
        "memory_bytes", "memory", "bytes", lambda each: each.mean("memory_bytes"), where="data"
    )
    rows.add("data_bytes", "data", "bytes", lambda each: each.mean("data_bytes"), where="data")
    full = max((each.mean("bytes_per_s") or 0.0 for each in found.found), default=0.0)
    bars = Bars(column="bytes_per_s", full=full) if full else None
    return rows.made("results", "Results", bars=bars)


def _of_a_host(each: Submission) -> float | None:
    rate = each.mean("bytes_per_s")
    return None if rate is None or not each.hosts else rate / each.hosts
