"""``iobench ab``: what two variants that took turns tell, and each round meanwhile."""

from __future__ import annotations

import math
from statistics import median

from ..ask.compare.sequential import (
    MIN_ROUNDS,
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
from ..record.ab import MAX_ROUNDS, AbRecord, AbVariant, Claim
from ..record.metrics import BY_NAME
from .compare import TONES, ratio_chart
from .figures import (
    BLANK,
    TableOf,
    add_head,
    cell,
    facts,
    format_of,
    interval,
    listed,
    picture,
    sentence,
    told,
    tone_of,
    word,
)
from .glance import ended, kept_sections
from .sections import Cell, Chart, FirstScreen, KeyFigure, Mark, Section, Table, joined

SHOWN_DIFFERENCES = 12
"""Lines of what differs that a report shows; the record has both identities."""

_ENDED = {
    "significant": "",
    "rounds": "all rounds that were asked for have been taken (--max-rounds)",
    "budget": "the budget has no time for another round (--budget)",
    "": "",
}


def sections(record: AbRecord) -> list[Section]:
    """The answer, the variants, what differs, every metric, and (as data) every round."""
    claims = record.claims or claims_of(record)
    return joined(
        ended("This comparison", record.status, record.error),
        _first(record, claims[0]),
        facts("variants", "Variants", map(_variant, record.variants)),
        listed("differs", "What differs, A -> B", differs(record), SHOWN_DIFFERENCES),
        [_claims(record, claims), _narrowing(record), _rounds(record)] if record.rounds else None,
        kept_sections(record),
    )


def _first(record: AbRecord, claim: Claim) -> FirstScreen:
    """Both variants as bars, and the ratio."""
    metric, answered = BY_NAME[claim.metric], verdict(claim)
    places = list(dict.fromkeys(variant.data for variant in record.variants))
    bars = []
    for variant, at in zip(record.variants, ("a", "b"), strict=True):
        place = [variant.data] if len(places) > 1 else []
        label = ": ".join([variant.name, *place, *variant.settings])
        bars.append((label, _median(record, claim.metric, at), ""))
    gauges = [KeyFigure("measured", counted(len(record.rounds), "round"), "of A and B")]
    if claim.ratio is not None:
        gauges.insert(0, KeyFigure(f"{metric.short}, B / A", interval(claim.ratio)))
    return FirstScreen(
        job=f"A/B of {record.a.workload} on {' and '.join(places)}",
        state=answered if answered in ("equal", "inconclusive") else f"B is {answered}",
        flags=() if record.status == "ok" else (record.status,),
        tone=TONES.get(answered, "plain"),
        sentences=(sentence(answer(record)), *_sentences(record, claim)),
        gauges=tuple(gauges),
        picture=picture(f"{metric.label}: the median over the rounds", bars, format_of(metric)),
    )


def answer(record: AbRecord) -> str:
    """The answer in a sentence: the ratio with its interval, and how many rounds it took."""
    claim = primary(record)
    rounds = f"{counted(len(record.rounds), 'round')} of 2 repetitions"
    if claim.ratio is None:
        return f"inconclusive: {claim.why if record.rounds else 'no round is complete'}"
    told = _is(claim, interval(claim.ratio))
    if claim.answer == "inconclusive":
        return f"inconclusive after {rounds}: {told}"
    equal = f"equal within {format_share(record.threshold)}: " * (claim.answer == "equal")
    return f"{equal}{told}, after {rounds}"


def _is(claim: Claim, ratio: str) -> str:
    metric = BY_NAME[claim.metric]
    if metric.name == "samples_per_s":
        return f"B is {ratio} as fast as A"
    worse = ", which is worse" if claim.better is False else ""
    return f"{metric.short} of B is {ratio} that of A{worse}"


def _sentences(record: AbRecord, claim: Claim) -> tuple[str, ...]:
    invalid = [variant.name for variant in record.variants if variant.validity == "invalid"]
    others, same = other_work(record), record.a.identity and not differs(record)
    small = claim.answer == "different" and _may_be_small(claim)
    return told(
        record.status != "ok" and "Only complete rounds count.",
        claim.answer == "inconclusive" and record.rounds and _inconclusive(record, claim),
        small and f"The difference may be less than {format_share(record.threshold)}.",
        invalid
        and f"INVALID by the rules in force: {' and '.join(invalid)}. Why: iobench report, with "
        "the directory of the variant.",
        same and "A and B are the same: a difference would be a false alarm.",
        others
        and f"The variants do different work ({', '.join(others)}), so the ratio is not only that "
        "of the storage or of how it is read.",
    )


def _may_be_small(claim: Claim) -> bool:
    """Whether a part of the interval lies within the threshold."""
    ratio, most = claim.ratio, 1 + claim.threshold
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return ratio.high > 1 / most if ratio.value < 1 else ratio.low < most


def _inconclusive(record: AbRecord, claim: Claim) -> str:
    parts = [claim.why, _ENDED[record.ended]]
    if claim.more is not None:
        taken = len(record.rounds)
        total = taken + claim.more
        flags = []
        if record.ended == "budget" and record.budget_s is not None:
            flags.append(f"--budget {math.ceil(record.budget_s * total / taken)}s")
        if total > record.max_rounds:
            flags.append(f"--max-rounds {total}")
        would = f"about {counted(claim.more, 'more round')} would tell"
        if total > MAX_ROUNDS:
            longer = "longer repetitions would tell earlier, such as with --set epochs=N"
            more = " and a longer --budget" if record.ended == "budget" else ""
            parts += [would, f"{longer}{more}"]
        else:
            parts.append(f"{would}: {' '.join(flags)}" if flags else would)
    return " ".join(map(sentence, filter(None, parts)))


def _variant(variant: AbVariant) -> tuple[str, str]:
    given = f" with {', '.join(variant.settings)}" if variant.settings else ""
    again = f", as in run {variant.repeats}" if variant.repeats else ""
    return variant.name, f"{variant.workload} on {variant.data}{given}{again}"


def _claims(record: AbRecord, claims: list[Claim]) -> Table:
    rows = TableOf(claims)
    rows.add("metric", "metric", of=lambda each: word(BY_NAME[each.metric].short, each.metric))
    rows.add("a", "A", of=lambda each: _middle(record, each.metric, "a"))
    rows.add("b", "B", of=lambda each: _middle(record, each.metric, "b"))
    rows.add("ratio", "B / A", "ratio")
    rows.add("answer", "B is", of=verdict)
    return rows.made(
        "claims",
        "Every metric: median over the rounds, and B over A with its interval",
        mark=lambda each: "" if measured(record, each) else each.why,
        tone=lambda each: tone_of(each.better),
        charts=[*ratio_chart(claims, "B / A")],
        notes=[
            "The intervals hold at the same time for all looks at one metric.",
            f"{record.metric} alone decides.",
        ],
    )


def _median(record: AbRecord, metric: str, variant: str) -> float | None:
    trials = ((one.a if variant == "a" else one.b) for one in record.rounds)
    known = [value for one in trials if (value := one.figures.get(metric)) is not None]
    return median(known) if known else None


def _middle(record: AbRecord, metric: str, variant: str) -> Cell:
    return cell(_median(record, metric, variant), format_of(BY_NAME[metric]))


def _rounds(record: AbRecord) -> Table:
    trials = [(one, *trial) for one in record.rounds for trial in (("A", one.a), ("B", one.b))]
    rows = TableOf(trials)
    rows.data("round", of=lambda each: each[0].round)
    rows.data("variant", of=lambda each: each[1])
    rows.data("first", of=lambda each: each[0].first == each[1])
    rows.data("began", "seed", each=lambda each, name: getattr(each[0], name))
    rows.data("seconds", of=lambda each: each[2].seconds)
    names = [claim.metric for claim in record.claims or claims_of(record)]
    rows.data(*names, each=lambda each, name: each[2].figures.get(name))
    add_head(rows, record)
    return rows.made("rounds", where="data")


def round_line(record: AbRecord) -> str:
    """The last round in a line: both rates, their ratio, the interval so far, what it takes."""
    last = record.rounds[-1]
    metric = BY_NAME[record.metric]
    show = format_of(metric)
    one, other = (trial.figures[record.metric] for trial in (last.a, last.b))
    test, logs = sequential_of(record), logs_of(record.rounds, record.metric)
    unit = " samples/s" if metric.unit == "samples/s" else ""
    order = "A B" if last.first == "A" else "B A"
    line = f"round {last.round + 1} ({order}): A {show(one)}, B {show(other)}{unit}, "
    line += f"B is {other / one:.2f} x A"
    if len(logs) < MIN_ROUNDS:
        return line
    line += f", so far {interval(test.estimate(logs))}"
    needed = test.rounds_for_threshold(logs)
    if needed is not None and not test.ends(logs):
        change = format_share(record.threshold)
        line += f"; to tell {change} takes about {counted(needed, 'round')}"
    return line


def planned_line(record: AbRecord, round_s: float) -> str:
    """How many rounds there will be, told after the warm-up."""
    rounds = record.planned_rounds or record.max_rounds
    test = sequential_of(record)
    each, most = format_duration(round_s), test.looks[-1]
    if rounds < MIN_ROUNDS:
        return (
            f"a round takes about {each}: the budget has time for {counted(rounds, 'round')}, but "
            f"an answer takes {MIN_ROUNDS}"
        )
    least_s, most_s = (format_duration(number * round_s) for number in (MIN_ROUNDS, most))
    if most == MIN_ROUNDS:
        return f"a round takes about {each}: {most} rounds, {most_s}"
    return f"a round takes about {each}: {MIN_ROUNDS} to {most} rounds, {least_s} to {most_s}"


MARGIN = 0.02
"""Room below the lowest and above the highest value, as a share of them."""


def _narrowing(record: AbRecord) -> Table | None:
    """None if a round lacks the metric, since the rounds that have it are a selection."""
    metric, test = BY_NAME[record.metric], sequential_of(record)
    logs = logs_of(record.rounds, record.metric)
    if not logs or len(logs) < len(record.rounds):
        return None
    ratios = [factor_of(log) for log in logs]
    so_far = [test.estimate(logs[:number]) for number in range(1, len(logs) + 1)]
    lows = [each.low for each in so_far[MIN_ROUNDS - 1 :] if each and each.low]
    rows, most = TableOf(range(1, len(logs) + 1)), 1 + record.threshold
    rows.add("round", "round", "count", lambda number: number)
    rows.add("ratio", "B / A", "ratio", lambda number: ratios[number - 1], show=format_factor)
    known = dict(enumerate(so_far[MIN_ROUNDS - 1 :], start=MIN_ROUNDS))
    rows.add("so_far", "so far", "ratio", lambda number: known.get(number, BLANK))
    noise, least = format_share(record.threshold), min([*ratios, 1 / most, *lows])
    limits = {"the same": 1.0, f"{noise} more": most, f"{noise} less": 1 / most}
    chart = Chart(
        kind="lines",
        x="round",
        y=("so_far", "ratio"),
        dots=("ratio",),
        y_label="B / A",
        limits=tuple(Mark(at=at, label=label) for label, at in limits.items()),
        start=least * (1 - MARGIN),
    )
    title = f"{metric.short} of B over A, round by round, and the interval as it narrowed"
    return rows.made("round-by-round", title, charts=[chart], where="pages")
