"""``iobench compare``: metrics of both sides, their ratio, and what may be said about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from ..ask.compare.claims import MAX_MORE
from ..ask.compare.comparison import ComparedMetric, Comparison, Gated, line_of, shown
from ..ask.compare.runs import Group, RunValue
from ..ask.compare.sequential import verdict
from ..base.units import counted, format_share
from ..judge.statistics import SIGNIFICANT
from ..record.ab import Claim, Drift
from ..record.metrics import COMPARED
from .figures import (
    TableOf,
    estimated,
    facts,
    format_of,
    listed,
    picture,
    sentence,
    tone_of,
    with_interval,
    word,
)
from .sections import Cell, Chart, FirstScreen, Item, Items, KeyFigure, Section, Table, Tone, joined

WORDS = {word: word for word in ("better", "equal", "inconclusive")} | {"worse": "WORSE"}
TONES: dict[str, Tone] = {"better": "good", "equal": "good", "worse": "bad"}
CUT = (
    "rates leave out the start of each epoch, until its first batch is there: a budget cut some of "
    "the runs, and the start is a larger part of a short one"
)
NOTHING = "no metric was measured in both"

_ESTIMATES = {
    "ranks": "the median of the ratios of each candidate run to each baseline run",
    "t": "the geometric mean of the candidate's runs over that of the baseline's",
}
"""What the ratio is, by the method of the claim."""


def sections(
    compared: Sequence[Comparison], left_out: Sequence[str], gated: Sequence[Gated] = ()
) -> list[Section]:
    """The order of several candidates; for each comparison its answer and a table of metrics.

    At the end are the outcomes of a gate, if there is one.
    """
    named = [(f"comparison-{number}", each) for number, each in enumerate(compared, start=1)]
    gate = (Item(text=line_of(each), lead=each.outcome) for each in gated)
    return joined(
        _rankings(compared),
        [part for name, each in named for part in _comparison(each, name)],
        listed("gate", "Gate", gate, first=True),
        listed("left-out", "Left out", left_out),
    )


def _rankings(compared: Sequence[Comparison]) -> list[Items | None]:
    """A list for each baseline that has several candidates, which are in order already."""
    by_baseline: dict[tuple[str, ...], list[Comparison]] = {}
    for each in compared:
        if each.primary is not None:
            ids = (each.workload, each.baseline, *each.baseline_runs)
            by_baseline.setdefault(ids, []).append(each)
    found: list[Items | None] = []
    for rivals in by_baseline.values():
        row = rivals[0].primary
        if len(rivals) > 1 and row is not None:
            metric = COMPARED[row.metric].short
            texts = (f"{each.candidate}: {told(each.primary)}" for each in rivals)
            title = f"{rivals[0].workload}, best first: {metric} over {rivals[0].baseline}"
            found.append(listed(f"ranking-{len(found) + 1}", title, texts, first=True))
    return found


def _comparison(each: Comparison, name: str) -> Iterator[Section]:
    told = [("baseline", _group(each.sides[0])), ("candidate", _group(each.sides[1]))]
    told += [("not comparable", line) for line in each.obstacles]
    told += [("differs", "; ".join(each.changes)), *(("not compared", one) for one in each.missing)]
    yield _first(each, name)
    yield facts(f"{name}-sides", "What is compared", [*told, *_how(each)])
    if each.rows:
        yield _metrics(each, name)


def _first(each: Comparison, name: str) -> FirstScreen:
    """Both sides as bars, and the ratio."""
    row, drawn, gauges = each.primary, None, list[KeyFigure]()
    if row is not None:
        metric = COMPARED[row.metric]
        sides = ((each.baseline, row.baseline), (each.candidate, row.candidate))
        bars = [(side, median(run.median for run in runs), "") for side, runs in sides if runs]
        drawn = picture(f"{metric.label}: the median of the runs", bars, format_of(metric))
        if row.claim.ratio is not None:
            gauges.append(KeyFigure(f"{metric.short}, ratio", shown(row)))
    gauges += [
        KeyFigure(label, counted(len(group.runs), "run"), f"({group.label})")
        for label, group in zip(("baseline", "candidate"), each.sides, strict=True)
    ]
    state = "not comparable" if each.obstacles else each.difference or "nothing was compared"
    return FirstScreen(
        id=name,
        job=f"{each.workload}: {each.candidate} against {each.baseline}",
        state=state,
        tone=TONES.get(state, "plain"),
        sentences=(sentence(_verdict(each)),),
        gauges=tuple(gauges),
        picture=drawn,
    )


def _how(each: Comparison) -> list[tuple[str, str]]:
    """What the values and the ratio are, and what the interval rests on: of the primary metric."""
    row = each.primary
    if row is None:
        return []
    single, claim = {len(row.baseline), len(row.candidate)} == {1}, row.claim
    values = "a run's value is the median of its repetitions; in brackets the smallest and largest "
    ratio = f"{_ESTIMATES.get(claim.method, _ESTIMATES['t'])}; it need not be the ratio of the two "
    ratio += "medians beside it"
    if single and claim.method != "ranks":
        ratio = "candidate over baseline"
    order, first = "", each.one_after_the_other
    if first and claim.basis == "runs":
        then = "candidate" if first == "baseline" else "baseline"
        order = f"all runs of the {first} were made before those of the {then}: what changed in "
        order += "between looks like a difference. Make them in turns, or run `iobench ab`"
    return [
        ("values", f"{values}{'repetition' if single else 'run'}"),
        ("without", CUT if each.after_fill else ""),
        ("ratio", ratio),
        ("interval", _interval(each, row)),
        ("order", order),
    ]


def _interval(each: Comparison, row: ComparedMetric) -> str:
    claim = row.claim
    if not claim.method:
        return f"none: {claim.why}"
    runs = f"{claim.baseline_runs} and {counted(claim.candidate_runs, 'run')}"
    own = f"with {drift_text(row.drift)}" if row.drift else "with their own variance"
    how = f"Student's t of {runs}, {own}"
    if claim.method == "ranks":
        how = f"exact permutation test of {runs}"
    levels = sorted({_percent(other.claim.confidence) for other in each.rows})
    if claim.confidence > 1 - SIGNIFICANT or len(levels) > 1:
        return f"{how}; {' to '.join(levels)} for each metric, 95 % for all together (Holm)"
    return f"{how}; {levels[0]} for each metric by itself"


def drift_text(drift: Drift) -> str:
    """``a drift between runs of 3.1 % (14 other runs, 2026-01-01 to 2026-01-09)``."""
    days = sorted({drift.first[:10], drift.last[:10]} - {""})
    when = f", {' to '.join(days)}" if days else ""
    runs = f"({counted(drift.runs, 'other run')}{when})"
    return f"a drift between runs of {format_share(drift.sd)} {runs}"


def _metrics(each: Comparison, name: str) -> Table:
    rows = TableOf(each.rows)
    rows.data("workload", "baseline", "candidate", each=lambda _, key: getattr(each, key))
    rows.add("metric", of=lambda row: word(COMPARED[row.metric].short, row.metric))
    rows.add("baseline_median", "baseline", of=lambda row: _values(row.baseline, row.metric))
    rows.add("candidate_median", "candidate", of=lambda row: _values(row.candidate, row.metric))
    rows.add("ratio", "ratio", "ratio", _ratio, ends=("low", "high"))
    rows.data("confidence", of=lambda row: row.claim.confidence)
    rows.add("p", "p", of=_p, where="pages")
    rows.add("answer", "answer", of=lambda row: word(_answer(row), row.claim.answer))
    rows.add("more", "more runs", of=lambda row: row.claim.more, show=_more)
    of_claim = ("better", "threshold", "basis", "baseline_runs", "candidate_runs")
    rows.data(*of_claim, each=lambda row, key: getattr(row.claim, key))
    rows.data("drift_sd", of=lambda row: row.drift.sd if row.drift else None)
    rows.data("negligible")
    rows.data("why", of=lambda row: row.claim.why)
    return rows.made(
        f"{name}-metrics",
        tone=lambda row: tone_of(row.claim.better),
        charts=[*ratio_chart([row.claim for row in each.rows], "candidate over baseline")],
    )


def _ratio(row: ComparedMetric) -> Cell | None:
    return estimated(row.claim.ratio, shown(row)) if row.claim.ratio else None


def _values(runs: Sequence[RunValue], metric: str) -> Cell:
    """The median of the runs, with their range; of one run that of its repetitions."""
    values = [run.median for run in runs]
    ends = (runs[0].low, runs[0].high) if len(runs) == 1 else (min(values), max(values))
    show = format_of(COMPARED[metric])
    return Cell(value=median(values), text=with_interval(median(values), *ends, show).text)


def _answer(row: ComparedMetric) -> str:
    if row.negligible:
        return row.negligible
    if row.claim.answer == "equal":
        return f"equal within {_percent(row.claim.threshold)}"
    return WORDS[verdict(row.claim)]


def told(row: ComparedMetric | None) -> str:
    """What is told of a metric, in one line: the answer and the ratio, or why there is none."""
    if row is None:
        return NOTHING
    claim = row.claim
    ratio = f"{shown(row)} in {COMPARED[row.metric].short}"
    if claim.answer == "equal":
        return f"equal within {_percent(claim.threshold)}: {ratio}"
    if claim.answer == "different":
        return f"{WORDS[verdict(claim)]}: {ratio}"
    reasons = [claim.why if not claim.method else "", more_text(claim) + " would tell"]
    why = "; ".join(filter(None, reasons if claim.more else reasons[:1]))
    return f"inconclusive: {ratio}" + (f"; {why}" if why else "")


def more_text(claim: Claim) -> str:
    """``about 12 more runs on each side``; only if the number is known."""
    more = claim.more or 0
    number = f"{MAX_MORE} or" if more >= MAX_MORE else f"about {more}"
    return f"{number} more {'run' if more == 1 else 'runs'} of each"


def _more(more: float) -> str:
    return f">{MAX_MORE - 1}" if more >= MAX_MORE else f"{more:.0f}"


def _verdict(each: Comparison) -> str:
    if each.obstacles:
        more = f", and {len(each.obstacles) - 1} more" if len(each.obstacles) > 1 else ""
        return f"not comparable: {each.obstacles[0]}{more}"
    row = each.primary
    if row is None:
        return NOTHING
    text = told(row)
    return f"the candidate is {text}" if verdict(row.claim) in ("better", "worse") else text


def _group(group: Group) -> str:
    most = max((run.repetitions for name in COMPARED for run in group.values(name)), default=0)
    text = f"{group.label} ({counted(len(group.runs), 'run')} of {counted(most, 'repetition')})"
    return f"{text}: {tags}" if (tags := _tags(group)) else text


def _tags(group: Group) -> str:
    """The labels of the runs of a side, each with the number of its runs unless all have it."""
    found = Counter(f"{key}={value}" for run in group.runs for key, value in run.tags.items())
    every = len(group.runs)
    return ", ".join(
        text if count == every else f"{text} ({count} of {counted(every, 'run')})"
        for text, count in sorted(found.items())
    )


def _percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def _p(row: ComparedMetric) -> Cell | None:
    p, level = row.claim.p, round(1 - row.claim.confidence, 9)
    if p is None:
        return None
    text = f"{p:.2g}"
    # 0.0498 must not be shown as 0.05, which is not significant.
    return Cell(value=p, text=f"<{level:g}" if p < level <= float(text) else text)


MIN_SPAN, MAX_SPAN = 0.05, 1.0
"""How far from 1 the axis reaches on each side."""


def ratio_chart(claims: Sequence[Claim], label: str) -> Iterator[Chart]:
    """A bar for each claim with a ratio; nothing without any. ``label`` is that of the axis."""
    known = [claim.ratio for claim in claims if claim.ratio is not None]
    ends = [end for ratio in known for end in (ratio.low, ratio.value, ratio.high) if end]
    if known:
        span = min(MAX_SPAN, max(MIN_SPAN, *(1.1 * abs(end - 1) for end in ends)))
        yield Chart(
            kind="bars",
            y=("ratio",),
            label=("metric",),
            text=("ratio", "answer"),
            title="Ratios, with their intervals",
            y_label=label,
            start=1 - span,
            origin=1.0,
            full=1 + span,
        )
