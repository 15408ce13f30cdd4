"""A sweep's visits: each is one run of one repetition, in a run directory of its own.

Points take turns (A B C A B C), so that drift of the storage affects all of them alike. Only the
first visit of a point measures the ceilings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ...analyse.tuning.points import Point
from ...errors import (
    DatasetError,
    InterruptedRun,
    IobenchError,
    TargetHeldError,
    TargetRefusedError,
)
from ...generator import discard, generate
from ...schema.record import TrainingRecord
from ...schema.sweep import (
    SWEEP_FILE,
    Sweep,
    SweepPoint,
    describe,
    load_sweep,
    save_sweep,
)
from ...storage import open_storage
from ...storage.local.storage import LocalStorage
from ...storage.locks.lock import Lease, exclusive
from ...storage.locks.reading import reading
from ...units import format_bytes, format_duration, format_rate
from ..experiment import Options
from ..experiment import run as run_plan
from ..plan import make_plan
from ..progress import Progress, Silent, expect
from .plan import (
    OVER_BUDGET,
    Budget,
    groups_within,
    resolve,
)

HOPELESS = 0.5
"""A point whose best visit is below this share of the best point's worst visit is dropped."""

IN_USE = "its dataset is in use"
"""Beginning of a failure text that allows another try when the sweep is resumed."""

LOCK_FILE = ".sweep.lock"
"""Lock file in the sweep's directory. ``sweep.json`` is replaced after each visit, so it can't be
the lock.
"""

_VISITS_BEFORE_DROPPING = 2


@dataclass
class _Clock:
    """Time limit of one call of ``run_sweep``.

    ``pace_s``: seconds per byte of the slowest generation so far.
    """

    budget_s: float | None
    started: float
    pace_s: float = 0.0

    def out_of_time(self, sweep: Sweep, point: SweepPoint, *, generating: bool = False) -> bool:
        """Whether another visit of this point would end after the limit.

        The visit is assumed to take as long as the point's last one; if there is none, as the
        longest first visit of any point.
        """
        if self.budget_s is None:
            return False
        known = point.seconds[-1:] or [
            max((p.seconds[0] for p in sweep.points if p.seconds), default=0.0)
        ]
        first = self.pace_s * point.dataset_bytes if generating else 0.0
        return time.monotonic() - self.started + first + known[0] > self.budget_s

    def left_s(self, sweep: Sweep) -> float | None:
        """Seconds of the visits to come, each as long as those so far on average, within the limit.

        None before the first visit. The generation of data is not included.
        """
        taken = [seconds for point in sweep.points for seconds in point.seconds]
        if not taken:
            return None
        to_come = sum(
            max(0, sweep.repetitions - len(point.runs))
            for point in sweep.points
            if not point.dropped and not point.failed
        )
        left = to_come * sum(taken) / len(taken)
        if self.budget_s is None:
            return left
        return min(left, max(0.0, self.started + self.budget_s - time.monotonic()))


