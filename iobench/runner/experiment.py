"""A run: plan, calibrate each stage alone, measure all together, find the maximum, conclude.

Whatever happens on the way (a failing disk, a dead worker, Ctrl-C), what was recorded until then is
written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from ..base.errors import IobenchError, UsageError, kept_in, told_after
from ..base.interrupts import defer_interrupts
from ..host import timeline
from ..host.samples import write_samples
from ..judge.rebuild import conclude
from ..judge.user_loader import user_findings
from ..load.choose import make_reader
from ..record.run import EVENTS_FILE, SAMPLES_FILE, FileDigest, TrainingRecord
from ..record.training import Ceiling
from ..record.verdict import Advice
from ..serve.logs import LogPlace, log_place
from ..storage.locks.lock import reading
from .budget import Budget
from .cache import Others, with_local_cache
from .calibration.bench import Bench
from .calibration.ceilings import ENTRIES, CeilingEntry, plan_windows
from .calibration.findmax import begin_search, check_search, find_max
from .checkpoint import Saver, saving_to, unlocked
from .confirm import NOTHING, Trying, applicable
from .estimate import Pilot
from .fit import (
    CURVE,
    NO_TIME,
    Fitted,
    check_budget,
    check_curve,
    choose,
    curve_windows_s,
    measure_pilot,
    pilot_by_curve,
    too_short,
    with_ceilings,
    with_curve,
)
from .hosts.hosts import Hosts
from .options import Confirm, Observer, Options, VerbOptions, timed
from .plan import Plan, check_room
from .results import (
    Ending,
    add_changes,
    add_loader_facts,
    add_plan,
    begin_record,
    failures_recorded,
    run_directory,
    shard_versions,
)
from .rounds import Rounds
from .third_party import prepare_library

log = logging.getLogger(__name__)


def run(
    plan: Plan,
    options: Options,
    observer: Observer | None = None,
    hosts: Hosts | None = None,
) -> tuple[TrainingRecord, Path]:
    """Run the plan; return the concluded document and the run directory.

    ``hosts``: of the ranks; by default this one.

    The dataset is locked together with other readers, and the place for checkpoints exclusively.
    Raises TargetHeldError if another process holds one of them, before anything is written;
    InterruptedRun or the failure after the document and the directory were written.
    """
    observer, hosts = observer or Observer(), hosts or Hosts()
    # This refuses what the data can't provide, before anything is written.
    make_reader(plan.manifest, plan.storage, plan.workload.reader)
    if options.mixed is not None and plan.workload.accelerator.model_parallel > 1:
        raise UsageError(
            "ranks of a model_parallel group that do not read save no checkpoints",
            remedy="leave --checkpoint out, or accelerator.model_parallel",
        )
    _check_log(plan)
    if options.find_max:
        check_search(plan.workload)
    if options.budget.limited:
        check_budget(plan, options, options.budget)
    with (
        reading(plan.home, plan.manifest, verb="run", break_dead=options.break_lock) as lease,
        saving_to(options.mixed, hosts, break_lock=options.break_lock) as saver,
        log_place(plan.workload.log, "run", break_lock=options.break_lock) as log,
        ExitStack() as held,
    ):
        begun = _Run(plan, options, Others(lease), observer, held, hosts, saver, log)
        return begun.run(), begun.bench.directory


def _check_log(plan: Plan) -> None:
    """Raises UsageError if the log of a repetition does not fit where it is written."""
    workload, manifest = plan.workload, plan.manifest
    if workload.log.to is None:
        return
    samples = manifest.sample_count * workload.epochs
    if workload.max_steps is not None:
        samples = min(samples, workload.max_steps * workload.batch_size * plan.accelerators)
    each = workload.log.record + manifest.mean_stored_bytes * workload.log.inputs
    check_room(
        workload.log.to,
        samples * each,
        "the log of a repetition takes",
        "use a smaller log.record, or fewer steps (max_steps)",
    )


class RunBegun:
    """A run while it is measured, on all of its hosts: its bench, and the record that grows.

    ``run_id``: by default the name of the directory.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        options: VerbOptions,
        others: Others,
        observer: Observer,
        held: ExitStack,
        hosts: Hosts,
        *,
        run_id: str = "",
    ) -> None:
        self.others, self.hosts = others, hosts
        self.bench = Bench(
            plan=with_local_cache(hosts.whole(plan), held),
            agent=hosts.agent(plan.storage, plans=True),
            hosts=hosts,
            directory=directory,
            seconds=0.0,
            observer=observer,
            look=others.look,
            held=held,
        )
        self.doc = begin_record(
            self.bench.plan,
            self.bench.agent,
            run_id=run_id or directory.name,
            command=options.command,
            rules=options.rules,
        )
        self.versions: dict[str, str] | str = ""
        log.info("run of %s on %s, in %s", plan.workload.name, plan.storage.url, directory)

    def prepare(self, *, proof: bool, name: str = "") -> None:
        """Begin on all hosts, and prepare what a library's loader needs.

        ``proof``: and check what it delivers. ``name``: of the run, for the observer.
        """
        bench, doc, plan = self.bench, self.doc, self.bench.plan
        self.hosts.begin(doc, plan.accelerators)
        self.versions = shard_versions(plan)
        if plan.subject.reads_itself:
            title = f"{name}the samples that loader '{plan.workload.loader.kind}' delivers"
            with timed(doc, "prepare", bench.observer, title):
                add_loader_facts(doc, prepare_library(plan, bench.held, proof=proof))
                self.hosts.prepare()

    def end(self, *, stopped: bool) -> TrainingRecord:
        """End on all hosts, and write the run; return its concluded record."""
        self.hosts.end(self.doc, self.bench.plan.accelerators)
        return write_run(self.doc, self.bench, self.others, stopped=stopped)


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
        doc = Ending().write(doc, bench.directory, files=lambda: _files_of(bench))
    log.info("run %s: %s, %s", bench.directory.name, doc.status, doc.validity)
    return doc


