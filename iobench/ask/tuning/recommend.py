"""Choose settings from a sweep, with the reasons, the figures they rest on, and the confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...base.documents import UNPRINTED
from ...base.errors import UsageError
from ...base.units import counted, format_count, format_duration, format_share
from ...judge.judged import judge
from ...judge.promise import answer
from ...judge.statistics import SIGNIFICANT, ratio_interval
from ...record.sweep import setting_text
from ...record.verdict import Answer, Estimate
from ..compare.comparison import ComparedMetric, Comparison
from .points import (
    NEAR,
    Payback,
    SweptPoint,
    along,
    changed,
    enough_shards,
    number,
    ordered_axes,
    pareto,
    payback,
    same,
    settings_text,
    smallest_near_best,
)
from .reasons import (
    CODEC,
    FIRST_BATCH_S,
    SHARD_KEYS,
    Bounds,
    ComparedCodec,
    ShardSize,
    amplification,
    fit,
    judge_codec,
    shard_size,
    why_chosen,
    why_codec,
    why_name,
    why_number,
    why_shard,
)
from .sweepfolder import SweepRuns

MIN_TRIAL_S, PLAIN = 5.0, 1.5
"""Shortest repetition in seconds, and the gain from which on shorter ones are accepted.

In short repetitions start and end take much of the time, so a smaller gain may come from them.
"""

SAME_SIZE = 0.15
"""Shards whose mean sizes differ by less count as equal, because the last shard is short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTarget:
    """The job to which the sweep is extrapolated; the sweep may have used less data."""

    dataset_bytes: float | None = None  # stored; None: the sweep's own
    first_batch_s: float = FIRST_BATCH_S
    shuffle_window_bytes: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """A point of the Pareto front."""

    settings: Mapping[str, str]
    samples_per_s: float
    low: float
    high: float
    repetitions: int
    cpu_s_per_gb: float | None
    stored_bytes: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """The recommended settings.

    ``gain`` is the factor on today's samples/s; ``gain_low`` and ``gain_high`` are its interval,
    which covers the true gains of all points together with the probability ``gain_coverage``.
    """

    workload: str
    settings: Mapping[str, str]
    # the settings that differ from today's; all of them if today's are not known
    changes: Mapping[str, str]
    samples_per_s: float
    why: tuple[str, ...]
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    gain_coverage: float | None
    basis: str
    confidence: str  # high, medium or low
    doubts: tuple[str, ...]
    shard: ShardSize | None
    codecs: tuple[ComparedCodec, ...]
    alternatives: tuple[Alternative, ...]
    payback: Payback | None  # of other data; None: the data is today's, or that is not known
    untested: Mapping[str, str] | None  # the best value of each axis, if they were not run together
    left_out: tuple[str, ...]


def recommend(sweep: SweepRuns, target: TuningTarget | None = None) -> Recommendation:
    """The recommendation that follows from ``sweep``. Each reason names the figures behind it."""
    target = target or TuningTarget()
    points = sweep.points
    chosen = smallest_near_best(points, default=sweep.default, dataset_bytes=target.dataset_bytes)
    shard = _shard(points, chosen, target)
    if shard is not None:
        chosen = _smaller_shards(points, chosen, shard)
    doubts: list[str] = []
    why = [why_chosen(points, chosen, target.dataset_bytes)]
    why += [line for key in ordered_axes(points) if (line := why_number(points, chosen, key))]
    why += [
        line
        for key in chosen.settings
        if key not in ordered_axes(points) and (line := why_name(points, chosen, key))
    ]
    codecs = _codecs(points, chosen)
    for codec in codecs:
        why.append(why_codec(codec))
        if not codec.agrees:
            doubts.append(
                f"codec {codec.codec}: {codec.predicted:.2f} x was predicted, but "
                f"{codec.measured or 0:.2f} x was measured"
            )
    if shard is not None:
        why.append(why_shard(shard))
        if shard.fit.worst is not None and not shard.fit.trusted:
            doubts.append(
                f"the error of the shard size model is {shard.fit.worst:+.0%} at a size that it "
                "was not fitted to: prefer the measured sizes"
            )
        if shard.fit.latency_s >= target.first_batch_s:
            doubts.append(
                f"no shard is there within {target.first_batch_s:g} s, however small it is: a "
                f"stream waits {format_duration(shard.fit.latency_s)} for it"
            )
        if shard.fit.worst is None:
            doubts.append(
                "the shard size model was not checked: add a third shard size to the sweep"
            )
    gain, low, high, coverage = (None, None, None, None)
    if sweep.default is not None and sweep.default is not chosen:
        gain, low, high, coverage = ratio_interval(
            chosen.rates, sweep.default.rates, among=len(points) - 1
        )
    doubts += _chance(coverage, points)
    doubts += _doubts(sweep, chosen, gain, low, target)
    return Recommendation(
        workload=sweep.workload,
        settings=dict(chosen.settings),
        changes={
            key: chosen.settings[key]
            for key in (changed(chosen, sweep.default) if sweep.default else chosen.settings)
        },
        samples_per_s=chosen.median,
        why=tuple(why),
        gain=1.0 if sweep.default is chosen else gain,
        gain_low=low,
        gain_high=high,
        gain_coverage=coverage,
        basis=_basis(sweep, chosen),
        confidence=_confidence(sweep, chosen, doubts),
        doubts=tuple(doubts),
        shard=shard,
        codecs=tuple(codecs),
        alternatives=tuple(_alternative(point) for point in pareto(points)),
        payback=_payback(sweep, chosen),
        untested=_untested(sweep),
        left_out=sweep.left_out,
    )