def run_sweep(
    sweep: Sweep,
    directory: Path,
    budget: Budget,
    *,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Visit every point until each has its repetitions, or a budget ends.

    ``sweep.json`` is rewritten after every visit. A point that fails is recorded and left out; the
    others continue. The directory is locked exclusively until this returns; datasets are locked
    together with other readers. Raises TargetHeldError if another process resumes the same sweep,
    and InterruptedRun, after which everything is kept for resuming.
    """
    place = LocalStorage(directory)
    lock = exclusive(place, LOCK_FILE, verb="sweep", break_dead=budget.break_lock, make=True)
    with lock as lease:
        if (directory / SWEEP_FILE).exists():
            sweep = load_sweep(directory)  # another process may have continued it in the meantime
        return _Visits(sweep, directory, budget, lease, progress or Silent(), tell).run()


class _Visits:
    """One call of ``run_sweep``."""

    def __init__(
        self,
        sweep: Sweep,
        directory: Path,
        budget: Budget,
        lease: Lease,
        progress: Progress,
        tell: Callable[[str], None],
    ) -> None:
        self.sweep = sweep.model_copy(update={"status": "running", "left_out": list(sweep.planned)})
        self.directory, self.budget, self.lease = directory, budget, lease
        self.progress, self.tell = progress, tell
        self.clock = _Clock(budget.seconds, time.monotonic())
        self.held: dict[str, ExitStack] = {}  # locks of datasets, by the dataset's location

    def run(self) -> Sweep:
        sweep = self.sweep
        for point in sweep.points:
            # These failures are from an earlier run of this sweep; find out again whether they
            # hold.
            if point.failed == OVER_BUDGET or point.failed.startswith(IN_USE):
                point.failed = ""
        try:
            for group in groups_within(sweep, self.budget):
                try:
                    self._visit_group(group)
                finally:
                    self._release()
                if self.clock.out_of_time(sweep, next(iter(group))):
                    break
        except (KeyboardInterrupt, InterruptedRun):
            sweep.status = "interrupted"
            save_sweep(self.directory, sweep)
            raise InterruptedRun(
                f"interrupted; continue with: iobench sweep --resume {self.directory}"
            ) from None
        short = [
            point
            for point in sweep.points
            if len(point.runs) < sweep.repetitions and not point.dropped and not point.failed
        ]
        sweep.left_out += [
            f"{describe(point.settings)}: {len(point.runs)} of {sweep.repetitions} repetitions, "
            "no time left"
            for point in short
        ]
        sweep.status = "out of time" if short else "ok"
        save_sweep(self.directory, sweep)
        return sweep

    def _visit_group(self, group: list[SweepPoint]) -> None:
        for number in range(self.sweep.repetitions):
            for point in group:
                if len(point.runs) > number or point.dropped or point.failed:
                    continue
                missing = point.data not in self.held
                if self.clock.out_of_time(self.sweep, point, generating=missing):
                    continue
                self.lease.check()
                expect(self.progress, self.clock.left_s(self.sweep), more=True)
                if missing:
                    began = time.monotonic()
                    provided = self._provide(point)
                    pace_s = (time.monotonic() - began) / max(1, point.dataset_bytes)
                    self.clock.pace_s = max(self.clock.pace_s, pace_s)
                    if not provided:
                        save_sweep(self.directory, self.sweep)
                        continue
                _visit(self.sweep, point, number, self.directory, self.progress, self.tell)
                save_sweep(self.directory, self.sweep)
            if self.budget.drop:
                _drop_hopeless(self.sweep, self.tell)

    def _provide(self, point: SweepPoint) -> bool:
        """Generate the point's dataset if necessary, and lock it; return whether this succeeded."""
        _, spec = resolve(self.sweep, point.settings)
        self.progress.phase(f"generating {point.data}")
        storage = open_storage(point.data)
        take_over = self.budget.break_lock
        try:
            report = generate(spec, storage, break_lock=take_over)
            held = ExitStack()
            held.enter_context(
                reading(storage, report.manifest, verb="sweep", break_dead=take_over)
            )
        except InterruptedRun:
            raise
        except IobenchError as error:
            mark = f"{IN_USE}: " if isinstance(error, TargetHeldError) else ""
            point.failed = f"{mark}{error}"
            self.tell(f"{describe(point.settings)}: {error}")
            return False
        self.held[point.data] = held
        if report.written_bytes:
            rate = format_rate(report.written_bytes / report.wall_s)
            self.tell(f"generated {format_bytes(report.written_bytes)} at {rate}: {point.data}")
        return True

    def _release(self) -> None:
        """Release the datasets, and remove those that nobody else reads."""
        while self.held:
            data, held = self.held.popitem()
            held.close()
            if self.budget.keep_data:
                continue
            try:
                discard(data, break_lock=self.budget.break_lock)
            except (TargetRefusedError, DatasetError) as error:
                self.tell(f"not removed: {error}")  # another sweep reads it, or removed it first


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
        knock_outs=False,
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
    if false:  # only the first visit checks the delivery
        point.failed = false
        tell(f"{describe(point.settings)}: {false}")
        return
    repetition = doc.job.repetitions[0]
    rate = repetition.samples_per_s
    if rate is None:
        why = repetition.not_measured.get("samples_per_s", "the repetition was too short")
        point.failed = f"its samples/s were not measured: {why}"
        tell(f"{describe(point.settings)}: {point.failed}")
        return
    point.runs.append(run_directory.name)
    point.samples_per_s.append(rate)
    point.seconds.append(time.monotonic() - began)
    _keep_costs(point, doc)
    took = format_duration(point.seconds[-1])
    tell(
        f"{number + 1}/{sweep.repetitions}  {describe(point.settings)}: "
        f"{rate:,.0f} samples/s ({took})"
    )


def _keep_costs(point: SweepPoint, doc: TrainingRecord) -> None:
    """Keep what a visit cost, beside its samples/s, as far as it was measured."""
    measured, repetition = Point({}, doc), doc.job.repetitions[0]
    point.stored_bytes = measured.stored_bytes
    read, samples = repetition.bytes_read, repetition.samples
    point.read_bytes_per_sample.append(read / samples if read is not None and samples else None)
    point.cpu_s_per_gb.append(measured.cpu_s_per_gb)


def _drop_hopeless(sweep: Sweep, tell: Callable[[str], None]) -> None:
    """Drop points that are so slow that noise can't be the reason.

    Today's settings are kept, because the others are compared with them.
    """
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
                f"below {HOPELESS:.0%} of {describe(best.settings)} after {len(point.runs)} "
                "repetitions"
            )
            if len(point.runs) < sweep.repetitions:
                tell(f"{describe(point.settings)}: dropped, {point.dropped}")
