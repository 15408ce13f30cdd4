"""Compare a baseline with a candidate: whether they may be compared, what differs, and the claims.

Whatever differs between the two sides is named. What differs between the runs of one side is an
obstacle, because such runs are not one group.

Whether a change may pass: a gate that no inconclusive answer passes.

A metric fails where the candidate is told worse, and passes where the interval of the ratio
excludes a loss of the threshold: the two are equal, or the candidate is better, or not worse by as
much. Everything else is inconclusive: an interval that allows for both, a metric that one side
lacks, INVALID runs, runs that are not comparable. For the test of no loss see J. D'Agostino, J.
Massaro and L. Sullivan, "Non-inferiority trials: design concepts and issues", 2003.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from ...base.documents import UNPRINTED
from ...base.units import format_factor, format_share
from ...judge.statistics import NOISE
from ...record.ab import Claim, Drift
from ...record.metrics import COMPARED, Metric
from ...record.run import TrainingRecord
from .claims import Sides, claim, claims_at_once, in_turns
from .identity import identity, role_of
from .runs import LARGEST_RATE, PRIMARY, Group, RunValue, allowed, any_cut, found_rates, primary_of
from .sequential import verdict

OF_WHOLE_RUNS = ("cpu_s",)
"""Metrics that are sums over a repetition."""

MIN_SHARE = 0.01
"""Times below this share of a step (a wait) or of the wall time (any other time) do not count."""


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One metric of both sides. ``negligible``: why it does not count, though it may differ."""

    metric: str
    baseline: tuple[RunValue, ...]
    candidate: tuple[RunValue, ...]
    claim: Claim
    drift: Drift | None = None  # of earlier runs, if the claim uses it
    negligible: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """``obstacles`` are the reasons why the two are not comparable, as ``key: this -> that``.

    If there are any, ``rows`` is empty. ``difference`` is the result for the primary metric:
    better, worse, equal or inconclusive; None if nothing was compared.
    """

    workload: str
    baseline: str
    candidate: str
    baseline_runs: tuple[str, ...]
    candidate_runs: tuple[str, ...]
    comparable: bool
    obstacles: tuple[str, ...]
    changes: tuple[str, ...]  # keys of the identity that differ, and may differ
    missing: tuple[str, ...]  # metrics that one side alone has, or that were named in vain
    one_after_the_other: str  # which side's runs were all made first; empty: mixed, or unknown
    after_fill: bool  # rates leave out the start of epochs, since a budget cut some of the runs
    difference: str | None
    rows: tuple[ComparedMetric, ...]
    sides: tuple[Group, Group] = field(metadata=UNPRINTED)

    @property
    def primary(self) -> ComparedMetric | None:
        """The most important of the compared metrics; None if nothing was compared."""
        return _primary(self.rows)


def _primary(rows: Sequence[ComparedMetric]) -> ComparedMetric | None:
    ordered = [row for name in PRIMARY for row in rows if row.metric == name]
    return next(iter([*ordered, *rows]), None)


