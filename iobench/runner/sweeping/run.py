"""A sweep's trials: each is one run of one repetition, in a run directory of its own.

Points take turns (A B C, B C A, ...), so that a drift of the storage affects all of them
alike. Only the first trial of a point measures the ceilings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ...ask.compare.runs import values_of
from ...ask.tuning.points import SweptPoint
from ...ask.tuning.walk import called, is_complete
from ...base.errors import (
    DatasetError,
    HostLostError,
    InterruptedRun,
    IobenchError,
    MissingPlaceError,
    StorageError,
    TargetHeldError,
    TargetLostError,
    TargetRefusedError,
    UsageError,
    also_told,
    told_after,
)
from ...base.text import quoted
from ...base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from ...data.dataset import find_dataset
from ...data.generator.cleaner import discard
from ...data.generator.engine import generate
from ...judge.rules_ranks import other_cores
from ...record.manifest import MANIFEST, MARKER
from ...record.run import ModelLoadRecord, RunRecord, TrainingRecord
from ...record.sweep import SWEEP_FILE, Settings, Sweep, SweepPoint, load_sweep, save_sweep
from ...settings.workload import Workload, check_named
from ...storage import open_storage
from ...storage.base import exists, innermost
from ...storage.local.storage import LocalStorage
from ...storage.locks.lock import Lease, exclusive, reading
from ..estimate import CeilingTimes
from ..hosts.hosts import Hosts
from ..options import Observer, SweepOptions
from ..plan import Plan
from ..repeated import Asked, expected_s, plan_of
from ..trials import rotated, rounds, take_turns
from .plan import (
    OVER_BUDGET,
    about_step,
    code_named,
    groups_within,
    next_step,
    resolve,
    with_own_places,
    workload_of,
)
from .trial import Apart, Trial, measure, needs_a_process

HOPELESS = 0.5
"""A point whose best trial is below this share of the best point's worst trial is dropped."""

IN_USE = "its dataset is in use"
"""Beginning of a failure text that allows another try when the sweep is resumed."""

UNMADE = "its dataset could not be generated"
"""Beginning of the failure text of a point without one; allows another try, too."""

INVALID = "INVALID: "
"""Beginning of a failure text of trials that tell nothing; allows another try, too."""

LOCK_FILE = ".sweep.lock"
"""Lock file in the sweep's directory. ``sweep.json`` is replaced after each trial, so it can't be
the lock.
"""

_TRIALS_BEFORE_DROPPING = 2


def run_sweep(
    sweep: Sweep,
    directory: Path,
    options: SweepOptions,
    *,
    observer: Observer | None = None,
    hosts: Hosts | None = None,
) -> Sweep:
    """Try every point until each has its repetitions, or a budget ends.

    ``hosts``: that make the trials; by default this one.

    ``sweep.json`` is rewritten after every trial. A point that fails is recorded and left out; the
    others continue. The directory is locked exclusively until this returns; datasets are locked
    together with other readers. Raises TargetHeldError if another process resumes the same sweep,
    and InterruptedRun, after which everything is kept for resuming.
    """
    place = LocalStorage(directory)
    lock = exclusive(place, LOCK_FILE, verb="sweep", break_dead=options.break_lock, make=True)
    hosts = hosts or Hosts()
    check_hosts(sweep, hosts.count)
    with lock as lease, Apart() as apart:
        if (directory / SWEEP_FILE).exists():
            sweep = _continued(sweep, load_sweep(directory))
        trials = _Trials(sweep, directory, options, lease, apart, observer or Observer(), hosts)
        return trials.run()


def check_hosts(sweep: Sweep, count: int) -> None:
    """Raise UsageError for a sweep that so many hosts can't make, or can't continue."""
    if sweep.hosts != count:
        raise UsageError(
            f"the sweep was begun on {counted(sweep.hosts, 'host')}, and this is on {count}",
            remedy="continue it on as many, or begin a new sweep",
        )
    workload = workload_of(sweep, {})
    if count > 1 and not isinstance(workload, Workload):
        raise UsageError(
            f"{sweep.workload} is measured on one host, and this job has {count}",
            remedy="start the sweep on one host",
        )
    if count > 1 and needs_a_process(workload):
        raise UsageError(
            "each trial of a real model needs a process of its own, which only a sweep on one host "
            "makes",
            remedy="compare two settings with iobench ab, or start the sweep on one host",
        )


