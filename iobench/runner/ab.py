"""Measure two configurations in turns, until their difference is told or the budget ends.

A round is one repetition of each variant, with the same seed and in alternating order (A B, B A, A
B, ...), so that a linear drift of the machine or the storage cancels over each two rounds. The
first repetition of each variant is a warm-up: it tells how long a round takes, and by that how many
rounds there will be, which the sequential test must know before the first one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ..ask.compare.identity import identity
from ..ask.compare.sequential import MIN_ROUNDS, claims_of, figures_of, logs_of, sequential_of
from ..base.errors import InterruptedRun, IobenchError, UsageError
from ..base.interrupts import defer_interrupts
from ..base.text import printable
from ..base.units import counted
from ..load import make_reader
from ..record.ab import MAX_ROUNDS, AbRecord, AbRound, AbTrial, AbVariant, Name, save_ab
from ..record.metrics import BY_NAME
from ..record.training import Repetition
from ..settings.base import head
from ..storage.locks.lock import reading
from .budget import Budget
from .cache import Others
from .estimate import expected_repetition_s
from .experiment import RunBegun
from .facts import add_changes, add_loader_facts, make_directory, new_directory
from .hosts.hosts import Hosts
from .options import AbOptions
from .plan import Plan
from .progress import Observer, timed
from .repetition import measure, repetition_phase
from .trials import take_turns

NO_ABLATIONS = "two variants in turns leave no stage out"

_WARM_UP_SEED = MAX_ROUNDS
"""Added to the seed for the warm-up, so that no round reads in the same order."""


@dataclass(frozen=True, kw_only=True)
class VariantAsked:
    """One variant: its plan, and how the user has named it."""

    plan: Plan
    settings: tuple[str, ...] = ()  # that were given for this variant alone
    repeats: str = ""  # the id of the run that is repeated


@contextmanager
def naming(variant: str) -> Iterator[None]:
    """Errors that the body raises begin with the name of the variant."""
    try:
        yield
    except IobenchError as error:
        error.what = printable(f"variant {variant}: {error.what}")
        raise


class MeasuredVariant(RunBegun):
    """One variant while it is measured: its run directory, and the record of its run."""

    def __init__(
        self,
        name: Name,
        asked: VariantAsked,
        others: Others,
        directory: Path,
        options: AbOptions,
        observer: Observer,
        held: ExitStack,
        hosts: Hosts,
    ) -> None:
        own, plan = directory / name.lower(), asked.plan
        make_directory(own)
        number = f"{directory.name}-{own.name}"
        super().__init__(plan, own, options, others, observer, held, hosts, run_id=number)
        self.name: Name = name
        self.doc.job.no_ablations = NO_ABLATIONS
        self.record = AbVariant(
            name=name,
            run=own.name,
            data=plan.data,
            workload=plan.workload.name,
            settings=list(asked.settings),
            repeats=asked.repeats,
        )
        self.began = ""  # of the last round
        self.last = AbTrial(seconds=0.0, figures={})

    def warm_up(self) -> None:
        """Prepare what the loader needs, and run a repetition that is not counted."""
        bench, doc = self.bench, self.doc
        with self._failing():
            self.prepare(proof=True, name=f"variant {self.name}: ")
            phase = repetition_phase(bench.plan, _WARM_UP_SEED, name="warm-up")
            began = time.monotonic()
            with timed(doc, "warm_up", bench.observer, f"variant {self.name}: warm-up"):
                kept: list[Repetition] = []
                outcome = measure(
                    bench, replace(phase, repetition=0), kept.append, keep_interrupted=False
                )
                add_loader_facts(doc, outcome.loader)
            self.record.warm_up_s = time.monotonic() - began

    def measure(self, number: int) -> None:
        """Run the repetition of a round. Raises IobenchError if it has not read all it should."""
        self.began, began = now(), time.monotonic()
        with self._failing():
            title = f"round {number + 1}, variant {self.name}"
            with timed(self.doc, "measure", self.bench.observer, title):
                repetitions = self.doc.job.repetitions
                phase = repetition_phase(self.bench.plan, number)
                outcome = measure(self.bench, phase, repetitions.append)
                self.others.look()
            if not outcome.complete:
                raise IobenchError("the repetition delivered no complete epoch")
            self.last = AbTrial(
                seconds=time.monotonic() - began, figures=figures_of(repetitions[-1])
            )

    def finish(self, *, stopped: bool, interrupted: bool) -> None:
        """Write the run, and add what it says of itself to the record of the variant."""
        if interrupted:
            self.doc.status = "interrupted"
        if not stopped:
            add_changes(self.doc, self.bench.plan, self.versions)
        doc = self.end(stopped=stopped)
        self.record.validity, self.record.identity = doc.validity, identity(doc)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A failure in the body is recorded in the run, and names the variant."""
        try:
            yield
        except IobenchError as error:
            self.doc.status, self.doc.error = "failed", str(error)
            with naming(self.name):
                raise

    def measured(self, metric: str) -> AbTrial:
        """Return the last round. Raises IobenchError if it has no value of the metric, or 0.

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
    """How long the warm-up takes at least, and as long again each round; None: not known."""
    known = [expected_repetition_s(a), expected_repetition_s(b)]
    return sum(each for each in known if each is not None) if all(known) else None


def are_same(a: Plan, b: Plan) -> bool:
    """Whether both variants would do the same with the same data."""
    one, other = ((p.workload, p.data, p.origin, p.accelerators, p.seed) for p in (a, b))
    return one == other


def compare_in_turns(
    a: VariantAsked,
    b: VariantAsked,
    options: AbOptions,
    observer: Observer,
    hosts: Hosts | None = None,
) -> tuple[AbRecord, Path]:
    """Measure both variants in turns; return the record and its directory.

    ``hosts``: that measure; by default this one.

    Both datasets are locked together with other readers. Raises UsageError, before anything is
    written, if the budget can't be enough for one round or a variant can't be read; InterruptedRun
    or the failure of a variant, which its message names, after the record was written.
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
            MeasuredVariant(name, asked, others, directory, options, observer, held, there)
            for name, asked, (others, there) in zip(NAMES, (a, b), places, strict=True)
        )
        return _Comparison((one, other), directory, options, observer).run(), directory


