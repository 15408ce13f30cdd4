"""``iobench ab``: what two sides that took turns tell, and each turn while they are measured."""

from __future__ import annotations

from statistics import median

from ..ask.compare.sequential import (
    MIN_TURNS,
    claims_of,
    differs,
    logs_of,
    measured,
    other_work,
    primary,
    sequential_of,
    verdict,
)
from ..base.units import counted, format_duration, format_factor, format_share
from ..judge.statistics import factor_of
from ..record.ab import MAX_TURNS, AbRecord, Claim, Side
from ..record.metrics import BY_NAME
from .again import command_sections
from .compare import ratio_chart, tone_of
from .figures import TableOf, facts, figure, format_of, interval, listed, picture, sentence, word
from .glance import ended
from .sections import Cell, Chart, FirstScreen, KeyFigure, Mark, Section, Table

SHOWN_DIFFERENCES = 12
"""Lines of what differs that a report shows; the record has both identities."""

_ENDED = {
    "significant": "",
    "turns": "all turns that were asked for have been taken (--max-turns)",
    "budget": "the budget has no time for another turn (--budget)",
    "": "",
}


def sections(record: AbRecord) -> list[Section]:
    """The answer, the sides, what differs, every metric, and (as data) every turn."""
    claims = record.claims or claims_of(record)
    found: list[Section] = [
        *ended("This comparison", record.status, record.error),
        _first(record, claims[0]),
        facts("sides", "Variants", map(_side, record.sides)),
        *listed("differs", "What differs, A -> B", differs(record), SHOWN_DIFFERENCES),
    ]
    if record.turns:
        found += [_claims(record, claims), *narrowing_sections(record), _turns(record)]
    return [*found, *command_sections(record.command)]


def _first(record: AbRecord, claim: Claim) -> FirstScreen:
    """Both sides as bars, and the ratio."""
    metric, told = BY_NAME[claim.metric], verdict(claim)
    show = format_of(metric)
    bars = [
        (": ".join([side.name, *side.settings]), middle, show(middle), "")
        for side, at in zip(record.sides, ("a", "b"), strict=True)
        if (middle := _median(record, claim.metric, at)) is not None
    ]
    gauges = [KeyFigure("measured", counted(len(record.turns), "turn"), "of A and B")]
    if claim.ratio is not None:
        ratio = KeyFigure(f"{metric.short}, B / A", interval(claim.ratio))
        gauges.insert(0, ratio)
    return FirstScreen(
        job=f"A/B of {record.a.workload} on {record.a.data}",
        state=told if told in ("equal", "inconclusive") else f"B is {told}",
        flags=() if record.status == "ok" else (record.status,),
        tone="good" if told in ("better", "equal") else "bad" if told == "worse" else "plain",
        sentences=(sentence(answer(record)), *_sentences(record, claim)),
        gauges=tuple(gauges),
        picture=picture(f"{metric.label}: the median over the turns", bars),
    )


def answer(record: AbRecord) -> str:
    """The answer in a sentence: the ratio with its interval, and how many turns it took."""
    claim = primary(record)
    turns = f"{counted(len(record.turns), 'turn')} of 2 repetitions"
    if claim.ratio is None:
        return f"inconclusive: {claim.why}" if record.turns else "inconclusive: no turn is complete"
    if claim.answer == "equal":
        shown = interval(claim.ratio)
        within = format_share(record.threshold)
        return f"equal within {within}: {_is(claim, shown)}, after {turns}"
    if claim.answer == "different":
        return f"{_is(claim, interval(claim.ratio))}, after {turns}"
    return f"inconclusive after {turns}: {_is(claim, interval(claim.ratio))}"


def _is(claim: Claim, ratio: str) -> str:
    metric = BY_NAME[claim.metric]
    if metric.name == "samples_per_s":
        return f"B is {ratio} as fast as A"
    worse = ", which is worse" if claim.better is False else ""
    return f"{metric.short} of B is {ratio} that of A{worse}"


def _sentences(record: AbRecord, claim: Claim) -> list[str]:
    found = []
    if record.status != "ok":
        found.append("Only complete turns count.")
    if claim.answer == "inconclusive" and record.turns:
        found.append(_inconclusive(record, claim))
    if claim.answer == "different" and _may_be_small(claim):
        found.append(f"The difference may be less than {format_share(record.threshold)}.")
    invalid = [side.name for side in record.sides if side.validity == "invalid"]
    if invalid:
        found.append(
            f"INVALID by the rules in force: {' and '.join(invalid)}. Why: iobench report, with "
            "the directory of the variant."
        )
    if record.a.identity and not differs(record):
        found.append("A and B are the same: a difference would be a false alarm.")
    others = other_work(record)
    if others:
        found.append(
            f"The variants do different work ({', '.join(others)}), so the ratio is not only that "
            "of the storage or of how it is read."
        )
    return found


def _may_be_small(claim: Claim) -> bool:
    """Whether a part of the interval lies within the threshold."""
    ratio, most = claim.ratio, 1 + claim.threshold
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return ratio.high > 1 / most if ratio.value < 1 else ratio.low < most


def _inconclusive(record: AbRecord, claim: Claim) -> str:
    parts = [claim.why] if claim.why else []
    if _ENDED[record.ended]:
        parts.append(_ENDED[record.ended])
    if claim.more is not None:
        total = len(record.turns) + claim.more
        would = f"about {counted(claim.more, 'more turn')} would tell"
        parts.append(f"{would}: --max-turns {total}" if total <= MAX_TURNS else would)
        if total > MAX_TURNS:
            parts.append("longer repetitions would tell earlier, such as with --set epochs=N")
    return " ".join(map(sentence, parts))


