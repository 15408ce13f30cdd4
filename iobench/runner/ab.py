"""Measure two configurations in turns, until their difference is told or the budget ends.

A turn is one repetition of each side, with the same seed and in alternating order (A B, B A, A B,
...), so that a linear drift of the machine or the storage cancels over each two turns. The first
repetition of each side is a warm-up: it tells how long a turn takes, and by that how many turns
there will be, which the sequential test must know before the first one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..ask.compare.identity import identity
from ..ask.compare.sequential import MIN_TURNS, claims_of, figures_of, logs_of, sequential_of
from ..base.errors import InterruptedRun, IobenchError, UsageError
from ..base.interrupts import defer_interrupts
from ..base.text import printable
from ..base.units import counted
from ..load import make_reader
from ..record.ab import MAX_TURNS, AbRecord, AbTurn, Name, Side, SideTurn, save_ab
from ..record.metrics import BY_NAME
from ..record.run import TrainingRecord
from ..record.training import Repetition
from ..storage.locks.lock import reading
from .budget import Budget
from .cache import Others
from .calibration.bench import Bench
from .estimate import expected_repetition_s
from .experiment import write_run
from .facts import add_changes, add_loader_facts, begin_record, new_directory, shard_versions
from .hosts.hosts import Hosts
from .options import AbOptions
from .plan import Plan
from .progress import Observer, timed
from .repetition import measure, repetition_phase
from .third_party import prepare_library
from .trials import take_turns

NO_ABLATIONS = "two variants in turns leave no stage out"

_WARM_UP_SEED = MAX_TURNS
"""Added to the seed for the warm-up, so that no turn reads in the same order."""


@dataclass(frozen=True, kw_only=True)
class SideAsked:
    """One side: its plan, and how the user has named it."""

    plan: Plan
    settings: tuple[str, ...] = ()  # that were given for this side alone
    repeats: str = ""  # the id of the run that is repeated


@contextmanager
def naming(side: str) -> Iterator[None]:
    """Errors that the body raises begin with the name of the side."""
    try:
        yield
    except IobenchError as error:
        error.what = printable(f"variant {side}: {error.what}")
        raise


class MeasuredSide:
    """One side while it is measured: its run directory, and the record of its run."""

    def __init__(
        self,
        name: Name,
        asked: SideAsked,
        others: Others,
        directory: Path,
        observer: Observer,
        held: ExitStack,
        hosts: Hosts,
        *,
        command: Sequence[str],
        rules: str,
    ) -> None:
        self.name: Name = name
        self.hosts, plan = hosts, hosts.whole(asked.plan)
        self.others, self.observer = others, observer
        own = directory / name.lower()
        try:
            own.mkdir()
        except OSError as error:
            raise IobenchError(f"cannot make the run directory {own}: {error.strerror}") from error
        self.bench = Bench(
            plan=plan,
            agent=self.hosts.agent(plan.storage, plans=True),
            hosts=self.hosts,
            directory=own,
            seconds=0.0,
            observer=observer,
            look=others.look,
            held=held,
        )
        self.doc = begin_record(
            plan,
            self.bench.agent,
            run_id=f"{directory.name}-{own.name}",
            command=command,
            rules=rules,
        )
        self.doc.job.no_ablations = NO_ABLATIONS
        self.record = Side(
            name=name,
            run=own.name,
            data=plan.data,
            workload=plan.workload.name,
            settings=list(asked.settings),
            repeats=asked.repeats,
        )
        self.versions: dict[str, str] | str = ""
        self.began = ""  # of the last turn
        self.last = SideTurn(seconds=0.0, figures={})

    def warm_up(self) -> None:
        """Prepare what the loader needs, and run a repetition that is not counted."""
        bench, doc = self.bench, self.doc
        with self._failing():
            self.hosts.begin(doc, bench.plan.accelerators)
            self.versions = shard_versions(bench.plan)
            if bench.plan.subject.reads_itself:
                kind = bench.plan.workload.loader.kind
                title = f"variant {self.name}: the samples that loader '{kind}' delivers"
                with timed(doc, "prepare", self.observer, title):
                    add_loader_facts(doc, prepare_library(bench.plan, bench.held, proof=True))
                    self.hosts.prepare()
            phase = repetition_phase(bench.plan, _WARM_UP_SEED, name="warm-up")
            began = time.monotonic()
            with timed(doc, "warm_up", self.observer, f"variant {self.name}: warm-up"):
                kept: list[Repetition] = []
                outcome = measure(
                    bench, replace(phase, repetition=0), kept.append, keep_interrupted=False
                )
                add_loader_facts(doc, outcome.loader)
            self.record.warm_up_s = time.monotonic() - began

    def measure(self, turn: int) -> None:
        """Run the repetition of a turn. Raises IobenchError if it has not read all it should."""
        self.began, began = now(), time.monotonic()
        with self._failing():
            title = f"turn {turn + 1}, variant {self.name}"
            with timed(self.doc, "measure", self.observer, title):
                repetitions = self.doc.job.repetitions
                phase = repetition_phase(self.bench.plan, turn)
                outcome = measure(self.bench, phase, repetitions.append)
                self.others.look()
            if not outcome.complete:
                raise IobenchError("the repetition delivered no complete epoch")
            self.last = SideTurn(
                seconds=time.monotonic() - began, figures=figures_of(repetitions[-1])
            )

    def end(self, *, stopped: bool, interrupted: bool) -> None:
        """Write the run, and add what it says of itself to the record of the side."""
        if interrupted:
            self.doc.status = "interrupted"
        self.hosts.end(self.doc, self.bench.plan.accelerators)
        if not stopped:
            add_changes(self.doc, self.bench.plan, self.versions)
        doc: TrainingRecord = write_run(self.doc, self.bench, self.others, stopped=stopped)
        self.record.validity, self.record.identity = doc.validity, identity(doc)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A failure in the body is recorded in the run, and names the side."""
        try:
            yield
        except IobenchError as error:
            self.doc.status, self.doc.error = "failed", str(error)
            with naming(self.name):
                raise

    def measured(self, metric: str) -> SideTurn:
        """Return the last turn. Raises IobenchError if it has no value of the metric, or 0.

        A comparison that can't be decided by its metric must not go on, and never passes.
        """
        figures = self.last.figures
        if not figures.get(metric):
            label = BY_NAME[metric].short
            why = "is 0, so that it has no ratio" if metric in figures else "was not measured"
            raise IobenchError(
                f"variant {self.name}: {label} ({metric}) {why}", remedy="choose another --metric"
            )
        return self.last