def _payback(sweep: SweepRuns, chosen: SweptPoint) -> Payback | None:
    if sweep.record is None:
        return None
    for point in sweep.record.points:
        if {key: setting_text(value) for key, value in point.settings.items()} == chosen.settings:
            return payback(sweep.record, point)
    return None


def _codecs(points: Sequence[SweptPoint], chosen: SweptPoint) -> list[ComparedCodec]:
    """Compare each codec on the chosen point's line with no codec."""
    if CODEC not in chosen.settings:
        return []
    line = along(points, chosen, CODEC)
    plain = next((point for point in line if point.settings[CODEC] == "none"), None)
    if plain is None:
        return []
    return [
        found
        for point in line
        if point is not plain and (found := judge_codec(point, plain)) is not None
    ]


def _shard(
    points: Sequence[SweptPoint], chosen: SweptPoint, target: TuningTarget
) -> ShardSize | None:
    """The shard size for the chosen point's line.

    The model is fitted to the fetch ceilings if all points have one, else to the measured rates.
    """
    key = next((key for key in SHARD_KEYS if key in chosen.settings), None)
    if key is None:
        return None
    line = [
        point
        for point in along(points, chosen, key)
        if point.shard_bytes and number(point.settings[key]) is not None
    ]
    known_of = [(p, judge(p.document).evidence) for p in line]
    fetched = {float(p.shard_bytes or 0): one.bytes_per_s(one.fetch) for p, one in known_of}
    measured = {float(p.shard_bytes or 0): one.bytes_per_s(p.median) for p, one in known_of}
    rates = fetched if all(fetched.values()) else measured
    known = {size: rate for size, rate in rates.items() if rate}
    raws = [raw for _, one in known_of if (raw := one.bytes_per_s(one.raw))]
    if len(known) < 2:
        return None
    streams = chosen.processes
    found = fit(known, streams=streams, cap=max(raws, default=None))
    if found is None:
        return None
    memory = chosen.document.memory_bytes
    bounds = Bounds(
        dataset_bytes=target.dataset_bytes or chosen.stored_bytes or max(known),
        streams=streams,
        prefetch=chosen.document.job.workload.loader.prefetch_factor,
        memory_bytes=float(memory) if memory else None,
        first_batch_s=target.first_batch_s,
        shuffle_window_bytes=target.shuffle_window_bytes,
    )
    evidence = judge(chosen.document).evidence
    others = [
        rate for rate in (evidence.prep, evidence.loader, evidence.accelerator) if rate is not None
    ]
    needed = evidence.bytes_per_s(min(others, default=None))
    return shard_size(found, bounds, smallest=min(known), largest=max(known), needed=needed)


def _smaller_shards(
    points: Sequence[SweptPoint], chosen: SweptPoint, shard: ShardSize
) -> SweptPoint:
    """The measured point with the shard size of the model, if that is smaller than ``chosen``'s.

    ``chosen`` is returned if the model is not trusted, or if no such point is within 5 % of the
    best.
    """
    if not shard.fit.trusted or chosen.shard_bytes is None:
        return chosen
    key = next(key for key in SHARD_KEYS if key in chosen.settings)
    line = along(points, chosen, key)
    best = max(point.median for point in line)
    fitting = [
        point
        for point in line
        if point.shard_bytes
        and abs(point.shard_bytes / shard.bytes - 1) < SAME_SIZE
        and point.median >= NEAR * best
    ]
    return fitting[0] if fitting and (fitting[0].shard_bytes or 0) < chosen.shard_bytes else chosen


def _chance(coverage: float | None, points: Sequence[SweptPoint]) -> list[str]:
    """That the best of many points may be the luckiest one, where too few trials exclude it."""
    if coverage is None or coverage >= 1 - SIGNIFICANT or len(points) < 3:
        return []
    return [
        f"of {counted(len(points), 'point')} one may look best by chance, and the repetitions are "
        f"too few to exclude it: the interval of the gain holds for all of them together with "
        f"{format_share(coverage)}. Confirm it with iobench sweep --confirm"
    ]