def _files_of(bench: Bench) -> dict[str, FileDigest]:
    """Write the events, and what was sampled of the host; a run without that is still a run."""
    path = bench.directory
    found = {EVENTS_FILE: timeline.write_events(path / EVENTS_FILE, bench.parts)}
    try:
        if bench.samples:
            found[SAMPLES_FILE] = write_samples(path / SAMPLES_FILE, bench.samples)
    except (OSError, IobenchError) as error:
        log.warning("what the host did meanwhile could not be written: %s", error)
    return found


class _Run(RunBegun):
    """One call of ``run``, while the dataset and the place for checkpoints are held."""

    def __init__(
        self,
        plan: Plan,
        options: Options,
        others: Others,
        observer: Observer,
        held: ExitStack,
        hosts: Hosts,
        saver: Saver | None,
        log: LogPlace | None,
    ) -> None:
        directory = held.enter_context(run_directory(options.results, plan.workload.name))
        super().__init__(plan, directory, options, others, observer, held, hosts)
        bench, doc = self.bench, self.doc
        self.options, self.budget, self.saver = options, options.budget, saver
        self.asked = bench.plan  # which a budget may change
        bench.seconds = bench.window_s = options.calibration_s
        bench.log = log
        doc.findings += unlocked(log.lease) if log else []
        doc.job.saves = saver.study if saver else None
        doc.findings += saver.findings if saver else []
        if options.began_s is not None:
            doc.timings["start"] = time.monotonic() - options.began_s

    def run(self) -> TrainingRecord:
        """Measure, and write the run; return its concluded record. Raises as ``run``."""
        bench, doc, observer, saver = self.bench, self.doc, self.bench.observer, self.saver
        with failures_recorded(doc) as ending:
            self.prepare(proof=self.options.prove)
            pilot = fitted = None
            if self.budget.limited:
                pilot = self._pilot()
                fitted = self._fit(pilot)
                observer.fitted(bench.plan, self.options)
            if self.options.calibration_s > 0:
                self._calibrate(without=fitted)
                self._tell_rate()
            if pilot is not None:
                self._fit(pilot, before=fitted)
            elif saver:
                self._save_alone(saver)
            Rounds(
                bench=bench, doc=doc, options=self.options, others=self.others, saver=saver
            ).run()
            if self.options.find_max:
                with timed(doc, "find_max", observer, "finding the largest number of accelerators"):
                    doc.job.find_max = begin_search(bench)
                    share = 0.5 * self.options.confirms
                    find_max(bench, doc.job.find_max, self.budget.keeping(share))
                self.others.look()
            if self.options.confirm is not None:
                with timed(doc, "confirm", observer, "trying the advice"):
                    self._confirm(self.options.confirm)
            add_changes(doc, self.asked, self.versions)
        failure = ending.failure
        try:
            with told_after(failure):
                doc = self.end(stopped=failure is not None)
        except Exception as error:
            failure = error
        if saver:
            failure = saver.end(failure)
        if failure is not None:
            raise kept_in(failure, bench.directory)
        return doc

    def _pilot(self) -> Pilot:
        """The storage's curve and a few saves, and what a pilot tells of how long the rest takes.

        Where the curve tells that the first batches alone take too long, it is the pilot.
        """
        bench, budget, saver = self.bench, self.budget, self.saver
        if self.options.calibration_s > 0:
            curve_s = self.options.calibration_s
            if "calibration" not in budget.given:
                curve_s = curve_windows_s(budget.left_s)
            bench.seconds = bench.window_s = curve_s
            self._measure_ceilings([entry for entry in ENTRIES if entry.name in CURVE])
            bench.seconds = self.options.calibration_s
            check_curve(bench, self.options, budget)
        if saver:
            self._save_alone(saver)
        found = pilot_by_curve(bench.plan, bench.ceilings, budget.left_s)
        if found is None:
            title = "a pilot: how many steps fit into the time"
            with (
                timed(self.doc, "pilot", bench.observer, title),
                saver.during(recorded=False) if saver else nullcontext() as saving,
            ):
                found = measure_pilot(bench, budget.seconds or 0.0, saving)
        found = with_curve(found, bench.plan, bench.ceilings)
        if saver:
            found = replace(
                found,
                every=saver.every,
                save_s=saver.save_s,
                blocked_s=saver.blocked_s,
                saves=saver.telling_saves,
            )
        log.info("pilot: %s", found)
        return found

    def _save_alone(self, saver: Saver) -> None:
        with timed(self.doc, "checkpoint", self.bench.observer, "checkpoints alone"):
            saver.alone(self.bench.observer, self.budget)

    def _fit(self, pilot: Pilot, *, before: Fitted | None = None) -> Fitted:
        """Fit the plan and the options to the time that is left, as ``choose`` does.

        ``before``: what was fitted before the ceilings were measured. Raises UsageError if the time
        is too short.
        """
        bench, budget = self.bench, self.budget
        fitted = choose(
            self.asked,
            pilot if before is None else with_ceilings(pilot, bench.ceilings),
            budget.left_s,
            self.options,
            budget.given,
            calibrated=before is not None,
            before=before,
        )
        if budget.strict and before is None and not budget.fits(fitted.least_s):
            raise too_short(budget, fitted.least_s)
        log.info(
            "fitted to the budget: %d repetitions of at most %s steps, windows of %.2f s and %d "
            "rounds for each ceiling but %s, %.1f s for ablations; %.1f s are left",
            fitted.plan.repetitions,
            fitted.plan.workload.max_steps,
            fitted.calibration_s,
            fitted.min_rounds,
            ", ".join(sorted(fitted.skipped)) or "none",
            fitted.ablations_s,
            budget.left_s,
        )
        bench.plan, bench.seconds = fitted.plan, fitted.calibration_s
        bench.min_rounds = fitted.min_rounds
        add_plan(self.doc, fitted.plan, asked=self.asked)
        self.options = fitted.options(self.options)
        return fitted

    def _calibrate(self, *, without: Fitted | None) -> None:
        """Measure each ceiling for the first time, the cheapest first, unless there is no time.

        ``without``: what a budget has time for; its curve has been measured.
        """
        bench = self.bench
        bench.window_s = plan_windows(bench.seconds, bench.plan.repetitions).first_s
        done = CURVE if without is not None else frozenset()
        skipped = without.skipped if without is not None else frozenset()
        for name in sorted(skipped):
            bench.ceilings[name] = Ceiling(not_measured=NO_TIME)
        self._measure_ceilings([entry for entry in ENTRIES if entry.name not in done | skipped])

    def _measure_ceilings(self, entries: Sequence[CeilingEntry]) -> None:
        bench = self.bench
        for entry in entries:
            if entry.applies(bench.plan):
                with timed(self.doc, "calibrate", bench.observer, f"ceiling: {entry.title}"):
                    bench.ceilings[entry.name] = entry.measure(bench)
                    add_loader_facts(self.doc, bench.loader)

    def _tell_rate(self) -> None:
        """Tell the lowest ceiling, by which the time of the repetitions can be estimated."""
        known = [ceiling.samples_per_s for ceiling in self.bench.ceilings.values()]
        if rates := [rate for rate in known if rate]:
            self.bench.observer.rate(min(rates))

    def _confirm(self, asked: Confirm) -> None:
        """Try the advice that was asked for, or this run's own, and record the turns."""
        bench, doc, budget, saver = self.bench, self.doc, self.budget, self.saver
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
        if budget_s is None and budget.limited:
            budget_s = budget.left_s
        Trying(
            bench=bench,
            into=doc.job.confirmations,
            repetition_s=measured_s / max(1, len(doc.job.repetitions)),
            budget=Budget(
                seconds=usual_s if budget_s is None else budget_s,
                end_s=0.0,
                strict=budget_s is not None,
            ),
            saving=lambda: saver.during(recorded=False) if saver else nullcontext(),
        ).run(chosen, asked.by)