def _side(side: Side) -> tuple[str, str]:
    given = f" with {', '.join(side.settings)}" if side.settings else ""
    again = f", as in run {side.repeats}" if side.repeats else ""
    return side.name, f"{side.workload} on {side.data}{given}{again}"


def _claims(record: AbRecord, claims: list[Claim]) -> Table:
    rows = TableOf(claims)
    rows.add("metric", "metric", of=lambda each: word(BY_NAME[each.metric].short, each.metric))
    rows.add("a", "A", of=lambda each: _middle(record, each.metric, "a"))
    rows.add("b", "B", of=lambda each: _middle(record, each.metric, "b"))
    rows.add("ratio", "B / A", "ratio")
    rows.add("answer", "B is", of=verdict)
    return rows.made(
        "claims",
        "Every metric: median over the turns, and B over A with its interval",
        mark=lambda each: "" if measured(record, each) else each.why,
        tone=tone_of,
        charts=ratio_chart(claims, "B / A"),
        notes=[
            "The intervals hold at the same time for all looks at one metric.",
            f"{record.metric} alone decides.",
        ],
    )


def _median(record: AbRecord, metric: str, side: str) -> float | None:
    turns = ((turn.a if side == "a" else turn.b) for turn in record.turns)
    known = [value for turn in turns if (value := turn.figures.get(metric)) is not None]
    return median(known) if known else None


def _middle(record: AbRecord, metric: str, side: str) -> Cell:
    return figure(_median(record, metric, side), format_of(BY_NAME[metric]))


def _turns(record: AbRecord) -> Table:
    rows = TableOf(
        [(turn, *side) for turn in record.turns for side in (("A", turn.a), ("B", turn.b))]
    )
    rows.data("turn", of=lambda each: each[0].turn)
    rows.data("side", of=lambda each: each[1])
    rows.data("first", of=lambda each: each[0].first == each[1])
    rows.data("began", of=lambda each: each[0].began)
    rows.data("seed", of=lambda each: each[0].seed)
    rows.data("seconds", of=lambda each: each[2].seconds)
    names = [claim.metric for claim in record.claims or claims_of(record)]
    rows.add_each(dict.fromkeys(names, ""), "", lambda each, name: each[2].figures.get(name))
    return rows.made("turns", where="data")


def turn_line(record: AbRecord) -> str:
    """The last turn in a line: both rates, their ratio, the interval so far, what it takes."""
    turn = record.turns[-1]
    metric = BY_NAME[record.metric]
    show = format_of(metric)
    one, other = (side.figures[record.metric] for side in (turn.a, turn.b))
    test, logs = sequential_of(record), logs_of(record.turns, record.metric)
    unit = " samples/s" if metric.unit == "samples/s" else ""
    order = "A B" if turn.first == "A" else "B A"
    parts = [
        f"turn {turn.turn + 1} ({order}): A {show(one)}, B {show(other)}{unit}",
        f"B is {other / one:.2f} x A",
    ]
    if len(logs) >= MIN_TURNS:
        parts.append(f"so far {interval(test.estimate(logs))}")
    line = ", ".join(parts)
    needed = test.turns_for_threshold(logs) if len(logs) >= MIN_TURNS else None
    if needed is not None and not test.ends(logs):
        change = format_share(record.threshold)
        line += f"; to tell {change} takes about {counted(needed, 'turn')}"
    return line


def planned_line(record: AbRecord, turn_s: float) -> str:
    """How many turns there will be, told after the warm-up."""
    turns = record.planned_turns or record.max_turns
    test = sequential_of(record)
    each, most = format_duration(turn_s), test.looks[-1]
    if turns < MIN_TURNS:
        return (
            f"a turn takes about {each}: the budget has time for {counted(turns, 'turn')}, but an "
            f"answer takes {MIN_TURNS}"
        )
    least_s, most_s = (format_duration(number * turn_s) for number in (MIN_TURNS, most))
    if most == MIN_TURNS:
        return f"a turn takes about {each}: {most} turns, {most_s}"
    return f"a turn takes about {each}: {MIN_TURNS} to {most} turns, {least_s} to {most_s}"


MARGIN = 0.02
"""Room below the lowest and above the highest value, as a share of them."""


def narrowing_sections(record: AbRecord) -> list[Section]:
    """Nothing if a turn lacks the metric, since the turns that have it are a selection."""
    metric, test = BY_NAME[record.metric], sequential_of(record)
    logs = logs_of(record.turns, record.metric)
    if not logs or len(logs) < len(record.turns):
        return []
    ratios = [factor_of(log) for log in logs]
    so_far = [test.estimate(logs[:number]) for number in range(1, len(logs) + 1)]
    lows = [each.low for each in so_far[MIN_TURNS - 1 :] if each and each.low]
    rows, most = TableOf(range(1, len(logs) + 1)), 1 + record.threshold
    rows.add("turn", "turn", "count", lambda turn: turn)
    rows.add("ratio", "B / A", "ratio", lambda turn: ratios[turn - 1], show=format_factor)
    rows.add(
        "so_far",
        "so far",
        "ratio",
        lambda turn: so_far[turn - 1] if turn >= MIN_TURNS else Cell(value=None),
    )
    noise = format_share(record.threshold)
    chart = Chart(
        kind="lines",
        x="turn",
        y=("so_far", "ratio"),
        dots=("ratio",),
        x_label="turns",
        y_label="B / A",
        limits=(
            Mark(at=1.0, label="the same"),
            Mark(at=most, label=f"{noise} more"),
            Mark(at=1 / most, label=f"{noise} less"),
        ),
        start=min([*ratios, 1 / most, *lows]) * (1 - MARGIN),
    )
    title = f"{metric.short} of B over A, turn by turn, and the interval as it narrowed"
    return [rows.made("turn-by-turn", title, charts=[chart], where="pages")]
