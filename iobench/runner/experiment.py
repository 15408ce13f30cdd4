"""A run: plan, calibrate each stage alone, measure all together, find the maximum, conclude.

Whatever happens on the way (a failing disk, a dead worker, Ctrl-C), what was recorded until then is
written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..analyse.verdict.rebuild import conclude
from ..analyse.verdict.user_loader import user_findings
from ..errors import InterruptedRun, IobenchError
from ..interrupts import defer_interrupts
from ..load import make_reader
from ..measure import timeline
from ..measure.samples import write_samples
from ..schema.record import EVENTS_FILE, SAMPLES_FILE, TrainingRecord
from ..schema.training import Repetition, TrainingRun
from ..schema.verdict import Advice
from ..storage.locks.reading import reading
from .agent import HostAgent
from .calibration.bench import Bench
from .calibration.ceilings import ENTRIES
from .calibration.findmax import begin_search, check_search, find_max
from .calibration.windows import Windows, again, measure_again, plan_windows
from .checkpoint_ranks import StudyRanks
from .confirm import NOTHING, Confirm, Turns, applicable
from .directory import new_directory, write_document
from .estimate import later_s
from .facts import add_changes, add_loader_facts, add_plan, add_work, begin_record, shard_versions
from .fit import MIN_REPETITIONS, Asked, Budget, Pilot, check_budget, choose, measure_pilot
from .knockouts import SWITCHED_OFF, KnockOuts
from .mixed import Mixed, Saver, saving_to
from .others import Others
from .plan import Plan
from .progress import Fitting, Informed, Progress, Silent, watcher
from .repetition import measure, repetition_phase
from .third_party import is_library, prepare_library

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run, besides its plan."""

    results: Path
    rules: str = "quick"
    command: tuple[str, ...] = ()
    calibration_s: float = 3.0  # for each ceiling; 0 leaves calibration out
    find_max: bool = False
    confirm: Confirm | None = None  # try advice in turns with today's settings
    knock_outs: bool = True
    # Seconds for all knock-outs together; None: see ``plan_turns``.
    knock_outs_s: float | None = None
    budget: Budget | None = None  # the rest of the options, and the plan, are fitted to it
    began_s: float | None = None  # when the process began, by ``time.monotonic()``
    mixed: Mixed | None = None  # save checkpoints while loading
    prove: bool = True  # for a library's loader: check what it delivers before it is measured
    break_lock: bool = False  # take over locks whose holders are on other hosts and dead

    @property
    def asked(self) -> Asked:
        return Asked(
            calibration_s=self.calibration_s,
            knock_outs=self.knock_outs,
            knock_outs_s=self.knock_outs_s,
            confirms=self.confirm is not None,
        )


class Across(Protocol):
    """The other hosts of a run that is measured on many."""

    @property
    def saves(self) -> StudyRanks:
        """The ranks of all hosts that save checkpoints."""

    def attach(self, bench: Bench) -> None:
        """Make the bench measure on all hosts."""

    def begin(self, doc: TrainingRecord, plan: Plan) -> None:
        """Add to the record what is known of the hosts before anything is measured."""

    def prepare(self) -> None:
        """Prepare on the other hosts what the loader needs."""

    def end(self, doc: TrainingRecord, plan: Plan) -> None:
        """The same, when everything has been measured, or has failed."""


def run(
    plan: Plan,
    options: Options,
    progress: Progress | None = None,
    across: Across | None = None,
) -> tuple[TrainingRecord, Path]:
    """Run the plan; return the concluded document and the run directory.

    ``across``: the other hosts, if there are some.

    The dataset is locked together with other readers, and the place for checkpoints exclusively.
    Raises TargetHeldError if another process holds one of them, before anything is written;
    InterruptedRun or the failure after the document and the directory were written.
    """
    progress = progress or Silent()
    # This refuses what the data can't provide, before anything is written.
    make_reader(plan.manifest, plan.storage, plan.workload.reader)
    if options.find_max:
        check_search(plan.workload)
    if options.budget is not None:
        check_budget(plan, options.asked, options.budget)
    with (
        reading(plan.home, plan.manifest, verb="run", break_dead=options.break_lock) as lease,
        saving_to(
            options.mixed,
            break_lock=options.break_lock,
            ranks=across.saves if across is not None else None,
        ) as saver,
        ExitStack() as held,
    ):
        return _measure(plan, options, progress, Others(lease), saver, held, across)


