"""``iobench compare``: what became better or worse, by how much, and how certain that is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..analyse.compare.runs import Group
    from ..schema.record import RunRecord

EXAMPLES = """examples:
  iobench compare results/<run> results/<run>
  iobench compare results/<run> results/<run> --fail-on 5%
  iobench compare results/<run> results/<run> --across dataset.shard_size,dataset.codec \
--format markdown
  iobench compare results --by loader.workers --metric samples_per_s

A difference counts if p < 0.05 (exact Mann-Whitney test over repetitions) and the change is above
5 %; '~' means that no difference counts. With fewer than 4 repetitions on a side, nothing can be
decided. Runs that demand something else of the storage, or read other data, are not comparable;
--across names keys that may differ.

exit status: 0 ok, 1 failed, 2 nothing could be compared, 4 a regression beyond --fail-on
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="run directories, or directories of runs, e.g. results/<run>",
    )
    parser.add_argument(
        "--by",
        metavar="KEY",
        help="group all runs by this key of run.json or setting; the first value is the baseline",
    )
    parser.add_argument(
        "--across",
        default="",
        metavar="KEYS",
        help="keys that may differ between the runs, e.g. dataset.shard_size,dataset.format",
    )
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help="compare only this metric; repeatable"
    )
    parser.add_argument(
        "--fail-on",
        metavar="CHANGE",
        help="exit with status 4 if a metric is worse by more than this, e.g. 5%%",
    )
    parser.add_argument("--include-invalid", action="store_true", help="also use INVALID runs")


def run(args: argparse.Namespace) -> int:
    from ..analyse.compare.runs import compare
    from ..errors import UnknownNameError, UsageError
    from ..report.compare import NOTHING, document, sections
    from ..schema.metrics import COMPARED
    from .printing import print_report
    from .terminal import warn

    metrics = tuple(args.metric or COMPARED)
    for name in metrics:
        if name not in COMPARED:
            raise UnknownNameError("metric", name, COMPARED)
    beyond = _change(args.fail_on) if args.fail_on is not None else None
    free = (
        *filter(None, (key.strip() for key in args.across.split(","))),
        *([args.by] if args.by else []),
    )
    left_out: list[str] = []
    pairs = (_by_key if args.by else _by_place)(args, free, left_out)
    compared = [compare(before, after, across=free, metrics=metrics) for before, after in pairs]
    if not compared:
        why = f": {left_out[0]}" if left_out else ""
        raise UsageError(
            f"there is nothing to compare{why}",
            remedy="name two runs of one workload, or a directory of runs and --by KEY",
        )
    print_report(args.format, document(compared, left_out), sections(compared, left_out))
    if all(each.obstacles for each in compared):
        first = compared[0]
        warn(f"not comparable: {first.obstacles[0]}. If this key may differ, name it with --across")
        return 2
    if not any(each.rows for each in compared):
        warn(f"nothing was compared: {NOTHING}")
        return 2
    failed = (
        [(each, row) for each in compared for row in each.regressions(beyond)]
        if beyond is not None
        else []
    )
    for each, row in failed:
        ratio = "" if row.judgement.ratio is None else f" ({row.judgement.ratio:.3g} x)"
        worse = f"{row.metric} of {each.workload} is worse{ratio}: {each.candidate.label}"
        warn(f"--fail-on {args.fail_on}: {worse}")
    return 4 if failed else 0


def _change(text: str) -> float:
    from ..errors import UsageError

    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 100:
        raise UsageError(
            f"--fail-on must be a change of 0 or more, but is '{text}'",
            remedy="write it like 5% or 0.05",
        )
    return share