def compare(
    baseline: Group,
    candidate: Group,
    *,
    across: Iterable[str] = (),
    metrics: Sequence[str] = (),
    corrected: bool = True,
    threshold: float = NOISE,
    drifts: Mapping[str, Drift] | None = None,
) -> Comparison:
    """Compare two groups of runs.

    ``across`` names keys that may differ although they describe the work, for example
    ``dataset.shard_size`` to compare layouts. ``metrics``: those to compare, ``corrected`` for
    their number by Holm's procedure; without any, all metrics are compared, each by itself.
    ``drifts``: the drift between runs of each metric, from earlier runs on the hosts and storages
    of both sides. If a budget cut some of the runs, rates leave out the start of each epoch: it is
    a larger part of a shorter run.
    """
    obstacles, changes = _differences(baseline, candidate, tuple(across))
    drifts, after_fill = drifts or {}, any_cut((*baseline.runs, *candidate.runs))
    sums = OF_WHOLE_RUNS if after_fill and _differ_in_length(baseline, candidate) else ()
    measured: dict[str, tuple[list[RunValue], list[RunValue]]] = {}
    missing: list[str] = []
    found = found_rates((*baseline.runs, *candidate.runs))
    usual = (LARGEST_RATE,) if found else tuple(COMPARED)
    for metric in (metrics or usual) if not obstacles else ():
        before = baseline.values(metric, after_fill=after_fill)
        both = before, candidate.values(metric, after_fill=after_fill)
        if all(both) and metric in sums:
            missing.append(f"{metric} grows with the length of a run, and a budget cut some")
        elif all(both):
            measured[metric] = both
        elif metrics or any(both):
            names = zip(("baseline", "candidate"), both, strict=True)
            without = " and the ".join(name for name, values in names if not values)
            missing.append(f"{metric} was not measured by the {without}")
    sides = {
        metric: Sides(
            candidate=[run.median for run in after],
            baseline=[run.median for run in before],
            higher_is_better=COMPARED[metric].better == "more",
            drift=drifts.get(metric),
            in_turns=in_turns([*baseline.runs, *candidate.runs]),
        )
        for metric, (before, after) in measured.items()
    }
    negligible = {
        metric: _negligible(COMPARED[metric], each, (baseline, candidate))
        for metric, each in sides.items()
    }
    counted = {metric: each for metric, each in sides.items() if not negligible[metric]}
    claims = claims_at_once(counted, threshold) if metrics and corrected else {}
    for metric, each in sides.items():
        if metric not in claims:
            claims[metric] = claim(metric, each, threshold=threshold)
    rows = tuple(
        ComparedMetric(
            metric,
            tuple(before),
            tuple(after),
            claims[metric],
            drifts.get(metric) if claims[metric].basis == "drift" else None,
            negligible[metric],
        )
        for metric, (before, after) in measured.items()
    )
    primary = _primary(rows)
    return Comparison(
        workload=baseline.workload,
        baseline=baseline.label,
        candidate=candidate.label,
        baseline_runs=tuple(doc.run_id for doc in baseline.runs),
        candidate_runs=tuple(doc.run_id for doc in candidate.runs),
        comparable=not obstacles,
        obstacles=obstacles,
        changes=changes,
        missing=tuple(missing),
        one_after_the_other=_made_first(baseline, candidate),
        after_fill=after_fill,
        difference=None if primary is None else verdict(primary.claim),
        rows=rows,
        sides=(baseline, candidate),
    )