def _measure(
    plan: Plan,
    options: Options,
    progress: Progress,
    others: Others,
    saver: Saver | None,
    held: ExitStack,
    across: Across | None,
) -> tuple[TrainingRecord, Path]:
    """Carry out the run, while the dataset and the place for checkpoints are held."""
    directory = new_directory(options.results, plan.workload.name)
    bench = Bench(
        plan=plan,
        agent=HostAgent(plan.storage),
        directory=directory,
        seconds=options.calibration_s,
        tick=progress.steps,
        watch=watcher(progress),
        held=held,
    )
    if across is not None:
        across.attach(bench)
    log.info(
        "run of %s on %s with %d accelerators, in %s",
        plan.workload.name,
        plan.storage.url,
        plan.accelerators,
        directory,
    )
    doc = begin_record(
        plan,
        bench.agent,
        run_id=directory.name,
        command=options.command,
        rules=options.rules,
    )
    doc.job.saves = saver.study if saver else None
    if options.began_s is not None:
        doc.timings["start"] = time.monotonic() - options.began_s
    failure: IobenchError | None = None
    try:
        if across is not None:
            across.begin(doc, plan)
        before = shard_versions(plan)
        if is_library(plan):
            with timed(
                doc,
                "prepare",
                progress,
                f"the samples that loader '{plan.workload.loader.kind}' delivers",
            ):
                add_loader_facts(doc, prepare_library(plan, held, proof=options.prove))
                if across is not None:
                    across.prepare()
        pilot = None
        if options.budget is not None:
            with timed(doc, "pilot", progress, "a pilot: how many steps fit into the time"):
                pilot = measure_pilot(bench, options.budget.seconds)
            options = _fit(bench, plan, pilot, doc, options, options.budget)
            if isinstance(progress, Fitting):
                progress.fitted(bench.plan, options)
        windows = plan_windows(options.calibration_s, bench.plan.repetitions)
        if options.calibration_s > 0:
            _calibrate(bench, windows, doc, progress)
            _tell_rate(bench, progress)
        if options.budget is not None and pilot is not None:
            options = _fit(bench, plan, pilot, doc, options, options.budget, calibrated=True)
            windows = plan_windows(options.calibration_s, bench.plan.repetitions)
        if saver:
            with timed(doc, "checkpoint", progress, "checkpoints alone"):
                saver.alone(progress)
        _rounds(bench, windows, doc, options, progress, others, saver)
        if options.find_max:
            with timed(doc, "find_max", progress, "finding the largest number of accelerators"):
                doc.job.find_max = begin_search(bench)
                find_max(bench, doc.job.find_max, progress)
            others.look()
        if options.confirm is not None:
            with timed(doc, "confirm", progress, "trying the advice"):
                _confirm(bench, options.confirm, options.budget, doc, others, progress, saver)
        add_changes(doc, plan, before)
    except KeyboardInterrupt:
        doc.status = "interrupted"
        failure = InterruptedRun(f"interrupted; what was measured until then is in {directory}")
    except IobenchError as error:
        doc.status = "failed"
        doc.error = str(error)
        failure = error
    if across is not None:
        across.end(doc, plan)
    doc = write_run(doc, bench, others, stopped=failure is not None)
    if saver:
        failure = saver.end(failure)
    if failure is not None:
        raise failure
    return doc, directory


def write_run(
    doc: TrainingRecord, bench: Bench, others: Others, *, stopped: bool
) -> TrainingRecord:
    """Conclude a run, write its events and its document, and return that.

    ``stopped``: the run was interrupted or has failed, so that a further interrupt is dropped.
    """
    doc.job.ceilings = bench.ceilings
    doc.job.curve = bench.curve
    doc.findings += others.findings() + user_findings(doc)
    with defer_interrupts(discard=stopped):
        doc = conclude(doc)
        timeline.write_events(bench.directory / EVENTS_FILE, bench.parts)
        _keep_samples(bench)
        write_document(bench.directory, doc)  # last: it says that the run is complete
    log.info("run %s: %s, %s", bench.directory.name, doc.status, doc.validity)
    return doc