def _by_place(
    args: argparse.Namespace, across: tuple[str, ...], left_out: list[str]
) -> list[tuple[Group, Group]]:
    """Pair the runs of the first directory with those of each other one, by their question.

    A question (``analyse.compare.runs.question``) is what a run demands of the storage. For a
    workload without a common question, one pair is still returned, so that the comparison can say
    how the two differ.
    """
    from ..errors import UsageError

    if len(args.results) < 2:
        raise UsageError(
            "compare needs two places, or one place and --by KEY",
            remedy="name a baseline and a candidate, e.g. two run directories",
        )
    places = [_groups(place, args.include_invalid, across, left_out) for place in args.results]
    pairs = []
    for candidates in places[1:]:
        used: set[tuple[str, ...]] = {asked for asked in places[0] if asked in candidates}
        matched = {asked[0] for asked in places[0] if asked in candidates}
        pairs += [
            (before, candidates[asked])
            for asked, before in places[0].items()
            if asked in candidates
        ]
        for workload in dict.fromkeys(asked[0] for asked in places[0] if asked[0] not in matched):
            before = next(asked for asked in places[0] if asked[0] == workload)
            after = next((asked for asked in candidates if asked[0] == workload), None)
            if after is None and len(places[0]) == len(candidates) == 1:
                after = next(iter(candidates))
            if after is not None:
                pairs.append((places[0][before], candidates[after]))
                used |= {before, after}
        left_out += [
            *_without_counterpart(places[0], candidates, used),
            *_without_counterpart(candidates, places[0], used),
        ]
    return pairs


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


def _groups(
    place: Path, include_invalid: bool, across: tuple[str, ...], left_out: list[str]
) -> dict[tuple[str, ...], Group]:
    from ..analyse.compare.runs import Group, question

    groups: dict[tuple[str, ...], Group] = {}
    for doc in _counted(place, include_invalid, left_out):
        groups.setdefault(question(doc, across), Group(str(place))).runs.append(doc)
    return groups


def _counted(
    place: Path, include_invalid: bool, left_out: list[str], seen: set[Path] | None = None
) -> Iterator[RunRecord]:
    """Yield the usable runs of a place, without directories in ``seen``, and add to ``seen``."""
    from ..analyse.compare.collect import collect
    from ..analyse.compare.runs import usable

    found = collect(place)
    left_out += found.left_out
    for directory, doc in found.runs.items():
        if seen is not None:
            if directory.resolve() in seen:
                continue
            seen.add(directory.resolve())
        why = usable(doc, str(directory), include_invalid=include_invalid)
        if why:
            left_out.append(why)
        else:
            yield doc


def _by_key(
    args: argparse.Namespace, across: tuple[str, ...], left_out: list[str]
) -> list[tuple[Group, Group]]:
    """Group all runs of all places by a key's value, within each question."""
    from ..analyse.compare.runs import Group, lookup, question
    from ..analyse.tuning.points import number

    groups: dict[tuple[str, ...], dict[str, Group]] = {}
    seen: set[Path] = set()
    for place in args.results:
        for doc in _counted(place, args.include_invalid, left_out, seen):
            value = lookup(doc, args.by)
            groups.setdefault(question(doc, across), {}).setdefault(
                value, Group(f"{args.by}={value}")
            ).runs.append(doc)
    pairs: list[tuple[Group, Group]] = []
    for values in groups.values():
        ordered = [
            values[value]
            for value in sorted(
                values, key=lambda text: (number(text) is None, number(text) or 0.0, text)
            )
        ]
        pairs += [(ordered[0], other) for other in ordered[1:]]
    if groups and not pairs:
        labels = sorted({group.label for values in groups.values() for group in values.values()})
        told = (
            f"all have {labels[0]}"
            if len(labels) == 1
            else f"the runs with {' and '.join(labels[:3])} are not comparable with one another"
        )
        left_out.insert(0, f"no two comparable runs differ in {args.by}: {told}")
    return pairs


VERB = Verb(
    help="two runs or directories of runs: what became better or worse, and how certain that is",
    description=(
        "Compare recorded runs: the first place is the baseline, each other one a candidate. The "
        "runs of a directory are compared separately for each workload."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
