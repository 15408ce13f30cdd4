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
from dataclasses import dataclass
from pathlib import Path

from ..ask.compare.identity import identity
from ..ask.compare.sequential import MIN_ROUNDS, claims_of, logs_of, metrics_like, sequential_of
from ..base.errors import (
    InterruptedRun,
    IobenchError,
    UsageError,
    failure_text,
    kept_in,
    told_after,
)
from ..base.interrupts import defer_interrupts
from ..base.text import printable, quoted
from ..base.units import counted, utc_now
from ..record.ab import AbRecord, AbRound, AbTrial, AbVariant, Name, save_ab
from ..record.metrics import BY_NAME
from ..record.run import RunRecord
from ..settings.base import head
from .budget import Budget
from .estimate import Work
from .hosts.hosts import Hosts
from .options import AbOptions, Observer, timed
from .repeated import AnyPlan, Asked, Repeated, RepeatedTraining, asked_of, expected_s, hold
from .results import removed_if_empty, run_directory
from .trials import take_turns


@dataclass(frozen=True, kw_only=True)
class VariantAsked:
    """One variant: its plan, and how the user has named it."""

    plan: AnyPlan
    settings: tuple[str, ...] = ()  # that were given for this variant alone
    repeats: str = ""  # the id of the run that is repeated

    @property
    def asked(self) -> Asked:
        """What it does with which data: variants that have the same are the same."""
        return asked_of(self.plan)


@contextmanager
def naming(variant: str) -> Iterator[None]:
    """Errors that the body raises begin with the name of the variant."""
    try:
        yield
    except IobenchError as error:
        error.what = printable(f"variant {variant}: {error.what}")
        raise