def _too_short(budget: Budget, least_s: float) -> UsageError:
    return budget.too_short(
        least_s,
        what="the warm-up and one round",
        other=f", which is not yet an answer: that takes {MIN_ROUNDS} rounds; or take fewer steps "
        "with --set max_steps=N",
    )


class _Comparison:
    """The rounds of one call of ``compare_in_turns``."""

    def __init__(
        self,
        variants: tuple[MeasuredVariant, MeasuredVariant],
        directory: Path,
        options: AbOptions,
        observer: Observer,
    ) -> None:
        self.variants, self.directory = variants, directory
        self.options, self.observer = options, observer
        self.budget = options.budget
        self.record = AbRecord(
            **head(options.command),
            metric=options.metric,
            threshold=options.threshold,
            max_rounds=options.max_rounds,
            budget_s=options.budget.seconds,
            a=variants[0].record,
            b=variants[1].record,
        )
        log.info(
            "%s and %s in turns, in %s", *(variant.record.data for variant in variants), directory
        )

    def run(self) -> AbRecord:
        """Take the rounds. What was measured is written, whatever happens."""
        record = self.record
        failure: IobenchError | None = None
        try:
            self._save()
            for variant in self.variants:
                variant.warm_up()
            self._rounds(self._plan())
            record.status = "ok"
        except KeyboardInterrupt:
            record.status = "interrupted"
            failure = InterruptedRun(
                f"interrupted after {counted(len(record.rounds), 'complete round')}; what was "
                f"measured until then: iobench report {self.directory}"
            )
        except IobenchError as error:
            record.status, record.error = "failed", str(error)
            failure = error
        with defer_interrupts(discard=failure is not None):
            for variant in self.variants:
                interrupted = record.status == "interrupted"
                variant.finish(stopped=failure is not None, interrupted=interrupted)
            record.a, record.b = (variant.record for variant in self.variants)
            self._save()
        log.info("%s: %s after %d rounds", self.directory.name, record.status, len(record.rounds))
        if failure is not None:
            raise failure
        return record

    def _plan(self) -> int:
        """How many rounds there is time for. Raises UsageError if there is none for one."""
        round_s = sum(variant.record.warm_up_s or 0.0 for variant in self.variants)
        rounds = self.options.max_rounds
        if self.budget.limited:
            rounds = min(rounds, int(self.budget.left_s / max(round_s, 1e-3)))
            if rounds < 1:
                raise _too_short(self.budget, round_s)
        self.record.planned_rounds = rounds
        self.observer.planned(self.record, round_s)
        return rounds

    def _rounds(self, planned: int) -> None:
        record = self.record
        test = sequential_of(record)

        def stop(number: int, variants: Sequence[MeasuredVariant]) -> bool:
            if number and test.ends(logs_of(record.rounds, record.metric)):
                told = record.claims[0].answer != "inconclusive"
                record.ended = "significant" if told else "rounds"
                return True
            if number >= min(planned, test.looks[-1]):
                record.ended = "budget"
                return True
            if number and not self.budget.fits(_seconds(record.rounds[-1])):
                record.ended = "budget"
                return True
            return False

        take_turns(
            self.variants,
            lambda variant, number: variant.measure(number),
            stop,
            completed=self._round_taken,
        )
        if record.ended == "rounds" and planned < self.options.max_rounds:
            record.ended = "budget"

    def _round_taken(self, number: int) -> None:
        """Add the round that both variants have taken. Raises IobenchError without a ratio."""
        record = self.record
        one, other = (variant.measured(record.metric) for variant in self.variants)
        first = self.variants[number % 2]
        taken = AbRound(
            round=number,
            first=first.name,
            began=first.began,
            seed=first.bench.plan.seed + number,
            a=one,
            b=other,
        )
        with defer_interrupts():
            record.rounds.append(taken)
            record.claims = claims_of(record)
            self._save()
        self.observer.round_taken(record)

    def _save(self) -> None:
        save_ab(self.directory, self.record)


def _seconds(taken: AbRound) -> float:
    return taken.a.seconds + taken.b.seconds
