"""Which groups of runs are compared with which: by the places that were named, or by a key.

Runs are taken apart by what they ask (``runs.question``), and within a side by their identity, so
that only equal runs are one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...base.errors import UsageError
from ...base.units import counted
from ...record.metrics import COMPARED
from ...record.run import RunRecord
from ..tuning.points import number
from .claims import drifts_of, needs_drift
from .comparison import Comparison, compare
from .identity import identity
from .runs import Collected, Group, allowed, collect, earlier_runs, lookup, question

Pair = tuple[Group, Group]
"""A baseline and a candidate."""

MAX_NAMED = 3
"""Keys by which a part of a side is called; further ones are only counted."""


@dataclass(slots=True)
class Pairs:
    """What to compare. ``left_out``: what is not compared, one line each.

    ``unseen``: those of these lines which a gate must not overlook, because the candidate may be
    worse in them: an INVALID or failed run, and what the baseline alone has measured.
    """

    pairs: list[Pair] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def read_place(
    path: Path, *, include_invalid: bool = False, seen: set[Path] | None = None
) -> Collected:
    """The usable runs of a directory, without those in ``seen``, to which they are added.

    They are by their resolved directories. Raises UsageError if there is no run.
    """
    found = collect(path).usable(include_invalid=include_invalid)
    found.runs = {directory.resolve(): doc for directory, doc in found.runs.items()}
    if seen is not None:
        found.runs = {place: doc for place, doc in found.runs.items() if place not in seen}
        seen.update(found.runs)
    return found


def pairs_of(
    results: Sequence[Path], by: str | None, *, across: Sequence[str], include_invalid: bool
) -> Pairs:
    """The pairs of the runs in ``results``: the first place and each other one, or by a key.

    Raises UsageError without a run, and for one place without a key.
    """
    if not by and len(results) < 2:
        raise UsageError(
            "compare needs two places, or one place and --by KEY",
            remedy="name a baseline and a candidate, e.g. two run directories",
        )
    seen: set[Path] | None = set() if by else None
    places = [read_place(path, include_invalid=include_invalid, seen=seen) for path in results]
    return by_key(places, by, across) if by else by_place(places, across)


def compared_pairs(
    found: Pairs,
    *,
    across: Sequence[str],
    metrics: Sequence[str],
    threshold: float,
    history: Sequence[Path],
    results: Sequence[Path],
) -> list[Comparison]:
    """Compare each pair; where its runs are few, with the drift that earlier runs tell.

    Those are in ``history``, or else in and beside ``results``. Raises UsageError without a pair.
    """
    earlier: list[RunRecord] | None = None
    compared = []
    for baseline, candidate in found.pairs:
        drifts = {}
        if needs_drift(baseline, candidate):
            if earlier is None:
                earlier = earlier_runs(history, results)
            drifts = drifts_of(baseline, candidate, earlier, metrics or tuple(COMPARED))
        compared.append(
            compare(
                baseline,
                candidate,
                across=across,
                metrics=metrics,
                threshold=threshold,
                drifts=drifts,
            )
        )
    if not compared:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise UsageError(
            f"there is nothing to compare{why}",
            remedy="name two runs of one workload, or a directory of runs and --by KEY",
        )
    return compared


def _all_left_out(places: Sequence[Collected]) -> Pairs:
    """No pair yet, and a line for each run that does not count in any of the places."""
    return Pairs(left_out=list(dict.fromkeys(line for each in places for line in each.left_out)))


def by_place(places: Sequence[Collected], across: Sequence[str]) -> Pairs:
    """Pair the runs of the first place with those of each other one, by their question.

    For a workload without a common question one pair is still returned, so that the comparison can
    say how the two differ.
    """
    found = _all_left_out(places)
    found.unseen += [line for each in places[1:] for line in each.invalid]
    for place in places[1:]:
        baselines = _by_question(_without(places[0], place, found), across)
        candidates = _by_question(place, across)
        used = {asked for asked in baselines if asked in candidates}
        matched = {asked[0] for asked in used}
        for asked, before in baselines.items():
            if asked in used:
                _add_apart(before, candidates[asked], across, found)
        for workload in dict.fromkeys(asked[0] for asked in baselines if asked[0] not in matched):
            one = next(asked for asked in baselines if asked[0] == workload)
            other = next((asked for asked in candidates if asked[0] == workload), None)
            if other is None and len(baselines) == len(candidates) == 1:
                other = next(iter(candidates))
            if other is not None:
                found.pairs.append((baselines[one], candidates[other]))
                used |= {one, other}
        without = list(_without_counterpart(baselines, candidates, used))
        found.unseen += without
        found.left_out += [*without, *_without_counterpart(candidates, baselines, used)]
    return found


def by_key(places: Sequence[Collected], key: str, across: Sequence[str]) -> Pairs:
    """Group all runs of all places by the value of ``key``, within each question.

    The first value, in order of numbers or of the alphabet, is the baseline of the others.
    """
    found = _all_left_out(places)
    found.unseen += [line for each in places for line in each.invalid]
    groups: dict[tuple[str, ...], dict[str, Group]] = {}
    for doc in (doc for place in places for doc in place.runs.values()):
        value = lookup(doc, key)
        sides = groups.setdefault(question(doc, across), {})
        sides.setdefault(value, Group(f"{key}={value}")).runs.append(doc)
    for sides in groups.values():
        first, *others = (sides[value] for value in sorted(sides, key=_in_order))
        for other in others:
            _add_apart(first, other, across, found)
    if groups and not found.pairs:
        labels = sorted({group.label for sides in groups.values() for group in sides.values()})
        told = (
            "none of them has this key"
            if labels == [f"{key}=?"]
            else f"all have {labels[0]}"
            if len(labels) == 1
            else f"the runs with {' and '.join(labels[:3])} are not comparable with one another"
        )
        found.left_out.insert(0, f"no two comparable runs differ in {key}: {told}")
    return found


def _without(baseline: Collected, candidate: Collected, found: Pairs) -> Collected:
    """The baseline without the runs of the candidate, unless it has no others.

    ``iobench compare results results/<run>`` compares a run with all others.
    """
    others = {path: doc for path, doc in baseline.runs.items() if path not in candidate.runs}
    if not others or len(others) == len(baseline.runs):
        return baseline
    both = len(baseline.runs) - len(others)
    found.left_out.append(
        f"{counted(both, 'run')} of {baseline.label}: compared as {candidate.label}"
    )
    return replace(baseline, runs=others)


def _in_order(text: str) -> tuple[bool, float, str]:
    value = number(text)
    return value is None, value or 0.0, text


def _by_question(place: Collected, across: Sequence[str]) -> dict[tuple[str, ...], Group]:
    groups: dict[tuple[str, ...], Group] = {}
    for doc in place.runs.values():
        groups.setdefault(question(doc, across), Group(place.label)).runs.append(doc)
    return groups


def _add_apart(baseline: Group, candidate: Group, across: Sequence[str], found: Pairs) -> None:
    """Add the pair; if the runs of a side differ among themselves, a pair for each kind of them.

    Each kind of the candidate's runs is paired with the kind of the baseline's that has the most
    keys in common with it, and of several such ones with the one that has the most runs.
    """
    facts = [[identity(doc) for doc in group.runs] for group in (baseline, candidate)]
    keys = sorted(
        key
        for key in {key: None for side in facts for each in side for key in each}
        if not allowed(key, across)
        and any(len({each.get(key, "-") for each in side}) > 1 for side in facts)
    )
    if not keys:
        found.pairs.append((baseline, candidate))
        return
    kinds = []
    for group, side in zip((baseline, candidate), facts, strict=True):
        parts: dict[tuple[str, ...], list[RunRecord]] = {}
        for doc, each in zip(group.runs, side, strict=True):
            parts.setdefault(tuple(each.get(key, "-") for key in keys), []).append(doc)
        told = [key for at, key in enumerate(keys) if len({values[at] for values in parts}) > 1]
        kinds.append(
            {
                values: Group(
                    _called(group.label, told, dict(zip(keys, values, strict=True))), runs
                )
                for values, runs in parts.items()
            }
        )
    before, after = kinds
    used = set()
    for values, group in after.items():
        nearest = max(before, key=lambda other: (_agreeing(values, other), len(before[other].runs)))
        used.add(nearest)
        found.pairs.append((before[nearest], group))
    for values, group in before.items():
        if values not in used:
            line = f"{group.label} has no counterpart in {candidate.label}"
            found.left_out.append(line)


def _agreeing(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def _called(label: str, keys: Sequence[str], values: dict[str, str]) -> str:
    """The name of a part of a side: with the keys in which its runs differ from the other parts."""
    if not keys:
        return label
    named = ", ".join(f"{key}={values[key]}" for key in keys[:MAX_NAMED])
    more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
    return f"{label} with {named}{more}"


def _without_counterpart(
    groups: dict[tuple[str, ...], Group],
    others: dict[tuple[str, ...], Group],
    used: set[tuple[str, ...]],
) -> Iterator[str]:
    """Yield one line for each question of ``groups`` that was not compared with ``others``."""
    for asked, group in groups.items():
        if asked in used:
            continue
        peers = [other for other in others if other[0] == asked[0]]
        if not peers:
            yield f"only {group.label} has runs of {asked[0]}"
            continue
        nearest = max(peers, key=lambda other: len(set(other) & set(asked)))
        keys = (
            ", ".join(sorted(set(asked) - set(nearest)))
            or f"less than {', '.join(sorted(set(nearest) - set(asked)))}"
        )
        yield f"only {group.label} has runs of {asked[0]} with {keys}"