def _continued(sweep: Sweep, found: Sweep) -> Sweep:
    """The sweep as another process may have continued it in the meantime: with its points alone.

    What these read and run is what was checked when the sweep was taken up. Raises UsageError if
    the file now names other code.
    """
    before = code_named(sweep)
    for key, values in code_named(found).items():
        for value in values:
            known = {key: value} if value in before.get(key, []) else {}
            check_named({key: value}, known, where=SWEEP_FILE)
    for key in ("workload", "data_root", "data", "overrides"):
        if getattr(found, key) != getattr(sweep, key):
            raise UsageError(
                f"'{key}' in {SWEEP_FILE} has changed since the sweep was taken up",
                remedy="resume it again",
            )
    return with_own_places(found)


@dataclass
class _Trials:
    """One call of ``run_sweep``.

    ``pace_s``: seconds per byte of the slowest generation so far. ``planned_s``: seconds of the
    longest first trial, before there was one. ``held``: locks of datasets, by the dataset's
    location. ``unfinished``: the dataset that is being generated. ``doubtful``: points (by ``id``)
    whose last trial was INVALID.
    """

    sweep: Sweep
    directory: Path
    options: SweepOptions
    lease: Lease
    apart: Apart
    observer: Observer
    hosts: Hosts
    pace_s: float = 0.0
    planned_s: float = 0.0
    held: dict[str, ExitStack] = field(default_factory=dict)
    unfinished: str = ""
    doubtful: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        begun = {"status": "running", "left_out": list(self.sweep.planned)}
        self.sweep, self.budget = self.sweep.model_copy(update=begun), self.options.budget

    def run(self) -> Sweep:
        sweep = self.sweep
        for point in sweep.points:
            # These failures are from an earlier run of this sweep; find out again whether they
            # hold. A walk has gone on from its earlier steps, and does not come back to them.
            passing = point.failed.startswith((OVER_BUDGET, IN_USE, UNMADE, INVALID))
            if passing and point.step in (None, sweep.walked - 1):
                point.failed = ""
        again = f"continue with: iobench sweep --resume {quoted(str(self.directory))}"
        try:
            for group in self._groups():
                try:
                    self._trial_group(group)
                finally:
                    self._release()
        except (KeyboardInterrupt, InterruptedRun):
            self._interrupted(InterruptedRun(f"interrupted; {again}"))
        except Exception as error:
            if isinstance(error, HostLostError):
                error.remedy = again
            self._interrupted(error)
        if sweep.walk:
            next_step(sweep)  # the points for which no time is left
        short = [point for point in sweep.points if not is_complete(sweep, point)]
        sweep.left_out += [
            f"{called(sweep, point)}: {len(point.runs)} of {sweep.repetitions} repetitions, "
            "no time left"
            for point in short
        ]
        if short and (needed_s := self._needed_s(short)):
            sweep.left_out.append(
                f"the other repetitions take about {format_duration(needed_s)}: iobench sweep "
                f"--resume {quoted(str(self.directory))} --budget {math.ceil(1.2 * needed_s)}s"
            )
        sweep.status = "out of time" if short else "ok"
        save_sweep(self.directory, sweep)
        return sweep

    def _interrupted(self, why: Exception) -> NoReturn:
        """Write what there is, and raise why there is no more."""
        self.sweep.status = "interrupted"
        try:
            with told_after(why):
                save_sweep(self.directory, self.sweep)
        finally:
            self._tell_unfinished(why)
        raise why

    def _groups(self) -> Iterator[list[SweepPoint]]:
        """Yield the points that take turns; the next step of a walk depends on the one before."""
        if not self.sweep.walk:
            yield from groups_within(self.sweep, self.options.data_bytes)
            return
        before: list[SweepPoint] = []
        while group := next_step(self.sweep):
            if group == before:  # no time is left for its other trials
                return
            save_sweep(self.directory, self.sweep)
            for line in about_step(group):
                self.observer.note(line)
            yield group
            before = group

    def _trial_group(self, group: list[SweepPoint]) -> None:
        sweep = self.sweep

        def completed(number: int) -> None:
            if self.options.drop and sweep.walk:
                self._drop_hopeless(group, group[0].settings)
            elif self.options.drop:
                self._drop_hopeless(sweep.points, sweep.default)

        take_turns(
            group,
            self._take_turn,
            rounds(sweep.repetitions),
            order=self._order,
            is_active=lambda point: not is_complete(sweep, point),
            fail=self._fail,
            completed=completed,
        )

    def _order(self, number: int, active: Sequence[SweepPoint]) -> Iterator[SweepPoint]:
        """Those whose trial was INVALID have another turn at the end of the same round.

        So the figures of one round were measured near one another at every point.
        """
        yield from rotated(number, active)
        yield from [point for point in active if id(point) in self.doubtful]

    def _take_turn(self, point: SweepPoint, number: int) -> None:
        """Try a point, unless it has its trial of this round or no time is left.

        Raises IobenchError if it can't be measured.
        """
        missing = point.data not in self.held
        if len(point.runs) != number or self._out_of_time(point, generating=missing):
            return
        self.lease.check()
        self.observer.expect(self._left_s(), more=True)
        if missing:
            began = time.monotonic()
            try:
                self._provide(point)
            finally:
                pace_s = (time.monotonic() - began) / max(1, point.dataset_bytes)
                self.pace_s = max(self.pace_s, pace_s)
            if self._out_of_time(point):
                return
        try:
            self._trial(point, number)
        except _InvalidError as error:
            # What disturbed a trial may have passed at the end of the round.
            if id(point) in self.doubtful:
                raise
            self.doubtful.add(id(point))
            self.observer.note(f"{called(self.sweep, point)}: {error}; it is tried again")
        else:
            self.doubtful.discard(id(point))
        save_sweep(self.directory, self.sweep)

    def _out_of_time(self, point: SweepPoint, *, generating: bool = False) -> bool:
        """Whether another trial of this point would end after the budget.

        The trial is assumed to take as long as the point's last one; if there is none, as
        ``_first_s``.
        """
        data_s = self.pace_s * point.dataset_bytes if generating else 0.0
        known_s = point.seconds[-1] if point.seconds else self._first_s(point)
        return not (self.budget.left_s and self.budget.fits(data_s + known_s))

    def _first_s(self, point: SweepPoint) -> float:
        """Seconds of a point's first trial: as the longest of any point, or as planned at least."""
        taken = [each.seconds[0] for each in self.sweep.points if each.seconds]
        if taken or not self.budget.limited:
            return max(taken, default=0.0)
        try:
            workload, _ = resolve(self.sweep, point.settings)
            ranks = self.sweep.accelerators
            asked = Asked(workload=workload, data=point.data, accelerators=ranks)
            plan = plan_of(asked, repetitions=1)
        except IobenchError:
            return self.planned_s  # its data is not there yet, or not any more
        ceilings_s = 0.0
        if isinstance(plan, Plan) and self.sweep.calibration_s:
            ceilings_s = CeilingTimes(plan=plan).all_s(self.sweep.calibration_s, 1)
        self.planned_s = max(self.planned_s, (expected_s(plan) or 0.0) + ceilings_s)
        return self.planned_s

    def _needed_s(self, points: Sequence[SweepPoint]) -> float:
        """Seconds of the repetitions that these points lack; 0 where nothing is known of that."""
        later = [seconds for point in self.sweep.points for seconds in point.seconds[1:]]
        needed_s = 0.0
        for point in points:
            lacking, first_s = self.sweep.repetitions - len(point.runs), self._first_s(point)
            again_s = max(later, default=first_s)
            needed_s += lacking * again_s if point.runs else first_s + (lacking - 1) * again_s
        generated = {} if self.sweep.data else {each.data: each.dataset_bytes for each in points}
        return needed_s + self.pace_s * sum(generated.values())

    def _left_s(self) -> float | None:
        """Seconds of the trials to come, each as long as those so far, within the budget.

        None before the first trial. The generation of data is not included.
        """
        taken = [seconds for point in self.sweep.points for seconds in point.seconds]
        if not taken:
            return None
        to_come = sum(
            self.sweep.repetitions - len(point.runs)
            for point in self.sweep.points
            if not is_complete(self.sweep, point)
        )
        return min(to_come * sum(taken) / len(taken), self.budget.left_s)

    def _fail(self, point: SweepPoint, error: IobenchError) -> None:
        """Leave a point out; without the dataset that all points read, there is no sweep."""
        unmade = point.data not in self.held
        if self.sweep.data and unmade:
            raise error
        self._tell_unfinished(error)
        mark = IN_USE if isinstance(error, TargetHeldError) else UNMADE if unmade else ""
        point.failed = f"{mark}: {error}" if mark else str(error)
        self.observer.note(f"{called(self.sweep, point)}: {error}")
        save_sweep(self.directory, self.sweep)

    def _tell_unfinished(self, error: Exception) -> None:
        """Add how to remove the data whose generation has not ended, if this process left some."""
        data, self.unfinished = self.unfinished, ""
        if not data or isinstance(error, TargetHeldError | TargetLostError):
            return
        place = innermost(open_storage(data))
        with suppress(StorageError):
            if exists(place, MARKER) and not exists(place, MANIFEST):
                also_told(error, f"to remove its unfinished data: iobench clean {quoted(data)}")

    def _provide(self, point: SweepPoint) -> None:
        """Generate the point's dataset if necessary, and lock it. Raises IobenchError."""
        workload, spec = resolve(self.sweep, point.settings)
        if spec is None:  # each trial holds the weights for itself
            self.held[point.data] = ExitStack()
            return
        if self.sweep.data:
            self._hold(point.data, workload.storage_options())
            return
        self.observer.phase(f"generating {point.data}")
        storage = open_storage(point.data)
        take_over = self.options.break_lock
        self.unfinished = point.data
        report = generate(
            spec, storage, break_lock=take_over, progress=lambda done, total: self.hosts.check()
        )
        self.unfinished = ""
        held = ExitStack()
        held.enter_context(reading(storage, report.manifest, verb="sweep", break_dead=take_over))
        self.held[point.data] = held
        if report.written_bytes:
            if report.written_bytes >= report.manifest.header.stored_bytes:
                for each in self.sweep.points:
                    each.generated_s = (
                        report.wall_s if each.data == point.data else each.generated_s
                    )
            rate = format_rate(report.written_bytes / report.wall_s)
            self.observer.note(
                f"generated {format_bytes(report.written_bytes)} at {rate}: {point.data}"
            )

    def _hold(self, data: str, options: Mapping[str, str]) -> None:
        """Lock a dataset that exists, together with other readers. Raises IobenchError."""
        manifest, _ = find_dataset(data, options)
        home, held = innermost(open_storage(data, options=options)), ExitStack()
        held.enter_context(
            reading(home, manifest, verb="sweep", break_dead=self.options.break_lock)
        )
        self.held[data] = held

    def _release(self) -> None:
        """Release the datasets, and remove those that were generated and that nobody else reads."""
        while self.held:
            data, held = self.held.popitem()
            held.close()
            if self.options.keep_data or self.sweep.data:
                continue
            try:
                discard(data, break_lock=self.options.break_lock)
            except (TargetRefusedError, MissingPlaceError, DatasetError, StorageError) as error:
                # Another sweep reads it, or removed it first, or the storage fails.
                self.observer.note(f"not removed: {error}")

    def _trial(self, point: SweepPoint, number: int) -> None:
        """Measure a point once, and add what was found. Raises IobenchError."""
        sweep, observer = self.sweep, self.observer
        workload, _ = resolve(sweep, point.settings)
        began = time.monotonic()
        first = not point.runs
        trial = f"trial {len(point.runs) + 1} of at most {sweep.repetitions}"
        asked = Trial(
            workload=workload,
            data=point.data,
            accelerators=sweep.accelerators,
            seed=sweep.seed + number + sweep.repetitions * (id(point) in self.doubtful),
            results=str(self.directory),
            command=sweep.command,
            calibration_s=sweep.calibration_s if first else 0.0,
            prove=first,
            tags=sweep.tags,
        )
        if needs_a_process(workload):
            observer.phase(f"{called(sweep, point)}, {trial}")
            doc, run_directory = self.apart.measure(asked)
        else:
            doc, run_directory = measure(asked, observer, self.hosts)
        for finding in doc.findings:  # only the first trial checks the delivery
            if finding.rule == "loader.delivery" and finding.level == "invalid":
                raise IobenchError(finding.evidence)
        figure = _figure(sweep, doc)
        point.runs.append(run_directory.name)
        point.figures.append(figure)
        point.seconds.append(time.monotonic() - began)
        _keep_costs(point, doc)
        took = format_duration(point.seconds[-1])
        observer.note(f"{called(sweep, point)}: {_shown(sweep, figure)} ({trial}, {took})")

    def _drop_hopeless(self, points: Sequence[SweepPoint], keep: Settings | None) -> None:
        """Drop points that are so slow that noise can't be the reason.

        The settings ``keep`` are kept, because the others are compared with them.
        """
        sweep = self.sweep
        measured = [point for point in points if len(point.counted) >= _TRIALS_BEFORE_DROPPING]
        if not measured:
            return
        speeds = {id(point): [sweep.speed(each) for each in point.figures] for point in measured}
        best = max(measured, key=lambda point: min(speeds[id(point)]))
        for point in measured:
            if (
                not point.dropped
                and point.settings != keep
                and max(speeds[id(point)]) < HOPELESS * min(speeds[id(best)])
            ):
                point.dropped = (
                    f"below {format_share(HOPELESS)} of {called(sweep, best)} after "
                    f"{len(point.runs)} repetitions"
                )
                if len(point.runs) < sweep.repetitions:
                    self.observer.note(f"{called(sweep, point)}: dropped, {point.dropped}")