def best_first(compared: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with the candidates of each baseline in order of their primary metric.

    Those that could not be compared come last. Baselines stay in the order in which they appear.
    """
    first: dict[tuple[str, ...], int] = {}
    for each in compared:
        first.setdefault((each.baseline, *each.baseline_runs), len(first))

    def order(each: Comparison) -> tuple[int, bool, float]:
        row, position = each.primary, first[each.baseline, *each.baseline_runs]
        ratio = row.claim.ratio if row else None
        if row is None or ratio is None:
            return position, True, 0.0
        more = COMPARED[row.metric].better == "more"
        return position, False, -ratio.value if more else ratio.value

    return sorted(compared, key=order)


def _differ_in_length(*groups: Group) -> bool:
    docs = (doc for group in groups for doc in group.runs if isinstance(doc, TrainingRecord))
    return len({each.steps for doc in docs for each in doc.job.repetitions if each.complete}) > 1


def _made_first(baseline: Group, candidate: Group) -> str:
    """``baseline`` or ``candidate``: the side all of whose runs are older than the other's."""
    before, after = (sorted(doc.created for doc in each.runs) for each in (baseline, candidate))
    if not before or not after:
        return ""
    if before[-1] < after[0]:
        return "baseline"
    return "candidate" if after[-1] < before[0] else ""


def _negligible(metric: Metric, sides: Sides, groups: tuple[Group, Group]) -> str:
    """Why a time does not count: on both sides it is below ``MIN_SHARE`` of a step or the wall."""
    if metric.unit != "s" or metric.of != "repetition":
        return ""
    of_step = metric.name.startswith("wait_")
    what = ""
    for group, values in zip(groups, (sides.baseline, sides.candidate), strict=True):
        walls, steps = _times_s(group)
        what = "a step" if of_step and steps else "the wall time"
        times = steps if of_step and steps else walls
        if not times or median(values) >= MIN_SHARE * median(times):
            return ""
    return f"below {format_share(MIN_SHARE)} of {what}"


def _times_s(group: Group) -> tuple[list[float], list[float]]:
    """Of the complete repetitions of all runs: wall times, and the times of a step of one rank."""
    done = [
        (each.wall_s, each.accelerators, each.steps)
        for doc in group.runs
        if isinstance(doc, TrainingRecord)
        for each in doc.job.repetitions
        if each.complete and each.wall_s is not None
    ]
    return [wall for wall, _, _ in done], [wall * n / steps for wall, n, steps in done if steps]


def _differences(
    baseline: Group, candidate: Group, across: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(obstacles, changes): what must not differ and does, and what may differ and does."""
    sides = [_values(group) for group in (baseline, candidate)]
    obstacles: list[str] = []
    changes: list[tuple[bool, str]] = []
    for name, values in zip(("baseline", "candidate"), sides, strict=True):
        obstacles += [
            f"{key}: {' and '.join(sorted(values[key]))} in the {name}"
            for key in sorted(values)
            if len(values[key]) > 1 and not allowed(key, across)
        ]
    for key in sorted({*sides[0], *sides[1]}, key=lambda key: (key != "workload", key)):
        before, after = (" | ".join(sorted(values.get(key, {"-"}))) for values in sides)
        if before == after:
            continue
        line = f"{key}: {before} -> {after}"
        if role_of(key) == "asked" and not allowed(key, across):
            obstacles.append(line)
        else:
            changes.append((role_of(key) != "place", line))
    return tuple(obstacles), tuple(line for _, line in sorted(changes))


def _values(group: Group) -> dict[str, set[str]]:
    """All values of each key of the identity among the runs of a group."""
    found = [identity(doc) for doc in group.runs]
    keys = {key: None for each in found for key in each}
    return {key: {each.get(key, "-") for each in found} for key in keys}


Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """The outcome for one metric of one comparison, with its reason in one line."""

    workload: str
    baseline: str
    candidate: str
    metric: str
    outcome: Outcome
    why: str


def outcome_of(found: Claim, *, higher_is_better: bool) -> Outcome:
    """What a claim means for a gate at its threshold."""
    if found.answer == "different":
        return "passed" if found.better else "failed"
    ratio = found.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return "inconclusive"
    no_loss = (
        ratio.low >= 1 / (1 + found.threshold)
        if higher_is_better
        else ratio.high <= 1 + found.threshold
    )
    return "passed" if no_loss else "inconclusive"


def gate(compared: Sequence[Comparison], metrics: Sequence[str] = ()) -> list[Gated]:
    """The outcomes for the named metrics, or for the primary one, of each comparison."""
    return [
        _gated(each, metric)
        for each in compared
        for metric in metrics or (primary_of([doc for side in each.sides for doc in side.runs]),)
    ]


def line_of(gated: Gated) -> str:
    """The outcome in one line: metric, workload, reason and candidate."""
    return f"{gated.metric} of {gated.workload} is {gated.why}: {gated.candidate}"


def _gated(each: Comparison, metric: str) -> Gated:
    outcome, why = _outcome(each, metric)
    return Gated(
        workload=each.workload,
        baseline=each.baseline,
        candidate=each.candidate,
        metric=metric,
        outcome=outcome,
        why=why,
    )


def _outcome(each: Comparison, metric: str) -> tuple[Outcome, str]:
    row = next((row for row in each.rows if row.metric == metric), None)
    told: Outcome = "inconclusive"
    if row is not None and not row.negligible:
        told = outcome_of(row.claim, higher_is_better=COMPARED[metric].better == "more")
    if row is not None and told == "failed":
        return told, f"worse: {shown(row)}"
    invalid = [
        doc.run_id for group in each.sides for doc in group.runs if doc.validity == "invalid"
    ]
    if each.obstacles:
        return "inconclusive", f"not comparable: {each.obstacles[0]}"
    if invalid:
        return "inconclusive", f"{invalid[0]} is INVALID"
    if row is None:
        missing = (line for line in each.missing if line.startswith(f"{metric} "))
        return "inconclusive", next(missing, f"{metric} was not measured")
    if row.negligible:
        return "passed", row.negligible
    if told == "passed":
        inconclusive = row.claim.answer == "inconclusive"
        excluded = f", which excludes a loss of {row.claim.threshold * 100:.3g} %"
        return told, shown(row) + (excluded if inconclusive else "")
    return told, f"{shown(row)}: {row.claim.why or 'a loss of the threshold is not excluded'}"


def shown(row: ComparedMetric) -> str:
    """The ratio with its interval: ``0.97 x [0.93, 1.02]``."""
    ratio = row.claim.ratio
    if ratio is None:
        return "no ratio"
    if ratio.low is None or ratio.high is None:
        return format_factor(ratio.value)
    return f"{format_factor(ratio.value)} [{_end(ratio.low)}, {_end(ratio.high)}]"


def _end(value: float) -> str:
    """Three digits, and more for an end near 1: what excludes 1 must not be shown as 1."""
    texts = (f"{value:.{digits}g}" for digits in range(3, 17))
    return next((text for text in texts if value == 1 or float(text) != 1), "1")