def _doubts(
    sweep: SweepRuns,
    chosen: SweptPoint,
    gain: float | None,
    low: float | None,
    target: TuningTarget,
) -> list[str]:
    doubts = []
    fewest = _fewest(sweep, chosen)
    if fewest < 4:
        doubts.append(
            f"a point has only {counted(fewest, 'repetition')}, too few to compare points. At "
            "least 4 are needed, and 6 are better"
        )
    if sweep.default is None:
        known = f" ({settings_text(sweep.default_settings)})" if sweep.default_settings else ""
        doubts.append(
            f"no point has today's settings{known}, so the gain is not known. Give them with "
            "--default KEY=VALUE, or run them, too"
        )
    elif gain is not None and low is not None and low <= 1 < gain:
        doubts.append("the interval of the gain contains 1: a difference is not proven")
    if (doubt := _short(sweep, chosen, gain)) is not None:
        doubts.append(doubt)
    if not enough_shards(chosen, target.dataset_bytes):
        doubts.append(
            f"the dataset has {counted(chosen.shards or 0, 'shard')} for "
            f"{counted(chosen.processes, 'worker')}, fewer than 4 for each: some will be idle"
        )
    return doubts + ([wasteful] if (wasteful := amplification(chosen)) else [])


def _short(sweep: SweepRuns, chosen: SweptPoint, gain: float | None) -> str | None:
    if gain is None or gain >= PLAIN:
        return None
    points = [chosen, *([sweep.default] if sweep.default is not None else [])]
    walls = [
        each.wall_s
        for point in points
        for each in point.document.job.repetitions
        if each.complete and each.wall_s is not None
    ]
    if not walls or min(walls) >= MIN_TRIAL_S:
        return None
    return (
        f"repetitions of {min(walls):.2g} s are short for a gain of {gain:.2f} x. Make them longer "
        "(--samples, --set epochs=N), and confirm the gain with iobench sweep --confirm"
    )


def _basis(sweep: SweepRuns, chosen: SweptPoint) -> str:
    counts = sorted({len(point.rates) for point in sweep.points})
    spread = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    plural = "" if counts == [1] else "s"
    low, high = min(chosen.rates), max(chosen.rates)
    interval = f"[{format_count(low)}, {format_count(high)}]"
    return (
        f"{counted(len(sweep.points), 'point')} with {spread} repetition{plural} each; this one: "
        f"{format_count(chosen.median)} samples/s {interval}"
    )


def _confidence(sweep: SweepRuns, chosen: SweptPoint, doubts: Sequence[str]) -> str:
    """High: at least 5 repetitions and no doubts; low: fewer than 4; otherwise medium."""
    fewest = _fewest(sweep, chosen)
    if fewest < 4:
        return "low"
    return "high" if fewest >= 5 and not doubts else "medium"


def _fewest(sweep: SweepRuns, chosen: SweptPoint) -> int:
    """The repetitions of this point, or of today's, if these are fewer."""
    return min(len(point.rates) for point in (chosen, sweep.default) if point is not None)


def _alternative(point: SweptPoint) -> Alternative:
    return Alternative(
        settings=dict(point.settings),
        samples_per_s=point.median,
        low=min(point.rates),
        high=max(point.rates),
        repetitions=len(point.rates),
        cpu_s_per_gb=point.cpu_s_per_gb,
        stored_bytes=point.stored_bytes,
    )


def _untested(sweep: SweepRuns) -> Mapping[str, str] | None:
    """The best values of all axes together, if axes were swept one at a time.

    Only a run can confirm this combination. The result is None if it was run, or if a point
    differs from the default in more than one axis.
    """
    if sweep.default is None or any(
        len(changed(point, sweep.default)) > 1 for point in sweep.points
    ):
        return None
    best = dict(sweep.default.settings)
    for key in best:
        best[key] = smallest_near_best(
            along(sweep.points, sweep.default, key), default=sweep.default
        ).settings[key]
    ran = any(
        all(same(best[key], value) for key, value in point.settings.items())
        for point in sweep.points
    )
    return None if ran else best


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfirmation:
    """The result of fresh runs, which the advice did not use.

    In ``compared``, today's settings are the baseline and the advised ones the candidate.
    ``left_out`` says what the budgets did not allow, including repetitions that were left out.
    """

    confirmed: bool
    answer: Answer
    promised: Estimate | None  # by the sweep; None if it had no runs with today's settings
    found: Estimate | None  # the gain of the fresh runs, with its interval
    advice: Recommendation
    comparison: tuple[ComparedMetric, ...]
    directory: str
    left_out: tuple[str, ...]
    compared: Comparison = field(metadata=UNPRINTED)


def sweep_confirmation(
    advice: Recommendation, compared: Comparison, directory: str, left_out: tuple[str, ...] = ()
) -> SweepConfirmation:
    """Whether fresh runs show what was promised, by the same rule as for the advice of a run.

    Without a promise, nothing tells whether it was kept. Raises UsageError for runs that are not
    comparable.
    """
    if compared.obstacles:
        raise UsageError(
            f"the fresh runs are not comparable, {compared.obstacles[0]}", remedy=f"see {directory}"
        )
    promised = None
    if advice.gain is not None:
        promised = Estimate(value=advice.gain, low=advice.gain_low, high=advice.gain_high)
    row = next(row for row in compared.rows if row.metric == "samples_per_s")
    told: Answer = "inconclusive" if promised is None else answer(promised, row.claim.ratio)
    return SweepConfirmation(
        confirmed=told == "kept",
        answer=told,
        promised=promised,
        found=row.claim.ratio,
        advice=advice,
        comparison=compared.rows,
        directory=directory,
        left_out=left_out,
        compared=compared,
    )