def _shown(sweep: Sweep, figure: float) -> str:
    metric = sweep.compared_by
    text = format_duration(figure) if metric.unit == "s" else format_count(figure)
    return f"{text} {metric.short}"


class _InvalidError(IobenchError):
    """A trial tells nothing: a cache served its reads, or requests waited for their client."""


def _figure(sweep: Sweep, doc: RunRecord) -> float:
    """What a trial tells of the sweep's metric. Raises IobenchError if it tells nothing."""
    short = sweep.compared_by.short
    broken = [each for each in doc.findings if each.level == "invalid"]
    if broken:
        raise _InvalidError(f"{INVALID}{broken[0].rule}: {broken[0].evidence}")
    found = values_of(doc, sweep.metric)
    if not found:
        reasons = doc.job.repetitions[0].not_measured if isinstance(doc, TrainingRecord) else {}
        why = reasons.get(sweep.metric, "the repetition was too short")
        raise IobenchError(f"its {short} was not measured: {why}")
    return found[0]


def _keep_costs(point: SweepPoint, doc: RunRecord) -> None:
    """Keep what a trial cost, beside its figure, as far as it was measured."""
    if isinstance(doc, ModelLoadRecord):
        loads = values_of(doc, "load_cpu_s")
        point.cpu_s_per_gb.append(loads[0] / (doc.job.bytes / 1e9) if loads else None)
    if not isinstance(doc, TrainingRecord):
        return
    measured, repetition = SweptPoint({}, doc), doc.job.repetitions[0]
    point.stored_bytes, point.samples = measured.stored_bytes, doc.job.dataset.samples
    read, samples = repetition.bytes_read, repetition.samples
    point.read_bytes_per_sample.append(read / samples if read is not None and samples else None)
    point.cpu_s_per_gb.append(measured.cpu_s_per_gb)
    point.other_cores.append(other_cores(doc, repetition))