def now() -> str:
    """Return the time as ISO 8601, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


log = logging.getLogger(__name__)

NAMES: tuple[Name, Name] = ("A", "B")


def shortest_s(a: Plan, b: Plan) -> float | None:
    """How long the warm-up takes at least, and as long again each turn; None: not known."""
    known = [expected_repetition_s(a), expected_repetition_s(b)]
    return sum(each for each in known if each is not None) if all(known) else None


def are_same(a: Plan, b: Plan) -> bool:
    """Whether both sides would do the same with the same data."""
    one, other = ((p.workload, p.data, p.origin, p.accelerators, p.seed) for p in (a, b))
    return one == other


def compare_in_turns(
    a: SideAsked,
    b: SideAsked,
    options: AbOptions,
    observer: Observer,
    hosts: Hosts | None = None,
) -> tuple[AbRecord, Path]:
    """Measure both sides in turns; return the record and its directory.

    ``hosts``: that measure; by default this one.

    Both datasets are locked together with other readers. Raises UsageError, before anything is
    written, if the budget can't be enough for one turn or a side can't be read; InterruptedRun or
    the failure of a side, which its message names, after the record was written.
    """
    least = shortest_s(a.plan, b.plan)
    if least is not None and not options.budget.fits(2 * least):
        raise _too_short(options.budget, 2 * least)
    with ExitStack() as held:
        hosts, places = hosts or Hosts(), []
        for name, asked in zip(NAMES, (a, b), strict=True):
            with naming(name):
                # This refuses what the data can't provide, before anything is written.
                make_reader(asked.plan.manifest, asked.plan.storage, asked.plan.workload.reader)
                lease = reading(
                    asked.plan.home, asked.plan.manifest, verb="ab", break_dead=options.break_lock
                )
                others = Others(held.enter_context(lease))
                places.append((others, hosts.of(asked.plan, held)))
        directory = new_directory(options.results, f"{a.plan.workload.name}-ab")
        one, other = (
            MeasuredSide(
                name,
                asked,
                others,
                directory,
                observer,
                held,
                there,
                command=options.command,
                rules=options.rules,
            )
            for name, asked, (others, there) in zip(NAMES, (a, b), places, strict=True)
        )
        return _Comparison((one, other), directory, options, observer).run(), directory


def _too_short(budget: Budget, least_s: float) -> UsageError:
    return budget.too_short(
        least_s,
        what="the warm-up and one turn",
        other=f", which is not yet an answer: that takes {MIN_TURNS} turns; or take fewer steps "
        "with --set max_steps=N",
    )


class _Comparison:
    """The turns of one call of ``compare_in_turns``."""

    def __init__(
        self,
        sides: tuple[MeasuredSide, MeasuredSide],
        directory: Path,
        options: AbOptions,
        observer: Observer,
    ) -> None:
        self.sides, self.directory = sides, directory
        self.options, self.observer = options, observer
        self.budget = options.budget
        self.record = AbRecord(
            iobench_version=__version__,
            created=now(),
            command=list(options.command),
            metric=options.metric,
            threshold=options.threshold,
            max_turns=options.max_turns,
            budget_s=options.budget.seconds,
            a=sides[0].record,
            b=sides[1].record,
        )
        log.info("%s and %s in turns, in %s", *(side.record.data for side in sides), directory)

    def run(self) -> AbRecord:
        """Take the turns. What was measured is written, whatever happens."""
        record = self.record
        failure: IobenchError | None = None
        try:
            self._save()
            for side in self.sides:
                side.warm_up()
            self._turns(self._plan())
            record.status = "ok"
        except KeyboardInterrupt:
            record.status = "interrupted"
            failure = InterruptedRun(
                f"interrupted after {counted(len(record.turns), 'complete turn')}; what was "
                f"measured until then: iobench report {self.directory}"
            )
        except IobenchError as error:
            record.status, record.error = "failed", str(error)
            failure = error
        with defer_interrupts(discard=failure is not None):
            for side in self.sides:
                interrupted = record.status == "interrupted"
                side.end(stopped=failure is not None, interrupted=interrupted)
            record.a, record.b = (side.record for side in self.sides)
            self._save()
        log.info("%s: %s after %d turns", self.directory.name, record.status, len(record.turns))
        if failure is not None:
            raise failure
        return record

    def _plan(self) -> int:
        """How many turns there is time for. Raises UsageError if there is none for one."""
        turn_s = sum(side.record.warm_up_s or 0.0 for side in self.sides)
        turns = self.options.max_turns
        if self.budget.limited:
            turns = min(turns, int(self.budget.left_s / max(turn_s, 1e-3)))
            if turns < 1:
                raise _too_short(self.budget, turn_s)
        self.record.planned_turns = turns
        self.observer.planned(self.record, turn_s)
        return turns

    def _turns(self, planned: int) -> None:
        record = self.record
        test = sequential_of(record)

        def stop(turn: int, sides: Sequence[MeasuredSide]) -> bool:
            if turn and test.ends(logs_of(record.turns, record.metric)):
                told = record.claims[0].answer != "inconclusive"
                record.ended = "significant" if told else "turns"
                return True
            if turn >= min(planned, test.looks[-1]):
                record.ended = "budget"
                return True
            if turn and not self.budget.fits(_seconds(record.turns[-1])):
                record.ended = "budget"
                return True
            return False

        take_turns(self.sides, lambda side, turn: side.measure(turn), stop, turned=self._turned)
        if record.ended == "turns" and planned < self.options.max_turns:
            record.ended = "budget"

    def _turned(self, number: int) -> None:
        """Add the turn that both sides have taken. Raises IobenchError without a ratio."""
        record = self.record
        one, other = (side.measured(record.metric) for side in self.sides)
        first = self.sides[number % 2]
        turn = AbTurn(
            turn=number,
            first=first.name,
            began=first.began,
            seed=first.bench.plan.seed + number,
            a=one,
            b=other,
        )
        with defer_interrupts():
            record.turns.append(turn)
            record.claims = claims_of(record)
            self._save()
        self.observer.turned(record)

    def _save(self) -> None:
        save_ab(self.directory, self.record)


def _seconds(turn: AbTurn) -> float:
    return turn.a.seconds + turn.b.seconds