def _keep_samples(bench: Bench) -> None:
    """Write what was sampled of the host; a run without that is still a run."""
    if not bench.samples:
        return
    try:
        write_samples(bench.directory / SAMPLES_FILE, bench.samples)
    except (OSError, IobenchError) as error:
        log.warning("what the host did meanwhile could not be written: %s", error)


def _fit(
    bench: Bench,
    plan: Plan,
    pilot: Pilot,
    doc: TrainingRecord,
    options: Options,
    budget: Budget,
    *,
    calibrated: bool = False,
) -> Options:
    """Fit ``plan`` and the options to the time that is left, as ``choose`` does.

    Raises UsageError if that is too short.
    """
    fitted = choose(plan, pilot, budget.left_s, options.asked, budget.given, calibrated=calibrated)
    if budget.strict and not calibrated and fitted.least_s > budget.left_s:
        raise budget.too_short(fitted.least_s - budget.left_s)
    log.info(
        "fitted to the budget: %d repetitions of at most %s steps, windows of %.2f s for each "
        "ceiling, %.1f s for knock-outs; %.1f s are left",
        fitted.plan.repetitions,
        fitted.plan.workload.max_steps,
        fitted.calibration_s,
        fitted.knock_outs_s,
        budget.left_s,
    )
    bench.plan, bench.seconds = fitted.plan, fitted.calibration_s
    add_plan(doc, fitted.plan)
    return replace(options, calibration_s=fitted.calibration_s, knock_outs_s=fitted.knock_outs_s)


def _calibrate(bench: Bench, windows: Windows, doc: TrainingRecord, progress: Progress) -> None:
    """Measure each ceiling for the first time, the cheapest first."""
    bench.window_s = windows.first_s
    for entry in ENTRIES:
        if entry.applies(bench.plan):
            with timed(doc, "calibrate", progress, f"ceiling: {entry.title}"):
                bench.ceilings[entry.name] = entry.measure(bench)
                add_loader_facts(doc, bench.loader)


def _tell_rate(bench: Bench, progress: Progress) -> None:
    """Tell the lowest ceiling, by which the time of the repetitions can be estimated."""
    known = [ceiling.samples_per_s for ceiling in bench.ceilings.values()]
    if isinstance(progress, Informed) and (rates := [rate for rate in known if rate]):
        progress.rate(min(rates))


def _rounds(
    bench: Bench,
    windows: Windows,
    doc: TrainingRecord,
    options: Options,
    progress: Progress,
    others: Others,
    saver: Saver | None,
) -> None:
    """Make all repetitions, in turns with the knock-outs, and with windows of the ceilings."""
    plan, job = bench.plan, doc.job
    job.no_knock_outs = SWITCHED_OFF
    knock_outs, time_left = None, _TimeLeft(bench, options)
    if options.knock_outs:
        knock_outs = KnockOuts(
            bench,
            job,
            saver,
            others.look,
            budget_s=options.knock_outs_s,
            left_s=time_left.for_knock_outs if time_left.limits_knock_outs else None,
        )
    for number in range(plan.repetitions):
        if number and not time_left.for_repetition(number):
            log.info("no time is left for repetition %d of %d", number + 1, plan.repetitions)
            break
        title = f"repetition {number + 1} of {plan.repetitions}"
        began = time.monotonic()
        with (
            timed(doc, "measure", progress, title),
            saver.during() if saver else nullcontext() as saving,
        ):
            phase = repetition_phase(plan, number, saving=saving)
            outcome = measure(bench, phase, job.repetitions.append, others.look)
            add_loader_facts(doc, outcome.loader)
            job.trained = outcome.steps
            add_work(doc, plan.workload.accelerator)
            others.look()
        time_left.repetition_s = max(time_left.repetition_s, time.monotonic() - began)
        if knock_outs is not None:
            for stage in knock_outs.begin(number, outcome, time.monotonic() - began):
                with timed(doc, "knock_outs", progress, f"{title}, without {stage}"):
                    knock_outs.run(stage, number)
                    others.look()
        for entry in again(bench) if number in windows.after else ():
            with timed(doc, "calibrate", progress, f"ceiling: {entry.title}, again"):
                measure_again(bench, entry, windows.later_s)
        if saver and number == 0 and not (knock_outs and knock_outs.leaves_saves_out):
            with timed(doc, "measure", progress, "a repetition without checkpoints"):
                _without_checkpoints(bench, job, others)


