"""``iobench report`` of results of MLPerf Storage: what was published, and what the files add."""

from __future__ import annotations

from ..ask.submission import Submission, Submissions
from ..base.units import counted, format_percent, format_rate
from .figures import MAX_BARS, TableOf, listed, picture, told
from .sections import Bars, FirstScreen, Section, Where, joined

FACTS = "What the files say beside it"
MAX_FACTS, MAX_NAME = 4, 40
"""Facts of the first screen."""


def sections(found: Submissions) -> list[Section]:
    """The answer, then a row for each system and workload, and all facts."""
    facts = [f"{each.name}: {fact}" for each in found.found for fact in each.facts]
    left_out = listed("left-out", "Not read", found.left_out, most=20)
    return joined(_first(found), _table(found), listed("facts", FACTS, facts), left_out)


def _first(found: Submissions) -> FirstScreen:
    runs = sum(len(each.runs) for each in found.found)
    short = sum(each.falls_short for each in found.found)
    gap = found.median_gap()
    which = f"{short} of {counted(len(found.found), 'result')} {'has' if short == 1 else 'have'}"
    sentences = told(
        gap is not None
        and "Published utilization leaves out the first and the last steps of an epoch. "
        f"Over whole epochs it is {100 * gap:.1f} points lower in the median run.",
        short and f"Over whole epochs, {which} a lower utilization than the rules require.",
    )
    fastest = sorted(found.found, key=_of_all, reverse=True)[:MAX_BARS]
    rates = [(_short(e.name), e.mean("bytes_per_s"), counted(e.hosts, "host")) for e in fastest]
    facts = [f"{each.name}: {each.facts[0]}" for each in found.found if each.facts]
    return FirstScreen(
        job=f"MLPerf Storage results in {found.folder}",
        state=f"{counted(runs, 'run')} of {counted(len(found.found), 'result')}",
        sentences=sentences,
        picture=picture("Bytes/s that the training read, the highest first", rates, format_rate),
        changes=listed("looked-at", FACTS, facts, MAX_FACTS),
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
    rows.add_each({"samples_per_s": "samples/s", "bytes_per_s": "bytes/s"}, of=Submission.mean)
    rows.add("bytes_per_s_per_host", "of a host", "bytes/s", _of_a_host)
    rows.add("utilization", "AU published", "share", lambda each: each.mean("utilizations"))
    rows.add("utilization_by_rate", "AU by samples/s", "share", lambda each: each.mean("by_rate"))
    rows.add("utilization_whole", "AU of whole epochs", "share", lambda each: each.mean("whole"))
    rows.add("required", "required", "share", show=format_percent)
    for name, label in (("save_bytes_per_s", "saves"), ("load_bytes_per_s", "restores")):
        some = any(each.mean(name) is not None for each in found.found)
        where: Where = "everywhere" if some else "data"
        rows.add_each({name: label}, of=Submission.mean, where=where)
    rows.data("memory_bytes", "data_bytes", each=Submission.mean)
    full = max(map(_of_all, found.found), default=0.0)
    bars = Bars(column="bytes_per_s", full=full) if full else None
    return rows.made("results", "Results", bars=bars)


def _of_a_host(each: Submission) -> float | None:
    rate = each.mean("bytes_per_s")
    return None if rate is None or not each.hosts else rate / each.hosts
