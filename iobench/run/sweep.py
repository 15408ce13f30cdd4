"""A sweep, from axes to runs: which points there are, which data they need, and the order of visits.

Each visit is one run of one repetition, in a run directory of its own. Points take turns (A B C A B C), so that a storage that drifts
favours none. Only the first visit of a point measures the ceilings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import InterruptedRun, IobenchError, SpecError, UsageError
from ..formats.base import split_codec
from ..generate import clean, generate
from ..generate.target import dataset_id
from ..registry import CODECS, CONTENTS, FORMATS
from ..spec.base import apply_overrides, build
from ..spec.dataset import DatasetSpec, load_dataset_spec, resized
from ..spec.sweep import Sweep, SweepPoint, combinations, describe, save_sweep
from ..spec.workload import Workload, load_workload
from ..storage import open_storage, wrapper_of
from ..units import format_bytes, format_duration, format_rate
from .directory import new_directory
from .plan import check_asked, make_plan
from .progress import Progress, Silent
from .runner import Options
from .runner import run as run_plan

DATASET = "dataset."
HOPELESS = 0.5
"""A point whose best visit stays below this share of the best point's worst is not visited again."""

OVER_BUDGET = "exceeds the byte budget"

_VISITS_BEFORE_DROPPING = 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a sweep may use; None: no limit. ``keep_data`` leaves the datasets for another sweep."""

    seconds: float | None = None
    data_bytes: int | None = None
    keep_data: bool = False
    drop: bool = True  # points that are clearly dominated


@dataclass
class _Clock:
    """Of one call of ``run_sweep``. ``pace_s``: what generating took for each byte, at its slowest."""

    budget_s: float | None
    started: float
    pace_s: float = 0.0

    def out_of_time(self, sweep: Sweep, point: SweepPoint, *, generating: bool = False) -> bool:
        """Whether another visit of this point, as long as its last one (or any point's first), would end too late."""
        if self.budget_s is None:
            return False
        known = point.seconds[-1:] or [
            max((p.seconds[0] for p in sweep.points if p.seconds), default=0.0)
        ]
        first = self.pace_s * point.dataset_bytes if generating else 0.0
        return time.monotonic() - self.started + first + known[0] > self.budget_s


def plan_sweep(sweep: Sweep, *, one_at_a_time: bool) -> Sweep:
    """The points of the axes, today's settings first, each checked as far as that goes without data; equal ones are one.

    Raises UsageError, SpecError.
    """
    base = {key: _value_now(sweep, key) for key in sweep.axes}
    points: list[SweepPoint] = []
    seen: dict[str, dict[str, Any]] = {}
    folded: list[str] = []
    asked = combinations(sweep.axes, one_at_a_time=one_at_a_time, base=base)
    if not any(all(_same(settings[key], base[key]) for key in base) for settings in asked):
        asked.append(base)  # today's settings, without which nobody can say what the others gain
        folded.append(f"today's settings, {describe(base)}, were added as a point")
    for settings in asked:
        workload, spec = resolve(sweep, settings)
        CONTENTS.load(spec.content)
        CODECS.load(split_codec(spec.codec)[0])
        check_asked(workload, accelerators=sweep.accelerators, repetitions=sweep.repetitions)
        effective = f"{workload.model_dump_json()}{spec.identity()}"
        if effective in seen:
            folded.append(f"{describe(settings)} is the same as {describe(seen[effective])}")
            continue
        seen[effective] = settings
        data = place_of_data(sweep, spec)
        points.append(SweepPoint(settings=settings, data=data, dataset_bytes=spec.nominal_bytes))
    now = next(
        (point for point in points if all(_same(point.settings[key], base[key]) for key in base)),
        None,
    )
    points.sort(
        key=lambda point: point is not now
    )  # if a budget leaves something out, then not what all gains are measured against
    return sweep.model_copy(
        update={
            "points": points,
            "default": now.settings if now else None,
            "planned": folded,
            "left_out": folded,
        }
    )


def resolve(sweep: Sweep, settings: dict[str, Any]) -> tuple[Workload, DatasetSpec]:
    """The workload and the dataset that a point means. Raises SpecError, UnknownNameError."""
    given = [*sweep.overrides, *(f"{key}={_text(value)}" for key, value in settings.items())]
    workload = load_workload(
        sweep.workload, [text for text in given if not text.startswith(DATASET)]
    )
    of_dataset = [text.removeprefix(DATASET) for text in given if text.startswith(DATASET)]
    form = FORMATS.load(
        load_dataset_spec(
            workload.dataset, [text for text in of_dataset if text.startswith("format=")]
        ).format
    )
    if form.one_sample_per_shard:  # there are no shards to cut, whatever the other axes say
        of_dataset = [
            text
            for text in of_dataset
            if text.partition("=")[0] not in ("shard_size", "samples_per_shard")
        ]
    spec = resized(
        load_dataset_spec(workload.dataset, of_dataset),
        samples=sweep.samples,
        size_bytes=sweep.size_bytes,
    )
    return workload, spec


def run_sweep(
    sweep: Sweep,
    directory: Path,
    budget: Budget,
    *,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Visit every point until each has its repetitions, or a budget ends. ``sweep.json`` is true after every visit.

    A point that fails is noted and left out; the others go on. Raises InterruptedRun, with everything kept for going on.
    """
    progress = progress or Silent()
    clock = _Clock(budget.seconds, time.monotonic())
    sweep = sweep.model_copy(update={"status": "running", "left_out": list(sweep.planned)})
    for point in sweep.points:
        if (
            point.failed == OVER_BUDGET
        ):  # of an earlier run of this sweep; what holds now is told below
            point.failed = ""
    made: list[str] = []
    try:
        for group in groups_within(sweep, budget):
            try:
                _visit_group(sweep, group, directory, budget, clock, made, progress, tell)
            finally:
                while made and not budget.keep_data:
                    clean(made.pop())
            if clock.out_of_time(sweep, next(iter(group))):
                break
    except (KeyboardInterrupt, InterruptedRun):
        sweep.status = "interrupted"
        save_sweep(directory, sweep)
        raise InterruptedRun(
            f"interrupted; go on with: iobench sweep --resume {directory}"
        ) from None
    short = [
        point
        for point in sweep.points
        if len(point.runs) < sweep.repetitions and not point.dropped and not point.failed
    ]
    sweep.left_out += [
        f"{describe(point.settings)}: {len(point.runs)} of {sweep.repetitions} repetitions, no time left"
        for point in short
    ]
    sweep.status = "out of time" if short else "ok"
    save_sweep(directory, sweep)
    return sweep


def _visit_group(
    sweep: Sweep,
    group: list[SweepPoint],
    directory: Path,
    budget: Budget,
    clock: _Clock,
    made: list[str],
    progress: Progress,
    tell: Callable[[str], None],
) -> None:
    for number in range(sweep.repetitions):
        for point in group:
            if len(point.runs) > number or point.dropped or point.failed:
                continue
            if clock.out_of_time(sweep, point, generating=point.data not in made):
                continue
            if point.data not in made:
                began = time.monotonic()
                provided = _provide(sweep, point, progress, tell)
                clock.pace_s = max(
                    clock.pace_s, (time.monotonic() - began) / max(1, point.dataset_bytes)
                )
                if not provided:
                    save_sweep(directory, sweep)
                    continue
                made.append(point.data)
            _visit(sweep, point, number, directory, progress, tell)
            save_sweep(directory, sweep)
        if budget.drop:
            _drop_hopeless(sweep, tell)


def _provide(
    sweep: Sweep, point: SweepPoint, progress: Progress, tell: Callable[[str], None]
) -> bool:
    """The point's dataset, generated where it is not there yet."""
    _, spec = resolve(sweep, point.settings)
    progress.phase(f"generating {point.data}")
    try:
        report = generate(spec, open_storage(point.data))
    except InterruptedRun:
        raise
    except IobenchError as error:
        point.failed = str(error)
        tell(f"{describe(point.settings)}: {error}")
        return False
    if report.written_bytes:
        rate = format_rate(report.written_bytes / report.wall_s)
        tell(f"generated {format_bytes(report.written_bytes)} at {rate}: {point.data}")
    return True


def _visit(
    sweep: Sweep,
    point: SweepPoint,
    number: int,
    directory: Path,
    progress: Progress,
    tell: Callable[[str], None],
) -> None:
    workload, _ = resolve(sweep, point.settings)
    began = time.monotonic()
    first = not point.runs
    options = Options(
        results=directory,
        command=tuple(sweep.command),
        calibration_s=sweep.calibration_s if first else 0.0,
        rules="quick",
        prove=first,
    )
    try:
        plan = make_plan(
            workload,
            point.data,
            accelerators=sweep.accelerators,
            repetitions=1,
            seed=sweep.seed + number,
        )
        doc, run_directory = run_plan(plan, options, progress)
    except InterruptedRun:
        raise
    except IobenchError as error:
        point.failed = str(error)
        tell(f"{describe(point.settings)}: {error}")
        return
    false = next(
        (
            finding.evidence
            for finding in doc.findings
            if finding.rule == "loader.delivery" and finding.level == "invalid"
        ),
        "",
    )
    if false:  # only the first visit looks
        point.failed = false
        tell(f"{describe(point.settings)}: {false}")
        return
    rate = doc.repetitions[0].samples_per_s or 0.0
    point.runs.append(run_directory.name)
    point.samples_per_s.append(rate)
    point.seconds.append(time.monotonic() - began)
    took = format_duration(point.seconds[-1])
    tell(
        f"{number + 1}/{sweep.repetitions}  {describe(point.settings)}: {rate:,.0f} samples/s ({took})"
    )


def _drop_hopeless(sweep: Sweep, tell: Callable[[str], None]) -> None:
    """Points that are dominated whatever noise does; today's settings stay, they are what the others are compared with."""
    measured = [
        p for p in sweep.points if len(p.samples_per_s) >= _VISITS_BEFORE_DROPPING and not p.failed
    ]
    if not measured:
        return
    best = max(measured, key=lambda point: min(point.samples_per_s))
    for point in measured:
        if (
            not point.dropped
            and point.settings != sweep.default
            and max(point.samples_per_s) < HOPELESS * min(best.samples_per_s)
        ):
            point.dropped = (
                f"below {HOPELESS:.0%} of {describe(best.settings)} after {len(point.runs)} visits"
            )
            if len(point.runs) < sweep.repetitions:
                tell(f"{describe(point.settings)}: dropped, {point.dropped}")


def groups_within(sweep: Sweep, budget: Budget) -> list[list[SweepPoint]]:
    """Points that take turns. All of them, unless their datasets together exceed the byte budget: then as many datasets as fit at a time.

    Points that no budget can hold are left out by name. Raises UsageError where that is every one.
    """
    if budget.data_bytes is None:
        return [sweep.points]
    groups: list[list[SweepPoint]] = []
    inside: dict[str, int] = {}
    for point in sorted(sweep.points, key=lambda p: p.data):
        if point.dataset_bytes > budget.data_bytes:
            sweep.left_out.append(
                f"{describe(point.settings)}: its {format_bytes(point.dataset_bytes)} exceed the byte budget"
            )
            point.failed = OVER_BUDGET
            continue
        if not groups or (
            point.data not in inside
            and sum(inside.values()) + point.dataset_bytes > budget.data_bytes
        ):
            groups.append([])
            inside = {}
        inside[point.data] = point.dataset_bytes
        groups[-1].append(point)
    if not groups:
        smallest = format_bytes(min(point.dataset_bytes for point in sweep.points))
        remedy = f"raise --data-budget to {smallest} at least, or generate less with --samples"
        raise UsageError("the byte budget holds not even one dataset", remedy=remedy)
    if len(groups) > 1:
        few = f"the byte budget holds {len(groups)} groups of datasets one after the other"
        sweep.left_out.append(f"{few}: between groups, drift is not averaged out")
    return groups


def _value_now(sweep: Sweep, key: str) -> Any:
    """What the workload or its dataset says of a key today. Raises SpecError for a key that does not exist."""
    workload, spec = resolve(sweep, {})
    data: Any = (
        spec.model_dump(mode="json")
        if key.startswith(DATASET)
        else workload.model_dump(mode="json")
    )
    for part in key.removeprefix(DATASET).split("."):
        if not isinstance(data, dict):
            raise SpecError(f"there is no setting '{key}'")
        if part not in data:
            # Let the schema say it, with the nearest names; options of a storage are the storage's to know.
            if not key.startswith("storage."):
                _refuse_unknown(sweep, key, workload, spec)
            return None
        data = data[part]
    return data


def _refuse_unknown(sweep: Sweep, key: str, workload: Workload, spec: DatasetSpec) -> None:
    value = sweep.axes[key][0]
    if key.startswith(DATASET):
        build(
            DatasetSpec,
            apply_overrides(
                spec.model_dump(mode="json"), [f"{key.removeprefix(DATASET)}={_text(value)}"]
            ),
            where="--sweep",
        )
    else:
        build(
            Workload,
            apply_overrides(workload.model_dump(mode="json"), [f"{key}={_text(value)}"]),
            where="--sweep",
        )


def _text(value: Any) -> str:
    return (
        "null"
        if value is None
        else "true"
        if value is True
        else "false"
        if value is False
        else str(value)
    )


def _same(asked: Any, now: Any) -> bool:
    """Whether a value as written means the one in force (``64MiB`` is 67108864)."""
    if asked == now or _text(asked) == _text(now):
        return True
    from ..units import parse_duration, parse_size

    for parse in (parse_size, parse_duration):
        try:
            if isinstance(now, int | float) and not isinstance(now, bool) and parse(asked) == now:
                return True
        except (UsageError, ValueError, TypeError):
            continue
    return False


def place_of_data(sweep: Sweep, spec: DatasetSpec) -> str:
    """Where a point's dataset is generated, and removed again: below the sweep's ``data_root``."""
    return _join(sweep.data_root, f"{spec.name}-{dataset_id(spec)[:8]}")


def _join(root: str, name: str) -> str:
    has_options = "://" in root or wrapper_of(root)
    place, mark, query = root.partition("?") if has_options else (root, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{query}"


def new_sweep(results: Path, command: Sequence[str], **given: Any) -> tuple[Sweep, Path]:
    """An empty sweep and its fresh directory."""
    sweep = Sweep(
        created=datetime.now(UTC).isoformat(timespec="seconds"), command=list(command), **given
    )
    return sweep, new_directory(results, f"sweep-{Path(sweep.workload).stem}")