class _TimeLeft:
    """What a budget still has time for. ``repetition_s``: the longest one so far."""

    def __init__(self, bench: Bench, options: Options) -> None:
        self.plan, self.options = bench.plan, options
        self.repetition_s = 0.0

    @property
    def limits_knock_outs(self) -> bool:
        budget = self.options.budget
        return budget is not None and "knock_outs" not in budget.given

    def for_repetition(self, number: int) -> bool:
        """Whether the budget, if there is one, has time for repetition ``number``."""
        budget = self.options.budget
        if budget is None or "repetitions" in budget.given or number < MIN_REPETITIONS:
            return True
        return budget.left_s >= self.repetition_s

    def for_knock_outs(self, number: int) -> float:
        """Seconds for knock-outs after repetition ``number``, while others are kept for the rest.

        The trial of advice gets as much as is left then.
        """
        assert self.options.budget is not None
        repetitions = self.plan.repetitions
        rest_s = (repetitions - 1 - number) * self.repetition_s
        if self.options.calibration_s > 0:
            rest_s += later_s(
                self.plan, self.options.calibration_s, repetitions=repetitions, since=number
            )
        left_s = max(0.0, self.options.budget.left_s - rest_s)
        return left_s / 2 if self.options.confirm is not None else left_s


def _without_checkpoints(bench: Bench, job: TrainingRun, others: Others) -> None:
    """Measure a repetition without checkpoints, with which the others are compared."""

    def keep(repetition: Repetition) -> None:
        job.quiet = repetition

    phase = repetition_phase(bench.plan, 0, name="quiet")
    measure(bench, phase, keep, others.look, keep_interrupted=False)


def _confirm(
    bench: Bench,
    asked: Confirm,
    budget: Budget | None,
    doc: TrainingRecord,
    others: Others,
    progress: Progress,
    saver: Saver | None,
) -> None:
    """Try the advice that was asked for, or this run's own, and add the turns to ``doc``."""
    advice: Sequence[Advice] | None = asked.advice
    if advice is None:
        measured = doc.with_job(ceilings=bench.ceilings, curve=bench.curve)
        concluded = conclude(measured).job.verdict
        advice = concluded.advice if concluded is not None else ()
    chosen = applicable(advice)
    if not chosen:
        doc.job.no_confirmations = NOTHING
        return
    measured_s = doc.timings.get("measure", 0.0)
    usual_s = measured_s if asked.usual_s is None else asked.usual_s
    budget_s = asked.budget_s
    if budget_s is None and budget is not None:
        budget_s = budget.left_s
    Turns(
        bench=bench,
        into=doc.job.confirmations,
        repetition_s=measured_s / max(1, len(doc.job.repetitions)),
        budget_s=usual_s if budget_s is None else budget_s,
        strict=budget_s is not None,
        look=others.look,
        progress=progress,
        saving=lambda: saver.during(recorded=False) if saver else nullcontext(),
    ).run(chosen, asked.by)


@contextmanager
def timed(doc: TrainingRecord, name: str, progress: Progress, title: str) -> Iterator[None]:
    """Run the body as a part of the run, and add its time to ``doc.timings``."""
    started = time.monotonic()
    progress.phase(title)
    log.info("%s: %s", name, title)
    try:
        yield
    finally:
        took = time.monotonic() - started
        doc.timings[name] = doc.timings.get(name, 0.0) + took
        if isinstance(progress, Informed):
            progress.finished(name, took)
        log.info("%s: %s took %.3f s", name, title, took)