class MeasuredVariant:
    """One variant while it is measured: the run that is repeated, and what is recorded of it."""

    def __init__(
        self, name: Name, asked: VariantAsked, run: Repeated, place: Path, observer: Observer
    ) -> None:
        known = asked.asked
        self.name: Name = name
        self.run, self.observer, self.seed = run, observer, known.seed
        self.record = AbVariant(
            name=name,
            run=place.name,
            data=known.data,
            workload=known.name,
            settings=list(asked.settings),
            repeats=asked.repeats,
        )
        self.began = ""  # of the last round
        self.last = AbTrial(seconds=0.0, figures={})

    @property
    def doc(self) -> RunRecord:
        return self.run.doc

    def warm_up(self) -> None:
        """Prepare what it needs, and run a repetition that is not counted."""
        with self._failing():
            self.run.prepare(f"variant {self.name}: ")
            began = time.monotonic()
            with timed(self.doc, "warm_up", self.observer, f"variant {self.name}: warm-up"):
                self.run.warm_up()
            self.record.warm_up_s = time.monotonic() - began

    def measure(self, number: int) -> None:
        """Run the repetition of a round. Raises IobenchError if it has not read all it should."""
        self.began, began = utc_now(), time.monotonic()
        with self._failing():
            title = f"round {number + 1}, variant {self.name}"
            with timed(self.doc, "measure", self.observer, title):
                self.run.measure(number)
            known = {each.name for each in metrics_like(self.doc.headline)}
            figures = {name: each for name, each in self.run.figures().items() if name in known}
            self.last = AbTrial(seconds=time.monotonic() - began, figures=figures)

    def finish(self, *, stopped: bool, interrupted: bool) -> None:
        """Write the run, and add what it says of itself to the record of the variant."""
        if interrupted:
            self.doc.status = "interrupted"
        with naming(self.name):
            doc = self.run.end(stopped=stopped)
        self.record.validity, self.record.identity = doc.validity, identity(doc)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A failure in the body is recorded in the run, and names the variant."""
        try:
            yield
        except Exception as error:
            self.doc.status, self.doc.error = "failed", failure_text(error)
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


log = logging.getLogger(__name__)

NAMES: tuple[Name, Name] = ("A", "B")


def shortest_s(a: AnyPlan, b: AnyPlan, budget: Budget) -> float | None:
    """How long the warm-up takes at least, and as long again each round; None: not known."""
    fewest = budget.fitted("steps")
    known = [expected_s(a, fewest=fewest), expected_s(b, fewest=fewest)]
    return sum(each for each in known if each is not None) if all(known) else None


def compare_in_turns(
    a: VariantAsked,
    b: VariantAsked,
    options: AbOptions,
    observer: Observer,
    hosts: Hosts,
) -> tuple[AbRecord, Path]:
    """Measure both variants in turns on ``hosts``; return the record and its directory.

    Both datasets are locked together with other readers. Raises UsageError, before anything is
    written, if the budget can't be enough for one round or a variant can't be read; InterruptedRun
    or the failure of a variant, which its message names, after the record was written.
    """
    least = shortest_s(a.plan, b.plan, options.budget)
    if least is not None and not options.budget.fits(2 * least):
        raise _too_short(options.budget, 2 * least)
    with ExitStack() as held:
        begins = []
        for name, asked in zip(NAMES, (a, b), strict=True):
            with naming(name):
                begins.append(
                    hold(asked.plan, held, hosts, verb="ab", break_lock=options.break_lock)
                )
        directory = held.enter_context(run_directory(options.results, f"{a.asked.name}-ab"))
        variants = []
        for name, asked, begin in zip(NAMES, (a, b), begins, strict=True):
            place = held.enter_context(removed_if_empty(directory / name.lower()))
            run = begin(place, f"{directory.name}-{place.name}", options, observer)
            variants.append(MeasuredVariant(name, asked, run, place, observer))
        one, other = variants
        return _Comparison((one, other), directory, options, observer).run(), directory


_MIN_WARM_UP_S, _FULL = 0.4, 0.9
"""A warm-up that is fitted is no shorter; and the share of the time that is planned, since what a
repetition takes is not known exactly."""


def fitting_steps(works: Sequence[Work], round_s: float) -> int:
    """The most steps of a repetition with which a round of all works takes so long.

    All have as many. They are no fewer than can tell the bottleneck of each.
    """
    steps = min(work.whole for work in works)
    needed = min(steps, max(work.needed for work in works))
    low, high = needed, steps
    while low < high:
        middle = (low + high + 1) // 2
        if sum(work.repetition_s(middle) for work in works) <= round_s:
            low = middle
        else:
            high = middle - 1
    return low


def _too_short(budget: Budget, least_s: float) -> UsageError:
    return budget.too_short(
        least_s,
        what="the warm-up and one round",
        other=f", which is not yet an answer: that takes {MIN_ROUNDS} rounds; or make a repetition "
        "shorter, such as with --set max_steps=N or --set duration=TIME",
    )


@dataclass
class _Comparison:
    """The rounds of one call of ``compare_in_turns``."""

    variants: tuple[MeasuredVariant, MeasuredVariant]
    directory: Path
    options: AbOptions
    observer: Observer

    def __post_init__(self) -> None:
        options = self.options
        self.budget = options.budget
        a, b = (variant.record for variant in self.variants)
        self.record = AbRecord(
            **head(options.command),
            metric=options.metric,
            threshold=options.threshold,
            max_rounds=options.max_rounds,
            budget_s=options.budget.seconds,
            a=a,
            b=b,
        )
        for variant in self.variants:  # so that their records tell that they took turns
            variant.doc.created = self.record.created
        log.info("%s and %s in turns, in %s", a.data, b.data, self.directory)

    def run(self) -> AbRecord:
        """Take the rounds. What was measured is written, whatever happens."""
        record = self.record
        failure: Exception | None = None
        try:
            self._save()
            trainings = self._shortened()
            for variant in self.variants:
                variant.warm_up()
            self._rounds(self._plan(trainings))
            record.status = "ok"
        except KeyboardInterrupt:
            record.status = "interrupted"
            failure = InterruptedRun(
                f"interrupted after {counted(len(record.rounds), 'complete round')}; what was "
                f"measured until then: iobench report {quoted(str(self.directory))}"
            )
        except Exception as error:
            record.status, record.error = "failed", failure_text(error)
            failure = error
        with defer_interrupts(discard=failure is not None):
            interrupted = record.status == "interrupted"
            for variant in self.variants:
                try:
                    variant.finish(stopped=failure is not None, interrupted=interrupted)
                except Exception as error:  # what the other variant has measured is written, too
                    if failure is None:
                        record.status, record.error, failure = "failed", failure_text(error), error
            record.a, record.b = (variant.record for variant in self.variants)
            with told_after(failure):
                self._save()
        log.info("%s: %s after %d rounds", self.directory.name, record.status, len(record.rounds))
        if getattr(failure, "record", None) is not None:  # of a run
            failure.record = record  # type: ignore[union-attr]
        if failure is not None:
            raise kept_in(failure, self.directory) if record.rounds else failure
        return record

    def _shortened(self) -> list[RepeatedTraining]:
        """The runs whose steps are fitted to the budget, and so also their warm-ups."""
        if not self.budget.fitted("steps"):
            return []
        runs = [variant.run for variant in self.variants]
        found = [run for run in runs if isinstance(run, RepeatedTraining)]
        for run in found:
            run.warm_up_s = max(
                _MIN_WARM_UP_S, self.budget.left_s / (len(found) * (1 + MIN_ROUNDS))
            )
        return found

    def _plan(self, trainings: Sequence[RepeatedTraining]) -> int:
        """How many rounds there is time for. Raises UsageError if there is none for one.

        Repetitions are shortened where the fewest rounds that give an answer do not fit otherwise.
        """
        round_s = sum(variant.record.warm_up_s or 0.0 for variant in self.variants)
        if works := [run.work for run in trainings]:
            round_s = sum(work.repetition_s(work.whole) for work in works)
            each_s = _FULL * self.budget.left_s / MIN_ROUNDS
            if round_s > each_s:
                steps, whole = fitting_steps(works, each_s), min(work.whole for work in works)
                round_s = sum(work.repetition_s(steps) for work in works)
                if steps < whole:
                    for run in trainings:
                        run.shorten(steps)
                    self.observer.shortened(steps, whole)
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
            seed=first.seed + number,
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
